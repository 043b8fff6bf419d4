"""How long requests wait, what clients hear meanwhile, and when they are told that it was too long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exahpc.deployment.parse import load
from exahpc.entry.actions import Action, Comfort, Refuse, Tell
from exahpc.entry.desk import COMFORT_SECONDS, Desk
from exahpc.entry.ledger import Record
from exahpc.entry.timers import ROUND_SECONDS, Deadlines, Rounds
from exahpc.wire import messages as m

TOML = """
name = "unit"
[model]
path = "/nowhere/tiny"
[[pool]]
name = "a"
[limits]
queue_seconds = 20.0
start_seconds = 100.0
[recovery]
stall_seconds = 20.0
[launcher]
kind = "local"
"""


class Play:
    """A desk, and a fleet of one replica with one place that is there or not."""

    def __init__(self) -> None:
        self.desk = Desk(load(TOML), lambda n: n // 2)
        self.version = 0
        self.now = 0.0

    def fleet(self, *, up: bool, asleep: bool = False) -> list[Action]:
        self.version += 1
        routes = [m.AgentRoute("a", 0, 1, "x", [m.Route(0, 1, 1)])] if up else []
        table = m.FleetTable(1, self.version, routes, asleep=asleep)
        actions = self.desk.table(table, self.now)
        for agent in list(self.desk.router.agents.values()):
            actions += self.desk.link_up(agent, self.now)
        return actions

    def ask(self, name: str = "r", **changes: Any) -> tuple[Record, list[Action]]:
        values: dict[str, Any] = {"stream": True, "seed": 1, "created": 1, "choices": 1, "prompt": 1, "new": 9}
        record = Record(name, "chat", b"", **{**values, **changes})
        return record, self.desk.open(record, self.now)

    def until(self, end: float) -> list[tuple[float, Action]]:
        """Tick up to that time; (time, action) of what happened."""
        found: list[tuple[float, Action]] = []
        while self.now < end:
            self.now += 0.25
            found += [(self.now, action) for action in self.desk.tick(self.now)]
        return found

    def death(self, record: Record) -> list[Action]:
        (agent,) = self.desk.router.agents.values()
        return self.desk.failed(agent, m.Failed(record.id, record.attempt, 503, "node lost", retry=True), self.now)

    def frame(self, record: Record) -> None:
        (agent,) = self.desk.router.agents.values()
        at = len(record.choices[0].ids)
        self.desk.frames(agent, [m.Frame(record.id, record.attempt, 0, at, [7], at + 1, b"x")], self.now)


def refusals(happened: list[tuple[float, Action]]) -> list[tuple[float, Any]]:
    return [(when, action.error) for when, action in happened if isinstance(action, Refuse)]


def test_who_finds_all_replicas_full_waits_for_queue_seconds() -> None:
    play = Play()
    play.fleet(up=True)
    first, _ = play.ask("first")
    play.ask("second")
    ended: list[tuple[float, Any]] = []
    while play.now < 30:
        play.frame(first)
        ended += refusals(play.until(play.now + 5))
    ((when, error),) = ended
    assert 20 <= when <= 20 + ROUND_SECONDS + 0.25
    assert (error.status, error.code) == (503, "no_capacity")
    assert "limits.queue_seconds" in error.message
    assert error.retry_after >= 1


@pytest.mark.parametrize("asleep", [False, True])
def test_while_nothing_is_up_requests_are_held_longer_and_served_when_something_comes(asleep: bool) -> None:
    play = Play()
    play.fleet(up=False, asleep=asleep)
    record, actions = play.ask()
    assert actions == []
    assert play.until(99.0) == []
    assert any(isinstance(a, Tell) for a in play.fleet(up=True))
    assert record.phase == "running"


@pytest.mark.parametrize(("asleep", "words"), [(False, "no replica is up"), (True, "none has come up")])
def test_a_fleet_that_never_comes_up_is_told_after_start_seconds(asleep: bool, words: str) -> None:
    play = Play()
    play.fleet(up=False, asleep=asleep)
    play.ask()
    ((when, error),) = refusals(play.until(110.0))
    assert 100 <= when <= 100 + ROUND_SECONDS + 0.25
    assert words in error.message
    assert "limits.start_seconds" in error.message


def test_the_usual_wait_begins_when_something_is_up_but_the_whole_wait_is_bounded() -> None:
    play = Play()
    play.fleet(up=False)
    records = [play.ask(name)[0] for name in ("first", "second")]
    play.until(50.0)
    play.fleet(up=True)
    first, second = records
    assert (first.phase, second.phase) == ("running", "waiting")
    ended: list[tuple[float, Any]] = []
    while second.phase == "waiting":
        play.frame(first)
        ended += refusals(play.until(play.now + 5))
    ((when, _),) = ended
    assert 70 <= when <= 70 + ROUND_SECONDS + 0.5


def test_a_stream_that_began_hears_that_it_waits_and_goes_on_when_a_replica_is_back() -> None:
    play = Play()
    play.fleet(up=True)
    record, _ = play.ask()
    play.frame(record)
    play.fleet(up=False)
    play.death(record)
    comforts = [when for when, action in play.until(50.0) if isinstance(action, Comfort)]
    assert len(comforts) == 3
    assert comforts[0] >= COMFORT_SECONDS
    play.fleet(up=True)
    assert (record.phase, record.attempt) == ("running", 2)


def test_who_has_no_byte_yet_hears_nothing_so_that_an_error_can_still_have_its_status() -> None:
    play = Play()
    play.fleet(up=False)
    play.ask()
    assert play.until(90.0) == []


# --- deadlines ------------------------------------------------------------------------------------------------


def test_a_deadline_that_comes_while_waiting_ends_the_request_with_a_504_that_clients_do_not_repeat() -> None:
    play = Play()
    play.fleet(up=False)
    play.ask(allowed=5.0)
    ((when, error),) = refusals(play.until(8.0))
    assert 5 <= when <= 5.5
    assert (error.status, error.code, error.final) == (504, "deadline_exceeded", True)
    assert "waited for a replica" in error.message
    assert play.desk.counts.reasons == {"deadline_exceeded": 1}


def test_a_deadline_that_comes_while_running_frees_the_replica() -> None:
    play = Play()
    play.fleet(up=True)
    record, _ = play.ask(allowed=5.0)
    happened = [action for _, action in play.until(6.0)]
    assert [type(a) for a in happened] == [Tell, Refuse]
    assert isinstance(happened[0], Tell)
    assert happened[0].message == m.Cancel(record.id)
    assert play.desk.in_flight == 0
    assert play.desk.outstanding == 0


def test_deadlines_do_not_reorder_the_line() -> None:
    play = Play()
    play.fleet(up=False)
    first, _ = play.ask("first")
    second, _ = play.ask("second", allowed=3.0)
    play.until(1.0)
    play.fleet(up=True)
    assert (first.phase, second.phase) == ("running", "waiting")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 50), st.booleans()), max_size=60))
def test_every_deadline_is_named_once_in_time_whoever_has_ended(asked: list[tuple[float, bool]]) -> None:
    records: dict[str, Record] = {}
    deadlines = Deadlines(records)
    due_at = {}
    for number, (seconds, ends) in enumerate(asked):
        play = Play()
        record, _ = play.ask(f"r{number}", allowed=seconds)
        deadlines.add(record)
        due_at[record.id] = record.deadline
        if not ends:
            records[record.id] = record
    named: list[str] = []
    for now in range(51):
        due = deadlines.due(float(now))
        assert all(now - 1 < due_at[number] <= now for number in due)
        named += due
    assert sorted(named) == sorted(due_at)


def test_deadlines_of_requests_that_ended_long_before_do_not_pile_up() -> None:
    deadlines = Deadlines({})
    record, _ = Play().ask(allowed=3600.0)
    for _ in range(20_000):
        deadlines.add(record)
    assert len(deadlines._heap) < 5000


def test_rounds_come_by_everybody_once_a_round_however_often_they_are_asked() -> None:
    records = {f"r{n}": Play().ask(f"r{n}")[0] for n in range(50)}
    rounds = Rounds(records)
    for record in records.values():
        rounds.add(record)
    list(rounds.turn(0.0))
    for calls in (4, 7):
        seen = [r.id for n in range(1, calls + 1) for r in rounds.turn(rounds._last + ROUND_SECONDS / calls)]
        assert set(seen) == set(records)
        assert len(seen) <= 50 + calls
    for number in list(records)[:25]:
        del records[number]
    list(rounds.turn(rounds._last + ROUND_SECONDS))
    assert len(rounds._ids) == 25


def test_the_beat_tells_what_waits_and_for_how_long() -> None:
    play = Play()
    play.fleet(up=False)
    play.ask("a", prompt=10, new=20)
    play.until(3.0)
    play.ask("b", prompt=1, new=2)
    assert play.desk.outstanding == 33
    assert play.desk.admission.oldest(play.now) == 3.0
    play.fleet(up=True)
    assert play.desk.outstanding == 33
    assert play.desk.admission.oldest(play.now) == 0.0


def test_a_line_that_waits_for_the_first_replica_says_nothing_about_its_pace() -> None:
    play = Play()
    play.fleet(up=False, asleep=True)
    play.ask("first")
    play.until(60)
    play.fleet(up=True)
    (agent,) = play.desk.router.agents.values()
    for number in range(8):  # one after the other, a second each
        play.ask(f"r{number}")
    for _ in range(6):
        (running,) = (record for record in play.desk.ledger.records.values() if record.replica is not None)
        play.until(play.now + 1)
        play.desk.done(agent, m.Done(running.id, running.attempt, b"", 1, 1), play.now)
    assert play.desk.pace.retry_after(4) <= 8, "the minute before is not in it"
