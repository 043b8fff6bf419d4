"""EMULATED: one replica as its agent meets it: sequences in, steps of tokens out, no model behind them. Pure.

`model.Batch` says when; this says what: which token ids, which refusals, what the beats tell. The ids are made up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from exahpc.lab.emulated.model import Batch, Latency
from exahpc.replica.blocks import BLOCK
from exahpc.replica.limits import Limits, impossible, least_budget
from exahpc.wire.messages import Admit, NoRoom, Reason, ReplicaBeat, Tokens

IDS: Sequence[int] = range(49, 58)
"""Token ids of answers, over and over: below 256, so that every vocabulary has them, and in byte-level ones each
is a letter or digit."""
_QUEUE = 8  # sequences that may wait for each that may run, as in a replica


class Engine:
    """kv_tokens: whole blocks; vocabulary: token ids are below it. Times in seconds of one clock."""

    def __init__(
        self, latency: Latency, *, sequences: int, kv_tokens: int, context: int, vocabulary: int = 2**31
    ) -> None:
        self._limits = Limits(
            sequences=sequences,
            blocks=kv_tokens // BLOCK,
            context=context,
            budget=least_budget(sequences, 1),
            lanes=1,
            vocabulary=vocabulary,
            queue=_QUEUE * sequences,
        )
        self._latency = latency
        self._batch = Batch(latency, sequences, kv_tokens)
        self._running: dict[int, _Told] = {}
        self.generated = 0

    @property
    def sequences(self) -> int:
        """Most that run at once."""
        return self._limits.sequences

    @property
    def kv_share(self) -> float:
        """Of the KV cache that running sequences hold."""
        return self._batch.kv / self._batch.kv_tokens

    def admit(self, message: Admit, now: float) -> NoRoom | None:
        """Take a sequence in, or say why not."""
        known = message.sequence in self._running
        reason = f"sequence {message.sequence} runs already" if known else impossible(message, self._limits)
        if reason:
            return NoRoom(message.sequence, reason)
        if self._batch.waiting >= self._limits.queue:
            return NoRoom(message.sequence, f"{self._batch.waiting} sequences wait already", full=True)
        self._running[message.sequence] = _Told(message)
        self._batch.admit(message.sequence, len(message.ids), message.new, now)
        return None

    def abort(self, sequence: int, now: float) -> None:
        """Forget a sequence; an unknown one has ended meanwhile."""
        if self._running.pop(sequence, None) is not None:
            self._batch.abort(sequence, now)

    def drop_all(self, now: float) -> None:
        """Forget all (a new agent took over)."""
        for sequence in list(self._running):
            self.abort(sequence, now)

    def freeze(self, frozen: bool, now: float) -> None:
        """A fake-alive replica: it beats, and yields nothing."""
        self._batch.change(now, frozen=frozen)

    def due(self) -> float:
        """When `advance` has something to tell next; infinite when nothing runs or nothing moves."""
        return self._batch.next_step() if self._running else math.inf

    def advance(self, now: float) -> Tokens | None:
        """The tokens of the steps that ended since the last call, and the sequences that are complete."""
        batch, tokens = self._batch, list[tuple[int, int]]()
        ended: list[tuple[int, Reason]] = []
        batch.advance(now)
        for sequence, told in self._running.items():
            over = sequence not in batch
            count = told.new if over else batch.emitted(sequence)
            for place in range(told.count, count):
                tokens.append((sequence, IDS[(told.first + place) % len(IDS)]))
            told.count = count
            if over:
                ended.append((sequence, "length"))
        for sequence, _ in ended:
            del self._running[sequence]
        self.generated += len(tokens)
        return Tokens(tokens, ended) if tokens or ended else None

    def beat(self) -> ReplicaBeat:
        """What the replica tells once a second."""
        batch = self._batch
        return ReplicaBeat(
            batch.running,
            batch.waiting,
            batch.kv_tokens - batch.kv,
            int(batch.steps),
            self.generated,
        )


class _Told:
    """A sequence that runs or waits. count: tokens told so far; first: place of its first token in IDS."""

    __slots__ = ("count", "first", "new")

    def __init__(self, message: Admit) -> None:
        self.new, self.count = message.new, 0
        self.first = message.position + message.seed % len(IDS)
