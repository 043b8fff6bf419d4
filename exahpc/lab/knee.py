"""The knee of a curve that rises steeply, then slowly. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

LEAST = 0.1
"""Distance from the chord below which a curve counts as straight: it has no knee yet. Noise stays below it."""
FLAT = 0.05
"""Rise, as a share of the highest value, below which a curve counts as flat: its knee is the first point."""


def knee(x: Sequence[float], y: Sequence[float]) -> int | None:
    """Index of the knee of y(x), x rising; None while there is none (fewer than three points, or no bend).

    The point farthest above the chord, both axes scaled to 0..1: Kneedle (Satopaa et al., "Finding a Kneedle in a
    Haystack", 2011) offline for a concave rising curve, without its smoothing, and with a fixed least distance in
    place of its sensitivity. Of equals the first. Raises ValueError when x does not rise or the lengths differ.
    """
    if len(x) != len(y) or any(b <= a for a, b in pairwise(x)):
        raise ValueError(f"x must rise and be as long as y: x = {list(x)}, {len(y)} values of y")
    if len(x) < 3:
        return None
    low, high = min(y), max(y)
    if high - low <= FLAT * abs(high):
        return 0
    scaled = [(a - x[0]) / (x[-1] - x[0]) for a in x]
    above = [(b - low) / (high - low) - a for a, b in zip(scaled, y, strict=True)]
    best = max(range(len(x)), key=lambda i: above[i])
    return best if above[best] >= LEAST else None
