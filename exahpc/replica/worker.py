"""What every rank does with a plan: move cache slots, run its layers, pass on; the last stage samples.

World rank = stage * tensor_parallel + tensor-parallel rank. Rank 0 is the head; the tensor-parallel rank 0 of the
last stage is the sampler. Hidden states go from each rank to its equal in the next stage, staged through host
memory; sampled tokens go from the sampler to the head.
"""

from __future__ import annotations

from collections import deque

import torch
from mpi4py import MPI

from exahpc.replica import plan as plans
from exahpc.replica.engine.attention import Step
from exahpc.replica.engine.group import buffer
from exahpc.replica.engine.sampler import sample
from exahpc.replica.engine.stage import Stage
from exahpc.replica.guard import fault
from exahpc.replica.plan import Plan, Row
from exahpc.replica.waiting import IDLE_PER_RANK, wait

_HIDDEN, _TOKENS, _LOGITS = 1, 2, 3


class Grid:
    """The communicators of one rank. tp: this stage; pp: equal ranks of all stages; both in world order."""

    def __init__(self, world: MPI.Intracomm, tensor_parallel: int, pipeline_parallel: int) -> None:
        self.world = world
        self.stages, self.ranks = pipeline_parallel, tensor_parallel
        self.stage, self.rank = divmod(world.rank, tensor_parallel)
        self.tp: MPI.Intracomm = world.Split(self.stage, self.rank)  # type: ignore[assignment]
        self.pp: MPI.Intracomm = world.Split(self.rank, self.stage)  # type: ignore[assignment]
        self.sampler = (pipeline_parallel - 1) * tensor_parallel
        self.is_head, self.is_sampler = world.rank == 0, world.rank == self.sampler


class Worker:
    """Runs plans on one rank, in the order in which the head sent them."""

    def __init__(self, grid: Grid, stage: Stage, sequences: int, tokens: int) -> None:
        """sequences, tokens: the most rows and new tokens of one plan."""
        self._grid, self._stage = grid, stage
        self._size = plans.most_bytes(sequences, tokens)
        self._sending: deque[tuple[MPI.Request, object]] = deque()  # with what they read
        self.step = 0

    # --- plans ----------------------------------------------------------------------------------------------

    def send(self, plan: Plan) -> None:
        """Head rank: give `plan` to all ranks. Does not wait for ranks that are busy with an earlier one."""
        if self._grid.world.size > 1:
            data = bytearray(self._size)
            plans.encode(plan, memoryview(data))
            self._sending.append((self._grid.world.Ibcast(data, root=0), data))

    def receive(self) -> Plan:
        """Other ranks: the next plan."""
        data = bytearray(self._size)
        wait(self._grid.world.Ibcast(data, root=0), IDLE_PER_RANK * self._grid.world.size)
        return plans.decode(memoryview(data))

    # --- iterations -----------------------------------------------------------------------------------------

    def run(self, plan: Plan) -> list[int] | None:
        """This rank's part of one iteration; the sampled tokens where this rank is the sampler."""
        self.step += 1
        fault(self._grid.world.rank, f"step{self.step}")
        self._release()
        stage, grid = self._stage, self._grid
        for slot in plan.wipe:
            stage.cache.wipe(slot)
        for move in plan.moves:
            stage.cache.move(move.source, move.target, move.length)
        step = Step(plan, stage.device)
        hidden = stage.forward(step, self._input(plan, step))
        if not stage.is_last:
            self._post(grid.pp, hidden.contiguous().cpu(), grid.stage + 1, _HIDDEN)
            return None
        rows = [row for row in plan.rows if row.sample]
        tokens = self._sample(stage.logits(step, hidden).cpu(), rows) if rows else []
        if grid.is_sampler and not grid.is_head and rows:
            self._post(grid.world, torch.tensor(tokens, dtype=torch.int32), 0, _TOKENS)
        return tokens if grid.is_sampler else None

    def tokens(self, count: int) -> Incoming:
        """Head rank of a pipeline: the tokens that the sampler will send for the plan just run."""
        return Incoming(self._grid, count)

    def finish(self) -> None:
        """Complete what is still being sent; call on all ranks before the end."""
        while self._sending:
            wait(self._sending.popleft()[0])

    # --- inside ---------------------------------------------------------------------------------------------

    def _input(self, plan: Plan, step: Step) -> torch.Tensor:
        stage = self._stage
        if stage.is_first:
            ids = [token for row in plan.rows for token in row.ids]
            return torch.tensor(ids, device=stage.device)
        x = torch.empty(step.total, stage.hidden, dtype=stage.dtype)
        wait(self._grid.pp.Irecv(buffer(x), self._grid.stage - 1, _HIDDEN))
        return x.to(stage.device)

    def _sample(self, part: torch.Tensor, rows: list[Row]) -> list[int]:
        """Collective over the last stage's ranks: part [rows, my vocabulary slice] -> tokens on the sampler."""
        grid, edges = self._grid, self._stage.vocabulary
        if grid.ranks == 1:
            return sample(part, rows)
        if all(row.sampling.temperature == 0.0 for row in rows):  # the best of each slice is enough
            best = part.max(-1)
            pair = torch.stack((best.values.double(), (best.indices + edges[grid.rank]).double()))
            pairs = torch.empty(grid.ranks, 2, len(rows), dtype=torch.float64)
            grid.tp.Gather(buffer(pair), buffer(pairs) if grid.is_sampler else None, 0)
            return _best(pairs) if grid.is_sampler else []
        if not grid.is_sampler:
            grid.tp.Send(buffer(part.contiguous()), 0, _LOGITS)
            return []
        whole = [part]
        for rank in range(1, grid.ranks):
            whole.append(torch.empty(len(rows), edges[rank + 1] - edges[rank]))
            grid.tp.Recv(buffer(whole[-1]), rank, _LOGITS)
        return sample(torch.cat(whole, 1), rows)

    def _post(self, comm: MPI.Intracomm, tensor: torch.Tensor, target: int, tag: int) -> None:
        self._sending.append((comm.Isend(buffer(tensor), target, tag), tensor))

    def _release(self) -> None:
        while self._sending and self._sending[0][0].Test():
            self._sending.popleft()


class Incoming:
    """Sampled tokens on their way to the head."""

    def __init__(self, grid: Grid, count: int) -> None:
        self._data = torch.empty(count, dtype=torch.int32)
        self._request = grid.world.Irecv(buffer(self._data), grid.sampler, _TOKENS) if count else None

    def get(self) -> list[int]:
        """Wait for them."""
        if self._request is not None:
            wait(self._request)
        found: list[int] = self._data.tolist()
        return found


def _best(pairs: torch.Tensor) -> list[int]:
    """pairs [ranks, (value, token), rows] -> the best token of each row, the lowest of equals; -1: no number."""
    values, tokens = pairs[:, 0], pairs[:, 1]
    best = values.max(0).values
    picked = torch.where(values == best, tokens, torch.inf).min(0).values
    return [int(t) if ok else -1 for t, ok in zip(picked.tolist(), torch.isfinite(best).tolist(), strict=True)]
