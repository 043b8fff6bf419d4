"""Laws of what the dashboard asks an entry, in front of an EMULATED fleet of 3,072 replicas."""

from __future__ import annotations

import base64
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from exahpc.entry.dashboard import POLICY
from exahpc.telemetry.map import STATES
from exahpc.telemetry.series import SPANS
from tests.unit.entry.watched import EACH, NODES, TRIPPED, Stand, standing

DATA = "/dashboard/data/"


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with tempfile.TemporaryDirectory(prefix="exahpc-watched-") as home, standing(Path(home)) as made:
        yield made


def data(stand: Stand, path: str, **headers: str) -> httpx.Response:
    return stand.entry.get(DATA + path, headers=stand.entry.headers | headers)


def test_the_page_is_for_everybody_and_holds_no_secret_and_its_data_is_not(stand: Stand) -> None:
    for path in ("/dashboard", "/dashboard/", "/dashboard/app.js", "/dashboard/style.css", "/dashboard/icon.svg"):
        page = stand.entry.get(path, headers={})
        assert page.status_code == 200, path
        assert page.headers["content-security-policy"] == POLICY
        assert "unsafe" not in POLICY
        assert "watched" not in page.text
        assert "emulated-" not in page.text
    for name in ("glance", "history", "replica?pool=gpu&slot=1", "request?id=cmpl-0123456789"):
        assert stand.entry.get(DATA + name, headers={}).status_code == 401
        scraper = {"Authorization": "Bearer sk-scraper-0123"}
        assert stand.entry.get(DATA + name, headers=scraper).status_code == 403
    assert stand.entry.post("/dashboard", headers={}).status_code == 405


def test_nothing_else_of_the_disk_is_served(stand: Stand) -> None:
    for path in ("/dashboard/nothing.js", "/dashboard/../app.py", "/dashboard/%2e%2e/app.py", "/dashboard/data"):
        assert stand.entry.get(path).status_code == 404, path


def test_an_update_of_3072_replicas_is_below_50_kilobytes(stand: Stand) -> None:
    first = data(stand, "glance")
    assert len(first.content) < 50_000
    found = first.json()
    cells = base64.b64decode(found["cells"])
    assert len(cells) == 4 * NODES * EACH
    assert STATES[cells[4 * TRIPPED]] == "tripped"
    assert found["unheard"] == [130, 131]
    assert [task[1] for task in found["layout"]["tasks"]][:2] == ["emulated-000", "emulated-001"]
    update = data(stand, f"glance?layout={found['layout']['id']}")
    assert "layout" not in update.json(), "who has it is not told again"
    assert len(update.content) < 25_000


def test_what_is_known_already_is_not_sent_again(stand: Stand) -> None:
    for path in ("glance", "history?span=1h"):
        first = data(stand, path)
        again = data(stand, path, **{"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert "content-length" not in again.headers
    page = stand.entry.get("/dashboard/app.js")
    again = stand.entry.get("/dashboard/app.js", headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304


def test_many_who_watch_cost_the_broker_what_one_does(stand: Stand) -> None:
    stand.broker.asked.clear()
    before = time.monotonic()
    for _ in range(30):
        assert data(stand, "glance").status_code == 200
    spans = (time.monotonic() - before) // 5 + 2  # answers are kept for five seconds
    for kind in ("MapQuery", "FiguresQuery"):
        assert stand.broker.asked.count(kind) <= spans


def test_batches_are_shown_without_their_folders(stand: Stand) -> None:
    glance = data(stand, "glance")
    assert [batch["batch"] for batch in glance.json()["batches"]] == ["reviews-7c1e", "titles-02ab"]
    assert "/secret" not in glance.text


def test_the_story_of_a_replica_tells_what_the_broker_saw(stand: Stand) -> None:
    found = data(stand, f"replica?pool=gpu&slot={TRIPPED}").json()
    assert (found["pool"], found["slot"], found["node"]) == ("gpu", TRIPPED, f"emulated-{TRIPPED // EACH:03}")
    assert found["health"] == "tripped"
    assert "as slow" in found["why"]
    assert found["state"]["incarnation"] == 2
    assert [moment["text"] for moment in found["moments"]][-1] == "tripped"
    for wrong in ("pool=gpu&slot=3072", "pool=x&slot=0", "pool=gpu&slot=-1", "pool=gpu", "pool=gpu&slot=1&node=x"):
        assert data(stand, f"replica?{wrong}").status_code in (400, 404), wrong


def test_the_history_is_drawn_with_no_more_points_than_a_chart_has_room_for(stand: Stand) -> None:
    found = data(stand, "history?span=1h")
    assert len(found.content) < 50_000
    fleet = found.json()["fleet"]
    assert 300 <= len(fleet["time"]) <= 361
    assert {len(column) for column in fleet.values()} == {len(fleet["time"])}
    assert fleet["tokens_rate"][0] > 1e5, "rates are per second"
    assert all(span.seconds / span.step <= 360 for span in SPANS.values())
    assert data(stand, "history?span=9y").status_code == 400


def test_the_story_of_a_request_comes_from_the_logs_and_nothing_else_does(stand: Stand) -> None:
    logs = stand.folder.path / "logs"
    line = "2026-01-31 12:00:0{},000 WARNING {} request={} {}"
    (logs / "gpu-5").mkdir()
    (logs / "entry-0.log").write_text(
        line.format(0, "it goes to gpu/5", "cmpl-0123", "client=mine-0001 agent=gpu/5")
        + "\na secret mine-0001 line\n"
    )
    (logs / "gpu-5" / "agent.log").write_text(line.format(1, "it ended", "cmpl-0123", "") + "\n")
    (logs / "gpu-6").mkdir()
    (logs / "gpu-6" / "agent.log").write_text(line.format(2, "never looked at", "cmpl-0123", "") + "\n")
    found = data(stand, "request?id=mine-0001").json()["lines"]
    assert [one["file"] for one in found] == ["entry-0.log", "gpu-5/agent.log"]
    assert data(stand, "request?id=nobody-knows").json()["lines"] == []
    for wrong in ("", "a", "WARNING%20it", "x" * 200):
        assert data(stand, f"request?id={wrong}").status_code == 400, wrong


def test_without_a_broker_the_last_that_is_known_stays(stand: Stand) -> None:
    """Last of this module: the broker does not come back."""
    known = data(stand, "glance").json()["at"]
    stand.broker.close()
    stand.entry.until(lambda: data(stand, "glance").json()["at"] == known)
    story = data(stand, "replica?pool=gpu&slot=99")
    assert (story.status_code, story.json()["error"]["code"]) == (503, "no_broker")
