"""What a broker holds of an open batch. Everything here blocks: called in worker threads."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec

from exahpc.batch import folds
from exahpc.batch.book import Book
from exahpc.batch.commits import AnyEvent, CommitWriter
from exahpc.batch.folds import Fold
from exahpc.batch.intervals import Intervals
from exahpc.batch.plan import BatchPlan, Parts, same_inputs
from exahpc.batch.salvage import Committed, Found, journals, scan
from exahpc.batch.usage import node_hours
from exahpc.errors import BatchError

log = logging.getLogger(__name__)


FOLD_BYTES = 4 * 2**20
"""Commits after which their sum is written again (or more, when that is large): about 10^5 events, a second or
two to replay."""
_FOLD_SHARE = 4
_FOLD_EVENTS = 20_000


@dataclass
class Opened:
    """found: whole records that no commit names yet, from whoever wrote them last; node_hours: used so far."""

    plan: BatchPlan
    book: Book
    writer: CommitWriter
    committed: Committed
    found: list[Found]
    node_hours: float = 0.0

    def __post_init__(self) -> None:
        self._fold_at = self.writer.end + FOLD_BYTES

    def due(self) -> Fold | None:
        """The sum of all events so far, when it is time to write it again: for the next `write`. Cheap: nothing is
        encoded here."""
        return self.fold() if self.writer.end >= self._fold_at else None

    def fold(self) -> Fold:
        committed = folds.columns_of(self.committed.bytes)
        return Fold(self.plan.batch, self.writer.number, self.writer.end, self.book.state(), committed)

    def write(self, events: list[AnyEvent], fold: Fold | None = None) -> None:
        """Make events durable. fold: their sum and that of all before. Raises BatchError when a newer broker has
        taken over."""
        self.writer.append(events)
        if fold is None:
            return
        self._fold_at = self.writer.end + FOLD_BYTES
        try:
            size = folds.write(self.writer.folder, msgspec.structs.replace(fold, end=self.writer.end))
            self._fold_at = self.writer.end + max(FOLD_BYTES, _FOLD_SHARE * size)
        except OSError as error:  # the events are safe: the next broker reads more of them
            log.warning("the sum of %s is not written now: %s", self.writer.folder, error)


def load(parts: Parts, batch: str, epoch: int) -> Opened:
    """Claim the batch for the broker of `epoch` and read what earlier brokers committed.

    Takes seconds for millions of rows. Raises BatchError when the folder or the input is not what it was.
    """
    plan = parts.plan()
    if plan is None or plan.batch != batch:
        raise BatchError(f"{parts.path} does not hold batch {batch}: run `exahpc batch run` on the input again")
    same_inputs(plan)
    parts.check(plan)
    book, committed = Book(plan.rows, plan.bad_positions), Committed()

    def resume(accepted: list[tuple[int, int | None]]) -> tuple[int, int] | None:
        nonlocal book
        fold = folds.newest(parts.commits, batch, accepted)
        if fold is None:
            return None
        book = Book.of_state(fold.book, plan.bad_positions)
        committed.bytes = {name: Intervals.of_columns(columns) for name, columns in fold.committed.items()}
        return fold.number, fold.end

    def replay(event: AnyEvent) -> None:
        book.apply(event, 0.0)
        committed.note(event)

    writer = CommitWriter(parts.commits, epoch, replay, resume)
    found = scan(parts, batch, {name: committed.gaps(name) for name in journals(parts)})
    opened = Opened(plan, book, writer, committed, found, node_hours(parts))
    if writer.replayed > _FOLD_EVENTS:  # the next broker shall not have to
        opened.write([], opened.fold())
    return opened


def close_late(loading: Future[Opened]) -> None:
    """For a batch that ended while it was opening."""
    if not loading.cancelled() and loading.exception() is None:
        loading.result().writer.close()


def finish(writer: CommitWriter, events: list[AnyEvent], before: Future[None] | None) -> None:
    """Last writes of a batch that ended, after those under way."""
    try:
        if before is not None:
            before.result()
        if events:
            writer.append(events)
    except (BatchError, OSError) as error:
        log.warning("last commits were not written (%s): the rows are found in the journals", error)
    finally:
        writer.close()
