"""What a sweep asks, what came out, and which shape is best. Pure; times in seconds."""

from __future__ import annotations

import math

import msgspec

from exahpc.lab.bench.lengths import Lengths
from exahpc.lab.bench.wish import Load, Slo
from exahpc.lab.ladder.values import Step
from exahpc.lab.sweep.shapes import Shape

_SURE = 2.0
"""Standard errors by which a shape must be better than another to count as better."""


class Question(msgspec.Struct, frozen=True):
    """All that decides the figures. toml: the deployment with one pool, on as many nodes as all shapes get; loads:
    each shape meets all of them."""

    toml: str
    nodes: int
    shapes: tuple[Shape, ...]
    loads: tuple[Load, ...]
    prompt: Lengths
    new: Lengths
    ramp: float
    seconds: float
    drain: float
    slo: Slo
    seed: int


class Trial(msgspec.Struct, frozen=True):
    """One shape under the loads of the question, in their order; fewer where it was cut off. reason: why it cannot
    serve, "" when it can."""

    shape: Shape
    steps: tuple[Step, ...] = ()
    reason: str = ""


class Choice(msgspec.Struct, frozen=True):
    """load: under which it was best; value: tokens a second, or with an SLO answers a second within it; rivals:
    shapes that the measurements do not tell from it."""

    shape: Shape
    load: Load
    value: float
    error: float
    rivals: tuple[Shape, ...] = ()


class Sweep(msgspec.Struct, frozen=True):
    """The file. emulated: what no real machine did, "" when all of it is real."""

    question: Question
    deployment: str
    model: str
    date: str
    emulated: str
    trials: tuple[Trial, ...] = ()
    choice: Choice | None = None

    def of(self, shape: Shape) -> Trial:
        """What is known of a shape: nothing at first."""
        return next((trial for trial in self.trials if trial.shape == shape), Trial(shape))

    def done(self, shape: Shape) -> bool:
        trial = self.of(shape)
        return bool(trial.reason) or len(trial.steps) == len(self.question.loads)

    def having(self, trial: Trial) -> Sweep:
        """The same with a trial as it is now, and the choice that follows."""
        known = {one.shape: one for one in (*self.trials, trial)}
        trials = tuple(known[shape] for shape in self.question.shapes if shape in known)
        return msgspec.structs.replace(self, trials=trials, choice=choose(self.question, trials))


def worth(step: Step) -> tuple[float, float]:
    """(value, standard error) of a measurement: goodput with an SLO, else tokens a second. Answers are counted, so
    goodput has at least the error of a count."""
    if step.goodput is None:
        return step.tokens_per_second, step.error
    seconds = step.requests_per_second and (step.requests - step.bad) / step.requests_per_second
    return step.goodput, math.sqrt(step.goodput / seconds) if seconds else 0.0


def choose(question: Question, trials: tuple[Trial, ...]) -> Choice | None:
    """The shape with the highest worth under any load; None when none has served."""
    found = [
        (*worth(step), -step.e2e.p50, trial.shape, load)
        for trial in trials
        for load, step in zip(question.loads, trial.steps, strict=False)
    ]
    if not found:
        return None
    value, error, _, shape, load = max(found, key=lambda one: (one[0], one[2]))
    rivals = {
        other[3] for other in found if other[3] != shape and value - other[0] < _SURE * math.hypot(error, other[1])
    }
    return Choice(shape, load, value, error, tuple(sorted(rivals)))
