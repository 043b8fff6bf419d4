"""Run order: long rows first, shared prefixes together, else input order; each row once, in little memory."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exahpc.batch.inputs import order
from exahpc.batch.inputs.options import find_inputs
from exahpc.batch.inputs.order import ALONE, FAR, NEAR, TRAITS, costs, prefixes, run_order
from exahpc.batch.inputs.reader import RowReader
from exahpc.batch.lines import Row
from exahpc.batch.plan import Parts
from exahpc.batch.source import index_inputs

Traits = list[tuple[int, int, int]]


def made(rows: Traits) -> np.ndarray:
    return np.array(rows, TRAITS)


def ordered(traits: np.ndarray) -> list[int]:
    found = run_order(len(traits), lambda first, last: traits[first:last])
    return list(range(len(traits))) if found is None else found.tolist()


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 10, 15, 25, 50, 400]), st.integers(0, 3), st.integers(0, 2)),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([1, 3, 1 << 20]),
)
@settings(max_examples=100, deadline=None)
def test_order_is_by_doublings_of_the_median_then_by_group_then_by_row(rows: Traits, step: int) -> None:
    rows = [(cost, near, near * 10 + far if near and far else ALONE) for cost, near, far in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "_STEP", step)
        found = ordered(made(rows))
    median = sorted(cost for cost, _, _ in rows)[len(rows) // 2]
    heads: dict[tuple[str, int], int] = {}
    for row, (_, near, far) in enumerate(rows):
        heads.setdefault(("near", near), row)
        heads.setdefault(("far", far), row)

    def key(row: int) -> tuple[int, int, int, int]:
        cost, near, far = rows[row]
        first_near = row if near == ALONE else heads["near", near]
        first_far = row if far == ALONE else heads["far", far]
        return (-math.floor(math.log2(max(1, cost / median))), first_near, first_far, row)

    assert found == sorted(range(len(rows)), key=key)


def test_rows_that_differ_little_stay_in_input_order() -> None:
    assert run_order(1000, lambda a, b: made([(60 + i % 60, ALONE, ALONE) for i in range(1000)])[a:b]) is None


def test_no_more_than_16_bytes_a_row_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_STEP", 1 << 10)
    rows = 200_000
    rng = np.random.default_rng(1)
    traits = np.empty(rows, TRAITS)
    for name, high in (("cost", 500), ("near", 100), ("far", 1000)):
        traits[name] = rng.integers(1, high, rows)
    tracemalloc.start()
    found = run_order(rows, lambda first, last: traits[first:last].copy())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert sorted(found.tolist()) == list(range(rows))
    assert peak < 16 * rows + 500_000


def test_prefixes_begin_at_the_prompt_and_short_ones_have_no_group() -> None:
    def line(name: str, text: str) -> bytes:
        return json.dumps({"custom_id": name, "body": {"prompt": text}}).encode()

    shared, long = "s" * NEAR, "l" * FAR
    lines = [
        line("a", shared),
        line("bb", shared + "x"),
        line("c", "short"),
        line("d", long),
        line("e", long + "y"),
    ]
    near, far = prefixes(lines, (b'"messages"', b'"prompt"'))
    assert near[0] == near[1] != near[3] == near[4]
    assert near[2] == ALONE
    assert [n == ALONE for n in far] == [True, True, True, False, False]
    assert far[3] == far[4]


def test_a_row_without_a_limit_costs_something_and_a_huge_one_no_more_than_fits() -> None:
    found = costs(np.array([400, 400, 1 << 40]), np.array([32, 0, 1])).tolist()
    assert found == [132, 356, 2**32 - 1]


def test_positions_lead_to_rows_and_bad_rows_come_first(tmp_path: Path) -> None:
    limits = [10, 10, 1000, 10, 10]
    lines = [
        json.dumps(
            {
                "custom_id": f"r{i}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": "m", "prompt": "x", "max_tokens": limit},
            }
        )
        for i, limit in enumerate(limits)
    ]
    lines[1] = "bad"
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    parts = Parts.of(tmp_path / "out.h5")
    parts.create()
    plan = index_inputs(find_inputs([tmp_path / "in.jsonl"]), parts, "b1", model="m", skip_invalid=True)
    assert plan.bad_positions == [(0, 1)]
    assert parts.rows_of(np.arange(5)).tolist() == [1, 2, 0, 3, 4]
    reader = RowReader(parts, plan)
    found = [(read.row, read.line, read.found.custom_id) for read in reader.read(1, 5, 1 << 20)]
    assert found == [(2, 3, "r2"), (0, 1, "r0"), (3, 4, "r3"), (4, 5, "r4")]
    one = reader.read(1, 5, 1)
    assert [read.row for read in one] == [2], "at least one row, however little may be read"
    reader.close()


def test_a_row_that_changed_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("first\nsecond\nthird\n")
    parts = Parts.of(tmp_path / "out.h5")
    parts.create()
    plan = index_inputs(find_inputs([path]), parts, "b1", model="m")
    path.write_text("first\nSecond\nthird\n")
    reader = RowReader(parts, plan)
    found = [read.found for read in reader.read(0, 3, 1 << 20)]
    reader.close()
    assert [isinstance(row, Row) for row in found] == [True, False, True]
    assert f"line 2 of {path} changed" in getattr(found[1], "reason", "")
