"""`python -m exahpc.lab.bench.worker`: one process of the load client.

Reads a `Job` (JSON, one line: the key is in no command line) and says "ready"; reads the moment to begin; asks;
and writes what it saw (`Seen`, MessagePack) to its standard output.
"""

from __future__ import annotations

import asyncio
import random
import signal
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from exahpc import output
from exahpc.lab.bench.events import Event, Lines, told
from exahpc.lab.bench.seen import SLICES, Answer, Job, Outcome, Seen
from exahpc.lab.bench.source import Source
from exahpc.lab.bench.wish import Load
from exahpc.telemetry.histogram import Histogram

_PAUSE = 0.25
"""Seconds after a refusal, for a client of the closed loop: the endpoint said that it is full."""
_FULL = (429, 503)
_LOOK = 0.02
"""Seconds between two looks at how late this process is."""
_RAMP = 0.5
"""Share of the ramp-up in which the clients of the closed loop begin, one after the other: else they would march
in step."""
_CONNECT, _SILENCE = 30.0, 600.0
"""Seconds to connect, and without a byte of an answer."""
_decode = msgspec.json.Decoder(Event).decode


class Worker:
    """One process's share of the load. begin: of counting, `ramp` seconds after the first request."""

    def __init__(self, job: Job, source: Source, start: float) -> None:
        self._job, self._wish, self._source, self._start = job, job.wish, source, start
        self._begin = start + job.wish.ramp
        self._stop = self._begin + job.wish.seconds
        self._answers: list[Answer] = []
        self._slices = [0] * SLICES
        self._gaps, self._lag = Histogram(), Histogram()
        self._path = f"{job.wish.target.url}/{'chat/' if job.wish.chat else ''}completions"

    async def run(self) -> Seen:
        target = self._wish.target
        trust = ssl.create_default_context(cafile=target.ca or None) if target.url.startswith("https") else True
        headers = {"Authorization": f"Bearer {self._job.key}", "Content-Type": "application/json"}
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=trust),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_SILENCE),
            read_bufsize=2**18,
            auto_decompress=False,
        ) as self._session:
            asking = asyncio.create_task(self._open() if self._wish.load.open else self._closed())
            await _until(self._begin)
            cpu, wanting = time.process_time(), _wanting()
            looking = asyncio.create_task(self._watch())
            await _until(self._stop)
            looking.cancel()
            cpu = time.process_time() - cpu
            after = _wanting()
            waited = None if wanting is None or after is None else after - wanting
            await asyncio.wait({asking}, timeout=self._wish.drain)
            asking.cancel()
            await asyncio.wait({asking})
            if not asking.cancelled():
                asking.result()
        return Seen(self._answers, self._slices, self._gaps.sketch(), self._lag.sketch(), cpu, waited)

    # --- when ---

    async def _open(self) -> None:
        """Requests come when they come, whatever becomes of earlier ones."""
        async with asyncio.TaskGroup() as group:
            for due in moments(self._wish.load, self._start, self._job.number, self._job.of, self._wish.seed):
                if due >= self._stop:
                    break
                await _until(due)
                group.create_task(self._ask(due))

    async def _closed(self) -> None:
        """Each client asks again when it has its answer."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._job.number, self._wish.load.concurrency, self._job.of):
                group.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        await _until(self._start + self._wish.ramp * _RAMP * number / self._wish.load.concurrency)
        while (now := time.monotonic()) < self._stop:
            if await self._ask(now) != "ok":
                await asyncio.sleep(_PAUSE)

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + _LOOK
            await _until(due)
            self._lag.seconds(time.monotonic() - due)

    # --- what ---

    async def _ask(self, due: float) -> Outcome:
        """One request, noted even when this is cancelled."""
        seen = _Watched()
        outcome: Outcome = "open"
        error = ""
        start = time.monotonic()
        try:
            async with self._session.post(self._path, data=self._source.body()) as answer:
                if answer.status != 200:
                    outcome = "refused" if answer.status in _FULL else "failed"
                    text = (await answer.content.read(2000)).decode(errors="replace")
                    error = f"HTTP {answer.status}: {told(text)}"
                elif self._wish.stream:
                    error = await self._stream(answer, seen)
                    outcome = "failed" if error else "ok"
                else:
                    event = _decode(await answer.read())
                    seen.last = time.monotonic()
                    seen.count(event)
                    self._piece(seen.last)
                    outcome = "ok"
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as broken:
            outcome, error = "failed", f"broke off: {broken or type(broken).__name__}"
        finally:
            self._answers.append(
                Answer(
                    due,
                    start,
                    seen.first,
                    seen.last,
                    time.monotonic(),
                    seen.pieces,
                    seen.tokens,
                    seen.prompt,
                    outcome,
                    error[:300],
                )
            )
        return outcome

    async def _stream(self, answer: aiohttp.ClientResponse, seen: _Watched) -> str:
        """Returns what went wrong, or ""."""
        lines = Lines()
        async for data in answer.content.iter_any():
            now = time.monotonic()
            for line in lines.feed(data):
                event = _decode(line)
                if event.error is not None:
                    return f"a stream ended with an error: {event.error}"
                seen.count(event)
                if not event.has_text:
                    continue
                seen.pieces += 1
                self._piece(now)
                if not seen.first:
                    seen.first = now
                elif self._begin <= now < self._stop:
                    self._gaps.seconds(now - seen.last)
                seen.last = now
        return "" if lines.over else "the stream ended before [DONE]"

    def _piece(self, now: float) -> None:
        if self._begin <= now < self._stop:
            self._slices[min(SLICES - 1, int(SLICES * (now - self._begin) / self._wish.seconds))] += 1


class _Watched:
    """What has been seen of one answer."""

    __slots__ = ("first", "last", "pieces", "prompt", "tokens")

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self.pieces = self.tokens = self.prompt = 0

    def count(self, event: Event) -> None:
        if event.usage is not None:
            self.tokens, self.prompt = event.usage.completion_tokens, event.usage.prompt_tokens


def moments(load: Load, start: float, number: int, of: int, seed: int) -> Iterator[float]:
    """When requests of process `number` of `of` are due, without end. Poisson processes add up to one."""
    if load.arrivals == "fixed":
        due = start + number / load.rate
        while True:
            yield due
            due += of / load.rate
    dice = random.Random(f"{seed} arrivals {number}")
    due = start
    while True:
        due += dice.expovariate(load.rate / of)
        yield due


async def _until(due: float) -> None:
    if (left := due - time.monotonic()) > 0:
        await asyncio.sleep(left)


def _wanting() -> float | None:
    """Seconds that this process has waited for a core (proc(5), schedstat); None where it is not told."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def main() -> None:
    output.whole()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the command, which ends this
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    source = Source(job.wish, job.number, job.of)
    print("ready", file=sys.stderr, flush=True)
    start = float(sys.stdin.buffer.readline())
    seen = uvloop.run(Worker(job, source, start).run())
    sys.stdout.buffer.write(msgspec.msgpack.encode(seen))


if __name__ == "__main__":
    main()
