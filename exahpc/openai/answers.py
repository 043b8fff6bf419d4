"""Response bodies and server-sent events as bytes, made from templates that are filled once for each request.

The path of a token: one JSON string between two constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from exahpc.openai.body import Kind, literal

Finish = Literal["stop", "length"]

DONE = b"data: [DONE]\n\n"
NO_LOGPROBS = b"null"


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    """The usage object."""
    total = prompt_tokens + completion_tokens
    return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
        prompt_tokens,
        completion_tokens,
        total,
    )


class EventFormat:
    """Server-sent events of one request.

    created: Unix seconds; include_usage: a last chunk carries the usage, and every other one a null.
    """

    __slots__ = ("_after", "_between", "_chat", "_end", "_first", "_head", "_usage_head")

    def __init__(self, kind: Kind, request: str, created: int, model: str, *, include_usage: bool) -> None:
        self._chat = kind == "chat"
        opening = b'data: {"id":%b,"object":%b,"created":%d,"model":%b,"choices":[' % (
            literal(request),
            b'"chat.completion.chunk"' if self._chat else b'"text_completion"',
            created,
            literal(model),
        )
        self._usage_head = opening + b'],"usage":'
        self._head = opening + b'{"index":'
        self._between = b',"delta":{"content":' if self._chat else b',"text":'
        self._first = self._head + b"0" + self._between  # of the only choice, mostly
        close = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"
        logprobs = b',"logprobs":null,"finish_reason":'
        self._after = (b"}" if self._chat else b"") + logprobs + b"null" + close
        self._end = logprobs, close

    def role(self, choice: int) -> bytes:
        """The chunk that begins a chat choice; nothing for a completion."""
        if not self._chat:
            return b""
        delta = b',"delta":{"role":"assistant","content":""'
        return b"%b%d%b%b" % (self._head, choice, delta, self._after)

    def text(self, choice: int, text: str) -> bytes:
        """A chunk of text."""
        start = b"%b%d%b" % (self._head, choice, self._between) if choice else self._first
        return start + literal(text) + self._after

    def rated(self, choice: int, text: str, logprobs: bytes) -> bytes:
        """A chunk of text with the log-probabilities of its tokens (see `logprobs`)."""
        start = (self._head, choice, self._between, literal(text), b"}" if self._chat else b"")
        return b'%b%d%b%b%b,"logprobs":%b,"finish_reason":null%b' % (*start, logprobs, self._end[1])

    def finish(self, choice: int, reason: Finish) -> bytes:
        """The chunk that ends a choice."""
        logprobs, close = self._end
        delta = b',"delta":{}' if self._chat else b',"text":""'
        return b'%b%d%b%b"%b"%b' % (self._head, choice, delta, logprobs, reason.encode(), close)

    def usage(self, prompt_tokens: int, completion_tokens: int) -> bytes:
        """The chunk that carries the usage: no choices."""
        return b"%b%b}\n\n" % (self._usage_head, usage(prompt_tokens, completion_tokens))


def answer(
    kind: Kind,
    request: str,
    created: int,
    model: str,
    choices: Sequence[tuple[str, Finish, bytes]],
    prompt_tokens: int,
    completion_tokens: int,
) -> bytes:
    """Body of a response that does not stream. choices: of each, in order: text, reason and
    log-probabilities (`NO_LOGPROBS` for none)."""
    chat = kind == "chat"
    form = (
        b'{"index":%d,"message":{"role":"assistant","content":%b,"refusal":null},"logprobs":%b,"finish_reason":"%b"}'
        if chat
        else b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":"%b"}'
    )
    return b'{"id":%b,"object":%b,"created":%d,"model":%b,"choices":[%b],"usage":%b}' % (
        literal(request),
        b'"chat.completion"' if chat else b'"text_completion"',
        created,
        literal(model),
        b",".join(
            [
                form % (i, literal(text), logprobs, reason.encode())
                for i, (text, reason, logprobs) in enumerate(choices)
            ]
        ),
        usage(prompt_tokens, completion_tokens),
    )
