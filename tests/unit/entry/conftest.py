"""A real entry process on loopback, in front of a stub broker and stub agents on real links."""

from __future__ import annotations

import os
import shutil
import signal
import socket
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

from exahpc.wire.folder import Folder, runtime_directory, write_atomic
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

    def __init__(self, folder: Folder, index: int = 0, beside: str = "") -> None:
        self.folder, self.index, self.beside = folder, index, beside
        self.log = folder.path / f"entry-{index}-{time.monotonic_ns()}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[str, int] = {}

    def start(self) -> Running:
        argv = [
            sys.executable,
            "-m",
            "exahpc.entry",
            "--folder",
            str(self.folder.path),
            "--index",
            str(self.index),
            *(("--beside", self.beside) if self.beside else ()),
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
        plain = httpx.Client(verify=False, timeout=30.0)  # reading the system's certificates takes its time
        return openai.OpenAI(base_url=self.base + "/v1", api_key=KEY, max_retries=retries, http_client=plain)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        options = {"headers": self.headers, "timeout": 30.0, "verify": False} | options  # loopback
        return httpx.request(method, self.base + path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def ready(self, replicas: int) -> None:
        self.until(lambda: self.get("/health").json()["ready"] == replicas)

    def metrics(self) -> dict[str, int]:
        lines = [line for line in self.get("/metrics?detail=entry").text.splitlines() if line[0] != "#"]
        return {
            name.replace('{entry="0"}', "").replace('entry="0",', ""): int(n) for name, n in map(str.split, lines)
        }

    def mark(self) -> None:
        """From now on counters count from here."""
        self._before = {name: n for name, n in self.metrics().items() if "_total" in name}

    def metric(self, name: str) -> int:
        return self.metrics()[name] - self._before.get(name, 0)

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


class Own:
    """One entry of its own with two stub agents."""

    def __init__(self, home: str, sections: dict[str, str]) -> None:
        self.folder = make_folder(Path(home) / "unit", **sections)
        self.fleet = Fleet(self.folder)
        self.entry = Running(self.folder)
        self.fleet.renew()
        try:
            self.entry.start().ready(2)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.entry.stop(signal.SIGKILL)
        self.fleet.close()
        shutil.rmtree(runtime_directory(self.folder.path, socket.gethostname()))  # a killed entry leaves it


def _own(sections: dict[str, str]) -> Iterator[Own]:
    with tempfile.TemporaryDirectory(prefix="exahpc-entry-") as home:
        made = Own(home, sections)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def own(request: pytest.FixtureRequest) -> Iterator[Own]:
    """For tests that kill the entry, or set sections of the deployment file through an indirect parameter."""
    yield from _own(getattr(request, "param", {}))


@pytest.fixture(scope="session")
def shared() -> Iterator[Own]:
    yield from _own({})


@pytest.fixture
def fleet(shared: Own) -> Fleet:
    """Two fresh agents behind the entry that tests share."""
    shared.fleet.renew()
    shared.entry.until(lambda: shared.entry.metric("exahpc_agents") == 2)
    shared.entry.ready(2)
    shared.entry.mark()
    return shared.fleet


@pytest.fixture
def entry(shared: Own, fleet: Fleet) -> Iterator[Running]:
    yield shared.entry
    print(shared.entry.log.read_text()[-4000:])  # shown when the test failed
