"""Laws of continuous batching over a paged cache."""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from exahpc.errors import StateError
from exahpc.replica.batching import Limits, Scheduler, least_budget
from exahpc.replica.blocks import BLOCK, blocks_of
from exahpc.replica.plan import Drawn, Plan, Row
from exahpc.replica.tables import Tables
from exahpc.wire.messages import Admit, Likelihood, NoRoom, Sampling, Tokens

STOP, POISON, CONTEXT = 9, 13, 96


def admit(sequence: int, prompt: int, new: int, *, shared: int = 0, position: int = 0, **more: Any) -> Admit:
    """A prompt of its own after `shared` tokens that all have."""
    ids = [1] * min(shared, prompt) + [100 + sequence] * (prompt - shared)
    return Admit(sequence, ids, new, position, 7, 0, [STOP], **more)


def limits(sequences: int = 4, blocks: int = 40, budget: int = 64, lanes: int = 1, **more: Any) -> Limits:
    return Limits(sequences, blocks, CONTEXT, budget, lanes, vocabulary=1000, **more)


def likelihoods(row: Row) -> list[Likelihood]:
    return [Likelihood(t, -1.0, []) for t in [*row.ids[1:], *([row.target] if row.target >= 0 else [])]]


def answer(plan: Plan, token: int = 5) -> Drawn:
    return Drawn([token] * plan.samples, None, [likelihoods(row) for row in plan.rows if row.score])


def planned(s: Scheduler) -> Plan:
    plan = s.plan()
    assert plan is not None
    return plan


def step(s: Scheduler, token: int = 5) -> tuple[Plan, Tokens]:
    plan = planned(s)
    return plan, s.done(plan.lane, answer(plan, token))


def finish(s: Scheduler) -> list[Tokens]:
    told = []
    while s.running or s.waiting:
        told.append(step(s)[1])
    return told


class Cell(NamedTuple):
    """What one token's key and value depend on: itself and all tokens before it."""

    chain: int
    before: int
    length: int
    poisoned: bool

    def then(self, token: int) -> Cell:
        poisoned = self.poisoned or token == POISON
        return Cell(hash((self.chain, token)), self.chain, self.length + 1, poisoned)


NOTHING = Cell(0, 0, 0, False)


def cell_after(ids: list[int]) -> Cell:
    return functools.reduce(Cell.then, ids, NOTHING)


class Cells:
    """A cache as all ranks have it."""

    def __init__(self, limits: Limits) -> None:
        self.tables = Tables(limits.sequences, limits.context)
        self.cells: dict[tuple[int, int], Cell] = {}

    def run(self, plan: Plan) -> list[Cell]:
        """The last cell of each row. Fails when a row would read what is not its own beginning, or no number."""
        for block in plan.wipe:
            for place in range(BLOCK):
                self.cells.pop((block, place), None)
        self.tables.apply(plan)
        for row in plan.rows:
            for place in range(row.past, row.past + len(row.ids)):
                assert self.at(row.slot, place)[0] != 0, "block 0 is nobody's"
                self.cells.pop(self.at(row.slot, place), None)
        pending = deque(plan.rows)
        for _ in range(len(pending) ** 2):  # a row may build on another row of this plan
            row = pending.popleft()
            cell = self.cells.get(self.at(row.slot, row.past - 1)) if row.past else NOTHING
            if cell is None:
                pending.append(row)
                continue
            assert cell.length == row.past, "a row builds on the beginning of another"
            for place, token in enumerate(row.ids, row.past):
                self.cells[self.at(row.slot, place)] = cell = cell.then(token)
            if not pending:
                break
        assert not pending, "a row builds on tokens that were never cached"
        return [self.read(row.slot, row.past + len(row.ids)) for row in plan.rows]

    def read(self, slot: int, end: int) -> Cell:
        cell = NOTHING
        for place in range(end):
            found = self.cells[self.at(slot, place)]
            assert found.before == cell.chain, "a block that is in use was written by another"
            cell = found
        assert self.tables.used[slot] == blocks_of(end), "a block more or less than the tokens take"
        for place in range(end, blocks_of(end) * BLOCK):
            masked = self.cells.get(self.at(slot, place), NOTHING)
            assert cell.poisoned or not masked.poisoned, "what is masked must be a number"
        return cell

    def at(self, slot: int, place: int) -> tuple[int, int]:
        return int(self.tables.blocks[slot, place // BLOCK]), place % BLOCK


class Batching(RuleBasedStateMachine):
    """Any mix of arrivals, aborts, ends and lanes in a cache that is too small for all."""

    @initialize(
        sequences=st.integers(1, 6),
        lanes=st.integers(1, 3),
        more=st.integers(0, 40),
        blocks=st.integers(3, 14),
        prefix=st.booleans(),
        chunk=st.sampled_from([16, 1000]),
        far=st.sampled_from([8, 1000]),
    )
    def begin(
        self, sequences: int, lanes: int, more: int, blocks: int, prefix: bool, chunk: int, far: int
    ) -> None:
        budget = least_budget(sequences, lanes) + more
        self.limits = limits(sequences, blocks, budget, lanes, patience=5, prefix=prefix, chunk=chunk, far=far)
        self.scheduler = Scheduler(self.limits)
        self.cells = Cells(self.limits)
        self.number = 0
        self.want: dict[int, Admit] = {}  # every sequence that must still end
        self.out: dict[int, list[int]] = defaultdict(list)
        self.scores: dict[int, list[int]] = defaultdict(list)
        self.flight: list[tuple[Plan, list[Cell]]] = []
        self.awaited: set[int] = set()  # slots whose token is in flight

    @rule(
        prompt=st.one_of(st.integers(1, 70), st.just(CONTEXT)),
        new=st.integers(1, 30),
        shared=st.sampled_from([0, 15, 16, 17, 40, 70]),
        batch=st.booleans(),
        scored=st.booleans(),
        poison=st.booleans(),
        resumed=st.integers(0, 5),
    )
    def arrive(self, prompt: int, new: int, shared: int, batch: bool, scored: bool, poison: bool, resumed: int):
        self.number += 1
        sampling = Sampling(prompt_logprobs=0 if scored else -1)
        message = admit(self.number, prompt, new, shared=shared, batch=batch, sampling=sampling)
        message.ids[-1] = 100 + self.number  # so contexts tell sequences apart
        if poison and prompt > 20:
            message.ids[prompt // 2] = POISON
        if resumed < prompt:
            message = Admit(self.number, message.ids, new, resumed, 7, 0, [STOP], sampling, batch)
        refused = self.scheduler.admit(message)
        kept = prompt + new - 1  # nothing follows the last token: it is never computed
        fits = kept <= CONTEXT and blocks_of(kept) <= self.limits.blocks
        assert (refused is None) == fits
        if fits:
            self.want[self.number] = message

    @precondition(lambda self: self.want)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.want)))
        self.scheduler.abort(sequence)
        del self.want[sequence]

    @rule()
    def plan(self) -> None:
        plan = self.scheduler.plan()
        if plan is None:
            assert self.flight or not self.want, "sequences wait, nothing is in flight, and nothing is planned"
            return
        assert plan.lane not in {p.lane for p, _ in self.flight}
        assert plan.rows
        assert plan.tokens <= self.limits.budget
        slots = [row.slot for row in plan.rows]
        assert len(set(slots)) == len(slots)
        assert set(slots) <= set(range(self.limits.sequences))
        sizes = [len(row.ids) > 1 for row in plan.rows]
        assert sizes == sorted(sizes), "rows with one token come first"
        self.awaited -= {b.slot for b in plan.begins}
        assert not self.awaited & set(slots), "a sequence runs on before its token came back"
        self.awaited |= {row.slot for row in plan.rows if row.sample}
        self.flight.append((plan, self.cells.run(plan)))

    @precondition(lambda self: self.flight)
    @rule(token=st.sampled_from([2, 3, 4, STOP]))
    def finish(self, token: int) -> None:
        plan, cells = self.flight.pop(0)
        later = {b.slot for p, _ in self.flight for b in p.begins}
        self.awaited -= {row.slot for row in plan.rows if row.sample and row.slot not in later}
        drawn = [-1 if c.poisoned else token for row, c in zip(plan.rows, cells, strict=True) if row.sample]
        scores = [likelihoods(row) for row in plan.rows if row.score]
        self.take(self.scheduler.done(plan.lane, Drawn(drawn, None, scores)), set(cells))

    def take(self, told: Tokens, cells: set[Cell]) -> None:
        for sequence, some in told.prompt:
            assert sequence in self.want
            self.scores[sequence] += [one.token for one in some]
        for sequence, token in told.tokens:
            assert sequence in self.want, "a token for a sequence that ended or left"
            message = self.want[sequence]
            assert cell_after(message.ids + self.out[sequence]) in cells, "drawn after other tokens than its own"
            self.out[sequence].append(token)
            assert token != STOP
        for sequence, reason in told.ended:
            message = self.want.pop(sequence)
            assert reason != "length" or len(self.out[sequence]) == message.new
            assert (reason == "error") == (POISON in message.ids)
            if message.sampling.prompt_logprobs >= 0:
                prompt = message.ids[: len(message.ids) - message.position]
                assert self.scores[sequence] == prompt[1:], "each token of a prompt is scored once, in order"
            else:
                assert not self.scores[sequence]

    @invariant()
    def counts_add_up(self) -> None:
        s = self.scheduler
        assert s.waiting + s.running == len(self.want)
        assert 0 <= s.kv_cached <= s.kv_free <= self.limits.blocks * BLOCK
        assert s.running <= self.limits.sequences
        assert self.want or s.kv_free == self.limits.blocks * BLOCK, "who leaves frees what it held, at once"

    def teardown(self) -> None:
        """Nobody is lost and nobody starves: without arrivals everything ends within a bound of plans."""
        if not hasattr(self, "scheduler"):
            return
        bound = sum(len(m.ids) + 10 * m.new for m in self.want.values()) + 10
        for _ in range(bound):
            while self.flight:
                self.finish(2)
            if not self.want:
                break
            self.plan()
        while self.flight:
            self.finish(2)
        assert not self.want
        assert self.scheduler.plan() is None


TestBatching = Batching.TestCase
TestBatching.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


# --- order ------------------------------------------------------------------------------------------------------


def test_online_starts_before_batch() -> None:
    s = Scheduler(limits(sequences=1))
    s.admit(admit(1, 5, 1, batch=True))
    s.admit(admit(2, 5, 1))
    assert step(s)[1].tokens == [(2, 5)]


def test_online_takes_the_slot_of_a_batch_row_which_goes_on_later_where_it_was() -> None:
    s = Scheduler(limits(sequences=1))
    s.admit(admit(1, 40, 3, batch=True))
    step(s)
    s.admit(admit(2, 5, 1))
    assert step(s)[1].tokens == [(2, 5)]
    plan, told = step(s)
    assert (told.tokens, told.cached) == ([(1, 5)], []), "what it computed itself is no hit of its prompt"
    assert (plan.rows[0].past, plan.rows[0].ids, plan.rows[0].position) == (32, [101] * 8 + [5], 1)
    assert (s.preemptions, s.prefix_hits) == (1, 32)


def test_a_batch_row_waits_for_a_bounded_number_of_steps_however_many_online_requests_come() -> None:
    s = Scheduler(limits(sequences=1, patience=20))
    s.admit(admit(0, 5, 3, batch=True))
    for number in range(1, 100):
        s.admit(admit(number, 5, 1))
        if any(sequence == 0 for sequence, _ in step(s)[1].ended):
            break
    assert 20 <= number <= 20 + 3 + 1


def test_nobody_overtakes_a_sequence_that_does_not_fit_yet() -> None:
    s = Scheduler(limits(blocks=6))
    s.admit(admit(1, 50, 8))
    step(s)
    s.admit(admit(2, 60, 8))
    s.admit(admit(3, 5, 8))
    assert len(step(s)[0].rows) == 1
    ended = [number for told in finish(s) for number, _ in told.ended]
    assert ended[0] == 1


# --- prompts ----------------------------------------------------------------------------------------------------


def test_a_long_prompt_is_cut_and_others_keep_decoding() -> None:
    s = Scheduler(limits(budget=33))
    s.admit(admit(1, 1, 20))
    step(s)
    s.admit(admit(2, 90, 2))
    sizes = []
    while len(sizes) < 3:
        plan, _ = step(s)
        sizes.append([len(row.ids) for row in plan.rows])
        assert plan.rows[0].sample, "the decoding sequence runs in every plan"
    assert sizes == [[1, 32], [1, 32], [1, 26]]


@given(st.lists(st.integers(1, 95), min_size=1, max_size=8), st.integers(24, 200))
def test_the_budget_is_shared_by_the_oldest_prompt_and_the_shorter_ones(sizes: list[int], budget: int) -> None:
    """Laws: the first is sure of a quarter (a block at least), and the shorter ones of the rest."""
    s = Scheduler(limits(sequences=8, blocks=400, budget=budget))
    left = dict(enumerate(sizes))  # by slot: they start in order
    for number, size in left.items():
        s.admit(admit(number, size, 1))
    while left:
        rows = {row.slot: len(row.ids) for row in step(s)[0].rows}
        assert sum(rows.values()) <= budget
        assert all(slot in rows for slot in left if left[slot] == 1), "who decodes runs in every plan"
        prompts = {slot: n for slot, n in left.items() if n > 1}
        if prompts:
            room = budget - (len(left) - len(prompts))
            sure = max(BLOCK, room // 4)
            first = min(prompts)
            assert rows[first] >= min(left[first], sure // BLOCK * BLOCK)
            shorter = [slot for slot in prompts if left[slot] < left[first]]
            served, wanted = (sum(x.get(slot, 0) for slot in shorter) for x in (rows, left))
            assert served > min(wanted, room - sure) - BLOCK, "at most a part of a block is left over"
        left = {slot: n - rows.get(slot, 0) for slot, n in left.items() if n > rows.get(slot, 0)}


def test_the_prompt_that_goes_first_is_done_in_time_however_many_shorter_ones_come() -> None:
    s = Scheduler(limits(sequences=8, budget=128, blocks=400))
    s.admit(admit(0, 95, 1))
    for number in range(1, 50):
        for more in range(4):
            s.admit(admit(10 * number + more, 60, 1))
        if any(sequence == 0 for sequence, _ in step(s)[1].ended):
            break
    assert number <= -(-95 // 32)


@pytest.mark.parametrize(
    ("decoding", "batch", "prompt"), [(0, False, 90), (1, False, 32), (8, False, 32), (1, True, 90)]
)
def test_prompts_take_small_parts_while_online_sequences_decode(decoding: int, batch: bool, prompt: int) -> None:
    s = Scheduler(limits(sequences=40, blocks=400, budget=200, chunk=32))
    for number in range(decoding):
        s.admit(admit(number, 1, 50, batch=batch))
    if decoding:
        step(s)
    s.admit(admit(99, 90, 1))
    assert len(step(s)[0].rows[-1].ids) == prompt


def test_parts_become_smaller_far_into_a_long_prompt() -> None:
    s = Scheduler(limits(budget=200, chunk=48, far=32))
    s.admit(admit(1, 1, 50))
    step(s)
    s.admit(admit(2, 95, 1))
    sizes = [len(step(s)[0].rows[-1].ids) for _ in range(4)]
    assert sizes == [48, 16, 16, 15], "48 / (1 + 48 / 32) are 19, which is one block; never less than one"


def test_prompts_of_batch_rows_come_after_those_of_online_requests() -> None:
    s = Scheduler(limits(budget=64))
    s.admit(admit(1, 95, 1))
    s.admit(admit(2, 10, 1, batch=True))
    assert [row.ids for row in step(s)[0].rows] == [[101] * 64]
    s.admit(admit(3, 30, 1))
    assert {sequence for sequence, _ in step(s)[1].tokens} == {1, 3}


def test_many_decoding_sequences_bear_a_longer_part() -> None:
    s = Scheduler(limits(sequences=40, blocks=400, budget=200, chunk=32))
    for number in range(30):
        s.admit(admit(number, 1, 50))
    step(s)
    s.admit(admit(99, 90, 1))
    assert len(step(s)[0].rows[-1].ids) == 48, "two for each of 30, in whole blocks"


def test_a_prompt_may_be_in_flight_in_all_lanes_at_once() -> None:
    s = Scheduler(limits(budget=32, lanes=2))
    s.admit(admit(1, 64, 1))
    plans = planned(s), planned(s)
    assert [(p.lane, p.rows[0].past, p.rows[0].sample) for p in plans] == [(0, 0, False), (1, 32, True)]
    assert s.plan() is None


def test_a_budget_that_cannot_hold_all_is_a_defect() -> None:
    assert least_budget(9, 2) == 5 + BLOCK
    with pytest.raises(StateError, match=r"budget = 19.* need 20"):
        limits(sequences=4, budget=19)
    with pytest.raises(StateError, match="chunk = 15"):
        limits(chunk=15)


# --- blocks -----------------------------------------------------------------------------------------------------


def test_equal_beginnings_are_computed_once() -> None:
    s = Scheduler(limits())
    s.admit(admit(1, 50, 1, shared=40))
    finish(s)
    s.admit(admit(2, 50, 1, shared=40))
    plan, told = step(s)
    assert (plan.rows[0].past, len(plan.rows[0].ids)) == (32, 18)
    assert s.prefix_hits == 32
    assert told.cached == [(2, 32)]


def test_choices_of_one_prompt_share_it_within_one_plan() -> None:
    s = Scheduler(limits())
    for number in range(3):
        s.admit(admit(number, 40, 2, shared=40))
    plan, _ = step(s)
    assert sorted(len(row.ids) for row in plan.rows) == [8, 8, 40]
    assert s.kv_free == (40 - 2 - 3) * BLOCK


def test_at_least_one_token_is_computed() -> None:
    s = Scheduler(limits())
    for number in range(2):
        s.admit(admit(number, 32, 1, shared=32))
    plan, _ = step(s)
    assert sorted((row.past, len(row.ids)) for row in plan.rows) == [(0, 32), (16, 16)]


def test_a_prompt_to_be_scored_is_computed_whole() -> None:
    s = Scheduler(limits())
    s.admit(admit(1, 40, 1, shared=40))
    finish(s)
    s.admit(admit(2, 40, 1, shared=40, sampling=Sampling(prompt_logprobs=2)))
    plan, told = step(s)
    (row,) = plan.rows
    assert (row.past, row.score, row.lines, row.target) == (0, True, 40, -1)
    ((sequence, found),) = told.prompt
    assert (sequence, [one.token for one in found]) == (2, [1] * 39)


def test_parts_of_a_scored_prompt_carry_the_token_after_them() -> None:
    s = Scheduler(limits(budget=32))
    message = admit(1, 40, 1, sampling=Sampling(prompt_logprobs=0))
    message.ids[32] = 77
    s.admit(message)
    assert [(row.lines, row.target) for row in (step(s)[0].rows[0], step(s)[0].rows[0])] == [(32, 77), (8, -1)]


def test_without_prefix_caching_nothing_is_shared() -> None:
    s = Scheduler(limits(prefix=False))
    for number in range(3):
        s.admit(admit(number, 20, 1, shared=20))
    assert [len(row.ids) for row in step(s)[0].rows] == [20, 20, 20]
    assert s.kv_cached == 0


def test_the_highest_key_gives_way_and_its_draws_go_on_in_order() -> None:
    s = Scheduler(limits(sequences=3, blocks=4, fixed=1000))
    penalties = Sampling(temperature=1.0, presence_penalty=0.5)
    s.admit(admit(1, 14, 30))
    s.admit(admit(2, 14, 30, batch=True, position=3, sampling=penalties))
    positions, begun = [], []
    out: dict[int, int] = defaultdict(int)
    while s.running or s.waiting:
        plan, told = step(s)
        begun += [b for b in plan.begins if b.sampling == penalties]
        positions += [row.position for row in plan.rows if row.sample and row.slot == begun[-1].slot]
        for sequence, _ in told.tokens:
            out[sequence] += 1
    assert dict(out) == {1: 30, 2: 30}
    assert s.preemptions == 1
    assert positions == list(range(3, 33))
    first, again = begun
    assert (len(first.ids), first.prompt) == (14, 11)
    assert again.ids[:14] == first.ids
    assert (len(again.ids) > 14, again.prompt) == (True, 11)


def test_an_abort_frees_everything_at_once_even_in_flight() -> None:
    s = Scheduler(limits(sequences=1))
    s.admit(admit(1, 10, 10))
    s.admit(admit(2, 10, 10))
    plan = planned(s)
    s.abort(1)
    assert s.kv_free == 40 * BLOCK
    assert s.done(plan.lane, answer(plan)) == Tokens([], [])
    assert planned(s).rows[0].ids == admit(2, 10, 10).ids


def test_what_has_no_number_is_zeroed_before_its_next_use_and_not_found_again() -> None:
    s = Scheduler(limits(blocks=3))
    s.admit(admit(1, 40, 5, shared=40))
    plan = planned(s)
    assert s.done(plan.lane, Drawn([-1])).ended == [(1, "error")]
    s.admit(admit(2, 40, 5, shared=40))
    after = planned(s)
    assert (after.rows[0].past, sorted(after.wipe)) == (0, [1, 2, 3])


# --- lanes ------------------------------------------------------------------------------------------------------


def test_lanes_share_the_sequences_evenly() -> None:
    s = Scheduler(limits(sequences=6, lanes=2))
    for n in range(6):
        s.admit(admit(n, 1, 20 if n % 2 else 3))
    for _ in range(4):
        plans = [planned(s), planned(s)]
        assert s.plan() is None
        sizes = [len(p.rows) for p in plans]
        assert max(sizes) - min(sizes) <= 1
        for plan in plans:
            s.done(plan.lane, answer(plan))


def test_the_sampler_counts_from_the_position_of_the_first_attempt() -> None:
    s = Scheduler(limits())
    s.admit(admit(1, 5, 5, position=3))
    assert [step(s)[0].rows[0].position for _ in range(3)] == [3, 4, 5]


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        admit(1, 0, 5),
        admit(1, 5, 0),
        admit(1, 90, 20),
        admit(1, 70, 20),
        admit(1, 5, 5, position=5),
        Admit(1, [3, 1000], 5, 0, 0, 0, []),
        Admit(1, [-1], 5, 0, 0, 0, []),
        Admit(1, [1], 5, 0, 0, 0, [], Sampling(float("nan"))),
        Admit(1, [1], 5, 0, 0, 0, [], Sampling(1.0, 0.0)),
    ],
)
def test_what_can_never_run_is_refused_with_a_reason(message: Admit) -> None:
    s = Scheduler(limits(blocks=5))
    refused = s.admit(message)
    assert refused is not None
    assert refused.reason
    assert not refused.full
    assert s.plan() is None


def test_a_prompt_may_fill_the_context_if_one_token_is_drawn() -> None:
    s = Scheduler(limits(blocks=blocks_of(CONTEXT)))
    assert s.admit(admit(1, CONTEXT, 2)) is not None
    assert s.admit(admit(1, CONTEXT, 1)) is None
    assert finish(s)[-1] == Tokens([(1, 5)], [(1, "length")])


def test_a_full_queue_says_so() -> None:
    s = Scheduler(limits(queue=2))
    assert s.admit(admit(1, 5, 1)) is s.admit(admit(2, 5, 1)) is None
    assert s.admit(admit(3, 5, 1)) == NoRoom(3, "2 sequences wait already", full=True)


def test_a_number_in_use_is_refused_and_the_first_lives_on() -> None:
    s = Scheduler(limits())
    assert s.admit(admit(1, 5, 1)) is None
    assert s.admit(admit(1, 5, 1)) is not None
    assert step(s)[1].ended == [(1, "length")]


def test_an_answer_to_no_plan_is_a_defect() -> None:
    s = Scheduler(limits())
    with pytest.raises(StateError, match="not in flight"):
        s.done(0, Drawn([1]))
    s.admit(admit(1, 5, 1))
    plan = planned(s)
    with pytest.raises(StateError, match="asked for 1 tokens and 0 scores and got 2 and 0"):
        s.done(plan.lane, Drawn([1, 2]))
