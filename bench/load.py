"""A cheap HTTP load generator on raw uvloop sockets, the same for every gateway under test.

Each connection sends its next request when the last answer is complete, or (--rate) requests come when they come,
each on a connection that is free or new. With --tokens, answers are streams. One JSON line on stdout: what was
answered between the end of the warm-up and the end, and how long it took, in milliseconds: `first` from request to
first byte of the answer's body, `whole` to its end, `between` two reads of one stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import resource
import sys
import time
from array import array
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import uvloop

_DOCS = Path(__file__).resolve().parent.parent / "docs" / "explanation"
_PORTS = 4000  # connections from one address of this machine
_DIFFERENT = 400  # prompts: more of them than the gateway remembers
WORDS = re.findall("[A-Za-z]+", " ".join(path.read_text() for path in sorted(_DOCS.glob("*.md"))))
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One keep-alive connection that counts complete answers and streamed chunks."""

    answers = errors = open = sent = 0  # of all connections
    tokens = 0.0
    token_bytes = 1  # of text: an event may carry several tokens
    requests: Sequence[bytes] = (b"",)  # in turn
    stream = once = counting = False
    idle: deque[Connection] | None = None
    """With a rate: connections that wait for a request."""
    first, whole, between = array("d"), array("d"), array("d")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._wanted, self._tail, self._end = 0, b"", b""
        Connection.open += 1
        self.ask()

    def ask(self) -> None:
        self._asked, self._read = time.perf_counter(), 0.0
        self._transport.write(self.requests[Connection.sent % len(self.requests)])
        Connection.sent += 1

    def data_received(self, data: bytes) -> None:
        if self.stream:
            self._streamed(data)
        else:
            self._plain(data)

    def _plain(self, data: bytes) -> None:
        if self._wanted == 0:
            data = self._tail + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._tail = data
                return
            head = data[:end].lower()
            if b" 200 " not in head[:20]:
                Connection.errors += 1
            self._wanted = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]) + end + 4
            self._tail = b""
        self._wanted -= len(data)
        if self._wanted <= 0:
            self._wanted = 0
            self._answered()

    def _streamed(self, data: bytes) -> None:
        now = time.perf_counter()
        self._end = (self._end + data)[-len(_LAST_CHUNK) :]  # it may come in pieces
        data = self._tail + data
        cut = data.rfind(b"\n") + 1
        whole, self._tail = data[:cut], data[cut:]
        count = 0
        for piece in whole.split(b'"text":"')[1:]:
            count += piece.index(b'"')
        Connection.tokens += count / self.token_bytes
        if b'data: {"error"' in whole or whole.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")):
            Connection.errors += 1
        if count:
            if self.counting:
                if self._read:
                    Connection.between.append(now - self._read)
                else:
                    Connection.first.append(now - self._asked)
            self._read = now
        if self._end == _LAST_CHUNK:
            self._tail = b""
            self._answered()

    def _answered(self) -> None:
        Connection.answers += 1
        if self.counting:
            Connection.whole.append(time.perf_counter() - self._asked)
        if self.once:
            return
        if self.idle is None:
            self.ask()
        else:
            self.idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        Connection.open -= 1
        if not self.once or not self._transport.is_closing():
            Connection.errors += 1


async def connect(port: int, connections: int, pace: float) -> None:
    """Open them all, so many a second."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    for number in range(connections):
        # the kernel looks long for a free port when an address has used half of them
        source = f"127.0.0.{2 + number // _PORTS}", 0
        await loop.create_connection(Connection, "127.0.0.1", port, local_addr=source)
        if number % 20 == 19:
            await asyncio.sleep(max(0.0, start + number / pace - loop.time()))


async def arrive(port: int, rate: float, poisson: bool) -> None:
    """Requests at `rate` a second for ever, evenly or by chance."""
    loop = asyncio.get_running_loop()
    Connection.idle = idle = deque[Connection]()
    due = loop.time()
    while True:
        due += random.expovariate(rate) if poisson else 1 / rate
        await asyncio.sleep(max(0.0, due - loop.time()))
        if idle:
            idle.popleft().ask()
        else:
            await loop.create_connection(Connection, "127.0.0.1", port)


def quantiles(times: array[float]) -> dict[str, float]:
    """Count, P50, P99 and largest, in milliseconds."""
    ordered = sorted(times)
    if not ordered:
        return {"count": 0}
    last = len(ordered) - 1
    p50, p99, most = (round(1000 * ordered[round(share * last)], 3) for share in (0.5, 0.99, 1.0))
    return {"count": len(ordered), "p50": p50, "p99": p99, "max": most}


async def run(asked: argparse.Namespace) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    if asked.rate:
        coming = loop.create_task(arrive(asked.port, asked.rate, asked.poisson))
    else:
        await connect(asked.port, asked.connections, asked.pace)
    await asyncio.sleep(asked.warm)
    print("warm", flush=True)
    Connection.counting = True
    start, answers, tokens = loop.time(), Connection.answers, Connection.tokens
    await asyncio.sleep(asked.seconds)
    seconds = loop.time() - start
    Connection.counting = False
    if asked.rate:
        coming.cancel()
    return {
        "answers": Connection.answers - answers,
        "tokens": round(Connection.tokens - tokens),
        "errors": Connection.errors,
        "open": Connection.open,
        "seconds": seconds,
        "first": quantiles(Connection.first),
        "whole": quantiles(Connection.whole),
        "between": quantiles(Connection.between),
    }


def different(size: int, draw: random.Random) -> str:
    """So many characters of English words, in an order that does not come again."""
    words = " ".join(draw.choices(WORDS, k=size // 3))
    return words[:size]


def request(body: dict[str, object], key: str) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second, instead of connections")
    parser.add_argument("--poisson", action="store_true", help="with --rate: at random")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument("--pace", type=float, default=2000.0, help="new connections a second")
    parser.add_argument("--tokens", type=int, default=0, help="stream answers of so many tokens")
    parser.add_argument("--token-bytes", type=int, default=1, help="text of one token in the answers")
    parser.add_argument("--once", action="store_true", help="one request a connection")
    parser.add_argument("--prompt", type=int, default=26, help="characters of the prompt")
    parser.add_argument("--different", action="store_true", help="hundreds of prompts of many words, in turn")
    parser.add_argument("--ids", action="store_true", help="the prompt as token ids, one for 4 characters")
    asked = parser.parse_args(argv)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    key = sys.stdin.readline().strip()  # not in argv
    texts: list[object] = [("Once upon a time there was " * (1 + asked.prompt // 26))[: asked.prompt]]
    if asked.ids:
        texts = [[1000 + number % 9000 for number in range(asked.prompt // 4)]]
    elif asked.different:
        texts = [different(asked.prompt, random.Random(number)) for number in range(_DIFFERENT)]
    body: dict[str, object] = {"model": "emulated", "max_tokens": 16}
    if asked.tokens:
        body |= {"max_tokens": asked.tokens, "stream": True}
    Connection.requests = [request({**body, "prompt": text}, key) for text in texts]
    Connection.stream, Connection.once = bool(asked.tokens), asked.once
    Connection.token_bytes = asked.token_bytes
    print(json.dumps(uvloop.run(run(asked))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
