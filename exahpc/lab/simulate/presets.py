"""Scenarios that come with the product, and the deployment that they run on unless a file is given."""

from __future__ import annotations

from exahpc.deployment.policy import Scaling
from exahpc.deployment.spec import Deployment, Head, Model, Pool, SlurmResources
from exahpc.lab.simulate.scenario import (
    AgentKilled,
    Arrivals,
    BrokerRestart,
    FakeAlive,
    Machine,
    NodeDown,
    Request,
    Rollout,
    Scenario,
    Slo,
    Slow,
    SwitchDown,
    Wait,
    Walltime,
)

NODES = 256
_EACH = 12  # replicas on a node
_LONG = Request(share=2.0, prompt=32_768, new=64)
_SHORT = Request(share=98.0)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="steady", about="the reference load, and nothing breaks"),
        Scenario(
            name="bursts",
            about="a third of the reference load, with bursts of three times as much",
            arrivals=Arrivals(kind="bursts", rate_per_replica=110 / 12 / 3),
        ),
        Scenario(
            name="to-zero",
            about="bursts with nothing in between: replicas come with the first requests, and go again",
            seconds=1800.0,
            least=0,
            arrivals=Arrivals(
                kind="bursts", rate_per_replica=0.5, burst=1.0, calm=0.0, burst_seconds=200.0, every_seconds=900.0
            ),
            slo=Slo(first_token=120.0, deadline=300.0),
        ),
        Scenario(
            name="switch",
            about="a switch fails, and with it four nodes",
            seconds=240.0,
            arrivals=Arrivals(rate_per_replica=1.0),
            fault=(SwitchDown(at=20.0),),
        ),
        Scenario(
            name="fake-alive",
            about="one replica in twenty looks alive and does nothing",
            arrivals=Arrivals(rate_per_replica=3.0),
            fault=(FakeAlive(at=10.0, share=0.05),),
        ),
        Scenario(
            name="hot",
            about="one replica in a hundred becomes five times as slow",
            seconds=120.0,
            arrivals=Arrivals(rate_per_replica=1.5),
            fault=(Slow(at=20.0),),
        ),
        Scenario(
            name="long-prompts",
            about="two requests in a hundred have a prompt of 32k tokens",
            arrivals=Arrivals(rate_per_replica=1.2, mix=(_SHORT, _LONG)),
        ),
        Scenario(
            name="rollout",
            about="a new version takes over under load",
            seconds=600.0,
            arrivals=Arrivals(rate_per_replica=0.5),
            fault=(Rollout(at=20.0),),
        ),
        Scenario(
            name="bad-version",
            about="a new version fails at three requests in ten",
            seconds=300.0,
            arrivals=Arrivals(rate_per_replica=0.5),
            fault=(Rollout(at=20.0, fails=0.3),),
        ),
        Scenario(
            name="walltime",
            about="all jobs end within ten minutes; Slurm's queue takes some minutes",
            seconds=3600.0,
            arrivals=Arrivals(rate_per_replica=0.02),
            machine=Machine(queue=Wait(median=120.0, p90=300.0)),
            fault=(Walltime(at=10.0, first=2400.0, last=3000.0),),
        ),
        Scenario(
            name="long-answers",
            about="an hour of 40 long requests a second",
            seconds=3600.0,
            arrivals=Arrivals(rate=40.0, mix=(Request(prompt=2048, new=1024),)),
            machine=Machine(entries=1),
        ),
        Scenario(
            name="mishaps",
            about="broker, agents, a node and replicas fail one after the other",
            seconds=180.0,
            arrivals=Arrivals(rate_per_replica=2.0),
            fault=(
                BrokerRestart(at=20.0),
                AgentKilled(at=40.0, count=3),
                NodeDown(at=60.0, seconds=60.0),
                FakeAlive(at=80.0, share=0.01),
                Slow(at=80.0, share=0.01, times=5.0),
            ),
        ),
    )
}


def reference(scenario: Scenario, nodes: int = NODES) -> Deployment:
    """The reference deployment: so many nodes with twelve replicas each, a quarter of them for long requests where
    the scenario has some."""
    has_long = any(kind.prompt + kind.new > 4096 for kind in scenario.arrivals.mix)
    context = 65_536 if has_long else 4096
    long = max(1, nodes // 4) if has_long else 0
    pools = [_pool("short" if long else "main", nodes - long, "short" if long else "any", scenario.least)]
    if long:
        pools.append(_pool("long", long, "long", scenario.least))
    return Deployment(
        name="reference",
        model=Model(path="/models/reference", context=context),
        head=Head(entries=8),
        slurm=SlurmResources(time="12:00:00"),
        pool=tuple(pools),
    )


def _pool(name: str, nodes: int, length: str, least: int | None) -> Pool:
    return Pool(
        name=name,
        replicas=_EACH * nodes,
        replicas_per_task=_EACH,
        max_sequences=64,
        kv_tokens=262_144,
        length=length,  # type: ignore[arg-type]
        scaling=Scaling(least=least),
    )
