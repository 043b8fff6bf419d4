"""Latencies of an emulated replica from what `exahpc curve` measured on real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from exahpc.errors import DeploymentError
from exahpc.lab.curve import Curve
from exahpc.lab.emulated.model import Latency


class Point(NamedTuple):
    """A measured level: sequences that ran at once on one replica, and medians in seconds."""

    running: float
    first_token: float
    between: float


def fitted(points: Sequence[Point], prompt: int, chunk: int = 512) -> Latency:
    """The latencies that come nearest to what was measured with prompts of `prompt` tokens.

    Tokens: least squares of `between` over `running`, without a falling slope. Prompts: what the least loaded
    level took beyond its steps, all of it counted by tokens. Raises ValueError without a point of positive times.
    """
    usable = sorted(p for p in points if p.first_token > 0 and p.between > 0)
    if not usable or prompt < 1:
        raise ValueError(f"no level with a first token and one after it, or no prompt: {list(points)}, {prompt}")
    mean = sum(p.running for p in usable) / len(usable)
    height = sum(p.between for p in usable) / len(usable)
    spread = sum((p.running - mean) ** 2 for p in usable)
    slope = sum((p.running - mean) * (p.between - height) for p in usable) / spread if spread else 0.0
    each = min(max(0.0, slope), min(p.between / max(1.0, p.running) for p in usable) / 2)
    base = max(1e-6, height - each * mean)
    first = max(1e-6, usable[0].first_token - base * -(-prompt // chunk))
    return Latency(
        base_seconds=base, each_seconds=each, prompt_seconds=0.0, prompt_rate=prompt / first, chunk=chunk
    )


def calibrated(path: Path) -> Latency:
    """From a curve.json: levels at which all requests ran at once count, the others queued.

    Raises DeploymentError when the file is no curve, or none of its levels has latencies.
    """
    try:
        curve = msgspec.json.decode(path.read_bytes(), type=Curve)
    except (OSError, msgspec.DecodeError) as error:
        raise DeploymentError(f"{path} is not a curve.json of `exahpc curve`: {error}") from None
    points = [
        Point(level.concurrency / curve.replicas, level.first_token.p50, level.between.p50)
        for level in curve.levels
        if level.concurrency <= curve.sequences
    ]
    try:
        return fitted(points, curve.prompt)
    except ValueError as error:
        raise DeploymentError(f"{path} tells no latencies: {error}") from None
