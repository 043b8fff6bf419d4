"""The relay, law by law: refusals, room, order, progress, interruption."""

from __future__ import annotations

import functools
import json
import tempfile
from array import array
from pathlib import Path
from typing import Any, cast

import pytest

from exahpc.agent.actions import Served
from exahpc.agent.relay import Action, Relay, RowEnded, RowLost, ToPeer, ToReplica
from exahpc.agent.tokenizer import Tokenizer
from exahpc.deployment.spec import Deployment, Limits, Model, Pool
from exahpc.wire.messages import (
    Abort,
    Admit,
    Busy,
    Done,
    Failed,
    Frame,
    Frames,
    Load,
    NoRoom,
    ReplicaHello,
    Resume,
    Submit,
    Tokens,
)
from tests.tiny import make_tokenizer

P, Q = b"p", b"q"
CONTEXT = 64


@functools.cache
def tokenizer(template: bool = True) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        make_tokenizer(Path(folder))
        if not template:
            path = Path(folder) / "tokenizer_config.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": None}))
        return Tokenizer.load(Path(folder))


def ids(text: str) -> list[int]:
    return tokenizer().encode(text, special=False)


def relay(sequences: int = 4, kv: int = 256, *, template: bool = True, limits: Limits | None = None) -> Relay:
    pool = Pool(name="p", max_sequences=sequences)
    deployment = Deployment("d", model=Model(path="/m", context=CONTEXT), pool=(pool,), limits=limits or Limits())
    made = Relay(deployment, tokenizer(template))
    made.replica_up(ReplicaHello("p", 0, 7, sequences, kv, CONTEXT, ""))
    return made


def submit(
    name: str = "r",
    *,
    attempt: int = 1,
    slot: int = 0,
    incarnation: int = 7,
    kind: Any = "completion",
    resume: list[Resume] | None = None,
    first: bool = True,
    seed: int = 5,
    alone: bool = False,
    **body: Any,
) -> Submit:
    fields = {"model": "m", "max_tokens": 8, **body}
    fields |= {} if kind == "chat" or "prompt" in fields else {"prompt": "hi"}
    stream = body.get("stream") is True
    data = json.dumps(fields).encode()
    return Submit(name, attempt, slot, incarnation, kind, data, stream, seed, 17, resume or [], first, alone)


def admits(actions: list[Action]) -> list[Admit]:
    return [a.message for a in actions if isinstance(a, ToReplica) and isinstance(a.message, Admit)]


def aborts(actions: list[Action]) -> list[int]:
    return [a.message.sequence for a in actions if isinstance(a, ToReplica) and isinstance(a.message, Abort)]


def told(actions: list[Action], kind: type) -> list[Any]:
    return [a.message for a in actions if isinstance(a, ToPeer) and isinstance(a.message, kind)]


def frames(actions: list[Action]) -> list[Frame]:
    return [frame for message in told(actions, Frames) for frame in message.frames]


def feed(made: Relay, sequence: int, text: str, now: float = 0.0) -> list[Action]:
    return [a for i in ids(text) for a in made.tokens(0, Tokens([(sequence, i)], []), now)]


def refusal(made: Relay, message: Submit) -> Failed:
    (action,) = made.submit(P, message, 0)
    assert isinstance(action, ToPeer)
    assert isinstance(action.message, Failed)
    assert not action.message.retry
    assert made.idle
    return action.message


# --- what is refused ------------------------------------------------------------------------------------------


def test_a_prompt_as_long_as_the_context_is_refused_with_both_lengths() -> None:
    found = refusal(relay(), submit(prompt="x" * CONTEXT, max_tokens=1))
    assert (found.status, found.code, found.param) == (400, "context_length_exceeded", "prompt")
    assert f"{CONTEXT} tokens leave no room" in found.message
    assert f"context of {CONTEXT}" in found.message
    assert admits(relay().submit(P, submit(prompt="x" * (CONTEXT - 1), max_tokens=1), 0))


def test_a_hopeless_text_is_refused_without_tokenizing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "encode", None)
    found = refusal(relay(), submit(prompt="x" * 10**6))
    assert found.code == "context_length_exceeded"
    assert "at least 76923 tokens" in found.message


def test_explicit_max_tokens_beyond_the_context_is_refused_and_the_default_shrinks() -> None:
    found = refusal(relay(), submit(prompt="x" * 60, max_tokens=5))
    assert (found.param, found.code) == ("max_tokens", "context_length_exceeded")
    assert "at most 4" in found.message
    (admit,) = admits(relay().submit(P, submit(prompt="x" * 60, max_tokens=None), 0))
    assert admit.new == 4


def test_a_sequence_that_can_never_fit_the_cache_is_refused() -> None:
    assert refusal(relay(kv=20), submit(max_tokens=19)).param == "max_tokens"
    assert admits(relay(kv=20).submit(P, submit(max_tokens=18), 0))


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": [5, 261]}, 400, "prompt"),
        ({"prompt": ["a", [5, 261]]}, 400, "prompt[1]"),
        ({"n": 0, "stream": True}, 400, "n"),
        ({"model": "other"}, 404, "model"),
    ],
)
def test_bad_requests_fail_before_anything_starts(fields: dict[str, Any], status: int, param: str) -> None:
    made = relay()
    found = refusal(made, submit(**fields))
    assert (found.status, found.param) == (status, param)
    assert admits(made.submit(P, submit("next"), 0))


@pytest.mark.case("B32")
def test_chat_without_a_template_names_the_other_endpoint() -> None:
    found = refusal(relay(template=False), submit(kind="chat", messages=[{"role": "user", "content": "x"}]))
    assert "/v1/completions" in found.message


def test_a_defect_of_ours_costs_one_request_only() -> None:
    made = relay()
    made.replica_up(ReplicaHello("p", 1, 7, 4, 256, cast(Any, "no number"), ""))
    assert refusal(made, submit(slot=1)).status == 500
    assert admits(made.submit(P, submit("next"), 0))


# --- what a replica is given ----------------------------------------------------------------------------------


def test_choices_become_sequences_with_their_own_stream_and_one_seed() -> None:
    sent = admits(relay().submit(P, submit(n=3, temperature=0.5, top_p=0.9), 0))
    assert [(a.stream, a.seed, a.position, a.ids) for a in sent] == [(k, 5, 0, ids("hi")) for k in range(3)]
    assert {(a.sampling.temperature, a.sampling.top_p, a.new, tuple(a.stop_ids)) for a in sent} == {
        (0.5, 0.9, 8, (257,))
    }
    assert len({a.sequence for a in sent}) == 3
    assert 0 not in {a.sequence for a in sent}


def test_the_bodys_seed_wins_and_is_never_negative() -> None:
    assert admits(relay().submit(P, submit(seed=5), 0))[0].seed == 5
    message = submit(seed=5)
    body = json.dumps({**json.loads(message.body), "seed": -1}).encode()
    message = Submit(*[body if f == "body" else getattr(message, f) for f in Submit.__struct_fields__])
    assert admits(relay().submit(P, message, 0))[0].seed == 2**63 - 1


def test_ignore_eos_generates_to_the_end() -> None:
    assert admits(relay().submit(P, submit(ignore_eos=True), 0))[0].stop_ids == []


def test_more_choices_than_places_run_one_after_the_other() -> None:
    made = relay(sequences=2)
    first, second = admits(made.submit(P, submit(n=3), 0))
    assert told(made.submit(Q, submit("late"), 0), Busy), "those who came first go first"
    (third,) = admits(made.tokens(0, Tokens([], [(first.sequence, "stop")]), 0))
    assert third.stream == 2
    made.tokens(0, Tokens([], [(second.sequence, "stop")]), 0)
    assert told(made.tokens(0, Tokens([], [(third.sequence, "stop")]), 0), Done)
    assert made.idle


@pytest.mark.parametrize("fields", [{"slot": 1}, {"incarnation": 6}, {"incarnation": 8}])
def test_a_replica_that_is_not_there_is_busy(fields: dict[str, int]) -> None:
    assert told(relay().submit(P, submit(**fields), 0), Busy) == [Busy("r", 1)]


def test_a_full_replica_is_busy_by_sequences_or_by_memory() -> None:
    made = relay(sequences=1)
    made.submit(P, submit("a"), 0)
    assert told(made.submit(P, submit("b"), 0), Busy)
    made = relay(kv=80)
    made.submit(P, submit("a", max_tokens=62), 0)
    assert told(made.submit(P, submit("b", max_tokens=46), 0), Busy)
    assert admits(made.submit(P, submit("c", max_tokens=45), 0))
    made.tokens(0, Tokens([], [(1, "stop")]), 0)
    assert admits(made.submit(P, submit("b", max_tokens=53), 0)), "what ended gives its memory back"


def test_a_newcomer_fits_whole_beside_what_the_others_are_expected_to_hold() -> None:
    """Expected are the tokens that are there and half of those that may come: of 2 + 60, first 32, then more."""
    for generated, room in ((0, 48), (1, 47), (2, 47), (30, 33), (59, 18)):
        made = relay(kv=80)
        made.submit(P, submit("a", max_tokens=60), 0)
        for _ in range(generated):
            made.tokens(0, Tokens([(1, 65)], []), 0)
        assert told(made.submit(P, submit("b", max_tokens=room - 1), 0), Busy)
        assert admits(made.submit(P, submit("c", max_tokens=room - 2), 0)), generated


def test_a_draining_agent_is_busy_but_ends_what_runs() -> None:
    made = relay()
    (admit,) = admits(made.submit(P, submit("a"), 0))
    made.drain()
    assert told(made.submit(P, submit("b"), 0), Busy)
    assert made.row("k", "completion", b"{}", 1, 0, 0) == [RowLost("k", False)]
    assert made.free(0) == 0
    assert told(made.tokens(0, Tokens([], [(admit.sequence, "stop")]), 0), Done)


def test_outstanding_tokens_fall_by_the_prompt_then_one_by_one() -> None:
    made = relay()
    made.submit(P, submit(prompt="abcd", max_tokens=10), 0)
    kv = made.room()[0].kv / 4  # of one token: the prompt has four
    assert kv > 0
    assert made.room() == [Load(0, 14, 1, 4 * kv)]
    feed(made, 1, "x")
    assert made.room() == [Load(0, 9, 1, 5 * kv)]
    feed(made, 1, "x")
    assert made.room() == [Load(0, 8, 1, 6 * kv)]
    made.cancel(P, "r")
    assert made.room() == [Load(0, 0)]


def test_batch_rows_are_work_but_take_no_room() -> None:
    made = relay()
    made.row("k", "completion", BODY, 5, 0, 0.0)
    (load,) = made.room()
    assert load.tokens > 0
    assert (load.sequences, load.kv) == (0, 0.0)


# --- what clients get -----------------------------------------------------------------------------------------


def test_the_first_text_of_a_stream_does_not_wait_for_the_flush() -> None:
    made = relay()
    made.submit(P, submit(kind="chat", messages=[{"role": "user", "content": "x"}], stream=True, n=2), 0)
    (first,) = frames(feed(made, 1, "a"))
    assert first.data.count(b'"role":"assistant"') == 2, "the roles of all choices come before any text"
    assert frames(feed(made, 1, "b")) == []
    (later,) = frames(made.flush(0))
    assert (later.index, later.ids, later.sent) == (1, ids("b"), 2)
    assert b"role" not in later.data


def test_frames_of_one_entry_share_a_message_and_tokens_of_one_choice_an_event() -> None:
    made = relay()
    for name in ("a", "b"):
        made.submit(P, submit(name, stream=True), 0)
    made.submit(Q, submit("c", stream=True), 0)
    for sequence in (1, 2, 3):
        feed(made, sequence, "xyz")
    actions = made.flush(0)
    assert [a.peer for a in actions if isinstance(a, ToPeer)] == [P, Q]
    assert [f.data.count(b"data: ") for f in frames(actions)] == [1, 1, 1]
    assert made.flush(0) == []


def test_requests_that_do_not_stream_tell_their_ids_four_times_a_second() -> None:
    made = relay()
    made.submit(P, submit(), 0)
    made.flush(10.0)
    feed(made, 1, "ab")
    assert made.flush(10.2) == []
    (frame,) = frames(made.flush(10.26))
    assert (frame.index, frame.ids, frame.data, frame.finished) == (0, ids("ab"), b"", False)
    feed(made, 1, "c")
    assert made.flush(10.4) == []
    (done,) = told(made.tokens(0, Tokens([], [(1, "stop")]), 10.4), Done)
    assert json.loads(done.data)["choices"][0]["text"] == "abc"
    assert made.flush(99) == []


def test_held_back_text_still_tells_its_ids() -> None:
    made = relay()
    made.submit(P, submit(stream=True, stop=["abcdef"]), 0)
    made.flush(10.0)
    feed(made, 1, "abc")
    (frame,) = frames(made.flush(10.3))
    assert (frame.ids, frame.sent, frame.data) == (ids("abc"), 0, b"")


@pytest.mark.case("B25")
def test_a_stop_string_ends_the_answer_and_frees_the_sequence() -> None:
    made = relay()
    made.submit(P, submit(stop=["</ans>", "ZZ"], max_tokens=20), 0)
    actions = feed(made, 1, "x</an </ans>")
    assert aborts(actions) == [1]
    (done,) = told(actions, Done)
    choice = json.loads(done.data)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("x</an ", "stop")
    assert done.completion_tokens == len("x</an </ans>")
    assert feed(made, 1, "late") == []


def test_a_choice_that_ends_before_the_others_is_told_at_the_next_flush() -> None:
    made = relay()
    made.submit(P, submit(n=2, stream=True), 0)
    feed(made, 1, "a")
    made.tokens(0, Tokens([], [(1, "length")]), 0)
    (frame,) = frames(made.flush(0))
    assert frame.finished
    assert b'"finish_reason":"length"' in frame.data
    (done,) = told(made.tokens(0, Tokens([], [(2, "stop")]), 0), Done)
    assert done.data.count(b"finish_reason") == 1
    assert done.data.endswith(b"data: [DONE]\n\n")


def test_a_stream_that_ends_with_its_first_token_is_one_message() -> None:
    made = relay()
    made.submit(P, submit(kind="chat", messages=[{"role": "user", "content": "x"}], stream=True, max_tokens=1), 0)
    (action,) = [*made.tokens(0, Tokens([(1, ids("a")[0])], [(1, "length")]), 0), *made.flush(9)]
    assert isinstance(action, ToPeer)
    assert isinstance(action.message, Done)
    events = [json.loads(e[6:])["choices"][0] for e in action.message.data.decode().split("\n\n")[:-2]]
    deltas = [e["delta"] for e in events]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {}]


def test_several_prompts_number_their_choices_through() -> None:
    made = relay()
    sent = admits(made.submit(P, submit(prompt=["a", "bc"], n=2), 0))
    assert [(a.stream, len(a.ids)) for a in sent] == [(0, 1), (1, 1), (2, 2), (3, 2)]
    actions = made.tokens(0, Tokens([], [(a.sequence, "stop") for a in sent]), 0)
    (done,) = told(actions, Done)
    assert done.prompt_tokens == 3
    assert [c["index"] for c in json.loads(done.data)["choices"]] == [0, 1, 2, 3]


# --- interruptions --------------------------------------------------------------------------------------------


@pytest.mark.case("B28")
def test_an_interrupted_stream_goes_on_where_it_was() -> None:
    made = relay()
    text = "é👩"
    made.submit(P, submit("r", stream=True, stop=["zz"]), 0)
    data = b"".join(f.data for f in frames(feed(made, 1, "az")))
    feed(made, 1, text[:1])
    actions = made.replica_gone(0, own_exit=True)
    got = frames(actions)
    (failed,) = told(actions, Failed)
    assert (failed.retry, failed.own_exit) == (True, True)
    emitted = [*ids("a"), *(i for f in got for i in f.ids)]
    data += b"".join(f.data for f in got)
    made.replica_up(ReplicaHello("p", 0, 8, 4, 256, CONTEXT, ""))
    resume = [Resume(0, emitted, got[-1].sent)]
    again = submit("r", stream=True, stop=["zz"], attempt=2, incarnation=8, resume=resume, first=False)
    (admit,) = admits(made.submit(P, again, 0))
    assert (admit.ids, admit.position, admit.new) == (ids("hi") + emitted, len(emitted), 8 - len(emitted))
    feed(made, admit.sequence, text[1:])
    data += b"".join(f.data for f in frames(made.flush(0)))
    (done,) = told(made.tokens(0, Tokens([], [(admit.sequence, "stop")]), 0), Done)
    events = [json.loads(e[6:]) for e in (data + done.data).decode().split("\n\n")[:-2]]
    assert "".join(e["choices"][0]["text"] for e in events) == "az" + text
    assert done.completion_tokens == len(ids("az" + text))


def test_choices_that_had_ended_are_not_run_again() -> None:
    made = relay()
    resume = [Resume(0, ids("ab"), 0, True), Resume(1, ids("abcdefgh"), 0), Resume(2, ids("x"), 0, True)]
    (done,) = told(made.submit(P, submit(n=3, attempt=2, resume=resume), 0), Done)
    found = json.loads(done.data)["choices"]
    assert [(c["text"], c["finish_reason"]) for c in found] == [
        ("ab", "stop"),
        ("abcdefgh", "length"),
        ("x", "stop"),
    ]
    assert done.completion_tokens == 11
    assert made.idle


def test_a_resume_without_its_finish_ends_at_the_stop_it_holds() -> None:
    message = submit(stream=True, stop=["b"], attempt=2, resume=[Resume(0, ids("ab"), 1)], first=False)
    (done,) = told(relay().submit(P, message, 0), Done)
    assert b'"finish_reason":"stop"' in done.data
    assert b'"text":"a"' not in done.data


def test_a_choice_that_ended_elsewhere_takes_no_room_and_gives_none_back() -> None:
    made = relay()
    resume = [Resume(0, ids("abcdefgh"), 8, True), Resume(1, ids("x"), 1)]
    made.submit(P, submit(n=2, attempt=2, resume=resume, first=False), 0)
    made.cancel(P, "r")
    assert made.room() == [Load(0, 0)]


def test_what_an_ended_choice_still_owes_is_sent_while_the_others_go_on() -> None:
    made = relay()
    resume = [Resume(0, ids("abcdefgh"), 3), Resume(1, ids("x"), 1)]
    made.submit(P, submit(n=2, stream=True, attempt=2, resume=resume, first=False), 0)
    (frame,) = frames(made.flush(0))
    assert (frame.choice, frame.index, frame.ids, frame.sent, frame.finished) == (0, 8, [], 8, True)
    events = [json.loads(e[6:])["choices"][0] for e in frame.data.decode().split("\n\n")[:-1]]
    assert [(e["text"], e["finish_reason"]) for e in events] == [("defgh", None), ("", "length")]


def test_a_cancelled_request_frees_its_sequences_and_says_nothing() -> None:
    made = relay(sequences=2)
    made.submit(P, submit(n=3), 0)
    actions = made.cancel(P, "r")
    assert aborts(actions) == [1, 2]
    assert len(actions) == 2
    assert made.idle
    assert made.cancel(P, "r") == []


def test_an_entry_that_died_frees_only_its_own_sequences() -> None:
    made = relay()
    made.submit(P, submit("a"), 0)
    made.submit(Q, submit("a"), 0)
    assert aborts(made.peer_gone(P)) == [1]
    assert told(made.tokens(0, Tokens([], [(2, "stop")]), 0), Done)


def test_a_newer_attempt_replaces_an_older_one_and_a_repeated_one_is_ignored() -> None:
    made = relay()
    made.submit(P, submit(attempt=1), 0)
    assert made.submit(P, submit(attempt=1), 0) == []
    actions = made.submit(P, submit(attempt=2), 0)
    assert aborts(actions) == [1]
    assert [a.sequence for a in admits(actions)] == [2]


def test_a_sequence_that_cannot_be_computed_is_tried_elsewhere() -> None:
    made = relay()
    made.submit(P, submit(n=2), 0)
    actions = made.tokens(0, Tokens([], [(1, "error")]), 0)
    assert aborts(actions) == [2]
    assert [(f.retry, f.own_exit) for f in told(actions, Failed)] == [(True, False)]
    assert made.idle


def test_a_sequence_that_the_replica_refuses_is_an_error_and_no_retry() -> None:
    made = relay()
    made.submit(P, submit(), 0)
    (failed,) = told(made.no_room(0, NoRoom(1, "too odd")), Failed)
    assert (failed.status, failed.retry) == (500, False)
    assert "too odd" in failed.message
    assert made.idle
    assert made.no_room(0, NoRoom(1, "again")) == []


def test_replicas_hear_before_peers() -> None:
    made = relay(sequences=1)
    made.submit(P, submit("a", n=2), 0)
    actions = made.tokens(0, Tokens([], [(1, "stop")]), 0) + made.flush(0)
    kinds = [type(a) for a in actions]
    assert kinds == [ToReplica, ToPeer]


# --- batch rows -----------------------------------------------------------------------------------------------

LONG = {"model": "m", "prompt": "hi", "max_tokens": 60}
BODY = b'{"model":"m","prompt":"hi","max_tokens":8,"stream":true}'


def test_a_row_answers_with_a_whole_body_and_sends_no_frames() -> None:
    made = relay()
    (admit,) = admits(made.row("k", "completion", BODY, 5, 0, 0, created=9))
    assert admit.batch
    feed(made, 1, "ab")
    assert made.flush(99) == []
    (ended,) = made.tokens(0, Tokens([], [(1, "stop")]), 0)
    assert isinstance(ended, RowEnded)
    assert (ended.key, ended.status, ended.prompt_tokens, ended.completion_tokens) == ("k", 200, 2, 2)
    body = json.loads(ended.body)
    assert (body["id"], body["created"], body["choices"][0]["text"]) == ("cmpl-k", 9, "ab")


@pytest.mark.parametrize("fields", [{}, {"stop": ["zz"]}, {"logprobs": 1}, {"n": 2, "best_of": 2}])
def test_a_row_tells_its_token_ids_its_replica_and_when_it_began(fields: dict[str, Any]) -> None:
    made = relay(kv=512)
    text = "abcdef" * 8
    body = json.dumps({"model": "m", "prompt": "hi", "max_tokens": 60, **fields}).encode()
    count = len(admits(made.row("k", "completion", body, 5, 0, 3.0)))
    made.tokens(0, Tokens([], [], cached=[(1, 2)]), 4.0)
    ended: list[Any] = []
    for sequence in range(1, count + 1):
        feed(made, sequence, text[: len(text) - 6 * (sequence - 1)], now=4.0 + sequence)
        ended = made.tokens(0, Tokens([], [(sequence, "length")]), 9.0)
    (row,) = (action for action in ended if isinstance(action, RowEnded))
    assert row.served == Served(0, 3.0, 5.0, 2, array("I", ids(text)).tobytes())


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"[1,2]", 400), (b"{", 400), (b'{"model":"x","prompt":"a"}', 404), (b'{"model":"m"}', 400)],
)
def test_a_bad_row_ends_with_its_error_object(body: bytes, status: int) -> None:
    (ended,) = relay().row("k", "completion", body, 5, 0, 0)
    assert isinstance(ended, RowEnded)
    assert ended.status == status
    assert json.loads(ended.body)["error"]["message"]


def test_rows_leave_places_to_online_requests_and_wait_behind_them() -> None:
    made = relay(sequences=8, kv=10_000)
    assert made.free(0) == 7
    for number in range(7):
        assert admits(made.row(f"k{number}", "completion", BODY, 5, 0, 0))
    assert made.free(0) == 0
    assert made.row("late", "completion", BODY, 5, 0, 0) == []
    for number in range(8):
        (online,) = admits(made.submit(P, submit(f"r{number}"), 0))
        assert not online.batch
    assert told(made.submit(P, submit("more"), 0.5), Busy)
    assert made.tokens(0, Tokens([], [(k, "stop") for k in (*range(1, 8), 8)]), 0.6)
    assert made.free(0) == 0, "what comes free is for the one who was refused"
    assert admits(made.submit(P, submit("more"), 0.7))
    assert admits(made.tokens(0, Tokens([], [(9, "stop"), (10, "stop")]), 0.8)) == []
    assert admits(made.flush(1.0)) == []
    assert len(admits(made.flush(2.0))) == 1


def test_a_row_that_is_done_elsewhere_gives_its_place_back_and_answers_nothing() -> None:
    made = relay(sequences=2, kv=10_000)
    (admit,) = admits(made.row("k", "completion", BODY, 5, 0, 0))
    before = made.free(0)
    actions = made.cancel_row("k")
    assert aborts(actions) == [admit.sequence]
    assert len(actions) == 1
    assert made.free(0) == before + 1
    assert made.cancel_row("k") == []


def test_a_replica_full_of_rows_has_room_for_online_requests_as_if_it_was_empty() -> None:
    """The replica lets the rows give way."""
    made = relay(sequences=2, kv=128)
    for number in range(2):
        assert admits(made.row(f"k{number}", "completion", json.dumps(LONG).encode(), 5, 0, 0))
    assert all(admits(made.submit(P, submit(name, max_tokens=50), 0.0)) for name in "ab")
    assert told(made.submit(P, submit("c"), 0.0), Busy)


@pytest.mark.parametrize("online", [0, 1])
def test_rows_and_requests_of_two_pools_do_not_take_each_others_room(online: int) -> None:
    """Each replica judges by itself: rows may fill the one whose pool is quiet, and wait in the other."""
    made = relay(sequences=2)
    made.replica_up(ReplicaHello("other", 1, 3, 2, 256, CONTEXT, ""))
    for name in "ab":
        assert admits(made.submit(P, submit(name, slot=online, incarnation=(7, 3)[online]), 0.0))
    assert (made.free(online), made.free(1 - online)) == (0, 2)
    assert made.row("k", "completion", BODY, 5, online, 0.0) == []
    assert admits(made.row("l", "completion", BODY, 5, 1 - online, 0.0))


def test_a_row_on_a_lost_replica_is_lost_with_the_reason() -> None:
    made = relay()
    made.row("k", "completion", BODY, 5, 0, 0)
    assert made.replica_gone(0, own_exit=True) == [RowLost("k", True)]
    assert made.row("k", "completion", BODY, 5, 0, 0) == [RowLost("k", False)]


def test_a_drain_gives_rows_back() -> None:
    made = relay()
    made.row("k", "completion", BODY, 5, 0, 0)
    made.submit(P, submit(), 0)
    actions = made.stop_rows()
    assert aborts(actions) == [1]
    assert [a for a in actions if isinstance(a, RowLost)] == [RowLost("k", False)]
    assert not made.idle


# --- what runs alone ------------------------------------------------------------------------------------------


def test_a_replica_is_emptied_for_a_request_that_runs_alone_and_is_full_until_it_has_ended() -> None:
    made = relay(sequences=4)
    (a, b) = (admits(made.submit(P, submit(name), 0.0))[0].sequence for name in "ab")
    assert made.submit(P, submit("s", alone=True, n=2, stream=True), 0.0) == []
    assert (made.free(0), made.room()[0].sequences) == (0, 4)
    assert told(made.submit(Q, submit("c"), 0.0), Busy)
    assert told(made.submit(Q, submit("t", alone=True), 0.0), Busy)
    assert admits(made.tokens(0, Tokens([], [(a, "stop")]), 0.1)) == []
    (one, two) = admits(made.tokens(0, Tokens([], [(b, "stop")]), 0.2))
    assert (one.stream, two.stream, made.room()[0].sequences) == (0, 1, 4)
    assert told(made.submit(Q, submit("c"), 0.3), Busy)
    made.tokens(0, Tokens([], [(one.sequence, "stop")]), 0.4)
    assert told(made.submit(Q, submit("c"), 0.4), Busy)
    made.tokens(0, Tokens([], [(two.sequence, "stop")]), 0.5)
    assert admits(made.submit(Q, submit("c"), 0.6))


def test_who_waits_to_run_alone_gives_signs_of_life_that_change_nothing() -> None:
    made = relay()
    made.submit(P, submit("a"), 0.0)
    made.submit(P, submit("s", alone=True, stream=True, resume=[Resume(0, ids("ab"), 2)]), 0.0)
    made.flush(0.0)
    signs = [f for at in range(1, 40) for f in frames(made.flush(at / 4)) if f.request == "s"]
    assert 5 <= len(signs) <= 12
    assert {(f.index, tuple(f.ids), f.sent, f.data) for f in signs} == {(2, (), 2, b"")}


def test_a_row_that_runs_alone_waits_for_what_runs_and_starts_though_online_requests_are_refused() -> None:
    made = relay()
    (a,) = (admit.sequence for admit in admits(made.submit(P, submit("a"), 0.0)))
    assert made.row("k", "completion", BODY, 5, 0, 0.0, alone=True) == []
    assert told(made.submit(Q, submit("b"), 0.1), Busy)
    assert len(admits(made.tokens(0, Tokens([], [(a, "stop")]), 0.2))) == 1
    assert told(made.submit(Q, submit("b"), 0.3), Busy)


def test_the_story_of_a_replica_that_ended_by_itself_is_told_and_others_are_not_blamed() -> None:
    for own_exit in (True, False):
        made = relay()
        made.submit(P, submit("a"), 0.0)
        (failed,) = told(made.replica_gone(0, own_exit=own_exit, story="signal 11"), Failed)
        assert (failed.own_exit, "signal 11" in failed.message) == (own_exit, own_exit)


def test_who_only_waited_at_a_replica_is_not_to_blame_for_its_end() -> None:
    made = relay()
    made.submit(P, submit("killer"), 0.0)
    made.submit(P, submit("s", alone=True), 0.0)
    actions = made.replica_gone(0, own_exit=True, story="signal 11")
    assert [(f.request, f.own_exit) for f in told(actions, Failed)] == [("killer", True)]
    assert [b.request for b in told(actions, Busy)] == ["s"]


def test_a_request_that_goes_on_elsewhere_draws_as_if_nothing_had_happened() -> None:
    """Seed, stream and position count on, and penalties see the tokens that were emitted."""
    asked = {"n": 2, "temperature": 1.0, "presence_penalty": 0.5, "min_tokens": 3, "stream": True}
    fresh = admits(relay().submit(P, submit(**asked), 0.0))
    resume = [Resume(0, ids("abc"), 3), Resume(1, ids("x"), 1)]
    again = admits(relay().submit(P, submit(attempt=2, resume=resume, first=False, **asked), 0.0))
    for before, after, had in zip(fresh, again, resume, strict=True):
        assert (after.seed, after.stream, after.sampling) == (before.seed, before.stream, before.sampling)
        assert (after.ids, after.position) == (before.ids + had.ids, len(had.ids))
        assert after.new == before.new - len(had.ids)
