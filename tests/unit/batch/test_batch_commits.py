"""Only what the newest broker accepted counts."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from exahpc.batch.commits import AnyEvent, Closed, Commit, CommitWriter, read
from exahpc.errors import BatchError
from tests.disks import ROOM, Disk


def commit(row: int) -> Commit:
    return Commit(1, "a-0-1", row * 10 + 8, row * 10 + 18, [(row, row + 1)], [])


def opened(folder: Path, epoch: int = 1) -> tuple[CommitWriter, list[AnyEvent]]:
    events: list[AnyEvent] = []
    return CommitWriter(folder, epoch, events.append), events


def counted(folder: Path) -> list[AnyEvent]:
    return [event for _, _, event in read(folder) if isinstance(event, Commit | Closed)]


def test_a_new_broker_sees_all_that_was_committed_before(tmp_path: Path) -> None:
    first, _ = opened(tmp_path)
    first.append([commit(0), Closed(1)])
    second, before = opened(tmp_path)
    assert before[1:] == [commit(0), Closed(1)]
    second.append([commit(1)])
    assert counted(tmp_path) == [commit(0), Closed(1), commit(1)]


def test_a_broker_that_was_replaced_can_commit_nothing_more(tmp_path: Path) -> None:
    old, _ = opened(tmp_path)
    old.append([commit(0)])
    new, _ = opened(tmp_path, 2)
    with pytest.raises(BatchError, match="another broker"):
        old.append([commit(1)])
    old._append([commit(1)])  # even if it had not looked
    new.append([commit(2)])
    assert counted(tmp_path) == [commit(0), commit(2)]
    third, before = opened(tmp_path, 3)
    third.append([commit(3)])
    assert counted(tmp_path) == [commit(0), commit(2), commit(3)]
    assert commit(1) not in before


def test_a_file_that_was_only_claimed_never_counts_and_stops_nobody(tmp_path: Path) -> None:
    first, _ = opened(tmp_path)
    first.append([commit(0)])
    (tmp_path / "000002").write_bytes(b"EXAJ")
    assert counted(tmp_path) == [commit(0)]
    third, before = opened(tmp_path)
    assert third.number == 3
    assert commit(0) in before


def test_a_journal_cut_anywhere_counts_up_to_its_last_whole_event(tmp_path: Path) -> None:
    first, _ = opened(tmp_path)
    for row in range(30):
        first.append([commit(row)])
    path = tmp_path / "000001"
    data = path.read_bytes()
    rng = random.Random(5)
    sizes = []
    for cut in sorted(rng.randrange(len(data) + 1) for _ in range(20)):
        path.write_bytes(data[:cut])
        found = counted(tmp_path)
        assert found == [commit(row) for row in range(len(found))]
        sizes.append(len(found))
    assert sizes == sorted(sizes)
    assert sizes[-1] > 20


def test_events_that_a_full_disk_cut_anywhere_are_written_once_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, writer = Disk(monkeypatch), opened(tmp_path)[0]
    due, row = list[AnyEvent](), 0
    for room in [*range(90), -1]:
        due += [commit(row), commit(row + 1)]
        row += 2
        disk.left, disk.syncs = room if room >= 0 else ROOM, room < 0
        before = writer.end
        try:
            writer.append(due)
        except OSError:
            assert writer.end == before
            seen = counted(tmp_path)
            assert seen == [commit(at) for at in range(len(seen))], "a reader sees a beginning of it"
        else:
            due = []
    disk.left, disk.syncs = ROOM, False
    writer.append(due)
    assert counted(tmp_path) == [commit(at) for at in range(row)]
    assert opened(tmp_path)[1][-1] == commit(row - 1)


@pytest.mark.parametrize("room", [0, 5, 8, 12, -1])
def test_a_broker_that_found_no_room_to_open_a_batch_leaves_no_trace_and_may_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    first, _ = opened(tmp_path)
    first.append([commit(0)])
    disk = Disk(monkeypatch)
    disk.left, disk.syncs = room if room >= 0 else ROOM, room < 0
    for _ in range(3):
        with pytest.raises(OSError, match=r"No space|quota"):
            opened(tmp_path, 2)
    assert os.listdir(tmp_path) == ["000001"]
    disk.left, disk.syncs = ROOM, False
    first.append([commit(1)])
    assert opened(tmp_path, 2)[0].number == 2
    assert counted(tmp_path) == [commit(0), commit(1)]


def test_a_broker_whose_next_one_gave_its_number_back_still_sees_the_one_after_it(tmp_path: Path) -> None:
    old, _ = opened(tmp_path)
    (tmp_path / "000002").write_bytes(b"")
    new, _ = opened(tmp_path, 2)
    (tmp_path / "000002").unlink()
    assert new.number == 3
    with pytest.raises(BatchError, match="another broker"):
        old.append([commit(0)])


def test_damage_inside_what_a_newer_broker_accepted_is_an_error(tmp_path: Path) -> None:
    first, _ = opened(tmp_path)
    first.append([commit(0)])
    first.append([commit(1)])
    opened(tmp_path)
    path = tmp_path / "000001"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(BatchError, match="is damaged at byte"):
        counted(tmp_path)


def test_reading_goes_on_where_it_stopped(tmp_path: Path) -> None:
    writer, _ = opened(tmp_path)
    writer.append([commit(0), commit(1)])
    seen = {number: end for number, end, _ in read(tmp_path)}
    writer.append([commit(2)])
    assert [event for _, _, event in read(tmp_path, seen)] == [commit(2)]
