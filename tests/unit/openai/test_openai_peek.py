"""Bodies are peeked at without being judged; what is no JSON object is a 400 that says where."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.errors import RequestError
from exahpc.openai.body import Kind, literal, load, printable
from exahpc.openai.errors import error_body, sse_error
from exahpc.openai.models import models_body, version_name, version_of
from exahpc.openai.peek import peek


def test_peek_reads_the_routing_fields_only() -> None:
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":7,"n":3,"x":{"n":9}}'
    )
    found = peek(body, "chat")
    assert (found.model, found.stream, found.max_tokens, found.n, found.size) == ("m", True, 7, 3, len(body))


def test_max_completion_tokens_wins_in_chat_and_means_nothing_in_completions() -> None:
    body = b'{"max_tokens":7,"max_completion_tokens":9}'
    assert peek(body, "chat").max_tokens == 9
    assert peek(body, "completion").max_tokens == 7


@pytest.mark.parametrize(
    ("prompt", "n"),
    [('"abc"', 2), ("[1,2,3]", 2), ('["a","b"]', 4), ("[[1],[2],[3]]", 6), ("[]", 2), ('["\\ud800","b"]', 4)],
)
def test_each_prompt_of_a_completion_counts_n_choices(prompt: str, n: int) -> None:
    assert peek(f'{{"n":2,"prompt":{prompt}}}'.encode(), "completion").n == n


def test_a_choice_is_made_for_each_of_best_of() -> None:
    assert peek(b'{"n":2,"best_of":5,"prompt":["a","b"]}', "completion").n == 10
    assert peek(b'{"n":2,"best_of":true}', "chat").n == 2


@pytest.mark.parametrize("value", ["null", '"x"', "true", "-1", "0", "1.5", "[]", "{}", "1e999999", "9" * 5000])
def test_senseless_numbers_count_as_absent(value: str) -> None:
    body = f'{{"model":{value},"n":{value},"max_tokens":{value},"stream":{value}}}'.encode()
    with contextlib.suppress(RequestError):  # a number beyond any type is no JSON for us
        found = peek(body, "chat")
        assert (found.n, found.max_tokens) == (1, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[1]",
        b'"s"',
        b'{"x":NaN}',
        b'{"model":"\xff"}',
        b'{"x":' + b"[" * 100000,
        b"{} {}",
        b"3",
    ],
)
def test_broken_json_is_400_with_a_reason(body: bytes) -> None:
    with pytest.raises(RequestError) as e:
        peek(body, "completion")
    assert e.value.status == 400
    assert "request body" in e.value.message


def test_a_lone_surrogate_is_not_broken_json() -> None:
    assert peek(b'{"model":"m","messages":[{"content":"a\\ud800"}],"n":2}', "chat").n == 2
    assert load(b'{"a\\udc00":["x\\ud800y","\\ud83d\\ude00"]}') == {"a\ufffd": ["x\ufffdy", "\U0001f600"]}


@given(st.text(st.characters(exclude_categories=[])))
def test_literal_is_json_for_any_text(text: str) -> None:
    assert json.loads(literal(text)) == text
    printable(text).encode()


@given(st.binary(max_size=40))
def test_peek_answers_any_bytes_with_a_peek_or_a_400(body: bytes) -> None:
    for kind in ("chat", "completion"):
        with contextlib.suppress(RequestError):
            peek(body, kind)


def test_errors_have_openais_shape() -> None:
    found = json.loads(error_body('bad "x"\n', "invalid_request_error", "n", None))
    assert found == {
        "error": {"message": 'bad "x"\n', "type": "invalid_request_error", "param": "n", "code": None}
    }
    event = sse_error("gone")
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert json.loads(event[6:])["error"]["type"] == "server_error"
    assert b"[DONE]" not in event


def test_models_lists_what_can_be_asked_for() -> None:
    found = json.loads(models_body(["llm", version_name("llm", ""), version_name("llm", "v2")], 17))
    assert found["object"] == "list"
    assert found["data"][0] == {"id": "llm", "object": "model", "created": 17, "owned_by": "exahpc"}
    assert [model["id"] for model in found["data"]] == ["llm", "llm@base", "llm@v2"]


@given(served=st.text(st.characters(codec="ascii", exclude_categories=["Z", "C"]), min_size=1))
def test_a_versions_name_tells_its_label_and_no_other_name_does(served: str) -> None:
    assert [version_of(version_name(served, label), served) for label in ("", "v2", "1.0-b")] == [
        "",
        "v2",
        "1.0-b",
    ]
    assert [version_of(name, served) for name in (served, f"{served}@", f"{served}x", "@v2")] == [None] * 4


@pytest.mark.parametrize(("kind", "field"), [("chat", "messages"), ("completion", "prompt")])
def test_the_prompt_is_shown_as_it_came_and_nothing_of_it_is_decoded(kind: Kind, field: str) -> None:
    body = b'{"model":"m", "%b" : [ {"a" :"\\u00e9"}, 7 ] ,"n":1}' % field.encode()
    assert bytes(peek(body, kind).prompt) == b'[ {"a" :"\\u00e9"}, 7 ]'


@pytest.mark.parametrize(
    ("value", "tier"),
    [
        ('"flex"', "flex"),
        ('"priority"', "priority"),
        ('"default"', "default"),
        ('"auto"', "default"),
        ('"scale"', "default"),
        ("null", "default"),
        ("7", "default"),
        ("[]", "default"),
        ('"\\ud800"', "default"),
    ],
)
def test_a_service_tier_is_flex_priority_or_the_usual_one(value: str, tier: str) -> None:
    assert peek(f'{{"service_tier":{value}}}'.encode(), "chat").tier == tier
