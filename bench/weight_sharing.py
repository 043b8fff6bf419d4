"""Twelve replicas on one node, one copy of the weights: memory of each, and the last start beside the others.

    python bench/weight_sharing.py [--model FOLDER] [--replicas 12] [--starts 3] [--smoke]

Each replica is the real program under mpirun, one rank, asked for enough tokens that everything is touched. The
first one copies the checkpoint to the node (`model.stage`), all map the copy; in a second round it is converted to
INT8 on the way. Numbers of the kernel (/proc/PID/smaps), in MiB:

- weights: proportional share (PSS) of the mapped weights, summed over all replicas, against the size of the files;
- private: what only this process has (private clean + dirty), less the whole KV cache, less the same of a process
  that has imported the same libraries and loaded nothing;
- start: seconds from the start of mpirun to the first token, when there is no other replica and when there are all
  the others, idle. Files are in the page cache in both cases: what is compared is the crowd.

Writes bench/results/weight-sharing.json; takes about ten minutes on two cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import common
import replica

from exahpc.agent import processes
from exahpc.agent.launch import flavour, mpirun_argv
from exahpc.deployment.grid import kv_tokens
from exahpc.deployment.shape import BYTES, ModelShape
from exahpc.deployment.spec import Launcher, Pool
from exahpc.launch import place
from exahpc.wire.folder import Folder

CONTEXT = 256
KV = kv_tokens(Pool(name="a", max_sequences=1), CONTEXT)
IMPORTS = (
    "import os, sys; os.environ['DS_ACCELERATOR'] = 'cpu'; import torch\n"
    "from mpi4py import MPI\n"
    "from exahpc.replica.engine import group, stage; from exahpc.replica import head, staging, worker\n"
    "torch.set_num_threads(1); group.init(MPI.COMM_SELF, None)\n"
    "from transformers import AutoConfig, AutoModel\n"
    "config = AutoConfig.for_model('llama')\n"
    "with torch.device('meta'): AutoModel.from_config(config)\n"
)
TORCH = "import sys, torch, numpy; torch.set_num_threads(1)\n"
WAIT = "torch.zeros(64, 64) @ torch.zeros(64, 64); print('ready', flush=True); sys.stdin.read()"


def smaps(pid: int) -> Iterator[tuple[str, dict[str, int]]]:
    """(file or "", its counters in KiB) of each mapping."""
    name, counters = "", {}
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if first.endswith(":"):
            if rest[-1] == "kB":
                counters[first[:-1]] = int(rest[0])
            continue
        if counters:
            yield name, counters
        name, counters = " ".join(rest[4:]), {}
    yield name, counters


def private(pid: int) -> float:
    """MiB that only this process has, mapped weights not counted."""
    mine = [c for name, c in smaps(pid) if not _is_weights(name)]
    return sum(c["Private_Clean"] + c["Private_Dirty"] for c in mine) / 1024


def _is_weights(name: str) -> bool:
    return name.removesuffix(" (deleted)").endswith(".safetensors")


def weights(pid: int) -> dict[str, float]:
    """MiB of mapped weights."""
    mine = [c for name, c in smaps(pid) if _is_weights(name)]
    return {key: sum(c[key] for c in mine) / 1024 for key in ("Pss", "Rss", "Private_Dirty")}


class Node:
    """The replicas of one deployment on this machine."""

    def __init__(self, where: Path, model: Path, quantization: str) -> None:
        text = (
            f'name = "bench"\n[model]\npath = "{model}"\ncontext = {CONTEXT}\nquantization = "{quantization}"\n'
            f'stage = "{where}"\n[launcher]\nkind = "local"\n[[pool]]\nname = "a"\nmax_sequences = 1\n'
            f"replicas = 64\nreplicas_per_task = 64\n"
        )
        self._where, self._model = where, model
        self._folder = Folder.create(where / "f", text).path
        launcher = Launcher(kind="local")
        version = subprocess.run([launcher.mpirun, "--version"], capture_output=True, text=True, check=True).stdout
        self._mpirun = launcher, flavour(version, launcher.mpirun)
        self._next = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> tuple[replica.Replica, int, float]:
        """(a replica that has answered, its rank's process id, seconds to its first token)."""
        number, self._next = self._next, self._next + 1
        socket, log = self._where / f"s{number}", self._where / f"log{number}"
        arguments = (
            "--folder",
            self._folder,
            "--pool",
            "a",
            "--slot",
            number,
            "--incarnation",
            1,
            "--socket",
            socket,
        )
        program = (sys.executable, "-m", "exahpc.replica", *map(str, arguments))
        since = time.perf_counter()
        with log.open("w") as out:
            argv = mpirun_argv(*self._mpirun, 1, program, root=os.geteuid() == 0)
            self._processes.append(subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT))
        one = replica.Replica(socket, self._processes[-1], log)
        [ids] = replica.prompts(self._model, 1, 8, number)
        one.decode([ids], 3)
        seconds = time.perf_counter() - since
        one.decode(replica.prompts(self._model, 1, CONTEXT - 32, number), 16)  # the whole cache is touched
        return one, _rank(socket), seconds

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            process.wait(30)


def _rank(socket: Path) -> int:
    """The process with this socket that is a rank, not its starter."""
    for pid in processes.family(None, str(socket)):
        with contextlib.suppress(OSError):
            if any(_is_weights(name) for name, _ in smaps(pid)):
                return pid
    raise SystemExit("no process maps the weights")


def bare(code: str) -> float:
    """Private MiB of a process that has only imported; the smaller of two that share what can be shared."""
    argv = [sys.executable, "-c", code + WAIT]
    both = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in both:
            assert process.stdout is not None
            while (line := process.stdout.readline()) != b"ready\n":
                if not line:
                    raise SystemExit("the bare process failed")
        return min(private(process.pid) for process in both)
    finally:
        for process in both:
            process.kill()
            process.wait()


def measure(model: Path, quantization: str, count: int, starts: int, empty: float) -> list[dict[str, Any]]:
    """One round. The stage is on this file system's temporary directory."""
    where = Path(tempfile.mkdtemp(prefix="exahpc-bench-"))
    node = Node(where, model, quantization)
    side = "bfloat16" if quantization == "none" else "int8"
    runs: list[dict[str, Any]] = []
    try:
        kept, _, _ = node.start()  # brings files into memory and, for INT8, makes the copy
        for _ in range(starts):
            kept.stop()
            kept, pid, seconds = node.start()
            runs.append({"side": side, "case": "start alone", "seconds": seconds})
        pids = [pid, *(node.start()[1] for _ in range(count - 2))]
        for at in range(starts):
            last, pid, seconds = node.start()
            runs.append({"side": side, "case": "start beside the others", "seconds": seconds})
            if at < starts - 1:
                last.stop()
        pids.append(pid)
        [files] = {path.parent for path in _files(pid)}
        size = sum(path.stat().st_size for path in files.glob("*.safetensors")) / 2**20
        kv = _kv(model)
        for pid in pids:
            mapped = weights(pid)
            own = private(pid)
            runs.append(
                {"side": side, "case": "memory", "file_mib": size, "weights_pss_mib": mapped["Pss"]}
                | {"weights_dirty_mib": mapped["Private_Dirty"], "private_mib": own, "kv_mib": kv}
                | {"bare_mib": empty, "beyond_mib": own - kv - empty}
            )
        return runs
    finally:
        node.close()
        shutil.rmtree(where, ignore_errors=True)


def _files(pid: int) -> set[Path]:
    return {Path(name) for name, _ in smaps(pid) if _is_weights(name)}


def _kv(model: Path) -> float:
    """MiB of the whole cache, bfloat16."""
    shape = ModelShape.of(json.loads((model / "config.json").read_text()))
    return 2 * shape.layers * shape.kv_heads * shape.head_size * KV * BYTES["bfloat16"] / 2**20


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), default=place.cache() / "smollm2")
@click.option("--replicas", default=12, show_default=True)
@click.option("--starts", default=3, show_default=True, help="Starts of the first and of the last replica.")
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(model: Path, replicas: int, starts: int, smoke: bool) -> None:
    """Memory and start of replicas that share a node."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # replicas end with us
    empty, torch_alone = bare(IMPORTS), bare(TORCH)
    runs = [run for kind in ("none", "int8") for run in measure(model, kind, replicas, starts, empty)]
    comparison: dict[str, dict[str, Any]] = {}
    for side in ("bfloat16", "int8"):
        mine = [run for run in runs if run["side"] == side]
        memory = [run for run in mine if run["case"] == "memory"]
        alone, beside = (
            statistics.median(run["seconds"] for run in mine if run["case"] == case)
            for case in ("start alone", "start beside the others")
        )
        shared, size = sum(run["weights_pss_mib"] for run in memory), memory[0]["file_mib"]
        comparison |= {
            f"{side}: weights of all replicas / one file": {
                "number": "PSS, MiB", "exahpc": shared, "one file": size, "ratio": round(shared / size, 3)
            },
            f"{side}: private memory beyond KV cache and bare process": {
                "number": "MiB, the largest", "exahpc": max(run["beyond_mib"] for run in memory)
            },
            f"{side}: start of the last beside {replicas - 1} idle ones / of the first": {
                "number": "seconds", "exahpc": beside, "alone": alone, "ratio": round(beside / alone, 3)
            },
        }  # fmt: skip
    if smoke:
        for run in runs:
            click.echo(run)
        for case, row in comparison.items():
            click.echo(f"{case}: {row}")
        return
    common.write(
        "weight-sharing",
        what=f"{replicas} replicas of one rank on one node, SmolLM2-135M",
        runs=runs,
        comparison=comparison,
        packages=common.versions("torch", "deepspeed", "transformers", "mpi4py"),
        notes=(
            f"bare process: Python with torch, DeepSpeed, transformers and MPI, nothing loaded: {empty:.0f} MiB "
            f"private; Python with torch alone: {torch_alone:.0f} MiB",
        ),
    )


if __name__ == "__main__":
    main()
