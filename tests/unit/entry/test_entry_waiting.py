"""What clients see of waiting, bounds and deadlines, under a real entry."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from exahpc.wire.folder import write_atomic
from tests.unit.entry.conftest import KEY, Own, Running
from tests.unit.entry.stubs import Fleet, text_of
from tests.unit.entry.test_entry_http import ASK, stream

pytestmark = pytest.mark.timeout(60)
OTHER = "sk-other-0123456789"


def full(fleet: Fleet, value: bool = True) -> None:
    for agent in fleet.agents.values():
        agent.full = value


def test_a_deadline_that_passes_in_line_is_a_504_that_the_official_client_does_not_repeat(
    entry: Running, fleet: Fleet
) -> None:
    full(fleet)
    with pytest.raises(openai.InternalServerError, match="x-exahpc-deadline") as caught:
        entry.client(retries=3).completions.create(
            model="tiny", prompt="x", extra_headers={"x-exahpc-deadline": "0.5"}
        )
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert entry.metric('exahpc_refused_total{reason="deadline_exceeded"}') == 1
    assert entry.metric("exahpc_requests_waiting") == 0


def test_a_deadline_that_passes_inside_a_stream_is_an_error_event_and_frees_the_replica(
    entry: Running, fleet: Fleet
) -> None:
    for agent in fleet.agents.values():
        agent.interval = 0.05
    headers = {**entry.headers, "X-Exahpc-Deadline": "0.6"}
    answer = entry.post("/v1/completions", json=ASK | {"stream": True, "max_tokens": 1000}, headers=headers)
    assert answer.status_code == 200
    assert "deadline_exceeded" in answer.text.splitlines()[-2]
    assert "[DONE]" not in answer.text
    entry.until(lambda: any(agent.cancels for agent in fleet.agents.values()))


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf", "1e9", ""])
def test_a_deadline_that_is_none_is_a_400_that_names_it(entry: Running, value: str) -> None:
    answer = entry.post("/v1/completions", json=ASK, headers={**entry.headers, "x-exahpc-deadline": value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-exahpc-deadline"


def test_a_deadline_in_time_changes_nothing(entry: Running) -> None:
    made = entry.post("/v1/completions", json=ASK, headers={**entry.headers, "x-exahpc-deadline": "30"})
    assert made.json()["choices"][0]["text"] == text_of(0, 20)


@pytest.mark.parametrize("own", [{"limits": "max_waiting = 20\nmax_waiting_per_key = 2"}], indirect=True)
def test_one_key_cannot_fill_the_line_for_another(own: Own) -> None:
    entry, fleet = own.entry, own.fleet
    write_atomic(own.folder.path / "secrets" / "api_keys", f"me:{KEY}\nother:{OTHER}\n".encode())
    entry.until(lambda: entry.get("/v1/models", headers={"Authorization": f"Bearer {OTHER}"}).status_code == 200)
    for agent in fleet.agents.values():
        agent.capacity, agent.interval = 1, 0.1
    fleet.publish()
    with ThreadPoolExecutor(5) as pool:
        running = [pool.submit(stream, entry, 1000) for _ in range(2)]
        entry.until(lambda: all(agent.running for agent in fleet.agents.values()))
        waiting = [pool.submit(stream, entry) for _ in range(2)]
        entry.until(lambda: entry.metric("exahpc_requests_waiting") == 2)
        with pytest.raises(openai.RateLimitError, match="max_waiting_per_key") as caught:
            entry.client().completions.create(model="tiny", prompt="x")
        told = int(caught.value.response.headers["retry-after"])
        assert 1 <= told <= 60
        assert entry.metric("exahpc_retry_after_seconds") == told
        assert entry.metric('exahpc_refused_total{reason="rate_limit_exceeded"}') == 1
        other = entry.client().with_options(api_key=OTHER)
        waiting.append(
            pool.submit(lambda: other.completions.create(model="tiny", prompt="x", max_tokens=20).choices[0].text)
        )
        entry.until(lambda: entry.metric("exahpc_requests_waiting") == 3)
        for agent in fleet.agents.values():
            agent.interval = 0.0
        assert [w.result() for w in waiting] == [text_of(0, 20)] * 3
        assert [r.result() for r in running] == [text_of(0, 1000)] * 2


def test_flexible_requests_wait_for_the_others(entry: Running, fleet: Fleet) -> None:
    del fleet.agents[1]
    (agent,) = fleet.agents.values()
    agent.capacity, agent.interval = 1, 0.1
    fleet.publish()
    entry.ready(1)
    with ThreadPoolExecutor(8) as pool:
        pool.submit(stream, entry, 1000)
        entry.until(lambda: agent.running)
        for tier, waiting in (("flex", 3), ("default", 6)):
            for _ in range(3):
                pool.submit(stream, entry, 5, service_tier=tier)
            entry.until(lambda waiting=waiting: entry.metric("exahpc_requests_waiting") == waiting)
        assert entry.metric('exahpc_requests_in_line{priority="flex"}') == 3
        assert entry.metric('exahpc_requests_in_line{priority="online"}') == 3
        agent.interval = 0.0
    tiers = [json.loads(submit.body).get("service_tier") for submit in agent.submits]
    assert tiers == [None] + ["default"] * 3 + ["flex"] * 3


@pytest.mark.parametrize("own", [{"limits": "queue_seconds = 0.5\nstart_seconds = 60"}], indirect=True)
def test_requests_are_held_while_no_replica_is_up(own: Own) -> None:
    entry, fleet = own.entry, own.fleet
    gone = dict(fleet.agents)
    fleet.agents.clear()
    fleet.publish()
    entry.until(lambda: entry.get("/health").json()["ready"] == 0)
    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        waiting = pool.submit(stream, entry)
        entry.until(lambda: entry.metric("exahpc_requests_waiting") == 1)
        entry.until(lambda: time.monotonic() - begun > 2.0)
        entry.until(lambda: fleet.beats[-1].waiting == 1 and fleet.beats[-1].oldest > 0)
        assert fleet.beats[-1].outstanding >= 20
        fleet.agents.update(gone)
        fleet.publish()
        assert waiting.result() == text_of(0, 20)
