"""What `status` says of a task that nobody but its supervisor could start again."""

from __future__ import annotations

from exahpc.broker import status
from exahpc.broker.fleet import Fleet
from exahpc.deployment.spec import Deployment, Launcher, Model, Pool
from exahpc.wire import messages as m

DEPLOYMENT = Deployment(
    name="t", model=Model(path="/m"), pool=(Pool(name="a", replicas=1),), launcher=Launcher(kind="local")
)


def notes(fleet: Fleet, now: float) -> str:
    return "\n".join(status.reply(DEPLOYMENT, fleet, None, [], [], [], lambda _: [], now).notes)


def test_a_local_task_that_stays_away_says_what_to_do_once_its_supervisor_had_its_time() -> None:
    fleet = Fleet(DEPLOYMENT, 1, 0.0)
    hello = m.AgentHello(
        pool="a", task=0, incarnation=1, node="here", address="tcp://here:1", job="", restarts=0, epoch=1,
        replicas=[], leases=[],
    )  # fmt: skip
    fleet.hello(b"p", hello, 0.0)
    for now in range(1, 12):
        fleet.tick(float(now))
    (view,) = fleet.absent()
    assert view.phase == "lost"
    assert "exahpc logs" in notes(fleet, view.since + 5)
    assert "exahpc up" not in notes(fleet, view.since + 5)
    assert "`exahpc down`, then `exahpc up` starts it again" in notes(fleet, view.since + 61)
