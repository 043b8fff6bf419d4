"""Long requests are prepared beside the loop: to tokenize 2 kB takes a millisecond, in which no stream would move.

One thread, in order: the cores of a node are the replicas'. The tokenizer's library lets go of the interpreter
while it works. Until a request is prepared the relay does not know it, so its end is looked after here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from exahpc.agent.prepared import Prepared
from exahpc.errors import RequestError
from exahpc.wire.messages import Submit

LONG_BODY = 16384
"""Bytes of a body above which it is worth the detour: some milliseconds, less than a replica takes for a token."""

Work = Callable[[], Prepared | RequestError]


class Preparing:
    """ready: gets each request that was not cancelled, with what `work` gave."""

    def __init__(self, ready: Callable[[bytes, Submit, Prepared | RequestError | None], None]) -> None:
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._worker = ThreadPoolExecutor(1, "prepare")
        self._waiting: dict[tuple[bytes, str], asyncio.Future[Prepared | RequestError]] = {}

    def begin(self, peer: bytes, message: Submit, work: Work | None) -> None:
        """work: None when there is nothing to do. A newer attempt takes the place of an older one (a link keeps
        their order)."""
        self.cancel(peer, message.request)
        if work is None:
            self._ready(peer, message, None)
            return
        future = self._loop.run_in_executor(self._worker, work)
        self._waiting[peer, message.request] = future
        future.add_done_callback(partial(self._done, peer, message))

    def _done(self, peer: bytes, message: Submit, future: asyncio.Future[Prepared | RequestError]) -> None:
        if self._waiting.get((peer, message.request)) is future:
            del self._waiting[peer, message.request]
            self._ready(peer, message, future.result())

    def cancel(self, peer: bytes, request: str) -> None:
        """It is not wanted any more, if it is here."""
        future = self._waiting.pop((peer, request), None)
        if future is not None:
            future.cancel()

    def peer_gone(self, peer: bytes) -> None:
        """Nor is anything of this entry."""
        for other, request in list(self._waiting):
            if other == peer:
                self.cancel(peer, request)

    def close(self) -> None:
        for peer, request in list(self._waiting):
            self.cancel(peer, request)
        self._worker.shutdown(wait=False, cancel_futures=True)
