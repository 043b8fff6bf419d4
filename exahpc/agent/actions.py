"""What the relay asks its caller to do. Performed in order."""

from __future__ import annotations

import msgspec

from exahpc.wire.messages import Answer, Message


class ToPeer(msgspec.Struct, frozen=True):
    """Send to an entry."""

    peer: bytes
    message: Answer


class ToReplica(msgspec.Struct, frozen=True):
    """Send to the head rank of the replica in `slot`."""

    slot: int
    message: Message


class Served(msgspec.Struct, frozen=True, gc=False):
    """How a row was answered. started: the replica got it; first_token: it drew one; both on the caller's clock;
    cached_tokens: of the prompt, not computed anew; token_ids: of the first choice as drawn, u32."""

    slot: int
    started: float
    first_token: float
    cached_tokens: int
    token_ids: bytes
    incarnation: int = 0


class RowEnded(msgspec.Struct, frozen=True):
    """A batch row has its answer: an HTTP status, and the whole JSON body (an error object unless 200)."""

    key: str
    status: int
    body: bytes
    prompt_tokens: int
    completion_tokens: int
    served: Served | None = None


class RowLost(msgspec.Struct, frozen=True):
    """A batch row was interrupted and has to run again. own_exit: its replica failed by itself under it."""

    key: str
    own_exit: bool


Action = ToPeer | ToReplica | RowEnded | RowLost


def replicas_first(actions: list[Action]) -> list[Action]:
    """Sending to a peer may show that it is gone, and free sequences: they must have been admitted by then."""
    if len(actions) < 2:
        return actions
    first = [action for action in actions if isinstance(action, ToReplica)]
    if not first or len(first) == len(actions):
        return actions
    return first + [action for action in actions if not isinstance(action, ToReplica)]
