"""A row that ended is told only when it is safe; every leased row ends, or goes back, once."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from exahpc.agent.actions import Served
from exahpc.agent.leases import ATTEMPTS, SUSPECT, LeaseWorker, Row
from exahpc.batch.intervals import ranges_of
from exahpc.batch.journal import FrameReader, Record, Run
from exahpc.batch.plan import Parts
from exahpc.batch.source import index_file
from exahpc.batch.station import IDLE_SECONDS
from exahpc.wire.messages import LeaseGrant, LeaseProgress

ROWS = 20


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    with open(tmp_path / "in.jsonl", "w") as file:
        for row in range(ROWS):
            body: dict[str, Any] = {"messages": [{"role": "user", "content": f"q{row}"}]}
            if row == 3:
                body["seed"] = 42
            line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    made = Parts(tmp_path / "o.parts")
    made.create()
    made.save(index_file(tmp_path / "in.jsonl", made, "b1"))
    return made


def grant(parts: Parts, lease: int, first: int, last: int) -> LeaseGrant:
    return LeaseGrant(1, lease, "b1", str(parts.path), first, last)


def sync(worker: LeaseWorker) -> list[LeaseProgress]:
    return asyncio.run(worker.sync())


def begun(worker: LeaseWorker, n: int = 99) -> list[Row]:
    sync(worker)
    return worker.next_rows(n)


def records(parts: Parts, message: LeaseProgress) -> list[Record]:
    reader: FrameReader[Record] = FrameReader(parts.journal_file(message.journal), Record)
    found = [record for _, _, record in reader.exactly(message.start, message.end)]
    reader.close()
    return found


def end(worker: LeaseWorker, rows: list[Row], status: int = 200) -> None:
    for row in rows:
        worker.ended(row.key, status, b'{"ok":"\x00"}', 5, 6)


def test_rows_come_from_the_input_in_order_with_their_seeds(parts: Parts) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 2, 6))
    assert worker.next_rows(9) == []
    rows = begun(worker)
    assert [json.loads(row.body)["messages"][0]["content"] for row in rows] == ["q2", "q3", "q4", "q5"]
    plan = parts.plan()
    assert plan is not None
    assert [row.seed for row in rows] == [plan.seed(2), 42, plan.seed(4), plan.seed(5)]
    assert {row.kind for row in rows} == {"chat"}


def test_ended_rows_are_told_with_the_bytes_that_hold_them(parts: Parts) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 0, 3))
    worker.grant(grant(parts, 2, 10, 12))
    rows = begun(worker)
    end(worker, [rows[0], rows[3], rows[2]])
    end(worker, [rows[1]], 400)
    one, two = sync(worker)
    assert (one.lease, one.rows, one.bad, one.ok, one.failed, one.finished) == (
        1,
        [(0, 1), (2, 3)],
        [(1, 2)],
        2,
        1,
        True,
    )
    assert (two.lease, two.rows, two.finished) == (2, [(10, 11)], False)
    assert sorted(r.row for r in records(parts, one)) == [0, 1, 2]
    (record,) = records(parts, two)
    assert (record.row, record.line, record.custom_id, record.body) == (10, 11, b"r10", b'{"ok":"\x00"}')
    assert (record.prompt_tokens, record.completion_tokens, record.lease, record.epoch) == (5, 6, 2, 1)
    assert worker.leases == [2]
    assert sync(worker) == []


def test_a_record_tells_where_and_when_its_row_ran(parts: Parts) -> None:
    now = [100.0]
    worker = LeaseWorker("a-0", node="n1", version="v2", wall=lambda: now[0])
    worker.grant(grant(parts, 1, 0, 2))
    one, two = begun(worker)
    now[0] = 105.0
    worker.ended(one.key, 200, b"{}", 5, 2, Served(3, 101.0, 102.0, 4, b"\x01\x00\x00\x00", incarnation=7))
    worker.ended(two.key, 400, b"{}", 0, 0)
    ran, refused = records(parts, sync(worker)[0])
    assert ran.run == Run(3, 7, "n1", "v2", 100.0, 101.0, 102.0, 105.0, 4, b"\x01\x00\x00\x00")
    assert refused.run is None


def test_each_incarnation_has_a_journal_of_its_own(parts: Parts) -> None:
    names = set()
    for lease in (1, 2):
        worker = LeaseWorker("a-0")
        worker.grant(grant(parts, lease, lease, lease + 1))
        end(worker, begun(worker))
        names.add(sync(worker)[0].journal)
    assert names == {"a-0-1", "a-0-2"}


def test_files_of_a_batch_that_is_over_are_closed_soon(parts: Parts) -> None:
    """A journal that was removed takes its room until then, and some file systems keep its folder."""

    def held() -> list[str]:
        found = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
        return [path for path in found if str(parts.path.parent) in path]

    now = 0.0
    worker = LeaseWorker("a-0", lambda: now)
    worker.grant(grant(parts, 1, 0, 2))
    rows = begun(worker)
    now = 1000.0
    sync(worker)
    assert held(), "rows that take long do not close what they need"
    end(worker, rows)
    sync(worker)
    now += 1.0
    sync(worker)
    assert held(), "the next lease may come at once"
    now += IDLE_SECONDS
    sync(worker)
    assert not held()
    worker.grant(grant(parts, 2, 2, 4))
    end(worker, begun(worker))
    [told] = sync(worker)
    assert [record.row for record in records(parts, told)] == [2, 3]


def _is_link(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


@pytest.mark.case("B28")
def test_a_row_whose_replica_died_is_begun_again_then_alone_then_given_up(parts: Parts) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 0, 1))
    for alone in (False, False, True):
        (row,) = begun(worker)
        assert row.alone == alone
        worker.lost(row.key, True)
    (message,) = sync(worker)
    assert (message.bad, message.finished) == ([(0, 1)], True)
    (record,) = records(parts, message)
    assert record.status == 500
    assert b"3 times by itself" in record.body
    assert record.custom_id == b"r0"


def test_rows_that_died_beside_a_killer_run_alone_one_at_a_time_and_succeed(parts: Parts) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 0, 3))
    worker.grant(grant(parts, 2, 10, 12))
    for _ in range(SUSPECT):
        for row in begun(worker):
            if row.key.startswith("1."):
                worker.lost(row.key, True)
    for _ in range(3):
        (suspect,) = begun(worker)
        assert suspect.alone
        assert worker.next_rows(9) == []
        worker.ended(suspect.key, 200, b"{}", 1, 1)
    (message,) = (m for m in sync(worker) if m.lease == 1)
    assert (message.failed, message.finished) == (0, True)


def test_an_alone_attempt_that_ended_from_outside_convicts_nobody(parts: Parts) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 0, 1))
    for own_exit in (True, True, False, False):
        (row,) = begun(worker)
        worker.lost(row.key, own_exit)
    (row,) = begun(worker)
    assert row.alone
    end(worker, [row])
    assert sync(worker)[0].ok == 1


def test_suspect_rows_that_are_handed_back_are_named(parts: Parts) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 0, 4))
    first, second, *_ = begun(worker, 2)
    worker.drain()
    worker.lost(first.key, True)
    worker.lost(second.key, False)
    (message,) = sync(worker)
    assert (message.returned, message.suspect) == ([(0, 4)], [(0, 1)])


def test_a_lease_may_be_granted_to_run_alone_or_to_be_given_up(parts: Parts) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(msgspec.structs.replace(grant(parts, 1, 0, 1), alone=True))
    (row,) = begun(worker)
    assert row.alone
    worker.lost(row.key, False)
    (row,) = begun(worker)
    assert row.alone
    worker.lost(row.key, True)
    worker.grant(msgspec.structs.replace(grant(parts, 2, 5, 6), given_up="4 agents were lost under it"))
    messages = [*sync(worker), *sync(worker)]
    told = {message.lease: message for message in messages if message.bad}
    assert {lease: message.bad for lease, message in told.items()} == {1: [(0, 1)], 2: [(5, 6)]}
    assert b"4 agents were lost" in records(parts, told[2])[0].body


def test_losing_nodes_is_not_the_rows_fault_but_has_an_end(parts: Parts) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 0, 1))
    for _ in range(ATTEMPTS):
        (row,) = begun(worker)
        worker.lost(row.key, False)
    assert sync(worker)[0].failed == 1


def test_a_soft_revoke_hands_back_only_what_was_not_begun(parts: Parts) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 0, 8))
    rows = begun(worker, 3)
    worker.revoke(1, soft=True)
    (message,) = sync(worker)
    assert (message.returned, message.finished, message.rows) == ([(3, 8)], False, [])
    assert worker.next_rows(9) == []
    worker.lost(rows[2].key, False)
    end(worker, rows[:2])
    (message,) = sync(worker)
    assert (message.rows, message.returned, message.finished) == ([(0, 2)], [(2, 3)], True)


def test_rows_not_even_read_are_handed_back_too(parts: Parts) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 0, 8))
    worker.drain()
    (message,) = sync(worker)
    assert (message.returned, message.finished) == ([(0, 8)], True)


def test_a_revoked_lease_ends_at_once_and_its_rows_are_forgotten(parts: Parts) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 0, 8))
    rows = begun(worker, 3)
    end(worker, rows[:1])
    assert worker.revoke(1) == [row.key for row in rows[1:]]
    end(worker, rows[1:])
    assert worker.leases == []
    (message,) = sync(worker)
    assert (message.finished, message.rows, message.journal) == (True, [], "")
    assert sync(worker) == []


def test_a_row_that_runs_alone_and_is_done_elsewhere_does_not_hold_up_the_next_one(parts: Parts) -> None:
    worker = LeaseWorker("a-0")
    for lease, row in ((1, 0), (2, 1)):
        worker.grant(msgspec.structs.replace(grant(parts, lease, row, row + 1), alone=True))
    (first,) = begun(worker)
    assert worker.next_rows(8) == []
    assert worker.revoke(1) == [first.key]
    (second,) = worker.next_rows(8)
    assert second.alone


def test_unknown_keys_and_repeated_ends_are_ignored(parts: Parts) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 0, 1))
    (row,) = begun(worker)
    end(worker, [row, row])
    worker.ended("77.3", 200, b"{}", 0, 0)
    worker.lost("77.3", True)
    assert sync(worker)[0].rows == [(0, 1)]


def test_a_full_disk_keeps_the_answers_and_begins_nothing_until_it_has_room(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 0, 8))
    rows = begun(worker, 2)
    end(worker, rows)
    real: Callable[..., int] = os.pwrite

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    (told,) = sync(worker)
    assert "No space left on device" in told.held
    assert (told.rows, told.finished) == ([], False)
    assert sync(worker) == [], "not at every turn"
    assert worker.next_rows(3) == []
    assert worker.wanted(8) == 0
    monkeypatch.setattr(os, "pwrite", real)
    (message,) = sync(worker)
    assert message.rows == [(0, 2)]
    assert [record.row for record in records(parts, message)] == [0, 1]
    assert len(worker.next_rows(3)) == 3


def test_a_stale_handle_is_told_and_opened_anew(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    worker = LeaseWorker("a-0", clock=lambda: now[0])
    worker.grant(grant(parts, 1, 0, 2))
    stale, real = set[int](), os.pread

    def pread(fd: int, *where: int) -> bytes:
        """Whatever is open at first is stale for ever."""
        if not stale or fd in stale:
            stale.add(fd)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(fd, *where)

    keep = os.open(os.devnull, os.O_RDONLY)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", pread)
        (back,) = sync(worker)
        assert (back.finished, back.returned) == (True, [(0, 2)])
        assert "Stale file handle" in back.held
        assert worker.wanted(8) == 0, "not at once"
        now[0] += 60.0
        assert worker.wanted(8)
        for fd in stale:  # its number must not come back
            os.dup2(keep, fd)
        worker.grant(grant(parts, 2, 0, 2))
        assert len(begun(worker)) == 2
    for fd in (keep, *stale):
        os.close(fd)


def test_a_failed_fsync_abandons_the_file_and_keeps_the_answers(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 0, 2))
    end(worker, begun(worker))

    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", broken)
    assert [told.rows for told in sync(worker)] == [[]]
    monkeypatch.setattr(os, "fdatasync", real)
    (message,) = sync(worker)
    assert message.journal == "a-0-2"
    assert ranges_of(r.row for r in records(parts, message)) == [(0, 2)]


def test_an_input_that_changed_under_the_batch_is_an_error_record_not_a_wrong_answer(
    parts: Parts, tmp_path: Path
) -> None:
    data = (tmp_path / "in.jsonl").read_bytes()
    (tmp_path / "in.jsonl").write_bytes(data.replace(b'q1"', b'Q1"'))
    worker = LeaseWorker("a-0")
    worker.grant(grant(parts, 1, 0, 3))
    rows = begun(worker)
    assert [row.key for row in rows] == ["1.0", "1.2"]
    end(worker, rows)
    (message,) = sync(worker)
    assert message.bad == [(1, 2)]
    assert b"line 2 of" in next(r.body for r in records(parts, message) if r.row == 1)


def test_a_folder_that_cannot_be_read_hands_its_rows_back_and_waits(tmp_path: Path) -> None:
    now = [0.0]
    worker = LeaseWorker("a-0", clock=lambda: now[0])
    worker.grant(grant(Parts(tmp_path / "none.parts"), 1, 0, 3))
    (message,) = [m for _ in range(2) for m in sync(worker)]
    assert (message.returned, message.finished) == ([(0, 3)], True)
    assert worker.wanted(8) == 0
    now[0] = 11.0
    assert worker.wanted(8) > 0


def test_rows_are_asked_for_ahead_but_once_at_a_time(parts: Parts) -> None:
    now = [0.0]
    worker = LeaseWorker("a-0", clock=lambda: now[0])
    assert worker.wanted(0) == 0
    assert worker.wanted(4) == 6
    assert worker.wanted(4) == 0
    now[0] = 1.5
    assert worker.wanted(4) == 6
    worker.grant(grant(parts, 1, 0, 6))
    assert worker.wanted(4) == 0
    rows = begun(worker, 4)
    assert worker.wanted(0) == 0
    end(worker, rows)
    begun(worker, 2)
    assert worker.wanted(2) == 4
