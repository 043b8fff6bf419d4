"""A batch file on a live deployment: kill -9 of its client, its agent, its broker; every row ends once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.live import EXAHPC, Live, processes_of, until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]

ROWS = 60


def write(path: Path, model: str, rows: int = ROWS, tokens: int = 24) -> Path:
    with open(path, "w") as file:
        for row in range(rows):
            body: dict[str, Any] = {
                "model": model,
                "prompt": f"row {row}: ",
                "max_tokens": tokens,
                "temperature": 0,
            }
            if row == rows // 2:
                body["prompt"] = "long " * 9000
            line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return path


def exported(live: Live, results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in live.run("batch", "export", str(results)).stdout.splitlines()]


def pids(live: Live, word: str) -> list[int]:
    return [int(p.split()[0]) for p in processes_of(live.folder.path) if word in p]


def done(live: Live, at_least: int) -> bool:
    found = live.status()
    return bool(found and found.batches and found.batches[-1].ok >= at_least)


def test_a_batch_survives_its_client_its_agents_and_its_broker(local: Live, tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", local.model()), tmp_path / "out.h5"
    argv = ("batch", "run", str(source), "--deployment", local.name, "-o", str(output))
    client = subprocess.Popen([*EXAHPC, *argv], env=local.env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until("the first rows are done", lambda: done(local, 3), 120)
    client.kill()
    client.wait()
    for pid in pids(local, "-m exahpc.agent"):
        os.kill(pid, signal.SIGKILL)
    record = local.folder.head()
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)

    part = tmp_path / "out.h5.parts"
    early = {line["custom_id"] for line in exported(local, part)}
    assert len(early) >= 3, "what was acknowledged is readable at once"

    finished = local.run(*argv, check=False, seconds=300)
    assert finished.returncode == 3, f"one row is too long\n{finished.stderr}\n{local.tail()}"
    lines = exported(local, output)
    assert [line["custom_id"] for line in lines] == [f"r{row}" for row in range(ROWS)]
    failed = [line for line in lines if line["error"]]
    assert [line["custom_id"] for line in failed] == [f"r{ROWS // 2}"]
    assert failed[0]["response"] is None
    assert failed[0]["error"]["status_code"] == 400
    assert all(line["response"]["body"]["choices"][0]["finish_reason"] for line in lines if not line["error"])
    again = local.run(*argv, check=False)
    assert again.returncode == 3, "the same command on finished results only tells them again"


def test_bad_lines_are_told_before_anything_runs(local: Live, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", local.model(), rows=3)
    source.write_bytes(source.read_bytes() + b'[1, 2]\n{"custom_id":\n')
    argv = ("batch", "run", str(source), "--deployment", local.name, "-o", str(tmp_path / "out.h5"))
    refused = local.run(*argv, check=False)
    assert refused.returncode == 1
    assert "line 4: must be a JSON object" in refused.stderr
    assert "line 5: not JSON" in refused.stderr
    skipped = local.run(*argv, "--skip-bad", check=False)
    assert skipped.returncode == 3
    assert [line["error"] is None for line in exported(local, tmp_path / "out.h5")] == [
        True,
        False,
        True,
        False,
        False,
    ]


def test_a_model_that_is_not_served_fails_up_front(local: Live, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", "another-model", rows=9)
    argv = ("batch", "run", str(source), "--deployment", local.name, "-o", str(tmp_path / "out.h5"))
    assert "commonest, 9 times: model 'another-model' is not served" in local.run(*argv, check=False).stderr
    assert local.run(*argv, "--skip-bad", check=False).returncode == 4
