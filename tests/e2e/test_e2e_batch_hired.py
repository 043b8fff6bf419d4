"""A batch with a deployment of its own: it survives the kill -9 of its client, and in the end nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from exahpc.launch.hired import name_for
from tests.e2e.test_e2e_batch import pids, write
from tests.live import EXAHPC, Live, processes_of, until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]

ROWS = 400
"""Enough that some are left whenever their agent is stopped."""


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="exahpc-e2e-") as path:
        yield Path(path)


def test_the_same_command_finds_its_deployment_again_and_ends_it_in_any_case(home: Path, tiny: Path) -> None:
    source, output = write(home / "in.jsonl", tiny.name, rows=ROWS, tokens=32), home / "out.h5"
    live = Live(home, name_for(output))
    own = ("--model", str(tiny), "--launcher", "local", "--dtype", "float32", "--context", "2048", "--json")
    argv = ("batch", "run", str(source), "-o", str(output), *own)

    said = home / "said"

    def begin() -> subprocess.Popen[str]:
        with open(said, "w") as errors:
            return subprocess.Popen(
                [*EXAHPC, *argv],
                env=live.env,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def done(rows: int) -> bool:
        found = live.status()
        return bool(found and found.batches and found.batches[0].ok >= rows)

    first = begin()
    until("the first rows are done", lambda: done(3), 120)
    (agent,) = pids(live, "-m exahpc.agent")
    os.kill(agent, signal.SIGSTOP)  # so that there are rows left, however long a client takes to start
    first.kill()
    first.communicate()

    second = begin()
    try:
        adopted = f"going on with deployment {live.name}, which is up"
        until("the second client has found what the first one left", lambda: adopted in said.read_text(), 120)
        third = live.run(*argv, check=False)
        assert (third.returncode, json.loads(third.stdout)["exit_code"]) == (5, 5), third.stderr
        assert "another `exahpc batch run` works on" in third.stderr
        os.kill(agent, signal.SIGCONT)
        second.send_signal(signal.SIGTERM)
        told, _ = second.communicate(timeout=120)
    finally:
        second.kill()
    ended = json.loads(told)
    assert (second.returncode, ended["state"]) == (143, "stopped"), said.read_text()
    assert "the same command goes on" in said.read_text()
    assert not processes_of(live.folder.path), "it was taken down"

    last = live.run(*argv, check=False, seconds=300)
    assert last.returncode == 3, f"one row is too long\n{last.stderr}\n{live.tail()}"
    ended = json.loads(last.stdout.splitlines()[-1])
    assert [ended[key] for key in ("rows", "ok", "failed", "skipped")] == [ROWS, ROWS - 1, 1, 0]
    assert ended["node_hours"] > 0
    assert not processes_of(live.folder.path)
    status = json.loads(live.run("batch", "status", str(output), "--json").stdout)[0]
    assert [status[key] for key in ("state", "total", "ok", "failed")] == ["finished", ROWS, ROWS - 1, 1]
    (failed,) = live.run("batch", "errors", str(output), "--json").stdout.splitlines()
    assert json.loads(failed)["custom_id"] == f"r{ROWS // 2}"


def test_failed_rows_are_run_again_and_all_counts_agree(local: Live, tmp_path: Path) -> None:
    output = tmp_path / "out.h5"
    with open(tmp_path / "in.jsonl", "w") as file:
        for row, length in enumerate((1, 3000, 1)):
            body = {"model": local.model(), "prompt": "x" * length, "max_tokens": 2}
            line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    run = (str(tmp_path / "in.jsonl"), "--deployment", local.name, "-o", str(output), "--json")
    first = local.run("batch", "run", *run, check=False)
    again = local.run("batch", "retry-failed", str(output), "--deployment", local.name, "--json", check=False)
    for done in (first, again):
        ended = json.loads(done.stdout.splitlines()[-1])
        assert (done.returncode, ended["exit_code"]) == (3, 3), done.stderr
        assert [ended[key] for key in ("rows", "ok", "failed", "skipped")] == [3, 2, 1, 0]
    assert "1 rows are run again" in again.stderr
