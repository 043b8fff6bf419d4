"""Reads bodies of /v1/chat/completions and /v1/completions, and validates all of them.

What is supported, ignored and refused, and why, stands in docs/reference/api.md.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Annotated, Any

import msgspec

from exahpc.errors import RequestError
from exahpc.openai.body import Kind, load, printable
from exahpc.openai.fields import Fields, refuse
from exahpc.openai.messages import read_messages
from exahpc.openai.models import version_name
from exahpc.openai.request import Request
from exahpc.openai.sampling import read_logprobs, read_sampling, read_stop_tokens
from exahpc.openai.unsupported import KNOWN, refuse_unsupported

STOPS = 4
"""Most stop strings of one request (OpenAI's limit)."""
STOP_LENGTH = 1000
"""Longest stop string, in characters: each token is compared with all of them."""


def read_request(
    kind: Kind, body: bytes, served: str, most_choices: int, version: str = "", vocabulary: int | None = None
) -> Request:
    """Validate `body` for the model named `served`, at a version. vocabulary: ids of prompts are below it.

    Raises RequestError: 400, or 404 for another model or version.
    """
    fields = Fields(load(body))
    model = _model(fields, served, version)
    fields.misspelt(KNOWN[kind])
    refuse_unsupported(fields, kind)
    stream = fields.boolean("stream")
    n = fields.integer("n", 1, most_choices) or 1
    best_of = _best_of(fields, n, most_choices, stream)
    prompts = () if kind == "chat" else _prompts(fields.get("prompt"), vocabulary)
    if len(prompts) * best_of > most_choices:
        made = f"best_of={best_of}" if best_of > n else f"n={n}"
        refuse(
            "prompt",
            f"{len(prompts)} prompts with {made} are more than {most_choices} choices: send fewer at once",
        )
    echo = kind == "completion" and fields.boolean("echo")
    logprobs = read_logprobs(fields, kind)
    return Request(
        model=model,
        messages=read_messages(fields.get("messages")) if kind == "chat" else (),
        prompts=prompts,
        max_tokens=_max_tokens(fields, kind, echo),
        sampling=read_sampling(fields, logprobs, echo=echo, ranked=best_of > n),
        stop=_stop(fields.get("stop")),
        stop_token_ids=read_stop_tokens(fields),
        seed=fields.integer("seed", -(2**63), 2**63 - 1),
        n=n,
        best_of=best_of,
        logprobs=logprobs,
        echo=echo,
        stream=stream,
        include_usage=_include_usage(fields, stream),
        ignore_eos=fields.boolean("ignore_eos"),
        template_options=fields.mapping("chat_template_kwargs"),
    )


def _best_of(fields: Fields, n: int, most: int, stream: bool) -> int:
    best_of = fields.integer("best_of", 1, most) or n
    if best_of < n:
        refuse("best_of", f"{best_of} is less than n={n}: make at least as many as are asked for")
    if best_of > n and stream:
        refuse(
            "best_of", f"{best_of} with stream: which are the best is known at the end only: set stream to false"
        )
    return best_of


def _model(fields: Fields, served: str, version: str) -> str:
    model = fields.get("model")
    if model is None:
        refuse("model", f"missing: name the model, here {served!r}")
    if not isinstance(model, str):
        refuse("model", f"{printable(model)} is no string: name the model, here {served!r}")
    if model != served and model != version_name(served, version):
        message = f"model: {printable(model)} is not served here: ask for {served!r}"
        raise RequestError(message, status=404, param="model", code="model_not_found")
    return model


def _max_tokens(fields: Fields, kind: Kind, echo: bool) -> int | None:
    old = fields.integer("max_tokens", 0 if echo else 1)
    new = fields.integer("max_completion_tokens", 1) if kind == "chat" else None
    return new if new is not None else old


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list):
        refuse("stop", f"{printable(value)} is neither a string nor a list of strings")
    if len(found) > STOPS:
        refuse("stop", f"{len(found)} stop strings are more than {STOPS}: give fewer")
    for i, text in enumerate(found):
        if not isinstance(text, str):
            refuse("stop", f"item {i} is {printable(text)}: give strings only")
        if not text:
            refuse("stop", f"item {i} is empty: leave it out")
        if len(text) > STOP_LENGTH:
            refuse("stop", f"item {i} has {len(text)} characters, more than {STOP_LENGTH}: give a shorter one")
    return tuple(found)


@functools.lru_cache(8)
def _ids(below: int | None) -> Any:
    """The type of a prompt of token ids. The bound is in it, so that thousands of ids are looked at once."""
    return tuple[Annotated[int, msgspec.Meta(ge=0, lt=below)], ...]


def _prompts(value: object, below: int | None) -> tuple[str | tuple[int, ...], ...]:
    """Texts or token ids; one prompt, or a list of them."""
    if value is None:
        refuse("prompt", "missing: give a string, a list of token ids, or a list of these")
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        refuse("prompt", f"{printable(value)} is neither a string nor a list")
    if not value:
        refuse("prompt", "an empty list: give at least one prompt")
    if type(value[0]) is int:  # there may be thousands: no loop of our own
        with contextlib.suppress(msgspec.ValidationError):
            return (msgspec.convert(value, _ids(below)),)
    if set(map(type, value)) <= {int, bool}:
        value = [value]
    return tuple(
        _prompt(item, f"prompt[{i}]" if len(value) > 1 else "prompt", below) for i, item in enumerate(value)
    )


def _prompt(value: object, where: str, below: int | None) -> str | tuple[int, ...]:
    if isinstance(value, str):
        if not value:
            refuse(where, "empty: give at least one token to go on from")
        return value
    if not isinstance(value, list):
        refuse(where, f"{printable(value)} is neither a string nor a list of token ids")
    if not value:
        refuse(where, "empty: give at least one token to go on from")
    try:
        found: tuple[int, ...] = msgspec.convert(value, _ids(below))
        return found
    except msgspec.ValidationError:
        wrong = next(((i, t) for i, t in enumerate(value) if type(t) is not int or t < 0), None)
        if wrong is None:
            refuse(where, f"token id {max(value)} is outside the vocabulary: give ids below {below}")
        i, token = wrong
        refuse(where, f"item {i} is {printable(token)}: give token ids (integers from 0) only")


def _include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.mapping("stream_options")
    if options and not stream:
        refuse("stream_options", 'given without "stream": true: leave it out, or stream')
    include = options.get("include_usage", False)
    if not isinstance(include, bool | None):
        refuse("stream_options.include_usage", f"{printable(include)} is no boolean: give true or false")
    return bool(include)
