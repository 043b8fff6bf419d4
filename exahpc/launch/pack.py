"""One file of a virtual environment, which nodes unpack onto a disk of their own (`slurm/supervise.sh`).

Thousands of processes that import from a parallel file system open millions of small files there; this is one file
read once a node. A virtual environment may be moved: Python finds it by `pyvenv.cfg` beside the interpreter. The
interpreter itself is a link to where it was, with its own library: nodes must have it there.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

import exahpc
from exahpc.errors import DeploymentError
from exahpc.slurm import scripts

FORMS = (".tar", ".tar.gz", ".tar.zst")
"""Endings; nodes need zstd for the last."""


class Packed(msgspec.Struct, frozen=True):
    """files: how many; size: bytes of them, unpacked; packed: bytes of the one file."""

    files: int
    size: int
    packed: int


def pack(output: Path, exclude: Sequence[str] = (), prefix: Path | None = None) -> Packed:
    """Write the environment `prefix` (default: ours) to `output`, whole or not at all.

    exclude: patterns of paths inside the environment ("*/site-packages/torch/*"). Raises DeploymentError when this
    is no virtual environment, or `output` has no known ending.
    """
    prefix = prefix or Path(sys.prefix)
    if not (prefix / "pyvenv.cfg").is_file():
        raise DeploymentError(f"{prefix} is no virtual environment: run the exahpc of one (python -m venv)")
    if not output.name.endswith(FORMS):
        raise DeploymentError(f"--output = '{output}': end it with one of {', '.join(FORMS)}")
    site = prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    files = size = 0
    try:
        with _writer(part, output.name) as tar:
            for source, name in (*_environment(prefix), *_ourselves(site.relative_to(prefix))):
                if not any(fnmatch.fnmatch(name, pattern) for pattern in exclude):
                    tar.add(source, name, recursive=False, filter=_nobodys)
                    files, size = files + 1, size + source.lstat().st_size
        os.replace(part, output)
    finally:
        part.unlink(missing_ok=True)
    return Packed(files, size, output.stat().st_size)


def _environment(prefix: Path) -> Iterator[tuple[Path, str]]:
    """Files and links, without our own package: it may be a link to a checkout (an editable installation)."""
    for folder, folders, names in os.walk(prefix):
        here = Path(folder)
        if here.name == "site-packages":
            folders[:] = [name for name in folders if name != "exahpc"]
            names = [name for name in names if not (name.endswith(".pth") and "exahpc" in name)]
        links = [name for name in folders if (here / name).is_symlink()]
        for name in sorted((*names, *links)):
            yield here / name, str((here / name).relative_to(prefix))


def _ourselves(site: Path) -> Iterator[tuple[Path, str]]:
    package = Path(exahpc.__file__).parent
    for file in sorted(package.rglob("*")):
        if file.is_file() and "_scripts" not in file.parts:
            yield file, str(site / "exahpc" / file.relative_to(package))
    found = scripts.directory()
    for name in scripts.NAMES:
        yield found / name, str(site / "exahpc" / "_scripts" / name)


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Who unpacks it owns it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


@contextlib.contextmanager
def _writer(part: Path, name: str) -> Iterator[tarfile.TarFile]:
    with part.open("wb") as file:
        if not name.endswith(".zst"):
            with tarfile.open(fileobj=file, mode="w|gz" if name.endswith(".gz") else "w|") as tar:
                yield tar
            return
        program = shutil.which("zstd")
        if program is None:
            raise DeploymentError("--output: there is no zstd here: install it, or use .tar.gz")
        with subprocess.Popen([program, "-q", "-T0"], stdin=subprocess.PIPE, stdout=file) as zstd:
            into: IO[bytes] | None = zstd.stdin
            assert into is not None
            with tarfile.open(fileobj=into, mode="w|") as tar:
                yield tar
            into.close()
        if zstd.returncode:
            raise DeploymentError(f"zstd ended with {zstd.returncode}: is the disk full?")
