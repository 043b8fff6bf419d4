"""The emulated replica: its times follow the formula, whatever comes in whatever order."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exahpc.lab.emulated.model import Batch, Latency

LATENCY = Latency()


def run(batch: Batch, until: float = math.inf) -> list[tuple[float, int, bool]]:
    """(when, sequence, first) of all that happens."""
    told = []
    while (due := batch.due) < until:
        told += [(due, *progress) for progress in batch.advance(due)]
    return told


def test_a_request_that_is_alone_takes_what_the_formula_says() -> None:
    for prompt, new in ((1, 1), (64, 64), (512, 2), (513, 2), (32_768, 10)):
        batch = Batch(LATENCY, 4, 100_000)
        batch.admit(1, prompt, new, 3.0)
        times = [at - 3.0 for at, _, _ in run(batch)]
        assert times == pytest.approx(LATENCY.alone(prompt, new))
        assert batch.tokens() == new


def test_the_defaults_give_the_reference_load() -> None:
    """54 ms to the first token and 24 ms a token at 110 requests/s on 12 replicas."""
    draw, batch, at, number = random.Random(5), Batch(LATENCY, 64, 100_000), 0.0, 0
    came, first, waits, gaps = {}, {}, [], []
    while number < 1500:
        at += draw.expovariate(110 / 12)
        for when, sequence, is_first in run(batch, at):
            if is_first:
                first[sequence] = when
                waits.append(when - came[sequence])
            else:
                gaps.append((when - first[sequence]) / 63)
        number += 1
        came[number] = at
        batch.advance(at)
        batch.admit(number, 64, 64, at)
    assert statistics.median(waits) == pytest.approx(0.054, rel=0.05)
    assert statistics.median(gaps) == pytest.approx(0.024, rel=0.05)


def test_every_decoding_sequence_gets_one_token_a_step() -> None:
    batch = Batch(LATENCY, 4, 100_000)
    batch.admit(1, 10, 50, 0.0)
    batch.advance(batch.due)
    assert batch.emitted(1) == 1
    for count in range(2, 50):
        assert batch.outstanding == 50 - batch.emitted(1)
        batch.advance(batch.next_step())
        assert batch.emitted(1) == count


def test_a_step_grows_with_the_sequences_in_it() -> None:
    batch = Batch(LATENCY, 8, 100_000)
    for number in range(4):
        batch.admit(number, 64, 100, 0.0)
    while batch.decoding < 4:
        batch.advance(batch.due)
    began = batch.next_step()
    batch.advance(began)
    assert batch.next_step() - began == pytest.approx(LATENCY.step(4))
    assert LATENCY.step(4) - LATENCY.step(1) == pytest.approx(3 * LATENCY.each_seconds)


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    batch = Batch(LATENCY, 8, 100_000)
    batch.admit(1, 32_768, 2, 0.0)
    batch.advance(1.0)
    batch.admit(2, 64, 2, 1.0)
    times = {(sequence, first): at for at, sequence, first in run(batch)}
    assert times[2, True] < 1.3
    assert LATENCY.alone(32_768, 1)[0] < times[1, True] < 1.1 * LATENCY.alone(32_768, 1)[0]


def test_without_places_or_cache_sequences_wait_in_order() -> None:
    for sequences, kv in ((1, 100_000), (8, 100)):
        batch = Batch(LATENCY, sequences, kv)
        for number in range(3):
            batch.admit(number, 40, 20, 0.0)
        assert (batch.running, batch.waiting) == (1, 2)
        assert [(s, first) for _, s, first in run(batch)] == [(n, f) for n in range(3) for f in (True, False)]


def test_a_frozen_replica_tells_nothing_until_it_goes_on() -> None:
    batch = Batch(LATENCY, 4, 1000)
    batch.admit(1, 64, 64, 0.0)
    batch.advance(0.5)
    before = batch.emitted(1)
    batch.change(0.5, frozen=True)
    assert batch.due == math.inf
    assert batch.advance(100.0) == []
    assert batch.emitted(1) == before
    batch.change(100.0, frozen=False)
    assert run(batch)[-1][0] == pytest.approx(99.5 + LATENCY.alone(64, 64)[1])


def test_a_slow_replica_takes_so_many_times_as_long() -> None:
    batch = Batch(LATENCY, 4, 1000, slow=3.0)
    batch.admit(1, 64, 64, 0.0)
    assert [at for at, _, _ in run(batch)] == pytest.approx([3 * t for t in LATENCY.alone(64, 64)])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_sequence_has_one_first_token_and_one_end_unless_aborted(data: st.DataObject) -> None:
    batch = Batch(LATENCY, data.draw(st.integers(1, 5)), data.draw(st.integers(1000, 5000)))
    now, wanted, aborted, told = 0.0, {}, set(), []
    for number in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.sampled_from((0.0, 0.001, 0.05, 0.7)))
        told += batch.advance(now)
        match data.draw(st.integers(0, 4)):
            case 0 if wanted:
                victim = data.draw(st.sampled_from(sorted(wanted)))
                aborted |= {victim} if victim in batch else set()
                batch.abort(victim, now)
            case 1:
                batch.change(now, slow=data.draw(st.sampled_from((1.0, 5.0))))
            case _:
                wanted[number] = data.draw(st.sampled_from((1, 2, 30)))
                batch.admit(number, data.draw(st.sampled_from((1, 64, 512, 3000))), wanted[number], now)
        assert batch.running <= batch.sequences
        assert batch.kv <= batch.kv_tokens or batch.running == 1
        assert batch.due >= now - 1e-6
        assert batch.outstanding >= 0
    while batch.due < math.inf:
        told += batch.advance(batch.due)
    assert len(batch) == batch.running == batch.kv == batch.decoding == batch.outstanding == 0
    ended = [sequence for sequence, is_first in told if not is_first]
    assert sorted(ended) == sorted(set(wanted) - aborted)
    firsts = [sequence for sequence, is_first in told if is_first]
    assert len(firsts) == len(set(firsts))
    assert set(ended) <= set(firsts)
    least = sum(wanted[number] for number in ended)
    assert least <= batch.tokens() <= least + sum(wanted[number] for number in aborted)
