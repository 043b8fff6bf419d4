"""Input to results through the real files: broker shell, agents' workers and client in one process."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest

from exahpc.batch import opened, usage
from exahpc.batch.client import Owner
from exahpc.batch.commits import AnyEvent, CommitWriter
from exahpc.batch.inputs.options import find_inputs
from exahpc.batch.plan import Parts
from exahpc.batch.run import prepare
from exahpc.errors import BatchError, LinkError
from exahpc.wire.messages import (
    BatchCancel,
    BatchOpen,
    BatchQuery,
    BatchState,
    Refused,
)
from tests.live import until
from tests.unit.broker.batch_world import World, check, exported, write_input


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.batches.close()


def test_a_batch_runs_on_two_agents_and_comes_out_in_input_order(world: World, tmp_path: Path) -> None:
    prepared = prepare(write_input(tmp_path / "in.jsonl", 200), tmp_path / "out.h5", served_name="m")
    for name in ("a/0", "b-1/7"):
        world.start_agent(name)
    summary = world.drive(prepared)
    check(tmp_path / "out.h5", 200, summary)
    assert summary.exit_code == 3
    assert summary.commonest_error == "the prompt is too long"
    assert {name for name, _ in world.seen} == {"a/0", "b-1/7"}
    assert len(world.seen) == 200
    assert (tmp_path / "out.h5").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "out.h5.parts").exists(), "what is not needed any more goes"


def test_rows_that_are_run_in_another_order_come_out_in_input_order_with_the_same_seeds(
    world: World, tmp_path: Path
) -> None:
    write_input(tmp_path / "1.jsonl", 40)
    (tmp_path / "2.txt").write_text("\n".join(f"p{i}{'!' * 4000 if i % 3 == 0 else ''}" for i in range(20)))
    with open(tmp_path / "1.jsonl", "a") as file:
        file.write("junk\n")
    inputs = find_inputs([tmp_path / "[12].*"])
    prepared = prepare(inputs, tmp_path / "out.h5", served_name="m", skip_invalid=True)
    order = prepared.parts.rows_of(range(61)).tolist()
    assert order[:8] == [40, *range(41, 61, 3)], "the bad one, then the long ones"
    world.start_agent("a/0")
    world.drive(prepared)
    lines = exported(tmp_path / "out.h5")
    assert [line["custom_id"] for line in lines] == [
        *(f"r{i}" for i in range(40)),
        None,
        *(f"row-{row}" for row in range(41, 61)),
    ]
    for row, line in enumerate(lines):
        if row in (13, 40):
            assert line["error"]["status_code"] == 400
            continue
        body = line["response"]["body"]
        assert body["text"].rstrip("!") == (f"a\x00q{row}" if row < 40 else f"a\x00p{row - 41}")
        assert body["seed"] == prepared.plan.seed(row)


def test_results_are_readable_with_plain_h5py(world: World, tmp_path: Path) -> None:
    prepared = prepare(write_input(tmp_path / "in.jsonl", 5), tmp_path / "out.h5")
    world.start_agent("a/0")
    assert world.drive(prepared).exit_code == 0
    with h5py.File(tmp_path / "out.h5") as file:
        offsets = file["response/offsets"][:]
        body = json.loads(file["response/data"][int(offsets[3]) : int(offsets[4])].tobytes())
        assert body["text"] == "a\x00q3"
        assert file["status"][:].tolist() == [200] * 5
        assert dict(file.attrs)["ok"] == 5


def test_a_finished_batch_is_not_run_again(world: World, tmp_path: Path) -> None:
    source = write_input(tmp_path / "in.jsonl", 5)
    world.start_agent("a/0")
    first = world.drive(prepare(source, tmp_path / "out.h5"))
    again = prepare(source, tmp_path / "out.h5")
    assert again.summary == first == world.drive(again)
    write_input(tmp_path / "in.jsonl", 6)
    with pytest.raises(BatchError, match="choose another output"):
        prepare(source, tmp_path / "out.h5")


@pytest.mark.parametrize("gone", [False, True])
def test_what_a_run_that_was_killed_at_its_end_has_left_goes_with_the_next_one(
    world: World, tmp_path: Path, gone: bool
) -> None:
    source = write_input(tmp_path / "in.jsonl", 5)
    world.start_agent("a/0")
    prepared = prepare(source, tmp_path / "out.h5", keep_parts=True)
    first = world.drive(prepared)
    if gone:
        prepared.parts.path.rename(tmp_path / ".out.h5.parts.1.gone")
    kept = prepare(source, tmp_path / "out.h5", keep_parts=True)
    assert prepared.parts.path.exists() is not gone
    owner = Owner(prepared.parts) if not gone else None
    if owner is not None:
        assert prepare(source, tmp_path / "out.h5").summary == first
        assert prepared.parts.path.exists(), "somebody works on it"
        owner.release()
    again = prepare(source, tmp_path / "out.h5")
    assert again.summary == kept.summary == first
    assert not list(tmp_path.glob("*.parts")) + list(tmp_path.glob(".*.gone"))


def test_a_client_that_begins_when_another_one_ends_takes_its_results(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_input(tmp_path / "in.jsonl", 5)
    world.start_agent("a/0")
    first = prepare(source, tmp_path / "out.h5")

    def late(parts: Parts) -> Owner:
        """The other one ends between the second's look at the output and its claim."""
        monkeypatch.undo()
        world.drive(first)
        parts.create()
        return Owner(parts)

    monkeypatch.setattr("exahpc.batch.run.Owner", late)
    second = prepare(source, tmp_path / "out.h5")
    assert second.summary is not None
    assert second.summary.ok == 5


def test_a_lost_agent_costs_no_row_and_its_journaled_rows_are_not_run_again(world: World, tmp_path: Path) -> None:
    prepared = prepare(write_input(tmp_path / "in.jsonl", 100), tmp_path / "out.h5")
    world.ask(prepared.question)
    world.start_agent("a/0")
    world.run_until(prepared.plan.batch, 20)
    world.lose_progress = True  # journaled, never reported
    for _ in range(3):
        world.step()
    world.lose_progress = False
    reported = world.batches.status()[0]
    world.lose_agent("a/0")
    for _ in range(20):
        world.step()
    salvaged = world.batches.status()[0]
    assert salvaged.ok > reported.ok
    assert salvaged.leased == 0
    world.start_agent("b/0")
    check(tmp_path / "out.h5", 100, world.drive(prepared))


def test_a_new_broker_goes_on_and_living_agents_keep_their_rows(world: World, tmp_path: Path) -> None:
    prepared = prepare(write_input(tmp_path / "in.jsonl", 100), tmp_path / "out.h5")
    world.ask(prepared.question)
    world.start_agent("a/0")
    world.run_until(prepared.plan.batch, 30)
    world.end_broker()
    world.start_broker()  # finds the batch without any client
    check(tmp_path / "out.h5", 100, world.drive(prepared))
    assert len(world.seen) == len({key for _, key in world.seen}) == 100, "no row began twice"


def test_a_new_broker_does_not_count_what_the_deployment_used_before_it(world: World, tmp_path: Path) -> None:
    prepared = prepare(write_input(tmp_path / "in.jsonl", 100), tmp_path / "out.h5")
    world.ask(prepared.question)
    world.start_agent("a/0")
    world.run_until(prepared.plan.batch, 10)
    world.end_broker()
    world.start_broker(account=5.0)
    world.run_until(prepared.plan.batch, 20)
    world.batches.account = 5.25
    world.step()
    assert world.batches.status()[0].node_hours == pytest.approx(0.25)
    world.end_broker()
    assert usage.node_hours(prepared.parts) == pytest.approx(0.25), "what the next broker and the results count"


def test_who_hears_that_a_short_batch_is_finished_hears_its_node_hours(world: World, tmp_path: Path) -> None:
    """It may open and end between two notes on disk."""
    prepared = prepare(write_input(tmp_path / "in.jsonl", 10), tmp_path / "out.h5")
    world.ask(prepared.question)
    until("it is open", lambda: world.batches.tick(0.0) or world.batches.status()[0].state == "running")
    world.batches.account = 0.001
    world.start_agent("a/0")
    assert world.drive(prepared).node_hours == pytest.approx(0.001)


def test_brokers_that_begin_at_folds_lose_and_double_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "FOLD_BYTES", 300)
    monkeypatch.setattr(opened, "_FOLD_SHARE", 0)
    prepared = prepare(write_input(tmp_path / "in.jsonl", 120), tmp_path / "out.h5")
    world.ask(prepared.question)
    world.start_agent("a/0")
    for rows in (30, 60, 90):
        world.run_until(prepared.plan.batch, rows)
        world.end_broker()
        world.start_broker()
    assert list(prepared.parts.commits.glob("*.fold"))
    check(tmp_path / "out.h5", 120, world.drive(prepared))
    assert len(world.seen) == len({key for _, key in world.seen}) == 120, "no row began twice"


def test_another_deployment_finishes_what_one_left(world: World, tmp_path: Path) -> None:
    source = write_input(tmp_path / "in.jsonl", 100)
    prepared = prepare(source, tmp_path / "out.h5")
    world.ask(prepared.question)
    world.start_agent("a/0")
    world.run_until(prepared.plan.batch, 40)
    prepared.release()
    (tmp_path / "other").mkdir()
    other = World(tmp_path / "other")
    for name in ("a/0", "a/1", "a/2"):
        other.start_agent(name)
    again = prepare(source, tmp_path / "out.h5", keep_parts=True)
    assert again.resumed
    summary = other.drive(again)
    for _ in range(20):
        world.step()  # the first deployment does not know yet that it lost the batch
    assert "another broker" in world.batches.status()[0].note
    check(tmp_path / "out.h5", 100, summary)
    assert other.now < 100, "no lease waited for the stall limit"
    other.batches.close()


def test_a_cancelled_batch_goes_on_with_the_same_command(world: World, tmp_path: Path) -> None:
    source = write_input(tmp_path / "in.jsonl", 60)
    prepared = prepare(source, tmp_path / "out.h5")
    world.ask(prepared.question)
    world.start_agent("a/0")
    world.run_until(prepared.plan.batch, 20)
    state = world.ask(BatchCancel(prepared.plan.batch))
    assert isinstance(state, BatchState)
    assert state.status.state == "cancelled"
    done = state.status.ok + state.status.failed
    for _ in range(5):
        world.step()
    assert world.agents["a/0"].leases == []
    part = exported(prepared.parts.path)
    assert done <= len(part) < 60
    prepared.release()
    check(tmp_path / "out.h5", 60, world.drive(prepare(source, tmp_path / "out.h5")))
    assert world.now < 100


def test_status_never_shows_a_row_that_a_dead_broker_would_lose(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(write_input(tmp_path / "in.jsonl", 60), tmp_path / "out.h5")
    world.ask(prepared.question)
    world.start_agent("a/0")
    world.run_until(prepared.plan.batch, 8)
    held, real = threading.Event(), CommitWriter.append

    def slow(writer: CommitWriter, events: list[AnyEvent]) -> None:
        held.wait(20)
        real(writer, events)

    monkeypatch.setattr(CommitWriter, "append", slow)
    for _ in range(6):
        world.step()
        status = world.batches.status()[0]
        assert status.ok + status.failed <= len(exported(prepared.parts.path))
    held.set()
    check(tmp_path / "out.h5", 60, world.drive(prepared))


def test_a_folder_that_was_removed_and_made_again_is_another_batch(world: World, tmp_path: Path) -> None:
    source = write_input(tmp_path / "in.jsonl", 60)
    prepared = prepare(source, tmp_path / "out.h5")
    world.ask(prepared.question)
    world.start_agent("a/0")
    world.run_until(prepared.plan.batch, 20)
    shutil.rmtree(prepared.parts.path)
    lines = source.read_bytes().splitlines(keepends=True)
    source.write_bytes(b"".join(lines[40:]))  # other rows under the same numbers
    again = prepare(source, tmp_path / "out.h5")
    summary = world.drive(again)
    assert (summary.ok, summary.failed) == (20, 0)
    texts = [line["response"]["body"]["text"] for line in exported(tmp_path / "out.h5")]
    assert texts == [f"a\x00q{row}" for row in range(40, 60)]
    assert "holds another batch" in world.batches.status()[0].note


def test_a_batch_whose_folder_was_removed_fails(world: World, tmp_path: Path) -> None:
    prepared = prepare(write_input(tmp_path / "in.jsonl", 400), tmp_path / "out.h5")
    world.ask(prepared.question)
    world.start_agent("a/0")
    world.run_until(prepared.plan.batch, 20)
    shutil.rmtree(prepared.parts.path)
    for _ in range(20):
        world.step()
    assert world.batches.status()[0].state == "failed"
    assert "was removed" in world.batches.status()[0].note


def test_a_batch_whose_rows_all_fail_says_so(world: World, tmp_path: Path) -> None:
    source = write_input(tmp_path / "in.jsonl", 9)
    prepared = prepare(source, tmp_path / "out.h5", served_name="other", skip_invalid=True)
    summary = world.drive(prepared)
    assert (summary.ok, summary.failed, summary.exit_code) == (0, 9, 4)
    assert summary.commonest_error == "9 times: body.model: 'm' is not served here: ask for 'other'"
    assert all(line["error"] and line["response"] is None for line in exported(tmp_path / "out.h5"))


def test_good_rows_are_answered_beside_bad_lines(world: World, tmp_path: Path) -> None:
    source = write_input(tmp_path / "in.jsonl", 3)
    source.write_bytes(source.read_bytes() + b'[1]\n{"custom_id": "\\ud800", "body": 1}\n')
    world.start_agent("a/0")
    summary = world.drive(prepare(source, tmp_path / "out.h5", skip_invalid=True))
    lines = exported(tmp_path / "out.h5")
    assert (summary.ok, summary.failed) == (3, 2)
    assert [line["custom_id"] for line in lines] == ["r0", "r1", "r2", None, "\ud800"]
    assert lines[3]["error"]["line"] == 4
    assert "line 4" in lines[3]["error"]["message"]


def test_a_head_that_is_away_is_waited_for(world: World, tmp_path: Path) -> None:
    prepared = prepare(write_input(tmp_path / "in.jsonl", 20), tmp_path / "out.h5")
    world.start_agent("a/0")
    calls = iter(range(10**6))
    asked = world.ask

    def flaky(message: Any) -> BatchState | Refused:
        if next(calls) % 3 == 1:
            raise LinkError("away")
        return asked(message)

    world.ask = flaky  # type: ignore[method-assign]
    check(tmp_path / "out.h5", 20, world.drive(prepared))


def test_the_folder_must_hold_the_batch(world: World, tmp_path: Path) -> None:
    (tmp_path / "x.parts").mkdir()
    world.ask(BatchOpen("b", str(tmp_path / "x.parts")))
    for _ in range(10):
        world.step()
    status = world.batches.status()[0]
    assert status.state == "failed"
    assert "does not hold batch b" in status.note
    assert isinstance(world.ask(BatchOpen("c", "relative")), Refused)
    assert isinstance(world.ask(BatchQuery("unknown")), Refused)


def test_two_clients_never_work_on_one_output(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in.jsonl", 3)
    first = prepare(source, tmp_path / "out.h5")
    with pytest.raises(BatchError, match="another `exahpc batch run` works on"):
        prepare(source, tmp_path / "out.h5")
    first.release()
    second = prepare(source, tmp_path / "out.h5")
    first.beat()  # it has let go
    with pytest.raises(BatchError, match="another `exahpc batch run` works on"):
        prepare(source, tmp_path / "out.h5")
    second.beat()
    second.release()


@pytest.mark.parametrize("host", ["elsewhere", socket.gethostname()])
def test_a_client_that_vanished_is_replaced_and_cannot_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    parts = Parts(tmp_path / "p.parts")
    parts.create()
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    gone = Owner(parts)
    monkeypatch.undo()
    with pytest.raises(BatchError, match=host):
        Owner(parts)
    os.utime(parts.clients / "1", (1, 1))  # its process id may live on as another process
    Owner(parts)
    with pytest.raises(BatchError, match="has taken over"):
        gone.beat()


def test_a_client_whose_process_is_gone_is_replaced_at_once(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "p.parts")
    parts.create()
    child = os.fork()
    if child == 0:
        Owner(parts)
        os._exit(0)
    os.waitpid(child, 0)
    assert Owner(parts).number == 2
