"""Laws of `exahpc history` and of `exahpc logs --request`: both read files, no broker runs."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from exahpc.cli import main
from exahpc.telemetry.courses import REPLICAS, TIERS, Row
from exahpc.telemetry.store import Store
from exahpc.wire.folder import Folder

TOML = 'name = "d"\n[model]\npath = "/m"\n[launcher]\nkind = "local"\n[[pool]]\nname = "a"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setenv("EXAHPC_HOME", str(tmp_path))
    return Folder.create(tmp_path / "d", TOML)


def run(*argv: str) -> Result:
    return CliRunner().invoke(main, argv)


def write(folder: Folder, *rows: Row) -> None:
    store = Store(folder.path / "history")
    store.add([(TIERS[0], "fleet", row) for row in rows], rows[-1].time)
    store.close(rows[-1].time)


def test_rows_come_as_a_table_as_csv_and_as_json(folder: Folder) -> None:
    now = int(time.time()) // 10 * 10
    write(folder, Row(now - 7200, 10.0, {"ready": 1.0}), Row(now - 60, 10.0, {"ready": 3.0, "ttft_p99": 0.25}))
    assert [line.split()[-2:] for line in run("history", "d", "ready", "ttft_p99").output.splitlines()] == [
        ["ready", "ttft_p99"], ["3", "0.25"]
    ]  # fmt: skip
    (row,) = json.loads(run("history", "d", "ready", "kv", "--json").output)
    assert row == {"time": now - 60, "seconds": 10.0, "ready": 3.0, "kv": None}
    rows = list(csv.DictReader(io.StringIO(run("history", "d", "--last", "3h", "--csv").output)))
    assert [row["ready"] for row in rows] == ["1.0", "3.0"]
    assert set(rows[0]) == {"time", "seconds", *REPLICAS}
    assert rows[0]["ttft_p99"] == ""
    assert run("history", "d", "--list").output.split("\t")[0] == "fleet"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--of", "pool/z"], "no history of 'pool/z'; there is: fleet"),
        (["spead"], "fleet has no column 'spead'; there are: wanted"),
        (["--last", "soon"], 'write a time like "90s"'),
    ],
)
def test_a_mistake_is_told_with_its_remedy(folder: Folder, argv: list[str], says: str) -> None:
    write(folder, Row(int(time.time()), 10.0, {}))
    done = run("history", "d", *argv)
    assert done.exit_code != 0
    assert says in done.output


def test_the_story_of_a_request_comes_from_all_logs(folder: Folder) -> None:
    stamp = "2026-01-01 00:00:0{},000 INFO x: "
    folder.logs("head-entry-0.log").write_text(stamp.format(1) + "it goes to a/0 request=cmpl-1 client=mine\n")
    folder.logs("a-0", "agent.log").write_text(stamp.format(2) + "done request=cmpl-1\n")
    lines = run("logs", "d", "--request", "mine").output.splitlines()
    assert [line.split()[0] for line in lines] == ["head-entry-0.log", "a-0/agent.log"]
    missing = run("logs", "d", "--request", "cmpl-2")
    assert missing.exit_code != 0
    assert "traceparent" in missing.output
