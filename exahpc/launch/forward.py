"""A port of this machine's loopback whose connections go wherever the target is at that moment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from exahpc.errors import LinkError

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_PIECE = 2**16
LOOPBACK = "127.0.0.1"


class Forwarder:
    """target: opens a connection to where clients are to go (raises OSError), None while there is nowhere to go:
    then clients are turned away."""

    def __init__(self) -> None:
        self.target: Callable[[], Awaitable[Streams]] | None = None
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def listen(self, *ports: int) -> int:
        """Bind the first of these ports that is free; returns it. 0: any free one. Raises LinkError."""
        problem = ""
        for port in ports:
            try:
                self._server = await asyncio.start_server(self._accept, LOOPBACK, port)
            except OSError as error:
                problem = f"cannot listen on {LOOPBACK} port {port}: {error.strerror or error}"
                continue
            return int(self._server.sockets[0].getsockname()[1])
        raise LinkError(f"{problem}; name another one with --port")

    def cut(self) -> None:
        """End all connections: what they lead to is gone, though they may not know it yet."""
        for task in self._running:
            task.cancel()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            if self.target is not None:
                with contextlib.suppress(OSError):
                    await _join((reader, writer), await self.target())
        except asyncio.CancelledError:
            pass  # `cut`: this task is the connection's own
        finally:
            self._running.discard(task)
            writer.close()


async def _join(ours: Streams, theirs: Streams) -> None:
    """Carry both ways until both sides have said all, or one is lost (OSError)."""
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_carry(ours[0], theirs[1]))
            both.create_task(_carry(theirs[0], ours[1]))
    except* OSError:
        pass
    finally:
        theirs[1].close()


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_PIECE):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
