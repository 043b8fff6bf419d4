"""What bounds the plans of a replica, and which sequences can never run within that. Pure."""

from __future__ import annotations

import msgspec

from exahpc.errors import StateError
from exahpc.replica.blocks import BLOCK, blocks_of
from exahpc.wire.messages import Admit

_PER_DECODING = 2
"""With so many prompt tokens beside each decoding one, an iteration takes up to three times as long as without."""


class Limits(msgspec.Struct, frozen=True):
    """What bounds the plans of a replica.

    sequences: slots; blocks: of the KV cache; context: tokens of the longest sequence; budget: tokens of one plan;
    lanes: plans in flight; vocabulary: token ids are below it; chunk: prompt tokens of a plan while online
    sequences decode; far: cached tokens to which a token's attention takes as long as all else for it; fixed:
    tokens that would take as long as what an iteration takes without any; queue: waiting sequences beyond which no
    further is taken in; patience: steps by which online sequences go before batch rows; prefix: share equal
    beginnings.
    """

    sequences: int
    blocks: int
    context: int
    budget: int
    lanes: int
    vocabulary: int
    chunk: int = 100_000
    far: int = 1_000_000
    fixed: int = 0
    queue: int = 100_000
    patience: int = 100_000
    prefix: bool = True

    def __post_init__(self) -> None:
        least = least_budget(self.sequences, self.lanes)
        if self.chunk < BLOCK:
            raise StateError(f"chunk = {self.chunk}: a part of a prompt has {BLOCK} tokens at least")
        if self.budget < least:
            raise StateError(
                f"budget = {self.budget}: every sequence and one block of a prompt need {least} tokens"
            )

    def room(self, decoding: int, hurry: bool, lately: bool = False) -> int:
        """Prompt tokens of a plan beside so many decoding sequences. hurry: some of these are online; lately: only
        rows are there, and an online sequence may come, which waits until the plan is over."""
        room = self.budget - decoding
        if lately:
            return min(room, max(BLOCK, self.chunk // 2))
        return min(room, max(self.chunk, _PER_DECODING * decoding)) if hurry else room

    def weight(self, cached: int, hurry: bool) -> float:
        """What a prompt token after so many cached ones counts for in `room`: time matters if there is a hurry."""
        return 1 + cached / self.far if hurry else 1.0


def least_budget(sequences: int, lanes: int) -> int:
    """Tokens of a plan in which every decoding sequence of a lane and a block of a prompt have room."""
    return -(-sequences // lanes) + BLOCK


def impossible(message: Admit, limits: Limits) -> str:
    """Why this sequence can never run; "" if it can."""
    need = len(message.ids) + message.new - 1  # the last token that is drawn is never computed
    if not message.ids:
        return "no tokens: a sequence needs at least one"
    if not 0 <= message.position < len(message.ids):
        return f"position = {message.position}: of {len(message.ids)} tokens at least one must be prompt"
    if message.new < 1:
        return f"new = {message.new}: a sequence must be allowed to generate at least one token"
    if need > limits.context:
        return f"{len(message.ids)} prompt + {message.new} new tokens exceed the context of {limits.context}"
    if blocks_of(need) > limits.blocks:
        kept = limits.blocks * BLOCK
        return f"{len(message.ids)} prompt + {message.new} new tokens exceed the KV cache of {kept}"
    if min(message.ids) < 0 or max(message.ids) >= limits.vocabulary:
        return f"token ids must lie in 0..{limits.vocabulary - 1}"
    temperature, top_p = message.sampling.temperature, message.sampling.top_p
    if not 0.0 <= temperature < float("inf") or not 0.0 < top_p <= 1.0:
        return f"temperature = {temperature}, top_p = {top_p} are out of range"
    return ""
