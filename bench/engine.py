"""One rank of the engine as benches drive it: the real scheduler, plans, stage and sampler, without agent and MPI.

Benches use this module alone, so that only this file follows the engine's insides.

    import engine
    rank = engine.Engine(folder, sequences=32, context=512)
    rank.add(prompt_ids, new=48)
    while (iteration := rank.step()) is not None: ...
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
WARM = 2
"""Decode steps that do not count."""

_started = False


def start(threads: int = 1, device: int | None = None) -> None:
    """Once for each process, before torch is used: threads, no gradients, DeepSpeed's world of one rank.

    device: of an accelerator; DS_ACCELERATOR must then name its kind before this module is imported.
    """
    global _started
    if _started:
        return
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    import torch
    from mpi4py import MPI

    from exahpc.replica.engine import group

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    group.init(MPI.COMM_SELF, device)
    _started = True


@dataclass(frozen=True)
class Iteration:
    """seconds: perf_counter at its end; new: tokens that went in; tokens: (sequence, id) that came out; scores:
    (sequence, log-probabilities of the next tokens of its prompt)."""

    seconds: float
    new: int
    tokens: list[tuple[int, int]]
    scores: list[tuple[int, list[float]]]


class Engine:
    """One stage, one rank, tensor_parallel = pipeline_parallel = 1."""

    def __init__(
        self,
        folder: Path,
        *,
        sequences: int = 32,
        context: int = 512,
        budget: int | None = None,
        dtype: str = "bfloat16",
    ) -> None:
        """budget: tokens of one iteration, None for that of a rank on processors; sequences: that run at once."""
        import torch
        from mpi4py import MPI

        from exahpc.replica.batching import least_budget
        from exahpc.replica.blocks import blocks_of
        from exahpc.replica.engine.stage import Stage
        from exahpc.replica.rank import CPU_BUDGET
        from exahpc.replica.worker import Grid, Worker

        self.stage = Stage(
            folder,
            stage=0,
            stages=1,
            rank=0,
            ranks=1,
            blocks=sequences * blocks_of(context),
            dtype=getattr(torch, dtype),
        )
        self._worker = Worker(Grid(MPI.COMM_SELF, 1, 1), self.stage, sequences, context)
        self._limits = (sequences, context, budget or max(CPU_BUDGET, least_budget(sequences, 1)))
        gc.collect()
        gc.freeze()  # as a rank does
        self.clear()

    def clear(self, *, budget: int | None = None, **limits: Any) -> None:
        """Forget all sequences, and all that was kept of their prefixes.

        Prompts take what the budget leaves even while others decode, unless `chunk` is among the limits.
        budget: tokens of one iteration from now on, decoding ones included; limits: more fields of `Limits`.
        """
        from exahpc.replica.batching import Limits, Scheduler
        from exahpc.replica.blocks import blocks_of

        sequences, context, usual = self._limits
        blocks = sequences * blocks_of(context)
        vocabulary = self.stage.vocabulary_size
        bounds = Limits(sequences, blocks, context, budget or usual, 1, vocabulary, **limits)
        self._scheduler, self._next = Scheduler(bounds), 0

    def add(self, ids: Sequence[int], new: int, *, batch: bool = False, score: bool = False) -> int:
        """Greedy, without stop ids. score: tell how likely the tokens of the prompt are. Returns its number."""
        from exahpc.wire.messages import Admit, Sampling

        number, self._next = self._next, self._next + 1
        sampling = Sampling(prompt_logprobs=0 if score else -1)
        refused = self._scheduler.admit(Admit(number, list(ids), new, 0, 0, 0, [], sampling, batch))
        if refused:
            raise SystemExit(f"the engine refused sequence {number}: {refused.reason}")
        return number

    def step(self) -> Iteration | None:
        """One iteration; None when nothing is left to do."""
        plan = self._scheduler.plan()
        if plan is None:
            return None
        drawn = self._worker.run(plan)
        assert drawn is not None
        tokens = self._scheduler.done(plan.lane, drawn)
        scores = [(number, [one.logprob for one in part]) for number, part in tokens.prompt]
        return Iteration(time.perf_counter(), plan.tokens, tokens.tokens, scores)

    def scores(self, windows: Sequence[Sequence[int]]) -> list[list[float]]:
        """ln p(token | tokens before it in its window) of all tokens of each window but its first one."""
        numbers = {self.add(ids, 1, score=True): place for place, ids in enumerate(windows)}
        found: list[list[float]] = [[] for _ in windows]
        while (iteration := self.step()) is not None:
            for number, part in iteration.scores:
                found[numbers[number]] += part
        return found


# --- the measurements that all engines share: a side is a function of prompts ------------------------------------

Side = Callable[[list[list[int]], int], tuple[float, float]]
"""(prompts, new) -> (seconds of the prompts' prefill with the first tokens, median seconds of a decode step)."""


def ours(rank: Engine) -> Side:
    def run(prompts: list[list[int]], new: int) -> tuple[float, float]:
        rank.clear()
        for ids in prompts:
            rank.add(ids, new)
        last = begin = time.perf_counter()
        filled, started, steps = 0.0, set[int](), list[float]()
        while (iteration := rank.step()) is not None:
            if filled and len(iteration.tokens) == len(prompts):  # prompts are done, nobody has left yet
                steps.append(iteration.seconds - last)
            last = iteration.seconds
            started |= {sequence for sequence, _ in iteration.tokens}
            if not filled and len(started) == len(prompts):
                filled = last - begin
        return filled, middle(steps)

    return run


def middle(steps: Sequence[float]) -> float:
    """Median in seconds, without the first few; 0 when there are none."""
    counted = sorted(steps[WARM:])
    return counted[len(counted) // 2] if counted else 0.0


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Random token ids: no two engines share a cached prefix, and no text is easier than another."""
    import torch

    random: Any = torch.Generator().manual_seed(seed)
    found: list[list[int]] = torch.randint(100, 40_000, (count, length), generator=random).tolist()
    return found
