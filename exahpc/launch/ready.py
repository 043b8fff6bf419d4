"""From the first process to READY: what a waiting user is told, and when waiting makes no sense any more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from exahpc.errors import DeploymentError, ExahpcError, LinkError
from exahpc.launch import words
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder
from exahpc.wire.link import ask

_PATIENCE = 5.0
"""Seconds before, and between, two looks into the logs of those that are not up."""
_AGE = re.compile(r" \d+ s ago")
_ORDER: tuple[m.ReplicaPhase, ...] = ("down", "launching", "loading", "canary", "ready", "draining")


class Progress(msgspec.Struct, frozen=True):
    """One look at a deployment that starts. done: steps of `total`; news: lines that were not told before; asleep:
    all was ready, and nobody has asked since (`[pool.scaling]`)."""

    ready: int
    wanted: int
    done: int
    total: int
    text: str
    news: tuple[str, ...] = ()
    asleep: bool = False

    @property
    def is_ready(self) -> bool:
        return self.wanted <= self.ready and (self.wanted > 0 or self.asleep)


def look(folder: Folder, seconds: float = 5.0) -> m.StatusReply | None:
    """The broker's answer; None while none answers."""
    record = folder.head()
    if record is None:
        return None
    try:
        answer = ask(folder.fleet_key(), record.address, m.StatusQuery(), m.BrokerToClient, seconds)
    except LinkError:
        return None
    return answer if isinstance(answer, m.StatusReply) else None


def progress(reply: m.StatusReply, told: set[str]) -> Progress:
    """What to show of this answer; adds to `told` what is news now. A replica takes four steps to be ready."""
    phases = Counter(state.phase for agent in reply.agents for state in agent.replicas)
    phases["down"] += max(0, reply.wanted - phases.total())
    steps = {"launching": 1, "loading": 2, "canary": 3, "ready": 4}
    text = ", ".join(f"{phases[phase]} {phase}" for phase in _ORDER if phases[phase])
    return Progress(
        ready=reply.ready,
        wanted=reply.wanted,
        done=min(sum(steps.get(phase, 0) * count for phase, count in phases.items()), 4 * reply.wanted),
        total=4 * reply.wanted,
        text=text or "waiting for the first agent",
        news=tuple(_fresh(stories(reply), told)),
        asleep=bool(reply.agents) and all(agent.parked for agent in reply.agents),
    )


def stories(reply: m.StatusReply) -> list[str]:
    """What went wrong, replica by replica, and what the broker has to say."""
    lines = [
        f"replica {agent.pool}/{state.slot} (incarnation {state.incarnation}): {state.story}"
        for agent in reply.agents
        for state in agent.replicas
        if state.story and state.phase != "ready"
    ]
    return [*lines, *reply.notes]


def hopeless(reply: m.StatusReply, ended: dict[tuple[str, int, int], set[int]]) -> str | None:
    """Why a replica will not start: a second try met what the deployment file, or what it names, gets wrong.

    ended: incarnations that did so, of each replica (pool, task, slot); this look adds to it.
    """
    for agent in reply.agents:
        for state in agent.replicas:
            if state.phase != "down" or DeploymentError.__name__ not in state.story:
                continue
            tries = ended.setdefault((agent.pool, agent.task, state.slot), set())
            tries.add(state.incarnation)
            if len(tries) > 1:
                return f"replica {agent.pool}/{state.slot} ended like this twice: {state.story}"
    return None


def _fresh(lines: list[str], told: set[str]) -> Iterator[str]:
    """A note that only grew older is no news."""
    for line in lines:
        what = _AGE.sub("", line)
        if what not in told:
            told.add(what)
            yield line


def wait(
    folder: Folder,
    wanted: int,
    *,
    ended: Callable[[], str | None],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    seconds: float | None = None,
) -> Iterator[Progress]:
    """Looks twice a second until all wanted replicas are ready and an entry listens.

    Of a broker or agents that do not come up it shows the ends of their logs.
    ended: why the deployment can never be ready (all its processes or jobs are gone), else None.
    Raises ExahpcError with that reason, or when `seconds` are over; DeploymentError when a replica has ended
    with one twice.
    """
    told: set[str] = set()
    failed: dict[tuple[str, int, int], set[int]] = {}
    start = clock()
    read = start + _PATIENCE
    while True:
        reply = look(folder)
        shown = progress(reply, told) if reply else Progress(0, wanted, 0, 4 * wanted, "waiting for the head")
        if shown.is_ready and folder.endpoint() is None:  # nobody could ask them yet
            shown = msgspec.structs.replace(
                shown, ready=0, done=shown.total - 1, text=f"{shown.text}, no entry yet"
            )
        if not shown.is_ready and clock() >= read:
            read = clock() + _PATIENCE
            shown = msgspec.structs.replace(shown, news=(*shown.news, *words.silent(folder, reply, told)))
        yield shown
        if shown.is_ready:
            return
        reason = ended()
        if reason is not None:
            raise ExahpcError(reason)
        if reply and (reason := hopeless(reply, failed)):
            raise DeploymentError(f"{reason}; it goes on trying: exahpc down {folder.path.name}, then mend it")
        if seconds is not None and clock() - start > seconds:
            raise ExahpcError(f"not ready after {seconds:g} s ({shown.text}); it goes on starting: exahpc status")
        sleep(0.5)
