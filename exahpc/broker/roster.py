"""Who is where: the agents of all tasks by task, by connection, and by when they were last heard. Pure bookkeeping
for `fleet`, which decides.

A task has one *current* agent, and while it is succeeded another one beside it: the *next* before the hand-over,
the *leaving* after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from exahpc.broker.member import Member
from exahpc.broker.values import AgentPhase, AgentView
from exahpc.deployment.spec import Deployment
from exahpc.wire.messages import AgentRoute, ReplicaState


class Roster:
    """The cost of a quiet beat is one move in an ordered dict."""

    def __init__(self, deployment: Deployment, now: float) -> None:
        self.current: dict[str, Member] = {}
        for pool in deployment.pool:
            for task in range(pool.tasks):
                key = f"{pool.name}/{task}"
                self.current[key] = Member(key, pool, task, since=now)
        self.next: dict[str, Member] = {}
        self.leaving: dict[str, Member] = {}
        self.expected: set[str] = set()
        self._absent: dict[str, None] = dict.fromkeys(self.current)  # current ones not alive; a dict for its order
        self._heard: OrderedDict[Member, None] = OrderedDict()  # alive ones, the longest silent first
        self._peers: dict[bytes, Member] = {}

    # --- changes ---------------------------------------------------------------------------------------------

    def connect(self, member: Member, peer: bytes, now: float) -> None:
        """It speaks on this connection from now on."""
        self.disconnect(member)
        self._peers[peer], member.peer = member, peer
        self.listen(member, now)

    def disconnect(self, member: Member) -> None:
        if member.peer is not None:
            self._peers.pop(member.peer, None)
            member.peer = None

    def listen(self, member: Member, now: float) -> None:
        member.heard = now
        self._heard[member] = None
        self._heard.move_to_end(member)

    def enter(self, member: Member, phase: AgentPhase, now: float) -> None:
        if member.phase != phase:
            member.phase, member.since = phase, now
        if phase != "alive":
            self._heard.pop(member, None)
        if member.role != "current":
            return
        self.expected.discard(member.key)
        if phase == "alive":
            self._absent.pop(member.key, None)
        else:
            self._absent[member.key] = None
        if phase == "expected":
            self.expected.add(member.key)

    def succeed(self, new: Member) -> None:
        """`new` is its task's current agent from now on. One that was leaving still is listened to no more."""
        key, old = new.key, self.current[new.key]
        del self.next[key]
        if key in self.leaving:
            self.dismiss(self.leaving[key])
        self._absent.pop(key, None)
        self.current[key], new.role = new, "current"
        if old.peer is not None:
            self.leaving[key], old.role = old, "leaving"

    def dismiss(self, member: Member) -> None:
        """Forget an agent that is not its task's current one."""
        self.disconnect(member)
        self._heard.pop(member, None)
        for others in (self.next, self.leaving):
            if others.get(member.key) is member:
                del others[member.key]

    # --- look-ups --------------------------------------------------------------------------------------------

    def on(self, peer: bytes) -> Member | None:
        return self._peers.get(peer)

    def lives(self, key: str) -> list[Member]:
        """The current agent first."""
        return [m for book in (self.current, self.next, self.leaving) if (m := book.get(key)) is not None]

    def still_expected(self) -> list[Member]:
        """Those of an earlier broker that were not heard yet."""
        leaving = [member for member in self.leaving.values() if member.phase == "expected"]
        return [*(self.current[key] for key in sorted(self.expected)), *leaving]

    def silent(self, before: float) -> Iterator[Member]:
        """Alive ones that were not heard since. Each must leave the books before the next is asked for."""
        while self._heard:
            member = next(iter(self._heard))
            if member.heard >= before:
                return
            yield member

    def routes(self) -> list[AgentRoute]:
        """By key; what leaves stands behind what came."""
        members = [*self.current.values(), *self.leaving.values()]
        members.sort(key=lambda member: member.key)
        return [member.route for member in members if member.route is not None]

    @property
    def alive(self) -> int:
        """Agents of any role."""
        return len(self._heard)

    @property
    def nodes(self) -> int:
        """Nodes of all tasks whose agents are alive."""
        return sum(member.pool.nodes_per_replica for member in self._heard)

    @property
    def unheard(self) -> int:
        return sum(self.current[key].phase == "unheard" for key in self._absent)

    def absent(self, *, parked: bool) -> Iterator[AgentView]:
        for key in self._absent:
            member = self.current[key]
            if member.parked is parked:
                yield member.view()

    def snapshot(self) -> Iterator[tuple[AgentView, int, float, list[ReplicaState]]]:
        for member in self.current.values():
            replicas = [r for _, r in sorted(member.replicas.items())] if member.phase == "alive" else []
            yield member.view(), member.restarts, member.heard, replicas
