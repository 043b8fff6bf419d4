"""What `exahpc status` shows, with plain words for what is wrong. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from exahpc.broker.fleet import Fleet
from exahpc.broker.recovery import Recovery
from exahpc.broker.values import AgentView
from exahpc.deployment.spec import Deployment
from exahpc.slurm.api import JobRecord
from exahpc.wire.messages import AgentStatus, BatchStatus, EntryStatus, ReplicaState, StatusReply

MOST_NOTES = 20
SUPERVISED_SECONDS = 60.0
"""A local agent that is away for longer has no supervisor that starts it again."""


def reply(
    deployment: Deployment,
    fleet: Fleet,
    recovery: Recovery | None,
    entries: Sequence[EntryStatus],
    batches: Sequence[BatchStatus],
    notes: Iterable[str],
    ill: Callable[[str], list[tuple[int, str, str]]],
    now: float,
    node_hours: float = 0.0,
    *,
    draining: bool = False,
) -> StatusReply:
    """recovery: None with the local launcher; notes: the broker's own, shown first; ill: (slot, state, why) of an
    agent's replicas that are not healthy."""
    agents: list[AgentStatus] = []
    troubles: list[str] = []
    waiting: Counter[tuple[str, str]] = Counter()
    ready: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for view, restarts, heard, replicas in fleet.snapshot():
        record = recovery.record(view.key) if recovery else None
        age = now - heard if heard else -1.0
        agents.append(_agent(view, restarts, age, replicas, ill(view.key), record, recovery))
        ready[view.pool] += sum(replica.phase == "ready" for replica in replicas)
        wanted[view.pool] += 0 if view.parked else len(deployment.pool_named(view.pool).slots_of_task(view.task))
        if view.phase == "alive":
            troubles += _of_replicas(view, replicas)
        elif view.parked:
            continue
        elif record is not None and record.state in ("pending", "requeued"):
            waiting[view.pool, record.reason or record.raw] += 1
        else:
            troubles.append(_of_absent(view, recovery, now))
    lines = list(notes)
    for pool in deployment.pool:
        if ready[pool.name] < wanted[pool.name]:
            lines.append(f"pool {pool.name}: {ready[pool.name]} of {wanted[pool.name]} replicas are ready")
    for (name, reason), count in sorted(waiting.items()):
        lines.append(f"pool {name}: {count} {_tasks(count)} in Slurm's queue: {reason}")
    lines += troubles
    if len(lines) > MOST_NOTES:
        lines[MOST_NOTES:] = [f"... and {len(lines) - MOST_NOTES} more of this kind"]
    return StatusReply(
        epoch=fleet.epoch,
        wanted=wanted.total(),
        ready=ready.total(),
        agents=agents,
        entries=list(entries),
        batches=list(batches),
        notes=lines,
        node_hours=node_hours,
        draining=draining,
    )


def _tasks(count: int) -> str:
    return "task waits" if count == 1 else "tasks wait"


def _agent(
    view: AgentView,
    restarts: int,
    age: float,
    replicas: list[ReplicaState],
    health: list[tuple[int, str, str]],
    record: JobRecord | None,
    recovery: Recovery | None,
) -> AgentStatus:
    state = ""
    if record is not None:
        state = f"{record.raw} ({record.reason})" if record.reason else record.raw
    return AgentStatus(
        pool=view.pool,
        task=view.task,
        node=view.node,
        job=recovery.job(view.key) if recovery else view.job,
        job_state=state,
        alive=view.phase == "alive",
        beat_age=age,
        restarts=restarts,
        replicas=replicas,
        health=health,
        version=view.version,
        parked=view.parked,
        expected=view.phase == "expected",
    )


def _of_replicas(view: AgentView, replicas: list[ReplicaState]) -> list[str]:
    """Replicas that are down, or were restarted and are not ready yet, with the last thing they said."""
    return [
        f"{view.key} replica {replica.slot} is {replica.phase}"
        + (f" after {replica.restarts} restarts" if replica.restarts else "")
        + f": {replica.story}"
        for replica in replicas
        if replica.story and (replica.phase == "down" or (replica.restarts and replica.phase != "ready"))
    ]


def _of_absent(view: AgentView, recovery: Recovery | None, now: float) -> str:
    where = f" on {view.node}" if view.node else ""
    match view.phase:
        case "unheard":
            text = f"{view.key}: its agent has not come up yet"
        case "expected":
            text = f"{view.key}{where}: not heard since the broker's restart {now - view.since:.0f} s ago"
        case "lost" | "alive":
            text = f"{view.key}{where}: agent lost {now - view.since:.0f} s ago ({view.reason})"
        case "gone":
            text = f"{view.key}{where}: agent ended {now - view.since:.0f} s ago ({view.reason})"
    story = recovery.story(view.key) if recovery else _local(view, now)
    return f"{text}; {story}" if story else text


def _local(view: AgentView, now: float) -> str:
    """Without Slurm only the task's supervisor starts an agent again, within seconds; nobody restarts that one."""
    if view.phase in ("lost", "gone") and now - view.since > SUPERVISED_SECONDS:
        return "its supervisor is gone or gave up (exahpc logs): `exahpc down`, then `exahpc up` starts it again"
    return "its log tells more (exahpc logs)"
