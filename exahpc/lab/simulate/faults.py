"""What a scenario breaks, and when."""

from __future__ import annotations

from typing import assert_never

from exahpc.lab.simulate.host import Host
from exahpc.lab.simulate.scenario import (
    AgentKilled,
    AnyFault,
    BrokerRestart,
    FakeAlive,
    NodeDown,
    Queue,
    ReplicaExit,
    Rollout,
    Slow,
    SwitchDown,
    Walltime,
)
from exahpc.lab.simulate.steps import Step
from exahpc.lab.simulate.world import World


class Faults:
    """Plans all faults of the world's scenario. notes: (when, what happened)."""

    def __init__(self, world: World) -> None:
        self._world, self._timeline, self._draw = world, world.timeline, world.random
        self.notes: list[tuple[float, str]] = []
        begin = world.start + world.scenario.warm
        for fault in world.scenario.fault:
            self._timeline.at(begin + fault.at, self._happen, fault)

    def _happen(self, fault: AnyFault) -> None:
        self.notes.append((self._timeline.now, self._do(fault)))

    def _do(self, fault: AnyFault) -> str:
        cluster = self._world.cluster
        match fault:
            case NodeDown(count=count, seconds=seconds):
                used = [node for node in cluster.nodes if node.job is not None and node.down is None]
                nodes = self._draw.sample(used, min(count, len(used)))
                for node in nodes:
                    cluster.node_down(node, seconds)
                return f"nodes down: {', '.join(node.name for node in nodes)}"
            case SwitchDown(count=count, seconds=seconds):
                switches = sorted({node.switch for node in cluster.nodes if node.job is not None})
                chosen = set(self._draw.sample(switches, min(count, len(switches))))
                nodes = [node for node in cluster.nodes if node.switch in chosen]
                for node in nodes:
                    cluster.node_down(node, seconds)
                return f"switch down: {', '.join(node.name for node in nodes)}"
            case FakeAlive(share=share):
                steps = self._some(share)
                for host, step in steps:
                    step.frozen = True
                    host.relay.change(step.slot, frozen=True)
                    host.fuss()
                return f"{len(steps)} replicas look alive and do nothing"
            case Slow(share=share, times=times, seconds=seconds):
                steps = self._some(share)
                for host, step in steps:
                    self._slow(host, step, times)
                    if seconds is not None:
                        self._timeline.after(seconds, self._slow, host, step, 1 / times)
                return f"{len(steps)} replicas are {times:g} times as slow"
            case ReplicaExit(count=count):
                found = self._serving()
                chosen_steps = self._draw.sample(found, min(count, len(found)))
                for host, step in chosen_steps:
                    host.end_step(step, "signal 11 (SIGSEGV)", True)
                return f"{len(chosen_steps)} replicas ended by themselves"
            case AgentKilled(count=count):
                hosts = sorted(self._world.hosts.values(), key=lambda host: host.address)
                victims = self._draw.sample(hosts, min(count, len(hosts)))
                for host in victims:
                    self._world.kill_agent(host)
                return f"agents killed: {', '.join(host.place.key for host in victims)}"
            case BrokerRestart(seconds=seconds):
                self._world.head.kill()
                self._timeline.after(seconds, self._world.head.start)
                return f"the broker was killed, back after {seconds:g} s"
            case Walltime(first=first, last=last):
                running = [job for job in cluster.jobs.values() if job.state == "RUNNING"]
                for job in running:
                    self._world.limit(job, self._draw.uniform(first, last))
                return f"{len(running)} jobs end after {first:g} to {last:g} s"
            case Rollout():
                return self._world.roll_out(fault)
            case Queue(wait=wait):
                cluster.queue = wait
                return f"Slurm's queue: median {wait.median:g} s, nine of ten within {wait.p90:g} s"
        assert_never(fault)

    def _serving(self) -> list[tuple[Host, Step]]:
        """Replicas that serve, in a fixed order."""
        hosts = sorted(self._world.hosts.values(), key=lambda host: host.address)
        return [(host, host.steps[slot]) for host in hosts for slot in sorted(host.relay.replicas)]

    def _some(self, share: float) -> list[tuple[Host, Step]]:
        found = self._serving()
        return self._draw.sample(found, min(len(found), max(1, round(share * len(found))))) if share else []

    def _slow(self, host: Host, step: Step, times: float) -> None:
        step.slow *= times
        if not step.ended:
            host.relay.change(step.slot, slow=host.pace(step))
