"""EMULATED: a replica behind its real local socket, as one of many in a process.

The socket is the real replica's (`replica.mouth`), the agent on its other side is real or emulated. uvloop's clock
shows whole milliseconds, in which a replica that answers at once would turn round and round: time is `monotonic`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from exahpc.lab.emulated.engine import Engine
from exahpc.replica.mouth import Mouth
from exahpc.wire.messages import Abort, Admit, Adopt, Message, ReplicaHello, StopReplica

BEAT_SECONDS, SOON_SECONDS = 1.0, 0.05  # as `replica.head` has them


class EmulatedReplica:
    """Serves at `path` until it is told to stop (on_stop is called then) or closed."""

    def __init__(
        self,
        path: Path,
        engine: Engine,
        hello: ReplicaHello,
        on_stop: Callable[[], None],
    ) -> None:
        self._engine, self._hello, self._on_stop = engine, hello, on_stop
        self._loop = asyncio.get_running_loop()
        self._mouth = Mouth(path)
        self._descriptor = self._mouth.descriptor
        self._step: asyncio.TimerHandle | None = None
        self._beating = self.closed = False
        self._beaten = -math.inf
        self._loop.add_reader(self._descriptor, self._listen)
        self._pulse = self._loop.call_later(BEAT_SECONDS, self._beat_and_again)

    def freeze(self, frozen: bool) -> None:
        """Be fake-alive from now on: beats, but no tokens (or be well again)."""
        self._engine.freeze(frozen, monotonic())
        self._arm()

    # --- the agent ---------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self.closed and (message := self._mouth.receive()) is not None:
            self._heard(message)
        self._arm()

    def _heard(self, message: Message) -> None:
        now = monotonic()
        match message:
            case Admit():
                refused = self._engine.admit(message, now)
                if refused is not None:
                    self._tell(refused)
            case Abort(sequence):
                self._engine.abort(sequence, now)
            case Adopt():
                self._engine.drop_all(now)
                self._tell(self._hello)
            case StopReplica():
                self.close()
                self._on_stop()
                return
        self._beat_soon()

    def _tell(self, message: Message) -> None:
        if not self._mouth.send(message):
            self._engine.drop_all(monotonic())

    # --- time --------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Wake at the end of the running step."""
        if self._step is not None:
            self._step.cancel()
            self._step = None
        due = self._engine.due()
        if due != math.inf and not self.closed:
            self._step = self._loop.call_later(max(0.0, due - monotonic()), self._advance, due)

    def _advance(self, due: float) -> None:
        tokens = self._engine.advance(max(due, monotonic()))  # a timer may be early by a part of a millisecond
        if tokens is not None:
            self._tell(tokens)
            if tokens.ended:
                self._beat_soon()
        self._arm()

    def _beat_soon(self) -> None:
        """After the burst that is being handled."""
        if not self._beating:
            self._beating = True
            self._loop.call_later(max(0.0, self._beaten + SOON_SECONDS - monotonic()), self._beat)

    def _beat(self) -> None:
        self._beating = False
        if not self.closed:
            self._beaten = monotonic()
            self._tell(self._engine.beat())

    def _beat_and_again(self) -> None:
        self._beat()
        self._pulse = self._loop.call_later(BEAT_SECONDS, self._beat_and_again)

    def close(self) -> None:
        """Gone, as a step whose ranks have ended."""
        if self.closed:
            return
        self.closed = True
        for timer in (self._step, self._pulse):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self._descriptor)
        self._mouth.close()
