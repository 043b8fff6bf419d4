"""Whoever does not come up is quoted: the end of its log, of this life, once."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from exahpc.launch import words
from exahpc.launch.tail import last_line
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder

TOML = 'name = "d"\nmodel.path = "/m"\n[[pool]]\nname = "a"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.create(tmp_path / "d", TOML)


def reply(*alive: bool) -> m.StatusReply:
    agents = [m.AgentStatus("a", n, "", "", "", up, -1.0, 0, []) for n, up in enumerate(alive)]
    return m.StatusReply(1, len(alive), 0, agents, [], [], [])


def write(folder: Folder, name: str, text: str) -> None:
    log = folder.logs(name, "broker.log" if name == "head" else "agent.log")
    with log.open("a") as file:
        file.write(text)


def test_the_last_line_is_the_last_with_text_and_short(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert last_line(log) == ""
    log.write_bytes(b"one\n  two \xff\n\n \n")
    assert last_line(log) == "two \ufffd"
    log.write_text("a\n" + "b" * 300_000)
    assert last_line(log) == "b" * 197 + "..."


def test_a_silent_broker_is_quoted_once_until_it_says_something_else(folder: Folder) -> None:
    told: set[str] = set()
    assert list(words.silent(folder, None, told)) == []
    write(folder, "head", "Traceback\nImportError: line 7: no zmq\n")
    assert list(words.silent(folder, None, told)) == [
        "head is not up; its log ends with: ImportError: line 7: no zmq"
    ]
    write(folder, "head", "ImportError: line 8: no zmq\n")  # the same, at another time
    assert list(words.silent(folder, None, told)) == []
    write(folder, "head", "port 5000 is taken\n")
    assert list(words.silent(folder, None, told)) == ["head is not up; its log ends with: port 5000 is taken"]


def test_only_agents_that_are_not_heard_are_quoted_and_few_of_them(folder: Folder) -> None:
    for task in range(9):
        write(folder, f"a-{task}", f"task {task} cannot start\n")
    write(folder, "head", "all is well\n")
    told = list(words.silent(folder, reply(True, *[False] * 8), set()))
    assert told == [
        f"a-{task} is not up; its log ends with: task {task} cannot start" for task in range(1, len(told) + 1)
    ]
    assert 0 < len(told) < 8


def test_agents_that_a_restarted_broker_has_not_heard_yet_are_not_quoted(folder: Folder) -> None:
    write(folder, "a-0", "rows of x cannot be read\n")
    found = reply(False)
    expected = msgspec.structs.replace(found, agents=[msgspec.structs.replace(found.agents[0], expected=True)])
    assert list(words.silent(folder, expected, set())) == []
    assert len(list(words.silent(folder, found, set()))) == 1, "it did not come back"


def test_what_an_earlier_life_said_is_not_quoted(folder: Folder) -> None:
    write(folder, "head", "draining\n")
    old = (folder.path / "deployment.toml").stat().st_mtime - 60
    os.utime(words.log_of(folder, "head"), (old, old))
    assert words.last_words(folder, "head") == ""
    write(folder, "head", "starting\n")
    assert words.last_words(folder, "head") == "starting"


def test_a_supervisor_that_gave_up_is_quoted_with_its_process(folder: Folder) -> None:
    folder.logs("a-0.supervisor.log").write_text("python crashed 30 times in a row: giving up\n")
    write(folder, "a-0", "no module named x\n")
    assert words.ended(folder, "a-0") == (
        "a-0 ended while starting; python crashed 30 times in a row: giving up; no module named x"
    )
