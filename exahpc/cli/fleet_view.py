"""Tables of `exahpc status`: each replica of a small deployment; of a large one the pools and what is not well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from exahpc.deployment.versions import named
from exahpc.wire.messages import AgentStatus, EntryStatus, ReplicaState, StatusReply

MOST_ROWS = 48
"""Replicas (and entries) up to which each has its row."""
_COLOURS = {
    "ready": "green", "draining": "yellow", "down": "red",
    "degraded": "yellow", "tripped": "red", "silent": "red", "restarting": "red",
}  # fmt: skip


_WHOLE = {"task", "node", "slot", "state", "pool", "replicas", "entry", "url"}
"""Columns that a narrow terminal does not cut: without them a row says nothing."""


def table(*columns: str) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        shown.add_column(name, no_wrap=name in _WHOLE)
    return shown


def fleet(reply: StatusReply, *, every: bool) -> Iterator[RenderableType]:
    """every: a row for each replica, however many there are."""
    versions = Counter(agent.version for agent in reply.agents if agent.alive)
    if set(versions) - {""}:
        yield Text("versions: " + ", ".join(f"{named(label)} {count} tasks" for label, count in versions.items()))
    rows = sum(max(1, len(agent.replicas)) for agent in reply.agents)
    if every or rows <= MOST_ROWS:
        yield _replicas(reply.agents, every=True)
        return
    yield _pools(reply)
    ill = [agent for agent in reply.agents if not _well(agent)]
    if ill:
        yield _replicas(ill, every=False)


def entries(rows: list[EntryStatus], *, every: bool) -> Table:
    shown = table("entry", "url", "in flight", "waiting", "done", "failed")
    if not every and len(rows) > MOST_ROWS:
        counts = (sum(counted) for counted in zip(*map(_counts, rows), strict=True))
        shown.add_row(f"all {len(rows)}", "", *map(str, counts))
        return shown
    for entry in rows:
        shown.add_row(f"{entry.node or 'head'} {entry.index}", entry.url, *map(str, _counts(entry)))
    return shown


def _counts(entry: EntryStatus) -> tuple[int, ...]:
    return entry.in_flight, entry.waiting, entry.done, entry.failed


def _pools(reply: StatusReply) -> Table:
    shown = table("pool", "tasks", "replicas", "running", "waiting", "tokens/s", "latency")
    pools: dict[str, list[AgentStatus]] = {}
    for agent in reply.agents:
        pools.setdefault(agent.pool, []).append(agent)
    for name, agents in pools.items():
        replicas = [state for agent in agents for state in agent.replicas]
        counts = Counter(_state(state, agent)[0] for agent in agents for state in agent.replicas)
        alive = sum(agent.alive for agent in agents)
        measured = [state.service.ttft for state in replicas if state.service.ttft]
        paces = [state.service.tbt for state in replicas if state.service.tbt]
        shown.add_row(
            name,
            f"{alive}/{len(agents)}",
            ", ".join(f"{count} {state}" for state, count in counts.most_common()),
            str(sum(state.running for state in replicas)),
            str(sum(state.waiting for state in replicas)),
            f"{sum(state.token_rate for state in replicas):.0f}",
            latency(_median(measured), _median(paces)),
        )
    return shown


def _well(agent: AgentStatus) -> bool:
    if not agent.alive:
        return agent.parked
    return not agent.health and all(state.phase == "ready" for state in agent.replicas)


def _replicas(agents: list[AgentStatus], *, every: bool) -> Table:
    """every: also the replicas that are well, and no bound."""
    shown = table(
        "task", "node", "job", "slot", "state", "running", "waiting", "tokens/s", "latency", "idle", "KV free",
        "restarts", "",
    )  # fmt: skip
    left = 0
    for agent in agents:
        first = [
            f"{agent.pool}/{agent.task} {agent.version}".strip(),
            agent.node,
            f"{agent.job} {agent.job_state}".strip(),
        ]
        rows = [_replica(agent, state) for state in agent.replicas if every or _state(state, agent)[0] != "ready"]
        for row in rows or [["", _alive(agent)]]:
            if not every and shown.row_count >= MOST_ROWS:
                left += 1
                continue
            shown.add_row(*first, *row)
            first = ["", "", ""]
    if left:
        shown.add_row(f"... and {left} more (--all)")
    return shown


def _alive(agent: AgentStatus) -> Text:
    if agent.parked and not agent.alive:
        return Text("parked", "dim")
    return Text("waiting") if agent.alive else Text(f"lost, last beat {agent.beat_age:.0f} s ago", "red")


def _state(state: ReplicaState, agent: AgentStatus) -> tuple[str, str]:
    """(state, why) of a replica: its health where that is the trouble, else its phase."""
    for slot, health, why in agent.health:
        if slot == state.slot and state.phase == "ready":
            return health, why
    return state.phase, state.story


def _replica(agent: AgentStatus, state: ReplicaState) -> list[str | Text]:
    name, why = _state(state, agent)
    return [
        f"{state.slot}.{state.incarnation}",
        Text(name, _COLOURS.get(name, "cyan")) if agent.alive else _alive(agent),
        str(state.running),
        str(state.waiting),
        f"{state.token_rate:.0f}",
        latency(state.service.ttft, state.service.tbt),
        _idle(state.idle),
        str(state.kv_free),
        str(state.restarts),
        Text(why, "dim"),
    ]


def latency(ttft: float, tbt: float) -> str:
    """To the first token, and between tokens."""
    return f"{ttft * 1000:.0f} / {tbt * 1000:.0f} ms" if ttft else ""


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def _idle(shares: list[float]) -> str:
    """Of several ranks, how long the busiest and the least busy had nothing to do while there was work."""
    if len(shares) < 2:
        return ""
    low, high = round(min(shares) * 100), round(max(shares) * 100)
    return f"{low} %" if low == high else f"{low}-{high} %"
