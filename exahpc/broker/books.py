"""What others may ask about the fleet. Pure; `fleet` adds what changes it."""

from __future__ import annotations

from collections.abc import Iterator

from exahpc.broker.roster import Roster
from exahpc.broker.values import AgentView
from exahpc.wire.messages import ReplicaState


class Books:
    """Nothing here changes anything; only `snapshot`, `nodes`, `wanted` and `lowered` walk the fleet."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def key_of(self, peer: bytes) -> str | None:
        """The agent on this connection, when it is its task's current one and not given up."""
        agent = self._roster.on(peer)
        return agent.key if agent is not None and (agent.role, agent.phase) == ("current", "alive") else None

    def reporter_of(self, peer: bytes) -> str | None:
        """The agent on this connection, whatever it is: what one has done counts also when it leaves."""
        agent = self._roster.on(peer)
        return agent.key if agent is not None else None

    def leaving(self, key: str) -> bool:
        """Whether an agent of this task ends beside the current one, because that one succeeded it."""
        return key in self._roster.leaving

    def peer_of(self, key: str) -> bytes | None:
        agent = self._roster.current.get(key)
        return agent.peer if agent is not None and agent.phase == "alive" else None

    @property
    def alive(self) -> int:
        """Agents, successors and leaving ones included."""
        return self._roster.alive

    @property
    def nodes(self) -> int:
        """Nodes that these hold."""
        return self._roster.nodes

    @property
    def expected(self) -> int:
        return len(self._roster.expected)

    @property
    def unheard(self) -> int:
        return self._roster.unheard

    @property
    def wanted(self) -> int:
        """Replicas of all tasks that are not parked."""
        return sum(agent.slots for agent in self._roster.current.values() if not agent.parked)

    def parked(self, key: str) -> bool:
        return self._roster.current[key].parked

    def absent(self) -> Iterator[AgentView]:
        """Wanted agents that are not alive; costs nothing when all are."""
        return self._roster.absent(parked=False)

    def surplus(self) -> Iterator[AgentView]:
        """Parked tasks whose agents are not alive: what Slurm still holds of them is not needed."""
        return self._roster.absent(parked=True)

    def view(self, key: str) -> AgentView:
        """The task's current agent."""
        return self._roster.current[key].view()

    def replicas(self, key: str) -> list[ReplicaState]:
        """What the task's current agent last told."""
        return list(self._roster.current[key].replicas.values())

    def serving(self, key: str) -> bool:
        """Whether a replica of the task's current agent is ready."""
        return self._roster.current[key].ready > 0

    def lowered(self) -> Iterator[tuple[str, int, int, float, bool]]:
        """(agent, slot, incarnation, weight, probe) of replicas that were weighed down, by a predecessor too."""
        for key, agent in self._roster.current.items():
            for slot, (incarnation, weight, probe) in agent.weights.items():
                yield key, slot, incarnation, weight, probe

    def snapshot(self) -> Iterator[tuple[AgentView, int, float, list[ReplicaState]]]:
        """(agent, its restarts, when it was last heard, its replicas) of every task."""
        return self._roster.snapshot()
