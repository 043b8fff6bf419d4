"""Agents, replicas, brokers and clients that die, hang or are full, under a real entry."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from exahpc.wire import local
from exahpc.wire import messages as m
from exahpc.wire.folder import door
from tests.unit.entry.conftest import KEY, Own, Running
from tests.unit.entry.stubs import Fleet, StubAgent, text_of
from tests.unit.entry.test_entry_http import ASK, stream

pytestmark = pytest.mark.timeout(60)


def port_of(entry: Running) -> int:
    return int(entry.base.rsplit(":", 1)[1])


def raw(entry: Running, **body: object) -> socket.socket:
    """A connection over which one request was sent."""
    data = json.dumps(ASK | body).encode()
    sock = socket.create_connection(("127.0.0.1", port_of(entry)), timeout=20)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock


def busiest(fleet: Fleet) -> StubAgent:
    return max(fleet.agents.values(), key=lambda agent: len(agent.submits))


@pytest.mark.parametrize("streams", [True, False])
def test_an_agent_that_dies_under_a_request_costs_its_client_nothing(
    entry: Running, fleet: Fleet, streams: bool
) -> None:
    for agent in fleet.agents.values():
        agent.die_at = {1: 10}
    if streams:
        text = stream(entry, 40)
    else:
        text = entry.client().completions.create(model="tiny", prompt="x", max_tokens=40).choices[0].text
    assert text == text_of(0, 40)
    first, again = sorted((s for a in fleet.agents.values() for s in a.submits), key=lambda s: s.attempt)
    assert (first.attempt, again.attempt) == (1, 2)
    assert first.slot != again.slot
    (resume,) = again.resume or [m.Resume(0, [], 0)]  # frames that did not leave the agent are made anew
    assert resume.ids == list(range(len(resume.ids)))
    assert resume.sent == len(text_of(0, len(resume.ids)))
    assert again.first is not (streams and bool(resume.ids))
    assert again.seed == first.seed
    assert entry.metric("exahpc_resent_total") == 1


def test_an_agent_behind_whose_door_nobody_is_is_met_at_its_address(entry: Running, fleet: Fleet) -> None:
    for old in fleet.agents.values():
        fleet.call(old.close)
    fleet.agents.clear()
    left = door(fleet.folder.path, "a", 2, 1)
    local.listening(left).close()
    fleet.agent(2)
    fleet.publish()
    assert stream(entry, 4) == text_of(0, 4)
    left.unlink()


def test_an_agent_whose_door_was_removed_is_met_at_its_address_once_the_link_is_lost(
    entry: Running, fleet: Fleet
) -> None:
    near = fleet.agents[1]
    fleet.call(fleet.agents.pop(0).close)
    fleet.publish()
    assert stream(entry, 4) == text_of(0, 4)
    fleet.call(near.server.close_door)
    assert stream(entry, 4) == text_of(0, 4)


def test_choices_resume_each_where_it_was(entry: Running, fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.fail_at = {1: 3}
    chunks = entry.client().completions.create(model="tiny", prompt="x", max_tokens=6, n=3, stream=True)
    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [text_of(0, 6)] * 3


def test_a_stream_goes_on_across_as_many_deaths_as_attempts_allow(entry: Running, fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.fail_at = {1: 4, 2: 8, 3: 12}
    assert stream(entry, 16) == text_of(0, 16)
    assert sum(len(a.submits) for a in fleet.agents.values()) == 4


@pytest.mark.case("B28")
def test_a_request_that_always_dies_ends_with_an_error_event_and_without_done(
    entry: Running, fleet: Fleet
) -> None:
    for agent in fleet.agents.values():
        agent.fail_at = dict.fromkeys(range(1, 9), 3)
    answer = entry.post("/v1/completions", json=ASK | {"stream": True})
    assert "[DONE]" not in answer.text
    assert "interrupted 5 times" in answer.text.splitlines()[-2]
    assert sum(len(a.submits) for a in fleet.agents.values()) == 5
    with pytest.raises(openai.APIError, match="interrupted 5 times"):
        stream(entry)


def test_a_request_that_kills_replicas_runs_alone_then_is_quarantined_and_clients_do_not_repeat_it(
    entry: Running, fleet: Fleet
) -> None:
    for agent in fleet.agents.values():
        agent.fail_at, agent.own_exit = {1: 0, 2: 1, 3: 2}, True
    with pytest.raises(openai.InternalServerError, match=r"the replica died.*the replica died") as caught:
        entry.client(retries=2).completions.create(model="tiny", prompt="poison")
    assert (caught.value.status_code, caught.value.code) == (500, "quarantined")
    submits = sorted((s for a in fleet.agents.values() for s in a.submits), key=lambda s: s.attempt)
    assert [s.alone for s in submits] == [False, False, True]
    assert entry.metric("exahpc_suspects_total") == entry.metric("exahpc_quarantined_total") == 1


def test_what_was_quarantined_runs_alone_at_once_when_the_same_key_sends_it_again(
    entry: Running, fleet: Fleet
) -> None:
    for agent in fleet.agents.values():
        agent.fail_at, agent.own_exit = {1: 0, 2: 0, 3: 0}, True
    for attempts in (3, 1):
        for agent in fleet.agents.values():
            agent.submits.clear()
        with pytest.raises(openai.InternalServerError, match="quarantined"):
            entry.client().completions.create(model="tiny", prompt="again")
        assert sum(len(a.submits) for a in fleet.agents.values()) == attempts
    for agent in fleet.agents.values():
        agent.fail_at = {}
    for alone in (True, False):  # who comes to an end is no suspect any more
        entry.client().completions.create(model="tiny", prompt="again")
        last = max((s for a in fleet.agents.values() for s in a.submits), key=lambda s: s.request)
        assert last.alone == alone


@pytest.mark.case("B29")
def test_an_error_inside_a_stream_closes_the_connection(entry: Running, fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.fail_at = dict.fromkeys(range(1, 9), 3)
    with raw(entry, stream=True) as sock:
        whole = sock.makefile("rb").read()  # returns only when the server closes
    assert b"[DONE]" not in whole
    assert b'data: {"error"' in whole


def test_a_lost_frame_is_never_papered_over(entry: Running, fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.skip_index = True
    assert "4 5" not in entry.post("/v1/completions", json=ASK | {"stream": True}).text


def test_a_full_replica_is_asked_again_only_after_the_others(entry: Running, fleet: Fleet) -> None:
    fleet.agents[0].full = True
    for _ in range(6):
        assert stream(entry) == text_of(0, 20)
    assert len(fleet.agents[1].submits) == 6
    assert entry.metric("exahpc_resent_total") == 0


@pytest.mark.parametrize("own", [{"limits": "queue_seconds = 1.0"}], indirect=True)
def test_who_waits_in_vain_gets_a_503_in_time(own: Own) -> None:
    entry, fleet = own.entry, own.fleet
    for agent in fleet.agents.values():
        agent.full = True
    with pytest.raises(openai.InternalServerError, match="queue_seconds") as caught:
        entry.client().completions.create(model="tiny", prompt="x")
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"]


def test_who_waits_is_served_when_room_comes_back(entry: Running, fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.full = True
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(stream, entry) for _ in range(4)]
        entry.until(lambda: entry.metric("exahpc_requests_waiting") == 4)
        for agent in fleet.agents.values():
            agent.full = False
        assert [w.result() for w in waiting] == [text_of(0, 20)] * 4


@pytest.mark.parametrize("own", [{"limits": "max_waiting = 2"}], indirect=True)
def test_beyond_max_waiting_a_request_gets_429_with_retry_after(own: Own) -> None:
    entry, fleet = own.entry, own.fleet
    for agent in fleet.agents.values():
        agent.capacity, agent.interval = 1, 1.0
    fleet.publish()
    with ThreadPoolExecutor(4) as pool:
        taken = [pool.submit(stream, entry) for _ in range(4)]
        entry.until(lambda: entry.metric("exahpc_requests_waiting") == 2)
        with pytest.raises(openai.RateLimitError) as caught:
            entry.client().completions.create(model="tiny", prompt="x")
        assert int(caught.value.response.headers["retry-after"]) > 0
        for agent in fleet.agents.values():
            agent.interval = 0.0
        assert [t.result() for t in taken] == [text_of(0, 20)] * 4


@pytest.mark.case("B30")
@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_is_cancelled_at_the_agent(entry: Running, fleet: Fleet, streams: bool) -> None:
    for agent in fleet.agents.values():
        agent.interval = 0.05
    sock = raw(entry, stream=streams, max_tokens=2000)
    entry.until(lambda: any(a.running for a in fleet.agents.values()))
    if streams:
        sock.recv(100)
    sock.close()
    entry.until(lambda: any(a.cancels for a in fleet.agents.values()), 3)
    assert entry.metric('exahpc_requests_total{ending="cancelled"}') == 1
    assert entry.metric("exahpc_requests_running") == 0


def test_a_client_that_leaves_the_line_is_forgotten(entry: Running, fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.full = True
    sock = raw(entry)
    entry.until(lambda: entry.metric("exahpc_requests_waiting") == 1)
    sock.close()
    entry.until(lambda: entry.metric("exahpc_requests_waiting") == 0)


@pytest.mark.parametrize("own", [{"limits": "stream_buffer_bytes = 65536"}], indirect=True)
def test_a_client_that_does_not_read_is_cancelled_and_others_go_on(own: Own) -> None:
    entry, fleet = own.entry, own.fleet
    for agent in fleet.agents.values():
        agent.interval = 0.0
    sock = raw(entry, stream=True, max_tokens=1000, wide=100_000)
    entry.until(lambda: any(a.cancels for a in fleet.agents.values()))
    assert stream(entry) == text_of(0, 20)
    entry.until(lambda: b"does not read" in entry.log.read_bytes())
    whole = sock.makefile("rb").read()
    assert b"slow_reader" in whole[-300:]
    assert b"[DONE]" not in whole


@pytest.mark.parametrize("own", [{"recovery": "stall_seconds = 1.0"}], indirect=True)
def test_a_silent_agent_is_left_and_delays_nobody_else(own: Own) -> None:
    entry, fleet = own.entry, own.fleet
    fleet.agents[0].mute = True
    with ThreadPoolExecutor(20) as pool:
        start = time.monotonic()
        done = [pool.submit(stream, entry) for _ in range(20)]
        assert all(d.result(40) == text_of(0, 20) for d in done)
    assert time.monotonic() - start < 30
    assert fleet.agents[0].cancels


def test_tables_of_an_older_epoch_are_ignored(entry: Running, fleet: Fleet) -> None:
    fleet.send(m.FleetTable(0, 99, []))
    fleet.send(m.FleetTable(fleet.epoch, fleet.version, []))
    assert stream(entry) == text_of(0, 20)
    assert entry.get("/health").json()["ready"] == 2


def test_a_dead_broker_changes_nothing_and_a_new_one_is_found(own: Own) -> None:
    entry, fleet = own.entry, own.fleet
    fleet.stop_broker()
    assert stream(entry) == text_of(0, 20)
    fleet.start_broker()
    entry.until(lambda: len(fleet.hellos) == 2)
    fleet.send(m.FleetTable(fleet.epoch, 1, []))  # it has not heard of the agents yet
    assert stream(entry) == text_of(0, 20)
    assert entry.get("/health").json()["ready"] == 2


def test_a_draining_replica_finishes_what_it_has_and_gets_nothing_new(entry: Running, fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.interval = 0.03
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stream, entry, 60)
        entry.until(lambda: any(a.running for a in fleet.agents.values()))
        draining = busiest(fleet)
        del fleet.agents[draining.task]
        fleet.publish()
        entry.until(lambda: entry.get("/health").json()["ready"] == 1)
        (stays,) = fleet.agents.values()
        stays.interval = 0.0
        for _ in range(3):
            assert stream(entry, 5) == text_of(0, 5)
        assert running.result() == text_of(0, 60)
    assert len(draining.submits) == 1
    assert not draining.cancels
    fleet.call(draining.close)


def test_a_reborn_replica_loses_what_ran_there(entry: Running, fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.interval = 0.02
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stream, entry, 50)
        entry.until(lambda: any(a.running for a in fleet.agents.values()))
        reborn = busiest(fleet)
        time.sleep(0.2)
        reborn.replica = 2  # the old incarnation's task goes on sending: those frames are stale
        fleet.publish()
        assert running.result() == text_of(0, 50)
    assert entry.metric("exahpc_resent_total") == 1
    assert entry.metric("exahpc_stale_total") > 0


def test_a_restarted_entry_keeps_the_port_and_siblings_share_it(own: Own) -> None:
    entry, fleet, folder = own.entry, own.fleet, own.folder
    endpoint = folder.endpoint()
    sibling = Running(folder, 1)
    try:
        sibling.start()
        entry.until(lambda: len(fleet.hellos) == 2)
        assert folder.endpoint() == endpoint
        os.kill(entry.pid, signal.SIGKILL)
        entry.stop()
        sibling.ready(2)
        assert stream(sibling) == text_of(0, 20)
        entry.start().ready(2)
        assert folder.endpoint() == endpoint
    finally:
        sibling.stop()
    assert stream(entry) == text_of(0, 20)


def test_many_streams_at_once_under_few_descriptors(entry: Running, fleet: Fleet) -> None:
    """Case B38 in small: the capacity is 128, the rest waits, nobody fails."""
    socks = [raw(entry, stream=True, max_tokens=8) for _ in range(600)]
    try:
        for sock in socks:
            got = b""
            while b"[DONE]" not in got:
                data = sock.recv(65536)
                assert data, got
                got += data
    finally:
        for sock in socks:
            sock.close()
    assert entry.metric('exahpc_requests_total{ending="done"}') == 600
