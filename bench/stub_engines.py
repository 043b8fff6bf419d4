"""Emulated engines for `bench/gateway.py`: they answer in no time with fixed text, so that only the gateway costs.

`agents`: a broker and agents behind exahpc's links. `http`: OpenAI servers for routers that speak HTTP to engines.
Both answer a plain request with 16 tokens at once, and a stream with one chunk every 20 ms, all streams of one
engine in the same tick, as a replica's steps yield them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

import msgspec
import uvloop

from exahpc.wire import link
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder, HeadRecord

MODEL = "emulated"
PLAIN_TOKENS = 16
INTERVAL = 0.02
_CHUNK = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"emulated",'
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}]}\n\n'
)
_DONE = b"data: [DONE]\n\n"
_PLAIN = json.dumps(
    {
        "id": "cmpl-0123456789abcdef",
        "object": "text_completion",
        "created": 1700000000,
        "model": MODEL,
        "choices": [{"index": 0, "text": " word" * PLAIN_TOKENS, "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 8, "completion_tokens": PLAIN_TOKENS, "total_tokens": 8 + PLAIN_TOKENS},
    }
).encode()


class _Body(msgspec.Struct):
    max_tokens: int = PLAIN_TOKENS
    stream: bool = False


_body = msgspec.json.Decoder(_Body).decode


class Ticker:
    """Calls `tick` every 20 ms without drift."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.time() + INTERVAL
        self._loop.call_at(self._next, self._run)

    def _run(self) -> None:
        self._next = max(self._next + INTERVAL, self._loop.time())
        self._loop.call_at(self._next, self._run)
        self.tick()

    def tick(self) -> None:
        raise NotImplementedError


class Agent(Ticker):
    """One emulated agent with one replica of great capacity."""

    def __init__(self, key: link.FleetKey, task: int) -> None:
        super().__init__()
        self._task = task
        self._streams: dict[str, list[object]] = {}  # request -> [peer, attempt, tokens so far, tokens in all]
        self._server = link.Server(link.context(), key, "127.0.0.1", m.EntryToAgent, self._on)

    def route(self) -> m.AgentRoute:
        return m.AgentRoute("a", self._task, 1, self._server.address, [m.Route(self._task, 1, 100_000)])

    def _on(self, peer: bytes, message: m.EntryToAgent) -> None:
        if isinstance(message, m.Submits):
            for submit in message.submits:
                self._on(peer, submit)
        elif isinstance(message, m.Cancel):
            self._streams.pop(message.request, None)
        elif message.stream:
            self._streams[message.request] = [peer, message.attempt, 0, _body(message.body).max_tokens]
        else:
            self._server.send(peer, m.Done(message.request, message.attempt, _PLAIN, 8, PLAIN_TOKENS))

    def tick(self) -> None:
        frames: dict[bytes, list[m.Frame]] = {}
        ended = []
        for request, state in self._streams.items():
            peer, attempt, count, most = state
            last = count + 1 == most
            frame = m.Frame(request, attempt, 0, count, [7], 5 * (count + 1), _CHUNK, last)
            frames.setdefault(peer, []).append(frame)
            state[2] = count + 1
            if last:
                ended.append((peer, request, attempt, most))
        for peer, due in frames.items():
            self._server.send(peer, m.Frames(due))
        for peer, request, attempt, most in ended:
            del self._streams[request]
            self._server.send(peer, m.Done(request, attempt, _DONE, 8, most))


async def agents(folder: Folder, count: int) -> None:
    """A broker that knows `count` agents and tells every entry."""
    key = folder.fleet_key()
    routes = [Agent(key, task).route() for task in range(count)]
    table = m.FleetTable(1, 1, routes)

    def hello(peer: bytes, message: m.ToBroker) -> None:
        if isinstance(message, m.EntryHello):
            server.send(peer, m.Welcome(1, 2.0))
            server.send(peer, table)

    server = link.Server(link.context(), key, "127.0.0.1", m.ToBroker, hello)
    folder.publish_head(HeadRecord(1, server.address, "localhost", 0))
    print("ready", flush=True)
    await asyncio.Event().wait()


class Http(asyncio.Protocol):
    """The least HTTP/1.1 server that a router needs: keep-alive, Content-Length bodies, chunked streams."""

    streams: dict[Http, int] = {}  # noqa: RUF012  one table an engine process

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport, self._data = transport, b""

    def connection_lost(self, exc: Exception | None) -> None:
        self.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while True:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._data[:end].lower()
            place = head.find(b"content-length:")
            size = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
            if len(self._data) < end + 4 + size:
                return
            body = self._data[end + 4 : end + 4 + size]
            self._data = self._data[end + 4 + size :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if not head.startswith(b"post"):
            self._whole(b'{"object":"list","data":[{"id":"emulated","object":"model","owned_by":"bench"}]}')
            return
        asked = _body(body)
        if not asked.stream:
            self._whole(_PLAIN)
            return
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        self.streams[self] = asked.max_tokens

    def _whole(self, data: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data)
        self._transport.write(head + data)

    def token(self, left: int) -> None:
        data = b"%x\r\n%b\r\n" % (len(_CHUNK), _CHUNK)
        if left == 1:
            data += b"%x\r\n%b\r\n0\r\n\r\n" % (len(_DONE), _DONE)
        self._transport.write(data)


class HttpTicker(Ticker):
    """One token for every running stream."""

    def tick(self) -> None:
        for protocol, left in list(Http.streams.items()):
            protocol.token(left)
            if left == 1:
                del Http.streams[protocol]
            else:
                Http.streams[protocol] = left - 1


async def http(count: int) -> None:
    """`count` engines in this process; prints their ports."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Http, "127.0.0.1", 0, backlog=1024) for _ in range(count)]
    HttpTicker()
    print("ready", *(s.sockets[0].getsockname()[1] for s in servers), flush=True)
    await asyncio.Event().wait()


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["agents", "http"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--count", type=int, default=2)
    asked = parser.parse_args(argv)
    link.require_descriptors(4096)
    uvloop.run(agents(Folder(asked.folder), asked.count) if asked.kind == "agents" else http(asked.count))


if __name__ == "__main__":
    main(sys.argv[1:])
