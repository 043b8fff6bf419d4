"""A frame is whole or not there, whatever happens to the file."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from exahpc.batch.journal import MAGIC, FrameReader, FrameWriter, Record
from exahpc.errors import BatchError


def record(row: int, size: int = 10) -> Record:
    return Record(
        row, row + 1, 200, b"id\x00\xed\xa0\x80", random.Random(row).randbytes(size), 1, 2, 3, 4, "a-0-1"
    )


def write(path: Path, groups: list[list[Record]]) -> list[tuple[int, int]]:
    writer = FrameWriter(path)
    places = [writer.append([msgspec.msgpack.encode(r) for r in group]) for group in groups]
    writer.sync()
    writer.close()
    return places


def read(path: Path, start: int = len(MAGIC), end: int | None = None) -> list[Record]:
    reader: FrameReader[Record] = FrameReader(path, Record)
    found = [value for _, _, value in reader.frames(start, end)]
    reader.close()
    return found


def test_ranges_of_bytes_hold_exactly_what_was_appended(tmp_path: Path) -> None:
    groups = [[record(i * 10 + j, 3_000_000 if i == j == 1 else 50) for j in range(3)] for i in range(4)]
    places = write(tmp_path / "j", groups)
    for group, (start, end) in zip(groups, places, strict=True):
        assert read(tmp_path / "j", start, end) == group
    assert read(tmp_path / "j") == [r for group in groups for r in group]
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o600


def test_a_journal_has_one_writer_in_its_life(tmp_path: Path) -> None:
    FrameWriter(tmp_path / "j").close()
    with pytest.raises(FileExistsError):
        FrameWriter(tmp_path / "j")


@pytest.mark.case("B54")
def test_truncation_keeps_every_whole_record_and_invents_none(tmp_path: Path) -> None:
    records = [record(i, i * 7 % 90) for i in range(60)]
    ends = [end for _, end in write(tmp_path / "j", [[r] for r in records])]
    data = (tmp_path / "j").read_bytes()
    rng = random.Random(1)
    for cut in [0, 1, len(MAGIC), *(rng.randrange(len(data) + 1) for _ in range(200))]:
        (tmp_path / "cut").write_bytes(data[:cut])
        assert read(tmp_path / "cut") == records[: sum(end <= cut for end in ends)]


def test_a_flipped_bit_ends_the_file_before_its_record(tmp_path: Path) -> None:
    records = [record(i, i * 7 % 90) for i in range(60)]
    ends = [end for _, end in write(tmp_path / "j", [[r] for r in records])]
    data = (tmp_path / "j").read_bytes()
    rng = random.Random(2)
    for _ in range(400):
        at = rng.randrange(len(data))
        spoilt = bytearray(data)
        spoilt[at] ^= 1 << rng.randrange(8)
        (tmp_path / "spoilt").write_bytes(spoilt)
        whole = 0 if at < len(MAGIC) else sum(end <= at for end in ends)
        assert read(tmp_path / "spoilt") == records[:whole]


def test_a_range_ends_where_it_says_even_inside_a_frame(tmp_path: Path) -> None:
    (start, end), (_, beyond) = write(tmp_path / "j", [[record(0)], [record(1)]])
    assert read(tmp_path / "j", start, beyond - 1) == [record(0)]
    assert read(tmp_path / "j", start, end) == [record(0)]


def test_a_promised_range_that_cannot_be_read_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (start, end), *_ = write(tmp_path / "j", [[record(0), record(1)]])
    data = bytearray((tmp_path / "j").read_bytes())
    data[-1] ^= 1
    (tmp_path / "j").write_bytes(data)
    reader: FrameReader[Record] = FrameReader(tmp_path / "j", Record)
    with pytest.raises(BatchError, match="damaged at byte"):
        list(reader.exactly(start, end))


def test_a_failed_append_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    writer = FrameWriter(tmp_path / "j")
    real = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if len(data) <= 5:
            raise OSError(28, "No space left on device")
        return real(fd, bytes(data)[:5], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        writer.append([b"\xc0" * 100])
    monkeypatch.setattr(os, "pwrite", real)
    writer.append([msgspec.msgpack.encode(record(7))])
    writer.close()
    assert read(tmp_path / "j") == [record(7)]
