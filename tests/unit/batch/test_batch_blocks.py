"""Lines are the same however the file is cut into blocks; only \\n and \\r\\n end one."""

from __future__ import annotations

import hashlib
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exahpc.batch.inputs import blocks as module
from exahpc.batch.inputs.blocks import blocks

BOM = b"\xef\xbb\xbf"
_pieces = st.sampled_from(
    [
        b"a",
        b"bc",
        b"\n",
        b"\r\n",
        b"\r",
        b" ",
        b"\t\n",
        b"\xe2\x80\xa8",
        b"\xc2\x85",
        b"\x00",
        b"\xff",
        BOM,
        b"\x0b",
    ]
)


@given(st.lists(_pieces, max_size=30), st.integers(1, 20), st.booleans())
@settings(max_examples=150, deadline=None)
def test_lines_offsets_and_numbers_do_not_depend_on_the_blocks(pieces: list[bytes], size: int, bom: bool) -> None:
    data = (BOM if bom else b"") + b"".join(pieces)
    digest = hashlib.sha256()
    found = [
        (line, int(offset), int(number))
        for block in blocks(io.BytesIO(data), digest, max(size, 3))
        for line, offset, number in zip(block.lines, block.offsets, block.numbers, strict=True)
    ]
    start = len(BOM) if data.startswith(BOM) else 0
    wanted, offset = [], start
    for number, raw in enumerate(data[start:].split(b"\n"), 1):
        line = raw.rstrip(b"\r")
        if line.strip():
            wanted.append((line, offset, number))
        offset += len(raw) + 1
    assert found == wanted
    assert digest.digest() == hashlib.sha256(data).digest()
    assert all(data[o : o + len(line)] == line for line, o, _ in found)


@pytest.mark.parametrize("tail", [b"", b"\n", b"\nlast"])
@pytest.mark.parametrize("length", [9, 50, 51, 60, 200])
def test_of_an_over_long_line_only_the_beginning_is_kept(
    tail: bytes, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 50)
    data = b"first\n" + b"x" * length + tail
    found = [
        (line, int(number))
        for block in blocks(io.BytesIO(data), None, 7)
        for line, number in zip(block.lines, block.numbers, strict=True)
    ]
    assert found[0] == (b"first", 1)
    kept, number = found[1]
    assert number == 2
    assert kept == b"x" * len(kept)
    assert len(kept) == length if length <= 50 else 50 < len(kept) <= min(length, 58)
    assert found[2:] == ([(b"last", 3)] if tail == b"\nlast" else [])
