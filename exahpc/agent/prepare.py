"""From a request body to prompts of token ids with their limits. Pure; every refusal is a RequestError."""

from __future__ import annotations

from exahpc.agent.prepared import Prepared, Prompt
from exahpc.agent.tokenizer import Tokenizer
from exahpc.deployment.spec import Deployment
from exahpc.errors import RequestError
from exahpc.openai.body import Kind
from exahpc.openai.reading import read_request
from exahpc.openai.request import Request
from exahpc.wire.messages import ReplicaHello


def prepare(
    kind: Kind,
    body: bytes,
    created: int,
    hello: ReplicaHello,
    deployment: Deployment,
    tokenizer: Tokenizer,
    version: str = "",
) -> Prepared:
    """Validate, apply the chat template, tokenize, and hold the lengths against what the replica can take.

    created: Unix seconds, for templates that print the date; version: label of `deployment`.
    """
    context = min(deployment.model.context, hello.context)
    served, vocabulary = deployment.served_name, tokenizer.vocabulary
    request = read_request(kind, body, served, deployment.limits.requests, version, vocabulary)
    _check_tokens(request, vocabulary)
    if kind == "chat":
        named = [("messages", _chat_ids(request, created, context, tokenizer))]
    else:
        several = len(request.prompts) > 1
        named = [
            (where, _prompt_ids(prompt, where, context, tokenizer))
            for i, prompt in enumerate(request.prompts)
            for where in [f"prompt[{i}]" if several else "prompt"]
        ]
    default = deployment.limits.max_tokens_default
    prompts = [_fit(ids, where, request.max_tokens, default, context) for where, ids in named]
    for prompt in prompts:
        _check_memory(prompt, hello.tokens)
        _check_least(request, prompt)
    if request.echo:
        prompts = [
            Prompt(prompt.ids, prompt.new, given if isinstance(given, str) else tokenizer.text(given))
            for given, prompt in zip(request.prompts, prompts, strict=True)
        ]
    return Prepared(request, prompts)


def _chat_ids(request: Request, created: int, context: int, tokenizer: Tokenizer) -> list[int]:
    if tokenizer.template is None:
        raise RequestError(
            "messages: this model has no chat template: send the finished prompt to /v1/completions",
            param="messages",
        )
    text = tokenizer.template.render(request.messages, created, request.template_options)
    _refuse_hopeless(text, "messages", context, tokenizer)
    return tokenizer.encode(text, special=False)


def _prompt_ids(prompt: str | tuple[int, ...], where: str, context: int, tokenizer: Tokenizer) -> list[int]:
    if isinstance(prompt, str):
        _refuse_hopeless(prompt, where, context, tokenizer)
        return tokenizer.encode(prompt, special=True)
    return list(prompt)


def _refuse_hopeless(text: str, where: str, context: int, tokenizer: Tokenizer) -> None:
    """A text far beyond the context would hold up everyone while it is tokenized: a bound is enough."""
    if tokenizer.longest_token is not None:
        least = len(text.encode()) // tokenizer.longest_token
        if least > context:
            raise _too_long(where, f"at least {least}", context, 1)


def _too_long(where: str, tokens: str, context: int, least: int) -> RequestError:
    """least: tokens that must remain for an answer, 0 or 1."""
    trouble = "leave no room for an answer in" if least else "exceed"
    return RequestError(
        f"{where}: {tokens} tokens {trouble} this model's context of {context} tokens: "
        f"shorten it to at most {context - least}",
        param=where,
        code="context_length_exceeded",
    )


def _fit(ids: list[int], where: str, wanted: int | None, default: int, context: int) -> Prompt:
    """Explicit max_tokens that cannot be kept are refused, as OpenAI does; the default shrinks to what is left."""
    if not ids:
        raise RequestError(f"{where}: no tokens: give at least one to go on from", param=where)
    left = context - len(ids)
    least = 0 if wanted == 0 else 1  # a prompt that is only asked about may fill the context
    if left < least:
        raise _too_long(where, str(len(ids)), context, least)
    if wanted is not None and wanted > left:
        raise RequestError(
            f"max_tokens: {wanted} new tokens after {len(ids)} of the prompt exceed this model's context of "
            f"{context} tokens: ask for at most {left}, or shorten the prompt",
            param="max_tokens",
            code="context_length_exceeded",
        )
    return Prompt(ids, min(default, left) if wanted is None else wanted)


def _check_memory(prompt: Prompt, tokens: int) -> None:
    length = len(prompt.ids)
    if length + prompt.new > tokens:
        raise RequestError(
            f"max_tokens: {length} tokens of the prompt and {prompt.new} new ones exceed the {tokens} that this "
            "replica's KV cache holds: ask for fewer, or shorten the prompt",
            param="max_tokens",
            code="context_length_exceeded",
        )


def _check_least(request: Request, prompt: Prompt) -> None:
    least = request.sampling.min_new
    if least > prompt.new:
        raise RequestError(
            f"min_tokens: {least} is more than this answer's {prompt.new} tokens: lower it, or raise max_tokens",
            param="min_tokens",
        )


def _check_tokens(request: Request, vocabulary: int) -> None:
    bias = request.sampling.logit_bias
    if not bias and not request.stop_token_ids:
        return
    named = {"logit_bias": [token for token, _ in bias], "stop_token_ids": request.stop_token_ids}
    for param, tokens in named.items():
        if max(tokens, default=0) >= vocabulary:
            raise RequestError(
                f"{param}: token id {max(tokens)} is outside the vocabulary: give ids below {vocabulary}",
                param=param,
            )
