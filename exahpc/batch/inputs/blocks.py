"""Files of lines, in blocks: memory does not grow with the file, nor with the length of a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from exahpc.batch.lines import LONGEST_LINE

_BOM = b"\xef\xbb\xbf"
_BLOCK = 4 << 20


class Digest(Protocol):
    """Of hashlib."""

    def update(self, data: bytes, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Block:
    """Non-blank lines without their ends. offsets: bytes, from the start of the file; numbers: from 1; utf8: all
    of them are; after: number of the line after them."""

    lines: list[bytes]
    offsets: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    utf8: bool
    after: int


def blocks(file: BinaryIO, digest: Digest | None = None, size: int = _BLOCK) -> Iterator[Block]:
    """All lines of a file; of an over-long one, its first LONGEST_LINE + 1 bytes.

    Lines end with \\n or \\r\\n and with nothing else; a byte order mark before the first is no part of it. digest
    gets all bytes.
    """
    rest, offset, number, skipping = b"", 0, 1, False
    while data := file.read(size):
        if digest is not None:
            digest.update(data)
        if not offset and not rest and data.startswith(_BOM):
            data, offset = data[len(_BOM) :], len(_BOM)
        if skipping:  # the rest of an over-long line
            end = data.find(b"\n") + 1
            offset += end or len(data)
            if not end:
                continue
            data, skipping = data[end:], False
        data = rest + data
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if end:
            block = _block(data[:end], offset, number)
            yield block
            offset, number = offset + end, block.after
        if len(rest) > LONGEST_LINE:
            yield _block(rest[: LONGEST_LINE + 1], offset, number)
            offset, number, rest, skipping = offset + len(rest), number + 1, b"", True
    if rest:
        yield _block(rest, offset, number)


def _block(data: bytes, offset: int, number: int) -> Block:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    lengths = np.fromiter(map(len, lines), np.int64, len(lines))
    offsets = offset + np.cumsum(lengths + 1) - lengths - 1
    after = number + len(lines)
    numbers = np.arange(number, after)
    if b"\r" in data:
        lines = [line.rstrip(b"\r") for line in lines]
    blank = [i for i, line in enumerate(lines) if not line or line.isspace()]
    if blank:
        keep = np.ones(len(lines), bool)
        keep[blank] = False
        lines = [line for line, kept in zip(lines, keep, strict=True) if kept]
        offsets, numbers = offsets[keep], numbers[keep]
    return Block(lines, offsets, numbers, data.isascii() or _is_utf8(data), after)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
