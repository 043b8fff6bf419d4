"""Batches as agents and brokers leave them on disk, without agents and brokers."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from exahpc.batch.commits import AnyEvent, Commit, CommitWriter
from exahpc.batch.inputs.options import find_inputs
from exahpc.batch.intervals import ranges_of
from exahpc.batch.journal import Record, Run, create_journal
from exahpc.batch.plan import BatchPlan, Parts
from exahpc.batch.source import index_inputs


def line(custom_id: str, **body: Any) -> str:
    fields = {"model": "m", "prompt": custom_id, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": fields})


def begin(folder: Path, lines: Sequence[str], skip_invalid: bool = False) -> tuple[Parts, BatchPlan]:
    """Index an input of these lines for `o.h5`."""
    source = folder / "in.jsonl"
    source.write_text("\n".join(lines))
    parts = Parts.of(folder / "o.h5")
    parts.create()
    plan = index_inputs(find_inputs([source]), parts, "batch_x", model="m", skip_invalid=skip_invalid)
    parts.save(plan)
    return parts, plan


def answer(position: int, text: str, ids: Sequence[int] = (), row: int | None = None, **choice: Any) -> Record:
    """A row that went well; row: if it is not its position."""
    row = position if row is None else row
    found = {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop", **choice}
    body = json.dumps({"id": f"cmpl-{position}", "choices": [found]}).encode()
    run = Run(2, 5, "n7", "v1", 100.0, 101.0, 102.5, 104.0, 3, array("I", ids).tobytes())
    return Record(position, row + 1, 200, b"r%d" % row, body, 7, len(ids), 1, 1, "gpu-3", run)


def error(position: int, message: str, row: int | None = None) -> Record:
    """A row that failed; row: if it is not its position."""
    row = position if row is None else row
    body = msgspec.json.encode({"error": {"message": message, "type": "t", "param": None, "code": "c"}})
    return Record(position, row + 1, 400, b"r%d" % row, body, 0, 0, 1, 1, "gpu-3")


def commit(parts: Parts, records: Sequence[Record], each: int = 1000, batch: str = "batch_x") -> None:
    """As an agent and a broker would; each: rows in a commit."""
    journal = create_journal(parts.journal, "gpu-3", batch)
    events: list[AnyEvent] = []
    for at in range(0, len(records), each):
        some = records[at : at + each]
        start, end = journal.append([msgspec.msgpack.encode(record) for record in some])
        good = ranges_of(record.row for record in some if record.status == 200)
        bad = ranges_of(record.row for record in some if record.status != 200)
        events.append(Commit(1, journal.path.name, start, end, good, bad))
    journal.close()
    writer = CommitWriter(parts.commits, 1, lambda event: None)
    writer.append(events)
    writer.close()
