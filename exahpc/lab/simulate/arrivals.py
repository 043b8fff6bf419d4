"""Requests in the order in which they come: (seconds, prompt tokens, new tokens, most tokens, streamed)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec

from exahpc.errors import DeploymentError
from exahpc.lab.simulate.scenario import Arrivals, Request


class Arrival(NamedTuple):
    """max_tokens: what routing knows of the answer's length."""

    at: float
    prompt: int
    new: int
    max_tokens: int
    stream: bool


class _Line(msgspec.Struct, frozen=True):
    time: float
    prompt: int
    new: int
    stream: bool = True


def arrivals(wanted: Arrivals, replicas: int, draw: random.Random) -> Iterator[Arrival]:
    """Without end, but for recorded ones. Raises DeploymentError for a recording that cannot be read."""
    if wanted.kind == "recorded":
        return _recorded(Path(wanted.path))
    return _random(wanted, wanted.rate or wanted.rate_per_replica * replicas, draw)


def _random(wanted: Arrivals, rate: float, draw: random.Random) -> Iterator[Arrival]:
    """A Poisson process, or even steps; bursts are thinned from a Poisson process of the highest rate."""
    bursts, even = wanted.kind == "bursts", wanted.kind == "even"
    highest = rate * max(1.0, wanted.burst) if bursts else rate
    kinds = [_of(kind) for kind in wanted.mix]
    bounds = list(accumulate(kind.share for kind in wanted.mix))
    only = kinds[0] if len(kinds) == 1 else None
    wait, uniform = draw.expovariate, draw.random
    at = 0.0
    while True:
        at += 1 / highest if even else wait(highest)
        if bursts:
            inside = at % wanted.every_seconds < wanted.burst_seconds
            if uniform() * highest >= rate * (wanted.burst if inside else wanted.calm):
                continue
        kind = only
        if kind is None:
            mark = uniform() * bounds[-1]
            kind = next(kind for kind, bound in zip(kinds, bounds, strict=True) if mark <= bound)
        yield Arrival(at, *kind)


def _of(kind: Request) -> tuple[int, int, int, bool]:
    return kind.prompt, kind.new, max(kind.new, kind.max_tokens or 0), kind.stream


def _recorded(path: Path) -> Iterator[Arrival]:
    decode, last = msgspec.json.Decoder(_Line).decode, 0.0
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                line = decode(text)
                if line.time < last or line.prompt < 1 or line.new < 1:
                    raise DeploymentError(
                        f"{path} line {number}: time = {line.time:g}, prompt = {line.prompt}, new = {line.new}: "
                        f"times must not fall, and both lengths must be at least 1"
                    )
                last = line.time
                yield Arrival(line.time, line.prompt, line.new, line.new, line.stream)
    except msgspec.DecodeError as error:
        raise DeploymentError(f"{path} line {number}: {error}") from None
    except OSError as error:
        raise DeploymentError(f"arrivals.path = {str(path)!r} cannot be read: {error.strerror}") from None
