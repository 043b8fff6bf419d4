"""A request under which replicas crash is found and ended; those that ran beside it get their whole answers."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.live import Live, processes_of, until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

TOML = """
name = "crashing"
[model]
path = "{model}"
dtype = "float32"
context = 2048
[[pool]]
name = "a"
replicas = 1
max_sequences = 4
[head]
entries = 1
[recovery]
backoff_seconds = 0.2
restarts = 20
[launcher]
kind = "local"
"""
WAIT = 90.0


@pytest.fixture
def crashing(tiny: Path) -> Iterator[Live]:
    with tempfile.TemporaryDirectory(prefix="exahpc-e2e-") as home:
        live = Live(Path(home), "crashing")
        live.up(TOML.format(model=tiny))
        try:
            yield live
        finally:
            live.run("down", "crashing", check=False)
        until("every process of the deployment is gone", lambda: not processes_of(live.folder.path), 20)


class Stream:
    """One streamed completion, read in a thread of its own."""

    def __init__(self, live: Live, prompt: str, tokens: int) -> None:
        self.text = ""
        self._live, self._prompt, self._tokens = live, prompt, tokens
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            chunks = self._live.client().completions.create(
                model="tiny", prompt=self._prompt, max_tokens=self._tokens, temperature=0, stream=True
            )
            for chunk in chunks:
                self.text += chunk.choices[0].text
        except openai.APIError as error:
            self.error = error


def crash(live: Live) -> None:
    """What a defect of a kernel does, here by hand: the replica ends with a segmentation fault."""
    (rank,) = [p for p in processes_of(live.folder.path) if "-m exahpc.replica" in p and "mpirun" not in p]
    os.kill(int(rank.split()[0]), signal.SIGSEGV)


def run_again(*streams: Stream) -> None:
    """Wait until they have clearly gone on from where they are: some text may still be on its way."""
    marks = [len(stream.text) + 30 for stream in streams]
    until(
        "they run again",
        lambda: all(s.error or len(s.text) > mark for s, mark in zip(streams, marks, strict=True)),
        WAIT,
        0.01,
    )
    assert not any(stream.error for stream in streams)


def test_a_request_that_crashes_replicas_is_quarantined_and_its_neighbours_are_answered(crashing: Live) -> None:
    live = crashing
    innocents = [Stream(live, f"innocent {n}", 1000) for n in range(2)]
    killer = Stream(live, "killer", 1900)
    for _ in range(2):
        run_again(*innocents, killer)
        crash(live)
    run_again(killer)  # alone now
    crash(live)
    for stream in (*innocents, killer):
        stream.thread.join(WAIT)
        assert not stream.thread.is_alive()
    error = killer.error
    assert isinstance(error, openai.APIError)
    assert error.code == "quarantined", error
    assert str(error).count("replica 0 ended by itself") == 3
    assert [s.error for s in innocents] == [None, None]
    assert [s.text for s in innocents] == [live.stream(f"innocent {n}", 1000) for n in range(2)]
