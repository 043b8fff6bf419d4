"""The bytes of a copy: a checkpoint's files as they are, or its weights in another form.

Everything is made piece by piece, so memory stays small however large the model is. Converting needs torch.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from exahpc.errors import DeploymentError
from exahpc.models import manifest
from exahpc.models.checkpoint import FLOATS, SCALE, Entry, Head, Source, Wanted, look, quantizable, read_head

if TYPE_CHECKING:
    import torch

Pieces = Iterator[tuple[str, bytes | memoryview]]
"""(file's name, next bytes of it); a piece is good until the next is asked for."""

_ALIGN = 64  # of the first tensor: a cache line
_BLOCK = 2**18  # numbers that are converted at once: what is freed afterwards stays with the process
_SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I8": 1}


def pieces(source: Source, wanted: Wanted | None) -> Pieces:
    """All files of a copy. wanted: the form of its weights, None for the bytes as they are.

    Raises DeploymentError when the source is damaged (see `manifest`) or changes while it is read.
    """
    folder = Path(source.folder)
    told = manifest.read(folder)
    for file in source.files:
        path = folder / file.name
        try:
            if wanted is not None and file.name.endswith(".safetensors"):
                if told is not None:
                    manifest.check(manifest.make(folder, [file.name]), told, source.folder)
                yield from ((file.name, piece) for piece in _converted(path, wanted))
                continue
            summing = manifest.Summing()
            for piece in manifest.chunks(path):
                summing.add(piece)
                yield file.name, piece
        except OSError as error:
            raise DeploymentError(f"model.path: {path} cannot be read: {error.strerror or error}") from None
        if told is not None:
            manifest.check(manifest.Manifest({file.name: summing.sum}), told, source.folder)
    if look(folder) != source:
        raise DeploymentError(f"model.path = {source.folder!r} was changed while it was read: start again")


def size(source: Source, wanted: Wanted | None) -> int:
    """Bytes of what `pieces` gives, heads included."""
    if wanted is None:
        return source.size
    folder = Path(source.folder)
    total = 0
    for file in source.files:
        if not file.name.endswith(".safetensors"):
            total += file.size
            continue
        made = planned(read_head(folder / file.name), wanted)
        total += len(_head_bytes(made)) + sum(entry.size for entry in made.values())
    return total


def planned(head: Head, wanted: Wanted) -> dict[str, Entry]:
    """The tensors of the file that is made of one with this head, the widest numbers first: all stay aligned."""
    made: list[tuple[str, str, tuple[int, ...], int]] = []
    for name, entry in head.tensors.items():
        count = math.prod(entry.shape)
        if entry.dtype not in FLOATS.values() or len(entry.shape) < 2:
            made.append((name, entry.dtype, entry.shape, entry.size))
        elif wanted.quantization == "int8" and quantizable(name, entry.shape):
            made.append((name + SCALE, "F32", entry.shape[:1], 4 * entry.shape[0]))
            made.append((name, "I8", entry.shape, count))
        else:
            kind = FLOATS[wanted.dtype]
            made.append((name, kind, entry.shape, count * _SIZES[kind]))
    made.sort(key=lambda one: -_SIZES.get(one[1], 8))
    entries, at = {}, 0
    for name, kind, shape, length in made:
        entries[name] = Entry(kind, shape, (at, at + length))
        at += length
    return entries


def _head_bytes(entries: dict[str, Entry]) -> bytes:
    fields = {
        name: {"dtype": e.dtype, "shape": e.shape, "data_offsets": e.data_offsets} for name, e in entries.items()
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **fields}, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def _converted(path: Path, wanted: Wanted) -> Iterator[bytes | memoryview]:
    import torch

    from exahpc.models import int8

    head = read_head(path)
    made = planned(head, wanted)
    yield _head_bytes(made)
    scales: dict[str, torch.Tensor] = {}
    with path.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)  # closed with the last tensor on it
    for name, entry in made.items():
        if name not in head.tensors:  # a scale that is made here
            plain = name.removesuffix(SCALE)
            scales[plain] = torch.cat([int8.scales(block) for block in _rows(mapped, head, plain)])
            yield _bytes(scales[plain])
        elif entry.dtype == head.tensors[name].dtype:
            start = head.start + head.tensors[name].data_offsets[0]
            for at in range(start, start + entry.size, manifest.CHUNK):
                yield mapped[at : min(at + manifest.CHUNK, start + entry.size)]
        elif name in scales:
            blocks = zip(_rows(mapped, head, name), _split(scales[name], entry), strict=True)
            yield from (_bytes(int8.quantize(block, scale)) for block, scale in blocks)
        else:
            yield from (_bytes(block.to(_torch(entry.dtype))) for block in _rows(mapped, head, name))


def _rows(mapped: mmap.mmap, head: Head, name: str) -> Iterator[torch.Tensor]:
    """A tensor of two or more dimensions, some rows at a time."""
    import warnings

    import torch

    entry = head.tensors[name]
    if not entry.size:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "not writable": nobody writes
        flat = torch.frombuffer(
            mapped, dtype=torch.uint8, count=entry.size, offset=head.start + entry.data_offsets[0]
        )
    whole = flat.clone() if entry.data_offsets[0] % 8 or head.start % 8 else flat
    tensor = whole.view(_torch(entry.dtype)).view(entry.shape)
    yield from _split(tensor, entry)


def _split(rows: torch.Tensor, entry: Entry) -> Iterator[torch.Tensor]:
    """The rows of a tensor, or what belongs to each of them, as many as are converted at once."""
    step = max(1, _BLOCK // max(1, math.prod(entry.shape[1:])))
    return (rows[at : at + step] for at in range(0, len(rows), step))


def _torch(dtype: str) -> torch.dtype:
    import torch

    names = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
    return names[dtype]


def _bytes(tensor: torch.Tensor) -> memoryview:
    import torch

    return memoryview(tensor.contiguous().view(torch.uint8).reshape(-1).numpy())  # type: ignore[arg-type]
