"""The other side of `bench/startup_3072.py`: each replica registers alone, each change sends the whole table.

`registry` prints its port; `proxy PORT N` prints "up", then "all" when it knows N; `replicas PORT N` registers N,
each over a connection of its own, 256 at a time.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys

import uvloop

_LENGTH = struct.Struct(">I")


async def registry() -> None:
    table: list[dict[str, object]] = []
    proxies: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /watch"):
            proxies.append(writer)
            return
        size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        table.append(json.loads(await reader.readexactly(size)))
        data = json.dumps(table).encode()
        for proxy in proxies:
            proxy.write(_LENGTH.pack(len(data)) + data)
            await proxy.drain()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def proxy(port: int, replicas: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(0.2)
    print("up", flush=True)
    count = 0
    while count < replicas:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        count = len(json.loads(await reader.readexactly(size)))
    print("all", flush=True)
    await asyncio.Event().wait()


async def replicas(port: int, count: int) -> None:
    turn = asyncio.Semaphore(256)

    async def register(number: int) -> None:
        async with turn:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            told = {"pool": "a", "slot": number, "incarnation": 1, "address": f"tcp://10.0.{number % 256}.1:40000"}
            body = json.dumps(told | {"capacity": 64, "weight": 1.0, "node": f"node-{number // 12}"}).encode()
            writer.write(b"POST /register HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await reader.read()
            writer.close()

    await asyncio.gather(*map(register, range(count)))


def main(what: str, *arguments: str) -> None:
    numbers = [int(argument) for argument in arguments]
    work = {"registry": registry, "proxy": proxy, "replicas": replicas}[what]
    uvloop.run(work(*numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
