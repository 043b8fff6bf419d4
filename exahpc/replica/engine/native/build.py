"""Compiles the kernels for the processor at hand, once per user and kind of node.

A wheel would have to be built for the weakest processor; compiling takes some seconds and uses what the node has.
The result lies in the cache under a name made of all that it depends on, so nodes of different kinds may share a
home directory, and twelve ranks that start together compile once.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)
_SOURCES = "kernels.cpp attention.h attention_floats.h attention_pairs.h cache.h products.h vectors.h"
SOURCES = tuple(Path(__file__).with_name(name) for name in _SOURCES.split())
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC", "-w")
_SECONDS = 300
_KEPT = 30 * 86400.0
"""Seconds after its last use for which a library stays in the cache: far longer than any job runs."""


def cache() -> Path:
    """Directory of compiled kernels: $XDG_CACHE_HOME/exahpc/native, else ~/.cache/exahpc/native."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "exahpc" / "native"


def library(folder: Path | None = None) -> Path | None:
    """The compiled kernels in `folder` (`cache()` if None); None, with a line in the log, where there are none.

    Without a compiler, what another node with such a processor has compiled there will do. Where `folder` cannot
    be written, they lie in a private directory until this process ends.
    """
    folder = folder or cache()
    kind = _kind()
    try:
        compiler = _compiler()
        if compiler is None:
            found = sorted(folder.glob(f"kernels-{kind}-*.so"))
            if not found:
                raise FileNotFoundError("no C++ compiler: install one, or name it in CXX")
            return _used(found[0])
        name = f"kernels-{kind}-{_version(compiler)}.so"
        try:
            return _cached(compiler, folder / name)
        except OSError as error:
            log.info("no native kernels in %s (%s): compiled for this process alone", folder, error.strerror)
        return _private(compiler, name)
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or error
        log.warning("no native kernels, decoding will be several times slower: %s", str(detail).strip()[:500])
        return None


def _cached(compiler: list[str], target: Path) -> Path:
    """Raises OSError when the cache cannot be used."""
    if not target.exists():
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(target.parent / "lock"):
            if not target.exists():
                _compile(compiler, target)
                _sweep(target.parent)
    return _used(target)


def _used(target: Path) -> Path:
    """Keep it from being swept away."""
    with contextlib.suppress(OSError):  # not ours to keep
        os.utime(target)
    return target


def _sweep(folder: Path) -> None:
    """Remove what nobody has used for long: of older versions, compilers and nodes, and of compilers that died."""
    oldest = time.time() - _KEPT
    for path in folder.glob("*.so"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()


def _private(compiler: list[str], name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="exahpc-native-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _compile(compiler, folder / name)
    return folder / name


def _compiler() -> list[str] | None:
    """The command $CXX, else the first compiler found."""
    wanted = os.environ.get("CXX")
    for command in [wanted] if wanted else ["c++", "g++", "clang++"]:
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    return None


def _kind() -> str:
    """Hash of all that the result depends on but the compiler: source, flags and processor."""
    words = (*_FLAGS, platform.machine(), _processor())
    return _hash(*(source.read_bytes() for source in SOURCES), *(word.encode() for word in words))


def _version(compiler: list[str]) -> str:
    """Hash of a compiler's command and version."""
    told = subprocess.run([*compiler, "--version"], capture_output=True, check=True, timeout=_SECONDS).stdout
    return _hash(" ".join(compiler).encode(), told)


def _hash(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()[:16]


def _processor() -> str:
    """Model and features as Linux tells them, of the first processor."""
    names = ("vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features", "cpu")
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.split(":")[0].strip() in names)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time, where the file system can lock; elsewhere several may compile: only waste."""
    with open(lock, "w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(compiler: list[str], target: Path) -> None:
    """Under another name first: `target` exists whole or not at all."""
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(handle)
    try:
        command = [*compiler, *_FLAGS, str(SOURCES[0]), "-o", name]
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)
        os.chmod(name, 0o700)
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)
