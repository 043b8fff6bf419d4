"""What a user who watches a batch is told beside its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from exahpc.launch import asking
from exahpc.wire.folder import Folder
from exahpc.wire.messages import BatchQuery, BatchState, BatchStatus


def test_why_a_batch_waits_is_told_once_and_shown_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = ["", "no room, 3 MiB are free", "no room, 0 MiB are free", "", "no room, 1 MiB are free"]
    coming, shown, told = iter(notes), list[str](), list[str]()
    monkeypatch.setattr(
        asking,
        "about_batch",
        lambda *_: BatchState(BatchStatus("b", "/f", 9, 0, 0, 4, "running", next(coming))),
    )
    watching = asking.Watching(Folder(tmp_path), lambda: 0.0, told.append)
    for _ in notes:
        watching.ask(BatchQuery("b"))
        shown.append(watching.text)
    assert shown == notes
    assert told == ["no room, 3 MiB are free", "no room, 1 MiB are free"]
