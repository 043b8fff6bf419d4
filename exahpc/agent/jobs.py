"""Which requests and batch rows an agent has in flight, by who waits for them. Pure."""

from __future__ import annotations

from exahpc.agent.job import Job


class Jobs:
    """By peer (an entry; None: this agent's own leases) and name. Of one name there is one attempt at a time."""

    def __init__(self) -> None:
        self._by_peer: dict[bytes | None, dict[str, Job]] = {}

    def get(self, peer: bytes | None, name: str) -> Job | None:
        jobs = self._by_peer.get(peer)
        return None if jobs is None else jobs.get(name)

    def of(self, peer: bytes | None) -> list[Job]:
        return list(self._by_peer.get(peer, {}).values())

    def add(self, job: Job) -> None:
        self._by_peer.setdefault(job.peer, {})[job.name] = job

    def remove(self, job: Job) -> None:
        """Raises KeyError when it is none of these."""
        jobs = self._by_peer[job.peer]
        del jobs[job.name]
        if not jobs:
            del self._by_peer[job.peer]

    def __contains__(self, job: Job) -> bool:
        """This very attempt."""
        return self.get(job.peer, job.name) is job

    def __bool__(self) -> bool:
        return bool(self._by_peer)
