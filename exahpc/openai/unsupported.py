"""Fields that are known but not built, and all names that are known at all."""

from __future__ import annotations

from typing import Any

from exahpc.openai.body import Kind
from exahpc.openai.fields import Fields

_LEAVE = "leave it out"
_TEXT = "this endpoint makes plain text; leave it out"
_UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "prompt_logprobs": ((), 'use "echo" with "logprobs" on /v1/completions'),
    "tools": (([],), "tool calls are not parsed; put the tools into the messages, or leave it out"),
    "functions": (([],), "tool calls are not parsed; put the functions into the messages, or leave it out"),
    "tool_choice": (("none", "auto"), "there are no tools; leave it out"),
    "function_call": (("none", "auto"), "there are no functions; leave it out"),
    "response_format": (({"type": "text"},), "answers are not constrained; ask for the format in the prompt"),
    "length_penalty": ((1,), "set it to 1 or leave it out"),
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
    "top_logprobs": ((0,), 'the number of alternatives is the value of "logprobs" here'),
    "suffix": (("",), "the model only goes on from a prompt; leave it out"),
}
_REFUSED: dict[Kind, dict[str, tuple[tuple[Any, ...], str]]] = {
    "chat": _UNSUPPORTED,
    "completion": _UNSUPPORTED | _UNSUPPORTED_COMPLETION,
}
_COMMON = {
    "model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logit_bias", "logprobs", "min_tokens", "stop", "stop_token_ids", "seed", "n", "best_of",
    "stream", "stream_options", "ignore_eos", "user", "service_tier",
}  # fmt: skip
_CHAT = {"messages", "max_completion_tokens", "chat_template_kwargs", "top_logprobs"}
KNOWN: dict[Kind, frozenset[str]] = {
    "chat": frozenset(_COMMON | _CHAT | {*_UNSUPPORTED}),
    "completion": frozenset(_COMMON | {"prompt", "echo", *_UNSUPPORTED, *_UNSUPPORTED_COMPLETION}),
}


def refuse_unsupported(fields: Fields, kind: Kind) -> None:
    """What would change the answer and is not built, unless its value asks for nothing."""
    table = _REFUSED[kind]
    for name in fields.names:
        if name in table:
            fields.neutral(name, *table[name])
