"""EMULATED engines behind HTTP, for the routers of `bench/gateway.py`: fixed text, so that only the router costs.

They answer a plain request with 16 tokens at once, and a stream with one chunk every 20 ms, all streams of one
engine in the same tick, as an engine's steps yield them.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import msgspec
import uvloop

from exahpc.wire import link

MODEL = "emulated"
PLAIN_TOKENS = 16
INTERVAL = 0.02
WORD = " word"
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
        "choices": [{"index": 0, "text": WORD * PLAIN_TOKENS, "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 8, "completion_tokens": PLAIN_TOKENS, "total_tokens": 8 + PLAIN_TOKENS},
    }
).encode()


class _Body(msgspec.Struct):
    max_tokens: int = PLAIN_TOKENS
    stream: bool = False


_body = msgspec.json.Decoder(_Body).decode


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
            if b"transfer-encoding: chunked" in head:
                found = _unchunked(self._data, end + 4)
                if found is None:
                    return
                body, size = found
            else:
                place = head.find(b"content-length:")
                size = end + 4 + (int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0)
                if len(self._data) < size:
                    return
                body = self._data[end + 4 : size]
            self._data = self._data[size:]
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


def _unchunked(data: bytes, at: int) -> tuple[bytes, int] | None:
    """The chunked body that begins there and where it ends, or None when it is not complete."""
    parts = []
    while (line := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line], 16)
        at = line + 2 + size + 2
        if len(data) < at:
            return None
        if size == 0:
            return b"".join(parts), at
        parts.append(data[line + 2 : at - 2])
    return None


async def tick() -> None:
    """One token for every running stream, every 20 ms without drift."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due = max(due + INTERVAL, loop.time())
        await asyncio.sleep(due - loop.time())
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
    print("ready", *(s.sockets[0].getsockname()[1] for s in servers), flush=True)
    await tick()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2)
    asked = parser.parse_args()
    link.require_descriptors(4096)
    uvloop.run(http(asked.count))


if __name__ == "__main__":
    main()
