"""Laws of log lines: a sentence with fields that can be read back, and the story of a request."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.telemetry.logs import Lines, fields_of, told
from exahpc.telemetry.stories import NO_TRACE, Allowance, Trace, trace_of
from exahpc.telemetry.story import story
from exahpc.wire.messages import Tokens
from tests.unit.agent.test_agent_relay import P, admits, feed, relay, submit

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def line(message: str, **fields: object) -> str:
    record = logging.LogRecord("x", logging.INFO, "f", 1, message, (), None)
    record.__dict__.update(told(**fields))
    return Lines("%(levelname)s %(message)s").format(record)


@given(st.dictionaries(st.sampled_from(["request", "why", "agent"]), TEXT), TEXT)
def test_fields_are_read_back_as_they_were(fields: dict[str, str], message: str) -> None:
    text = line("something happened", **fields)
    assert fields_of(text) == fields
    assert "\n" not in text
    assert "\r" not in text


def test_a_line_is_a_sentence_with_fields_at_its_end() -> None:
    assert line("it ends", request="r-1", attempt=2, why="a b", empty="", none=None) == (
        'INFO it ends request=r-1 attempt=2 why="a b"'
    )
    assert line("it ends") == "INFO it ends"


@pytest.mark.parametrize(
    ("parent", "request_id", "found"),
    [
        (None, None, NO_TRACE),
        (f"00-{TRACE}-00f067aa0ba902b7-01", None, Trace(TRACE, "", True)),
        (f"00-{TRACE}-00f067aa0ba902b7-00", "mine-7", Trace(TRACE, "mine-7", False)),
        (f"cc-{TRACE}-00f067aa0ba902b7-01-what-comes-later", None, Trace(TRACE, "", True)),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", "mine", Trace("", "mine", False)),
        ("nonsense", "two\nlines", NO_TRACE),
        (None, "x" * 129, NO_TRACE),
    ],
)
def test_what_clients_call_their_requests(parent: str | None, request_id: str | None, found: Trace) -> None:
    assert trace_of(parent and parent.encode(), request_id and request_id.encode()) == found  # type: ignore[arg-type]


def test_an_allowance_is_so_much_at_once_and_so_much_a_second() -> None:
    found = Allowance(2.0, 5.0)
    assert [found.take(100.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert [found.take(101.0) for _ in range(3)] == [True, True, False]
    assert found.missed == 3
    assert sum(found.take(10_000.0) for _ in range(10)) == 5


@pytest.mark.parametrize("asked", [True, False])
def test_an_agent_logs_a_request_when_its_client_asks(asked: bool, caplog: pytest.LogCaptureFixture) -> None:
    made = relay()
    with caplog.at_level(logging.INFO, "exahpc"):
        (admit,) = admits(made.submit(P, msgspec.structs.replace(submit("r-1"), told=asked), 1.0))
        feed(made, admit.sequence, "yes", 2.0)
        made.tokens(0, Tokens([], [(admit.sequence, "stop")]), 3.0)
    assert admit.request == ("r-1" if asked else "")
    found = [(record.getMessage(), record.__dict__["told"]["request"]) for record in caplog.records]
    assert [name for _, name in found] == (["r-1"] * 3 if asked else [])
    assert not asked or found[-1][0] == "done in 2.000 s"


def test_a_request_that_is_lost_has_a_line_in_any_case(caplog: pytest.LogCaptureFixture) -> None:
    made = relay()
    made.submit(P, submit("r-1"), 1.0)
    made.replica_gone(0, own_exit=True, story="exit code 9")
    (record,) = caplog.records
    assert record.__dict__["told"] == {
        "request": "r-1", "attempt": 1, "slot": 0, "why": "replica 0 ended by itself: exit code 9"
    }  # fmt: skip


def test_a_story_is_gathered_from_all_files_in_order_under_any_of_its_names(tmp_path: Path) -> None:
    stamp = "2026-01-01 00:00:0{},000 "
    entry, agent, other = (tmp_path / name for name in ("entry.log", "agent.log", "gone.log"))
    entry.write_text(
        stamp.format(1) + line("it goes to a/0", request="cmpl-1", trace=TRACE, client="mine") + "\n"
        + stamp.format(2) + line("it goes to a/1", request="cmpl-10", client="mine-too") + "\n"
        + stamp.format(5) + line("done", request="cmpl-1", trace=TRACE) + "\n"
    )  # fmt: skip
    agent.write_text(
        stamp.format(3) + line("begins", request="cmpl-1", slot=0) + "\n"
        + stamp.format(4) + "a line without fields that names cmpl-1\n"
    )  # fmt: skip
    for name in ("cmpl-1", TRACE, "mine"):
        found = story([agent, entry, other], name)
        assert [text[20 - 2] for _, text in found] == ["1", "3", "4", "5"], name
        assert [path for path, _ in found] == [entry, agent, agent, entry]
    assert [text for _, text in story([entry], "mine-too")] == [entry.read_text().splitlines()[1]]
    assert story([entry, agent], "cmpl-2") == []
