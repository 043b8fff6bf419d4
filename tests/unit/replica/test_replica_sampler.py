"""Laws of the sampler: counted randomness, exact distributions, greedy at zero."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from exahpc.replica.engine.sampler import draw, sample, uniform  # noqa: E402
from exahpc.replica.plan import Row  # noqa: E402
from exahpc.wire.messages import Sampling  # noqa: E402

FIXED = (0.5170052385149787, 0.1699806337662293)


def row(temperature: float = 1.0, top_p: float = 1.0, seed: int = 1, stream: int = 0, position: int = 0) -> Row:
    return Row(0, 0, [1], True, Sampling(temperature, top_p), seed, stream, position)


def test_randomness_is_a_function_of_seed_stream_and_position() -> None:
    base = uniform(1, 2, 3)
    assert base == uniform(1, 2, 3)
    assert len({base, uniform(2, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4)}) == 4
    assert 0.0 <= uniform(-1, -2, 2**70) < 1.0


def test_the_numbers_never_change_between_versions() -> None:
    """A request may go on at a replica of another version in the middle of a rollout."""
    assert uniform(123, 0, 0) == pytest.approx(FIXED[0], abs=0)
    assert uniform(2**64 - 1, 7, 1000) == pytest.approx(FIXED[1], abs=0)


def test_greedy_takes_the_best_and_says_when_there_is_no_number() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 0.0, 0.0], [float("nan"), 0.0, 0.0]])
    assert sample(logits, [row(0.0)] * 3) == [1, 0, -1]
    assert draw(logits[2].numpy(), row(1.0)) == -1


@pytest.mark.parametrize("size", [5, 4000])
@pytest.mark.parametrize("top_p", [1.0, 0.6])
def test_draws_follow_the_probabilities(size: int, top_p: float) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(size, generator=generator) * (2.0 if size > 5 else 1.0)
    chances = torch.softmax(logits.double() / 0.7, 0)
    order = chances.argsort(descending=True)
    kept = int((chances[order].cumsum(0) < top_p).sum()) + 1 if top_p < 1 else size
    want = torch.zeros(size, dtype=torch.double)
    want[order[:kept]] = chances[order[:kept]] / chances[order[:kept]].sum()
    drawn = [draw(logits.numpy(), row(0.7, top_p, seed=5, position=n)) for n in range(3000)]
    assert set(drawn) <= set(order[:kept].tolist())
    got = torch.bincount(torch.tensor(drawn), minlength=size) / len(drawn)
    assert float((got[order[:5]] - want[order[:5]]).abs().max()) < 0.04


def test_a_small_top_p_is_greedy() -> None:
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    assert {draw(logits.numpy(), row(1.0, 1e-6, position=n)) for n in range(50)} == {int(logits.argmax())}


def test_a_flat_distribution_reaches_its_tail() -> None:
    drawn = {draw(torch.zeros(5000).numpy(), row(position=n)) for n in range(300)}
    assert len(drawn) > 250
