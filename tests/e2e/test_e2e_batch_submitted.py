"""Batches that nobody waits for: the official client, `batch submit`, and kill -9 of the clerk and its workers."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from exahpc.wire.tray import Tray
from tests.e2e.test_e2e_batch import exported, pids, write
from tests.live import Live, until

MANY = 4000  # rows that no machine ends before somebody cancels them
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]


def lines(model: str, rows: int, url: str = "/v1/completions", **body: Any) -> bytes:
    made = []
    for row in range(rows):
        asked = {"prompt": f"row {row}: "} if url == "/v1/completions" else {
            "messages": [{"role": "user", "content": f"row {row}"}]
        }  # fmt: skip
        fields = {"model": model, "max_tokens": 8, "temperature": 0} | asked | body
        made.append(json.dumps({"custom_id": f"r{row}", "method": "POST", "url": url, "body": fields}))
    return "\n".join(made).encode()


def order(client: openai.OpenAI, data: bytes, endpoint: str = "/v1/completions", **more: Any) -> Any:
    file = client.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch")
    return client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,
        completion_window="24h",
        **more,  # type: ignore[arg-type]
    )


def ended(live: Live, batch: str) -> Any:
    client = live.client()

    def look() -> Any:
        found = client.batches.retrieve(batch)
        return found if found.status in ("completed", "failed", "cancelled", "expired") else None

    return until(f"the end of {batch}", look, 240, 0.5)


def content(live: Live, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in live.client().files.content(file).text.splitlines()]


@pytest.mark.parametrize("url", ["/v1/completions", "/v1/chat/completions"])
def test_the_official_client_gets_every_answer_in_the_order_of_its_file(local: Live, url: str) -> None:
    client, rows = local.client(), 12
    data = lines(local.model(), rows, url)
    assert url == "/v1/completions" or b"messages" in data
    made = order(client, data, url, metadata={"night": "1"})
    found = ended(local, made.id)
    assert (found.status, found.errors) == ("completed", None), local.tail()
    counts = found.request_counts
    assert (counts.total, counts.completed, counts.failed) == (rows, rows, 0)
    assert found.error_file_id is None
    assert found.metadata == {"night": "1"}
    assert found.created_at <= found.in_progress_at <= found.finalizing_at <= found.completed_at
    answers = content(local, found.output_file_id)
    assert [answer["custom_id"] for answer in answers] == [f"r{row}" for row in range(rows)]
    usage = [answer["response"]["body"]["usage"]["completion_tokens"] for answer in answers]
    assert found.usage.output_tokens == sum(usage)
    if url == "/v1/completions":
        text = answers[3]["response"]["body"]["choices"][0]["text"]
        assert text == local.stream("row 3: ", 8)
    about = client.files.retrieve(found.output_file_id)
    assert (about.purpose, about.filename) == ("batch_output", f"{made.id}_output.jsonl")
    left = {path.name for path in Tray(local.folder.path).folder(made.id).iterdir()}
    assert left == {"request.json", "state.json"}, "what it needed on its way is gone"


@pytest.mark.case("B12")
def test_rows_that_fail_have_a_file_of_their_own_and_are_counted(local: Live) -> None:
    model = local.model()
    data = b"\n".join([lines(model, 3), lines(model, 1, prompt="x" * 3000).replace(b'"r0"', b'"long"')])
    found = ended(local, order(local.client(), data).id)
    counts = found.request_counts
    assert (found.status, counts.total, counts.completed, counts.failed) == ("completed", 4, 3, 1)
    assert [one["custom_id"] for one in content(local, found.output_file_id)] == ["r0", "r1", "r2"]
    (failed,) = content(local, found.error_file_id)
    assert (failed["custom_id"], failed["response"], failed["error"]["status_code"]) == ("long", None, 400)


@pytest.mark.case("B01", "B05")
def test_a_wrong_input_fails_with_all_its_lines_and_runs_nothing(local: Live) -> None:
    model = local.model()
    good = lines(model, 2)
    bad = good + b"\n[1, 2]\n" + good.splitlines()[0] + b"\n" + lines("another", 1).replace(b'"r0"', b'"x"')
    found = ended(local, order(local.client(), bad).id)
    assert (found.status, found.output_file_id, found.error_file_id) == ("failed", None, None)
    assert [error.line for error in found.errors.data] == [3, 4, 5]
    assert "JSON object" in found.errors.data[0].message
    assert "another" in found.errors.data[2].message
    strangers = ended(local, order(local.client(), good, "/v1/chat/completions").id)
    assert strangers.status == "failed"
    assert [(e.line, e.code) for e in strangers.errors.data] == [
        (1, "mismatched_endpoint"),
        (2, "mismatched_endpoint"),
    ]


def test_a_cancelled_batch_keeps_what_is_done(local: Live) -> None:
    client, rows = local.client(), MANY
    made = order(client, lines(local.model(), rows, max_tokens=60))
    until("rows are done", lambda: client.batches.retrieve(made.id).request_counts.completed > 4, 120)
    assert client.batches.cancel(made.id).status == "cancelling"
    found = ended(local, made.id)
    assert found.status == "cancelled"
    assert 4 < found.request_counts.completed < rows == found.request_counts.total
    assert len(content(local, found.output_file_id)) == found.request_counts.completed


def test_a_submitted_batch_survives_kill_9_of_the_clerk_and_of_its_worker(local: Live, tmp_path: Path) -> None:
    rows, tray = 400, Tray(local.folder.path)
    source, output = write(tmp_path / "in.jsonl", local.model(), rows, tokens=60), tmp_path / "out.h5"
    argv = (str(source), "--deployment", local.name, "-o", str(output))
    batch = local.run("batch", "submit", *argv).stdout.strip()
    until("the first rows are done", lambda: tray.state(batch).ok > 2, 120)
    worker = f"--batch {batch}"
    for word in (f"-m exahpc.clerk --folder {local.folder.path}", worker):
        before = set(pids(local, "exahpc.clerk"))
        for pid in pids(local, word):
            os.kill(pid, signal.SIGKILL)

        def goes_on(known: set[int] = before) -> bool:
            return bool(set(pids(local, worker)) - known) or tray.state(batch).ended

        until("another worker goes on", goes_on, 120)
    watched = local.run("batch", "watch", str(output), "--json", check=False, seconds=300)
    assert watched.returncode == 3, f"one row is too long\n{watched.stderr}\n{local.tail()}"
    told = json.loads(watched.stdout)
    assert (told["state"], told["rows"], told["ok"], told["failed"]) == ("finished", rows, rows - 1, 1)
    assert [line["custom_id"] for line in exported(local, output)] == [f"r{row}" for row in range(rows)]
    until("no worker is left", lambda: not pids(local, "--batch"), 30)
    listed = json.loads(local.run("batch", "list", "--json").stdout)
    assert [(one["state"], one["ok"]) for one in listed if one["batch"] == batch] == [("completed", rows - 1)]
    assert batch not in [one.id for one in local.client().batches.list()], "it belongs to no key"


def test_two_batches_never_make_one_output(local: Live, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", local.model(), MANY, tokens=60)
    argv = (str(source), "--deployment", local.name, "-o", str(tmp_path / "out.h5"))
    batch = local.run("batch", "submit", *argv).stdout.strip()
    again = local.run("batch", "submit", *argv, check=False)
    assert (again.returncode, f"{batch} makes" in again.stderr) == (5, True)
    local.run("batch", "cancel", batch)
    assert local.run("batch", "watch", batch, check=False).returncode == 6


def test_a_submitted_batch_that_was_cancelled_goes_on_with_batch_run(local: Live, tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", local.model(), 400, tokens=60), tmp_path / "out.h5"
    argv = (str(source), "--deployment", local.name, "-o", str(output))
    batch = local.run("batch", "submit", *argv).stdout.strip()
    tray = Tray(local.folder.path)
    until("it runs", lambda: tray.state(batch).phase == "in_progress", 120)
    tray.cancel(batch)
    watched = local.run("batch", "watch", batch, check=False)
    assert watched.returncode == 6, watched.stderr
    assert local.run("batch", "run", *argv, check=False, seconds=300).returncode == 3, "one row is too long"


def test_bad_rows_of_a_submitted_file_are_told_by_watch(local: Live, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", local.model(), rows=3)
    source.write_bytes(source.read_bytes() + b"null\n")
    argv = (str(source), "--deployment", local.name, "-o", str(tmp_path / "out.h5"))
    batch = local.run("batch", "submit", *argv).stdout.strip()
    watched = local.run("batch", "watch", batch, check=False)
    assert watched.returncode == 1
    assert "line 4: " in watched.stderr
    batch = local.run("batch", "submit", *argv, "--skip-invalid").stdout.strip()
    assert local.run("batch", "watch", batch, check=False).returncode == 3
