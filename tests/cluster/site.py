"""A deployment that chaos strikes while it runs a batch file, and when two runs have the same answers.

A node that was struck comes back after a while, as if somebody had pressed the button; nothing else is done for
the deployment.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np

from exahpc.batch import commits
from exahpc.batch.commits import Commit
from exahpc.batch.plan import Parts
from exahpc.wire import messages as m
from tests.cluster.chaos import Domain, Schedule
from tests.cluster.conftest import DevCluster
from tests.live import EXAHPC, Live

_BACK_SECONDS = 20.0  # until a struck node is started again
_NEAR = 1e-4  # logits of two tokens between which rounding may choose (DESIGN section 2)

Answers = dict[str, list[int]]
"""custom_id -> token ids."""


DISTINCT = 2000
"""From there on rows repeat: the answers to so many are those to any number."""


def tokens_of(row: int) -> int:
    """Short and long ones."""
    return 8 + row % DISTINCT * 37 % 190


def prompt_of(row: int) -> str:
    return f"row {row % DISTINCT} of many"


class Site:
    """A deployment on a cluster that chaos strikes. Only one node is away at a time, never the head's."""

    def __init__(self, live: Live, nodes: DevCluster) -> None:
        self.live, self.nodes = live, nodes
        self._away: tuple[str, float] | None = None

    # --- a run of the command ---

    def write(self, rows: int) -> Path:
        source = self.live.home / f"{rows}.jsonl"
        with source.open("w") as file:
            for row in range(rows):
                body = {"model": "tiny", "prompt": prompt_of(row), "max_tokens": tokens_of(row)}
                body |= {"temperature": 0, "ignore_eos": True}
                line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/completions", "body": body}
                file.write(json.dumps(line) + "\n")
        return source

    def run(self, rows: int, name: str, chaos: Schedule | None = None) -> tuple[Answers, Counter[Domain]]:
        """Run a file of so many rows; its answers, and what was struck meanwhile."""
        output = self.live.home / f"{name}.h5"
        struck: Counter[Domain] = Counter()
        argv = [*EXAHPC, "batch", "run", str(self.write(rows)), "--deployment", self.live.name, "-o", str(output)]
        said = self.live.home / f"{name}.said"
        with said.open("w") as file:
            client = subprocess.Popen(
                [*argv, "--keep-parts"],
                env=self.live.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            while client.poll() is None:
                if chaos is not None:
                    self._strike(chaos, self._share(output), struck)
                time.sleep(0.5)
        finally:
            client.kill()
            client.wait()
            self._bring_back(everything=True)
        assert client.returncode == 0, (
            f"exit code {client.returncode}: {said.read_text()[-2000:]}\n{self._story()}"
        )
        return self._answers(output, rows), struck

    def _share(self, output: Path) -> float:
        """Of the rows, done; 0.0 while nobody can tell."""
        found = self.live.status()
        mine = [b for b in found.batches if output.name in b.folder] if found else []
        return mine[0].ok / mine[0].total if mine and mine[0].total else 0.0

    def _answers(self, output: Path, rows: int) -> Answers:
        """What the results say, after what must be true of any: each row once, and well, and committed once."""
        with h5py.File(output) as file:
            assert file["row"][:].tolist() == list(range(rows))
            assert set(file["status"][:].tolist()) == {200}
            assert (file.attrs["ok"], file.attrs["failed"], file.attrs["missing"]) == (rows, 0, 0)
            names = _pieces(file["custom_id"])
            ids = _pieces(file["token_ids"])
        assert [name.tobytes().decode() for name in names] == [f"r{row}" for row in range(rows)]
        assert [len(one) for one in ids] == [tokens_of(row) for row in range(rows)]
        times: Counter[int] = Counter()
        for _, _, event in commits.read(Parts(Path(f"{output}.parts")).commits):
            if isinstance(event, Commit):
                times.update(row for first, last in (*event.rows, *event.bad) for row in range(first, last))
        assert times == Counter(range(rows)), "a commit names each row once"
        return {f"r{row}": one.tolist() for row, one in enumerate(ids)}

    # --- strikes ---

    def _strike(self, chaos: Schedule, share: float, struck: Counter[Domain]) -> None:
        self._bring_back()
        strikes = {"rank": self._rank, "agent": self._agent, "broker": self._broker, "node": self._node}
        for domain in chaos.due(share, time.monotonic()):
            with suppress(subprocess.CalledProcessError):  # it is dead already: another time
                if strikes[domain](chaos):
                    chaos.was_struck(domain, time.monotonic())
                    struck[domain] += 1

    def _agents(self) -> list[m.AgentStatus]:
        found = self.live.status()
        alive = [a for a in found.agents if a.alive] if found else []
        return [a for a in alive if self._away is None or a.node != self._away[0]]

    def _rank(self, chaos: Schedule) -> bool:
        running = [a for a in self._agents() if any(r.phase == "ready" for r in a.replicas)]
        if not running:
            return False
        agent, which = chaos.one_of(running), chaos.one_of(("-n", "-o"))
        pattern = f"exahpc[.]replica.*{self.live.name}.*--pool {agent.pool}"
        self.nodes.exec(agent.node, "pkill", "-9", which, "-f", pattern)
        return True

    def _agent(self, chaos: Schedule) -> bool:
        if not (agents := self._agents()):
            return False
        agent = chaos.one_of(agents)
        pattern = f"exahpc[.]agent.*{self.live.name}.*--pool {agent.pool} --task {agent.task}"
        self.nodes.exec(agent.node, "pkill", "-9", "-f", pattern)
        return True

    def _broker(self, chaos: Schedule) -> bool:
        record = self.live.folder.head()
        if record is None:
            return False
        self.nodes.exec(record.host, "pkill", "-9", "-f", f"exahpc[.]broker.*{self.live.name}")
        return True

    def _node(self, chaos: Schedule) -> bool:
        record = self.live.folder.head()
        nodes = sorted({a.node for a in self._agents() if record is not None and a.node != record.host})
        if not nodes or self._away is not None:
            return False
        node = chaos.one_of(nodes)
        self._away = node, time.monotonic() + _BACK_SECONDS
        self.nodes.crash(node)
        if chaos.one_of((True, False)):
            self.nodes.fail(node)  # an operator tells Slurm; else it takes Slurm half a minute to notice
        return True

    def _bring_back(self, *, everything: bool = False) -> None:
        if self._away is not None and (everything or self._away[1] <= time.monotonic()):
            self.nodes.start(self._away[0])
            self._away = None

    def _story(self) -> str:
        found = self.live.status()
        return f"{found.notes if found else 'no broker'}\n{self.nodes!r}\n{self.live.tail()}"


def _pieces(group: h5py.Group) -> list[np.ndarray]:
    return np.split(group["data"][:], group["offsets"][1:-1])


def differing(model: Path, one: Answers, other: Answers) -> list[str]:
    """Rows whose answers are not equal in the sense of DESIGN section 2: up to the first difference, where the two
    candidates' logits (teacher-forced, float32) may differ by less than 1e-4."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert one.keys() == other.keys()
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).requires_grad_(False)
    wrong: list[str] = []
    for name in one:
        first = next((i for i, (a, b) in enumerate(zip(one[name], other[name], strict=True)) if a != b), None)
        if first is None:
            continue
        ids = tokenizer(prompt_of(int(name[1:])))["input_ids"] + one[name][:first]
        with torch.no_grad():
            logits = network(torch.tensor([ids])).logits[0, -1]
        gap = float((logits[one[name][first]] - logits[other[name][first]]).abs())
        if gap >= _NEAR:
            wrong.append(f"{name}: token {first} is {one[name][first]} or {other[name][first]}, {gap:.2g} apart")
    return wrong
