"""Our entry against vllm-router, each in front of emulated engines: work done per CPU-second of the gateway.

Two cases: plain requests of 16 tokens over keep-alive connections, and 400 streams of one token every 20 ms. Runs
of the two sides alternate, and so does which is first; the same load generator drives both; CPU time is that of
the gateway process with all its threads, between the end of the warm-up and the end of the run. Each side gets one
gateway process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common

from exahpc.wire.folder import Folder, write_atomic

HERE = Path(__file__).resolve().parent
RIVAL = "vllm-router"
RIVAL_VERSION = "0.1.17"
RIVAL_VENV = common.ROOT / ".cache" / "venv-vllm-router"
KEY = "sk-bench"
TOML = """
name = "bench"
[model]
path = "/nowhere/emulated"
name = "emulated"
[[pool]]
name = "a"
replicas = 2
[head]
entries = 1
[launcher]
kind = "local"
"""
CASES = {"plain": "requests_per_cpu_second", "stream": "tokens_per_cpu_second"}


@contextlib.contextmanager
def process(argv: list[str], log: Path, wait_for: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A child process that is ended in any case; with `wait_for`, also its first line, which must start so."""
    with log.open("w") as file:
        out = subprocess.PIPE if wait_for else file
        child = subprocess.Popen(argv, stdout=out, stderr=file, text=True, cwd=common.ROOT)
    try:
        line = child.stdout.readline() if child.stdout else ""
        if not line.startswith(wait_for):
            raise SystemExit(f"{argv[1]} did not start:\n{log.read_text()}")
        yield child, line
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def until_open(port: int, path: str, seconds: float = 60.0) -> None:
    """Wait until GET `path` answers 200."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            if b" 200 " in sock.recv(100):
                return
        time.sleep(0.1)
    raise SystemExit(f"nothing ready on port {port} within {seconds:g} s")


@contextlib.contextmanager
def ours(home: Path) -> Iterator[tuple[int, int]]:
    """Our entry and emulated agents. Yields (port, process id)."""
    folder = Folder.create(home / "bench", TOML)
    write_atomic(folder.path / "secrets" / "api_keys", f"bench:{KEY}\n".encode())
    stubs = [sys.executable, str(HERE / "stub_engines.py"), "agents", "--folder", str(folder.path)]
    entry = [sys.executable, "-m", "exahpc.entry", "--folder", str(folder.path), "--index", "0"]
    with process(stubs, home / "agents.log", "ready"), process(entry, home / "entry.log") as (child, _):
        while (endpoint := folder.endpoint()) is None:
            if child.poll() is not None:
                raise SystemExit((home / "entry.log").read_text())
            time.sleep(0.05)
        until_open(endpoint.port, "/health")
        yield endpoint.port, child.pid


@contextlib.contextmanager
def theirs(home: Path) -> Iterator[tuple[int, int]]:
    """The rival and emulated HTTP engines. Yields (port, process id)."""
    stubs = [sys.executable, str(HERE / "stub_engines.py"), "http"]
    with process(stubs, home / "http.log", "ready") as (_, line):
        workers = [f"http://127.0.0.1:{port}" for port in line.split()[1:]]
        port = free_port()
        router = [str(RIVAL_VENV / "bin" / RIVAL), "--worker-urls", *workers]
        router += ["--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin", "--log-level", "error"]
        router += ["--prometheus-port", str(free_port()), "--max-concurrent-requests", "4096"]
        router += ["--disable-retries", "--disable-circuit-breaker"]  # a little faster without
        with process(router, home / "router.log") as (child, _):
            until_open(port, "/health")
            yield port, child.pid


def install_rival() -> None:
    """vllm-router in a virtual environment of its own."""
    if (RIVAL_VENV / "bin" / RIVAL).exists():
        return
    print(f"installing {RIVAL} {RIVAL_VERSION} into {RIVAL_VENV.relative_to(common.ROOT)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(RIVAL_VENV)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(RIVAL_VENV / "bin" / "python")]
    subprocess.run([*pip, "install", "-q", f"{RIVAL}=={RIVAL_VERSION}"], check=True)


def measure(side: str, case: str, port: int, pid: int, seconds: float, home: Path) -> dict[str, Any]:
    """One run of one case on one side."""
    load_before = os.getloadavg()[0]  # of the whole machine: much more than our own processes spoils the numbers
    load = [sys.executable, str(HERE / "load.py"), "--port", str(port), "--seconds", str(seconds)]
    load += ["--connections", "400", "--tokens", "100"] if case == "stream" else ["--connections", "32"]
    child = subprocess.Popen(load, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(KEY + "\n")
    child.stdin.close()
    if child.stdout.readline().strip() != "warm":
        raise SystemExit("the load generator failed")
    before = cpu_seconds(pid)
    found = json.loads(child.stdout.readline())
    cpu = cpu_seconds(pid) - before
    child.wait()
    if found["errors"]:
        print(f"{side} {case}: {found['errors']:.0f} errors", file=sys.stderr)
    return {
        "side": side,
        "case": case,
        "load_before": round(load_before, 2),
        "cpu_seconds": round(cpu, 3),
        "requests_per_cpu_second": round(found["answers"] / cpu, 1),
        "tokens_per_cpu_second": round(found["tokens"] / cpu, 1),
        "requests_per_second": round(found["answers"] / found["seconds"], 1),
        "tokens_per_second": round(found["tokens"] / found["seconds"], 1),
        "errors": found["errors"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["exahpc", RIVAL], help="one side, nothing is written")
    asked = parser.parse_args()
    sides = {"exahpc": ours, RIVAL: theirs}
    if asked.only:
        sides = {asked.only: sides[asked.only]}
    if RIVAL in sides:
        install_rival()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="exahpc-bench-") as temporary, contextlib.ExitStack() as stack:
        home = Path(temporary)
        up = {side: stack.enter_context(start(home)) for side, start in sides.items()}
        for repeat in range(asked.repeats):
            for case in CASES:
                for side, (port, pid) in list(up.items())[:: -1 if repeat % 2 else 1]:
                    runs.append(measure(side, case, port, pid, asked.seconds, home))
                    print(runs[-1], flush=True)
    if asked.only:
        return
    common.write(
        "gateway",
        what="work per CPU-second of one gateway process in front of two emulated engines",
        runs=runs,
        comparison=common.compare(runs, "exahpc", RIVAL, CASES),
        packages=common.versions("exahpc", "uvicorn", "uvloop", "httptools", "pyzmq", "msgspec")
        | {RIVAL: RIVAL_VERSION},
        notes=(
            "engines are emulated on both sides: fixed text, no model",
            "ours: CURVE links to agents, API keys checked, requests sent again when an agent dies",
            "the rival: plain HTTP to engines, no keys, retries and circuit breaker off (a little faster so)",
            "the rival's policy is round_robin, its cheapest: cache_aware takes twice the CPU time for a request",
            "engines and load generator are processes of their own; all share the machine's cores",
            "plain: 32 keep-alive connections, 16-token answers; stream: 400 streams, one token every 20 ms",
        ),
    )


if __name__ == "__main__":
    main()
