"""Our gateway (entry, agent relay and broker together) against vllm-router, smg and HAProxy: work per CPU-second.

All stand in front of emulated engines on the same cores; ours go over the real links to replicas' local sockets,
the others' over HTTP. Cases: plain requests of 16 tokens over 32 keep-alive connections; the same with prompts of
10,000 characters, as text (which ours tokenizes, and the others leave to their engines: the same one all the time,
as the turns of a conversation repeat what was said, and hundreds of different ones) and as token ids (which nobody
has to); 400 streams of one token every 20 ms; and, against no gateway at all ("direct"), what streams and requests
at half of a side's load lose in time. Sides alternate, and so does which is first. Ours is there three times: as
it is installed, entry and agent on one node; the same with the agent on another node, so that an encrypted link
lies between them; and as pure Python (docs/howto/compiled.md).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import common
import stub_engines
from stand import KEY, Process, cpu_seconds, stand

HERE = Path(__file__).resolve().parent
OURS, APART, PYTHON = "exahpc", "exahpc, two nodes", "exahpc, pure Python"
OF_OURS = (OURS, APART, PYTHON)
VLLM, SMG, HAPROXY, DIRECT = "vllm-router", "smg", "haproxy", "direct"
PINS = {VLLM: "0.1.17", SMG: "1.13.0"}
RIVALS = (VLLM, SMG, HAPROXY)
BUILT = common.ROOT / ".cache" / "compiled"
WITH_COMPILED = {"PYTHONPATH": str(BUILT), "PYTHONSAFEPATH": "1"}
AT_ONCE = {"base_seconds": 1e-7, "each_seconds": 0.0, "prompt_seconds": 0.0, "prompt_rate": 1e12}
EVERY_20_MS = {"base_seconds": 0.02, "each_seconds": 0.0, "prompt_seconds": 0.0, "prompt_rate": 1e12}
LOADS = {
    "plain": ("--connections", "32"),
    "long prompts": ("--connections", "32", "--prompt", "10000"),
    "different long prompts": ("--connections", "32", "--prompt", "10000", "--different"),
    "long prompts as tokens": ("--connections", "32", "--prompt", "10000", "--ids"),
    "streams": ("--connections", "400", "--tokens", "100"),
}
SIDES = (*OF_OURS, *RIVALS, DIRECT)
NUMBERS = {
    "plain": "requests_per_cpu_second",
    "long prompts": "requests_per_cpu_second",
    "different long prompts": "requests_per_cpu_second",
    "long prompts as tokens": "requests_per_cpu_second",
    "streams": "tokens_per_cpu_second",
}

Side = tuple[int, Callable[[], float]]
"""(port, CPU seconds of the gateway so far)."""


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
def ours(env: Mapping[str, str], node: str, case: str) -> Iterator[Side]:
    """The real broker, entry and agent, over as many emulated replicas as there are engines for the others.

    node: what the agent takes for the name of its node.
    """
    with stand(tasks=1, per_task=2, sequences=512, env=env) as found:
        found.head()
        found.agents(EVERY_20_MS if case == "streams" else AT_ONCE, {"SLURMD_NODENAME": node} if node else {})
        found.until("the replicas", lambda: found.ready() == found.replicas)
        yield found.port, lambda: sum(process.cpu() for process in found.processes)


@contextlib.contextmanager
def engines() -> Iterator[list[int]]:
    """Two emulated HTTP engines in one process: their ports."""
    argv = [sys.executable, str(HERE / "stub_engines.py")]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield [int(port) for port in child.stdout.readline().split()[1:]]
    finally:
        child.terminate()
        child.wait()


@contextlib.contextmanager
def theirs(name: str, case: str) -> Iterator[Side]:
    """A rival in front of the HTTP engines."""
    with engines() as ports, tempfile.TemporaryDirectory(prefix="exahpc-bench-") as home:
        port = free_port()
        router = Process(name, command(name, port, ports, Path(home)), Path(home) / "router.log")
        try:
            until_open(port, "/v1/models" if name == HAPROXY else "/health")
            yield port, partial(cpu_seconds, router.pid)
        finally:
            router.end()


@contextlib.contextmanager
def direct(case: str) -> Iterator[Side]:
    """No gateway: the load goes to one engine."""
    with engines() as ports:
        yield ports[0], lambda: 0.0


def command(name: str, port: int, engines: list[int], home: Path) -> list[str]:
    """The rival's cheapest way: round robin, without retries and circuit breaker."""
    if name == HAPROXY:
        config = home / "haproxy.cfg"
        servers = "\n".join(f"  server s{i} 127.0.0.1:{engine}" for i, engine in enumerate(engines))
        config.write_text(
            "global\n  nbthread 1\n  maxconn 8000\ndefaults\n  mode http\n  timeout connect 5s\n"
            "  timeout client 300s\n  timeout server 300s\n  http-reuse always\n  option http-no-delay\n"
            f"frontend f\n  bind 127.0.0.1:{port}\n  default_backend b\n"
            f"backend b\n  balance roundrobin\n{servers}\n"
        )
        return ["haproxy", "-db", "-f", str(config)]
    urls = [f"http://127.0.0.1:{engine}" for engine in engines]
    program = [str(venv(name) / "bin" / name), *(["launch"] if name == SMG else [])]
    return [
        *(*program, "--worker-urls", *urls, "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"),
        *("--policy", "round_robin", "--prometheus-port", str(free_port()), "--max-concurrent-requests", "4096"),
        *("--disable-retries", "--disable-circuit-breaker"),
    ]


def venv(name: str) -> Path:
    return common.ROOT / ".cache" / f"venv-{name}"


def install(name: str) -> None:
    """A rival in a virtual environment of its own, ours compiled. HAProxy comes with the system."""
    if name in (OURS, APART):
        subprocess.run(["make", "-C", str(common.ROOT), "compiled"], check=True)
    elif name == HAPROXY:
        if subprocess.run(["which", HAPROXY], capture_output=True, check=False).returncode:
            raise SystemExit("haproxy is missing: apt-get install haproxy, or leave it out with --sides")
    elif name in PINS and not (venv(name) / "bin" / name).exists():
        print(f"installing {name} {PINS[name]}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv(name))], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(venv(name) / "bin" / "python")]
        subprocess.run([*pip, "install", "-q", f"{name}=={PINS[name]}"], check=True)


def load(port: int, seconds: float, *arguments: str, at_warm: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Run the load generator; at_warm: called when counting begins."""
    argv = [sys.executable, str(HERE / "load.py"), "--port", str(port), "--seconds", str(seconds), *arguments]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(KEY + "\n")
    child.stdin.close()
    if child.stdout.readline().strip() != "warm":
        raise SystemExit("the load generator failed")
    at_warm()
    found: dict[str, Any] = json.loads(child.stdout.readline())
    child.wait()
    return found


def measure(name: str, case: str, side: Side, seconds: float) -> dict[str, Any]:
    """One run of one case on one side."""
    port, cpu = side
    load_before, before = os.getloadavg()[0], [0.0]
    token = () if name in OF_OURS else ("--token-bytes", str(len(stub_engines.WORD)))
    found = load(port, seconds, *LOADS[case], *token, at_warm=lambda: before.__setitem__(0, cpu()))
    used = cpu() - before[0]
    return {
        "side": name,
        "case": case,
        "load_before": round(load_before, 2),
        "cpu_seconds": round(used, 3),
        "requests_per_cpu_second": round(found["answers"] / used, 1) if used else None,
        "tokens_per_cpu_second": round(found["tokens"] / used, 1) if used else None,
        "requests_per_second": round(found["answers"] / found["seconds"], 1),
        "tokens_per_second": round(found["tokens"] / found["seconds"], 1),
        "errors": found["errors"],
        "whole_ms": found["whole"],
        "first_ms": found["first"],
        "between_ms": found["between"],
    }


def latency(name: str, of: str, side: Side, rate: float, seconds: float) -> dict[str, Any]:
    """Plain requests that come at a rate, which is half of what `of` can do."""
    found = load(side[0], seconds, "--rate", str(rate))
    return {"side": name, "case": f"half load of {of}", "rate": round(rate, 1), "whole_ms": found["whole"]}


def sides(asked: list[str]) -> dict[str, Callable[[str], contextlib.AbstractContextManager[Side]]]:
    made: dict[str, Callable[[str], contextlib.AbstractContextManager[Side]]] = {DIRECT: direct}
    made |= {OURS: partial(ours, WITH_COMPILED, ""), APART: partial(ours, WITH_COMPILED, "another")}
    made |= {PYTHON: partial(ours, {}, "")}
    made |= {name: partial(theirs, name) for name in RIVALS}
    return {name: made[name] for name in asked}


def added(runs: list[dict[str, Any]], name: str, case: str, key: str, point: str) -> float:
    """Milliseconds that a side takes more than no gateway at all: medians of a quantile."""
    flat = [run | {"value": run[key][point]} for run in runs if run["case"] == case and run[key]["count"]]
    return round(common.median(flat, name, case, "value") - common.median(flat, DIRECT, case, "value"), 3)


@click.command()
@click.option("--seconds", default=10.0)
@click.option("--repeats", default=5)
@click.option("--sides", "asked", default=";".join(SIDES), help="Some only, by semicolons: nothing is written.")
@click.option("--cases", default=",".join(LOADS), help="Some only: nothing is written.")
def main(seconds: float, repeats: int, asked: str, cases: str) -> None:
    chosen = sides(asked.split(";"))
    for name in chosen:
        install(name)
    runs: list[dict[str, Any]] = []
    for case in cases.split(","):
        with contextlib.ExitStack() as stack:
            up = {name: stack.enter_context(make(case)) for name, make in chosen.items()}
            for repeat in range(repeats):
                for name, side in list(up.items())[:: -1 if repeat % 2 else 1]:
                    runs.append(measure(name, case, side, seconds))
                    print(runs[-1], flush=True)
            if case == "plain" and DIRECT in up:
                for _ in range(repeats):
                    for name in (*OF_OURS, VLLM):
                        if name in up:
                            rate = common.median(runs, name, "plain", "requests_per_second") / 2
                            runs.append(latency(name, name, up[name], rate, seconds))
                            runs.append(latency(DIRECT, name, up[DIRECT], rate, seconds))
                            print(*runs[-2:], sep="\n", flush=True)
    if len(chosen) < len(SIDES) or len(cases.split(",")) < len(LOADS):
        return
    gated = [run for run in runs if run["side"] != DIRECT and run["case"] in NUMBERS]
    comparison = {case: row(gated, case) for case in NUMBERS}
    comparison |= {f"added milliseconds, {name}": delay(runs, name) for name in (*OF_OURS, VLLM)}
    common.write(
        "gateway",
        what="work per CPU-second of a gateway in front of emulated engines",
        runs=runs,
        comparison=comparison,
        packages=common.versions("exahpc", "uvicorn", "uvloop", "httptools", "pyzmq", "msgspec")
        | PINS
        | {HAPROXY: haproxy_version()},
        notes=(
            "engines are EMULATED on all sides: fixed text, no model",
            "ours counts entry, agent and broker: API keys, validation, tokenizing (SmolLM2), text "
            "of tokens, requests sent again when an agent dies; one node of 12 replicas x 64 sequences",
            "the others: plain HTTP to two engines, no keys, no tokenizing, round robin, retries and circuit "
            "breaker off (a little faster so); HAProxy with one thread",
            "prompts are the same ones again and again, of which our tokenizer remembers the parts, but for the "
            "different long ones",
            "two nodes: an encrypted link between entry and agent, whose ends are on this machine all the same",
            "pure Python: the same program without compiled modules (docs/howto/compiled.md)",
            "the ratio of plain and long prompts is against vllm-router, of streams against the best rival",
            "direct: the load generator speaks to an engine, without a gateway",
        ),
    )


def delay(runs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return {
        "number": "p50 and p99 of plain requests at half of its own load, p99 between two tokens of streams",
        "requests per second": round(common.median(runs, name, f"half load of {name}", "rate")),
        "half load p50": added(runs, name, f"half load of {name}", "whole_ms", "p50"),
        "half load p99": added(runs, name, f"half load of {name}", "whole_ms", "p99"),
        "between tokens p99": added(runs, name, "streams", "between_ms", "p99"),
    }


def row(runs: list[dict[str, Any]], case: str) -> dict[str, Any]:
    """Medians, and ours in relation to vllm-router (requests) or the best rival (streams)."""
    medians = {name: common.median(runs, name, case, NUMBERS[case]) for name in (*OF_OURS, *RIVALS)}
    rival = max(medians[name] for name in RIVALS) if case == "streams" else medians[VLLM]
    ratios = {name.replace(OURS, "ratio"): round(medians[name] / rival, 3) for name in OF_OURS}
    return {"number": NUMBERS[case], **medians, **ratios}


def haproxy_version() -> str:
    said = subprocess.run([HAPROXY, "-v"], capture_output=True, text=True, check=False).stdout
    return said.split()[2] if said else "missing"


if __name__ == "__main__":
    main()
