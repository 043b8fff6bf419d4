"""Which broker is in force: the epoch that it claims, its journal, and the record by which peers find it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable

from exahpc.batch.space import BY_ITSELF, NO_ROOM, refusal
from exahpc.broker.journal import Journal, replay
from exahpc.broker.memory import Memory, Started
from exahpc.wire.folder import Folder, HeadRecord

FULL_SECONDS = 2.0  # between two attempts to begin on a full disk
LOOK_SECONDS = 2.0  # between two looks at who is in force
_log = logging.getLogger("exahpc.broker")


class Seat:
    """before: the record of the broker before this one; None after a fresh `up`, whatever an earlier life of this
    folder left behind. Since `claim`: epoch, journal, memory: what earlier brokers of this deployment journalled.
    """

    epoch: int
    journal: Journal
    memory: Memory

    def __init__(self, folder: Folder, now: Callable[[], float], end: asyncio.Future[int]) -> None:
        """end: done when this broker is told to end."""
        self._folder, self._now, self._end = folder, now, end
        self._host, self._record, self._published = socket.gethostname(), HeadRecord(0, "", "", 0), False
        self.before = folder.head()

    @property
    def moved(self) -> bool:
        """The broker before was on another node, or there was none."""
        return self.before is None or self.before.host != self._host

    @property
    def port(self) -> int:
        """Where peers knock already; 0 when that is elsewhere."""
        return int(self.before.address.rpartition(":")[2]) if self.before is not None and not self.moved else 0

    async def claim(self) -> bool:
        """Take the next epoch. While the disk is full it is tried again, since the supervisor gives up on a broker
        that crashes again and again; False when it was told to end before there was room."""
        told = False
        while not self._end.done():
            try:
                self._claim()
                return True
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                if not told:
                    _log.error("%s", refusal(error, self._folder.path, BY_ITSELF))
                told = True
            await asyncio.wait([self._end], timeout=FULL_SECONDS)
        return False

    def _claim(self) -> None:
        self.epoch, now = self._folder.claim_epoch(), self._now()
        journals = self._folder.path / "journal"
        self.memory = replay(journals, now) if self.before is not None else Memory()
        started = Started(at=now, epoch=self.epoch, host=self._host)
        self.journal = Journal(journals, self.epoch, self.memory.records(now), started)

    def publish(self, address: str) -> None:
        """Say where this broker listens; `watch` does it as soon as there is room for it."""
        self._record = HeadRecord(self.epoch, address, self._host, os.getpid())
        try:
            self._publish()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            _log.error("%s", refusal(error, self._folder.path, BY_ITSELF))

    def _publish(self) -> None:
        self._folder.publish_head(self._record)
        self._published = True

    async def watch(self, over: Callable[[str], None]) -> None:
        """A broker that was cut off (not dead) while Slurm started another learns it from the folder.

        over: called with the reason when another one is in force.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                head = await asyncio.to_thread(self._folder.head)
                if head is not None and head.epoch > self.epoch:
                    over(f"the broker of epoch {head.epoch} on {head.host} has taken over")
                elif not self._published or (head is not None and head.epoch < self.epoch):
                    await asyncio.to_thread(self._publish)  # we started together, and it wrote last
            except OSError as error:  # a full disk, a server that is away: looked at again
                _log.warning("the record of the head cannot be looked after: %s", error)
