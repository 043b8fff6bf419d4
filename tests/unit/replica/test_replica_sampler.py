"""Laws of the sampler: counted randomness, exact distributions, parameters that mean what they say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from exahpc.replica.engine.choosing import among, anywhere  # noqa: E402
from exahpc.replica.engine.philox import uniform  # noqa: E402
from exahpc.replica.engine.sampler import Sampler  # noqa: E402
from exahpc.wire.messages import Sampling  # noqa: E402

FIXED = (0.5170052385149787, 0.1699806337662293)
WORDS = np.uint64


def logits(rows: int, size: int = 700, seed: int = 3) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 2


def sampler(*given: dict[str, Any], size: int = 700, seed: int = 5) -> Sampler:
    """A slot for each: the fields of Sampling, and stop_ids, ids, prompt, seed."""
    made = Sampler(len(given), size)
    for slot, fields in enumerate(given):
        rest = {name: fields.pop(name) for name in ("stop_ids", "ids", "prompt") if name in fields}
        made.begin(slot, seed=fields.pop("seed", seed), stream=0, sampling=Sampling(**fields), **rest)
    return made


def draw(made: Sampler, numbers: torch.Tensor, position: int = 0) -> list[int]:
    return made.draw(numbers.clone(), range(len(numbers)), [position] * len(numbers)).tokens.tolist()


def frequencies(fields: dict[str, Any], row: torch.Tensor, draws: int = 1500) -> torch.Tensor:
    made = sampler(*(dict(fields, seed=n) for n in range(draws)), size=len(row))
    return torch.bincount(torch.tensor(draw(made, row.repeat(draws, 1))), minlength=len(row)) / draws


# --- randomness -----------------------------------------------------------------------------------------------


def test_random_numbers_are_those_of_numpys_philox() -> None:
    chance = np.random.default_rng(0)
    seed, stream, position = (chance.integers(0, 2**64, 200, dtype=WORDS) for _ in range(3))
    seed[:2], position[1:3] = 2**64 - 1, 2**64 - 1
    for got, *words in zip(uniform(seed, stream, position), seed, stream, position, strict=True):
        numpys = np.random.Philox(key=np.array(words[:2], WORDS), counter=np.array([0, 0, 0, words[2]], WORDS))
        assert got == np.random.Generator(numpys).random()


def test_the_numbers_never_change_between_versions() -> None:
    """A request may go on at a replica of another version in the middle of a rollout."""
    seed, stream, position = np.array([[123, 2**64 - 1], [0, 7], [0, 1000]], WORDS)
    assert tuple(uniform(seed, stream, position)) == FIXED


def test_a_draw_depends_on_its_own_row_only() -> None:
    given = [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.5, "top_k": 5, "logprobs": 3},
        {},
        {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.3, "ids": [1, 2, 3], "prompt": 2},
        {"temperature": 9.0, "top_p": 0.999},
        {"temperature": 1.0, "logit_bias": ((3, 5.0),), "frequency_penalty": 0.5},
    ]
    numbers = logits(len(given), 6000)
    numbers[5] /= 20  # nearly flat: needs more candidates than the others
    together = sampler(*(dict(fields) for fields in given), size=6000)
    alone = [sampler(dict(fields), size=6000) for fields in given]
    for position in (0, 1, 63, 64, 200, 3):
        wanted = [draw(one, numbers[[n]], position)[0] for n, one in enumerate(alone)]
        assert draw(together, numbers, position) == wanted


def test_a_draw_changes_with_seed_stream_and_position() -> None:
    made = Sampler(4, 700)
    for slot, (seed, stream) in enumerate([(1, 0), (2, 0), (1, 1), (1, 0)]):
        made.begin(slot, Sampling(3.0), seed, stream)
    drawn = [draw(made, logits(1).repeat(4, 1), position) for position in range(60)]
    ways = list(zip(*drawn, strict=True))
    assert ways[0] == ways[3]
    assert len(set(ways)) == 3
    assert len(set(ways[0])) > 20
    made.begin(0, Sampling(3.0), 1, 0)  # the same sequence, moved and begun again in its middle
    assert draw(made, logits(1).repeat(4, 1), 30)[0] == ways[0][30]
    made.begin(0, Sampling(3.0), 2, 0)  # another one in the same slot, at a position that was just drawn
    assert draw(made, logits(1).repeat(4, 1), 30)[0] == ways[1][30]


# --- what is drawn --------------------------------------------------------------------------------------------


def test_greedy_takes_the_first_of_the_best_and_says_when_there_is_no_number() -> None:
    numbers = torch.tensor([[0.0, 3.0, 3.0], [5.0, 0.0, 0.0], [math.nan, 0.0, 9.0], [math.inf, 0.0, 0.0]])
    assert draw(sampler(*({} for _ in range(4)), size=3), numbers) == [1, 0, -1, -1]
    mixed = sampler({"temperature": 1.0}, {"logprobs": 1}, {"temperature": 1.0}, {"top_k": 1}, size=3)
    found = mixed.draw(numbers, range(4), [0] * 4)
    assert found.tokens.tolist()[2:] == [-1, -1]
    assert found.likelihoods is not None


@pytest.mark.parametrize("size", [5, 256, 5000])
@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, lambda p: len(p)),
        ({"top_p": 0.6}, lambda p: int((p.cumsum(0) < 0.6).sum()) + 1),
        ({"top_p": 0.9999}, lambda p: int((p.cumsum(0) < 0.9999).sum()) + 1),
        ({"top_k": 3}, lambda p: 3),
        ({"top_k": 100_000}, lambda p: len(p)),
        ({"min_p": 0.2}, lambda p: int((p >= 0.2 * p[0]).sum())),
        ({"top_k": 4, "top_p": 0.5}, lambda p: int(((p[:4] / p[:4].sum()).cumsum(0) < 0.5).sum()) + 1),
    ],
)
def test_draws_follow_the_probabilities_of_the_tokens_that_are_kept(size: int, fields: Any, kept: Any) -> None:
    row = logits(1, size)[0]
    chances, order = torch.softmax(row.double() / 0.7, 0).sort(descending=True)
    count = kept(chances)
    got = frequencies({"temperature": 0.7, **fields}, row)
    assert set(got.nonzero().flatten().tolist()) <= set(order[:count].tolist())
    wanted = chances[:count] / chances[:count].sum()
    assert float((got[order[: min(5, count)]] - wanted[:5]).abs().max()) < 0.05


@pytest.mark.parametrize("size", [3, 700, 5000])
def test_the_ends_of_the_unit_interval_hit_tokens_that_have_weight(size: int) -> None:
    weights = torch.softmax(logits(4, size), -1)
    weights[:, ::2] = 0
    for chance in (0.0, 1.0 - 2.0**-53):
        column = torch.full((4, 1), chance, dtype=torch.float64)
        everything = torch.zeros(4, 1, dtype=torch.int64), torch.full((4, 1), 1.0 - 1e-12, dtype=torch.float64)
        for tokens in (anywhere(weights, column), among(weights, column, *everything)):
            assert bool((weights.gather(1, tokens[:, None]) > 0).all())


def test_a_small_top_p_is_greedy_and_a_flat_distribution_reaches_its_tail() -> None:
    row = logits(1)[0]
    assert frequencies({"temperature": 1.0, "top_p": 1e-6}, row, 50)[row.argmax()] == 1
    flat = torch.zeros(5000)
    for fields in ({}, {"top_p": 0.99}):
        assert int((frequencies({"temperature": 1.0, **fields}, flat, 300) > 0).sum()) > 250


# --- what is done to the logits -------------------------------------------------------------------------------


def test_penalties_are_openais_and_ctrls() -> None:
    row = torch.tensor([[2.0, -1.0, 1.0, 0.5, 3.0, 0.0]])
    penalties = {"repetition_penalty": 2.0, "presence_penalty": 0.25, "frequency_penalty": 0.5}
    made = sampler({**penalties, "ids": [0, 1, 0, 2, 2], "prompt": 3, "logit_bias": ((5, 1.5),)}, size=6)
    changed = row.clone()
    assert made.draw(changed, [0], [2]).tokens.tolist() == [4]
    # seen 0, 1, 2; generated 2, twice
    assert changed.tolist() == [[1.0, -2.0, 0.5 - 2 * 0.5 - 0.25, 0.5, 3.0, 1.5]]
    assert made.draw(changed := row.clone(), [0], [3]).tokens.tolist() == [5], "4 was drawn, so it counts now"
    assert changed[0, 4] == 3.0 / 2 - 0.5 - 0.25


def test_penalties_look_at_their_own_slot_only() -> None:
    made = sampler({"presence_penalty": 2.0}, {}, {"presence_penalty": -2.0}, {"frequency_penalty": 1.0}, size=4)
    row = torch.tensor([1.0, 0.5, 0.0, -0.5])
    steps = [draw(made, row.repeat(4, 1), position) for position in range(5)]
    assert [list(way) for way in zip(*steps, strict=True)] == [
        [0, 1, 2, 3, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 2, 1],
    ]  # fmt: skip
    made.begin(0, Sampling(presence_penalty=2.0), 1, 0, ids=[0], prompt=0)
    assert draw(made, row.repeat(4, 1))[0] == 1


def test_logit_bias_bans_and_forces_tokens() -> None:
    row = logits(1)[0]
    first, second = row.topk(2).indices.tolist()
    banned, forced = {"logit_bias": ((first, -100.0),)}, {"logit_bias": ((7, 100.0), (8, -3.0))}
    assert draw(sampler(banned, forced), row.repeat(2, 1)) == [second, 7]


def test_stop_tokens_are_not_drawn_before_min_new() -> None:
    row = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    for temperature in (0.0, 1.0):
        fields = {"temperature": temperature, "min_new": 2, "stop_ids": [0, 1, 99]}
        made = sampler(fields, size=4)
        drawn = [{draw(made, row, position)[0] for position in range(first, 100, 2)} for first in (0, 1)]
        assert drawn[0] | drawn[1] >= {0}
        assert {draw(made, row, position)[0] for position in (0, 1)} <= {2, 3}


# --- log-probabilities ----------------------------------------------------------------------------------------


def test_logprobs_are_those_of_the_raw_logits() -> None:
    numbers = logits(3)
    wanted = torch.log_softmax(numbers.double(), -1)
    made = sampler(
        {"temperature": 2.0, "top_k": 2, "logit_bias": ((9, 50.0),), "repetition_penalty": 5.0, "logprobs": 4},
        {"temperature": 1.0},
        {"logprobs": 0},
    )
    found = made.draw(numbers.clone(), [0, 1, 2], [0, 0, 0])
    assert found.likelihoods is not None
    first, none, last = found.likelihoods
    assert none is None
    for row, one, top in ((0, first, 4), (2, last, 0)):
        assert one is not None
        assert one.token == found.tokens[row]
        assert one.logprob == pytest.approx(float(wanted[row, one.token]), abs=1e-4)
        values, ids = wanted[row].topk(top)
        assert [token for token, _ in one.top] == ids.tolist()
        assert [value for _, value in one.top] == pytest.approx(values.tolist(), abs=1e-4)
    assert made.draw(numbers[[1]], [1], [0]).likelihoods is None


def test_prompts_are_scored_with_their_own_number_of_alternatives() -> None:
    numbers = logits(5)
    wanted = torch.log_softmax(numbers.double(), -1)
    made = sampler({"prompt_logprobs": 2, "logprobs": 7})
    found = made.score(numbers, [4, 3, 2, 1, 0], 0)
    assert [one.token for one in found] == [4, 3, 2, 1, 0]
    assert [len(one.top) for one in found] == [2] * 5
    for row, one in enumerate(found):
        assert one.logprob == pytest.approx(float(wanted[row, one.token]), abs=1e-4)


def test_plain_slots_are_those_that_want_the_likeliest_token_and_nothing_else() -> None:
    other = [
        {"temperature": 1.0}, {"repetition_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.1},
        {"logit_bias": ((1, 1.0),)}, {"min_new": 1, "stop_ids": [1]}, {"logprobs": 0},
    ]  # fmt: skip
    made = sampler({}, {"top_p": 0.5, "top_k": 3, "min_p": 0.1}, *other)
    assert made.plain([0, 1])
    assert not any(made.plain([0, slot]) for slot in range(2, 2 + len(other)))
    made.begin(2, Sampling(), 0, 0)
    assert made.plain([0, 1, 2])
