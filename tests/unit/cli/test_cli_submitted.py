"""`batch submit`, `watch`, `list`, and `status` and `cancel` of what was submitted; no clerk runs here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from exahpc.cli import main
from exahpc.wire.folder import Folder
from exahpc.wire.submissions import LineError, Order, State, Submission
from exahpc.wire.tray import Tray

TOML = 'name = "{}"\n[model]\npath = "/x/m"\n[[pool]]\nname = "a"\n[launcher]\nkind = "local"\n'


class Desk:
    """Two deployments of a user, and an input."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.trays = [Tray(Folder.create(home / name, TOML.format(name)).path) for name in ("one", "two")]
        self.source, self.output = home / "in.jsonl", home / "out.h5"
        self.source.write_text("{}\n")

    def run(self, *argv: object) -> Result:
        return CliRunner().invoke(main, ["batch", *map(str, argv)])

    def submit(self, *more: object, name: str = "one") -> str:
        done = self.run("submit", self.source, "--deployment", name, "-o", self.output, *more)
        assert done.exit_code == 0, done.output
        return done.stdout.strip()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("EXAHPC_HOME", str(tmp_path))
    return Desk(tmp_path)


def test_what_is_submitted_lies_whole_in_the_folder_and_says_how_its_inputs_are_read(desk: Desk) -> None:
    batch = desk.submit("--skip-invalid", "--format", "jsonl", "--column", "q", "--system", "be brief")
    found = desk.trays[0].submission(batch)
    assert found is not None
    assert (found.owner, found.sources, found.output) == ("", (str(desk.source),), str(desk.output))
    assert (found.skip_invalid, found.order) == (True, None)
    options = json.loads(bytes(found.options))
    assert (options["format"], options["column"], options["template"]["system"]) == ("jsonl", "q", "be brief")
    assert [path.name for path in desk.trays[0].path.iterdir()] == [batch], "nothing half-made is left"


def test_an_output_that_cannot_be_or_is_being_made_is_refused_at_once(desk: Desk) -> None:
    argv = ("submit", desk.source, "--deployment", "one", "-o")
    assert "choose another output" in desk.run(*argv, desk.home / "none" / "out.h5").output
    assert "is the input" in desk.run(*argv, desk.source).output
    batch = desk.submit()
    busy = desk.run(*argv, desk.output)
    assert (busy.exit_code, f"{batch} makes" in busy.output) == (5, True)
    desk.trays[0].save(batch, State("cancelled"))
    assert desk.submit() != batch, "a new one goes on with what is missing"


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        (State("cancelled", total=9, ok=4), 6, "4 of 9 rows are done"),
        (State("failed", note="no", errors=(LineError("odd", 3), LineError("bad", 7))), 1, "line 7: bad"),
        (State("expired", total=9, ok=4), 1, "is expired"),
    ],
)
def test_watch_ends_with_the_batch_tells_why_and_has_its_exit_code(
    desk: Desk, state: State, code: int, said: str
) -> None:
    batch = desk.submit()
    desk.trays[0].save(batch, state)
    for what in (batch, desk.output):
        done = desk.run("watch", what, "--json")
        assert done.exit_code == code
        assert said in done.output
        assert json.loads(done.stdout.splitlines()[-1])["exit_code"] == code


@pytest.mark.parametrize(("ok", "failed", "code"), [(3, 0, 0), (2, 1, 3), (0, 3, 4)])
def test_watch_of_an_order_over_http_has_the_exit_codes_of_run(
    desk: Desk, ok: int, failed: int, code: int
) -> None:
    tray = desk.trays[1]
    batch = tray.new_id()
    tray.submit(
        Submission(batch, 1, "name me", ("/in",), "/out", order=Order("file-1", "/v1/completions", "1h", 9))
    )
    tray.save(batch, State("completed", total=3, ok=ok, failed=failed))
    done = desk.run("watch", batch)
    assert (done.exit_code, done.stdout.strip()) == (code, batch)


def test_list_shows_all_of_all_deployments_newest_first(desk: Desk) -> None:
    assert json.loads(desk.run("list", "--json").stdout) == []
    first = desk.submit()
    desk.output = desk.home / "other.h5"
    second = desk.submit(name="two")
    desk.trays[0].save(first, State("completed", total=2, ok=1, failed=1))
    found = json.loads(desk.run("list", "--json").stdout)
    assert [(one["batch"], one["deployment"], one["state"], one["rows"]) for one in found] == [
        (second, "two", "validating", 0),
        (first, "one", "completed", 2),
    ]
    assert [one["batch"] for one in json.loads(desk.run("list", "--deployment", "one", "--json").stdout)] == [
        first
    ]
    assert second in desk.run("list").stdout


def test_status_and_cancel_know_what_was_submitted_by_id_and_by_output(desk: Desk) -> None:
    batch = desk.submit()
    for what in (batch, desk.output):
        (told,) = json.loads(desk.run("status", what, "--json").stdout)
        assert (told["batch"], told["state"]) == (batch, "validating")
    assert f"{batch} cancelling" in desk.run("cancel", desk.output).stdout
    assert desk.trays[0].cancelled_at(batch) is not None
    (told,) = json.loads(desk.run("status", batch, "--json").stdout)
    assert told["state"] == "cancelling"
    desk.trays[0].save(batch, State("cancelled"))
    late = desk.run("cancel", batch)
    assert (late.exit_code, "nothing to cancel" in late.output) == (1, True)


def test_what_nobody_submitted_is_named(desk: Desk) -> None:
    done = desk.run("watch", desk.output)
    assert done.exit_code == 2
    assert "exahpc batch list" in done.output
