"""Response bytes parse as OpenAI's own client expects, whatever the text is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from exahpc.openai.answers import DONE, NO_LOGPROBS, EventFormat, answer
from exahpc.openai.body import Kind

texts = st.text(st.characters(exclude_categories=[]))


def event(data: bytes) -> Any:
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    assert data.count(b"\n") == 2, "an event is one line, whatever the text"
    return json.loads(data[6:])


def events(kind: Kind, *, include_usage: bool = False) -> EventFormat:
    return EventFormat(kind, 'id"1', 17, "mo\ndel", include_usage=include_usage)


@given(texts)
def test_chunks_carry_any_text_in_one_line(text: str) -> None:
    chat = event(events("chat").text(3, text))
    assert chat["choices"] == [{"index": 3, "delta": {"content": text}, "logprobs": None, "finish_reason": None}]
    completion = event(events("completion").text(3, text))
    assert completion["choices"] == [{"index": 3, "text": text, "logprobs": None, "finish_reason": None}]
    for found, name in ((chat, "chat.completion.chunk"), (completion, "text_completion")):
        assert (found["id"], found["created"], found["model"], found["object"]) == ('id"1', 17, "mo\ndel", name)


@pytest.mark.parametrize("include_usage", [False, True])
def test_openais_client_reads_every_event(include_usage: bool) -> None:
    chat, plain = events("chat", include_usage=include_usage), events("completion", include_usage=include_usage)
    made = [chat.role(0), chat.text(0, "x"), chat.finish(0, "length"), chat.usage(3, 4)]
    chunks = [ChatCompletionChunk.model_validate(event(data), strict=True) for data in made]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[2].choices[0].finish_reason == "length"
    assert chunks[2].choices[0].delta.content is None
    assert chunks[3].usage is not None
    assert (chunks[3].usage.total_tokens, chunks[3].choices) == (7, [])
    assert plain.role(0) == b""
    for data in (plain.finish(1, "stop"), plain.usage(3, 4)):  # (its type knows no null reason, its parser does)
        Completion.model_validate(event(data))
    assert event(plain.finish(1, "stop"))["choices"][0]["finish_reason"] == "stop"
    assert ("usage" in event(chat.text(0, "x"))) == include_usage
    assert DONE == b"data: [DONE]\n\n"


@given(
    st.lists(st.tuples(texts, st.sampled_from(["stop", "length"]), st.just(NO_LOGPROBS)), min_size=1, max_size=3)
)
def test_whole_answers_hold_all_choices_in_order(choices: list[tuple[str, Any, bytes]]) -> None:
    chat = json.loads(answer("chat", "i", 1, "m", choices, 5, 6))
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in chat["choices"]] == [
        (i, text, reason) for i, (text, reason, _) in enumerate(choices)
    ]
    plain = json.loads(answer("completion", "i", 1, "m", choices, 5, 6))
    assert [(c["text"], c["finish_reason"]) for c in plain["choices"]] == [choice[:2] for choice in choices]
    assert plain["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


def test_openais_client_reads_whole_answers() -> None:
    found = ChatCompletion.model_validate(
        json.loads(answer("chat", "i", 1, "m", [("x", "stop", NO_LOGPROBS)], 5, 6)), strict=True
    )
    assert found.choices[0].message.role == "assistant"
    Completion.model_validate(
        json.loads(answer("completion", "i", 1, "m", [("x", "stop", NO_LOGPROBS)], 5, 6)), strict=True
    )
