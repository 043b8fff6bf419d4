"""Drawing the next tokens, all rows of a step at once.

What is done to the logits of a row, in this order (vLLM's): stop tokens masked before `min_new`, logit_bias,
penalties, greedy choice at temperature 0; else temperature, min_p, top_k, top_p, and the inverse of the cumulated
probabilities at a random number that is a function of (seed, stream, position) alone (`philox`). So a sequence
goes on alike on any replica, in any batch and after it was moved. Log-probabilities are those of the raw logits,
before any of this (as OpenAI and vLLM have it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from exahpc.replica.engine import choosing
from exahpc.replica.engine.penalties import Penalties
from exahpc.replica.engine.philox import uniform
from exahpc.wire.messages import Likelihood, Sampling

Ints = NDArray[np.int64]
_AHEAD = 64
"""Random numbers of a sequence that are made together: a handful of array operations costs as much as one."""
_WORD = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Drawn:
    """tokens: int32 [rows], -1 where the logits hold no number; likelihoods: of the rows that want them, else
    None; None for all when no row does."""

    tokens: NDArray[np.int32]
    likelihoods: list[Likelihood | None] | None = None


class Sampler:
    """Parameters and histories of the sequences in `slots` slots, as arrays; `begin` before a slot is used."""

    def __init__(self, slots: int, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._plain = np.ones(slots, bool)  # greedy and nothing else
        self._temperature = np.zeros(slots, np.float32)
        self._top_p = np.ones(slots)
        self._min_p = np.zeros(slots, np.float32)
        self._top_k = np.zeros(slots, np.int64)
        self._min_new = np.zeros(slots, np.int64)
        self._tops = np.full(slots, -1)
        self._prompt_tops = np.full(slots, -1)
        self._seed = np.zeros(slots, np.uint64)
        self._stream = np.zeros(slots, np.uint64)
        self._stops: list[Ints] = [np.zeros(0, np.int64)] * slots
        self._biased = np.zeros(slots, bool)
        self._bias: list[tuple[Ints, NDArray[np.float32]]] = [(self._stops[0], np.zeros(0, np.float32))] * slots
        self._chances = np.zeros((slots, _AHEAD))  # of positions block * _AHEAD and on
        self._block = np.full(slots, -1)
        self._penalties = Penalties(slots)

    def begin(
        self,
        slot: int,
        sampling: Sampling,
        seed: int,
        stream: int,
        stop_ids: Sequence[int] = (),
        ids: Sequence[int] = (),
        prompt: int = 0,
    ) -> None:
        """A sequence takes `slot`. ids: its tokens so far, of which the first `prompt` are not generated ones;
        only `Sampling.looks_back` needs them."""
        s = sampling
        inside = [token for token in stop_ids if 0 <= token < self._vocabulary]
        self._plain[slot] = (
            s.temperature == 0.0 and s.logprobs < 0 and not s.looks_back and not s.logit_bias and not s.min_new
        )
        self._temperature[slot], self._top_p[slot], self._min_p[slot] = s.temperature, s.top_p, s.min_p
        self._top_k[slot], self._min_new[slot] = s.top_k, s.min_new if inside else 0
        self._tops[slot], self._prompt_tops[slot] = s.logprobs, s.prompt_logprobs
        self._seed[slot], self._stream[slot], self._block[slot] = seed & _WORD, stream & _WORD, -1
        self._stops[slot] = np.array(inside, np.int64)
        self._biased[slot] = bool(s.logit_bias)
        if s.logit_bias:
            bias = [(token, value) for token, value in s.logit_bias if 0 <= token < self._vocabulary]
            self._bias[slot] = np.array([t for t, _ in bias], np.int64), np.array([v for _, v in bias], np.float32)
        self._penalties.begin(slot, s, ids, prompt)

    def plain(self, slots: Sequence[int] | Ints) -> bool:
        """Whether the likeliest tokens are all that these slots want."""
        return bool(self._plain[slots].all())

    @torch.inference_mode()
    def draw(self, logits: torch.Tensor, slots: ArrayLike, positions: ArrayLike) -> Drawn:
        """One token a row: logits [rows, vocabulary] float32 (overwritten), with the slot of each and the number
        of tokens generated before."""
        slots, positions = np.asarray(slots, np.int64), np.asarray(positions, np.int64)
        if self.plain(slots):
            return Drawn(choosing.best(logits))
        tops = self._tops[slots]
        rated = np.flatnonzero(tops >= 0)
        raw = logits[torch.from_numpy(rated)] if rated.size else None
        self._mask(logits, slots, positions)
        self._add_bias(logits, slots)
        self._penalties.apply(logits, slots)
        tokens = choosing.best(logits)
        random = np.flatnonzero((self._temperature[slots] > 0) & (tokens >= 0))
        if random.size:
            some = logits if random.size == len(slots) else logits[torch.from_numpy(random)]
            tokens[random] = self._random(some, slots[random], positions[random])
        self._penalties.remember(slots, tokens)
        if raw is None:
            return Drawn(tokens)
        found: list[Likelihood | None] = [None] * len(slots)
        for row, one in zip(rated.tolist(), likelihoods(raw, tokens[rated], tops[rated]), strict=True):
            found[row] = one
        return Drawn(tokens, found)

    @torch.inference_mode()
    def score(self, logits: torch.Tensor, targets: ArrayLike, slot: int) -> list[Likelihood]:
        """How likely `targets` [n], tokens of the prompt in `slot`, were after what came before each of them:
        logits [n, vocabulary] float32."""
        wanted = np.asarray(targets, np.int64)
        found = likelihoods(logits, wanted, np.full(len(wanted), max(0, int(self._prompt_tops[slot]))))
        return [one for one in found if one is not None]

    # --- inside ---------------------------------------------------------------------------------------------

    def _mask(self, logits: torch.Tensor, slots: Ints, positions: Ints) -> None:
        rows = np.flatnonzero(positions < self._min_new[slots])
        if rows.size:
            stops = [self._stops[slot] for slot in slots[rows]]
            logits[_places(rows, stops)] = -torch.inf

    def _add_bias(self, logits: torch.Tensor, slots: Ints) -> None:
        rows = np.flatnonzero(self._biased[slots])
        if rows.size:
            bias = [self._bias[slot] for slot in slots[rows]]
            values = torch.from_numpy(np.concatenate([value for _, value in bias])).to(logits.device)
            logits.index_put_(_places(rows, [ids for ids, _ in bias]), values, accumulate=True)

    def _random(self, logits: torch.Tensor, slots: Ints, positions: Ints) -> NDArray[np.int32]:
        """Rows at temperatures above 0: logits [rows, vocabulary] -> tokens [rows]."""

        def column(values: NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(values[:, None]).to(logits.device)

        weights = torch.softmax(logits / column(self._temperature[slots]), -1)
        min_p = self._min_p[slots]
        if min_p.any():
            weights *= weights >= column(min_p) * weights.amax(-1, keepdim=True)
        chance = column(self._chance(slots, positions))
        top_k, top_p = self._top_k[slots], self._top_p[slots]
        narrow = np.flatnonzero((top_k > 0) | (top_p < 1.0))
        if not narrow.size:
            tokens = choosing.anywhere(weights, chance)
        elif narrow.size == len(slots):
            tokens = choosing.among(weights, chance, column(top_k), column(top_p))
        else:
            some = torch.from_numpy(narrow)
            tokens = choosing.anywhere(weights, chance)
            limits = column(top_k[narrow]), column(top_p[narrow])
            tokens[some] = choosing.among(weights[some], chance[some], *limits)
        return tokens.cpu().numpy().astype(np.int32)

    def _chance(self, slots: Ints, positions: Ints) -> NDArray[np.float64]:
        blocks, places = np.divmod(positions, _AHEAD)
        stale = self._block[slots] != blocks
        if stale.any():
            old, block = slots[stale], blocks[stale]
            counters = (block[:, None] * _AHEAD + np.arange(_AHEAD)).astype(np.uint64)
            self._chances[old] = uniform(self._seed[old][:, None], self._stream[old][:, None], counters)
            self._block[old] = block
        return self._chances[slots, places]


def likelihoods(logits: torch.Tensor, tokens: ArrayLike, tops: Ints) -> list[Likelihood | None]:
    """Natural log-probability of tokens [rows] under logits [rows, vocabulary], beside the tops [rows] likeliest
    ones of each row, the best first. None where the token is negative or the logits hold no number."""
    wanted = np.asarray(tokens, np.int64)
    rated = logits.log_softmax(-1)
    own = rated.gather(1, torch.from_numpy(np.maximum(wanted, 0))[:, None].to(logits.device))
    values, ids = rated.topk(min(int(tops.max(initial=0)), logits.shape[1]))
    lists = zip(wanted.tolist(), own[:, 0].tolist(), tops.tolist(), ids.tolist(), values.tolist(), strict=True)
    return [
        Likelihood(token, value, list(zip(some[:top], their[:top], strict=True))) if token >= 0 else None
        for token, value, top, some, their in lists
    ]


def _places(rows: Ints, ids: list[Ints]) -> tuple[torch.Tensor, torch.Tensor]:
    """Index of all these ids, each list of them in its row."""
    counts = [len(some) for some in ids]
    return torch.from_numpy(np.repeat(rows, counts)), torch.from_numpy(np.concatenate(ids))
