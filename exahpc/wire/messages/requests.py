"""Requests and their answers: entry <-> agent."""

from __future__ import annotations

from typing import Literal

import msgspec

from exahpc.wire.messages.base import Message


class Resume(msgspec.Struct, frozen=True, array_like=True):
    """What the client of one choice already has, for a request that is sent again.

    ids: token ids emitted so far; sent: characters of text passed to the client so far; finished: this
    choice ended before (nothing more is generated for it).
    """

    choice: int
    ids: list[int]
    sent: int
    finished: bool = False


class Submit(Message, frozen=True):
    """entry -> agent: run this request on replica `slot`.

    request: the id the client sees ("chatcmpl-..."); kind: which body this is; seed: the random seed, fixed by
    the entry at admission so that a re-send continues the same draw; created: Unix seconds shown to the
    client; resume: empty for a fresh request; first: no byte of a stream was sent yet (a re-sent chat stream
    must not repeat the role chunk); alone: it may be what kills replicas: nothing else runs beside it;
    told: what happens to it is logged.
    """

    request: str
    attempt: int
    slot: int
    incarnation: int
    kind: Literal["chat", "completion"]
    body: bytes
    stream: bool
    seed: int
    created: int
    resume: list[Resume] = []
    first: bool = True
    alone: bool = False
    told: bool = False


class Submits(Message, frozen=True):
    """entry -> agent: requests that came in the same moment, in order. Each stands for itself."""

    submits: list[Submit]


class Cancel(Message, frozen=True):
    """entry -> agent: the client left, or its deadline passed; free the sequences within one step."""

    request: str


# --- requests: agent -> entry ------------------------------------------------------------------------------


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Progress of one choice. The entry keeps ids and sent, and passes `data` on without decoding it.

    index: token ids emitted for this choice before this frame (a gap or overlap means a stale frame);
    sent: characters of text delivered for this choice, this frame's included; data: response bytes to pass on
    (SSE events; empty for a request that does not stream); finished: the choice has ended.
    """

    request: str
    attempt: int
    choice: int
    index: int
    ids: list[int]
    sent: int
    data: bytes
    finished: bool = False


class Frames(Message, frozen=True):
    """agent -> entry: all frames due for this link, in order."""

    frames: list[Frame]


class Done(Message, frozen=True):
    """agent -> entry: the request ended well. data: the last bytes (whole JSON body when not streaming)."""

    request: str
    attempt: int
    data: bytes
    prompt_tokens: int
    completion_tokens: int


class Failed(Message, frozen=True):
    """agent -> entry: this attempt ended badly.

    retry: another replica may succeed (the entry sends it again within its bounds); otherwise the client gets
    `status` and OpenAI's error object. own_exit: the replica died by itself under this request, which makes
    the request suspect.
    """

    request: str
    attempt: int
    status: int
    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | None = None
    retry: bool = False
    own_exit: bool = False


class Busy(Message, frozen=True):
    """agent -> entry: that replica is full or gone; pick again. Nothing was started."""

    request: str
    attempt: int


class Load(msgspec.Struct, frozen=True, array_like=True):
    """What one replica has to do, for all entries together.

    tokens: still to be prefilled or generated, those of batch rows too; sequences: those of requests that run or
    wait; kv: share (0..1) of its KV cache that these hold. Batch rows give way, so neither counts theirs.
    """

    slot: int
    tokens: int
    sequences: int = 0
    kv: float = 0.0


class Room(Message, frozen=True):
    """agent -> entry: load of each serving replica of this task, pushed after Busy, when it changes, and every
    second while there is any. Only entries that have sent something are told."""

    loads: list[Load]


Answer = Frames | Done | Failed | Busy | Room


class Answers(Message, frozen=True):
    """agent -> entry: what was to be said in one moment, in order. Each stands for itself."""

    answers: list[Answer]
