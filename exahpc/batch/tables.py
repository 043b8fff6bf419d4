"""Results as a table for other programs: CSV or Parquet, with one row for each row of the input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from exahpc.batch.columns import OUTCOMES, Block
from exahpc.batch.reasons import reason_of

_NAMES = {number: name for name, number in OUTCOMES.items()}
SCHEMA = pa.schema(
    [
        ("row", pa.uint64()),
        ("custom_id", pa.string()),
        ("outcome", pa.string()),
        ("text", pa.string()),
        ("error", pa.string()),
    ]
)
"""text: null where the row failed; error: null where it did not."""


def write_csv(file: BinaryIO, blocks: Iterable[Block]) -> None:
    with pyarrow.csv.CSVWriter(file, SCHEMA) as writer:
        for batch in _batches(blocks):
            writer.write_batch(batch)


def write_parquet(file: BinaryIO, blocks: Iterable[Block]) -> None:
    with pyarrow.parquet.ParquetWriter(file, SCHEMA) as writer:
        for batch in _batches(blocks):
            writer.write_batch(batch)


def _batches(blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
    for block in blocks:
        numbers = block.numbers
        outcomes, statuses = numbers["outcome"].tolist(), numbers["status"].tolist()
        bodies = block.texts["response"].pieces()
        columns = [
            numbers["row"],
            [
                _text(i) if there else None
                for i, there in zip(block.texts["custom_id"].pieces(), numbers["named"], strict=True)
            ],
            [_NAMES[outcome] for outcome in outcomes],
            [
                None if bad else _text(text)
                for text, bad in zip(block.texts["text"].pieces(), outcomes, strict=True)
            ],
            [
                _text(reason_of(body, status).encode("utf-8", "surrogatepass")) if bad else None
                for body, status, bad in zip(bodies, statuses, outcomes, strict=True)
            ],
        ]
        yield pa.record_batch(
            [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], SCHEMA
        )


def _text(stored: bytes) -> str:
    """Neither form can hold a lone surrogate: U+FFFD stands for it."""
    return stored.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
