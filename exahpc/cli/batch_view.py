"""How a running batch is shown: a bar on a terminal, a plain line now and then in a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Self

import msgspec
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from exahpc.batch.failures import Failure
from exahpc.batch.pace import Lines, Pace
from exahpc.batch.reasons import Reasons
from exahpc.batch.results import Summary
from exahpc.cli.fleet_view import table
from exahpc.wire.messages import BatchStatus


class Ending(msgspec.Struct, frozen=True):
    """The last line of `--json`. state: finished, stopped or failed; error: why it is not finished; failed: rows
    without an answer, with those that were skipped because they are bad in the input; results: the file."""

    state: str
    exit_code: int
    batch: str = ""
    results: str = ""
    rows: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    commonest_error: str = ""
    node_hours: float = 0.0
    seconds: float = 0.0
    error: str = ""


def span(seconds: float) -> str:
    """A time in its two largest units."""
    whole = round(seconds)
    for name, size, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // part} {below}"
    return f"{whole // 60} min" if whole >= 120 else f"{whole} s"


def figures(status: BatchStatus, pace: Pace) -> str:
    """Speed (tokens: generated ones), time left and failures, as far as they are known."""
    left = pace.left(status.total - status.ok - status.failed)
    parts = [f"{pace.rows:.1f} rows/s"] if pace.rows else []
    parts += [f"{pace.tokens:.0f} tokens/s"] if pace.tokens else []
    if left is not None and left >= 1:
        parts.append(f"{span(left)} left")
    if status.failed:
        parts.append(f"{status.failed} failed")
    return ", ".join(parts)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def commonest(status: BatchStatus) -> str:
    """The commonest error on one line, "" without any."""
    for reason, rows in status.errors[:1]:
        return f"commonest error ({_rows(rows)}): {' '.join(reason.split())}"
    return ""


def line(status: BatchStatus, pace: Pace, text: str) -> str:
    """All of it on one line. text: what is waited for."""
    done = status.ok + status.failed
    share = f"{100 * done / status.total:.1f} %" if status.total else "0 %"
    return ", ".join(
        part
        for part in (f"{done}/{status.total} rows ({share})", figures(status, pace), text, commonest(status))
        if part
    )


def ending(summary: Summary) -> Iterator[str]:
    """How it ended, in lines."""
    skipped = f" ({summary.skipped} of them bad in the input)" if summary.skipped else ""
    yield f"{summary.ok} of {summary.total} rows answered, {summary.failed} failed{skipped}"
    if summary.commonest_error:
        yield f"commonest error: {summary.commonest_error}"
    if summary.node_hours:
        yield f"{summary.node_hours:.2f} node-hours were used"


class _Bar(Progress):
    """With a line below it."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.below:
            yield Text(self.below, style="dim", no_wrap=True, overflow="ellipsis")


class BatchView:
    """Use as a context; `report` fits `drive`. waiting: tells what is waited for."""

    def __init__(
        self, console: Console, waiting: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._waiting, self._clock = console, waiting, clock
        self._pace, self._lines = Pace(), Lines(clock())
        self._status: BatchStatus | None = None
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        self._bar = _Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("rows", total=None, figures="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def report(self, status: BatchStatus | None) -> None:
        """Called several times a second; None while no broker answers."""
        now, text = self._clock(), self._waiting()
        if status is not None:
            self._status = status
            if status.state == "running":
                self._pace.add(now, status.ok + status.failed, status.completion_tokens)
        self._bar.below = text
        if (seen := self._status) is not None:
            shown = figures(seen, self._pace)
            self._bar.update(self._task, completed=seen.ok + seen.failed, total=seen.total or None, figures=shown)
            self._bar.below = text or commonest(seen)
        if not self._console.is_terminal and self._lines.due(now):
            what = text if seen is None else line(seen, self._pace, text)
            if what:
                self._console.print(what, markup=False, soft_wrap=True)

    def writing(self, done: int, total: int) -> None:
        """Of the results file."""
        self._bar.below = ""
        self._bar.update(self._task, description="writing results", completed=done, total=total, figures="")


@contextmanager
def bar(console: Console, text: str) -> Iterator[Callable[[int, int], None]]:
    """For steps that only count."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(text, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def show(console: Console, found: list[BatchStatus]) -> None:
    """Of `batch status`."""
    shown = table("batch", "state", "rows", "ok", "failed", "skipped", "leased", "node-hours", "output")
    for one in found:
        counts = (one.total, one.ok, one.failed, one.skipped, one.leased)
        shown.add_row(
            one.batch, one.state, *map(str, counts), f"{one.node_hours:.2f}", one.folder.removesuffix(".parts")
        )
    if not console.is_terminal:
        console.width = max(console.width, 200)
    console.print(shown)
    for one in found:
        for text in filter(None, (one.note, commonest(one))):
            console.print(f"{one.batch}: {text}", markup=False, soft_wrap=True)


def show_failures(console: Console, found: Iterable[Failure], limit: int) -> None:
    """Of `batch errors`: reasons with their counts, then the first rows."""
    reasons, rows, first = Reasons(), 0, list[Failure]()
    for one in found:
        rows += 1
        reasons.add(one.message)
        if len(first) < limit:
            first.append(one)
    console.print(f"{_rows(rows)} failed")
    for reason, times in reasons.most(10):
        console.print(f"  {_rows(times)}: {' '.join(reason.split())}", markup=False, soft_wrap=True)
    for one in first:
        name = "" if one.custom_id is None else f" {one.custom_id!r}"
        place = f"{one.file}, line {one.line}" if one.file else f"line {one.line}"
        text = f"{place}{name}: status {one.status}, {' '.join(one.message.split())}"
        console.print(text.encode("utf-8", "replace").decode(), markup=False, soft_wrap=True)
    if rows > len(first):
        console.print(f"... and {rows - len(first)} more (--limit, --json)", markup=False)
