"""A request of /v1/chat/completions or /v1/completions as frozen values. `reading` makes them of bodies.

They stand alone because mypyc does not compile msgspec's classes, and the modules that make them are worth it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from exahpc.wire.messages import Sampling

Role = Literal["system", "user", "assistant", "tool"]


class Message(msgspec.Struct, frozen=True):
    """One message. extra: (name, text) of further fields for the template."""

    role: Role
    content: str
    extra: tuple[tuple[str, str], ...] = ()

    def for_template(self) -> dict[str, str]:
        return {"role": self.role, "content": self.content, **dict(self.extra)}


class Request(msgspec.Struct, frozen=True):
    """One request. Exactly one of `messages` (chat) and `prompts` (completion: texts or token ids) is non-empty.

    max_tokens: None when the body names none, 0 only with `echo`. sampling: how tokens are drawn, and which
    log-probabilities the answer or the choice among `best_of` needs. seed: None when the body names none.
    n: choices shown for each prompt, the best of `best_of` that are made. logprobs: alternatives beside each
    token in the answer, None for no log-probabilities. echo: the prompt is part of the answer.
    template_options: extra variables for the chat template.
    """

    model: str
    messages: tuple[Message, ...]
    prompts: tuple[str | tuple[int, ...], ...]
    max_tokens: int | None
    sampling: Sampling
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    seed: int | None
    n: int
    best_of: int
    logprobs: int | None
    echo: bool
    stream: bool
    include_usage: bool
    ignore_eos: bool
    template_options: dict[str, Any]

    @property
    def choices(self) -> int:
        """Sequences that are made."""
        return self.best_of * max(1, len(self.prompts))

    @property
    def rated(self) -> bool:
        """Whether the log-probabilities of the drawn tokens are needed."""
        return self.sampling.logprobs >= 0
