"""`batch retry-failed`: failed rows are run again as a batch of their own, whose answers replace their errors.

All of it lies beside the results, in `OUT.retry/`, until it is over:

    of.json           Retry: which results, which of their rows
    requests.jsonl    the requests of these rows, in their order
    answers.h5        results of the batch that runs them (and its .parts)

The folder appears whole, and the results file is replaced by one that is written beside it, so that a run which
was interrupted anywhere is gone on with, and putting the answers in twice changes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from exahpc.batch.client import Owner
from exahpc.batch.columns import Block, Replicas
from exahpc.batch.compact import discard
from exahpc.batch.journal import sync_directory
from exahpc.batch.plan import Parts
from exahpc.batch.results import write_rows
from exahpc.batch.resultsfile import Results
from exahpc.batch.retries import Request, failed, failed_requests
from exahpc.batch.space import refusal
from exahpc.batch.tally import Summary
from exahpc.errors import BatchError

Progress = Callable[[int, int], None]


class Retry(msgspec.Struct, frozen=True):
    """batch: of the results; rows: of the input, in order, that are run again."""

    batch: str
    rows: list[int]


class Retrying:
    """One results file whose failed rows are run again."""

    def __init__(self, results: Path) -> None:
        """Writes the requests, or finds what an earlier run has left. Raises BatchError."""
        self.results = results.absolute()
        self.folder = self.results.with_name(self.results.name + ".retry")
        self.requests, self.answers = self.folder / "requests.jsonl", self.folder / "answers.h5"
        found = Results(self.results)
        batch, self.before = found.batch, found.summary()
        found.close()
        try:
            if not self.folder.exists():
                self._begin(batch)
            self.retry = msgspec.json.decode((self.folder / "of.json").read_bytes(), type=Retry)
        except OSError as error:
            raise refusal(error, self.folder) from error
        except msgspec.MsgspecError as error:
            raise BatchError(f"{self.folder} cannot be read ({error}): remove it and try again") from error
        if self.retry.batch != batch:
            raise BatchError(f"{self.folder} belongs to other results than {self.results}: remove it")

    def _begin(self, batch: str) -> None:
        draft = self.folder.with_name(f".{self.folder.name}.{os.getpid()}.tmp")
        draft.mkdir(mode=0o700)
        try:
            rows: list[int] = []
            with open(draft / "requests.jsonl", "wb", opener=_private) as file:
                for row, line in failed_requests(self.results):
                    rows.append(row)
                    file.write(line)
                file.flush()
                os.fsync(file.fileno())
            with open(draft / "of.json", "wb", opener=_private) as file:
                file.write(msgspec.json.encode(Retry(batch, rows)))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.rename(draft, self.folder)
            except OSError:
                if not self.folder.exists():
                    raise
                return  # another process has begun meanwhile: its claim on the answers tells who goes on
            sync_directory(self.folder.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def put_in(self, progress: Progress = lambda done, total: None) -> Summary:
        """Put the answers into the results file, and remove the folder. Raises BatchError."""
        parts = Parts.of(self.answers)
        parts.create()
        owner = Owner(parts)

        def beat(done: int, total: int) -> None:
            owner.beat()
            progress(done, total)

        old, new = Results(self.results), Results(self.answers)
        temporary = self.results.with_name(f".{self.results.name}.{os.getpid()}.tmp")
        try:
            rows = np.array(self.retry.rows, np.int64)
            hours = old.summary().node_hours + new.summary().node_hours
            if len(rows) != new.summary().total:
                raise BatchError(f"{self.answers} has other rows than {self.requests}: remove {self.folder}")
            summary = write_rows(
                temporary, self.results, Merged(old, new, rows), old.plan(), _Kept(old), beat, hours
            )
            os.replace(temporary, self.results)
            sync_directory(self.results.parent)
        except OSError as error:
            raise refusal(error, self.results) from error
        finally:
            old.close()
            new.close()
            temporary.unlink(missing_ok=True)
            owner.release()
        self.drop()
        return summary

    def drop(self) -> None:
        discard(self.folder)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Merged:
    """Rows of `old`, those at `rows` with what `new` has for them, in the same order; see `results.Rows`."""

    def __init__(self, old: Results, new: Results, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        self._old, self._new, self._rows = old, new, rows
        self.missing = old.missing
        self.replicas = Replicas()
        self._tables = [
            np.array([self.replicas.number(replica) for replica in one.replicas()], "<u4") for one in (old, new)
        ]

    def blocks(self) -> Iterator[Block]:
        fresh, at = _Rows(self._new.whole()), 0
        for block in self._old.whole():
            block.numbers["replica"] = self._tables[0][block.numbers["replica"]]
            upto = int(np.searchsorted(self._rows, int(block.numbers["row"][-1]), side="right"))
            wanted, at = self._rows[at:upto], upto
            if len(wanted):
                block = self._put(block, np.searchsorted(block.numbers["row"], wanted), fresh.take(len(wanted)))
            yield block

    def _put(self, block: Block, places: np.ndarray[tuple[int], np.dtype[np.intp]], answers: Block) -> Block:
        numbers = answers.numbers.copy()
        numbers["replica"] = self._tables[1][numbers["replica"]]
        for name in ("row", "line", "named"):  # where a row comes from does not change
            numbers[name] = block.numbers[name][places]
        texts = answers.texts | {"custom_id": block.texts["custom_id"].take(places)}
        order = np.arange(len(block))
        order[places] = len(block) + np.arange(len(places))
        return Block.joined([block, Block(numbers, texts)]).take(order)


class _Rows:
    """Takes rows from blocks, however long these are."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self._left: Block | None = None

    def take(self, count: int) -> Block:
        found: list[Block] = []
        while count:
            block = self._left if self._left is not None else next(self._blocks)
            here = min(count, len(block))
            found.append(block.take(np.arange(here)))
            self._left = block.take(np.arange(here, len(block))) if here < len(block) else None
            count -= here
        return Block.joined(found)


class _Kept:
    """Requests of rows that have failed again, from the results that kept them."""

    def __init__(self, old: Results) -> None:
        self._requests = old.requests()
        self._next: Request | None = next(self._requests, None)

    def requests(self, block: Block) -> Iterator[list[Request]]:
        wanted = set(block.numbers["row"][failed(block)].tolist())
        last, found = int(block.numbers["row"][-1]), list[Request]()
        while self._next is not None and self._next[0] <= last:
            if self._next[0] in wanted:
                found.append(self._next)
            self._next = next(self._requests, None)
        if found:
            yield found
