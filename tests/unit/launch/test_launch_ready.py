"""READY means that all wanted replicas are ready; everything else is told in plain words, once."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import msgspec
import pytest

from exahpc.errors import DeploymentError, ExahpcError
from exahpc.launch import ready
from exahpc.wire import messages as m
from exahpc.wire.folder import Endpoint, Folder

HERE = Endpoint("https://n1:8000/v1", "n1", 8000, None)


def reply(*phases: m.ReplicaPhase, wanted: int, story: str = "", notes: tuple[str, ...] = ()) -> m.StatusReply:
    states = [m.ReplicaState(slot, 1, phase, story=story) for slot, phase in enumerate(phases)]
    agent = m.AgentStatus("a", 0, "n1", "", "", True, 0.0, 0, states)
    count = sum(phase == "ready" for phase in phases)
    return m.StatusReply(1, wanted, count, [agent], [], [], list(notes))


def test_each_phase_is_a_step_towards_ready() -> None:
    seen = [
        ready.progress(reply(phase, wanted=1), set()).done
        for phase in ("down", "launching", "loading", "canary", "ready")
    ]
    assert seen == [0, 1, 2, 3, 4]


def test_replicas_that_no_agent_reported_count_as_down() -> None:
    found = ready.progress(reply("ready", wanted=3), set())
    assert (found.text, found.is_ready, found.done, found.total) == ("2 down, 1 ready", False, 4, 12)


def test_a_broker_that_knows_nothing_yet_is_not_ready() -> None:
    assert not ready.progress(reply(wanted=0), set()).is_ready


def test_a_deployment_that_fell_asleep_before_we_looked_was_ready() -> None:
    found = reply(wanted=0)
    parked = msgspec.structs.replace(found, agents=[msgspec.structs.replace(a, parked=True) for a in found.agents])
    assert ready.progress(parked, set()).is_ready


def test_a_note_that_only_grew_older_is_not_told_again() -> None:
    told: set[str] = set()
    for age, news in ((1, 1), (2, 0), (30, 0)):
        answer = reply("down", wanted=1, notes=(f"a/0 on n1: agent ended {age} s ago (no directory)",))
        assert len(ready.progress(answer, told).news) == news


def test_a_story_is_told_once() -> None:
    told: set[str] = set()
    answer = reply("down", wanted=1, story="exit code 1: no such file", notes=("pool a waits for nodes",))
    first = ready.progress(answer, told).news
    assert first == ("replica a/0 (incarnation 1): exit code 1: no such file", "pool a waits for nodes")
    assert ready.progress(answer, told).news == ()


def run(
    answers: list[m.StatusReply | None],
    ended: list[str | None],
    seconds: float | None = None,
    endpoints: list[Endpoint | None] | None = None,
) -> list[ready.Progress]:
    now = iter(float(n) for n in range(1000))
    found = endpoints or [HERE]
    with (
        mock.patch.object(ready, "look", side_effect=answers),
        mock.patch.object(Folder, "endpoint", side_effect=found),
    ):
        return list(
            ready.wait(
                Folder(Path("/nowhere")), 1, ended=iter(ended).__next__, clock=lambda: next(now),
                sleep=lambda _: None, seconds=seconds,
            )
        )  # fmt: skip


def test_waiting_ends_with_ready() -> None:
    looks = run([None, reply("loading", wanted=1), reply("ready", wanted=1)], [None, None])
    assert [look.text for look in looks] == ["waiting for the head", "1 loading", "1 ready"]


def test_replicas_that_nobody_can_ask_are_not_ready() -> None:
    looks = run([reply("ready", wanted=1)] * 2, [None], endpoints=[None, HERE])
    assert [look.text for look in looks] == ["1 ready, no entry yet", "1 ready"]
    assert looks[0].done < looks[0].total


def test_waiting_ends_when_everything_is_gone() -> None:
    with pytest.raises(ExahpcError, match="all jobs have ended"):
        run([None, None], [None, "all jobs have ended"])


def dead(incarnation: int, story: str, phase: m.ReplicaPhase = "down") -> m.StatusReply:
    state = m.ReplicaState(0, incarnation, phase, story=story)
    return m.StatusReply(1, 1, 0, [m.AgentStatus("a", 0, "n1", "", "", True, 0.0, 0, [state])], [], [], [])


MISTAKE = "exahpc.errors.DeploymentError: model.stage = '/x': no (exit code 1)"


def test_waiting_ends_when_a_replica_meets_a_wrong_deployment_twice() -> None:
    answers: list[m.StatusReply | None] = [dead(1, MISTAKE), dead(1, MISTAKE), dead(2, MISTAKE)]
    with pytest.raises(DeploymentError, match=r"a/0 ended like this twice: .*model\.stage = '/x'.*exahpc down"):
        run(answers, [None] * 3)


@pytest.mark.parametrize(
    "second", [dead(2, "signal SIGKILL"), dead(1, MISTAKE), dead(2, MISTAKE, "launching")], ids=str
)
def test_waiting_goes_on_while_another_try_may_help(second: m.StatusReply) -> None:
    looks = run([dead(1, MISTAKE), second, reply("ready", wanted=1)], [None] * 2)
    assert looks[-1].is_ready


def test_waiting_ends_after_its_time() -> None:
    with pytest.raises(ExahpcError, match="not ready after 2 s"):
        run([None] * 9, [None] * 9, seconds=2)


def test_those_that_do_not_come_up_are_quoted_while_we_wait(tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "d", 'name = "d"')
    folder.logs("head", "broker.log").write_text("address in use\n")
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    told = []
    looks = ready.wait(folder, 1, ended=lambda: None, clock=lambda: now[0], sleep=sleep)
    with mock.patch.object(ready, "look", return_value=None):
        while now[0] < 60.0:
            told += [(now[0], line) for line in next(looks).news]
    assert told == [(5.0, "head is not up; its log ends with: address in use")]
