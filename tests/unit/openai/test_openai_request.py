"""Every body becomes a frozen request or a 400 (404 for the model) that names field, value and remedy."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.errors import RequestError
from exahpc.openai.body import Kind
from exahpc.openai.reading import read_request
from exahpc.openai.request import Request
from exahpc.openai.unsupported import KNOWN
from exahpc.wire.messages import Sampling

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi"}


def read(kind: Kind, **fields: Any) -> Request:
    body = {**(CHAT if kind == "chat" else COMPLETION), **fields}
    return read_request(kind, json.dumps({k: v for k, v in body.items() if v is not ...}).encode(), "m", 16)


def refused(kind: Kind, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(kind, **fields)
    assert caught.value.type == "invalid_request_error"
    caught.value.message.encode()
    return caught.value


def test_defaults_are_openais() -> None:
    found = read("chat")
    assert (found.sampling, found.n, found.seed, found.max_tokens) == (Sampling(temperature=1.0), 1, None, None)
    assert (found.logprobs, found.best_of, found.echo, found.stop_token_ids) == (None, 1, False, ())
    assert (found.stop, found.stream, found.include_usage, found.prompts) == ((), False, False, ())
    assert [(m.role, m.content) for m in found.messages] == [("user", "hi")]
    assert read("completion").prompts == ("hi",)


@pytest.mark.case("B15", "B26", "B29")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 0, "stream": True}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": "x" * 1001}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": 1}, "stream_options"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"\u0663": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids"),
        ({"stop_token_ids": list(range(65))}, "stop_token_ids"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"best_of": 17}, "best_of"),
        ({"best_of": True}, "best_of"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"guided_json": {}}, "guided_json"),
        ({"max_token": 5}, "max_token"),
        ({"temprature": 0}, "temprature"),
        ({"topP": 0.5}, "topP"),
        ({"model": ...}, "model"),
        ({"model": 5}, "model"),
    ],
)
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_a_bad_field_is_named(kind: Kind, fields: dict[str, Any], param: str) -> None:
    found = refused(kind, **fields)
    assert found.status == 400
    assert found.param == param
    assert found.message.startswith(f"{param}: ")


@pytest.mark.case("B15")
@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        ("chat", {"messages": ...}, "messages"),
        ("chat", {"messages": []}, "messages"),
        ("chat", {"messages": "hi"}, "messages"),
        ("chat", {"messages": [{"role": "user", "content": "a"}, 5]}, "messages[1]"),
        ("chat", {"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
        ("chat", {"messages": [{"content": "a"}]}, "messages[0].role"),
        ("chat", {"messages": [{"role": ["user"], "content": "a"}]}, "messages[0].role"),
        ("chat", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("chat", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ("chat", {"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ("chat", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ("chat", {"max_completion_tokens": 0}, "max_completion_tokens"),
        ("chat", {"logprobs": 1}, "logprobs"),
        ("chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat", {"top_logprobs": 2}, "top_logprobs"),
        ("chat", {"tools": [{"type": "function"}]}, "tools"),
        ("chat", {"response_format": {"type": "json_object"}}, "response_format"),
        ("completion", {"logprobs": 21}, "logprobs"),
        ("completion", {"logprobs": True}, "logprobs"),
        ("completion", {"top_logprobs": 2}, "top_logprobs"),
        ("completion", {"echo": 1}, "echo"),
        ("completion", {"max_tokens": -1, "echo": True}, "max_tokens"),
        ("completion", {"prompt": ["a", "b", "c"], "best_of": 6}, "prompt"),
        ("completion", {"suffix": "x"}, "suffix"),
        ("completion", {"prompt": ...}, "prompt"),
        ("completion", {"prompt": ""}, "prompt"),
        ("completion", {"prompt": [""]}, "prompt"),
        ("completion", {"prompt": []}, "prompt"),
        ("completion", {"prompt": [[]]}, "prompt"),
        ("completion", {"prompt": ["a", ""]}, "prompt[1]"),
        ("completion", {"prompt": [1, -1]}, "prompt"),
        ("completion", {"prompt": [1, True]}, "prompt"),
        ("completion", {"prompt": [[1], [2, "x"]]}, "prompt[1]"),
        ("completion", {"prompt": [1, "x"]}, "prompt[0]"),
        ("completion", {"prompt": {"a": 1}}, "prompt"),
        ("completion", {"prompt": ["a", "b", "c"], "n": 6}, "prompt"),
    ],
)
def test_a_bad_prompt_is_named_with_its_index(kind: Kind, fields: dict[str, Any], param: str) -> None:
    assert refused(kind, **fields).param == param


def test_another_model_is_404_and_the_served_one_is_named() -> None:
    found = refused("chat", model="nobody")
    assert (found.status, found.code) == (404, "model_not_found")
    assert "'nobody'" in found.message
    assert "'m'" in found.message


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {}, "store": False, "service_tier": "auto", "priority": 3},
        {"reasoning_effort": "low", "verbosity": "low", "safety_identifier": "x", "prompt_cache_key": "x"},
        {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "response_format": {"type": "text"}},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "logprobs": None, "top_k": -1},
        {"logprobs": False, "top_logprobs": 0, "min_p": 0, "min_tokens": 0, "stop_token_ids": [], "top_k": 0},
        {"stop": None, "seed": None, "n": None, "max_tokens": None, "stream_options": None, "temperature": None},
        {"best_of": 2, "n": 2},
        {f"x{i}": i for i in range(100)},
    ],
)
def test_fields_that_ask_for_nothing_and_unknown_ones_are_passed_over(fields: dict[str, Any]) -> None:
    read("chat", **fields)
    read("completion", **fields)


def test_every_field_of_drawing_reaches_the_replica() -> None:
    found = read(
        "chat", temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.2, presence_penalty=-1,
        frequency_penalty=2, logit_bias={"7": -100, "3": 1.5}, min_tokens=4, logprobs=True, top_logprobs=5,
        stop_token_ids=[9, 9, 2], best_of=3, n=2,
    )  # fmt: skip
    bias = ((3, 1.5), (7, -100.0))
    assert found.sampling == Sampling(0.5, 0.9, 7, 0.1, 1.2, -1.0, 2.0, bias, min_new=4, logprobs=5)
    assert (found.stop_token_ids, found.n, found.best_of, found.logprobs, found.choices) == ((9, 2), 2, 3, 5, 3)


def test_logprobs_are_asked_of_the_replica_where_the_answer_or_the_choice_needs_them() -> None:
    def asked(kind: Kind, **fields: Any) -> tuple[int, int, int | None]:
        found = read(kind, **fields)
        return found.sampling.logprobs, found.sampling.prompt_logprobs, found.logprobs

    assert asked("chat") == asked("completion", echo=True) == (-1, -1, None)
    assert asked("chat", logprobs=True) == asked("completion", logprobs=0) == (0, -1, 0)
    assert asked("completion", logprobs=3, echo=True, max_tokens=0) == (3, 3, 3)
    assert asked("completion", best_of=2) == (0, -1, None)


def test_prompts_are_texts_or_ids_alone_or_in_lists() -> None:
    assert read("completion", prompt=["a"]).prompts == ("a",)
    assert read("completion", prompt=[1, 2]).prompts == ((1, 2),)
    found = read("completion", prompt=["a", [3]], n=2)
    assert (found.prompts, found.choices) == (("a", (3,)), 4)


def test_content_parts_are_joined_by_newlines_and_developer_means_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = read("chat", messages=[{"role": "developer", "content": parts, "name": "x", "other": 1}])
    assert [m.for_template() for m in found.messages] == [{"role": "system", "content": "a\nb", "name": "x"}]


def test_max_completion_tokens_wins_in_chat_only() -> None:
    assert read("chat", max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert read("completion", max_tokens=5, max_completion_tokens=7).max_tokens == 5


def test_a_temperature_that_would_overflow_is_greedy() -> None:
    assert read("chat", temperature=1e-9).sampling.temperature == 0.0
    assert read("chat", temperature=0.01).sampling.temperature == 0.01


def test_lone_surrogates_are_read_as_replacement_and_nul_stays() -> None:
    body = b'{"model":"m","prompt":"a\\ud800\\u0000b","stop":"\\udfff"}'
    found = read_request("completion", body, "m", 16)
    assert (found.prompts, found.stop) == (("a\ufffd\0b",), ("\ufffd",))
    with pytest.raises(RequestError) as caught:
        read_request("completion", b'{"model":"\\ud800","prompt":"a"}', "m", 16)
    caught.value.message.encode()


def test_a_body_of_thousands_of_unknown_fields_is_compared_in_part_only() -> None:
    read("chat", **{f"u{i}": 0 for i in range(5000)}, max_token=5)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(["chat", "completion"]), st.data())
def test_any_values_give_a_request_or_a_refusal(kind: Kind, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(KNOWN[kind])), max_size=4))
    body = {**(CHAT if kind == "chat" else COMPLETION), **{name: data.draw(json_values) for name in names}}
    with contextlib.suppress(RequestError):
        found = read_request(kind, json.dumps(body).encode(), "m", 16)
        assert bool(found.messages) != bool(found.prompts)
        assert 1 <= found.choices <= 16


def test_the_model_may_be_asked_for_at_the_version_that_is_served_here_and_no_other() -> None:
    def model(name: str, version: str) -> str:
        return read_request("chat", json.dumps({**CHAT, "model": name}).encode(), "m", 16, version).model

    assert (model("m", "v2"), model("m@v2", "v2"), model("m@base", "")) == ("m", "m@v2", "m@base")
    for name, version in (("m@v2", ""), ("m@base", "v2"), ("m@", ""), ("m@v3", "v2")):
        with pytest.raises(RequestError, match="is not served here") as caught:
            model(name, version)
        assert caught.value.status == 404


def test_token_ids_outside_the_vocabulary_are_refused_by_the_largest_and_its_prompt() -> None:
    def prompts(value: object, vocabulary: int | None) -> object:
        return read_request(
            "completion", json.dumps({"model": "m", "prompt": value}).encode(), "m", 16, "", vocabulary
        ).prompts

    assert prompts([0, 9], 10) == ((0, 9),)
    assert prompts([[10], [2**70]], None) == ((10,), (2**70,))
    for value, where, largest in (([10, 3, 12], "prompt", 12), ([[1], [3, 10]], "prompt[1]", 10)):
        with pytest.raises(RequestError, match=f"token id {largest} is outside the vocabulary") as caught:
            prompts(value, 10)
        assert (caught.value.status, caught.value.param) == (400, where)
