"""Log-probabilities through the relay: with their tokens and text, once, whatever is held back or interrupted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_agent_relay import CONTEXT, P, aborts, admits, frames, ids, refusal, relay, submit, tokenizer, told

from exahpc.agent.relay import Action, Relay, RowEnded, RowLost
from exahpc.openai.logprobs import Rated, logprobs, name, offsets
from exahpc.wire.messages import Busy, Done, Failed, Frame, Likelihood, NoRoom, ReplicaHello, Resume, Tokens


def say(made: Relay, sequence: int, text: str, value: float = -0.5, now: float = 0.0) -> list[Action]:
    """Tokens of `text`, one a step, each with its log-probability and two alternatives."""
    actions: list[Action] = []
    for token in ids(text):
        found = Likelihood(token, value, [(token, value), (ids("q")[0], value - 1)])
        actions += made.tokens(0, Tokens([(sequence, token)], [], [(sequence, found)]), now)
    return actions


def end(made: Relay, sequence: int, reason: Any = "length") -> dict[str, Any]:
    (done,) = told(made.tokens(0, Tokens([], [(sequence, reason)]), 0), Done)
    found: dict[str, Any] = json.loads(done.data)
    return found


def chunks(data: bytes) -> list[dict[str, Any]]:
    events = [e.removeprefix("data: ") for e in data.decode().split("\n\n") if e and not e.endswith("[DONE]")]
    return [json.loads(event)["choices"][0] for event in events]


def test_a_whole_answer_lists_every_token_in_the_form_of_its_endpoint() -> None:
    made = relay()
    (admit,) = admits(made.submit(P, submit(logprobs=2), 0))
    assert admit.sampling.logprobs == 2
    say(made, 1, "ab")
    found = end(made, 1)["choices"][0]["logprobs"]
    assert found == {
        "text_offset": [0, 1],
        "token_logprobs": [-0.5, -0.5],
        "tokens": ["a", "b"],
        "top_logprobs": [{"a": -0.5, "q": -1.5}, {"b": -0.5, "q": -1.5}],
    }
    chat = submit("c", kind="chat", messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=1)
    made.submit(P, chat, 0)
    say(made, 2, "a")
    found = end(made, 2)["choices"][0]["logprobs"]
    q = {"token": "a", "logprob": -0.5, "bytes": [97]}
    assert found["content"][0] | {"top_logprobs": found["content"][0]["top_logprobs"][:1]} == {
        **q,
        "top_logprobs": [q],
    }


@pytest.mark.case("B23")
def test_a_token_that_is_part_of_a_character_leaves_with_the_character() -> None:
    made = relay()
    made.submit(P, submit(stream=True, logprobs=0), 0)
    first = frames(say(made, 1, "a"))
    emoji = ids("👩")
    assert first[0].ids == ids("a")
    for number, token in enumerate(emoji[:-1]):
        made.tokens(0, Tokens([(1, token)], [], [(1, Likelihood(token, -1.0, []))]), 0)
        (alive,) = frames(made.flush(10.0 + number))
        assert (alive.index, alive.ids, alive.data, alive.sent) == (1, [], b"", 1), "a sign of life and no more"
    made.tokens(0, Tokens([(1, emoji[-1])], [], [(1, Likelihood(emoji[-1], -1.0, []))]), 0)
    (last,) = frames(made.flush(20))
    assert (last.index, last.ids, last.sent) == (1, emoji, 2)
    (chunk,) = chunks(last.data)
    assert chunk["text"] == "👩"
    assert chunk["logprobs"]["text_offset"] == [1, 1, 1, 1]
    assert chunk["logprobs"]["tokens"][0] == "bytes:\\xf0"


def test_tokens_of_a_stop_string_are_not_in_the_answer() -> None:
    made = relay()
    made.submit(P, submit(stop=["</s>"], logprobs=0, max_tokens=20), 0)
    (done,) = told(say(made, 1, "x</</s>"), Done)
    found = json.loads(done.data)["choices"][0]
    assert (found["text"], "".join(found["logprobs"]["tokens"])) == ("x</", "x</")
    assert done.completion_tokens == len("x</</s>")


@pytest.mark.case("B25", "B28")
def test_what_may_begin_a_stop_string_waits_with_its_tokens_and_is_made_again_elsewhere() -> None:
    made = relay()
    made.submit(P, submit(stream=True, stop=["bc"], logprobs=0), 0)
    data = b"".join(f.data for f in frames(say(made, 1, "ab")))
    assert [c["text"] for c in chunks(data)] == ["a"]
    actions = made.replica_gone(0, own_exit=False)
    (frame,) = frames(actions)
    assert (frame.ids, frame.data, frame.sent) == ([], b"", 1)
    made.replica_up(ReplicaHello("p", 0, 8, 4, 256, CONTEXT, ""))
    resume = [Resume(0, ids("a"), 1)]
    again = submit(stream=True, stop=["bc"], logprobs=0, attempt=2, incarnation=8, resume=resume, first=False)
    (admit,) = admits(made.submit(P, again, 0))
    assert admit.position == 1
    say(made, admit.sequence, "bx")
    (frame,) = frames(made.flush(0))
    assert (frame.index, frame.ids, frame.sent) == (1, ids("bx"), 3)
    (chunk,) = chunks(frame.data)
    assert (chunk["text"], chunk["logprobs"]["text_offset"]) == ("bx", [1, 2])


def test_without_a_stream_an_interrupted_request_begins_anew() -> None:
    made = relay()
    made.submit(P, submit(logprobs=0, n=2), 0)
    say(made, 1, "ab")
    (alive,) = frames(made.flush(10))
    assert (alive.index, alive.ids, alive.finished) == (0, [], False)
    made.tokens(0, Tokens([], [(1, "stop")]), 10)
    for frame in frames(made.replica_gone(0, own_exit=False)):
        assert (frame.index, frame.ids, frame.finished) == (0, [], False), "nothing that it could go on from"
    made.replica_up(ReplicaHello("p", 0, 8, 4, 256, CONTEXT, ""))
    resume = [Resume(0, ids("ab"), 0, True), Resume(1, [], 0)]  # whatever an entry says
    sent = admits(made.submit(P, submit(logprobs=0, n=2, attempt=2, incarnation=8, resume=resume), 0))
    assert [(a.position, a.ids) for a in sent] == [(0, ids("hi"))] * 2


# --- the prompt's -----------------------------------------------------------------------------------------------


def prompt_of(made: Relay, sequence: int, text: str, first: int = 1) -> list[Action]:
    found = [Likelihood(token, -float(i), [(token, -float(i))]) for i, token in enumerate(ids(text)) if i >= first]
    return [
        action for one in found for action in made.tokens(0, Tokens([], [], [], [(sequence, [one])]), 0)
    ]  # piece by piece


def test_echo_alone_needs_no_replica() -> None:
    made = relay()
    message = submit(prompt=["a<|end|>b", ids("cd")], echo=True, max_tokens=0, n=2)
    (done,) = told(made.submit(P, message, 0), Done)
    assert [c["text"] for c in json.loads(done.data)["choices"]] == ["a<|end|>b"] * 2 + ["cd"] * 2
    assert (done.completion_tokens, made.idle) == (0, True)


@pytest.mark.parametrize("logprobs", [None, 0])
def test_a_prompt_that_is_only_asked_about_may_fill_the_context(logprobs: int | None) -> None:
    fields: dict[str, Any] = {"echo": True, "max_tokens": 0, "logprobs": logprobs}
    made = relay(kv=CONTEXT)
    actions = made.submit(P, submit(prompt="x" * CONTEXT, **fields), 0)
    if logprobs is None:
        (done,) = told(actions, Done)
        found = json.loads(done.data)
    else:
        (admit,) = admits(actions)
        assert len(admit.ids) == CONTEXT
        prompt_of(made, 1, "x" * CONTEXT)
        say(made, 1, "q")
        found = end(made, 1)
    assert found["choices"][0]["text"] == "x" * CONTEXT
    failed = refusal(relay(), submit(prompt="x" * (CONTEXT + 1), **fields))
    assert f"exceed this model's context of {CONTEXT} tokens: shorten it to at most {CONTEXT}" in failed.message


@pytest.mark.parametrize("text", ["xyz", "x"])
def test_the_prompt_alone_is_rated_and_nothing_is_added(text: str) -> None:
    made = relay()
    (admit,) = admits(made.submit(P, submit(prompt=text, echo=True, max_tokens=0, logprobs=1), 0))
    assert (admit.new, admit.sampling.prompt_logprobs) == (1, 1)
    prompt_of(made, 1, text)
    say(made, 1, "q")
    body = end(made, 1, "stop")
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"], body["usage"]["completion_tokens"]) == (text, "length", 0)
    found = choice["logprobs"]
    assert found["tokens"] == list(text)
    assert found["token_logprobs"] == [None, -1.0, -2.0][: len(text)]
    assert found["top_logprobs"] == [None, {"y": -1.0}, {"z": -2.0}][: len(text)]
    assert found["text_offset"] == [0, 1, 2][: len(text)]


def test_a_stream_with_echo_begins_with_the_rated_prompt_and_goes_on_after_an_interruption() -> None:
    made = relay()
    fields: dict[str, Any] = {"prompt": "xy", "echo": True, "logprobs": 0, "stream": True, "stop": ["ab"]}
    made.submit(P, submit(**fields), 0)
    assert frames(made.flush(5)) == []
    prompt_of(made, 1, "xy")
    say(made, 1, "a")  # held back: may begin the stop string
    (frame,) = frames(made.flush(10))
    assert (frame.ids, frame.sent) == ([], 2)
    (chunk,) = chunks(frame.data)
    assert (chunk["text"], chunk["logprobs"]["token_logprobs"]) == ("xy", [None, -1.0])
    made.replica_gone(0, own_exit=False)
    made.replica_up(ReplicaHello("p", 0, 8, 4, 256, CONTEXT, ""))
    again = submit(**fields, attempt=2, incarnation=8, resume=[Resume(0, [], 2)], first=False)
    (admit,) = admits(made.submit(P, again, 0))
    assert admit.sampling.prompt_logprobs == -1, "the client has the prompt's"
    say(made, admit.sequence, "ac")
    (frame,) = frames(made.flush(20))
    (chunk,) = chunks(frame.data)
    assert (chunk["text"], chunk["logprobs"]["text_offset"], frame.sent) == ("ac", [2, 3], 4)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("pieces", "starts"),
    [
        ([b"\xde", b"u"], [0, 1]),
        ([b"\xf0", b"\x9f", b"u"], [0, 0, 1]),
        ([b"\xde", b"\xde", b"u"], [0, 1, 2]),
        ([b"\xef", b"\xbf", b"\xbd", b"u"], [0, 0, 0, 1]),  # U+FFFD itself
        ([b"a", b"\xf0", b"\xc3", b"\xa9"], [0, 1, 2, 2]),
    ],
)
def test_a_token_after_an_incomplete_character_begins_behind_its_replacement(
    pieces: list[bytes], starts: list[int], stream: bool
) -> None:
    table = {tokenizer().piece(token): token for token in range(256)}
    made = relay()
    made.submit(P, submit(stream=stream, logprobs=0, stop=["zz"]), 0)
    data = b""
    for piece in pieces:
        token = table[piece]
        actions = made.tokens(0, Tokens([(1, token)], [], [(1, Likelihood(token, -1.0, []))]), 0)
        data += b"".join(frame.data for frame in frames(actions))
    text = b"".join(pieces).decode("utf-8", "replace")
    if stream:
        data += b"".join(frame.data for frame in frames(made.flush(10)))
        found = [start for chunk in chunks(data) for start in chunk["logprobs"]["text_offset"]]
        assert "".join(chunk["text"] for chunk in chunks(data)) == text
    else:
        choice = end(made, 1)["choices"][0]
        found = choice["logprobs"]["text_offset"]
        assert choice["text"] == text
    assert found == starts
    assert offsets(text, pieces) == starts, "and so in a prompt"


def test_offsets_pass_over_what_is_not_in_the_text() -> None:
    assert offsets("hé", [b"<s>", b"h", b"\xc3", b"\xa9"]) == [0, 0, 1, 1]
    assert offsets("Hi you", [b"<s>", b" Hi", b" you"]) == [0, 0, 2]


def test_tokens_of_one_name_show_the_likelier_and_no_number_is_beyond_json() -> None:
    token = Rated(b"\xff", 0, float("-inf"), [(b"\xfe", -1.0), (b"a", -2.0), (b"a", -3.0)])
    found = json.loads(logprobs("completion", [token]))
    assert found["top_logprobs"] == [{"bytes:\\xfe": -1.0, "a": -2.0, "bytes:\\xff": -9999.0}]
    assert name(tokenizer().piece(257)) == "<|end|>"
    assert name(tokenizer().piece(99_999)) == "token_id:99999"


# --- choosing, refusing, turning away ---------------------------------------------------------------------------


def test_the_likeliest_of_best_of_are_shown_and_all_are_counted() -> None:
    made = relay()
    sent = admits(made.submit(P, submit(n=2, best_of=3), 0))
    assert [a.sampling.logprobs for a in sent] == [0, 0, 0]
    for sequence, text, value in ((1, "aaa", -1.0), (2, "b", -0.1), (3, "cc", -0.5)):
        say(made, sequence, text, value)
    made.tokens(0, Tokens([], [(1, "length"), (2, "length")]), 0)
    body = end(made, 3)
    assert [(c["index"], c["text"], c["logprobs"]) for c in body["choices"]] == [(0, "b", None), (1, "cc", None)]
    assert body["usage"]["completion_tokens"] == 6


def test_stop_tokens_go_to_the_replica_also_where_the_models_own_are_ignored() -> None:
    (plain,) = admits(relay().submit(P, submit(stop_token_ids=[5]), 0))
    (ignoring,) = admits(relay().submit(P, submit(stop_token_ids=[5], ignore_eos=True), 0))
    assert (plain.stop_ids, ignoring.stop_ids) == ([257, 5], [5])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_token_ids": [100_000]}, "stop_token_ids"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
    ],
)
def test_what_the_model_cannot_do_is_refused(fields: dict[str, Any], param: str) -> None:
    assert refusal(relay(), submit(**fields)).param == param


def test_a_replica_that_is_full_after_all_sends_the_request_elsewhere() -> None:
    made = relay()
    made.submit(P, submit(n=2), 0)
    made.tokens(0, Tokens([(1, ids("a")[0])], []), 0)
    actions = made.no_room(0, NoRoom(2, "too many wait", full=True))
    assert aborts(actions) == [1]
    assert [f.ids for f in frames(actions)] == [ids("a")], "what there is is told first"
    assert told(actions, Busy) == [Busy("r", 1)]
    assert not told(actions, Failed)
    made.row("k", "completion", b'{"model":"m","prompt":"hi"}', 5, 0, 9)
    assert made.no_room(0, NoRoom(3, "too many wait", full=True)) == [RowLost("k", False)]
    assert made.free(0) == 0, "for a while"
    assert made.idle


def test_rows_hold_log_probabilities_in_their_bodies() -> None:
    made = relay()
    body = json.dumps({"model": "m", "prompt": "hi", "logprobs": 1, "max_tokens": 2}).encode()
    made.row("k", "completion", body, 5, 0, 0)
    say(made, 1, "ab")
    (ended,) = made.tokens(0, Tokens([], [(1, "length")]), 0)
    assert isinstance(ended, RowEnded)
    assert json.loads(ended.body)["choices"][0]["logprobs"]["tokens"] == ["a", "b"]
    assert made.flush(99) == []


def test_a_frame_of_a_request_without_log_probabilities_is_as_it_was() -> None:
    made = relay()
    made.submit(P, submit(stream=True), 0)
    (frame,) = frames(made.tokens(0, Tokens([(1, ids("a")[0])], []), 0))
    assert frame == Frame("r", 1, 0, 0, ids("a"), 1, frame.data)
    assert chunks(frame.data)[0]["logprobs"] is None
