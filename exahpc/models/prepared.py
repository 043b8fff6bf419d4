"""A checkpoint in another form, made once for all nodes: what `exahpc model convert` leaves behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from exahpc.deployment.units import memory
from exahpc.errors import DeploymentError
from exahpc.models import manifest, produce
from exahpc.models.checkpoint import Source, Wanted, look, must_convert, quantized, read_head
from exahpc.models.writer import Writer

_KINDS = (".json", ".jinja", ".model", ".txt")
"""Endings of what belongs to a checkpoint beside its weights: tokenizer, chat template, settings, licence."""


def prepare(source: Path, target: Path, wanted: Wanted, told: Callable[[float], None]) -> None:
    """Make `target`: all of `source` with its weights as `wanted`, and a manifest. It appears whole or not at all.

    told: called with the share (0..1) that is done. Raises DeploymentError.
    """
    found = look(source)
    heads = [read_head(source / file.name) for file in found.files if file.name.endswith(".safetensors")]
    if quantized(heads) and wanted.quantization == "none":
        raise DeploymentError(
            f"{source} holds INT8 weights, of which no exact ones can be made: convert the checkpoint that they "
            "were made of, or ask for --int8"
        )
    if not must_convert(heads, wanted):
        raise DeploymentError(f"{source} is in that form already: nothing to do")
    try:
        _make(found, target, wanted, told)
    except OSError as error:
        raise DeploymentError(
            f"{target} cannot be made ({error}): name a target in a folder that is there and can be written"
        ) from None


def _make(found: Source, target: Path, wanted: Wanted, told: Callable[[float], None]) -> None:
    if target.exists():
        raise DeploymentError(f"{target} exists: name another folder or remove it")
    size = produce.size(found, wanted)
    if (free := shutil.disk_usage(target.parent).free) < size:
        raise DeploymentError(
            f"{target.parent} has {memory(free)} free, the weights take {memory(size)}: name another folder"
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
        for path in Path(found.folder).iterdir():
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
