"""Any plan survives its way through the one or two messages of its broadcast."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from exahpc.replica.plan import FIRST, Begin, Plan, Row, decode, encode, rest
from exahpc.wire.messages import Sampling

big = st.integers(0, 2**63)
ids = st.lists(st.integers(0, 2**32 - 1), max_size=40)
sampling = st.builds(Sampling, st.floats(0, 9), st.floats(0, 1), big, st.floats(0, 1))
begins = st.builds(Begin, big, sampling, big, big, ids, ids, big)
rows = st.builds(Row, big, big, ids, st.booleans(), big, st.booleans(), st.integers(-1, 2**32))
blocks = st.tuples(big, ids)


def some(things: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(things, max_size=5)


plans = st.builds(Plan, big, ids, some(begins), some(blocks), some(rows), st.booleans())


@given(plans)
@example(Plan())
@example(Plan(stop=True))
@example(Plan(rows=[Row(1, 0, [2**31] * 30_000, True)]))
@example(Plan(wipe=[1] * (FIRST - 13)))
@example(Plan(wipe=[1] * (FIRST - 12)))
@example(Plan(wipe=[1] * (FIRST - 11)))
def test_a_plan_comes_back_whole(plan: Plan) -> None:
    first, second = encode(plan)
    assert len(first) == FIRST
    assert rest(first) == len(second)
    assert decode(first, second) == plan


def test_plans_of_a_usual_size_travel_in_one_message() -> None:
    decoding = [Row(slot, 1000, [50_000], True, 100) for slot in range(64)]
    assert rest(encode(Plan(rows=decoding))[0]) == 0
