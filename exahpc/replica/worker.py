"""What every rank does with a plan: keep its tables, run its layers, pass on; the last stage samples.

World rank = stage * tensor_parallel + tensor-parallel rank. Rank 0 is the head; the tensor-parallel rank 0 of the
last stage is the sampler. Hidden states go from each rank to its equal in the next stage, staged through host
memory; what was drawn goes from the sampler to the head, for every plan, so that the head cannot run away.
"""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np
import torch
from mpi4py import MPI

from exahpc.replica import plan as plans
from exahpc.replica.engine import choosing
from exahpc.replica.engine.attention import Step
from exahpc.replica.engine.group import buffer
from exahpc.replica.engine.sampler import Sampler
from exahpc.replica.engine.stage import Stage
from exahpc.replica.guard import fault
from exahpc.replica.plan import Drawn, Plan, Row
from exahpc.replica.tables import Tables
from exahpc.replica.waiting import IDLE_PER_RANK, wait

_HIDDEN, _DRAWN, _LIKELIHOODS, _LOGITS = 1, 2, 3, 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Drawn).decode


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

    def __init__(self, grid: Grid, stage: Stage, sequences: int, context: int) -> None:
        """sequences: slots; context: most tokens of one sequence."""
        self._grid, self._stage = grid, stage
        self._tables = Tables(sequences, context)
        self._sampler = Sampler(sequences, stage.vocabulary_size)
        self._sending: deque[tuple[MPI.Request, object]] = deque()  # with what they read
        self.step = 0

    # --- plans ----------------------------------------------------------------------------------------------

    def send(self, plan: Plan) -> None:
        """Head rank: give `plan` to all ranks. Does not wait for ranks that are busy with an earlier one."""
        if self._grid.world.size > 1:
            for part in plans.encode(plan):
                if part:
                    self._sending.append((self._grid.world.Ibcast(part, root=0), part))

    def receive(self) -> Plan:
        """Other ranks: the next plan."""
        world = self._grid.world
        first = bytearray(plans.FIRST)
        wait(world.Ibcast(first, root=0), IDLE_PER_RANK * world.size)
        second = bytearray(plans.rest(first))
        if second:
            wait(world.Ibcast(second, root=0))
        return plans.decode(first, second)

    # --- iterations -----------------------------------------------------------------------------------------

    def run(self, plan: Plan) -> Drawn | None:
        """This rank's part of one iteration; what was drawn where this rank is the sampler."""
        self.step += 1
        fault(self._grid.world.rank, f"step{self.step}")
        self._release()
        stage, grid = self._stage, self._grid
        if plan.wipe:
            stage.cache.wipe(plan.wipe)
        self._tables.apply(plan)
        step = Step(plan, self._tables, stage.device)
        hidden = stage.forward(step, self._input(plan, step))
        if not stage.is_last:
            self._post(grid.pp, hidden.contiguous().cpu(), grid.stage + 1, _HIDDEN)
            return None
        for b in plan.begins:
            self._sampler.begin(b.slot, b.sampling, b.seed, b.stream, b.stop_ids, b.ids, b.prompt)
        rows = [row for row in plan.rows if row.lines]
        drawn = self._draw(stage.logits(step, hidden), rows) if rows else Drawn()
        if not grid.is_sampler:
            return None
        if not grid.is_head:
            self._report(drawn)
        return drawn

    def drawn(self, plan: Plan) -> Incoming:
        """Head rank of a pipeline: what the sampler will draw for the plan just run."""
        return Incoming(self._grid, plan.samples)

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

    def _draw(self, part: torch.Tensor, rows: list[Row]) -> Drawn:
        """Collective over the last stage's ranks: part [lines, my vocabulary slice] -> what the sampler draws."""
        grid, sampler = self._grid, self._sampler
        slots = [row.slot for row in rows if row.sample]
        if grid.ranks > 1:
            if sampler.plain(slots) and not any(row.score for row in rows):
                return self._best(part)
            whole = self._gather(part.cpu())
            if whole is None:
                return Drawn()
            part = whole
        scores = []
        at, last = 0, []
        for row in rows:
            end = at + row.lines
            if row.score:
                targets = [*row.ids[1:], *([row.target] if row.target >= 0 else [])]
                scores.append(sampler.score(part[at : at + len(targets)], targets, row.slot))
            if row.sample:
                last.append(end - 1)
            at = end
        if not last:
            return Drawn(scores=scores)
        if len(last) < at:
            part = part[last]
        found = sampler.draw(part, slots, [row.position for row in rows if row.sample])
        return Drawn(found.tokens.tolist(), found.likelihoods, scores)

    def _best(self, part: torch.Tensor) -> Drawn:
        """Greedy rows: the best of each slice is enough."""
        grid, edges = self._grid, self._stage.vocabulary
        tokens, values = choosing.likeliest(part)
        pair = torch.from_numpy(np.stack((values.astype(np.float64), tokens + edges[grid.rank])))
        pairs = torch.empty(grid.ranks, 2, len(part), dtype=torch.float64)
        grid.tp.Gather(buffer(pair), buffer(pairs) if grid.is_sampler else None, 0)
        return Drawn(_best(pairs)) if grid.is_sampler else Drawn()

    def _gather(self, part: torch.Tensor) -> torch.Tensor | None:
        """All slices of the vocabulary side by side, on the sampler."""
        grid, edges = self._grid, self._stage.vocabulary
        if not grid.is_sampler:
            grid.tp.Send(buffer(part.contiguous()), 0, _LOGITS)
            return None
        whole = [part]
        for rank in range(1, grid.ranks):
            whole.append(torch.empty(len(part), edges[rank + 1] - edges[rank]))
            grid.tp.Recv(buffer(whole[-1]), rank, _LOGITS)
        return torch.cat(whole, 1)

    def _report(self, drawn: Drawn) -> None:
        """Sampler to head: the tokens, after the size of a second message that brings likelihoods, if any."""
        more = np.frombuffer(_encode(drawn), np.uint8) if drawn.logprobs or drawn.scores else None
        tokens = torch.tensor([0 if more is None else len(more), *drawn.tokens], dtype=torch.int32)
        self._post(self._grid.world, tokens, 0, _DRAWN)
        if more is not None:
            self._post(self._grid.world, torch.from_numpy(more.copy()), 0, _LIKELIHOODS)

    def _post(self, comm: MPI.Intracomm, tensor: torch.Tensor, target: int, tag: int) -> None:
        self._sending.append((comm.Isend(buffer(tensor), target, tag), tensor))

    def _release(self) -> None:
        while self._sending and self._sending[0][0].Test():
            self._sending.popleft()


class Incoming:
    """What the sampler drew, on its way to the head."""

    def __init__(self, grid: Grid, tokens: int) -> None:
        self._grid = grid
        self._data = torch.empty(1 + tokens, dtype=torch.int32)
        self._request = grid.world.Irecv(buffer(self._data), grid.sampler, _DRAWN)

    def get(self) -> Drawn:
        """Wait for it."""
        wait(self._request)
        size, *tokens = self._data.tolist()
        if not size:
            return Drawn(tokens)
        more = torch.empty(size, dtype=torch.uint8)
        wait(self._grid.world.Irecv(buffer(more), self._grid.sampler, _LIKELIHOODS))
        return _decode(more.numpy().tobytes())


def _best(pairs: torch.Tensor) -> list[int]:
    """pairs [ranks, (value, token), rows] -> the best token of each row, the lowest of equals; -1: no number."""
    values, tokens = pairs[:, 0], pairs[:, 1]
    best = values.max(0).values
    picked = torch.where(values == best, tokens, torch.inf).min(0).values
    return [int(t) if ok else -1 for t, ok in zip(picked.tolist(), torch.isfinite(best).tolist(), strict=True)]
