"""How tokens are drawn and rated, as the official OpenAI client sees it; likelihoods against Hugging Face."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.live import Live

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]
CHAT: list[Any] = [{"role": "user", "content": "hello"}]


def complete(local: Live, prompt: Any, **fields: Any) -> openai.types.Completion:
    extra = {name: fields.pop(name) for name in list(fields) if name in EXTRA}
    given = {"max_tokens": 24, "temperature": 0, **fields}
    found: openai.types.Completion = local.client().completions.create(
        model="tiny", prompt=prompt, extra_body=extra, **given
    )
    return found


EXTRA = ("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos")


def reference(folder: Path, ids: list[int]) -> list[list[float]]:
    """Hugging Face's log-probabilities, float32: [position][token], of what follows each position."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        found: list[list[float]] = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1).tolist()
    return found


def encode(folder: Path, text: str) -> list[int]:
    from tokenizers import Tokenizer

    found: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return found


@pytest.mark.case("B15")
def test_echo_gives_the_likelihoods_of_hugging_face(local: Live, tiny: Path) -> None:
    """As lm-evaluation-harness asks for them: token ids, one or no new token, one alternative."""
    texts = ["The quick brown fox", "Zwölf Boxkämpfer, " * 20, "x"]
    prompts = [encode(tiny, text) for text in texts]
    for most in (0, 1):
        found = complete(local, prompts, echo=True, max_tokens=most, logprobs=1)
        for text, ids, choice in zip(texts, prompts, sorted(found.choices, key=lambda c: c.index), strict=True):
            assert choice.logprobs is not None
            values, tops = choice.logprobs.token_logprobs, choice.logprobs.top_logprobs
            assert values is not None
            assert tops is not None
            assert len(values) == len(tops) == len(ids) + most
            assert (values[0], tops[0]) == (None, None)
            assert choice.text.startswith(text)
            expected = reference(tiny, ids)
            for place in range(1, len(ids)):
                own = expected[place - 1]
                assert values[place] == pytest.approx(own[ids[place]], abs=1e-3)
                assert max(tops[place].values()) == pytest.approx(max(own), abs=1e-3)
            assert sum(values[1 : len(ids)]) == pytest.approx(
                sum(expected[place - 1][ids[place]] for place in range(1, len(ids))), abs=1e-3 * len(ids)
            )


def test_completions_list_their_tokens_streamed_or_not(local: Live, tiny: Path) -> None:
    plain = complete(local, "rated", logprobs=3, stop=["@@never@@"]).choices[0]
    assert plain.logprobs is not None
    chunks = list(complete(local, "rated", logprobs=3, stop=["@@never@@"], stream=True))
    parts = [c.choices[0] for c in chunks if c.choices[0].logprobs]
    for field in ("tokens", "text_offset", "top_logprobs"):
        assert [x for part in parts for x in getattr(part.logprobs, field)] == getattr(plain.logprobs, field)
    assert "".join(part.text for part in parts) == plain.text == "".join(plain.logprobs.tokens or [])
    values = [x for part in parts for x in part.logprobs.token_logprobs]
    assert values == pytest.approx(plain.logprobs.token_logprobs, abs=1e-4)
    assert plain.logprobs.text_offset == list(range(24))
    ids = encode(tiny, "rated" + plain.text)
    expected = reference(tiny, ids)
    for place, value in enumerate(values):
        assert value == pytest.approx(expected[len("rated") - 1 + place][ids[len("rated") + place]], abs=1e-3)
    assert plain.logprobs.top_logprobs is not None
    assert all(len(top) == 3 for top in plain.logprobs.top_logprobs), "greedy: the drawn one is among them"


def test_chats_list_their_tokens_streamed_or_not(local: Live) -> None:
    fields: dict[str, Any] = {
        "model": "tiny", "messages": CHAT, "max_tokens": 12, "temperature": 1.0, "seed": 4, "logprobs": True,
        "top_logprobs": 2,
    }  # fmt: skip
    plain = local.client().chat.completions.create(**fields).choices[0]
    assert plain.logprobs is not None
    content = plain.logprobs.content
    assert content is not None
    text = [
        token.token for token in content if not token.token.startswith("<|")
    ]  # special ones have a name, no text
    assert "".join(text) == plain.message.content
    assert [len(token.top_logprobs) for token in content] == [2] * 12
    assert all(token.logprob <= token.top_logprobs[0].logprob for token in content)
    chunks = list(local.client().chat.completions.create(**fields, stream=True))
    streamed = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content or []]
    assert [t.token for t in streamed] == [t.token for t in content]
    assert [t.logprob for t in streamed] == pytest.approx([t.logprob for t in content], abs=1e-4)


def test_the_likeliest_of_best_of_come_first(local: Live) -> None:
    fields: dict[str, Any] = {"temperature": 1.0, "seed": 11, "max_tokens": 6, "logprobs": 0}
    every = complete(local, "best", n=5, **fields)
    best = complete(local, "best", n=2, best_of=5, **fields)

    def mean(choice: Any) -> float:
        return math.fsum(choice.logprobs.token_logprobs) / len(choice.logprobs.tokens)

    wanted = sorted(every.choices, key=mean, reverse=True)[:2]
    assert [c.text for c in best.choices] == [c.text for c in wanted]
    assert [c.index for c in best.choices] == [0, 1]
    assert best.usage is not None
    assert best.usage.completion_tokens == 30


def test_penalties_and_bias_change_what_is_drawn(local: Live) -> None:
    plain = complete(local, "aaaa").choices[0].text
    assert len(set(complete(local, "aaaa", presence_penalty=2, frequency_penalty=2).choices[0].text)) > len(
        set(plain)
    )
    assert "a" not in complete(local, "aaaa", repetition_penalty=10).choices[0].text
    first = plain[0]
    token = str(encode_byte(first))
    assert first not in complete(local, "aaaa", logit_bias={token: -100}).choices[0].text
    assert complete(local, "aaaa", logit_bias={str(encode_byte("Q")): 100}).choices[0].text == "Q" * 24


def encode_byte(character: str) -> int:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet()).index(character)


def test_top_k_and_min_p_leave_the_likeliest_only(local: Live) -> None:
    greedy = complete(local, "narrow").choices[0].text
    for fields in ({"top_k": 1}, {"min_p": 1.0}):
        assert complete(local, "narrow", temperature=1.5, seed=3, **fields).choices[0].text == greedy


def test_stop_tokens_end_an_answer_and_min_tokens_hold_them_back(local: Live) -> None:
    plain = complete(local, "ending").choices[0].text
    token = encode_byte(plain[0])
    ended = complete(local, "ending", stop_token_ids=[token]).choices[0]
    assert (ended.text, ended.finish_reason) == ("", "stop")
    later = complete(local, "ending", stop_token_ids=[token], min_tokens=5)
    assert later.usage is not None
    assert later.usage.completion_tokens >= 5
    assert plain[0] not in later.choices[0].text
    ignoring = complete(local, "ending", stop_token_ids=[token], ignore_eos=True).choices[0]
    assert ignoring.text == ""


@pytest.mark.case("B34")
def test_a_seed_draws_the_same_with_every_parameter_on_every_replica(local: Live) -> None:
    fields: dict[str, Any] = {
        "temperature": 0.9, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "presence_penalty": 0.5, "seed": 9,
        "repetition_penalty": 1.1, "logit_bias": {"40": 1.0}, "logprobs": 1,
    }  # fmt: skip
    texts = {complete(local, "seeded", **fields).choices[0].text for _ in range(8)}
    assert len(texts) == 1
