"""From memory to a fleet: which grids work, what a replica holds, how many replicas and nodes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import msgspec

from exahpc.deployment.architectures import check
from exahpc.deployment.grid import BLOCK, kv_heads_of_rank
from exahpc.deployment.memory import Case, Grid, most_tokens, rank
from exahpc.deployment.units import memory
from exahpc.errors import DeploymentError

_SIZES = (1, 2, 4, 8, 16)
"""Of either side of a grid, besides the divisors of a node's accelerators for tensor_parallel."""


class Choice(msgspec.Struct, frozen=True):
    """A grid on nodes of a shape.

    problem: why it does not work, "" if it does; needs: bytes of a rank without any KV cache, where it is that.
    tokens: of one replica's KV cache; sequences: that it runs at once; held: that memory would hold, without the
    bound of max_sequences; replicas_per_node: 1 where a replica spans several nodes.
    """

    tensor_parallel: int
    pipeline_parallel: int
    problem: str = ""
    needs: int = 0
    note: str = ""
    tokens: int = 0
    sequences: int = 0
    held: int = 0
    nodes_per_replica: int = 1
    replicas_per_node: int = 1

    @property
    def grid(self) -> Grid:
        return Grid(self.tensor_parallel, self.pipeline_parallel)

    @property
    def of_node(self) -> Fraction:
        """Sequences that a node runs at once."""
        return Fraction(self.sequences * self.replicas_per_node, self.nodes_per_replica)


class Fleet(msgspec.Struct, frozen=True):
    """concurrency: sequences at once that are wanted or served, with `headroom` above; tasks: of the job array."""

    concurrency: int
    headroom: float
    replicas: int
    nodes: int
    tasks: int

    @property
    def array(self) -> str:
        return f"0-{self.tasks - 1}"


def choices(case: Case, config: Mapping[str, Any] | None, per_node: int, tokens: int) -> list[Choice]:
    """All grids that are worth a look, each with what it holds or why it does not work.

    config: the model's, to be checked for what is served; None for a model that is only planned for. tokens: of
    one sequence on average, prompt and answer.
    """
    wide = sorted({*_SIZES, *(n for n in range(1, per_node + 1) if per_node % n == 0)})
    return [choice(case, config, per_node, tokens, Grid(tp, pp)) for tp in wide for pp in _SIZES]


def choice(case: Case, config: Mapping[str, Any] | None, per_node: int, tokens: int, grid: Grid) -> Choice:
    """One grid on nodes of `per_node` ranks."""
    found = Choice(grid.tensor_parallel, grid.pipeline_parallel)
    problem = next(_problems(case, config, per_node, grid), "")
    if problem:
        return msgspec.structs.replace(found, problem=problem)
    nodes = _nodes(grid, per_node) or 1
    room = most_tokens(case, grid)
    if room < case.context:
        empty = rank(case, grid, 0)
        needs = empty.used if empty.free < 0 else 0
        return msgspec.structs.replace(found, problem=_too_small(case, needs, room), needs=needs)
    held = room // tokens
    sequences = min(case.sequences, held)
    return msgspec.structs.replace(
        found,
        note=_note(case, grid),
        tokens=min(room, -(-max(sequences * tokens, case.context) // BLOCK) * BLOCK),
        sequences=sequences,
        held=held,
        nodes_per_replica=nodes,
        replicas_per_node=max(1, per_node // grid.ranks),
    )


def shortage(case: Case, grid: Grid, tokens: int) -> str:
    """Why a rank cannot work with a KV cache of so many tokens a replica, "" when it can."""
    found = rank(case, grid, tokens)
    if found.free >= 0:
        return ""
    rest = found.used - found.weights - found.kv
    room = most_tokens(case, grid)
    fits = room >= case.context
    remedy = f"set kv_tokens to at most {room}" if fits else "take more ranks, or quantize the model"
    return (
        f"a rank needs {memory(found.used)} (weights {memory(found.weights)}, KV cache {memory(found.kv)}, "
        f"workspace and runtime {memory(rest)}) and has {memory(case.memory)}: {remedy}"
    )


def best(found: list[Choice]) -> Choice | None:
    """The grid that runs most sequences on a node; of equals that of fewest ranks, then of fewest stages."""
    good = [one for one in found if not one.problem]
    return max(good, key=lambda one: (one.of_node, -one.grid.ranks, -one.pipeline_parallel), default=None)


def fleet_for(concurrency: int, headroom: float, choice: Choice) -> Fleet:
    """replicas = ceil(concurrency (1 + headroom) / sequences), nodes = ceil(replicas / those of a node)."""
    wanted = concurrency * (1 + Fraction(str(headroom)))
    replicas = math.ceil(wanted / choice.sequences)
    tasks = -(-replicas // choice.replicas_per_node)
    return Fleet(concurrency, headroom, replicas, tasks * choice.nodes_per_replica, tasks)


def fleet_of(nodes: int, headroom: float, choice: Choice) -> Fleet:
    """Backwards. Raises DeploymentError when not even one replica has room on so many nodes."""
    tasks = nodes // choice.nodes_per_replica
    if tasks == 0:
        need = choice.nodes_per_replica
        raise DeploymentError(f"--nodes = {nodes}: one replica spans {need} nodes: give {need} or more")
    replicas = tasks * choice.replicas_per_node
    concurrency = math.floor(replicas * choice.sequences / (1 + Fraction(str(headroom))))
    return Fleet(concurrency, headroom, replicas, tasks * choice.nodes_per_replica, tasks)


def _problems(case: Case, config: Mapping[str, Any] | None, per_node: int, grid: Grid) -> Iterator[str]:
    tp, pp, shape = grid.tensor_parallel, grid.pipeline_parallel, case.shape
    if tp > shape.kv_heads:
        yield f"the model has {shape.kv_heads} key/value heads: tensor_parallel at most {shape.kv_heads}"
    if pp > shape.layers:
        yield f"the model has {shape.layers} layers: pipeline_parallel at most {shape.layers}"
    if tp > per_node:
        yield f"a tensor-parallel group stays in a node of {per_node}: tensor_parallel at most {per_node}"
    if _nodes(grid, per_node) is None:
        yield f"{pp} stages of {tp} ranks do not spread evenly over nodes of {per_node}: change pipeline_parallel"
    if config is not None:
        try:
            check(config, tensor_parallel=tp, pipeline_parallel=pp, context=case.context)
        except DeploymentError as error:
            yield str(error)


def _nodes(grid: Grid, per_node: int) -> int | None:
    """The fewest nodes that hold whole stages, equally many each; None if there is no such number."""
    stages = range(1, grid.pipeline_parallel + 1)
    fitting = (n for n in stages if grid.pipeline_parallel % n == 0 and grid.ranks // n <= per_node)
    return next(fitting, None)


def _too_small(case: Case, needs: int, room: int) -> str:
    if needs:
        return f"a rank needs {memory(needs)} before any KV cache, and has {memory(case.memory)}: more ranks"
    return f"room for {room} tokens of KV cache, and one context needs {case.context}: more ranks, or less context"


def _note(case: Case, grid: Grid) -> str:
    heads, tp = case.shape.kv_heads, grid.tensor_parallel
    return f"uneven: {kv_heads_of_rank(case.shape, tp, 0)} of {heads} KV heads" if heads % tp else ""
