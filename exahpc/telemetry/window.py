"""The last minute, as a few slices that are merged when somebody looks. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping

from exahpc.telemetry.histogram import Histogram
from exahpc.wire.messages import Measure, Recent, Sketch

SLICE = 10.0
SLICES = 6
"""A minute: the slice that runs and the five before it."""

Histograms = dict[Measure, Histogram]


def merge(into: Histograms, sketches: Mapping[Measure, Sketch] | Histograms) -> None:
    for measure, sketch in sketches.items():
        found = into.get(measure)
        if found is None:
            found = into[measure] = Histogram()
        found.merge(sketch)


def recent(histograms: Histograms) -> dict[Measure, Recent]:
    """Percentiles of each measure; what is empty is left out."""
    return {
        measure: Recent(found.count, *(round(found.quantile(share) or 0.0, 1) for share in (0.5, 0.9, 0.99)))
        for measure, found in histograms.items()
        if found.counts
    }


def sketches(histograms: Histograms) -> dict[Measure, Sketch]:
    return {measure: found.sketch() for measure, found in histograms.items()}


class Window:
    """Histograms of the last minute, and counts by name beside them. Times in seconds of one clock."""

    def __init__(self) -> None:
        self._slices: deque[tuple[int, Histograms, Counter[str]]] = deque()

    def add(self, now: float, sketches: Mapping[Measure, Sketch], counts: Mapping[str, int] | None = None) -> None:
        number = int(now // SLICE)
        if not self._slices or self._slices[-1][0] < number:
            self._slices.append((number, {}, Counter()))
        _, histograms, counted = self._slices[-1]
        merge(histograms, sketches)
        counted.update(counts or {})

    def histograms(self, now: float) -> Histograms:
        merged: Histograms = {}
        for _, histograms, _ in self._kept(now):
            merge(merged, histograms)
        return merged

    def counts(self, now: float) -> Counter[str]:
        merged: Counter[str] = Counter()
        for _, _, counted in self._kept(now):
            merged.update(counted)
        return merged

    def _kept(self, now: float) -> Iterable[tuple[int, Histograms, Counter[str]]]:
        first = int(now // SLICE) - SLICES + 1
        while self._slices and self._slices[0][0] < first:
            self._slices.popleft()
        return self._slices
