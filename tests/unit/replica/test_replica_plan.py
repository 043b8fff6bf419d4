"""Any plan survives its way through the broadcast buffer, whose size is bounded beforehand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exahpc.replica.plan import Move, Plan, Row, decode, encode, most_bytes
from exahpc.wire.messages import Sampling

big = st.integers(0, 2**63)
ids = st.integers(0, 2**32 - 1)
sampling = st.builds(Sampling, st.floats(0, 9), st.floats(0, 1), big, st.floats(0, 1))
rows = st.builds(Row, big, big, st.lists(ids, max_size=40), st.booleans(), sampling, big, big, big)
moves = st.builds(Move, big, big, big)


plans = st.builds(
    Plan, big, st.lists(big, max_size=5), st.lists(moves, max_size=5), st.lists(rows, max_size=5), st.booleans()
)


@given(plans)
def test_a_plan_comes_back_whole(plan: Plan) -> None:
    buffer = memoryview(bytearray(most_bytes(5, plan.tokens)))
    assert encode(plan, buffer) <= len(buffer)
    assert decode(buffer) == plan


def test_a_shorter_plan_is_not_mixed_with_the_one_before() -> None:
    buffer = memoryview(bytearray(most_bytes(4, 100)))
    encode(Plan(rows=[Row(1, 0, list(range(100)), True)]), buffer)
    encode(Plan(stop=True), buffer)
    assert decode(buffer) == Plan(stop=True)
