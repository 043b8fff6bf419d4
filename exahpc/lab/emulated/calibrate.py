"""Latencies of an emulated replica from what `exahpc curve` measured on real ones."""

from __future__ import annotations

from pathlib import Path

import msgspec

from exahpc.errors import ExahpcError
from exahpc.lab.curve import Curve
from exahpc.lab.emulated.model import Latency, Point, fitted


def calibrated(path: Path) -> Latency:
    """From a curve.json: levels at which all requests ran at once count, the others queued.

    Raises ExahpcError when the file is no curve, or none of its levels has latencies.
    """
    try:
        curve = msgspec.json.decode(path.read_bytes(), type=Curve)
    except (OSError, msgspec.DecodeError) as error:
        raise ExahpcError(f"{path} is not a curve.json of `exahpc curve`: {error}") from None
    points = [
        Point(level.concurrency / curve.replicas, level.first_token.p50, level.between.p50)
        for level in curve.levels
        if level.concurrency <= curve.sequences
    ]
    try:
        return fitted(points, curve.prompt)
    except ValueError as error:
        raise ExahpcError(f"{path} tells no latencies: {error}") from None
