"""Typed request bodies: what most rows are, checked while they are decoded. Pure.

Each type accepts a part of what `openai.reading` accepts, and nothing else: a body that fits can be run, one that
does not is read again by `openai.reading`, which knows everything and tells what is wrong. So a row of a usual
form costs one or two microseconds, any other some tens.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from exahpc.batch.plan import KINDS
from exahpc.openai.body import Kind
from exahpc.openai.reading import STOP_LENGTH, STOPS

_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Stop = Annotated[str, Meta(min_length=1, max_length=STOP_LENGTH)]


class Part(msgspec.Struct, forbid_unknown_fields=True, gc=False, tag_field="type", tag="text"):
    """A part of a message's content."""

    text: str


class Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part]
    name: str | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    max_tokens: _Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.1, le=10)] | None = None
    seed: _Seed | None = None
    n: Literal[1] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=STOPS)] | None = None
    ignore_eos: bool | None = None
    user: Any = None


class ChatBody(_Body, forbid_unknown_fields=True, gc=False, kw_only=True):
    """Of /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: _Count | None = None

    @property
    def limit(self) -> int | None:
        """Most new tokens."""
        return self.max_completion_tokens or self.max_tokens


class CompletionBody(_Body, forbid_unknown_fields=True, gc=False, kw_only=True):
    """Of /v1/completions, with one prompt."""

    prompt: (
        Annotated[str, Meta(min_length=1)]
        | Annotated[list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(min_length=1)]
    )

    @property
    def limit(self) -> int | None:
        """Most new tokens."""
        return self.max_tokens


class _Line(msgspec.Struct, gc=False, kw_only=True):
    custom_id: str
    method: Literal["POST"]


def line_type(model: str | None) -> Any:
    """The type of batch lines (a union by their `url`) whose model is `model`, any if None."""
    name: Any = str | None if model is None else Literal[model]
    fields = [("model", name, None)] if model is None else [("model", name)]
    settings: dict[str, Any] = {"forbid_unknown_fields": True, "gc": False, "kw_only": True}
    chat = msgspec.defstruct("Chat", fields, bases=(ChatBody,), **settings)
    completion = msgspec.defstruct("Completion", fields, bases=(CompletionBody,), **settings)

    def line(kind: Kind, url: str, body: Any) -> Any:
        return msgspec.defstruct(
            f"{kind}_line",
            [("kind", ClassVar[int]), ("body", body)],
            bases=(_Line,),
            namespace={"kind": KINDS.index(kind)},
            tag_field="url",
            tag=url,
            gc=False,
            kw_only=True,
        )

    return line("chat", URLS_OF["chat"], chat) | line("completion", URLS_OF["completion"], completion)


URLS_OF: dict[Kind, str] = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
