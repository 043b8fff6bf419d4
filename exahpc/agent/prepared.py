"""A request that can run, as frozen values. `prepare` makes them; apart from it because mypyc does not compile
msgspec's classes."""

from __future__ import annotations

import msgspec

from exahpc.openai.request import Request


class Prompt(msgspec.Struct, frozen=True):
    """ids: at least one token; new: most tokens to generate after them, 0 where only the prompt is asked about;
    echo: its text where it is part of the answer."""

    ids: list[int]
    new: int
    echo: str = ""


class Prepared(msgspec.Struct, frozen=True):
    """A request that can run: `request.best_of` choices of each prompt, in this order."""

    request: Request
    prompts: list[Prompt]
