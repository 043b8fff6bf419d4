"""One admitted sequence as the scheduler sees it. Pure."""

from __future__ import annotations

from exahpc.replica.blocks import BLOCK, ROOT, chain
from exahpc.replica.plan import Begin, Row
from exahpc.wire.messages import Admit


class Sequence:
    """A sequence waits (slot -1) or runs (it has a slot and the blocks of its cached tokens).

    key: who goes first, see `batching`; ids: prompt and generated tokens; cached: how many of them are in the KV
    cache, or will be by the plans already made; blocks: its table, of which the workers do not know the last
    `untold`; begun: they know of the sequence; awaited: a plan in flight brings its next token; sound: tokens
    whose numbers proved finite; scored: prompt tokens before which likelihoods need not be asked for again;
    turn: the plan in which it ran last; found: tokens of its prompt that were in the KV cache already.
    """

    __slots__ = (
        "awaited", "begun", "blocks", "cached", "dead", "found", "generated", "ids", "key", "keys", "message",
        "prompt", "scored", "slot", "sound", "stop", "turn", "untold",
    )  # fmt: skip

    def __init__(self, message: Admit, key: tuple[int, int]) -> None:
        self.message, self.key = message, key
        self.ids = list(message.ids)
        self.prompt = len(message.ids) - message.position
        self.stop = frozenset(message.stop_ids)
        self.keys = [ROOT]
        self.generated = self.scored = self.turn = self.found = 0
        self.awaited = self.dead = False
        self.slot = -1
        self.park()

    def park(self) -> None:
        """It runs no more and has no blocks."""
        self.slot = -1
        self.cached = self.sound = self.untold = 0
        if not self.generated:
            self.found = 0
        self.blocks: list[int] = []
        self.begun = False

    @property
    def left(self) -> int:
        """Tokens to compute before the next can be drawn; 1: it decodes."""
        return len(self.ids) - self.cached

    @property
    def scores(self) -> bool:
        """Likelihoods of prompt tokens are still wanted, so these must be computed even if they are cached."""
        return self.message.sampling.prompt_logprobs >= 0 and self.scored < self.prompt

    def block_key(self, index: int) -> bytes:
        """Key of its full block `index`; -1: what comes before the first."""
        while len(self.keys) < index + 2:
            start = (len(self.keys) - 1) * BLOCK
            self.keys.append(chain(self.keys[-1], self.ids[start : start + BLOCK]))
        return self.keys[index + 1]

    def cut(self, most: int) -> int:
        """How many of at most `most` further tokens to compute in one row.

        A part ends with a block, so that others can share it, and where scoring ends or goes on. Zero when that
        leaves nothing; never with `most` >= BLOCK.
        """
        end = min(len(self.ids), self.cached + most)
        if self.message.sampling.prompt_logprobs >= 0:
            edges = [edge for edge in (self.scored, self.prompt) if self.cached < edge <= end]
            if edges:
                return min(edges) - self.cached
        if end < len(self.ids):
            end = end // BLOCK * BLOCK
        return max(0, end - self.cached)

    def row(self, count: int) -> Row:
        """Its next `count` tokens; they count as cached from now on."""
        past, end = self.cached, self.cached + count
        score = self.scores and past >= self.scored
        if score:
            self.scored = end
        self.cached = end
        self.awaited = end == len(self.ids)
        return Row(
            self.slot,
            past,
            self.ids[past:end],
            self.awaited,
            self.message.position + self.generated if self.awaited else 0,
            score,
            self.ids[end] if score and end < self.prompt else -1,
        )

    def begin(self) -> Begin:
        """What workers must know before its first row."""
        self.begun = True
        sampling = self.message.sampling
        counted = sampling.looks_back
        return Begin(
            self.slot,
            sampling,
            self.message.seed & (2**64 - 1),
            self.message.stream,
            self.message.stop_ids,
            list(self.ids) if counted else [],
            self.prompt if counted else 0,
        )

    def tell(self) -> tuple[int, list[int]]:
        """The blocks that workers do not know yet."""
        more = self.blocks[len(self.blocks) - self.untold :]
        self.untold = 0
        return self.slot, more
