"""The laws of the broker's journal and of what it adds up to."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.broker.journal import Journal, decode, encode, replay
from exahpc.broker.memory import (
    REMEMBER_SECONDS,
    Agent,
    AnyRecord,
    Begun,
    Ended,
    Excluded,
    Heir,
    Memory,
    NoRequeue,
    Replaced,
    Rollout,
    Started,
)
from exahpc.broker.versions import RolloutState
from exahpc.wire.messages import AgentRoute, Route

KEYS = st.sampled_from(["a/0", "a/1", "b/0"])
TIMES = st.floats(0, 1000)
JOBS = st.sampled_from(["7_0", "7_1", "8_0", ""])
TEXT = st.text(max_size=20)
KINDS = st.sampled_from(["requeue", "cancel", "resubmit"])


def agent(key: str, at: float = 0.0, job: str = "7_0", ready: bool = True) -> Agent:
    pool, _, task = key.partition("/")
    route = AgentRoute(pool, int(task), 3, "tcp://n:1", [Route(0, 2, 8)]) if ready else None
    return Agent(
        at=at,
        key=key,
        pool=pool,
        task=int(task),
        phase="alive" if ready else "lost",
        incarnation=3,
        node="n",
        job=job,
        reason="" if ready else "no beat",
        handed_back=False,
        route=route,
    )


RECORDS = st.lists(
    st.one_of(
        st.builds(agent, KEYS, TIMES, JOBS, st.booleans()),
        st.builds(Begun, at=TIMES, key=KEYS, kind=KINDS, job=JOBS),
        st.builds(Ended, at=TIMES, key=KEYS, kind=KINDS, job=JOBS, error=TEXT),
        st.builds(Excluded, at=TIMES, node=TEXT, why=TEXT),
        st.builds(NoRequeue, at=TIMES, pool=st.sampled_from("ab"), why=TEXT),
        st.builds(Rollout, at=TIMES, state=st.builds(RolloutState, since=TIMES, moved=TIMES)),
    ),
    max_size=40,
)
STARTED = Started(at=0.0, epoch=1, host="h")


def sum_of(records: list[AnyRecord]) -> Memory:
    memory = Memory()
    for record in records:
        memory.apply(record)
    return memory


@given(RECORDS)
def test_what_a_state_writes_out_adds_up_to_the_same_state(records: list[AnyRecord]) -> None:
    memory = sum_of(records)
    again = sum_of(list(memory.records(1000.0)))
    assert {k: sorted(v) for k, v in again.history.items()} == {k: sorted(v) for k, v in memory.history.items()}
    again.history = memory.history
    assert again == memory


def test_what_is_older_than_a_day_is_forgotten() -> None:
    memory = sum_of([Begun(at=0, key="a/0", kind="requeue", job="7_0"), Excluded(at=0, node="n", why="")])
    memory.apply(Ended(at=1, key="a/0", kind="requeue", job="7_0", error=""))
    assert list(memory.records(REMEMBER_SECONDS + 2)) == []


def test_a_replaced_job_stays_replaced_for_the_next_brokers() -> None:
    memory = sum_of(
        [
            agent("a/0", job="7_0"),
            Begun(at=1.0, key="a/0", kind="resubmit", job="7_0"),
            Ended(at=2.0, key="a/0", kind="resubmit", job="8_0", error=""),
            agent("a/0", at=3.0, job="7_0"),
        ]
    )
    for _ in range(2):
        assert (memory.placed, list(memory.replaced)) == ({"a/0": "8_0"}, ["7_0"])
        memory = sum_of(list(memory.records(4.0)))


@given(RECORDS, st.data())
def test_a_file_torn_anywhere_yields_the_records_before_the_tear(
    records: list[AnyRecord], data: st.DataObject
) -> None:
    lines = [encode(record) for record in records]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    found, bad = decode(whole[:cut])
    complete = 0  # a line counts when at most its line end is missing
    for line in lines:
        if cut < len(line) - 1:
            break
        cut -= len(line)
        complete += 1
    assert found == records[:complete]
    assert bad == (1 if cut > 0 else 0)


@given(st.data())
def test_one_flipped_bit_loses_one_record_at_most_two(data: st.DataObject) -> None:
    records: list[AnyRecord] = [agent(f"a/{number}") for number in range(5)]
    whole = bytearray(b"".join(encode(record) for record in records))
    spot = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[spot // 8] ^= 1 << spot % 8
    found, _ = decode(bytes(whole))
    assert len(found) >= 3
    assert all(record in records for record in found)


def write(directory: Path, epoch: int, takeover: list[AnyRecord], *later: AnyRecord) -> None:
    async def work() -> None:
        journal = Journal(directory, epoch, takeover, Started(at=0.0, epoch=epoch, host="h"))
        for record in later[:-1]:
            journal.append(record)
        for record in later[-1:]:
            await journal.durable(record)
        journal.close()

    asyncio.run(work())


def test_a_new_broker_knows_what_the_last_one_wrote_and_files_are_private(tmp_path: Path) -> None:
    write(tmp_path / "j", 1, [], agent("a/0"), Begun(at=1, key="a/1", kind="resubmit", job="7_1"))
    memory = replay(tmp_path / "j")
    assert [view.key for view, _ in memory.carried()] == ["a/0"]
    assert memory.open["a/1"].kind == "resubmit"
    write(tmp_path / "j", 2, list(memory.records(2.0)), agent("a/1"))
    assert sorted(replay(tmp_path / "j").agents) == ["a/0", "a/1"]
    assert {os.stat(path).st_mode & 0o777 for path in (tmp_path / "j").iterdir()} == {0o600}


def test_a_broker_that_died_while_taking_over_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, 1, [], agent("a/0"))
    (tmp_path / "epoch-00000002.jsonl").write_bytes(encode(agent("a/0", ready=False)))
    assert replay(tmp_path).agents["a/0"].phase == "alive"


def test_what_a_cut_off_broker_writes_after_the_takeover_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, 1, [], agent("a/0"))
    write(tmp_path, 2, list(replay(tmp_path).records(1.0)))
    with open(tmp_path / "epoch-00000001.jsonl", "ab") as file:
        file.write(encode(agent("a/0", ready=False)))
    assert replay(tmp_path).agents["a/0"].phase == "alive"


def test_few_files_are_kept_however_often_the_broker_restarts(tmp_path: Path) -> None:
    for epoch in range(1, 12):
        write(tmp_path, epoch, list(replay(tmp_path).records(1.0)), agent(f"a/{epoch}"))
    assert len(list(tmp_path.iterdir())) == 4
    assert len(replay(tmp_path).agents) == 11


class Disk:
    """Takes `room` more bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room, self.refused = 1 << 60, 0
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        done = self._write(fd, data[: self.room]) if self.room else 0
        self.room -= done
        if not done:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return done


@pytest.mark.parametrize("room", [0, 5, 20, 100, 200])
def test_records_that_find_no_room_wait_in_order_and_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr("exahpc.broker.journal._AGAIN_SECONDS", 0.01)

    async def work() -> None:
        journal, disk = Journal(tmp_path, 1, [], STARTED), Disk(monkeypatch)
        disk.room = room
        for task in range(3):
            journal.append(Begun(at=task, key=f"a/{task}", kind="requeue", job="7_0"))
        waiting = asyncio.create_task(journal.durable(Begun(at=3, key="a/3", kind="requeue", job="7_0")))
        while disk.refused < 5:
            await asyncio.sleep(0.001)
        assert not waiting.done()
        journal.append(Begun(at=4, key="a/4", kind="requeue", job="7_0"))
        disk.room = 1 << 60
        await waiting
        journal.close()

    asyncio.run(work())
    records, _ = decode((tmp_path / "epoch-00000001.jsonl").read_bytes())
    assert [record.key for record in records if isinstance(record, Begun)] == [f"a/{task}" for task in range(5)]


def test_a_broker_that_finds_no_room_to_begin_leaves_nothing_and_one_that_ends_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.room = 30
    with pytest.raises(OSError, match="No space"):
        Journal(tmp_path, 1, [agent("a/0")], STARTED)
    assert list(tmp_path.iterdir()) == []
    disk.room = 1 << 60

    async def work() -> None:
        journal = Journal(tmp_path, 1, [agent("a/0")], STARTED)
        disk.room = 0
        journal.append(agent("a/1"))
        journal.close()

    asyncio.run(work())
    assert list(replay(tmp_path).agents) == ["a/0"]


def test_an_empty_folder_is_an_empty_memory(tmp_path: Path) -> None:
    assert replay(tmp_path / "nowhere") == Memory()


def test_an_id_that_slurm_gives_out_again_is_nobodys_past() -> None:
    memory = Memory()
    for record in (
        Replaced(at=1.0, job="8_0"),
        Replaced(at=1.0, job="9_1"),
        Begun(at=2.0, key="a/0", kind="resubmit", job="7_0"),
        Ended(at=3.0, key="a/0", kind="resubmit", job="8_0", error=""),
        Heir(at=4.0, key="a/1", job="9_1"),
    ):
        memory.apply(record)
    assert memory.replaced == {"7_0": 3.0}


def test_nobody_waits_for_what_a_clock_wrote_that_was_ahead(tmp_path: Path) -> None:
    state = RolloutState("judging", "", "v2", since=9000.0, tasks=frozenset({"a/0"}), moved=8000.0)
    write(tmp_path, 1, [msgspec.structs.replace(agent("a/0"), at=9000.0), Rollout(9000.0, state)])
    memory = replay(tmp_path, 5000.0)
    assert memory.agents["a/0"].at == 5000.0
    assert memory.rollout is not None
    assert (memory.rollout.state.since, memory.rollout.state.moved) == (5000.0, 5000.0)
    assert replay(tmp_path, 8500.0).rollout == Rollout(8500.0, msgspec.structs.replace(state, since=8500.0))
