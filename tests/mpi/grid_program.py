"""mpirun -n TP*PP python grid_program.py TP PP SCRIPT: many checks in one start of the ranks.

SCRIPT is JSON: a list of {folder, sequences, context, chunk, admits}; chunk: prompt tokens of one iteration beside
a token of each sequence; tokens: KV cache, enough for all if not given; admits are the fields of Admit and `at`,
the iteration in which it arrives. The real head loop and worker run; only the socket is replaced by a script.
Prints one JSON line: for each entry {sequence: [tokens, reason]}; with `likelihoods` in the entry,
{sequence: [tokens, reason, likelihoods of the tokens, of the prompt]}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"
import msgspec
import torch
from mpi4py import MPI

from exahpc.replica.batching import Limits, Scheduler, least_budget
from exahpc.replica.blocks import blocks_of
from exahpc.replica.engine import group
from exahpc.replica.engine.stage import Stage
from exahpc.replica.guard import guarded
from exahpc.replica.head import Head
from exahpc.replica.rank import follow
from exahpc.replica.worker import Grid, Worker
from exahpc.wire.messages import Admit, Likelihood, Message, NoRoom, ReplicaHello, Sampling, StopReplica, Tokens


class Script:
    """Stands where the socket stands: hands out messages at their iteration, keeps what the head says."""

    def __init__(self, arrivals: list[tuple[int, Message]]) -> None:
        self._arrivals = sorted(arrivals, key=lambda pair: pair[0])
        self._open = {m.sequence for _, m in arrivals if isinstance(m, Admit)}
        self._clock = 0
        self.tokens: dict[int, list[int]] = {n: [] for n in self._open}
        self.reasons: dict[int, str] = {}
        self.likelihoods: dict[int, list[Likelihood]] = {n: [] for n in self._open}
        self.prompts: dict[int, list[Likelihood]] = {n: [] for n in self._open}
        self.most = 0

    def poll(self, seconds: float) -> bool:
        return seconds > 0

    def receive(self) -> Message | None:
        if self._arrivals and self._arrivals[0][0] <= self._clock:
            return self._arrivals.pop(0)[1]
        self._clock += 1
        return None if self._open else StopReplica()

    def send(self, message: Message) -> bool:
        if isinstance(message, Tokens):
            self.most = max(self.most, len(message.tokens))
            for sequence, one in message.logprobs:
                self.likelihoods[sequence].append(one)
            for sequence, several in message.prompt:
                assert not self.tokens[sequence], "the prompt's come before the first token"
                self.prompts[sequence] += several
            for sequence, token in message.tokens:
                self.tokens[sequence].append(token)
            for sequence, reason in message.ended:
                assert sequence not in self.reasons, f"{sequence} ended twice"
                self.reasons[sequence] = reason
                self._open.discard(sequence)
        elif isinstance(message, NoRoom):
            self.reasons[message.sequence] = message.reason
            self._open.discard(message.sequence)
        return True


def main() -> None:
    tp, pp = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    grid = Grid(MPI.COMM_WORLD, tp, pp)
    if len(sys.argv) > 4:  # as with accelerators: the whole replica is torch's world, hidden states travel in it
        group.init(grid.tp, None, world=MPI.COMM_WORLD, backend=sys.argv[4])
    else:
        group.init(grid.tp, None)
    results = []
    for case in json.loads(Path(sys.argv[3]).read_text()):
        sequences, context = case["sequences"], case["context"]
        blocks = blocks_of(case.get("tokens", sequences * context))
        stage = Stage(
            Path(case["folder"]),
            stage=grid.stage,
            stages=pp,
            rank=grid.rank,
            ranks=tp,
            blocks=blocks,
            dtype=getattr(torch, case.get("dtype", "float32")),
        )
        worker = Worker(grid, stage, sequences, context)
        if grid.is_head:
            budget = max(sequences + case["chunk"], least_budget(sequences, pp))
            limits = Limits(sequences, blocks, context, budget, pp, stage.vocabulary_size)
            script = Script(
                [
                    (a.pop("at", 0), Admit(**{**a, "sampling": Sampling(**a.get("sampling", {}))}))
                    for a in case["admits"]
                ]
            )
            hello = ReplicaHello("p", 0, 1, 1, 1, 1, "")
            Head(script, Scheduler(limits), worker, hello, pipelined=pp > 1).run()  # type: ignore[arg-type]
            found: dict[int, list[Any]] = {n: [script.tokens[n], script.reasons[n]] for n in script.tokens}
            if case.get("likelihoods"):
                for n, made in found.items():
                    made += msgspec.to_builtins((script.likelihoods[n], script.prompts[n]))
            results.append(found)
        else:
            follow(worker)
        worker.finish()
        MPI.COMM_WORLD.Barrier()
    if grid.is_head:
        print("RESULT " + json.dumps(results), flush=True)


if __name__ == "__main__":
    guarded(main)
