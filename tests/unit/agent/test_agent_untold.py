"""When the streams of an agent are told: at once below a load, and with two or three tokens a frame above it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exahpc.agent.actions import ToPeer
from exahpc.agent.choice import Choice
from exahpc.agent.untold import LONGEST_PAUSE, PROGRESS_SECONDS, Untold
from exahpc.wire.messages import Frames


class Stream:
    """Takes the place of a `Choice`: its tokens are the times at which they came."""

    def __init__(self, number: int, slot: int) -> None:
        self.number, self.job = number, SimpleNamespace(peer=b"e", slot=slot)
        self.fresh: list[float] = []

    @property
    def untold(self) -> bool:
        return bool(self.fresh)

    def take_frame(self) -> list[float]:
        taken, self.fresh = self.fresh, []
        return taken


class Agent:
    """Replicas of `streams` streams each; told: (when, tokens) of every frame."""

    def __init__(self, replicas: int, streams: int) -> None:
        self.untold = Untold()
        self.slots = [[Stream(number, slot) for number in range(streams)] for slot in range(replicas)]
        self.told: list[tuple[float, list[float]]] = []

    def step(self, slot: int, now: float) -> None:
        bunch = self.untold.bunch(slot)
        for stream in self.slots[slot]:
            stream.fresh.append(now)
            bunch.choices[cast(Choice, stream)] = None
        self.untold.stepped(bunch, now)
        self.look(now)

    def look(self, now: float, *, everything: bool = False) -> None:
        for action in self.untold.due(now, everything=everything):
            assert isinstance(action, ToPeer)
            assert isinstance(action.message, Frames)
            self.told += [(now, cast(Any, frame)) for frame in action.message.frames]

    def run(self, seconds: float, step: float) -> None:
        """Replicas step in turn, each every `step` seconds; the clock goes in milliseconds, as the loop's does."""
        due = [slot * step / len(self.slots) for slot in range(len(self.slots))]
        for tick in range(int(seconds * 1000)):
            now = tick / 1000
            for slot, when in enumerate(due):
                if when <= now:
                    due[slot] += step
                    self.step(slot, now)
            if self.untold.until <= now:
                self.look(now)

    def after(self, begin: float) -> list[tuple[float, list[float]]]:
        return [(when, tokens) for when, tokens in self.told if when >= begin]


@settings(max_examples=25)
@given(replicas=st.integers(1, 4), streams=st.integers(1, 8), step=st.floats(0.005, 0.08))
def test_no_token_waits_longer_than_the_longest_pause_and_each_is_told_once(
    replicas: int, streams: int, step: float
) -> None:
    agent = Agent(replicas, 25 * streams)
    agent.run(0.6, step)
    agent.look(2.0, everything=True)
    for when, tokens in agent.told[: -len(agent.slots) * 25 * streams]:
        assert when - tokens[0] <= LONGEST_PAUSE + 0.001
    for streams_ in agent.slots:
        assert not any(stream.fresh for stream in streams_)


def test_below_eight_thousand_tokens_a_second_nothing_waits() -> None:
    agent = Agent(4, 39)  # 50 tokens a second each
    agent.run(2.0, 0.02)
    assert all(tokens == [when] for when, tokens in agent.told)


@pytest.mark.parametrize(("step", "together"), [(0.02, 3), (0.024, 3), (0.04, 2), (0.06, 1)])
def test_under_load_a_frame_carries_what_its_replica_makes_within_the_pause(step: float, together: int) -> None:
    agent = Agent(4, 250)
    agent.run(2.0, step)
    sizes = [len(tokens) for _, tokens in agent.after(1.0)]
    assert sum(sizes) / len(sizes) > together - 0.2
    if together == 1:
        assert all(tokens == [when] for when, tokens in agent.told), "the next step would come too late"


def test_a_load_that_is_over_makes_nobody_wait() -> None:
    agent = Agent(1, 2000)
    agent.run(1.0, 0.02)
    agent.look(2.0, everything=True)
    del agent.slots[0][1:]
    agent.told.clear()
    agent.step(0, 3.0)
    assert agent.told == [(3.0, [3.0])]


def test_what_cannot_wait_takes_its_replicas_streams_along() -> None:
    agent = Agent(2, 2000)
    agent.run(1.0, 0.02)
    agent.look(1.0, everything=True)
    agent.told.clear()
    for slot in (0, 1):
        agent.step(slot, 1.01)
    assert agent.told == []
    agent.untold.soon(cast(Choice, agent.slots[1][0]))
    agent.look(1.02)
    assert len(agent.told) == 2000, "those of the other replica wait"


def test_what_is_forgotten_is_not_told() -> None:
    agent = Agent(1, 1)
    (stream,) = agent.slots[0]
    stream.fresh.append(1.0)
    agent.untold.soon(cast(Choice, stream))
    agent.untold.ids[cast(Choice, stream)] = None
    agent.untold.forget([cast(Choice, stream)])
    agent.look(10.0, everything=True)
    assert agent.told == []


def test_ids_without_text_are_told_every_now_and_then() -> None:
    agent = Agent(1, 1)
    (stream,) = agent.slots[0]
    for now in (0.0, PROGRESS_SECONDS / 2, PROGRESS_SECONDS):
        stream.fresh.append(now)
        agent.untold.ids[cast(Choice, stream)] = None
        agent.look(now)
    assert agent.told == [(0.0, [0.0]), (PROGRESS_SECONDS, [PROGRESS_SECONDS / 2, PROGRESS_SECONDS])]
