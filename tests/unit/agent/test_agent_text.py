"""The text of an answer is a function of its ids: streamed or not, and whenever frames leave."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from exahpc.agent.relay import Action, RowEnded
from exahpc.wire.messages import Done, Tokens
from exahpc.wire.messages.replica import Reason
from tests.unit.agent.test_agent_relay import P, frames, ids, relay, submit, tokenizer, told

texts = st.text(st.sampled_from("aé你👩\u200d"), min_size=1, max_size=12)
"""One to four tokens a character: most frames cut one, and a short answer ends inside one."""


def contents(data: bytes) -> str:
    """The text of all events."""
    events = [json.loads(line) for line in re.findall(rb"data: (\{.*\})\n\n", data)]
    return "".join(event["choices"][0]["text"] for event in events)


@given(texts, st.data())
def test_streamed_or_not_the_text_is_what_the_ids_say(text: str, data: st.DataObject) -> None:
    made = ids(text)
    made = made[: data.draw(st.integers(1, len(made)), "length")]
    looks = data.draw(st.sets(st.integers(0, len(made))), "frames leave after these")
    expected = tokenizer().decode(made)
    run = relay()
    run.submit(P, submit("plain", max_tokens=len(made)), 0)  # sequence 1
    run.submit(P, submit("stream", stream=True, max_tokens=len(made)), 0)
    body = json.dumps({"model": "m", "prompt": "hi", "max_tokens": len(made)}).encode()
    run.row("row", "completion", body, 5, 0, 0)
    actions: list[Action] = []
    for count, token in enumerate(made, 1):
        ended: list[tuple[int, Reason]] = [(s, "length") for s in (1, 2, 3)] if count == len(made) else []
        actions += run.tokens(0, Tokens([(1, token), (2, token), (3, token)], ended), float(count))
        if count in looks:
            actions += run.flush(float(count))
    plain, stream = (next(d for d in told(actions, Done) if d.request == name) for name in ("plain", "stream"))
    (row,) = (a for a in actions if isinstance(a, RowEnded))
    assert json.loads(plain.data)["choices"][0]["text"] == expected
    assert json.loads(row.body)["choices"][0]["text"] == expected
    streamed = [frame for frame in frames(actions) if frame.request == "stream"]
    assert contents(b"".join(frame.data for frame in streamed) + stream.data) == expected
    for name in ("plain", "stream"):
        carried = [token for frame in frames(actions) if frame.request == name for token in frame.ids]
        assert carried == made[: len(carried)]


def test_a_long_row_is_read_piece_by_piece_and_loses_nothing() -> None:
    run, text = relay(), "a" + "👩" * 15
    body = json.dumps({"model": "m", "prompt": "h", "max_tokens": 61}).encode()
    run.row("row", "completion", body, 5, 0, 0)
    for token in ids(text):
        assert run.tokens(0, Tokens([(1, token)], []), 1.0) == []
    (row,) = run.tokens(0, Tokens([], [(1, "length")]), 2.0)
    assert isinstance(row, RowEnded)
    assert json.loads(row.body)["choices"][0]["text"] == text
