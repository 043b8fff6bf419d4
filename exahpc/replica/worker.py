"""What every rank does with a plan: keep its tables, run its layers, pass on; the last stage samples.

World rank = stage * tensor_parallel + tensor-parallel rank. Rank 0 is the head; the tensor-parallel rank 0 of the
last stage is the sampler. Hidden states go from each rank to its equal in the next stage over a `link`; what was
drawn goes from the sampler to the head, for every plan, so that the head cannot run away.
"""

from __future__ import annotations

import time
from collections import deque

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from exahpc.deployment.spec import StageLinks
from exahpc.replica import plan as plans
from exahpc.replica.engine import choosing
from exahpc.replica.engine.attention import Step
from exahpc.replica.engine.group import buffer
from exahpc.replica.engine.sampler import Sampler
from exahpc.replica.engine.stage import Stage
from exahpc.replica.guard import fault
from exahpc.replica.idle import IdleShares
from exahpc.replica.link import Message, StageLink, Transfer, connect
from exahpc.replica.plan import Drawn, Plan, Row
from exahpc.replica.tables import Tables
from exahpc.replica.waiting import IDLE_PER_RANK, wait

_DRAWN, _LIKELIHOODS, _LOGITS, _BUSY = 2, 3, 4, 5
_TELL_SECONDS = 1.0
_MOST_SENDING = 256
_NO_MORE = -1.0
_PLAIN = StageLinks()
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

    def __init__(self, grid: Grid, stage: Stage, sequences: int, context: int, links: StageLinks = _PLAIN) -> None:
        """sequences: slots; context: most tokens of one sequence."""
        self._grid, self._stage = grid, stage
        self._tables = Tables(sequences, context)
        self._sampler = Sampler(sequences, stage.vocabulary_size)
        self._sending: deque[Transfer] = deque()
        self._before = self._link(links, -1) if not stage.is_first else None
        self._after = self._link(links, 1) if not stage.is_last else None
        self._idle = IdleShares(grid.world.size)
        self._busy = self._next_tell = 0.0
        self.step = 0
        if self._after is not None and grid.ranks == 1:  # else the sums of each layer call MPI anyway
            stage.between = self.progress

    # --- plans ----------------------------------------------------------------------------------------------

    def send(self, plan: Plan) -> None:
        """Head rank: give `plan` to all ranks. Does not wait for ranks that are busy with an earlier one."""
        if self._grid.world.size > 1:
            for part in plans.encode(plan):
                if part:
                    self._sending.append(Message(self._grid.world.Ibcast(part, root=0), part))

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
        begin = time.perf_counter()
        self.progress()
        stage, grid = self._stage, self._grid
        x, arrival = self._input(plan)
        if plan.wipe:
            stage.cache.wipe(plan.wipe)
        self._tables.apply(plan)
        step = Step(plan, self._tables, stage.device)
        if arrival is not None:
            waiting = time.perf_counter()
            arrival.wait()
            begin += time.perf_counter() - waiting  # not busy
        hidden = stage.forward(step, x)
        if self._after is not None:
            self._sending.append(self._after.send(hidden.contiguous()))
            self._tell(begin)
            return None
        for b in plan.begins:
            self._sampler.begin(b.slot, b.sampling, b.seed, b.stream, b.stop_ids, b.ids, b.prompt)
        rows = [row for row in plan.rows if row.lines]
        drawn = self._draw(stage.logits(step, hidden), rows) if rows else Drawn()
        self._tell(begin)
        if not grid.is_sampler:
            return None
        if not grid.is_head:
            self._report(drawn)
        return drawn

    def drawn(self, plan: Plan) -> Incoming:
        """Head rank of a pipeline: what the sampler will draw for the plan just run."""
        return Incoming(self._grid, plan.samples)

    def progress(self) -> None:
        """Let what is being sent go on: some MPI libraries only work while they are called."""
        while self._sending and self._sending[0].done():
            self._sending.popleft()
        while len(self._sending) > _MOST_SENDING:  # long gone, but of a kind that only knows after `wait`
            self._sending.popleft().wait()

    def hear(self, active: float) -> None:
        """Head rank: take in how busy the others were. active: seconds with work so far."""
        world, status = self._grid.world, MPI.Status()
        while world.size > 1 and world.Iprobe(MPI.ANY_SOURCE, _BUSY, status):
            self._idle.report(status.source, active, self._told_by(status.source))

    def idle(self, active: float, waited: float) -> list[float]:
        """Head rank: idle share of each rank. waited: how much of `active` the head only waited."""
        self._idle.report(0, active, active - waited)
        return self._idle.shares()

    def finish(self) -> None:
        """Complete what is still being sent; call on all ranks before the end."""
        world = self._grid.world
        if not self._grid.is_head:
            self._post(world, torch.tensor([_NO_MORE], dtype=torch.float64), 0, _BUSY)
        while self._sending:
            self._sending.popleft().wait()
        for rank in range(1, world.size) if self._grid.is_head else ():
            while self._told_by(rank) != _NO_MORE:
                pass

    # --- inside ---------------------------------------------------------------------------------------------

    def _link(self, links: StageLinks, step: int) -> StageLink:
        """To the stage after (1) or before (-1)."""
        grid = self._grid
        by_device = links.via == "device" and dist.get_world_size() == grid.world.size
        device_peer = grid.world.rank + step * grid.ranks if by_device else None
        return connect(links, grid.stage + min(step, 0), grid.pp, grid.stage + step, device_peer)

    def _input(self, plan: Plan) -> tuple[torch.Tensor, Transfer | None]:
        """What the stage works on, and when it is there (None: at once)."""
        stage = self._stage
        if self._before is None:
            ids = [token for row in plan.rows for token in row.ids]
            return torch.tensor(ids, device=stage.device), None
        x = torch.empty(plan.tokens, stage.hidden, dtype=stage.dtype, device=stage.device)
        return x, self._before.receive(x)

    def _tell(self, begin: float) -> None:
        """Count what was done since `begin`; now and then the head is told."""
        now = time.perf_counter()
        self._busy += now - begin
        if not self._grid.is_head and now >= self._next_tell:
            self._next_tell = now + _TELL_SECONDS
            self._post(self._grid.world, torch.tensor([self._busy], dtype=torch.float64), 0, _BUSY)

    def _told_by(self, rank: int) -> float:
        busy = torch.empty(1, dtype=torch.float64)
        self._grid.world.Recv(buffer(busy), rank, _BUSY)
        return float(busy)

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
        self._sending.append(Message(comm.Isend(buffer(tensor), target, tag), tensor))


class Incoming:
    """What the sampler drew, on its way to the head."""

    def __init__(self, grid: Grid, tokens: int) -> None:
        self._grid = grid
        self._data = torch.empty(1 + tokens, dtype=torch.int32)
        self._request = grid.world.Irecv(buffer(self._data), grid.sampler, _DRAWN)

    def arrived(self) -> bool:
        """Whether `get` would not wait."""
        return bool(self._request.Test())

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
