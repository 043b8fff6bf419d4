"""kill -9 of one thing at a time under load: no request fails, and the thing comes back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live import Live, Load, processes_of, until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]


def pids(live: Live, *words: str) -> list[int]:
    return [int(p.split()[0]) for p in processes_of(live.folder.path) if all(w in p for w in words)]


def under_load(live: Live, fault: Callable[[], None], back: Callable[[], object], seconds: float = 150) -> None:
    """Texts of streams that a fault interrupts equal those of undisturbed ones."""
    load = Load(live, streams=4, tokens=500)
    time.sleep(1.5)
    fault()
    time.sleep(4)
    load.stop()  # before the wait: on two cores the load would starve whatever starts
    until("what was killed is back", back, seconds)
    assert load.texts
    for prompt in {p for p, _ in load.texts}:
        texts = {t for p, t in load.texts if p == prompt}
        assert texts == {live.stream(prompt, 500)}


def test_a_killed_rank_costs_no_request_and_its_step_comes_back(local: Live) -> None:
    before = local.incarnation("b", 0, 0)
    assert before
    ranks = pids(local, "exahpc.replica", "--pool b")
    under_load(
        local,
        lambda: os.kill(ranks[-1], signal.SIGKILL),
        lambda: local.incarnation("b", 0, 0) > before,
    )


@pytest.mark.case("B28")
def test_a_stream_whose_replica_is_killed_at_its_fiftieth_token_ends_like_an_undisturbed_one(local: Live) -> None:
    def processor_time(pid: int) -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    undisturbed = local.stream("cut in the middle", 500)
    ranks = pids(local, "-m exahpc.replica")
    before = {pid: processor_time(pid) for pid in ranks}
    text = ""
    chunks = local.client().completions.create(
        model="tiny", prompt="cut in the middle", max_tokens=500, temperature=0, stream=True
    )
    victim = 0
    for chunk in chunks:
        text += chunk.choices[0].text
        if len(text) >= 50 and not victim:
            victim = max(ranks, key=lambda pid: processor_time(pid) - before[pid])  # the others are idle
            os.kill(victim, signal.SIGKILL)
    assert victim
    assert (text, chunk.choices[0].finish_reason) == (undisturbed, "length")
    until("what was killed is back", lambda: victim not in pids(local, "") and local.ready() == 3, 150)


def test_a_killed_agent_adopts_its_living_steps(local: Live) -> None:
    before = {slot: local.incarnation("a", 0, slot) for slot in (0, 1)}
    replicas = pids(local, "exahpc.replica", "--pool a")
    (agent,) = pids(local, "-m exahpc.agent", "--pool a")
    under_load(
        local,
        lambda: os.kill(agent, signal.SIGKILL),
        lambda: pids(local, "-m exahpc.agent", "--pool a") not in ([], [agent]) and local.ready() == 3,
    )
    assert {slot: local.incarnation("a", 0, slot) for slot in (0, 1)} == before
    assert pids(local, "exahpc.replica", "--pool a") == replicas


def test_a_killed_broker_is_back_and_streams_never_notice(local: Live) -> None:
    record = local.folder.head()
    assert record is not None

    def killed() -> None:
        os.kill(record.pid, signal.SIGKILL)
        start = time.monotonic()
        until("a broker of a higher epoch answers", lambda: (s := local.status()) and s.epoch > record.epoch, 10)
        print(f"broker back after {time.monotonic() - start:.2f} s")

    under_load(local, killed, lambda: local.ready() == 3)


def test_a_killed_entry_comes_back_on_the_same_port(local: Live) -> None:
    url = local.folder.endpoint()
    victims = pids(local, "-m exahpc.entry", "--index 0")
    os.kill(victims[0], signal.SIGKILL)
    until("the entry is back", lambda: pids(local, "-m exahpc.entry", "--index 0") not in ([], victims), 20)
    assert local.folder.endpoint() == url
    for _ in range(10):
        assert len(local.stream("again", 5)) == 5
