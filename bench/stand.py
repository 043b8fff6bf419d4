"""A deployment of emulated engines for benchmarks: the real broker, entries and (where asked for) agents, each in
a process of its own whose CPU time can be told apart."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import common

from exahpc.lab.emulated.label import LABEL
from exahpc.launch import place
from exahpc.wire import link
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder, write_atomic

KEY = "sk-bench"
_TOML = """
name = "bench"
[model]
path = "{model}"
name = "{label}"
context = 4096
[[pool]]
name = "a"
replicas = {replicas}
replicas_per_task = {per_task}
max_sequences = {sequences}
[head]
entries = 1
[launcher]
kind = "local"
{more}
"""


class Process:
    """A child with its log, ended in any case."""

    def __init__(self, name: str, argv: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.name, self.log = name, log
        with log.open("ab") as file:
            self._child = subprocess.Popen(
                argv, stdout=file, stderr=file, stdin=subprocess.DEVNULL, cwd=common.ROOT, env=env
            )
        self.pid = self._child.pid

    def cpu(self) -> float:
        """User and system seconds so far, of all threads."""
        return cpu_seconds(self.pid)

    def rss(self) -> int:
        """Bytes of memory in use."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    @property
    def children(self) -> list[int]:
        """Of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def check(self) -> None:
        """Raises SystemExit with the end of its log when it has ended."""
        if self._child.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
            raise SystemExit(f"{self.name} ended with code {self._child.returncode}:\n{tail}")

    def end(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Stand:
    """One deployment. tasks: agents; more: further lines of the deployment file; env: of its processes."""

    def __init__(
        self,
        home: Path,
        *,
        tasks: int,
        per_task: int = 12,
        sequences: int = 64,
        more: str = "",
        env: Mapping[str, str] | None = None,
    ) -> None:
        model = place.cache() / "smollm2"
        if not (model / "tokenizer.json").exists():
            raise SystemExit(f"{model} is missing: run `make model` first (its tokenizer is used)")
        self.tasks, self.per_task, self.home, self._env = tasks, per_task, home, dict(env or {})
        toml = _TOML.format(
            model=model, label=LABEL, replicas=tasks * per_task, per_task=per_task, sequences=sequences, more=more
        )
        self.folder = Folder.create(home / "bench", toml)
        write_atomic(self.folder.path / "secrets" / "api_keys", f"bench:{KEY}\n".encode())
        self.processes: list[Process] = []

    @property
    def replicas(self) -> int:
        return self.tasks * self.per_task

    def start(self, name: str, module: str, *arguments: object, env: Mapping[str, str] | None = None) -> Process:
        """Start `python -m module --folder ... arguments`."""
        argv = [sys.executable, "-m", module, "--folder", str(self.folder.path), *map(str, arguments)]
        found = Process(name, argv, self.home / f"{name}.log", os.environ | self._env | dict(env or {}))
        self.processes.append(found)
        return found

    def head(self) -> tuple[Process, Process]:
        """The real broker and one real entry, listening."""
        broker = self.start("broker", "exahpc.broker")
        self.until("the broker", lambda: self.folder.head() is not None)
        entry = self.start("entry", "exahpc.entry", "--index", 0)
        self.until("the entry", lambda: self.folder.endpoint() is not None)
        return broker, entry

    def agents(
        self, latency: dict[str, float] | None = None, env: Mapping[str, str] | None = None
    ) -> list[Process]:
        """One real agent a task, over emulated replicas. env: of the agents alone."""
        program, text = "exahpc.lab.emulated.agent", json.dumps(latency or {})
        return [
            self.start(f"agent-{task}", program, "--pool", "a", "--task", task, "--latency", text, env=env)
            for task in range(self.tasks)
        ]

    def fleet(self, processes: int, *arguments: object) -> list[Process]:
        """Emulated agents for all tasks, in so many processes."""
        share = -(-self.tasks // processes)
        return [
            self.start(
                f"fleet-{first}",
                "exahpc.lab.emulated.fleet",
                *("--pool", "a", "--first", first, "--count", min(share, self.tasks - first)),
                *arguments,
            )
            for first in range(0, self.tasks, share)
        ]

    @property
    def port(self) -> int:
        endpoint = self.folder.endpoint()
        assert endpoint is not None
        return endpoint.port

    def status(self) -> m.StatusReply:
        head = self.folder.head()
        assert head is not None
        reply: m.StatusReply = link.ask(self.folder.fleet_key(), head.address, m.StatusQuery(), m.BrokerToClient)
        return reply

    def get(self, path: str) -> bytes:
        """Body of a GET of the entry, with the key."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as sock:
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n\r\n"
            sock.sendall(head.encode())
            data = b""
            while piece := sock.recv(65536):
                data += piece
        return data.partition(b"\r\n\r\n")[2]

    def ready(self) -> int:
        """Replicas that the entry would route to."""
        return int(json.loads(self.get("/health"))["ready"])

    def until(self, what: str, check: Callable[[], Any], seconds: float = 120.0, every: float = 0.05) -> None:
        end = time.monotonic() + seconds
        while not check():
            for process in self.processes:
                process.check()
            if time.monotonic() > end:
                raise SystemExit(f"waited {seconds:g} s in vain for {what}; logs in {self.home}")
            time.sleep(every)

    def down(self) -> None:
        for process in reversed(self.processes):
            process.end()


def shares(
    sides: dict[str, Process], seconds: float, chores: Sequence[tuple[float, Callable[[], object]]]
) -> dict[str, Any]:
    """CPU share of processes over so many seconds, in cores; chores: what is done every so many seconds."""
    before = {side: process.cpu() for side, process in sides.items()}
    start = time.monotonic()
    due = [start] * len(chores)
    while (now := time.monotonic()) < start + seconds:
        for i, (every, chore) in enumerate(chores):
            if now >= due[i]:
                due[i] += every
                chore()
        time.sleep(0.05)
    elapsed = time.monotonic() - start
    cores = {side: (process.cpu() - before[side]) / elapsed for side, process in sides.items()}
    return {
        "seconds": round(elapsed, 1),
        **{f"{side}_cores": round(share, 4) for side, share in cores.items()},
        "cores": round(sum(cores.values()), 4),
        **{f"{side}_rss_mib": round(process.rss() / 2**20, 1) for side, process in sides.items()},
    }


def share_medians(runs: list[dict[str, Any]], case: str) -> dict[str, Any]:
    """Of `shares` of broker and entry, as a comparison's row."""
    return {
        "number": "cores",
        **{key: common.median(runs, "exahpc", case, f"{key}_cores") for key in ("broker", "entry")},
        "exahpc": common.median(runs, "exahpc", case, "cores"),
    }


@contextlib.contextmanager
def stand(**options: Any) -> Iterator[Stand]:
    """A Stand in a directory of its own, which stays when something fails."""
    home = Path(tempfile.mkdtemp(prefix="exahpc-bench-"))
    found = Stand(home, **options)
    try:
        yield found
    finally:
        found.down()
    shutil.rmtree(home, ignore_errors=True)
