"""Bodies of /v1/chat/completions and /v1/completions as frozen values, fully validated.

What is supported, ignored and refused, and why, stands in docs/reference/api.md.
"""

from __future__ import annotations

from typing import Any

import msgspec

from exahpc.errors import RequestError
from exahpc.openai.body import Kind, load, printable
from exahpc.openai.fields import Fields, refuse
from exahpc.openai.messages import Message, read_messages

STOPS = 4
"""Most stop strings of one request (OpenAI's limit)."""
STOP_LENGTH = 1000
"""Longest stop string, in characters: each token is compared with all of them."""
GREEDY = 1e-5
"""Temperatures below this are greedy: dividing logits by them overflows."""


class Request(msgspec.Struct, frozen=True):
    """One request. Exactly one of `messages` (chat) and `prompts` (completion: texts or token ids) is non-empty.

    max_tokens: None when the body names none. temperature 0: greedy. seed: None when the body names none.
    n: choices for each prompt. template_options: extra variables for the chat template.
    """

    model: str
    messages: tuple[Message, ...]
    prompts: tuple[str | tuple[int, ...], ...]
    max_tokens: int | None
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    seed: int | None
    n: int
    stream: bool
    include_usage: bool
    ignore_eos: bool
    template_options: dict[str, Any]

    @property
    def choices(self) -> int:
        return self.n * max(1, len(self.prompts))


def read_request(kind: Kind, body: bytes, served: str, most_choices: int) -> Request:
    """Validate `body` for the model named `served`. Raises RequestError: 400, or 404 for another model."""
    fields = Fields(load(body))
    model = _model(fields, served)
    fields.misspelt(_KNOWN[kind])
    _refuse_unsupported(fields, kind)
    n = fields.integer("n", 1, most_choices) or 1
    prompts = () if kind == "chat" else _prompts(fields.get("prompt"))
    if len(prompts) * n > most_choices:
        refuse(
            "prompt", f"{len(prompts)} prompts with n={n} are more than {most_choices} choices: send fewer at once"
        )
    best_of = fields.integer("best_of", 1)
    if best_of not in (None, n):
        refuse("best_of", f"{best_of} is not supported: leave it out, or set n", "unsupported_parameter")
    stream = fields.boolean("stream")
    temperature = fields.number("temperature", 0, 2, 1.0)
    return Request(
        model=model,
        messages=read_messages(fields.get("messages")) if kind == "chat" else (),
        prompts=prompts,
        max_tokens=_max_tokens(fields, kind),
        temperature=temperature if temperature >= GREEDY else 0.0,
        top_p=fields.number("top_p", 0, 1, 1.0, open_low=True),
        stop=_stop(fields.get("stop")),
        seed=fields.integer("seed", -(2**63), 2**63 - 1),
        n=n,
        stream=stream,
        include_usage=_include_usage(fields, stream),
        ignore_eos=fields.boolean("ignore_eos"),
        template_options=fields.mapping("chat_template_kwargs"),
    )


def _model(fields: Fields, served: str) -> str:
    model = fields.get("model")
    if model is None:
        refuse("model", f"missing: name the model, here {served!r}")
    if not isinstance(model, str):
        refuse("model", f"{printable(model)} is no string: name the model, here {served!r}")
    if model != served:
        message = f"model: {printable(model)} is not served here: ask for {served!r}"
        raise RequestError(message, status=404, param="model", code="model_not_found")
    return model


def _max_tokens(fields: Fields, kind: Kind) -> int | None:
    old = fields.integer("max_tokens", 1)
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


def _prompts(value: object) -> tuple[str | tuple[int, ...], ...]:
    """Texts or token ids; one prompt, or a list of them."""
    if value is None:
        refuse("prompt", "missing: give a string, a list of token ids, or a list of these")
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        refuse("prompt", f"{printable(value)} is neither a string nor a list")
    if value and all(isinstance(item, int) for item in value):
        value = [value]
    if not value:
        refuse("prompt", "an empty list: give at least one prompt")
    return tuple(_prompt(item, f"prompt[{i}]" if len(value) > 1 else "prompt") for i, item in enumerate(value))


def _prompt(value: object, where: str) -> str | tuple[int, ...]:
    if isinstance(value, str):
        if not value:
            refuse(where, "empty: give at least one token to go on from")
        return value
    if not isinstance(value, list):
        refuse(where, f"{printable(value)} is neither a string nor a list of token ids")
    if not value:
        refuse(where, "empty: give at least one token to go on from")
    for i, token in enumerate(value):
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            refuse(where, f"item {i} is {printable(token)}: give token ids (integers from 0) only")
    return tuple(value)


def _include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.mapping("stream_options")
    if options and not stream:
        refuse("stream_options", 'given without "stream": true: leave it out, or stream')
    include = options.get("include_usage", False)
    if not isinstance(include, bool | None):
        refuse("stream_options.include_usage", f"{printable(include)} is no boolean: give true or false")
    return bool(include)


_LEAVE = "leave it out"
_TEXT = "this endpoint makes plain text; leave it out"
_UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "logprobs": ((False,), "log probabilities are not kept; leave it out"),
    "top_logprobs": ((0,), "log probabilities are not kept; leave it out"),
    "prompt_logprobs": ((0,), "log probabilities are not kept; leave it out"),
    "tools": (([],), "tool calls are not parsed; put the tools into the messages, or leave it out"),
    "functions": (([],), "tool calls are not parsed; put the functions into the messages, or leave it out"),
    "tool_choice": (("none", "auto"), "there are no tools; leave it out"),
    "function_call": (("none", "auto"), "there are no functions; leave it out"),
    "response_format": (({"type": "text"},), "answers are not constrained; ask for the format in the prompt"),
    "logit_bias": (({},), _LEAVE),
    "presence_penalty": ((0,), "set it to 0 or leave it out"),
    "frequency_penalty": ((0,), "set it to 0 or leave it out"),
    "repetition_penalty": ((1,), "set it to 1 or leave it out"),
    "length_penalty": ((1,), "set it to 1 or leave it out"),
    "top_k": ((-1, 0), "use top_p instead"),
    "min_p": ((0,), "use top_p instead"),
    "min_tokens": ((0,), _LEAVE),
    "stop_token_ids": (([],), 'use "stop" with the text of the token'),
    "use_beam_search": ((False,), "use n with a temperature"),
    "modalities": ((["text"],), _TEXT),
    "audio": ((), _TEXT),
    "guided_json": ((), _TEXT),
    "guided_regex": ((), _TEXT),
    "guided_choice": ((), _TEXT),
    "guided_grammar": ((), _TEXT),
    "structured_outputs": ((), _TEXT),
    "web_search_options": ((), _LEAVE),
    "prediction": ((), _LEAVE),
    "chat_template": ((), "the model's own template is used; send the finished prompt to /v1/completions"),
    "add_generation_prompt": ((True,), "send the finished prompt to /v1/completions"),
    "continue_final_message": ((False,), "send the finished prompt to /v1/completions"),
}
_UNSUPPORTED_COMPLETION: dict[str, tuple[tuple[Any, ...], str]] = {
    "echo": ((False,), "put the prompt before the answer yourself"),
    "suffix": (("",), "the model only goes on from a prompt; leave it out"),
}
_COMMON = {
    "model", "max_tokens", "temperature", "top_p", "stop", "seed", "n", "stream", "stream_options", "best_of",
    "ignore_eos", "user",
}  # fmt: skip
_KNOWN: dict[Kind, frozenset[str]] = {
    "chat": frozenset(_COMMON | {"messages", "max_completion_tokens", "chat_template_kwargs", *_UNSUPPORTED}),
    "completion": frozenset(_COMMON | {"prompt", *_UNSUPPORTED, *_UNSUPPORTED_COMPLETION}),
}


def _refuse_unsupported(fields: Fields, kind: Kind) -> None:
    for name, (values, remedy) in _UNSUPPORTED.items():
        fields.neutral(name, values, remedy)
    if kind == "completion":
        for name, (values, remedy) in _UNSUPPORTED_COMPLETION.items():
            fields.neutral(name, values, remedy)
