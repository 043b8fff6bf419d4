"""The head rank's socket: only the agent that adopted it is heard, one message after the other, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exahpc.replica.mouth import Mouth
from exahpc.wire import channel
from exahpc.wire.messages import Abort, Admit, Admits, Adopt, Message, NoRoom
from tests.dialled import Dialled


@pytest.fixture
def mouth(tmp_path: Path) -> Iterator[Mouth]:
    made = Mouth(tmp_path / "s")
    yield made
    made.close()


def admit(sequence: int) -> Admit:
    return Admit(sequence=sequence, ids=[1], new=1, position=0, seed=0, stream=0, stop_ids=[])


def hear(mouth: Mouth, count: int) -> list[Message]:
    heard: list[Message] = []
    while len(heard) < count:
        assert mouth.poll(30.0), heard
        while (message := mouth.receive()) is not None:
            heard.append(message)
    return heard


def test_sequences_that_came_together_are_received_one_by_one_and_in_order(mouth: Mouth, tmp_path: Path) -> None:
    agent = Dialled(tmp_path / "s")
    agent.send(Adopt("a"), admit(1), Admits([admit(2), admit(3)]), Abort(2), Admits([]), admit(4))
    assert hear(mouth, 6) == [Adopt("a"), admit(1), admit(2), admit(3), Abort(2), admit(4)]


def test_an_agent_that_was_replaced_is_not_heard(mouth: Mouth, tmp_path: Path) -> None:
    agents = []
    for name in ("old", "new"):
        agents.append(Dialled(tmp_path / "s"))
        agents[-1].send(Adopt(name))
        assert hear(mouth, 1) == [Adopt(name)]
    agents[0].send(Admits([admit(1), admit(2)]), Adopt("old"))  # the last one shows that the first was read
    assert hear(mouth, 1) == [Adopt("old")]


def test_of_agents_that_came_while_nobody_listened_the_last_one_counts_even_if_the_others_are_gone(
    mouth: Mouth, tmp_path: Path
) -> None:
    for name in ("first", "second", "third"):
        agent = Dialled(tmp_path / "s")
        agent.send(Adopt(name), admit(2))
        if name != "third":
            agent.channel.close()
    assert hear(mouth, 2) == [Adopt("third"), admit(2)]
    agent.send(admit(1))
    assert hear(mouth, 1) == [admit(1)]
    assert mouth.send(NoRoom(1, "x"))
    assert agent.poll(30)


def test_an_agent_that_is_gone_shows_when_it_is_sent_something(mouth: Mouth, tmp_path: Path) -> None:
    assert not mouth.send(NoRoom(1, "x"))
    agent = Dialled(tmp_path / "s")
    agent.send(Adopt("a"))
    hear(mouth, 1)
    assert mouth.send(NoRoom(1, "x"))
    agent.channel.close()
    end = time.monotonic() + 30
    while mouth.send(NoRoom(1, "x")):
        assert time.monotonic() < end
    assert mouth.receive() is None
    assert not mouth.poll(0)


def test_what_an_agent_does_not_read_yet_is_kept_and_arrives_in_order(mouth: Mouth, tmp_path: Path) -> None:
    agent = Dialled(tmp_path / "s")
    agent.send(Adopt("a"))
    hear(mouth, 1)
    words = [NoRoom(number, "x" * 1000) for number in range(2000)]  # more than a socket holds
    assert all(mouth.send(word) for word in words)
    heard = []
    while len(heard) < len(words):
        mouth.receive()
        assert agent.poll(30)
        heard.append(agent.receive())
    assert heard == [mouth._encode(word) for word in words]
    assert not mouth.poll(0)


def test_an_agent_that_never_reads_counts_as_gone_in_the_end(
    mouth: Mouth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_MOST_UNREAD", 10_000)
    agent = Dialled(tmp_path / "s")
    agent.send(Adopt("a"))
    hear(mouth, 1)
    sent = 0
    while mouth.send(NoRoom(1, "x" * 1000)):
        sent += 1
        assert sent < 100_000
    agent = Dialled(tmp_path / "s")
    agent.send(Adopt("b"))
    assert hear(mouth, 1) == [Adopt("b")]


def test_what_a_dead_replica_left_at_its_path_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "s"
    channel.listening(path).close()
    assert path.exists()
    mouth = Mouth(path)
    agent = Dialled(path)
    agent.send(Adopt("a"))
    assert hear(mouth, 1) == [Adopt("a")]
    assert path.stat().st_mode & 0o777 == 0o600
    mouth.close()
    assert not path.exists()
