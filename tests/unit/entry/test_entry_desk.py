"""Laws of the desk as a state machine: whatever dies, each request has exactly one ending and nothing is lost."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from exahpc.deployment.parse import load
from exahpc.entry.actions import Action, Connect, Disconnect, Finish, Refuse, Tell
from exahpc.entry.desk import Desk
from exahpc.entry.fleet import Agent, AgentKey
from exahpc.entry.ledger import TRANSITIONS, Choice, Record, Tier
from exahpc.errors import RequestError, StateError
from exahpc.wire import messages as m

TOML = """
name = "unit"
[model]
path = "/nowhere/tiny"
[[pool]]
name = "a"
replicas = 4
[limits]
max_waiting = 3
attempts = 3
queue_seconds = 20.0
[recovery]
stall_seconds = 5.0
[launcher]
kind = "local"
"""
TASKS = 3
CAPACITY = 2
LENGTH = 4


class DeskMachine(RuleBasedStateMachine):
    """The fleet, its messages in flight and the clients around one desk.

    The model of a client keeps what it was given; an attempt at an agent keeps what it will send. Messages of one
    link stay in order but may be delayed at will, also beyond the end of the attempt.
    """

    def __init__(self) -> None:
        super().__init__()
        self.random = 0
        self.desk = Desk(load(TOML), self.draw)
        self.now = 0.0
        self.version = 0
        self.incarnation = dict.fromkeys(range(TASKS), 1)
        self.replica = dict.fromkeys(range(TASKS), 1)
        self.listed = set(range(TASKS))
        self.label = dict.fromkeys(range(TASKS), "")
        self.leaving: dict[int, tuple[int, str]] = {}  # task -> its predecessor beside it: incarnation, version
        self.tried: set[int] = set()  # on probation
        self.shares: list[m.Share] = []
        self.began: dict[str, str] = {}  # the version that gave a request's first token
        self.inbox: dict[AgentKey, list[m.AgentToEntry]] = {}
        self.up: set[AgentKey] = set()
        self.tokens: dict[str, list[int]] = {}  # what each client received
        self.ended: dict[str, list[str]] = {}
        self.admitted: set[str] = set()
        self.attempts: dict[str, int] = {}
        self.cut: set[str] = set()  # an agent said Done although it had lost the last frame: a defect of the agent
        self.count = 0
        self.publish()

    def draw(self, n: int) -> int:
        self.random += 7
        return self.random % n

    # --- the shell ---

    def perform(self, actions: list[Action]) -> None:
        todo = list(actions)
        while todo:
            action = todo.pop(0)
            match action:
                case Connect(agent=agent):
                    self.inbox[agent.key] = []
                    self.up.add(agent.key)
                    todo += self.desk.link_up(agent, self.now)
                case Disconnect(agent=agent):
                    assert not any(
                        r.replica and r.replica.agent is agent for r in self.desk.ledger.records.values()
                    )
                    self.up.discard(agent.key)
                    self.inbox.pop(agent.key)
                case Tell(agent=agent, message=m.Submit() as submit):
                    if agent.key in self.up:
                        self.submitted(agent, submit)
                    else:
                        todo += self.desk.unsent(agent, submit, self.now)
                case Tell():
                    pass
                case Finish(record=record):
                    self.ended[record.id].append("done")
                    assert self.tokens[record.id] == list(range(LENGTH)) or record.id in self.cut
                case Refuse(record=record):
                    self.ended[record.id].append("refused")

    def submitted(self, agent: Agent, submit: m.Submit) -> None:
        """The agent's side: its later messages are laid out at once."""
        assert submit.attempt == self.attempts.get(submit.request, 0) + 1
        self.attempts[submit.request] = submit.attempt
        had = submit.resume[0].ids if submit.resume else []
        assert had == self.tokens[submit.request]
        assert not had or agent.version == self.began[submit.request]
        replica = agent.replicas[submit.slot]
        assert not replica.probe or replica.sequences == 1
        frames: list[m.AgentToEntry] = [
            m.Frames([m.Frame(submit.request, submit.attempt, 0, i, [i], 2 * (i + 1), b"x")])
            for i in range(len(had), LENGTH)
        ]
        self.inbox[agent.key] += [*frames, m.Done(submit.request, submit.attempt, b"", 1, LENGTH)]

    def deliver(self, agent: Agent, message: m.AgentToEntry) -> None:
        match message:
            case m.Frames():
                touched, actions = self.desk.frames(agent, message.frames, self.now)
                for record in touched:
                    assert not self.ended[record.id]
                    record.out.clear()
                    frame = message.frames[0]
                    assert frame.index == len(self.tokens[record.id])
                    self.tokens[record.id] += frame.ids
                    self.began.setdefault(record.id, agent.version)
                self.perform(actions + self.desk.pump(self.now))
            case m.Done():
                self.perform(self.desk.done(agent, message, self.now))
            case m.Failed():
                self.perform(self.desk.failed(agent, message, self.now))
            case m.Busy():
                self.perform(self.desk.busy(agent, message, self.now))
            case m.Room():
                self.perform(self.desk.room(agent, message, self.now))

    def publish(self) -> None:
        self.version += 1
        routes = []
        for t in sorted(self.listed):
            route = m.Route(t, self.replica[t], CAPACITY, probe=t in self.tried)
            routes.append(m.AgentRoute("a", t, self.incarnation[t], "x", [route], version=self.label[t]))
            if t in self.leaving:
                incarnation, label = self.leaving[t]
                routes.append(m.AgentRoute("a", t, incarnation, "x", [], version=label))
        self.perform(self.desk.table(m.FleetTable(1, self.version, routes, self.shares), self.now))

    def agents(self) -> list[Agent]:
        return list(self.desk.router.agents.values())

    # --- events ---

    @rule(
        key=st.sampled_from("xyz"),
        tier=st.sampled_from(["default", "default", "priority", "flex"]),
        allowed=st.sampled_from([math.inf, math.inf, 15.0]),
        body=st.sampled_from([b"", b"poison"]),
    )
    def arrives(self, key: str, tier: Tier, allowed: float, body: bytes) -> None:
        self.count += 1
        record = Record(
            f"r{self.count}",
            "completion",
            body,
            stream=True,
            seed=1,
            created=1,
            choices=1,
            prompt=3,
            new=LENGTH,
            key=key,
            tier=tier,
            allowed=allowed,
        )
        self.tokens[record.id], self.ended[record.id] = [], []
        try:
            actions = self.desk.open(record, self.now)
        except RequestError as error:
            self.ended[record.id].append(f"refused {error.status}")
            assert len(self.desk.admission) >= 3
            return
        self.admitted.add(record.id)
        self.perform(actions)

    @precondition(lambda self: any(self.inbox.values()))
    @rule(data=st.data(), often=st.integers(1, 6))
    def a_link_delivers(self, data: st.DataObject, often: int) -> None:
        keys = [k for k, box in self.inbox.items() if box]
        key = data.draw(st.sampled_from(keys))
        for _ in range(often):
            agent = self.desk.router.agents.get(key)
            if agent is None or not self.inbox.get(key) or key not in self.up:
                return
            self.deliver(agent, self.inbox[key].pop(0))

    @precondition(lambda self: any(self.inbox.values()))
    @rule(data=st.data(), how=st.sampled_from(["busy", "failed", "own", "final", "silence", "gap"]))
    def an_attempt_ends_otherwise(self, data: st.DataObject, how: str) -> None:
        """What an agent still had to say about one attempt is replaced by something else, or a part is lost."""
        key = data.draw(st.sampled_from([k for k, box in self.inbox.items() if box]))
        first: Any = self.inbox[key][0]
        about = first.frames[0] if isinstance(first, m.Frames) else first
        kept = [x for x in self.inbox[key] if self.about(x) != about.request]
        ending: m.AgentToEntry
        if how == "silence":
            self.inbox[key] = kept
            return
        if how == "gap":
            self.inbox[key].remove(first)
            self.cut.add(about.request)
            return
        if how == "busy":
            ending = m.Busy(about.request, about.attempt)
        else:
            ending = m.Failed(
                about.request, about.attempt, 500, "why", retry=how != "final", own_exit=how == "own"
            )
        self.inbox[key] = [*kept, ending]

    @staticmethod
    def about(message: Any) -> str:
        return message.frames[0].request if isinstance(message, m.Frames) else message.request

    @rule(data=st.data())
    def a_link_changes(self, data: st.DataObject) -> None:
        agents = self.agents()
        if not agents:
            return
        agent = data.draw(st.sampled_from(agents))
        if agent.key in self.up:
            self.up.discard(agent.key)
            self.inbox[agent.key].clear()
            self.perform(self.desk.link_lost(agent, self.now))
        elif self.incarnation[agent.key.task] == agent.key.incarnation:
            self.up.add(agent.key)
            self.perform(self.desk.link_up(agent, self.now))

    @rule(task=st.integers(0, TASKS - 1), what=st.sampled_from(["agent", "replica", "leaves", "returns"]))
    def the_table_changes(self, task: int, what: str) -> None:
        match what:
            case "agent":
                self.incarnation[task] += 1
            case "replica":
                self.replica[task] += 1
            case "leaves":
                self.listed.discard(task)
            case "returns":
                self.listed.add(task)
        self.publish()

    @rule(task=st.integers(0, TASKS - 1), what=st.sampled_from(["switch", "leaver is gone", "shares", "probe"]))
    def a_rollout_or_a_probation_goes_on(self, task: int, what: str) -> None:
        match what:
            case "switch":
                self.incarnation[task] += 1
                self.label[task] = "v2" if self.label[task] == "" else ""
            case "leaver is gone":
                self.leaving.pop(task, None)
            case "shares":
                self.shares = [] if self.shares else [m.Share("", 0.5), m.Share("v2", 0.5)]
            case "probe":
                self.tried ^= {task}
        self.publish()

    @precondition(lambda self: self.listed)
    @rule(data=st.data(), switches=st.booleans())
    def a_successor_takes_over(self, data: st.DataObject, switches: bool) -> None:
        """It stands beside its predecessor, which ends what it has."""
        task = data.draw(st.sampled_from(sorted(self.listed)))
        self.leaving[task] = (self.incarnation[task], self.label[task])
        key = AgentKey("a", task, self.incarnation[task])
        self.incarnation[task] += 1
        if switches:
            self.label[task] = "v2" if self.label[task] == "" else ""
        records = self.desk.ledger.records.values()
        there = [(r, r.attempt) for r in records if r.replica is not None and r.replica.agent.key == key]
        self.publish()
        assert all((r.attempt, r.phase) == (attempt, "running") for r, attempt in there)

    @rule(seconds=st.sampled_from([0.01, 0.5, 9.0, 21.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.desk.tick(self.now))

    @precondition(lambda self: self.desk.ledger.records)
    @rule(data=st.data(), ours=st.booleans())
    def a_request_is_given_up(self, data: st.DataObject, ours: bool) -> None:
        record = data.draw(st.sampled_from(list(self.desk.ledger.records.values())))
        if ours:
            self.perform(self.desk.abandon(record, RequestError("over", status=503), self.now))
        else:
            self.ended[record.id].append("left")
            self.perform(self.desk.cancel(record, "the client left", self.now))
        assert record.phase == "ended"

    # --- laws ---

    @invariant()
    def nobody_ends_twice(self) -> None:
        assert all(len(endings) <= 1 for endings in self.ended.values())

    @invariant()
    def who_has_not_ended_is_known(self) -> None:
        assert {r for r, endings in self.ended.items() if not endings} == set(self.desk.ledger.records)

    @invariant()
    def who_does_not_run_waits_in_line(self) -> None:
        records = self.desk.ledger.records.values()
        assert all((r.line is not None) == (r.phase == "waiting") for r in records)
        waiting = [r for r in records if r.phase == "waiting"]
        assert len(self.desk.admission) == len(waiting) == sum(self.desk.admission.by_tier().values())
        assert self.desk.admission.tokens == sum(r.tokens for r in waiting)
        assert (self.desk.admission.next() is None) == (not waiting)
        assert all(self.desk.admission.waits(str(r.line)) for r in waiting)

    @invariant()
    def requests_that_must_run_alone_do_not_take_the_fleet(self) -> None:
        alone = sum(r.alone for r in self.desk.ledger.records.values() if r.replica is not None)
        assert self.desk._alone == alone <= 1

    @invariant()
    def load_is_the_sum_of_what_runs(self) -> None:
        running = [r for r in self.desk.ledger.records.values() if r.replica is not None]
        for agent in self.agents():
            for replica in agent.replicas.values():
                assert replica.sequences == sum(r.sequences for r in running if r.replica is replica)
                assert replica.tokens == sum(r.tokens for r in running if r.replica is replica)

    @invariant()
    def only_replicas_that_can_take_a_request_are_open(self) -> None:
        for agent in self.agents():
            for replica in agent.replicas.values():
                if replica.place >= 0:
                    assert agent.group.open[replica.level][replica.place] is replica
                    assert replica.listed
                    assert agent.up
                    assert replica.sequences < replica.capacity

    def teardown(self) -> None:
        """When the fleet is whole again and time passes, every request ends."""
        self.listed = set(range(TASKS))
        self.leaving, self.tried = {}, set()
        self.publish()
        for agent in self.agents():
            if agent.key not in self.up and self.incarnation[agent.key.task] == agent.key.incarnation:
                self.up.add(agent.key)
                self.perform(self.desk.link_up(agent, self.now))
        for _ in range(400):
            if not self.desk.ledger.records:
                break
            for key in list(self.inbox):
                agent = self.desk.router.agents.get(key)
                while agent and self.inbox.get(key) and key in self.up:
                    self.deliver(agent, self.inbox[key].pop(0))
            self.now += 0.7
            self.perform(self.desk.tick(self.now))
        assert not self.desk.ledger.records
        assert all(len(endings) == 1 for endings in self.ended.values())
        counts = self.desk.counts
        assert counts.done + counts.failed + counts.rejected + counts.cancelled == self.count


DeskMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDesk = DeskMachine.TestCase


def test_what_an_older_attempt_still_sends_changes_nothing() -> None:
    desk = Desk(load(TOML), lambda n: 0)
    desk.table(m.FleetTable(1, 1, [m.AgentRoute("a", 0, 1, "x", [m.Route(0, 1, CAPACITY)])]), 0.0)
    (agent,) = desk.router.agents.values()
    desk.link_up(agent, 0.0)
    record = Record("r1", "chat", b"", stream=True, seed=1, created=1, choices=1, prompt=1, new=9)
    desk.open(record, 0.0)
    desk.frames(agent, [m.Frame("r1", 1, 0, 0, [5], 1, b"x")], 0.0)
    desk.failed(agent, m.Failed("r1", 1, 500, "died", retry=True), 0.0)
    desk.pump(0.0)
    assert (record.attempt, record.phase, record.deaths) == (2, "running", 1)
    for late in (m.Frame("r1", 1, 0, 1, [6], 2, b"y"), m.Frame("r1", 1, 0, 7, [6], 2, b"y")):
        touched, actions = desk.frames(agent, [late], 0.0)
        assert (touched, actions) == ([], [])
    assert desk.done(agent, m.Done("r1", 1, b"", 1, 1), 0.0) == []
    assert desk.busy(agent, m.Busy("r1", 1), 0.0) == []
    assert desk.failed(agent, m.Failed("r1", 1, 500, "died", retry=True), 0.0) == []
    assert (record.attempt, record.phase, record.deaths, record.choices[0].ids) == (2, "running", 1, [5])
    assert desk.ledger.stale == 5


def test_a_sign_of_life_without_ids_is_progress_that_nothing_goes_on_from() -> None:
    """An answer whose log-probabilities only the agent has begins anew."""
    desk = Desk(load(TOML), lambda n: 0)
    desk.table(m.FleetTable(1, 1, [m.AgentRoute("a", 0, 1, "x", [m.Route(0, 1, CAPACITY)])]), 0.0)
    (agent,) = desk.router.agents.values()
    desk.link_up(agent, 0.0)
    record = Record("r1", "chat", b"", stream=False, seed=1, created=1, choices=2, prompt=1, new=9)
    desk.open(record, 0.0)
    for now in (6.0, 12.0, 18.0):
        assert desk.frames(agent, [m.Frame("r1", 1, 1, 0, [], 0, b"")], now) == ([], [])
        assert (desk.tick(now + 5.0), record.attempt) == ([], 1)
    actions = desk.failed(agent, m.Failed("r1", 1, 500, "died", retry=True), 20.0)
    (again,) = [a.message for a in actions if isinstance(a, Tell)]
    assert isinstance(again, m.Submit)
    assert (again.attempt, again.resume, again.seed) == (2, [], 1)


def test_the_refusal_of_who_waited_in_vain_names_the_death_also_after_a_busy_answer() -> None:
    desk = Desk(load(TOML), lambda n: 0)
    desk.table(m.FleetTable(1, 1, [m.AgentRoute("a", 0, 1, "x", [m.Route(0, 1, CAPACITY)])]), 0.0)
    (agent,) = desk.router.agents.values()
    desk.link_up(agent, 0.0)
    record = Record("r1", "chat", b"", stream=True, seed=1, created=1, choices=1, prompt=1, new=9)
    desk.open(record, 0.0)
    desk.failed(agent, m.Failed("r1", 1, 500, "rank 3 was killed", retry=True), 0.0)
    assert record.phase == "running"
    desk.busy(agent, m.Busy("r1", 2), 0.0)
    assert (record.phase, record.deaths, record.why) == ("waiting", 1, "rank 3 was killed")


def test_an_event_outside_the_table_tells_the_requests_story() -> None:
    record = Record("r1", "chat", b"", stream=True, seed=1, created=1, choices=1, prompt=1, new=1)
    record.happen("send", "a/0 slot 0.1")
    record.happen("end", "done")
    with pytest.raises(StateError, match=r"r1 is ended .* send a/0 slot 0.1; end done"):
        record.happen("send")
    assert ("ended", "end") not in TRANSITIONS


def test_a_choice_starts_empty() -> None:
    choice = Choice()
    assert (choice.ids, choice.sent, choice.finished) == ([], 0, False)
