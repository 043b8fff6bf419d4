"""A body that is checked while it is decoded is one that the full validation takes, too."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exahpc.batch.inputs.bodies import URLS_OF, line_type
from exahpc.batch.inputs.forms import UNREADABLE
from exahpc.batch.inputs.requests import RequestForm, validate
from exahpc.openai.body import Kind

_text = st.text(max_size=5)
_odd: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.integers(), st.floats(-3, 3), _text,
    st.lists(st.one_of(_text, st.integers(-1, 3), st.booleans()), max_size=5), st.just({}),
)  # fmt: skip
_GOOD: dict[Kind, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "u"}]},
    "completion": {"model": "m", "prompt": "p"},
}
_part = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]), "text": _text})
_message = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "system", "developer", "assistant", "tool", "function", 1]),
        "content": st.one_of(_text, _odd, st.lists(_part, max_size=2)),
    },
    optional={"name": _odd, "tool_calls": _odd},
)
_NUMBERS = (
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "n", "max_completion_tokens",
)  # fmt: skip
_NAMES = ("stop", "ignore_eos", "user", "stream", "unknown", "max_token", "prompt", "messages", "model")
_edge = st.sampled_from([None, True, -3, -1, 0, 1, 2, 3, 0.1, 0.5, 2.5, 2**31 - 1, 2**31, 2**63, -(2**63) - 1])
_change = st.one_of(
    st.tuples(st.sampled_from(_NUMBERS), _edge),
    st.tuples(st.sampled_from(_NAMES), _odd),
    st.tuples(st.just("messages"), st.lists(_message, max_size=3)),
)
_decoders = {model: msgspec.json.Decoder(line_type(model)) for model in ("m", None)}


@given(st.lists(_change, max_size=3), st.sampled_from(["chat", "completion"]), st.sampled_from(["m", None]))
@example([("model", None)], "completion", None)
@settings(max_examples=250, deadline=None)
def test_what_is_taken_at_a_glance_is_taken_by_the_full_validation(
    changes: list[tuple[str, Any]], kind: Kind, model: str | None
) -> None:
    body = {**_GOOD[kind], **dict(changes)}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": URLS_OF[kind], "body": body}).encode()
    try:
        found = _decoders[model].decode(line)
    except UNREADABLE:
        return
    assert found.body.limit == validate(kind, json.dumps(body).encode(), model).max_tokens


def test_usual_bodies_are_taken_at_a_glance() -> None:
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]
    usual = {"model": "m", "temperature": 0, "top_p": 1, "max_tokens": 3, "stop": ["x"], "seed": 1, "n": 1}
    for kind, prompt in (
        ("chat", {"messages": said}),
        ("completion", {"prompt": "p"}),
        ("completion", {"prompt": [1]}),
    ):
        line = {"url": URLS_OF["chat" if kind == "chat" else "completion"], "body": {**usual, **prompt}}
        line |= {"custom_id": "a", "method": "POST"}
        msgspec.json.decode(json.dumps(line).encode(), type=line_type("m"))


def test_a_faulty_line_costs_its_neighbours_nothing() -> None:
    def line(i: int) -> bytes:
        body = {"model": "m", "prompt": f"p{i}", "max_tokens": i + 1}
        return json.dumps(
            {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": body}
        ).encode()

    lines = [line(i) for i in range(600)]
    lines[300] = b"junk"
    lines[301] = lines[301].replace(b'"max_tokens"', b'"logit_bias": {"5": 1}, "max_tokens"')
    checked = RequestForm("m").check(lines, 0)
    assert list(checked.flaws) == [300]
    assert [i for i in range(600) if i != 300 and checked.ids[i] != f"r{i}"] == []
    assert [i for i in range(600) if i != 300 and checked.limits[i] != i + 1] == []
    assert len(checked.kinds) == 600
