"""The law behind a curve of throughput over nodes, with error bars. Pure.

Gunther's universal scalability law (N. J. Gunther, "Guerrilla Capacity Planning", 2007, chapter 4): with m times
as many nodes as the first step

    X(m) = m / (a + b (m - 1) + c m (m - 1))

a: what one step costs; b: what is shared, and so waits (contention: Amdahl's serial share is b / a); c: what each
has to do with each other (coherence): with it, throughput has a peak. m / X is linear in a, b, c: least squares
with the errors of the measurements as weights. Terms that the measurements do not tell from zero are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

BEND = 0.9
"""Efficiency at which a curve counts as bent."""
LEAST_ERROR = 0.005
"""Of a throughput, as a share of it: one measurement is never surer than that."""
_SURE = 2.0
"""Standard errors that a term must be above zero."""

_Floats = npt.NDArray[np.float64]


class Estimate(msgspec.Struct, frozen=True):
    """A number and its standard error."""

    value: float
    error: float


class Fit(msgspec.Struct, frozen=True):
    """first: nodes of the first step; terms: (a, b, c), their further ones 0 when left out; covariance: of those
    that are in; bend: nodes at which efficiency falls to BEND, None while it never does; peak: nodes beyond
    which throughput falls, None without; misfit: chi-squared for each degree of freedom, None without one to
    spare."""

    first: int
    terms: tuple[float, float, float]
    covariance: tuple[tuple[float, ...], ...]
    bend: Estimate | None
    peak: float | None
    misfit: float | None

    def at(self, nodes: float) -> Estimate:
        """Tokens a second on so many nodes."""
        m = nodes / self.first
        row = _row(m)
        cost = float(np.dot(row, self.terms))
        part = row[: len(self.covariance)]
        error = math.sqrt(max(0.0, float(part @ np.array(self.covariance) @ part)))
        return Estimate(m / cost, m / cost * error / cost)


def fit(nodes: Sequence[int], throughput: Sequence[float], errors: Sequence[float]) -> Fit | None:
    """None for fewer than two steps. errors: standard errors of throughput.

    Raises ValueError when nodes do not rise, or a throughput is not positive.
    """
    if any(b <= a for a, b in pairwise(nodes)) or not len(nodes) == len(throughput) == len(errors):
        raise ValueError(f"nodes must rise, and all three be as long: {nodes}, {throughput}, {errors}")
    if any(x <= 0 for x in throughput):
        raise ValueError(f"throughput must be positive: {throughput}")
    if len(nodes) < 2:
        return None
    m = [n / nodes[0] for n in nodes]
    y = np.array([n / x for n, x in zip(m, throughput, strict=True)])
    sure = [max(e / x, LEAST_ERROR) for e, x in zip(errors, throughput, strict=True)]
    weights = 1 / (y * np.array(sure))
    for count in range(min(3, len(nodes)), 0, -1):
        rows = np.array([_row(one)[:count] for one in m])
        terms, covariance, misfit = _least_squares(rows, y, weights)
        if count == 1 or terms[-1] > _SURE * math.sqrt(covariance[-1][-1]):
            break
    if min(terms) < 0:  # a and c above zero, b below: more than in proportion first
        rows = rows[:, :1]
        terms, covariance, misfit = _least_squares(rows, y, weights)
    a, b, c = (*map(float, terms), 0.0, 0.0)[:3]
    return Fit(
        first=nodes[0],
        terms=(a, b, c),
        covariance=tuple(tuple(map(float, row)) for row in covariance),
        bend=_bend(nodes[0], (a, b, c), covariance),
        peak=nodes[0] * math.sqrt((a - b) / c) if c > 0 and a > b else None,
        misfit=misfit,
    )


def _row(m: float) -> _Floats:
    return np.array([1.0, m - 1, m * (m - 1)])


def _least_squares(rows: _Floats, y: _Floats, weights: _Floats) -> tuple[_Floats, _Floats, float | None]:
    """(terms, their covariance, chi-squared for each degree of freedom). Measurements that scatter more than their
    errors say widen the errors of the terms."""
    scaled: _Floats = rows * weights[:, None]
    covariance: _Floats = np.asarray(np.linalg.inv(scaled.T @ scaled), dtype=np.float64)
    terms = covariance @ scaled.T @ (y * weights)
    spare = len(y) - rows.shape[1]
    if not spare:
        return terms, covariance, None
    misfit = float(np.sum(((y - rows @ terms) * weights) ** 2)) / spare
    return terms, covariance * max(1.0, misfit), misfit


def _bend(first: int, terms: tuple[float, float, float], covariance: _Floats) -> Estimate | None:
    """Where a / (a + b (m - 1) + c m (m - 1)) = BEND; its error to first order in those of the terms."""
    a, b, c = terms
    if b <= 0 and c <= 0:
        return None
    over = 1 / BEND - 1
    half = b - c
    constant = b + over * a  # c m^2 + (b - c) m - (b + over a) = 0
    m = constant / half if c == 0 else (-half + math.sqrt(half * half + 4 * c * constant)) / (2 * c)
    slopes = np.array([-over, m - 1, m * (m - 1)])[: len(covariance)] / (2 * c * m + half)
    error = math.sqrt(max(0.0, float(slopes @ covariance @ slopes)))
    return Estimate(first * m, first * error)


def efficiency(nodes: Sequence[int], throughput: Sequence[float], errors: Sequence[float]) -> list[Estimate]:
    """Of each step: throughput for each node, over that of the first one (whose own error counts in all
    others)."""
    found = list[Estimate]()
    for n, x, e in zip(nodes, throughput, errors, strict=True):
        value = (x / n) / (throughput[0] / nodes[0])
        relative = math.hypot(e / x, errors[0] / throughput[0]) if n != nodes[0] else 0.0
        found.append(Estimate(value, value * relative))
    return found
