"""One submitted batch, with a stand-in for the broker that commits rows as agents would."""

from __future__ import annotations

import errno
import gzip
import json
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest

from exahpc.batch.client import Owner
from exahpc.batch.plan import Parts
from exahpc.batch.space import NoRoomError
from exahpc.clerk import worker as module
from exahpc.clerk.queue import AGAIN, DONE
from exahpc.clerk.worker import Worker
from exahpc.deployment.parse import load
from exahpc.errors import BatchError
from exahpc.wire.folder import Folder, HeadRecord
from exahpc.wire.messages import BatchCancel, BatchOpen, BatchState, BatchStatus, Message, Refused
from exahpc.wire.shelf import Shelf
from exahpc.wire.submissions import Order, State, Submission
from exahpc.wire.tray import Tray
from tests.unit.batch.batches import answer, commit, error, line

TOML = 'name = "unit"\n[model]\npath = "/x/m"\n[[pool]]\nname = "a"\n[launcher]\nkind = "local"\n'
ROWS = 6


class Broker:
    """Commits `most` rows when a batch is opened; row 2 fails. It has finished when it has all of them."""

    def __init__(self, most: int = ROWS) -> None:
        self.most, self.asked, self.state = most, list[type](), "running"
        self.parts: Parts | None = None

    def ask(self, key: object, address: str, question: Message, answers: object) -> BatchState | Refused:
        self.asked.append(type(question))
        if isinstance(question, BatchOpen) and self.parts is None:
            self.parts = Parts(Path(question.folder))
            records = [error(p, "no") if p == 2 else answer(p, f"t{p}", [1, 2]) for p in range(self.most)]
            commit(self.parts, records, batch=question.batch)
            self.state = "finished" if self.most == ROWS else "running"
        elif isinstance(question, BatchCancel):
            self.state = "cancelled"
        assert self.parts is not None
        return BatchState(BatchStatus("b", str(self.parts.path), ROWS, self.most - 1, 1, 0, self.state))


class Place:
    """A deployment's folder with one order of `ROWS` rows."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = Folder.create(home / "unit", TOML)
        self.folder.publish_head(HeadRecord(1, "tcp://nowhere", "here", 1))
        self.tray, self.shelf = Tray(self.folder.path), Shelf(self.folder.path, "name me")
        self._monkeypatch = monkeypatch
        monkeypatch.setattr("exahpc.clerk.worker._POLL", 0.0)
        self.broker(Broker())

    def broker(self, broker: Broker) -> Broker:
        self._monkeypatch.setattr(module, "ask", broker.ask)
        return broker

    def order(self, text: str, created: int | None = None, endpoint: str = "/v1/completions") -> str:
        batch = self.tray.new_id()
        source = self.folder.path / f"{batch}.up"
        source.write_text(text)
        place = self.tray.folder(batch)
        order = Order("file-1", endpoint, "24h", 86_400)
        submission = Submission(
            batch, int(time.time()) if created is None else created, "name me", (str(place / "input.jsonl"),),
            str(place / "results.h5"), msgspec.Raw(b'{"format":"requests"}'), order=order,
        )  # fmt: skip
        self.tray.submit(submission, source)
        source.unlink()
        return batch

    def run(self, batch: str) -> int:
        return Worker(self.folder, load(self.folder.toml), batch).run()

    def content(self, file: str | None) -> list[dict[str, Any]]:
        assert file is not None
        return [json.loads(text) for text in self.shelf.content(file).read_text().splitlines()]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def rows(count: int = ROWS) -> str:
    return "\n".join(line(f"r{row}") for row in range(count))


def told(place: Place, batch: str) -> tuple[Any, ...]:
    """What does not depend on how often a worker died."""
    state = place.tray.state(batch)
    good, bad = place.content(state.output_file), place.content(state.error_file)
    return (
        state.phase, state.total, state.ok, state.failed, state.prompt_tokens, state.completion_tokens,
        [one["custom_id"] for one in good], [one["custom_id"] for one in bad],
        [place.shelf.record(file).size for file in place.shelf.ids()],  # type: ignore[union-attr]
        sorted(path.name for path in place.tray.folder(batch).iterdir()),
    )  # fmt: skip


WHOLE = ("completed", ROWS, ROWS - 1, 1, 7 * (ROWS - 1), 2 * (ROWS - 1), ["r0", "r1", "r3", "r4", "r5"], ["r2"])


def test_answers_and_errors_become_files_in_input_order(place: Place) -> None:
    batch = place.order(rows())
    assert place.run(batch) == DONE
    assert told(place, batch)[: len(WHOLE)] == WHOLE
    assert told(place, batch)[-1] == ["request.json", "state.json"]
    times = place.tray.state(batch).times
    assert list(times) == ["in_progress", "finalizing", "completed"]
    assert place.run(batch) == DONE, "one that has ended is left alone"


class Killed(BaseException):
    pass


def test_wherever_a_worker_dies_the_next_one_comes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before, and after, each state it saves and each file it publishes."""

    def dying(real: Callable[..., None], at: int, after: bool) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            calls.append(1)
            if len(calls) == at and not after:
                raise Killed
            real(*arguments, **named)
            if len(calls) == at:
                raise Killed

        return call

    undisturbed: tuple[Any, ...] = ()
    save, publish = Tray.save, Shelf.publish
    for at in range(20):
        for after in (False, True):
            home = tmp_path / f"{at}-{after}"
            home.mkdir()
            place, calls = Place(home, monkeypatch), list[int]()
            batch = place.order(rows())
            with monkeypatch.context() as patched:
                patched.setattr(Tray, "save", dying(save, at, after))
                patched.setattr(Shelf, "publish", dying(publish, at, after))
                try:
                    assert place.run(batch) == DONE
                    died = False
                except Killed:
                    died = True
            assert place.run(batch) == DONE
            undisturbed = undisturbed or told(place, batch)
            assert told(place, batch) == undisturbed, f"killed {'after' if after else 'before'} call {at}"
        if at and not died:
            break
    assert undisturbed[: len(WHOLE)] == WHOLE
    assert at > 5, "it never died"


def test_a_cancelled_batch_and_one_whose_time_is_over_keep_what_is_done(place: Place) -> None:
    batch, broker = place.order(rows()), place.broker(Broker(most=4))
    real = broker.ask

    def ask(*arguments: Any) -> BatchState | Refused:
        if len(broker.asked) == 2:
            place.tray.cancel(batch)
        return real(*arguments)

    broker.ask = ask  # type: ignore[method-assign,assignment]
    place.broker(broker)
    assert place.run(batch) == DONE
    assert broker.asked[-1] is BatchCancel
    assert told(place, batch)[:8] == ("cancelled", ROWS, 3, 1, 21, 6, ["r0", "r1", "r3"], ["r2"])
    late = place.order(rows(), created=1000)
    broker = place.broker(Broker())
    assert place.run(late) == DONE
    assert (place.tray.state(late).phase, broker.asked) == ("expired", []), "nothing was begun"


def test_a_cancel_that_comes_between_two_workers_reaches_the_broker(place: Place, tmp_path: Path) -> None:
    """Else its rows would run to their end."""
    source, batch = tmp_path / "in.jsonl", place.tray.new_id()
    source.write_text(rows())
    place.tray.submit(Submission(batch, 1, "", (str(source),), str(tmp_path / "out.h5")))
    broker = Broker(most=4)
    real = broker.ask

    def ask(*arguments: Any) -> BatchState | Refused:
        if len(broker.asked) == 2:
            raise Killed
        return real(*arguments)

    broker.ask = ask  # type: ignore[method-assign,assignment]
    place.broker(broker)
    with pytest.raises(Killed):
        place.run(batch)
    place.tray.cancel(batch)
    broker.ask, broker.most = real, 5  # type: ignore[method-assign]
    place.broker(broker)
    assert place.run(batch) == DONE
    assert broker.asked[-1] is BatchCancel
    state = place.tray.state(batch)
    assert (state.phase, state.ok, state.failed) == ("cancelled", 4, 1), "also what came after its last look"


@pytest.mark.case("B01", "B04", "B05")
def test_bad_lines_fail_a_batch_with_their_numbers_before_the_broker_hears_of_it(place: Place) -> None:
    broker = place.broker(Broker())
    batch = place.order(rows(2) + "\n\n[1]\n" + line("r0") + '\n{"custom_id":')
    assert place.run(batch) == DONE
    state = place.tray.state(batch)
    assert (state.phase, broker.asked, state.output_file) == ("failed", [], None)
    assert sorted(one.line or 0 for one in state.errors) == [4, 5, 6]
    stranger = place.order(rows(2), endpoint="/v1/chat/completions")
    assert place.run(stranger) == DONE
    assert [(one.line, one.code) for one in place.tray.state(stranger).errors] == [
        (1, "mismatched_endpoint"),
        (2, "mismatched_endpoint"),
    ]
    assert [path.name for path in place.tray.folder(stranger).iterdir() if "results" in path.name] == []


def test_a_batch_that_the_broker_gives_up_fails_with_its_reason_and_keeps_what_is_done(place: Place) -> None:
    batch, broker = place.order(rows()), Broker(most=3)
    real = broker.ask

    def ask(*arguments: Any) -> BatchState | Refused:
        found = real(*arguments)
        assert isinstance(found, BatchState)
        status = msgspec.structs.replace(found.status, state="failed", note="a journal is damaged")
        return BatchState(status)

    broker.ask = ask  # type: ignore[method-assign,assignment]
    place.broker(broker)
    assert place.run(batch) == DONE
    state = place.tray.state(batch)
    assert (state.phase, "a journal is damaged" in state.errors[0].message) == ("failed", True)
    assert [one["custom_id"] for one in place.content(state.output_file)] == ["r0", "r1"]


def test_what_may_pass_is_waited_for_and_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = place.order(rows())
    parts = Parts.of(Path(place.tray.folder(batch) / "results.h5"))
    parts.create()
    other = Owner(parts)
    assert place.run(batch) == AGAIN
    assert "works on" in place.tray.state(batch).note
    other.release()
    with monkeypatch.context() as patched:

        def full(*arguments: object) -> None:
            raise NoRoomError("no room to write")

        patched.setattr(module, "publish", full)
        assert place.run(batch) == AGAIN
    state = place.tray.state(batch)
    assert state.phase == "finalizing"
    assert state.note.startswith("no room to write: make room (or raise the quota), then it goes on by itself")
    assert place.run(batch) == DONE
    assert place.tray.state(batch).note == ""
    assert told(place, batch)[: len(WHOLE)] == WHOLE


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_what_is_done_waits_for_room_however_the_batch_ends(
    place: Place, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    batch, broker = place.order(rows()), Broker(most=4)
    real = broker.ask

    def ask(*arguments: Any) -> BatchState | Refused:
        found = real(*arguments)
        if end == "cancelled":
            place.tray.cancel(batch)
            return found
        assert isinstance(found, BatchState)
        return BatchState(msgspec.structs.replace(found.status, state="failed", note="a journal is damaged"))

    broker.ask = ask  # type: ignore[method-assign,assignment]
    place.broker(broker)
    with monkeypatch.context() as patched:

        def full(*arguments: object) -> None:
            raise NoRoomError("no room to write")

        patched.setattr(module, "publish", full)
        for _ in range(3):
            assert place.run(batch) == AGAIN
        assert not place.tray.state(batch).ended
    assert place.run(batch) == DONE
    assert told(place, batch)[:8] == (end, ROWS, 3, 1, 21, 6, ["r0", "r1", "r3"], ["r2"])


def test_why_the_broker_holds_a_batch_is_told_while_it_does(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, broker = place.order(rows()), Broker()
    real, save, notes = broker.ask, Tray.save, list[str]()
    said = iter(["no room", "no room", ""])

    def ask(*arguments: Any) -> BatchState | Refused:
        found = real(*arguments)
        assert isinstance(found, BatchState)
        note = next(said, None)
        if note is None:
            return found
        return BatchState(msgspec.structs.replace(found.status, state="running", note=note))

    def saved(tray: Tray, batch: str, state: State) -> None:
        notes.append(state.note)
        save(tray, batch, state)

    broker.ask = ask  # type: ignore[method-assign,assignment]
    place.broker(broker)
    monkeypatch.setattr(Tray, "save", saved)
    assert place.run(batch) == DONE
    assert [note for note, _ in groupby(notes)] == ["", "no room", ""]


def test_a_disk_without_room_for_a_state_is_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = place.order(rows())
    with monkeypatch.context() as patched:

        def full(*arguments: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", "state.json")

        patched.setattr(Tray, "save", full)
        assert place.run(batch) == AGAIN
    assert place.run(batch) == DONE
    assert told(place, batch)[: len(WHOLE)] == WHOLE


def test_a_batch_of_the_command_line_leaves_its_results_where_they_were_asked_for(
    place: Place, tmp_path: Path
) -> None:
    source, batch = tmp_path / "in.jsonl", place.tray.new_id()
    source.write_text(rows())
    place.tray.submit(Submission(batch, 1, "", (str(source),), str(tmp_path / "out.h5")))
    assert place.run(batch) == DONE
    state = place.tray.state(batch)
    assert (state.phase, state.ok, state.failed, state.output_file) == ("completed", ROWS - 1, 1, None)
    assert (tmp_path / "out.h5").exists()
    assert not (tmp_path / "out.h5.parts").exists()
    assert not (place.folder.path / "files").exists()


def test_an_unknown_state_of_another_version_is_named(place: Place) -> None:
    batch = place.order(rows())
    (place.tray.folder(batch) / "state.json").write_text('{"phase": "odd"}')
    with pytest.raises(BatchError, match=r"state\.json cannot be read"):
        Worker(place.folder, load(place.folder.toml), batch)
    assert State().phase == "validating"


def test_what_would_unpack_to_more_than_was_uploaded_is_refused(place: Place) -> None:
    batch = place.order("")
    place.tray.folder(batch).joinpath("input.jsonl").write_bytes(gzip.compress(rows().encode()))
    assert place.run(batch) == DONE
    state = place.tray.state(batch)
    assert (state.phase, "compressed by gzip" in state.note) == ("failed", True)
    assert {path.name for path in place.tray.folder(batch).iterdir()} == {"request.json", "state.json"}
