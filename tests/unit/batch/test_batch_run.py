"""The same command goes on; another one is refused, with a reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from exahpc.batch.client import Owner
from exahpc.batch.export import export
from exahpc.batch.plan import Parts
from exahpc.batch.run import drive, prepare
from exahpc.errors import BatchError
from exahpc.wire.messages import BatchOpen, BatchQuery, BatchState, BatchStatus, Refused


def write(path: Path, *custom_ids: str) -> Path:
    lines = [
        json.dumps(
            {"custom_id": i, "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": i}}
        )
        for i in custom_ids
    ]
    path.write_text("\n".join(lines))
    return path


def test_a_batch_is_resumed_with_its_id_and_refuses_another_input_or_model(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", "a", "b")
    first = prepare(source, tmp_path / "out.h5", served_name="m")
    first.release()
    again = prepare(source, tmp_path / "out.h5", served_name="m")
    again.release()
    assert (again.resumed, again.plan) == (True, first.plan)
    with pytest.raises(BatchError, match="was begun for model 'm', this deployment serves 'n'"):
        prepare(source, tmp_path / "out.h5", served_name="n")
    write(source, "a", "c")
    with pytest.raises(BatchError, match="not the file that this batch began with"):
        prepare(source, tmp_path / "out.h5")


def test_an_input_that_was_moved_is_still_the_same(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", "a", "b")
    prepare(source, tmp_path / "out.h5").release()
    moved = source.rename(tmp_path / "moved.jsonl")
    prepared = prepare(moved, tmp_path / "out.h5")
    assert prepared.plan.input == str(moved)
    assert prepared.parts.plan() == prepared.plan


def test_bad_lines_stop_the_batch_before_it_has_a_manifest_and_a_corrected_file_is_welcome(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", "a", "a")
    with pytest.raises(BatchError, match="used before, on line 1"):
        prepare(source, tmp_path / "out.h5")
    assert Parts.of(tmp_path / "out.h5").plan() is None
    write(source, "a", "b")
    prepared = prepare(source, tmp_path / "out.h5")
    assert (prepared.resumed, prepared.plan.rows, prepared.plan.bad) == (False, 2, 0)


def test_results_without_their_manifest_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", "a")
    parts = Parts.of(tmp_path / "out.h5")
    parts.create()
    (parts.commits / "000001").write_bytes(b"")
    with pytest.raises(BatchError, match="no manifest: remove it"):
        prepare(source, tmp_path / "out.h5")


def test_outputs_that_cannot_be_are_refused_with_a_remedy(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", "a")
    with pytest.raises(BatchError, match="make it, or choose another output"):
        prepare(source, tmp_path / "none" / "out.h5")
    with pytest.raises(BatchError, match="is the input"):
        prepare(source, source)
    with pytest.raises(BatchError, match="cannot be read"):
        prepare(tmp_path / "none.jsonl", tmp_path / "out.h5")
    (tmp_path / "o2.h5.parts").write_bytes(b"a file where a folder must be")
    with pytest.raises(BatchError, match=r"o2\.h5\.parts.* cannot be used"):
        prepare(source, tmp_path / "o2.h5")


def test_a_failed_batch_tells_why_and_an_unknown_one_is_opened_again(tmp_path: Path) -> None:
    prepared = prepare(write(tmp_path / "in.jsonl", "a"), tmp_path / "out.h5")
    asked: list[type] = []

    def ask(question: object) -> BatchState | Refused:
        asked.append(type(question))
        if len(asked) == 2:
            return Refused("unknown batch")
        state = "failed" if len(asked) == 4 else "running"
        return BatchState(BatchStatus(prepared.plan.batch, "", 1, 0, 0, 0, state, "the reason"))

    with pytest.raises(BatchError, match="failed: the reason"):
        drive(prepared, ask, lambda status: None, sleep=lambda seconds: None)
    assert asked == [BatchOpen, BatchQuery, BatchOpen, BatchQuery]
    with pytest.raises(BatchError, match="refuses this batch: no"):
        drive(prepared, lambda question: Refused("no"), lambda status: None)


def test_an_export_to_a_place_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    prepared = prepare(write(tmp_path / "in.jsonl", "a"), tmp_path / "out.h5")
    with pytest.raises(BatchError, match="cannot be used"):
        export(prepared.parts.path, tmp_path / "none" / "out.jsonl")
    assert not os.path.exists(tmp_path / "none")


def test_a_second_client_is_told_who_works_on_the_output(tmp_path: Path) -> None:
    parts = Parts.of(tmp_path / "out.h5")
    parts.create()
    Owner(parts)
    with pytest.raises(BatchError, match=rf"\(process {os.getpid()} on [^()]+\): wait for it"):
        Owner(parts)
