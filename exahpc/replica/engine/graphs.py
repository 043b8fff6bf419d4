"""Decoding steps as accelerator graphs (CUDA graphs and their kin).

A decoding step is hundreds of small kernels, and the host needs longer to launch them than a fast accelerator to
run them. A graph records them once, for fixed shapes and addresses, and launches them all at once. So a step is
padded to a size for which there is a graph: rows and width of the block tables to the next power of two. Rows that
pad are copies of the first one; they compute, and write to the cache, what is there anyway.

Only steps whose rows all have one new token, and only without tensor parallelism, whose collectives not every
library can record. Not run on CUDA yet; tests hold it to the plain path with an accelerator that only pretends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from exahpc.replica.engine.attention import Step, prepare_still

log = logging.getLogger(__name__)
Run = Callable[[Step, torch.Tensor], torch.Tensor]
_MOST_ROWS = 512  # larger steps keep an accelerator busy for longer than their launches take
_WARM_RUNS = 2  # libraries choose kernels and take workspaces in their first calls, which no graph may record


class Graphs:
    """Runs decoding steps by graphs that it records when a size comes up first.

    accelerator: DeepSpeed's; run: a stage's layers; kv_heads: of this rank.
    """

    def __init__(self, accelerator: Any, run: Run, kv_heads: int) -> None:
        self._accelerator, self._run, self._kv_heads = accelerator, run, kv_heads
        self._graphs: dict[tuple[int, int], _Graph] = {}

    def __call__(self, step: Step, x: torch.Tensor) -> torch.Tensor | None:
        """The result of `run`; None for a step that is not a decoding one."""
        rows, width = step.tables.shape
        if step.decoding != rows or rows > _MOST_ROWS:
            return None
        size = _power(rows), _power(width)
        graph = self._graphs.get(size)
        if graph is None:
            pool = next((graph.pool for graph in self._graphs.values()), None)
            graph = _Graph(self._accelerator, self._run, self._kv_heads, size, step, x, pool)
            self._graphs[size] = graph
            log.info("graph for %d sequences of up to %d blocks; %d so far", *size, len(self._graphs))
        return graph.replay(step, x)


def recorded(accelerator: Any, tensor_parallel: int) -> bool:
    """Whether this accelerator records graphs, and this rank may use them."""
    return tensor_parallel == 1 and accelerator.create_graph() is not None


class _Graph:
    """One recorded size and the memory that it reads and writes."""

    def __init__(
        self,
        accelerator: Any,
        run: Run,
        kv_heads: int,
        size: tuple[int, int],
        step: Step,
        x: torch.Tensor,
        pool: Any,
    ) -> None:
        """step, x: one to be run, since also the runs before the recording write to the cache; pool: of another
        graph, whose scratch memory this one shares."""
        self._accelerator = accelerator
        self._step = Step.still(*size, x.device)
        self._x = torch.empty(size[0], *x.shape[1:], dtype=x.dtype, device=x.device)
        self._fill(step, x)
        for _ in range(_WARM_RUNS):
            prepare_still(self._step, kv_heads)
            run(self._step, self._x)
        accelerator.synchronize()
        self._graph = accelerator.create_graph()
        with accelerator.capture_to_graph(self._graph, pool=pool):
            prepare_still(self._step, kv_heads)  # recorded, too: it depends on the lengths
            self._out = run(self._step, self._x)
        self.pool = self._graph.pool() if hasattr(self._graph, "pool") else None

    def replay(self, step: Step, x: torch.Tensor) -> torch.Tensor:
        self._fill(step, x)
        self._accelerator.replay_graph(self._graph)
        # A copy: it may still be on its way to the next stage when the graph runs again.
        return self._out[: len(x)].clone()

    def _fill(self, step: Step, x: torch.Tensor) -> None:
        """Into the recorded addresses: the rows of `step`, then copies of its first."""
        still, (rows, width) = self._step, step.tables.shape
        still.tables.zero_()
        for target, source in (
            (self._x, x),
            (still.positions, step.positions),
            (still.writes, step.writes),
            (still.lengths, step.lengths),
            (still.tables[:, :width], step.tables),
        ):
            target[:rows] = source
            target[rows:] = source[:1]


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()
