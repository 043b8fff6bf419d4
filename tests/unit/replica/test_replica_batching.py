"""Laws of continuous batching."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from exahpc.errors import StateError
from exahpc.replica.batching import Limits, Scheduler
from exahpc.replica.plan import Plan
from exahpc.wire.messages import Admit, Sampling, Tokens

STOP = 9


def admit(sequence: int, prompt: int, new: int, *, batch: bool = False, position: int = 0) -> Admit:
    ids = [(sequence * 31 + i) % 8 for i in range(prompt)]
    return Admit(sequence, ids, new, position, 7, 0, [STOP], batch=batch)


def limits(sequences: int = 4, tokens: int = 400, context: int = 100, chunk: int = 16, lanes: int = 1) -> Limits:
    return Limits(sequences, tokens, context, chunk, lanes, vocabulary=10)


def answer(plan: Plan, token: int = 1) -> list[int]:
    return [token] * plan.samples


class Batching(RuleBasedStateMachine):
    """Any mix of arrivals, aborts, stops and lanes, against a cache that knows which token lies where."""

    @initialize(
        sequences=st.integers(1, 6), lanes=st.integers(1, 3), chunk=st.integers(1, 9), tokens=st.integers(20, 120)
    )
    def begin(self, sequences: int, lanes: int, chunk: int, tokens: int) -> None:
        self.limits = limits(sequences, tokens, 24, chunk, lanes)
        self.scheduler = Scheduler(self.limits)
        self.number = 0
        self.want: dict[int, list[int]] = {}  # prompt of every sequence that must still end
        self.new: dict[int, int] = {}
        self.out: dict[int, list[int]] = defaultdict(list)
        self.ended: set[int] = set()
        self.gone: set[int] = set()
        self.cache: dict[int, list[int]] = {}  # slot -> token ids
        self.flight: list[Plan] = []

    @rule(prompt=st.integers(1, 20), new=st.integers(1, 4), batch=st.booleans())
    def arrive(self, prompt: int, new: int, batch: bool) -> None:
        self.number += 1
        message = admit(self.number, prompt, new, batch=batch)
        refused = self.scheduler.admit(message)
        if prompt + new > min(self.limits.context, self.limits.tokens):
            assert refused is not None
        else:
            assert refused is None
            self.want[self.number], self.new[self.number] = message.ids, new

    @precondition(lambda self: self.want)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.want)))
        self.scheduler.abort(sequence)
        self.gone.add(sequence)
        del self.want[sequence]

    @rule()
    def plan(self) -> None:
        plan = self.scheduler.plan()
        if plan is None:
            assert self.flight or not self.want, "sequences wait, nothing is in flight, and nothing is planned"
            return
        assert plan.lane not in {p.lane for p in self.flight}
        assert plan.rows
        for move in plan.moves:
            self.cache[move.target] = self.cache[move.source][: move.length]
        slots = [row.slot for row in plan.rows]
        assert len(set(slots)) == len(slots)
        assert not {s for p in self.flight for s in (r.slot for r in p.rows)} & set(slots)
        prefilled = 0
        for row in plan.rows:
            assert row.slot < self.limits.sequences
            cached = self.cache.get(row.slot, [])[: row.past]
            assert len(cached) == row.past, "a row builds on tokens that were never cached"
            self.cache[row.slot] = cached + row.ids
            prefilled += len(row.ids) if len(row.ids) > 1 else 0
        assert prefilled <= self.limits.chunk
        self.flight.append(plan)

    @precondition(lambda self: self.flight)
    @rule(token=st.sampled_from([1, 2, 3, STOP, -1]))
    def finish(self, token: int) -> None:
        plan = self.flight.pop(0)
        rows = [row for row in plan.rows if row.sample]
        before = {tuple(self.cache[row.slot]) for row in rows}
        self.take(self.scheduler.done(plan.lane, [token] * len(rows)), before)

    def take(self, tokens: Tokens, cached: set[tuple[int, ...]]) -> None:
        for sequence, token in tokens.tokens:
            assert sequence in self.want, "a token for a sequence that ended or left"
            assert tuple(self.want[sequence] + self.out[sequence]) in cached, (
                "drawn after other tokens than its own"
            )
            self.out[sequence].append(token)
            assert token != STOP
        for sequence, reason in tokens.ended:
            assert sequence in self.want
            assert sequence not in self.ended
            assert reason != "length" or len(self.out[sequence]) == self.new[sequence]
            self.ended.add(sequence)
            del self.want[sequence]

    @invariant()
    def counts_add_up(self) -> None:
        s = self.scheduler
        assert s.waiting + s.running >= len(self.want)
        assert 0 <= s.kv_free <= self.limits.tokens
        assert s.running <= self.limits.sequences

    def teardown(self) -> None:
        """Nobody is lost and nobody starves: without arrivals everything ends within a bound of plans."""
        if not hasattr(self, "scheduler"):
            return
        bound = sum(len(ids) + self.new[n] for n, ids in self.want.items()) * 3 + 10 * len(self.flight) + 10
        for _ in range(bound):
            while self.flight:
                self.finish(1)
            if not self.want:
                break
            self.plan()
        assert not self.want
        self.plan()  # sweeps what was aborted
        assert not self.flight
        assert (self.scheduler.running, self.scheduler.waiting) == (0, 0)
        assert self.scheduler.kv_free == self.limits.tokens


TestBatching = Batching.TestCase
TestBatching.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_an_abort_frees_slot_and_tokens_within_one_step() -> None:
    s = Scheduler(limits(sequences=1))
    s.admit(admit(1, 10, 10))
    s.admit(admit(2, 10, 10))
    plan = s.plan()
    assert plan is not None
    s.abort(1)
    assert s.done(plan.lane, answer(plan)) == Tokens([], [])
    assert s.kv_free == 400
    after = s.plan()
    assert after is not None
    assert after.rows[0].ids == admit(2, 10, 10).ids


def test_online_starts_before_batch() -> None:
    s = Scheduler(limits(sequences=1))
    s.admit(admit(1, 5, 1, batch=True))
    s.admit(admit(2, 5, 1))
    plan = s.plan()
    assert plan is not None
    assert s.done(plan.lane, answer(plan)).tokens == [(2, 1)]


def test_a_long_prompt_is_cut_and_others_keep_decoding() -> None:
    s = Scheduler(limits(chunk=8))
    s.admit(admit(1, 1, 20))
    first = s.plan()
    assert first is not None
    s.done(first.lane, answer(first))
    s.admit(admit(2, 30, 2))
    sizes = []
    while len(sizes) < 4:
        plan = s.plan()
        assert plan is not None
        sizes.append(sorted(len(row.ids) for row in plan.rows))
        assert plan.rows[0].sample, "the decoding sequence runs in every plan"
        s.done(plan.lane, answer(plan))
    assert sizes == [[1, 8], [1, 8], [1, 8], [1, 6]]


def test_lanes_share_the_sequences_evenly() -> None:
    s = Scheduler(limits(sequences=6, lanes=2, chunk=100))
    for n in range(4):
        s.admit(admit(n, 5, 5))
    plans = [s.plan(), s.plan()]
    assert [len(p.rows) for p in plans if p] == [2, 2]
    assert s.plan() is None
    assert s.in_flight == 2


def test_the_sampler_counts_from_the_position_of_the_first_attempt() -> None:
    s = Scheduler(limits())
    s.admit(admit(1, 5, 5, position=3))
    positions = []
    for _ in range(3):
        plan = s.plan()
        assert plan is not None
        positions.append(plan.rows[0].position)
        s.done(plan.lane, answer(plan))
    assert positions == [3, 4, 5]


def test_running_sequences_stay_in_the_first_slots() -> None:
    s = Scheduler(limits(chunk=100))
    for n in range(4):
        s.admit(admit(n, 5, 1 if n == 1 else 9))
    for _ in range(2):
        plan = s.plan()
        assert plan is not None
        s.done(plan.lane, answer(plan))
    assert [row.slot for row in plan.rows] == [0, 1, 2]
    assert [(m.source, m.target, m.length) for m in plan.moves] == [(3, 1, 5)]


def test_a_slot_with_broken_numbers_is_wiped_before_its_next_use() -> None:
    s = Scheduler(limits(sequences=1))
    s.admit(admit(1, 5, 5))
    s.admit(admit(2, 5, 5))
    plan = s.plan()
    assert plan is not None
    assert s.done(plan.lane, [-1]).ended == [(1, "error")]
    after = s.plan()
    assert after is not None
    assert after.wipe == [0]


@pytest.mark.parametrize(
    "message",
    [
        admit(1, 0, 5),
        admit(1, 5, 0),
        admit(1, 90, 20),
        Admit(1, [3, 10], 5, 0, 0, 0, []),
        Admit(1, [-1], 5, 0, 0, 0, []),
        Admit(1, [1], 5, 0, 0, 0, [], Sampling(float("nan"))),
        Admit(1, [1], 5, 0, 0, 0, [], Sampling(1.0, 0.0)),
    ],
)
def test_what_can_never_run_is_refused_with_a_reason(message: Admit) -> None:
    s = Scheduler(limits())
    refused = s.admit(message)
    assert refused is not None
    assert refused.reason
    assert s.plan() is None


def test_a_number_in_use_is_refused_and_the_first_lives_on() -> None:
    s = Scheduler(limits())
    assert s.admit(admit(1, 5, 1)) is None
    assert s.admit(admit(1, 5, 1)) is not None
    plan = s.plan()
    assert plan is not None
    assert s.done(plan.lane, answer(plan)).ended == [(1, "length")]


def test_tokens_of_a_lane_that_is_not_in_flight_are_a_defect() -> None:
    with pytest.raises(StateError, match="not in flight"):
        Scheduler(limits()).done(0, [1])
