"""What a ladder asks, and what came out. Values; times in seconds."""

from __future__ import annotations

import msgspec

from exahpc.lab.bench.figures import Result, Spread
from exahpc.lab.bench.lengths import Lengths
from exahpc.lab.bench.wish import Load, Slo
from exahpc.lab.ladder.fit import Estimate, Fit, efficiency, fit
from exahpc.lab.simulate.report import Report


class Question(msgspec.Struct, frozen=True):
    """All that decides the figures: the same question goes on where an earlier run was cut off.

    toml: the deployment with one pool; load: of each node; simulated: nothing ran.
    """

    toml: str
    nodes: tuple[int, ...]
    load: Load
    prompt: Lengths
    new: Lengths
    ramp: float
    seconds: float
    drain: float
    slo: Slo
    seed: int
    simulated: bool
    latency: str = ""


class Step(msgspec.Struct, frozen=True):
    """One array shape under its share of load. error: standard error of tokens_per_second; drained: tokens a
    second with the time of the last answers counted; bad: requests without an answer; goodput: answers a second
    within the SLO, None without one; doubts: why the figures may be the client's own."""

    nodes: int
    replicas: int
    tokens_per_second: float
    error: float
    requests_per_second: float
    drained: float
    requests: int
    bad: int
    ttft: Spread
    tbt: Spread
    e2e: Spread
    goodput: float | None = None
    doubts: tuple[str, ...] = ()


class Ladder(msgspec.Struct, frozen=True):
    """The file. emulated: what no real machine did, "" when all of it is real; efficiency: of each step, against
    the first; beyond: (nodes, tokens a second) of EXTRAPOLATED steps, which nobody measured."""

    question: Question
    deployment: str
    model: str
    date: str
    emulated: str
    steps: tuple[Step, ...] = ()
    efficiency: tuple[Estimate, ...] = ()
    fit: Fit | None = None
    beyond: tuple[tuple[int, Estimate], ...] = ()

    @property
    def complete(self) -> bool:
        return len(self.steps) == len(self.question.nodes)

    def with_step(self, step: Step) -> Ladder:
        """The same with one more, and all that follows from them."""
        steps = (*self.steps, step)
        nodes = [one.nodes for one in steps]
        rates = [one.tokens_per_second for one in steps]
        errors = [one.error for one in steps]
        law = fit(nodes, rates, errors)
        ahead = () if law is None else tuple((n, law.at(n)) for n in (2 * nodes[-1], 4 * nodes[-1]))
        return msgspec.structs.replace(
            self, steps=steps, efficiency=tuple(efficiency(nodes, rates, errors)), fit=law, beyond=ahead
        )


def measured(nodes: int, replicas: int, found: Result) -> Step:
    """From a run of the load client."""
    return Step(
        nodes=nodes,
        replicas=replicas,
        tokens_per_second=found.tokens_per_second,
        error=found.error,
        requests_per_second=found.requests_per_second,
        drained=found.drained.tokens_per_second,
        requests=found.requests,
        bad=found.requests - found.ok,
        ttft=found.ttft,
        tbt=found.tbt,
        e2e=found.e2e,
        goodput=found.goodput,
        doubts=tuple(found.client.doubts),
    )


def simulated(nodes: int, found: Report, goodput: bool) -> Step:
    """From a simulation."""
    figures, seconds = found.all, found.scenario.seconds
    requests = [window.requests for window in found.windows]
    mean = sum(requests) / len(requests)
    spread = (sum((one - mean) ** 2 for one in requests) / max(1, len(requests) - 1)) ** 0.5
    share = spread / mean / len(requests) ** 0.5 if mean else 0.0
    return Step(
        nodes=nodes,
        replicas=found.replicas,
        tokens_per_second=figures.tokens_per_second,
        error=figures.tokens_per_second * share,
        requests_per_second=figures.done / seconds,
        drained=figures.tokens_per_second,
        requests=figures.requests,
        bad=figures.requests - figures.done,
        ttft=_spread(figures.first_token.count, figures.first_token.p50, figures.first_token.p99),
        tbt=_spread(figures.between.count, figures.between.p50, figures.between.p99),
        e2e=_spread(figures.whole.count, figures.whole.p50, figures.whole.p99),
        goodput=figures.goodput if goodput else None,
    )


def _spread(count: int, p50: float, p99: float) -> Spread:
    """Of what a simulation tells: the other percentiles stay zero."""
    return Spread(count, p50=p50, p99=p99)
