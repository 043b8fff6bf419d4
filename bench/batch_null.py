"""What a batch costs when answers cost nothing: rows through lease, journal, acknowledgement, commit and segment.

    python bench/batch_null.py [--rows 10000 --rows 10000000] [--folder DIR] [--smoke]

The engine is EMULATED: a null engine that answers every row at once. All the rest is the real code: index, broker
(`Batches`, with its worker threads), agents (`LeaseWorker`, fsync on), the client's roller, results, export.
Messages between them are encoded and decoded as on the wire; sockets are left out. Each phase runs in a process of
its own that is killed at its end (SIGKILL), so the next one always starts from what is on disk:

    index     input -> index, validated
    run       to half of the rows
    resume    from the half: seconds to the first new row begun, then to the last row in a segment
    results   all rows compacted into the results file
    export    results file -> JSON lines
    shredded  (most rows only) half of the rows committed in groups of two, out of order, as slow engines would
              have them: seconds until a new broker grants the first new row

"rows/s per core" is rows / CPU seconds of all threads of the phase. Memory is the peak of anonymous memory (what
is not backed by files). Side `naive`: one process that reads the input line by line and appends JSON lines, with
an fsync for every thousand. About 25 minutes for 10^7 rows. Writes bench/results/batch-null.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import click
import common
import msgspec

from exahpc.agent.leases import LeaseWorker
from exahpc.batch.export import export
from exahpc.batch.inputs.options import find_inputs
from exahpc.batch.journal import FrameWriter
from exahpc.batch.opened import load
from exahpc.batch.plan import Parts
from exahpc.batch.results import write_results
from exahpc.batch.segments import Roller
from exahpc.batch.source import index_inputs
from exahpc.broker.batches import Batches
from exahpc.broker.lease_actions import Action, Grant, Log
from exahpc.broker.leases import Leases
from exahpc.wire.messages import BatchOpen, LeaseGrant, LeaseProgress

OURS, NAIVE = "exahpc", "naive"
AGENTS, SEQUENCES = 4, 1024
ANSWER = (
    b'{"id":"chatcmpl-0000000000000000","object":"chat.completion","created":1700000000,"model":"m","choices":[{'
    b'"index":0,"message":{"role":"assistant","content":"An emulated answer of a null engine, of about the length '
    b'of a short sentence."},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":21,'
    b'"completion_tokens":16,"total_tokens":37}}'
)
Phase = Literal["index", "run", "resume", "results", "export", "shredded", "naive"]
PHASES: tuple[Phase, ...] = ("index", "run", "resume", "results", "export")


def write_input(path: Path, rows: int) -> None:
    """Chat rows of about 210 bytes."""
    line = (
        '{{"custom_id": "row-{0}", "method": "POST", "url": "/v1/chat/completions", "body": {{"model": "m", '
        '"messages": [{{"role": "user", "content": "Question {0}: what follows from the number before?"}}], '
        '"max_tokens": 16}}}}\n'
    )
    with open(path, "w") as file:
        for first in range(0, rows, 10_000):
            file.write("".join(line.format(row) for row in range(first, min(rows, first + 10_000))))


class Meter:
    """CPU seconds of all threads and the peak of anonymous memory, from now on."""

    def __init__(self) -> None:
        self._begin, self._cpu = time.perf_counter(), time.process_time()
        self.peak = self.start = self._anonymous()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @staticmethod
    def _anonymous() -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        return 0

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self.peak = max(self.peak, self._anonymous())

    def read(self, rows: int) -> dict[str, float]:
        self._stop.set()
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._begin
        peak = max(self.peak, self._anonymous())
        return {
            "rows": rows, "cpu_seconds": round(cpu, 3), "seconds": round(wall, 3),
            "rows_per_core_second": round(rows / cpu, 1), "memory_mib": round(peak / 2**20, 1),
            "memory_at_start_mib": round(self.start / 2**20, 1),
        }  # fmt: skip


class Line:
    """Broker, agents and client of one batch. What passes between them is encoded and decoded as on the wire."""

    def __init__(self, folder: Path, parts: Parts) -> None:
        plan = parts.plan()
        assert plan is not None
        self._began = time.perf_counter()
        self.parts, self.plan, self.first = parts, plan, 0.0
        self.roller = Roller(parts, plan)
        self.epoch = int(time.time())
        self.batches = Batches(folder, self.epoch)
        self.batches.handle_client(BatchOpen(plan.batch, str(parts.path)))
        self.workers = {f"null/{i}": LeaseWorker(f"null-{i}-{self.epoch}") for i in range(AGENTS)}

    @property
    def done(self) -> int:
        (status,) = [s for s in self.batches.status() if s.batch == self.plan.batch]
        if status.state not in ("opening", "running", "finished"):
            raise RuntimeError(f"the batch {status.state}: {status.note}")
        return 0 if status.state == "opening" else status.ok + status.failed

    async def agent(self, name: str, worker: LeaseWorker, over: asyncio.Event) -> None:
        encode = msgspec.msgpack.encode
        to_broker, to_agent = msgspec.msgpack.Decoder(LeaseProgress), msgspec.msgpack.Decoder(LeaseGrant)
        now = time.monotonic
        for revoke in self.batches.hello(name, worker.leases, now()):
            worker.revoke(revoke.lease, revoke.soft)
        while not over.is_set():
            rows = worker.next_rows(SEQUENCES)
            if rows and not self.first:
                self.first = time.perf_counter() - self._began
            for row in rows:
                worker.ended(row.key, 200, ANSWER, 21, 16)
            if wanted := worker.wanted(SEQUENCES):
                for grant in self.batches.want(name, wanted, self.epoch, now()):
                    worker.grant(to_agent.decode(encode(grant)))
            for told in await worker.sync():
                for revoke in self.batches.progress(name, to_broker.decode(encode(told)), now()):
                    worker.revoke(revoke.lease, revoke.soft)
            if not rows:
                await asyncio.sleep(0.005)

    async def run(self, until: int) -> None:
        """Until so many rows are committed, and what is due is rolled."""
        over = asyncio.Event()
        agents = [asyncio.create_task(self.agent(name, worker, over)) for name, worker in self.workers.items()]
        rolling = asyncio.create_task(self.roll(over))
        while self.done < until:
            for task in (*agents, rolling):
                if task.done():
                    await task
            for name, revoke in self.batches.tick(time.monotonic()):
                self.workers[name].revoke(revoke.lease, revoke.soft)
            await asyncio.sleep(0.2)
        over.set()
        await asyncio.gather(*agents, rolling)
        if until == self.plan.rows:
            await asyncio.to_thread(self.roller.roll, True)

    async def roll(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await asyncio.to_thread(self.roller.roll)
            try:
                await asyncio.wait_for(over.wait(), 5.0)
            except TimeoutError:
                continue


def index(folder: Path, parts: Parts) -> dict[str, float]:
    parts.create()
    meter = Meter()
    plan = index_inputs(find_inputs([folder / "in.jsonl"]), parts, "batch-null", model="m")
    found = meter.read(plan.rows)
    parts.save(plan)
    return found


def run(folder: Path, parts: Parts, share: float) -> dict[str, float]:
    meter = Meter()
    line = Line(folder, parts)
    until = int(line.plan.rows * share)
    begun = line.roller.rolled if share == 1 else 0
    asyncio.run(line.run(until))
    descriptors = len(os.listdir("/proc/self/fd"))
    files = sum(len(names) for _, _, names in os.walk(parts.path))
    found = meter.read(line.done - begun)
    return {**found, "seconds_to_first_row": round(line.first, 3), "descriptors": descriptors, "files": files}


def results(folder: Path, parts: Parts) -> dict[str, float]:
    plan = parts.plan()
    assert plan is not None
    meter = Meter()
    summary = write_results(folder / "out.h5", parts, plan)
    if (summary.ok, summary.failed) != (plan.rows, 0):
        raise RuntimeError(f"rows are not all there: {summary}")
    return meter.read(plan.rows)


def exported(folder: Path, parts: Parts) -> dict[str, float]:
    meter = Meter()
    summary = export(folder / "out.h5", folder / "out.jsonl")
    return meter.read(summary.total)


def naive(folder: Path, parts: Parts) -> dict[str, float]:
    """What people write at first."""
    meter, rows = Meter(), 0
    body = json.loads(ANSWER)
    with open(folder / "in.jsonl") as source, open(folder / "naive.jsonl", "a") as target:
        for line in source:
            row = json.loads(line)
            target.write(json.dumps({"custom_id": row["custom_id"], "response": {"body": body}}) + "\n")
            rows += 1
            if rows % 1000 == 0:
                target.flush()
                os.fsync(target.fileno())
    return meter.read(rows)


def events(leases: Leases, rows: int, dice: random.Random) -> Iterator[list[Action]]:
    """Leases of 256 agents whose rows end out of order, two at a time, until `rows` have ended."""
    held: dict[str, list[tuple[int, int, int]]] = {f"null/{i}": [] for i in range(256)}
    ends = dict.fromkeys(held, 8)
    done, now = 0, 0.0
    while done < rows:
        for name, own in held.items():
            if len(own) < 64:
                actions = leases.want(name, 256, now)
                for action in actions:
                    if isinstance(action, Grant):
                        pairs = range(action.first, action.last, 2)
                        own += [(action.lease, row, min(row + 2, action.last)) for row in pairs]
                dice.shuffle(own)
                yield actions
            if not own:
                continue
            lease, first, last = own.pop()
            start, ends[name] = ends[name], ends[name] + 400
            name_ = name.replace("/", "-") + "-1"
            told = LeaseProgress(lease, "x", name_, start, ends[name], last - first, 0, False, [(first, last)])
            yield leases.progress(name, told, now)
            done += last - first
        now += 0.01


def shredded(folder: Path, parts: Parts) -> dict[str, float]:
    """Half of the rows committed in groups of two, then a broker that opens the batch."""
    plan = parts.plan()
    assert plan is not None
    other = Parts(folder / "shredded.parts")
    other.create()
    shutil.copy(parts.index, other.index)
    if plan.ordered:
        shutil.copy(parts.order, other.order)
    other.save(msgspec.structs.replace(plan, batch="x"))
    loaded = load(other, "x", 1)
    leases = Leases(1)
    leases.open("x", loaded.book, loaded.writer.number, 0.0)
    for name in (f"null-{i}-1" for i in range(256)):
        FrameWriter(other.journal_file(name)).close()
    count = 0
    group: list[Any] = []
    for actions in events(leases, plan.rows // 2, random.Random(1)):
        group += [action.event for action in actions if isinstance(action, Log)]
        if len(group) >= 2000:
            count += len(group)
            loaded.write(group, loaded.due())
            group = []
    loaded.write(group)
    loaded.writer.close()
    meter = Meter()
    again = load(other, "x", 2)
    leases = Leases(2)
    leases.open("x", again.book, again.writer.number, 0.0)
    waiting = len(again.book.pending)
    granted = [action for action in leases.want("null/0", 64, 1.0) if isinstance(action, Grant)]
    if again.book.ok < plan.rows // 2 or (waiting and not granted):
        raise RuntimeError("the state was not found again")
    found = meter.read(plan.rows // 2)
    return {**found, "events": count + len(group), "commit_mib": round(_size(other.commits) / 2**20, 1)}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


ACTS: dict[str, Callable[[Path, Parts], dict[str, float]]] = {
    "index": index,
    "run": lambda folder, parts: run(folder, parts, 0.5),
    "resume": lambda folder, parts: run(folder, parts, 1.0),
    "results": results,
    "export": exported,
    "shredded": shredded,
    "naive": naive,
}


def child(phase: Phase, folder: Path) -> dict[str, float]:
    """One phase in a process of its own, which ends by SIGKILL: nothing is tidied up."""
    command = [sys.executable, __file__, "--phase", phase, "--folder", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != -signal.SIGKILL:
        raise click.ClickException(f"phase {phase} ended with {done.returncode}")
    found: dict[str, float] = json.loads(done.stdout)
    print(f"{phase}: {found}", flush=True)
    return found


def measure(rows: int, folder: Path, *, largest: bool) -> list[dict[str, Any]]:
    """All phases for one number of rows. Everything it wrote is removed."""
    folder.mkdir()
    write_input(folder / "in.jsonl", rows)
    phases: list[Phase] = ["naive", *PHASES]
    if largest:
        phases.append("shredded")
    runs = []
    for phase in phases:
        side = NAIVE if phase == "naive" else OURS
        case = "run" if phase == "naive" else phase
        runs.append({"side": side, "case": f"{case} {rows}", **child(phase, folder)})
    shutil.rmtree(folder)
    return runs


def compared(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Rows per core second, seconds to the first row, bytes of memory a row between the fewest and most rows."""
    table: dict[str, dict[str, Any]] = {}
    ours: dict[str, list[dict[str, Any]]] = {}
    for one in runs:
        row = table.setdefault(one["case"], {"number": "rows_per_core_second"})
        row[one["side"]] = one["rows_per_core_second"]
        if one["side"] == OURS:
            ours.setdefault(one["case"].split()[0], []).append(one)
    for phase, found in ours.items():
        few, many = found[0], found[-1]
        if (rows := int(many["case"].split()[1]) - int(few["case"].split()[1])) > 0:
            grown = (many["memory_mib"] - few["memory_mib"]) * 2**20 / rows
            table[f"{phase} memory"] = {"number": "bytes_a_row", OURS: round(grown, 2)}
    first = ours["resume"][-1]
    table[f"{first['case']} first row"] = {"number": "seconds", OURS: first["seconds_to_first_row"]}
    return table


@click.command()
@click.option("--rows", multiple=True, type=int, default=(10_000, 100_000, 10_000_000), show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Where to write (a new folder there).")
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
@click.option("--phase", type=click.Choice(list(ACTS)), hidden=True)
def main(rows: tuple[int, ...], folder: Path | None, smoke: bool, phase: Phase | None) -> None:
    """What a batch costs when the answers cost nothing."""
    if phase is not None:
        assert folder is not None
        found = ACTS[phase](folder, Parts.of(folder / "out.h5"))
        print(json.dumps(found), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="batch-null-", dir=folder) as base:
        for number in rows:
            runs += measure(number, Path(base) / str(number), largest=number == max(rows))
    comparison = compared(runs)
    if smoke:
        common.show("batch-null", comparison)
        return
    common.write(
        "batch-null",
        what="rows through index, lease, journal (fsync on), commit, segment, results and export, per CPU second",
        runs=runs,
        comparison=comparison,
        packages=common.versions("msgspec", "h5py", "numpy"),
        notes=(
            "The engine is EMULATED: a null engine that answers at once. More rows/s is better.",
            "`naive` appends JSON lines, fsync for every 1,000: no leases, no resume, no second writer.",
            "`resume` starts after SIGKILL at one half; seconds_to_first_row counts from the start of the work.",
            "`shredded`: half of the rows committed in pairs, out of order; seconds until the first grant.",
            f"{AGENTS} agents of {SEQUENCES} sequences. memory_mib: peak of anonymous memory of the process.",
        ),
    )


if __name__ == "__main__":
    main()
