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


@pytest.mark.case("B04", "B05")
def test_bad_lines_are_told_before_anything_runs(local: Live, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", local.model(), rows=3)
    source.write_bytes(
        source.read_bytes() + b'[1, 2]\n{"custom_id":\n"hello"\nnull\n\n{"custom_id":"x","body":"str"}'
    )
    argv = ("batch", "run", str(source), "--deployment", local.name, "-o", str(tmp_path / "out.h5"))
    refused = local.run(*argv, check=False)
    assert refused.returncode == 1
    for said in ("line 4: must be a JSON object", "line 5: not JSON", "line 6: ", "line 7: ", "line 9: "):
        assert said in refused.stderr
    skipped = local.run(*argv, "--skip-invalid", check=False)
    assert skipped.returncode == 3
    lines = exported(local, tmp_path / "out.h5")
    assert [line["error"] is None for line in lines] == [True, False, True, *[False] * 5]
    assert [line["error"]["line"] for line in lines[3:]] == [4, 5, 6, 7, 9]


@pytest.mark.case("B12")
def test_a_model_that_is_not_served_fails_up_front_and_loudly(local: Live, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", "another-model", rows=9)
    argv = ("batch", "run", str(source), "--deployment", local.name, "-o", str(tmp_path / "out.h5"))
    reason = "body.model: 'another-model' is not served here"
    refused = local.run(*argv, check=False)
    assert (refused.returncode, f"commonest, 9 times: {reason}" in refused.stderr) == (1, True), refused.stderr
    failed = local.run(*argv, "--skip-invalid", check=False)
    assert failed.returncode == 4, failed.stderr
    assert "0 of 9 rows answered, 9 failed" in failed.stderr
    assert f"commonest error: 9 times: {reason}" in " ".join(failed.stderr.split())
    assert [line["error"]["line"] for line in exported(local, tmp_path / "out.h5")] == list(range(1, 10))


@pytest.mark.case("B11", "B56")
def test_a_refused_row_is_failed_by_every_count_and_odd_characters_are_not(local: Live, tmp_path: Path) -> None:
    output = tmp_path / "out.h5"
    prompts = {"good": "one", "\ud800": "a\x00b", "bad": "two", "x\x00": "\ud800"}
    with open(tmp_path / "in.jsonl", "w") as file:
        for name, prompt in prompts.items():
            body = {"model": local.model(), "prompt": prompt, "max_tokens": 4}
            if name == "bad":
                body["temperature"] = -1
            line = {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    argv = (str(tmp_path / "in.jsonl"), "--deployment", local.name, "-o", str(output))
    refused = local.run("batch", "run", *argv, check=False)
    assert (refused.returncode, "line 3: body.temperature: -1" in refused.stderr) == (1, True), refused.stderr
    ended = local.run("batch", "run", *argv, "--skip-invalid", check=False)
    assert (ended.returncode, "3 of 4 rows answered, 1 failed" in ended.stderr) == (3, True), ended.stderr
    told = json.loads(local.run("batch", "status", str(output), "--deployment", local.name, "--json").stdout)
    assert [(one["ok"], one["failed"], one["total"]) for one in told] == [(3, 1, 4)]
    lines = exported(local, output)
    assert [line["custom_id"] for line in lines] == list(prompts)
    assert [line["error"] and line["error"]["status_code"] for line in lines] == [None, None, 400, None]
    assert "temperature" in lines[2]["error"]["message"]
    assert lines[2]["response"] is None


@pytest.mark.case("B13")
@pytest.mark.timeout(1500)
def test_one_prompt_that_is_too_long_costs_its_own_row_of_a_thousand_only(local: Live, tmp_path: Path) -> None:
    rows, context = 1000, 2048
    before = {key: local.incarnation(*key) for key in (("a", 0, 0), ("a", 0, 1), ("b", 0, 0))}
    with open(tmp_path / "in.jsonl", "w") as file:
        for row in range(1, rows + 1):
            prompt = "x" * (context + 1) if row == 500 else f"row {row}"
            body = {"model": local.model(), "prompt": prompt, "max_tokens": 1, "temperature": 0}
            line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    output = tmp_path / "out.h5"
    argv = ("batch", "run", str(tmp_path / "in.jsonl"), "--deployment", local.name, "-o", str(output))
    ended = local.run(*argv, check=False, seconds=1200)
    assert (ended.returncode, "999 of 1000 rows answered, 1 failed" in ended.stderr) == (3, True)
    (failed,) = [line for line in exported(local, output) if line["error"]]
    assert failed["custom_id"] == "r500"
    assert "2049" in failed["error"]["message"]
    assert "2048" in failed["error"]["message"]
    assert {key: local.incarnation(*key) for key in before} == before
