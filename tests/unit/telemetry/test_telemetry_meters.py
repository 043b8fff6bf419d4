"""Laws of what agents and entries measure and push."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from exahpc.telemetry.histogram import Histogram
from exahpc.telemetry.meters import CLIENT_LEFT, EVERY, AgentMeter, EntryMeter, Totals
from exahpc.wire.messages import AgentRollup, EntryRollup

NOTHING = Totals(0, 0, 0, 0, {})


class Link:
    def __init__(self) -> None:
        self.up, self.sent = True, list[Any]()

    def send(self, message: Any) -> bool:
        if self.up:
            self.sent.append(message)
        return self.up


def test_who_measured_nothing_says_nothing() -> None:
    link, agent, entry = Link(), AgentMeter(), EntryMeter()
    for now in range(0, 100, 2):
        agent.push(link.send, now)
        entry.push(link.send, NOTHING, now)
    assert link.sent == []


def test_rollups_are_ten_seconds_apart_and_together_are_all_that_was_measured() -> None:
    link, agent, whole = Link(), AgentMeter(), Histogram()
    times = []
    for now in range(0, 60, 2):
        agent.ended(0.5 + now, 100, now)
        whole.seconds(0.5 + now)
        before = len(link.sent)
        agent.push(link.send, float(now))
        times += [now] * (len(link.sent) - before)
    agent.push(link.send, 1000.0)
    assert all(b - a >= EVERY for a, b in pairwise(times))
    merged = Histogram()
    for message in link.sent:
        assert isinstance(message, AgentRollup)
        merged.merge(message.sketches["e2e"])
    assert merged.sketch() == whole.sketch()


def test_what_could_not_be_sent_is_sent_later_and_once() -> None:
    link, agent, entry = Link(), AgentMeter(), EntryMeter()
    link.up = False
    agent.ttft.seconds(1.0)
    entry.done(1.0)
    for now in (0.0, 2.0, 4.0):
        agent.push(link.send, now)
        entry.push(link.send, NOTHING._replace(resent=3), now)
    link.up = True
    for now in (6.0, 20.0):
        agent.push(link.send, now)
        entry.push(link.send, NOTHING._replace(resent=3), now)
    first, second = link.sent
    assert first.sketches["ttft"].counts
    assert (second.statuses, second.resent) == ({200: 1}, 3)


def test_a_failure_goes_with_the_next_beat_and_a_refusal_waits() -> None:
    link, entry = Link(), EntryMeter()
    entry.done(0.1)
    entry.push(link.send, NOTHING, 0.0)
    entry.refused(429)
    entry.refused(CLIENT_LEFT)
    entry.push(link.send, NOTHING, 2.0)
    assert len(link.sent) == 1
    entry.refused(503)
    entry.push(link.send, NOTHING._replace(refused={"no_capacity": 1}), 4.0)
    told = link.sent[1]
    assert isinstance(told, EntryRollup)
    assert (told.statuses, told.refused) == ({429: 1, CLIENT_LEFT: 1, 503: 1}, {"no_capacity": 1})


def test_counts_that_others_keep_travel_as_what_was_added() -> None:
    link, entry = Link(), EntryMeter()
    reasons = {"queue_full": 2}
    entry.push(link.send, Totals(1, 2, 30, 20, reasons), 0.0)
    reasons["queue_full"] = 5  # the same dict, as the desk has it
    entry.push(link.send, Totals(1, 4, 40, 25, reasons), 20.0)
    assert [(r.resent, r.busy, r.known, r.affine, r.refused) for r in link.sent] == [
        (1, 2, 30, 20, {"queue_full": 2}),
        (0, 2, 10, 5, {"queue_full": 3}),
    ]
