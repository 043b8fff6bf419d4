"""A file on its way to a client: read by threads piece by piece, as fast as the client takes them."""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import Executor

from exahpc.entry.connection import Connection

log = logging.getLogger(__name__)

PIECE_BYTES = 2**18
STALLED_SECONDS = 60.0
"""A client that takes nothing for so long is cut off."""
_HEAD = b"content-type: application/octet-stream\r\n"


class Download:
    """fd: of the file, which belongs to this from now on; size: bytes to send."""

    def __init__(self, connection: Connection, fd: int, size: int, threads: Executor) -> None:
        self._connection, self._fd, self._size, self._threads = connection, fd, size, threads
        self._gone = False

    def leave(self) -> None:
        """The client has left."""
        self._gone = True

    async def run(self) -> None:
        """Send it all. What cannot be sent whole ends with the connection: clients notice."""
        loop, connection, at = asyncio.get_running_loop(), self._connection, 0
        try:
            if self._gone:
                return
            head = connection.begin(_HEAD)
            while at < self._size:
                length = min(PIECE_BYTES, self._size - at)
                data = await loop.run_in_executor(self._threads, os.pread, self._fd, length, at)
                if self._gone:
                    return
                if not data:
                    raise OSError("a file became shorter while it was sent")
                connection.piece(data, head)
                head, at = b"", at + len(data)
                if connection.paused:
                    await asyncio.wait_for(connection.taken(), STALLED_SECONDS)
            if not self._gone:
                connection.end(b"", head)
        except TimeoutError:
            connection.transport.abort()
        except Exception:
            log.exception("a download failed")
            connection.transport.abort()
        finally:
            self._threads.submit(os.close, self._fd)
