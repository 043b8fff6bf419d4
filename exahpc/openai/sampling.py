"""The fields that say how tokens are drawn, with OpenAI's ranges; vLLM's for what OpenAI does not have."""

from __future__ import annotations

from exahpc.openai.body import Kind, printable
from exahpc.openai.fields import Fields, refuse
from exahpc.wire.messages import Sampling

GREEDY = 1e-5
"""Temperatures below this are greedy: dividing logits by them overflows."""
MOST_TOP = 20
"""Most alternatives beside a token (OpenAI's limit for chat)."""
MOST_BIASED = 300
"""Most tokens in logit_bias (OpenAI's limit)."""
MOST_STOP_TOKENS = 64
_NAMES = frozenset((
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "logit_bias", "min_tokens",
))  # fmt: skip
_PLAIN = Sampling(temperature=1.0)


def read_sampling(fields: Fields, logprobs: int | None, *, echo: bool, ranked: bool) -> Sampling:
    """logprobs: as in the answer; echo: those of the prompt too; ranked: needed to choose the best answers."""
    if logprobs is None and not ranked and _NAMES.isdisjoint(fields.names):
        return _PLAIN  # most bodies say nothing about it
    temperature = fields.number("temperature", 0, 2, 1.0)
    top_k = fields.integer("top_k", -1)
    return Sampling(
        temperature=temperature if temperature >= GREEDY else 0.0,
        top_p=fields.number("top_p", 0, 1, 1.0, open_low=True),
        top_k=max(0, top_k or 0),
        min_p=fields.number("min_p", 0, 1, 0.0),
        repetition_penalty=fields.number("repetition_penalty", 0.1, 10, 1.0),
        presence_penalty=fields.number("presence_penalty", -2, 2, 0.0),
        frequency_penalty=fields.number("frequency_penalty", -2, 2, 0.0),
        logit_bias=_logit_bias(fields),
        min_new=fields.integer("min_tokens", 0) or 0,
        logprobs=logprobs if logprobs is not None else 0 if ranked else -1,
        prompt_logprobs=logprobs if logprobs is not None and echo else -1,
    )


def read_logprobs(fields: Fields, kind: Kind) -> int | None:
    """Alternatives beside each token; None for no log-probabilities."""
    if kind == "completion":
        return None if fields.get("logprobs") is False else fields.integer("logprobs", 0, MOST_TOP)
    wanted = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, MOST_TOP)
    if top and not wanted:
        refuse("top_logprobs", f'{top} without "logprobs": true: set it, or leave top_logprobs out')
    return top or 0 if wanted else None


def read_stop_tokens(fields: Fields) -> tuple[int, ...]:
    """stop_token_ids; whether the vocabulary has them is checked later."""
    name = "stop_token_ids"
    value = fields.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        refuse(name, f"{printable(value)} is no list: give token ids, or leave it out")
    if len(value) > MOST_STOP_TOKENS:
        refuse(name, f"{len(value)} tokens are more than {MOST_STOP_TOKENS}: give fewer")
    for i, token in enumerate(value):
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            refuse(name, f"item {i} is {printable(token)}: give token ids (integers from 0) only")
    return tuple(dict.fromkeys(value))


def _logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    name = "logit_bias"
    value = fields.mapping(name)
    if len(value) > MOST_BIASED:
        refuse(name, f"{len(value)} tokens are more than {MOST_BIASED}: give fewer")
    found: dict[int, float] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            refuse(name, f"{printable(key)} is no token id: give ids as strings of digits")
        if not isinstance(bias, int | float) or isinstance(bias, bool) or not -100 <= bias <= 100:
            refuse(name, f"{printable(bias)} for token {int(key)} is no number from -100 to 100: give one")
        found[int(key)] = float(bias)
    return tuple(sorted(found.items()))
