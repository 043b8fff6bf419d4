"""Laws of rollouts, on a fleet that obeys."""

from __future__ import annotations

from typing import Any

import pytest

from exahpc.broker.moving import AWAY_SECONDS, FIRST_AWAY, LEAST_AWAY
from exahpc.broker.rollout import AGAIN_SECONDS
from exahpc.broker.values import JobWord
from exahpc.broker.versions import TRANSITIONS, RolloutState
from exahpc.deployment.policy import Rollout as Gates
from exahpc.errors import DeploymentError, StateError
from exahpc.wire.messages import RolloutCommand, Share
from tests.unit.broker.rolled import SEQUENCES, World


def world(count: int = 8, **changes: Any) -> World:
    gates: dict[str, Any] = {"canary": 0.2, "samples": 20, "seconds": 200.0, "step": 0.25, "switch": 0.5}
    return World(count, Gates(**{**gates, **changes}))


def command(of: World, what: Any) -> None:
    of.act(of.rollout.command(RolloutCommand(what), of.now))


def share(of: World, version: str = "v2") -> float:
    return next((s.share for s in of.rollout.shares if s.version == version), -1.0)


def test_only_the_transitions_of_the_table_exist() -> None:
    phases = {phase for phase, _ in TRANSITIONS} | set(TRANSITIONS.values())
    for phase in phases:
        for event in {event for _, event in TRANSITIONS}:
            state = RolloutState(phase=phase)
            if (phase, event) in TRANSITIONS:
                assert state.step(event, 5.0, "why").phase == TRANSITIONS[phase, event]
            else:
                with pytest.raises(StateError, match=phase):
                    state.step(event, 5.0)


def test_a_good_version_goes_from_a_few_tasks_to_all() -> None:
    w = world()
    w.start("v2")
    assert w.switches == [["a/0", "b/0"]], "a fifth of eight tasks, of all pools"
    assert w.rollout.shares == [Share("", 1.0), Share("v2", 0.0)], "no traffic before it is ready"
    w.until("judging")
    assert share(w) == 0.2
    w.until("widening")
    assert w.versions() == {"", "v2"}
    w.until("done")
    assert [len(keys) for keys in w.switches] == [2, 2, 2, 2], "a quarter at once"
    assert w.versions() == {"v2"}
    assert (w.in_force, w.rollout.shares) == ("v2", [])
    assert [s.phase for s in w.journal if s.tasks][-1] == "done"


def test_from_the_switch_on_all_that_fits_goes_to_the_new_version() -> None:
    w = world(switch=0.4)
    w.start("v2")
    w.until("done")
    given = [shares[1].share for shares in w.shares if len(shares) == 2]
    assert given == sorted(given)
    assert 1.0 in given
    assert not {value for value in given if 0.4 < value < 1.0}


@pytest.mark.parametrize(("kind", "word"), [("failing", "requests failed"), ("never_ready", "not ready within")])
def test_a_bad_version_goes_back_by_itself_and_says_why(kind: str, word: str) -> None:
    w = world()
    getattr(w, kind).add("v2")
    w.start("v2")
    w.until("reverting")
    assert share(w) == 0.0, "at once"
    w.until("reverted")
    assert word in w.rollout.state.story
    assert w.versions() <= {""}
    assert {agent.file for agent in w.agents.values()} == {""}
    assert all(word in note for note in w.rollout.notes())
    assert max(len(s.tasks) for s in w.journal) == 2, "no other task has met it"


def test_an_agent_that_does_not_come_back_ends_it_before_its_supervisor_gives_up() -> None:
    w = world()
    w.start("v2")
    w.run(6)
    w.agents["a/0"].left = w.agents["b/0"].left = 1e9
    began = w.now
    w.until("reverting")
    assert w.now - began == pytest.approx(FIRST_AWAY, abs=2)
    assert "was not back 60 s after" in w.rollout.state.story


def test_an_agent_whose_job_is_over_is_not_waited_for() -> None:
    w = world()
    w.start("v2")
    w.run(6)
    w.agents["a/0"].left, w.agents["a/0"].job = 1e9, JobWord(over="its job 7_0 is over (FAILED)")
    w.run(1)
    assert w.rollout.state.phase == "reverting"
    assert w.rollout.state.story == "a/0: its job 7_0 is over (FAILED)"


def test_a_task_whose_nodes_were_taken_away_is_not_blamed_on_the_version_and_changes_when_it_is_back() -> None:
    w = world()
    w.start("v2")
    w.run(6)
    w.agents["a/0"].left, w.agents["a/0"].job = 1e9, JobWord(taken=True)
    w.until("done")
    assert w.agents["a/0"].file == "v2"


@pytest.mark.parametrize(("others", "patience"), [(3.0, LEAST_AWAY), (20.0, 80.0), (50.0, AWAY_SECONDS)])
def test_how_long_an_agent_is_waited_for_follows_how_long_others_were_away(others: float, patience: float) -> None:
    w = world()
    w.start("v2")
    w.run(4)
    for agent in w.agents.values():
        agent.left = others if not agent.alive else agent.left
    w.until("widening")
    w.run(2)
    last = next(key for key in w.rollout.state.tasks if w.agents[key].phase == "draining")
    w.run(4)
    assert not w.agents[last].alive
    w.agents[last].left, began = 1e9, w.now
    w.until("reverting")
    assert w.now - began == pytest.approx(patience, abs=4)


def test_without_requests_it_is_not_judged_and_goes_back_unless_promoted() -> None:
    for promoted in (False, True):
        w = world()
        w.start("v2")
        w.until("judging")
        if promoted:
            command(w, "promote")
        w.run(600, busy=False)
        assert w.rollout.state.phase == ("done" if promoted else "reverted")
        assert ("rollout.samples = 20" in w.rollout.state.story) is not promoted


def test_promotion_does_not_help_a_version_that_is_never_ready() -> None:
    w = world()
    w.never_ready.add("v2")
    w.start("v2")
    command(w, "promote")
    w.until("reverted")


def test_an_abort_takes_everything_back_a_few_at_once() -> None:
    w = world(12)
    w.start("v2")
    w.until("widening")
    w.run(20)
    changed = len(w.rollout.state.tasks)
    assert changed > 2
    before = len(w.switches)
    command(w, "abort")
    w.until("reverted")
    assert sum(map(len, w.switches[before:])) == changed
    assert max(map(len, w.switches[before:])) <= 3
    assert w.versions() == {""}
    assert w.rollout.state.story == "aborted by command"


def test_a_finished_rollout_can_be_rolled_back_once() -> None:
    w = world()
    w.start("v2")
    w.until("done")
    command(w, "rollback")
    w.run(1)
    assert w.in_force == "", "new tasks get the old version from now on"
    w.until("reverted")
    assert all(agent.serves and agent.version == "" for agent in w.agents.values())
    with pytest.raises(DeploymentError, match="nothing to rollback"):
        command(w, "rollback")
    w.start("v2")
    assert w.rollout.state.phase == "canary"


@pytest.mark.parametrize("waiting", [0, 3 * SEQUENCES])
def test_what_is_left_serves_the_load(waiting: int) -> None:
    w = world(8, step=1.0, seconds=2000.0)
    w.start("v2")
    w.until("widening")
    for agent in w.agents.values():
        agent.running = 3
    w.waiting = waiting
    before = len(w.switches)
    w.until("done")
    # 24 run: with none waiting 4 of 8 replicas are enough for them and the headroom; with 24 waiting, 7
    assert max(map(len, w.switches[before:])) == (4 if not waiting else 1)


def test_a_full_deployment_changes_one_task_at_a_time() -> None:
    w = world(3, seconds=2000.0, step=1.0)
    for agent in w.agents.values():
        agent.running = SEQUENCES
    w.start("v2")
    w.until("done")
    assert [len(keys) for keys in w.switches] == [1, 1, 1]


def test_when_the_old_version_cannot_take_its_share_the_canary_takes_more() -> None:
    w = world(2, canary=0.01)
    w.start("v2")
    w.until("judging")
    assert share(w) == 0.01
    for agent in w.agents.values():
        agent.running = SEQUENCES - 2
    w.run(1)
    assert 0.3 < share(w) <= 0.5


def test_tasks_without_an_agent_change_when_they_are_back_and_nobody_waits_for_them() -> None:
    w = world()
    absent = w.agents["b/3"]
    absent.alive, absent.left = False, 1e9
    w.start("v2")
    assert absent.file == "", "nobody but the canary meets an unknown version"
    w.until("done")
    assert absent.file == "v2"
    absent.left = 0.0
    w.run(20)
    assert w.versions() == {"v2"}


def test_an_agent_that_was_not_told_is_told_again_but_not_all_the_time() -> None:
    w = world()
    w.lossy = True
    w.start("v2")
    w.run(3 * AGAIN_SECONDS + 2)
    assert w.switches == [["a/0", "b/0"]] * 4
    w.lossy = False
    w.until("done")


def test_an_agent_that_comes_with_another_version_is_put_right_at_any_time() -> None:
    w = world()
    w.start("v2")
    w.until("done")
    w.run(30)
    agent = w.agents["a/1"]
    agent.alive, agent.left, agent.file = False, 2.0, ""  # it has read the folder a moment too early
    w.run(30)
    assert w.versions() == {"v2"}
    assert w.rollout.shares == []


def test_a_new_broker_goes_on_where_the_old_one_was() -> None:
    for phase in ("canary", "judging", "widening", "reverting", "done", "reverted"):
        w = world()
        if phase.startswith("revert"):
            w.failing.add("v2")
        w.start("v2")
        w.until(phase)
        w.restart_the_broker()
        assert w.rollout.state.phase == phase
        w.until("reverted" if phase.startswith("revert") else "done")
        w.run(2)
        assert w.versions() == {w.in_force} == {w.rollout.state.current}


def test_one_rollout_at_a_time_and_none_to_where_we_are() -> None:
    w = world()
    with pytest.raises(DeploymentError, match="base is in force already"):
        w.start("")
    for what in ("promote", "abort", "rollback"):
        with pytest.raises(DeploymentError, match="no rollout has been made"):
            command(w, what)
    w.start("v2")
    with pytest.raises(DeploymentError, match="the rollout to v2 is canary: promote it, abort it"):
        w.start("v3")
    with pytest.raises(DeploymentError, match="abort it"):
        command(w, "rollback")
    w.until("done")
    with pytest.raises(DeploymentError, match="v2 is in force already"):
        w.start("v2")
    with pytest.raises(DeploymentError, match="nothing to abort: the rollout from base to v2 is done"):
        command(w, "abort")
    command(w, "rollback")
    with pytest.raises(DeploymentError, match="the rollout to v2 is reverting: wait for its end"):
        w.start("v3")


def test_nothing_begins_while_nothing_serves() -> None:
    w = world(2)
    for agent in w.agents.values():
        agent.phase = "loading"
    with pytest.raises(DeploymentError, match="no task has a ready replica"):
        w.start("v2")


def test_status_tells_both_versions() -> None:
    w = world()
    assert w.rollout.status(w.tasks(), w.now).versions == []
    w.start("v2")
    w.until("judging")
    w.run(5)
    found = w.rollout.status(w.tasks(), w.now)
    old, new = found.versions
    assert (found.current, found.phase, found.tasks) == ("", "judging", 8)
    assert (old.version, old.tasks, old.ready, old.share) == ("", 6, 6, 0.8)
    assert (new.version, new.tasks, new.ready, new.share) == ("v2", 2, 2, 0.2)
    assert old.served > new.served > 0
    assert "requests at the new version" in found.story


def test_a_new_broker_does_not_blame_the_version_for_a_task_that_was_away_before() -> None:
    w = world()
    absent = w.agents["b/3"]
    absent.alive, absent.left = False, 1e9
    w.start("v2")
    w.until("widening")
    w.run(2)
    assert "b/3" in w.rollout.state.tasks
    w.restart_the_broker()
    w.run(AWAY_SECONDS + 30)
    assert w.rollout.state.phase == "done"


def test_the_last_tasks_of_a_version_drain_longer_because_nobody_could_go_on_with_their_requests() -> None:
    w = world(drain_seconds=30.0)
    w.start("v2")
    w.until("done")
    assert w.drains == [30.0, 30.0, 30.0, 100.0]
    command(w, "rollback")
    w.until("reverted")
    assert w.drains[4:] == [30.0, 30.0, 30.0, 100.0]
    w.start("v3")
    w.until("judging")
    command(w, "abort")
    w.run(2)
    assert w.drains[-1] == 100.0, "the canary is all there is of v3"


def test_tasks_that_are_not_wanted_any_more_hold_up_nothing_and_keep_nothing() -> None:
    w = world()
    w.start("v2")
    parked = w.agents.pop("b/0")
    w.until("widening")
    w.failing.add("v2")
    w.until("reverted")
    parked.alive, parked.left = False, 1.0
    w.agents["b/0"] = parked
    w.run(40)
    assert parked.version == "", "it had come with v2, which was given up meanwhile"


def test_a_canary_of_everything_still_leaves_what_serves() -> None:
    w = world(4, canary=1.0, step=1.0)
    w.start("v2")
    assert [len(keys) for keys in w.switches] == [3]
    w = world(4, canary=1.0, step=1.0)
    for agent in w.agents.values():
        agent.running = 4
    w.start("v2")
    assert [len(keys) for keys in w.switches] == [1]
    w.until("done")
