"""What a broker holds of an open batch. Everything here blocks: called in worker threads."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass

from exahpc.batch.book import Book
from exahpc.batch.commits import AnyEvent, CommitWriter
from exahpc.batch.plan import BatchPlan, Parts, same_inputs
from exahpc.batch.salvage import Committed, Found, journals, scan
from exahpc.batch.usage import node_hours
from exahpc.errors import BatchError

log = logging.getLogger(__name__)


@dataclass
class Opened:
    """found: whole records that no commit names yet, from whoever wrote them last; node_hours: used so far."""

    plan: BatchPlan
    book: Book
    writer: CommitWriter
    committed: Committed
    found: list[Found]
    node_hours: float = 0.0


def load(parts: Parts, batch: str, epoch: int) -> Opened:
    """Claim the batch for the broker of `epoch` and read all that earlier brokers committed.

    Takes seconds for millions of rows. Raises BatchError when the folder or the input is not what it was.
    """
    plan = parts.plan()
    if plan is None or plan.batch != batch:
        raise BatchError(f"{parts.path} does not hold batch {batch}: run `exahpc batch run` on the input again")
    same_inputs(plan)
    book, committed = Book(plan.rows, plan.bad_positions), Committed()

    def replay(event: AnyEvent) -> None:
        book.apply(event, 0.0)
        committed.note(event)

    writer = CommitWriter(parts.commits, epoch, replay)
    found = scan(parts, {name: committed.gaps(name) for name in journals(parts)})
    return Opened(plan, book, writer, committed, found, node_hours(parts))


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
