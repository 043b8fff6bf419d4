"""EMULATED: steps that are emulated replicas, for a real agent.

In place of mpirun or srun stands one process (`replicas`) for all replicas of the agent. It ends with the agent:
emulated steps are never adopted.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

import msgspec

from exahpc.agent.ending import Verdict
from exahpc.agent.starter import Starter
from exahpc.agent.steps import Step, StepRecord, socket_path
from exahpc.deployment.spec import Deployment, Pool
from exahpc.lab.emulated.label import LABEL, node_name, require_label
from exahpc.lab.emulated.replicas import Command, Kill, Over, Start
from exahpc.wire.folder import Folder


class EmulatedStarter(Starter):
    """As `Starter`, its methods block. latency: JSON, see `replicas`."""

    def __init__(
        self,
        folder: Folder,
        deployment: Deployment,
        pool: Pool,
        task: int,
        version: str = "",
        *,
        latency: str = "{}",
    ) -> None:
        """Raises DeploymentError when the deployment is not labelled."""
        require_label(deployment)
        super().__init__(folder, deployment, pool, task, version)
        self._latency = latency
        self._lock = Lock()
        self._host: Host | None = None

    def _living_host(self) -> Host:
        """Slots are started in threads side by side; the first one starts the process, also after it died."""
        with self._lock:
            if self._host is None or self._host.dead:
                log = self._folder.logs(f"{self._pool.name}-{self._task}", "emulated.log")
                self._host = Host(self._folder, self._pool.name, self._latency, log)
            return self._host

    @property
    def node(self) -> str:
        return node_name(self._task)

    def adoptable(self, slots: Sequence[int]) -> list[Step]:
        return []

    def start(self, slot: int) -> Step:
        incarnation = self._folder.claim_incarnation(self._pool.name, str(slot))
        listen = socket_path(self.runtime, self._pool.name, slot, incarnation)
        host = self._living_host()
        record = StepRecord(
            pool=self._pool.name,
            slot=slot,
            incarnation=incarnation,
            pid=host.pid,
            started=0,
            socket=str(listen),
            log=os.devnull,
            deployment=LABEL,
        )
        return EmulatedStep(record, host)


class Host:
    """The process with the replicas."""

    def __init__(self, folder: Folder, pool: str, latency: str, log: Path) -> None:
        argv = ["-m", "exahpc.lab.emulated.replicas", "--folder", str(folder.path), "--pool", pool]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, *argv, "--latency", latency],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
            )
        self.pid = self._process.pid
        self._lock = Lock()
        self._ends: dict[tuple[int, int], Callable[[Verdict], None]] = {}
        self._said = b""
        self._listening = False

    @property
    def dead(self) -> bool:
        return self._process.poll() is not None

    def tell(self, command: Command) -> None:
        """Raises OSError when the process has died."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(msgspec.json.encode(command) + b"\n")
            self._process.stdin.flush()

    def watch(self, slot: int, incarnation: int, on_end: Callable[[Verdict], None]) -> None:
        """Call in the loop."""
        self._ends[slot, incarnation] = on_end
        if not self._listening:
            assert self._process.stdout is not None
            self._listening = True
            asyncio.get_running_loop().add_reader(self._process.stdout.fileno(), self._hear)

    def _hear(self) -> None:
        assert self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), 65536)
        if not data:  # all of them at once, as when a node is lost
            asyncio.get_running_loop().remove_reader(self._process.stdout.fileno())
            for slot, incarnation in list(self._ends):
                self._over(slot, incarnation, Verdict("the process of the emulated replicas died", own_exit=False))
            return
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            over = msgspec.json.decode(line, type=Over)
            story = "emulated: exit code 0" if over.code == 0 else f"emulated: signal {-over.code}"
            self._over(over.slot, over.incarnation, Verdict(story, own_exit=False))

    def _over(self, slot: int, incarnation: int, verdict: Verdict) -> None:
        on_end = self._ends.pop((slot, incarnation), None)
        if on_end is not None:
            on_end(verdict)


class EmulatedStep(Step):
    """One emulated replica. It has no process, record or scratch directory of its own."""

    def __init__(self, record: StepRecord, host: Host) -> None:
        super().__init__(record, None)
        self._host = host
        host.tell(Start(record.slot, record.incarnation, record.socket))

    def watch(self, on_end: Callable[[Verdict], None]) -> None:
        def ended(verdict: Verdict) -> None:
            self.ended = True
            Path(self.record.socket).unlink(missing_ok=True)
            on_end(verdict)

        self._host.watch(self.record.slot, self.record.incarnation, ended)

    def kill(self) -> None:
        if not self.ended and not self._host.dead:
            self._host.tell(Kill(self.record.slot, self.record.incarnation))

    def mark_ready(self) -> None:
        """Nobody adopts it."""

    def release(self) -> None:
        """It ends with us."""
