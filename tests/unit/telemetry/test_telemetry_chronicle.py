"""Laws of what is remembered of a replica."""

from __future__ import annotations

from exahpc.telemetry.chronicle import MOST_MOMENTS, Chronicle
from exahpc.telemetry.tally import Seen
from exahpc.wire.messages import ReplicaPhase, ReplicaState


def task(phase: ReplicaPhase = "ready", incarnation: int = 1, story: str = "", **more: object) -> Seen:
    made = Seen("a/0", "a", "n0", 1, True, 1, 100, [ReplicaState(0, incarnation, phase, story=story)])
    return made._replace(**more)


def texts(*looks: Seen) -> list[str]:
    chronicle = Chronicle()
    for number, seen in enumerate(looks):
        chronicle.look([seen], 10.0 * number)
    return [moment.text for moment in chronicle.of("a/0", 0)]


def test_each_change_is_told_once_with_its_reason() -> None:
    died = task("down", story="exit code 137")
    looks = [task("loading"), task(), task(), died, died, task("loading", 2), task("ready", 2)]
    assert texts(*looks) == [
        "agent 1 is up on n0", "loading, incarnation 1", "ready", "down: exit code 137", "loading, incarnation 2",
        "ready",
    ]  # fmt: skip


def test_what_happens_to_its_task_belongs_to_its_story() -> None:
    lost = task(heard=False)
    found = texts(task(), lost, task(), lost, task(life=2, node="n1", version="v2"))
    assert found[2:] == [
        "agent 1 on n0 is not heard any more", "agent 1 on n0 is heard again",
        "agent 1 on n0 is not heard any more", "agent 2 is up on n1", "version first becomes v2",
    ]  # fmt: skip


def test_illness_is_told_and_ends() -> None:
    assert texts(task(), task(ill={0: "tripped"}), task())[2:] == ["tripped", "ready"]


def test_it_stays_small_whatever_happens_and_long_words_are_cut() -> None:
    looks = [task("down" if n % 2 else "ready", n, "x" * 9000) for n in range(200)]
    found = texts(*looks)
    assert len(found) <= 2 * MOST_MOMENTS
    assert max(map(len, found)) <= 200
    assert found[-1].startswith("down, incarnation 199")
