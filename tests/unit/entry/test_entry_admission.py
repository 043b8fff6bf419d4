"""Who goes next, who is turned away, and what they are told."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from exahpc.entry.admission import ALONE, Admission
from exahpc.entry.ledger import Record
from exahpc.entry.pace import LEAST, MOST, Pace
from exahpc.errors import RequestError
from exahpc.openai.peeked import Tier

NUMBERS = count()


def record(key: str = "k", tokens: int = 10, tier: Tier = "default", since: float = 0.0) -> Record:
    made = Record(
        f"r{next(NUMBERS)}",
        "chat",
        b"",
        stream=True,
        seed=1,
        created=1,
        choices=1,
        prompt=0,
        new=tokens,
        key=key,
        tier=tier,
    )
    made.since = since
    return made


def line(most: int = 10_000, per_key: int | None = None) -> Admission:
    return Admission(most, per_key, Pace(lambda n: 0))


def served(admission: Admission, n: int) -> list[Record]:
    found = []
    for _ in range(n):
        first = admission.next()
        if first is None:
            break
        admission.take(first)
        found.append(first)
    return found


def test_a_key_with_a_thousand_waiting_requests_delays_one_of_another_key_by_one() -> None:
    admission = line()
    for _ in range(1000):
        admission.enter(record("greedy", tokens=500))
    served(admission, 7)
    one = record("modest", tokens=10_000)
    admission.enter(one)
    assert one in served(admission, 2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 100)), min_size=1, max_size=120),
    st.integers(1, 100),
)
def test_keys_that_wait_get_equal_shares_of_tokens(asked: list[tuple[str, int]], rounds: int) -> None:
    """The bound of start-time fair queueing: while both wait, two keys differ by a largest request of each."""
    admission = line()
    for key, tokens in asked:
        admission.enter(record(key, tokens))
    largest = {key: max(t for k, t in asked if k == key) for key, _ in asked}
    left = Counter(key for key, _ in asked)
    got: Counter[str] = Counter()
    while len(admission):
        (one,) = served(admission, 1)
        got[one.key] += one.tokens
        left[one.key] -= 1
        waiting = [key for key in left if left[key]]
        for a in waiting:
            for b in waiting:
                assert got[a] - got[b] <= largest[a] + largest[b]
        if not all(left.values()):
            break


def test_time_that_a_key_did_not_use_is_not_saved_up() -> None:
    admission = line()
    admission.enter(record("late"))
    served(admission, 1)
    for _ in range(100):
        admission.enter(record("steady"))
    served(admission, 50)
    for _ in range(100):
        admission.enter(record("late"))
    keys = Counter(r.key for r in served(admission, 20))
    assert keys == {"late": 10, "steady": 10}


def test_the_requests_of_one_key_keep_their_order_but_its_urgent_ones_go_first() -> None:
    admission = line()
    plain, urgent, other = record("a"), record("a", tier="priority"), record("b")
    for one in (record("a"), plain, other, urgent):
        admission.enter(one)
    order = [r.id for r in served(admission, 4)]
    assert order.index(urgent.id) < order.index(plain.id)
    assert order.index(other.id) <= 1, "urgent for a key is not urgent for others"


def test_flexible_requests_wait_until_nobody_else_does() -> None:
    admission = line()
    flex = record("a", tier="flex")
    admission.enter(flex)
    others = [record("a"), record("b")]
    for one in others:
        admission.enter(one)
    assert served(admission, 3)[-1] is flex


def test_interrupted_requests_go_first_and_are_never_refused() -> None:
    admission = line(most=1)
    admission.enter(record())
    interrupted = [record(since=1.0), record(since=2.0)]
    for one in interrupted:
        one.deaths = 1
        admission.enter_again(one, front=False)
    assert served(admission, 2) == interrupted


def test_who_came_back_from_a_busy_replica_is_next_again_and_pays_once() -> None:
    admission = line()
    first, second = record("a", 50), record("a", 50)
    for one in (first, second, record("b", 60)):
        admission.enter(one)
    for _ in range(5):
        assert served(admission, 1) == [first]
        admission.enter_again(first, front=True)
    keys = [r.key for r in served(admission, 3)]
    assert keys == ["a", "b", "a"]


def test_a_lane_that_fits_nowhere_does_not_hold_up_the_others() -> None:
    admission = line()
    long, short, alone = record(), record(), record()
    long.lane, short.lane, alone.alone = "long", "short", True
    for one in (long, alone, short):
        admission.enter(one)
    assert admission.next({"long", ALONE}) is short
    assert admission.next({"long", "short"}) is alone
    assert admission.next({"long", "short", ALONE}) is None
    assert admission.waits("long")
    assert not admission.waits("medium")


# --- bounds ---------------------------------------------------------------------------------------------------


def test_a_full_line_gives_way_to_a_key_that_has_less_in_it() -> None:
    admission = line(most=4)
    mine = [record("many") for _ in range(4)]
    for one in mine:
        assert admission.enter(one) is None
    assert admission.enter(record("few")) is mine[3], "the newest"
    assert admission.enter(record("few")) is mine[2]
    with pytest.raises(RequestError, match="max_waiting") as caught:
        admission.enter(record("few"))
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    assert len(admission) == 4


def test_a_full_line_gives_way_to_whoever_cannot_wait_at_the_cost_of_the_flexible() -> None:
    admission = line(most=2)
    flex = [record("a", tier="flex") for _ in range(2)]
    for one in flex:
        admission.enter(one)
    assert admission.enter(record("a")) is flex[1]
    with pytest.raises(RequestError):
        admission.enter(record("b", tier="flex"))


def test_one_key_cannot_hold_more_of_the_line_than_its_bound() -> None:
    admission = line(most=100, per_key=2)
    for _ in range(2):
        admission.enter(record("a"))
    with pytest.raises(RequestError, match="max_waiting_per_key"):
        admission.enter(record("a"))
    admission.enter(record("b"))


def test_no_line_at_all_refuses_at_once() -> None:
    with pytest.raises(RequestError):
        line(most=0).enter(record())


def test_who_came_back_from_a_busy_replica_counts_against_the_bounds() -> None:
    admission = line(most=2)
    for one in (record("a"), record("a")):
        admission.enter(one)
    (first,) = served(admission, 1)
    admission.enter(record("a"))
    admission.enter_again(first, front=True)
    assert len(admission) == 3
    with pytest.raises(RequestError):
        admission.enter(record("a"))


# --- Retry-After ----------------------------------------------------------------------------------------------


def draining(rate: float, seconds: int = 60, draw: int = 512) -> Pace:
    pace = Pace(lambda n: draw)
    for tick in range(1, 4 * seconds + 1):
        pace.left += round(rate / 4)
        pace.tick(tick / 4, 1)
    return pace


def test_retry_after_is_the_time_in_which_the_line_drains() -> None:
    assert draining(rate=20).retry_after(200) == pytest.approx(10, abs=1)
    assert draining(rate=200).retry_after(20) == LEAST
    assert draining(rate=4).retry_after(10_000) <= MOST
    assert draining(rate=0).retry_after(10) > 30, "nothing moves"


def test_clients_that_are_turned_away_together_do_not_come_back_together() -> None:
    for ahead in (400, 10**6):
        told = {draining(rate=20, draw=draw).retry_after(ahead) for draw in range(0, 1024, 8)}
        assert len(told) >= 10
        assert all(LEAST <= seconds <= MOST for seconds in told)


def test_the_pace_forgets() -> None:
    pace = draining(rate=100)
    busy = pace.retry_after(1000)
    for tick in range(241, 480):
        pace.tick(tick / 4, 1)
    assert pace.retry_after(1000) > 4 * busy


def test_the_pace_of_a_burst_is_known_at_once_and_idle_time_does_not_count() -> None:
    assert draining(rate=200, seconds=1).retry_after(2000) == pytest.approx(10, abs=1)
    pace = draining(rate=20)
    for tick in range(241, 4000):
        pace.left += 1
        pace.tick(tick / 4, 0)
    assert pace.retry_after(200) == pytest.approx(10, abs=2)


# --- whatever comes ---------------------------------------------------------------------------------------------


class AdmissionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.admission = line(most=8, per_key=5)
        self.waiting: dict[str, Record] = {}
        self.out: list[Record] = []
        self.fresh: set[str] = set()  # those that count against the bounds

    @rule(
        key=st.sampled_from("abc"),
        tokens=st.integers(1, 50),
        tier=st.sampled_from(["default", "priority", "flex"]),
        lane=st.sampled_from(["", "long"]),
        alone=st.booleans(),
    )
    def arrives(self, key: str, tokens: int, tier: Tier, lane: str, alone: bool) -> None:
        one = record(key, tokens, tier)
        one.lane, one.alone = lane, alone
        try:
            gone = self.admission.enter(one)
        except RequestError:
            assert len(self.fresh) >= 8 or sum(self.waiting[i].key == key for i in self.fresh) >= 5
            return
        if gone is not None:
            assert gone.id in self.fresh
            self.leave(gone)
        self.waiting[one.id] = one
        self.fresh.add(one.id)

    def leave(self, one: Record) -> None:
        del self.waiting[one.id]
        self.fresh.discard(one.id)

    @rule(blocked=st.sets(st.sampled_from(["", "long", ALONE])))
    def goes(self, blocked: set[str]) -> None:
        one = self.admission.next(blocked)
        able = [r for r in self.waiting.values() if (ALONE if r.alone else r.lane) not in blocked]
        assert (one is None) == (not able)
        if one is None:
            return
        assert one in able
        if not one.deaths:
            assert not any(r.deaths for r in able)
            assert one.tier != "flex" or all(r.tier == "flex" for r in able)
        self.admission.take(one)
        self.leave(one)
        self.out.append(one)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), died=st.booleans(), suspect=st.booleans())
    def comes_back(self, data: st.DataObject, died: bool, suspect: bool) -> None:
        one = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        one.deaths += died
        one.alone |= suspect and died
        self.admission.enter_again(one, front=not died)
        self.waiting[one.id] = one
        if not one.deaths:
            self.fresh.add(one.id)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        one = self.waiting[data.draw(st.sampled_from(sorted(self.waiting)))]
        self.admission.leave(one)
        self.leave(one)
        self.admission.leave(one)  # no error

    @invariant()
    def the_books_are_right(self) -> None:
        waiting = self.waiting.values()
        assert len(self.admission) == len(waiting) == sum(self.admission.by_tier().values())
        assert self.admission.tokens == sum(r.tokens for r in waiting)
        assert self.admission._fresh_count == len(self.fresh)
        for lane in ("", "long", ALONE):
            assert self.admission.waits(lane) == any((ALONE if r.alone else r.lane) == lane for r in waiting)

    def teardown(self) -> None:
        assert len(served(self.admission, 10**6)) == len(self.waiting)


AdmissionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAdmission = AdmissionMachine.TestCase
