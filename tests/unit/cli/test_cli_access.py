"""`exahpc url`: the endpoint, and with --all where every entry is."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from exahpc.cli import main
from exahpc.launch import ready
from exahpc.wire import messages as m
from exahpc.wire.folder import Endpoint, Folder

TOML = 'name = "d"\nmodel.path = "/m"\n[[pool]]\nname = "a"\n[launcher]\nkind = "local"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setenv("EXAHPC_HOME", str(tmp_path))
    made = Folder.create(tmp_path / "d", TOML)
    made.publish_endpoint(Endpoint("http://h:1/v1", "h", 1, None))
    return made


def test_all_entries_are_listed_once_a_port_with_their_nodes(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [
        m.EntryStatus(0, "http://h:1/v1", "", 0, 0, 0, 0),
        m.EntryStatus(1, "http://h:1/v1", "", 3, 0, 0, 0),
        m.EntryStatus(0, "http://n7:2/v1", "n7", 0, 0, 0, 0),
    ]
    monkeypatch.setattr(ready, "look", lambda folder: m.StatusReply(1, 1, 1, [], entries, [], []))
    done = CliRunner().invoke(main, ["url", "d", "--all"])
    assert (done.exit_code, done.stdout) == (0, "http://h:1/v1\thead\nhttp://n7:2/v1\tn7\n")


def test_without_a_broker_nobody_knows_all_entries(folder: Folder) -> None:
    done = CliRunner().invoke(main, ["url", "d", "--all"])
    assert (done.exit_code, "no broker of d answers" in done.output) == (1, True)


def test_the_endpoint_is_told_without_a_broker(folder: Folder) -> None:
    done = CliRunner().invoke(main, ["url", "d"])
    assert (done.exit_code, done.stdout) == (0, "http://h:1/v1\n")
