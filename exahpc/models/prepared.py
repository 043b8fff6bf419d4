"""A checkpoint in another form, made once for all nodes: what `exahpc model convert` leaves behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from exahpc.errors import DeploymentError
from exahpc.models import manifest, produce
from exahpc.models.checkpoint import Wanted, look, must_convert, read_head
from exahpc.models.writer import Writer

_KINDS = (".json", ".jinja", ".model", ".txt")
"""Endings of what belongs to a checkpoint beside its weights: tokenizer, chat template, settings, licence."""


def prepare(source: Path, target: Path, wanted: Wanted, told: Callable[[float], None]) -> None:
    """Make `target`: all of `source` with its weights as `wanted`, and a manifest. It appears whole or not at all.

    told: called with the share (0..1) that is done. Raises DeploymentError.
    """
    found = look(source)
    heads = [read_head(source / file.name) for file in found.files if file.name.endswith(".safetensors")]
    if not must_convert(heads, wanted):
        raise DeploymentError(f"{source} is in that form already: nothing to do")
    if target.exists():
        raise DeploymentError(f"{target} exists: name another folder or remove it")
    size = produce.size(found, wanted)
    if (free := shutil.disk_usage(target.parent).free) < size:
        raise DeploymentError(
            f"{target.parent} has {free / 2**30:.2f} GiB free, the weights take {size / 2**30:.2f}"
        )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as name:
        part = Path(name) / target.name
        writer, written = Writer(part), 0
        for file, data in produce.pieces(found, wanted):
            writer.write(file, data)
            written += len(data)
            told(written / size)
        made = writer.done()
        (part / manifest.NAME).write_bytes(made.encode())
        for path in source.iterdir():
            if path.suffix in _KINDS and path.is_file() and not (part / path.name).exists():
                shutil.copyfile(path, part / path.name)
        for path in part.iterdir():
            path.chmod(0o644)
        part.chmod(0o755)
        os.rename(part, target)


def seal(folder: Path) -> int:
    """Write the manifest of a checkpoint as it is now; returns its bytes. Raises DeploymentError, also when one
    of its files is seen to be cut: a seal would vouch for it."""
    found = look(folder)
    names = [file.name for file in found.files]
    for name in names:
        if name.endswith(".safetensors"):
            read_head(folder / name)
    try:
        made = manifest.make(folder, names)
        (folder / manifest.NAME).write_bytes(made.encode())
    except OSError as error:
        raise DeploymentError(f"{folder} cannot be sealed: {error}") from None
    return found.size
