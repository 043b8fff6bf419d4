"""A cheap HTTP load generator on raw uvloop sockets, the same for every gateway under test.

Plain: each connection sends its next request when the last answer is complete. Streams: each connection runs one
stream after the other. One JSON line on stdout: what was answered between the end of the warm-up and the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

import uvloop

_LAST_CHUNK = b"\r\n0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One keep-alive connection that counts complete answers and streamed chunks."""

    answers = tokens = errors = 0  # of all connections
    request = b""
    stream = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._wanted, self._tail, self._end = 0, b"", b""
        transport.write(self.request)

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
            Connection.answers += 1
            self._transport.write(self.request)

    def _streamed(self, data: bytes) -> None:
        self._end = (self._end + data)[-len(_LAST_CHUNK) :]  # it may come in pieces
        data = self._tail + data
        cut = data.rfind(b"\n") + 1
        whole, self._tail = data[:cut], data[cut:]
        Connection.tokens += whole.count(b'data: {"')
        Connection.errors += (
            whole.count(b'data: {"error"') + whole.count(b"HTTP/1.1 5") + whole.count(b"HTTP/1.1 4")
        )
        if self._end == _LAST_CHUNK:
            Connection.answers += 1
            self._tail = b""
            self._transport.write(self.request)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._transport.get_extra_info("ours"):
            Connection.errors += 1


async def run(port: int, connections: int, warm: float, seconds: float) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    for number in range(connections):
        await loop.create_connection(Connection, "127.0.0.1", port)
        if number % 50 == 49:
            await asyncio.sleep(0.02)
    await asyncio.sleep(warm)
    print("warm", flush=True)
    start, answers, tokens = loop.time(), Connection.answers, Connection.tokens
    await asyncio.sleep(seconds)
    return {
        "answers": Connection.answers - answers,
        "tokens": Connection.tokens - tokens,
        "errors": Connection.errors,
        "seconds": loop.time() - start,
    }


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=0, help="stream answers of so many tokens")
    asked = parser.parse_args(argv)
    key = sys.stdin.readline().strip()  # not in argv
    body: dict[str, object] = {"model": "emulated", "prompt": "Once upon a time there was", "max_tokens": 16}
    if asked.tokens:
        body |= {"max_tokens": asked.tokens, "stream": True}
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    Connection.request, Connection.stream = head.encode() + data, bool(asked.tokens)
    print(json.dumps(uvloop.run(run(asked.port, asked.connections, asked.warm, asked.seconds))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
