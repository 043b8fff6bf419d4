"""A live deployment for tests: the real command line, real processes, the official client."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai

from exahpc.wire import messages as m
from exahpc.wire.folder import Folder
from exahpc.wire.link import ask

EXAHPC = [sys.executable, "-P", "-m", "exahpc.cli"]


def until(what: str, check: Callable[[], Any], seconds: float = 60.0, every: float = 0.1) -> Any:
    """The first true value of `check()`; an assertion error that says what was awaited otherwise."""
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for: {what}"
        time.sleep(every)


class Live:
    """One deployment under `home`, driven as a user would."""

    def __init__(self, home: Path, name: str, env: dict[str, str] | None = None) -> None:
        self.name, self.home = name, home
        self.env = os.environ | {"EXAHPC_HOME": str(home), "DS_ACCELERATOR": "cpu"} | (env or {})
        self.folder = Folder(home / name)

    def run(
        self, *argv: str, check: bool = True, seconds: float = 180.0, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*EXAHPC, *argv],
            env=self.env,
            cwd=cwd,
            text=True,
            capture_output=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
        assert not check or done.returncode == 0, (
            f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.tail()}"
        )
        return done

    def up(self, toml: str) -> None:
        path = self.home / f"{self.name}.toml"
        path.write_text(toml)
        self.run("up", str(path), "--wait", cwd=self.home)

    def status(self) -> m.StatusReply | None:
        """None while no broker answers."""
        record = self.folder.head()
        if record is None:
            return None
        try:
            return ask(self.folder.fleet_key(), record.address, m.StatusQuery(), m.BrokerToClient, 3.0)
        except Exception:
            return None

    def ready(self) -> int:
        found = self.status()
        return found.ready if found else -1

    def running(self) -> int:
        """Sequences that run anywhere, as of the last beats; -1 while no broker answers."""
        found = self.status()
        return sum(r.running for a in found.agents for r in a.replicas) if found else -1

    def tokens(self) -> dict[tuple[str, int], int]:
        """(pool, slot) -> tokens that the replica has generated, as of the last beats."""
        found = self.status()
        return {(a.pool, r.slot): r.tokens for a in found.agents for r in a.replicas} if found else {}

    def agent(self, pool: str, task: int) -> m.AgentStatus | None:
        found = self.status()
        return next((a for a in found.agents if (a.pool, a.task) == (pool, task)), None) if found else None

    def incarnation(self, pool: str, task: int, slot: int) -> int:
        """Incarnation of a ready replica, or 0."""
        agent = self.agent(pool, task)
        if agent is None or not agent.alive:
            return 0
        return next((r.incarnation for r in agent.replicas if r.slot == slot and r.phase == "ready"), 0)

    @property
    def key(self) -> str:
        return next(iter(self.folder.api_keys()))

    def client(self, url: str | None = None, **options: Any) -> openai.OpenAI:
        """url: of one entry, where not the head's are meant."""
        endpoint = self.folder.endpoint()
        assert endpoint is not None
        verify: Any = ssl.create_default_context(cafile=endpoint.ca) if endpoint.ca else True
        return openai.OpenAI(
            base_url=url or endpoint.url, api_key=self.key, max_retries=0, timeout=120.0,
            http_client=httpx.Client(verify=verify, timeout=120.0), **options,
        )  # fmt: skip

    def model(self, url: str | None = None) -> str:
        return self.client(url).models.list().data[0].id

    def stream(self, prompt: str, tokens: int, *, url: str | None = None, **options: Any) -> str:
        """Text of one streamed greedy completion. url: see `client`."""
        chunks = self.client(url).completions.create(
            model=self.model(url), prompt=prompt, max_tokens=tokens, temperature=0, stream=True, **options
        )
        return "".join(c.choices[0].text for c in chunks if c.choices)

    def tail(self, lines: int = 25) -> str:
        """The end of every log, for a failed assertion."""
        parts = []
        for path in sorted((self.folder.path / "logs").rglob("*")):
            if path.is_file():
                text = path.read_text(errors="replace").splitlines()[-lines:]
                parts.append(f"--- {path.relative_to(self.folder.path)}\n" + "\n".join(text))
        return "\n".join(parts)


class Load:
    """Streams that run side by side until stopped; every text is kept, every failure too.

    url: see `Live.client`.
    """

    def __init__(self, live: Live, streams: int, tokens: int, url: str | None = None) -> None:
        self.texts: list[tuple[str, str]] = []
        self.failures: list[str] = []
        self._live, self._tokens, self._url, self._stop = live, tokens, url, threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(i,), daemon=True) for i in range(streams)]
        for thread in self._threads:
            thread.start()

    def _work(self, number: int) -> None:
        while not self._stop.is_set():
            prompt = f"stream {number}: "
            try:
                self.texts.append((prompt, self._live.stream(prompt, self._tokens, url=self._url)))
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                self._stop.wait(0.2)

    def halt(self) -> None:
        """Let the running streams end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(180)
        assert not any(t.is_alive() for t in self._threads), "a stream hangs"

    def stop(self) -> None:
        """Let the running streams end; then every failure so far is an assertion error."""
        self.halt()
        assert not self.failures, self.failures[:5]


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes that name this deployment's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line:
                found.append(f"{entry.name} {line}")
    return found
