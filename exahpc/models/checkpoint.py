"""What is known of a checkpoint without torch: its files, and the heads of its safetensors.

Format of a safetensors file: the head's length (8 bytes, little endian), the head (JSON: name -> dtype, shape and
place), the tensors one after the other without gaps (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from exahpc.deployment.spec import Dtype, Quantization
from exahpc.errors import DeploymentError

FLOATS: Mapping[str, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}
"""Number formats that are converted, and their names in a head."""
SCALE = "_scale"
"""Ending of the scales of an INT8 matrix: `<name>` int8 [out, in] comes with `<name>_scale` float32 [out]."""
_SINGLE, _INDEX, _CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
_LONGEST_HEAD = 100_000_000  # bytes; the format's own bound


class Entry(msgspec.Struct, frozen=True):
    """One tensor of a head. data_offsets: first byte and end, counted from the end of the head."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def size(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]


class Head(msgspec.Struct, frozen=True):
    """length: of the JSON text; tensors by name, in the file's order."""

    length: int
    tensors: dict[str, Entry]

    @property
    def start(self) -> int:
        """Where the first tensor begins."""
        return 8 + self.length


class Wanted(msgspec.Struct, frozen=True):
    """The form that weights are served in."""

    dtype: Dtype
    quantization: Quantization = "none"


class File(msgspec.Struct, frozen=True):
    name: str
    size: int
    changed: int
    """Time of the last change, ns."""


class Source(msgspec.Struct, frozen=True):
    """A checkpoint as it lies there now: what a replica reads of it, weights last."""

    folder: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def key(self, wanted: Wanted | None) -> str:
        """Name of a copy of exactly these files in that form (None: as they are)."""
        return hashlib.sha256(msgspec.json.encode((1, self, wanted))).hexdigest()[:20]


def read_head(file: Path) -> Head:
    """Raises DeploymentError when the file is cut, damaged or cannot be read."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            size = os.fstat(opened.fileno()).st_size
            if not 2 <= length <= min(size - 8, _LONGEST_HEAD):
                raise ValueError
            raw = json.loads(opened.read(length))
        raw.pop("__metadata__", None)
        tensors = msgspec.convert(raw, dict[str, Entry])
        if size != 8 + length + max((entry.data_offsets[1] for entry in tensors.values()), default=0):
            raise ValueError
    except OSError as error:
        raise DeploymentError(f"model.path: {file} cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, AttributeError):
        where = f"model.path = {str(file.parent)!r}"
        raise DeploymentError(f"{where}: {file.name} is cut or damaged; copy it again") from None
    return Head(length, dict(sorted(tensors.items(), key=lambda item: item[1].data_offsets)))


def weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files. Raises DeploymentError when there are none, or one is missing."""
    index = folder / _INDEX
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except FileNotFoundError:
        names = [_SINGLE]
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise DeploymentError(f"model.path: {index} cannot be read: {error}") from None
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise DeploymentError(f"model.path = {str(folder)!r}: there is no {name}; copy the checkpoint again")
    return names


def look(folder: Path) -> Source:
    """Raises DeploymentError when a file is missing or cannot be read."""
    names = [_CONFIG, *([_INDEX] if (folder / _INDEX).exists() else []), *weight_files(folder)]
    files = []
    for name in names:
        try:
            found = (folder / name).stat()
        except OSError as error:
            raise DeploymentError(f"model.path: {folder / name} cannot be read: {error.strerror}") from None
        files.append(File(name, found.st_size, found.st_mtime_ns))
    return Source(str(folder.resolve()), tuple(files))


def quantizable(name: str, shape: tuple[int, ...]) -> bool:
    """Whether INT8 takes this tensor: a matrix of a numbered layer, experts included.

    Kept as they are: embedding and output layer, whose rounding costs as much quality as all layers together, and
    routers, which decide by small differences.
    """
    parts = name.split(".")
    inside = any(part.isdigit() for part in parts)
    kept = len(parts) > 1 and re.search(r"^gate$|router|embed|norm", parts[-2])
    return len(shape) == 2 and parts[-1] == "weight" and inside and not kept


def quantized(heads: Iterable[Head]) -> bool:
    """Whether any matrix is stored as INT8 with its scales."""
    return any(name + SCALE in head.tensors for head in heads for name in head.tensors)


def must_convert(heads: Iterable[Head], wanted: Wanted) -> bool:
    """Whether any matrix has another form than `wanted`. Vectors are small: each process converts its own.

    Raises DeploymentError for INT8 weights that are to be served in another form.
    """
    answer = False
    for head in heads:
        for name, entry in head.tensors.items():
            if name + SCALE in head.tensors:
                if wanted.quantization != "int8":
                    raise DeploymentError(
                        'model.quantization = "none", but the checkpoint holds INT8 weights: set "int8"'
                    )
            elif entry.dtype in FLOATS.values() and len(entry.shape) > 1:
                whole = wanted.quantization == "int8" and quantizable(name, entry.shape)
                answer |= whole or entry.dtype != FLOATS[wanted.dtype]
    return answer
