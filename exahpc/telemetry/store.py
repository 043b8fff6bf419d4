"""History as HDF5 files: history/TIER/START.h5, a dataset of rows for each group.

Each file is written beside and renamed, whole, so that whoever opens one at any time reads a complete file, also
over NFS or Lustre, without locks and without SWMR (which needs writes of one process to be seen in order by
others, more than a parallel file system promises). The price is that a file is written again with each flush: see
`courses.TIERS` for how large it may grow and how much a killed broker loses.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from exahpc.telemetry.courses import TIERS, Row, Tier, columns

log = logging.getLogger(__name__)

MOST_WAITING = 20_000
"""Rows that wait for a file system that hangs; then the oldest go."""


def _dtype(names: Iterable[str]) -> np.dtype[Any]:
    return np.dtype([("time", "<i8"), ("seconds", "<f4"), *((name, "<f4") for name in names)])


def table(group: str, rows: Iterable[Row]) -> np.ndarray[Any, Any]:
    """Rows as a structured array; what a row does not name is NaN."""
    names = columns(group)
    nan = float("nan")
    cells = [(row.time, row.seconds, *(row.values.get(name, nan) for name in names)) for row in rows]
    return np.array(cells, dtype=_dtype(names))


class Store:
    """The writing side, in one thread of its own: `add` never waits. tiers: for tests."""

    def __init__(self, folder: Path, tiers: Iterable[Tier] = TIERS) -> None:
        self._folder = folder
        self._next = dict.fromkeys(tiers, 0.0)
        self._waiting: list[tuple[Tier, str, Row]] = []
        self._open: dict[tuple[Tier, int], dict[str, np.ndarray[Any, Any]]] = {}
        self._pool = ThreadPoolExecutor(1, "history")
        self._busy: Future[None] | None = None
        self._lock = threading.Lock()

    def add(self, rows: Iterable[tuple[Tier, str, Row]], now: float) -> None:
        """Keep these rows; write when it is time, unless the last write still hangs."""
        with self._lock:
            self._waiting += rows
            del self._waiting[:-MOST_WAITING]
        if self._busy is not None and not self._busy.done():
            return
        due = [tier for tier, when in self._next.items() if now >= when]
        if due:
            for tier in due:
                self._next[tier] = (now // tier.flush + 1) * tier.flush
            self._busy = self._pool.submit(self._write, due, now)

    def close(self, now: float, seconds: float = 2.0) -> None:
        """Write all there is, if the file system lets us in time."""
        last = self._pool.submit(self._write, list(self._next), now)
        with contextlib.suppress(TimeoutError):
            last.result(seconds)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _write(self, tiers: list[Tier], now: float) -> None:
        with self._lock:
            rows = [one for one in self._waiting if one[0] in tiers]
            self._waiting = [one for one in self._waiting if one[0] not in tiers]
        try:
            by_file: dict[tuple[Tier, int], dict[str, list[Row]]] = {}
            for tier, group, row in rows:
                start = row.time // tier.span * tier.span
                by_file.setdefault((tier, start), {}).setdefault(group, []).append(row)
            for (tier, start), groups in by_file.items():
                self._append(tier, start, groups)
            for tier in tiers:
                self._forget(tier, now)
        except (OSError, ValueError) as error:  # figures are not worth an outage
            log.error("the history was not written: %s", error)

    def _append(self, tier: Tier, start: int, groups: dict[str, list[Row]]) -> None:
        path = self._folder / tier.name / f"{start}.h5"
        tables = self._open.get((tier, start))
        if tables is None:
            for old in [key for key in self._open if key[0] is tier and key[1] < start]:
                del self._open[old]
            tables = self._open[tier, start] = _load(path)
        for group, rows in groups.items():
            fresh = table(group, rows)
            before = tables.get(group)
            if before is not None and before.dtype == fresh.dtype:
                fresh = np.concatenate([before[before["time"] < fresh["time"][0]], fresh])
            tables[group] = fresh
        _save(path, tables, tier)

    def _forget(self, tier: Tier, now: float) -> None:
        for path in _files(self._folder, tier):
            if int(path.stem) + tier.span <= now - tier.keep:
                path.unlink(missing_ok=True)


def _files(folder: Path, tier: Tier) -> list[Path]:
    """By time."""
    found = [path for path in (folder / tier.name).glob("*.h5") if path.stem.isdigit()]
    return sorted(found, key=lambda path: int(path.stem))


def _load(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """All groups of a file; none of one that is not there, or that nobody can read."""
    import h5py

    found: dict[str, np.ndarray[Any, Any]] = {}

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    try:
        with h5py.File(path, "r", locking=False) as file:
            file.visititems(take)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s cannot be read and is begun anew: %s", path, error)
    return found


def _save(path: Path, tables: dict[str, np.ndarray[Any, Any]], tier: Tier) -> None:
    import h5py

    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.new")
    try:
        with h5py.File(beside, "w", locking=False) as file:
            file.attrs["step_seconds"] = tier.step
            for group, rows in tables.items():
                file.create_dataset(group, data=rows, compression="gzip", compression_opts=1, shuffle=True)
        beside.chmod(0o600)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


class Series(NamedTuple):
    """step: seconds of a row; rows: structured array of `time`, `seconds` and the group's columns."""

    step: int
    rows: np.ndarray[Any, Any]


def read(folder: Path, group: str, since: float, until: float, step: int = 0) -> Series:
    """Rows that begin in [since, until): of the finest tier that reaches back so far, or of the one with this
    step."""
    fits = (tier for tier in TIERS if (tier.step == step if step else since >= until - tier.keep))
    tier = next(fits, TIERS[-1])
    parts = [table(group, [])]
    for tables in _between(folder, tier, since, until):
        if group in tables and tables[group].dtype == parts[0].dtype:  # else of a version with other columns
            parts.append(tables[group])
    rows = np.concatenate(parts)
    return Series(tier.step, rows[(rows["time"] >= since) & (rows["time"] < until)])


def groups(folder: Path) -> list[str]:
    """Of the newest file of each tier."""
    newest = [files[-1] for tier in TIERS if (files := _files(folder, tier))]
    return sorted({group for path in newest for group in _load(path)})


def _between(folder: Path, tier: Tier, since: float, until: float) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    for path in _files(folder, tier):
        if since - tier.span < int(path.stem) < until:
            yield _load(path)
