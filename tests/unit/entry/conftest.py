"""A real entry process on loopback, in front of a stub broker and stub agents on real links."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from exahpc.wire.folder import Folder, write_atomic
from tests.unit.entry.stubs import Fleet

KEY = "sk-test-0123456789"
TOML = """
name = "unit"
[model]
path = "/nowhere/tiny"
name = "tiny"
context = 4096
[[pool]]
name = "a"
replicas = 2
[head]
entries = 1
{head}
[limits]
{limits}
[recovery]
{recovery}
[launcher]
kind = "local"
"""


class Running:
    """One entry process and what it serves."""

    def __init__(self, folder: Folder, index: int = 0) -> None:
        self.folder, self.index = folder, index
        self.log = folder.path / f"entry-{index}-{time.monotonic_ns()}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Running:
        argv = [
            sys.executable,
            "-m",
            "exahpc.entry",
            "--folder",
            str(self.folder.path),
            "--index",
            str(self.index),
        ]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(argv, stderr=log, stdout=log, start_new_session=True)
        self.until(lambda: b" serves " in self.log.read_bytes() and self.folder.endpoint() is not None)
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def until(self, check: Any, seconds: float = 20.0) -> Any:
        end = time.monotonic() + seconds
        while not (value := check()):
            assert self.alive, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.01)
        return value

    @property
    def base(self) -> str:
        endpoint = self.folder.endpoint()
        assert endpoint is not None
        return endpoint.url.removesuffix("/v1")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {KEY}"}

    def client(self, retries: int = 0) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.base + "/v1", api_key=KEY, max_retries=retries, timeout=30.0)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.base + path, headers=options.pop("headers", self.headers), timeout=30.0, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return httpx.post(self.base + path, headers=options.pop("headers", self.headers), timeout=30.0, **options)

    def ready(self, replicas: int) -> None:
        self.until(lambda: self.get("/health").json()["ready"] == replicas)

    def metric(self, name: str) -> int:
        lines = self.get("/metrics").text.splitlines()
        return sum(int(line.split()[-1]) for line in lines if line.startswith(name))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal it and return its exit code."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            os.kill(self.pid, number)
        return self._process.wait(20)


def make_folder(path: Path, head: str = "", limits: str = "", recovery: str = "") -> Folder:
    toml = TOML.format(head=head, limits=limits, recovery=recovery)
    folder = Folder.create(path, toml)
    write_atomic(path / "secrets" / "api_keys", f"me:{KEY}\n".encode())
    return folder


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Iterator[Folder]:
    """A deployment's folder; `@pytest.mark.parametrize("folder", [{...}], indirect=True)` sets its sections."""
    with tempfile.TemporaryDirectory(prefix="exahpc-entry-") as home:
        yield make_folder(Path(home) / "unit", **getattr(request, "param", {}))


@pytest.fixture
def fleet(folder: Folder) -> Iterator[Fleet]:
    made = Fleet(folder)
    yield made
    made.close()


@pytest.fixture
def entry(folder: Folder, fleet: Fleet) -> Iterator[Running]:
    """An entry with two stub agents, ready."""
    fleet.agent(0)
    fleet.agent(1)
    fleet.publish()
    running = Running(folder)
    try:
        running.start().ready(2)
        yield running
    finally:
        running.stop(signal.SIGKILL)
