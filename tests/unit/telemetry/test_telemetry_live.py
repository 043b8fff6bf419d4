"""Telemetry through real processes: emulated agents, the broker, an entry, and its /metrics."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from exahpc.lab.emulated.label import LABEL
from exahpc.telemetry.logs import fields_of
from exahpc.telemetry.story import story
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder, write_atomic
from exahpc.wire.link import ask
from tests.live import until
from tests.unit.telemetry.test_telemetry_prometheus import samples

TOML = f"""
name = "d"
[model]
path = "/nowhere"
name = "{LABEL}"
[[pool]]
name = "a"
replicas = 6
replicas_per_task = 3
[head]
entries = 1
[recovery]
beat_seconds = 0.2
[alerts]
utilization = 0.5
hold_seconds = 0
[launcher]
kind = "local"
"""
KEYS = "me:sk-mine\nmetrics-prom:sk-scraper\n"


class Stand:
    def __init__(self, home: Path) -> None:
        self.folder = Folder.create(home / "d", TOML)
        write_atomic(self.folder.path / "secrets" / "api_keys", KEYS.encode())
        self.log = home / "log"
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, module: str, *arguments: str) -> None:
        with self.log.open("ab") as log:
            argv = [sys.executable, "-m", module, "--folder", str(self.folder.path), *arguments]
            self.children[module] = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def figures(self, query: m.FiguresQuery) -> m.FleetFigures:
        head = self.folder.head()
        assert head is not None
        found = ask(self.folder.fleet_key(), head.address, query, m.BrokerToClient, 30.0)
        assert isinstance(found, m.FleetFigures)
        return found

    def get(self, path: str, key: str = "sk-scraper") -> httpx.Response:
        endpoint = self.folder.endpoint()
        assert endpoint is not None
        url = f"http://127.0.0.1:{endpoint.port}{path}"
        return httpx.get(url, headers={"authorization": f"Bearer {key}"}, timeout=30.0)

    def post(self, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        endpoint = self.folder.endpoint()
        assert endpoint is not None
        url = f"http://127.0.0.1:{endpoint.port}/v1/completions"
        return httpx.post(url, json=body, headers={"authorization": "Bearer sk-mine", **headers}, timeout=60.0)


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    found = Stand(tmp_path_factory.mktemp("telemetry"))
    try:
        found.start("exahpc.broker")
        until("the broker", found.folder.head)
        found.start("exahpc.entry", "--index", "0")
        found.start(
            "exahpc.lab.emulated.fleet", "--pool", "a", "--count", "2", "--busy", "--load-seconds", "0",
            "--latency", json.dumps({"base_seconds": 0.01}),
        )  # fmt: skip
        until("the entry", found.folder.endpoint)
        until("figures with rollups", lambda: _measured(found), 90.0)
        yield found
    finally:
        for child in found.children.values():
            child.kill()
            child.wait()


def _measured(stand: Stand) -> Any:
    row = stand.figures(m.FiguresQuery()).rows[0]
    return row.ready == 6 and row.tokens and "ttft" in row.recent


def test_the_fleets_figures_reach_whoever_scrapes_an_entry(stand: Stand) -> None:
    plain = samples(stand.get("/metrics").content)
    assert plain["exahpc_fleet_replicas_ready", ()] == 6
    assert plain["exahpc_pool_ttft_seconds_count", (("pool", "a"),)] > 0
    assert ("exahpc_requests_running", (("entry", "0"),)) in plain, "its own counts stay"
    assert not any(name.startswith(("exahpc_replica_", "exahpc_node_")) for name, _ in plain)
    detail = samples(stand.get(f"/metrics?detail=replica&node={LABEL}-1").content)
    assert {labels for name, labels in detail if name == "exahpc_replica_token_rate"} == {
        (("replica", f"a/{slot}"),) for slot in (3, 4, 5)
    }


def test_a_dashboard_sees_the_fleet_and_the_story_of_a_replica(stand: Stand) -> None:
    glance = stand.get("/dashboard/data/glance", "sk-mine").json()
    assert [task[1] for task in glance["layout"]["tasks"]] == [f"{LABEL}-0", f"{LABEL}-1"]
    assert len(base64.b64decode(glance["cells"])) == 6 * 4
    assert glance["rows"][0]["ready"] == 6
    story = stand.get("/dashboard/data/replica?pool=a&slot=4", "sk-mine").json()
    assert (story["node"], story["state"]["phase"], story["health"]) == (f"{LABEL}-1", "ready", "healthy")
    assert story["moments"][0]["text"].startswith(("agent 1 is up", "ready", "loading"))
    head = stand.folder.head()
    assert head is not None
    refused = ask(stand.folder.fleet_key(), head.address, m.ReplicaQuery("a", 6), m.BrokerToClient, 30.0)
    assert isinstance(refused, m.Refused)


def test_a_scrapers_key_opens_metrics_and_nothing_else(stand: Stand) -> None:
    assert stand.get("/v1/models").status_code == 403
    assert stand.get("/v1/models", "sk-mine").status_code == 200
    assert stand.get("/metrics", "sk-mine").status_code == 200
    assert stand.get("/metrics", "sk-other").status_code == 401
    assert stand.get("/metrics?detail=replica").status_code == 400


def test_a_request_is_logged_when_its_client_asks_and_only_then(stand: Stand) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    for flag in ("00", "01"):
        headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-{flag}", "x-request-id": f"mine-{flag}"}
        found = stand.post({"model": LABEL, "prompt": "hello", "max_tokens": 3}, headers)
        assert found.status_code == 200, found.text
        lines = [line for _, line in story([stand.log], found.headers["x-request-id"])]
        told = [word for word in ("at most", "it goes to a/", "done in") if any(word in line for line in lines)]
        assert len(told) == (3 if flag == "01" else 0), lines
        assert all(fields_of(line)["client"] == "mine-01" for line in lines)
    assert [line for _, line in story([stand.log], trace)] == lines


def test_an_alert_stands_in_status_and_figures_and_is_remembered(stand: Stand) -> None:
    until("the alert", lambda: any(a.state == "firing" for a in stand.figures(m.FiguresQuery()).alerts))
    head = stand.folder.head()
    assert head is not None
    status = ask(stand.folder.fleet_key(), head.address, m.StatusQuery(), m.BrokerToClient, 30.0)
    assert any(note.startswith("alert utilization: accelerators are 90 % busy") for note in status.notes)
    assert json.loads((stand.folder.path / "alerts.json").read_bytes()) == ["utilization"]


def test_metrics_outlive_the_broker_as_last_known(stand: Stand) -> None:
    before = samples(stand.get("/metrics").content)
    stand.children["exahpc.broker"].kill()
    stand.children["exahpc.broker"].wait()
    after = until("a page without a broker", lambda: _page(stand), 60.0)
    assert after["exahpc_fleet_replicas_ready", ()] == 6
    assert after["exahpc_figures_time_seconds", ()] >= before["exahpc_figures_time_seconds", ()]


def _page(stand: Stand) -> Any:
    found = stand.get("/metrics")
    return samples(found.content) if found.status_code == 200 else None
