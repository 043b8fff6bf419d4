"""Penalties on tokens that a sequence holds already: OpenAI's presence and frequency penalties count what was
generated, the repetition penalty (Keskar et al., CTRL, 2019) the prompt too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from exahpc.wire.messages import Sampling

Ints = NDArray[np.int64]


class Penalties:
    """The penalties of each slot, and the tokens that they count; width grows with the longest sequence."""

    def __init__(self, slots: int) -> None:
        self._active = np.zeros(slots, bool)
        self._repetition = np.ones(slots, np.float32)
        self._presence = np.zeros(slots, np.float32)
        self._frequency = np.zeros(slots, np.float32)
        self._ids = np.zeros((slots, 0), np.int32)
        self._length = np.zeros(slots, np.int64)
        self._prompt = np.zeros(slots, np.int64)

    def begin(self, slot: int, sampling: Sampling, ids: Sequence[int], prompt: int) -> None:
        """ids: tokens of the sequence so far, of which the first `prompt` are not generated."""
        self._active[slot] = sampling.looks_back
        if sampling.looks_back:
            self._repetition[slot] = sampling.repetition_penalty
            self._presence[slot] = sampling.presence_penalty
            self._frequency[slot] = sampling.frequency_penalty
            self._grow(len(ids))
            self._ids[slot, : len(ids)] = ids
            self._length[slot], self._prompt[slot] = len(ids), prompt

    def remember(self, slots: Ints, tokens: NDArray[np.int32]) -> None:
        """The tokens that were drawn."""
        more = self._active[slots] & (tokens >= 0)
        if more.any():
            slots = slots[more]
            self._grow(int(self._length[slots].max()) + 1)
            self._ids[slots, self._length[slots]] = tokens[more]
            self._length[slots] += 1

    def apply(self, logits: torch.Tensor, slots: Ints) -> None:
        """Change the logits of every token that a sequence holds.

        A token that occurs several times is written several times, with the same value each time: only the
        frequency penalty adds up.
        """
        rows = np.flatnonzero(self._active[slots])
        if not rows.size:
            return
        slots = slots[rows]
        row, at = np.nonzero(np.arange(int(self._length[slots].max(initial=0))) < self._length[slots][:, None])
        slot = slots[row]
        places = _on(logits, rows[row], self._ids[slot, at].astype(np.int64))
        (repetition,) = _on(logits, self._repetition[slot])
        value = logits[places]
        logits[places] = torch.where(value > 0, value / repetition, value * repetition)
        own = np.flatnonzero(at >= self._prompt[slot])
        if own.size:
            mine = torch.from_numpy(own).to(logits.device)
            places = places[0][mine], places[1][mine]
            frequency, presence = _on(logits, self._frequency[slot[own]], self._presence[slot[own]])
            logits.index_put_(places, -frequency, accumulate=True)
            logits[places] = logits[places] - presence

    def _grow(self, width: int) -> None:
        had = self._ids.shape[1]
        if width > had:
            self._ids = np.pad(self._ids, ((0, 0), (0, max(width, 2 * had) - had)))


def _on(like: torch.Tensor, *arrays: NDArray[np.generic]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(array).to(like.device) for array in arrays)
