"""Laws of the emulated engine: whatever comes when, each sequence gets its tokens in time, and one ending."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from exahpc.lab.emulated.engine import IDS, Engine
from exahpc.lab.emulated.model import Latency
from exahpc.wire.messages import Admit, NoRoom

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "abort", "wait"]), st.integers(0, 5), st.integers(1, 30), st.floats(0.0, 0.3)
    ),
    max_size=60,
)


def engine(sequences: int = 3) -> Engine:
    return Engine(Latency(), sequences=sequences, kv_tokens=4096, context=1024)


def admit(sequence: int, new: int, prompt: int = 64) -> Admit:
    return Admit(sequence=sequence, ids=[7] * prompt, new=new, position=0, seed=0, stream=0, stop_ids=[])


@given(EVENTS)
def test_every_sequence_gets_exactly_its_tokens_and_one_ending_unless_it_is_aborted(
    events: list[tuple[str, int, int, float]],
) -> None:
    made, now = engine(), 0.0
    wanted: dict[int, int] = {}
    got: dict[int, int] = {}

    def advance(until: float) -> None:
        nonlocal now
        while made.due() <= until and made.due() < math.inf:
            now = max(now, made.due())
            told = made.advance(now)
            for sequence, token in told.tokens if told else ():
                assert token in IDS
                got[sequence] += 1
                assert got[sequence] <= wanted[sequence]
            for sequence, reason in told.ended if told else ():
                assert (got.pop(sequence), reason) == (wanted.pop(sequence), "length")
        now = max(now, until) if until < math.inf else now

    for kind, sequence, new, wait in events:
        match kind:
            case "admit":
                refused = made.admit(admit(sequence, new), now)
                assert isinstance(refused, NoRoom) == (sequence in wanted), "a number is used once at a time"
                if refused is None:
                    wanted[sequence], got[sequence] = new, 0
            case "abort":
                made.abort(sequence, now)
                wanted.pop(sequence, None)
                got.pop(sequence, None)
            case _:
                advance(now + wait)
        assert made.beat().running == min(len(wanted), made.sequences), "no place is left empty, none is lost"
    advance(math.inf)
    assert not wanted
    assert made.due() == math.inf
    assert made.beat().kv_free == 4096


def test_a_lone_request_of_the_reference_load_takes_what_the_model_says() -> None:
    made = engine()
    assert made.admit(admit(1, 64), 10.0) is None
    first, last = Latency().alone(64, 64)
    moments: list[float] = []
    while made.due() < math.inf:
        due = made.due()
        told = made.advance(due)
        moments += [due] * (len(told.tokens) if told else 0)
    assert len(moments) == 64
    assert abs(moments[0] - 10.0 - first) < 1e-6
    assert abs(moments[-1] - 10.0 - last) < 1e-6


def test_a_frozen_engine_yields_nothing_and_goes_on_where_it_was() -> None:
    made = engine()
    made.admit(admit(1, 5), 0.0)
    made.freeze(True, 0.0)
    assert made.due() == math.inf
    assert made.advance(100.0) is None
    assert made.beat().running == 1
    made.freeze(False, 100.0)
    count = 0
    while made.due() < math.inf:
        told = made.advance(made.due())
        count += len(told.tokens) if told else 0
    assert count == 5


def test_too_long_a_line_is_told_from_what_never_fits() -> None:
    made = engine(1)
    for sequence in range(9):  # one runs, eight wait
        assert made.admit(admit(sequence, 5), 0.0) is None
    full = made.admit(admit(9, 5), 0.0)
    never = made.admit(admit(10, 5, prompt=2000), 0.0)
    assert full is not None
    assert never is not None
    assert (full.full, never.full) == (True, False)
