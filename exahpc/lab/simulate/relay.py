"""The simulated requests of one agent: the rules of the real relay on emulated replicas, without text.

A request's frames leave with its first token, every few seconds, and when it is interrupted: what a client would
have got in between follows from the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from exahpc.entry.fleet import Agent
from exahpc.lab.emulated.model import Batch
from exahpc.lab.simulate.outcomes import Client
from exahpc.lab.simulate.replica import Replica, Work
from exahpc.lab.simulate.room import Room
from exahpc.lab.simulate.scenario import Rollout
from exahpc.lab.simulate.timeline import Timeline
from exahpc.wire.messages import Busy, Done, Failed, Frame, Load, Submit

if TYPE_CHECKING:
    from exahpc.lab.simulate.gateway import Gateway

PROGRESS = 5.0
"""Seconds after which a long answer tells the entry how far it is. (The product: with every token.)"""


class Relay:
    """replicas: that serve, by slot; draining: nothing new; touched, stirred: slots whose load changed since
    the last beat, and since the last look at loads."""

    def __init__(
        self,
        timeline: Timeline,
        version: str,
        quality: Rollout,
        draw: Callable[[], float],
        room: Room,
    ) -> None:
        """version: of the deployment that they serve; quality: what is wrong with it; room: hears when a load
        changes."""
        self._room = room
        self._woken = self._wake  # bound once, not at each plan
        self._timeline = timeline
        self._version, self._fails, self._odd, self._draw = version, quality.fails, quality.odd, draw
        self.replicas: dict[int, Replica] = {}
        self.draining = False
        self.touched: set[int] = set()
        self.stirred: set[int] = set()
        self._sequence = 0
        self._works: dict[str, Work] = {}  # request ids are unique in a simulation

    # --- requests --------------------------------------------------------------------------------------------

    def submit(self, gateway: Gateway, agent: Agent, message: Submit, client: Client) -> None:
        """As `agent.relay.Relay.submit`."""
        replica = self.replicas.get(message.slot)
        if self.draining or replica is None or replica.incarnation != message.incarnation:
            gateway.busy(agent, Busy(message.request, message.attempt))
            return
        now = self._timeline.now
        capacity, need = replica.capacity, client.prompt + client.new
        if need > capacity.hello.context:
            why = f"{client.prompt} + {client.new} tokens exceed the context of {capacity.hello.context}"
            gateway.failed(agent, Failed(message.request, message.attempt, 400, why))
            return
        if capacity.alone if message.alone else capacity.full or not replica.fits(need):
            capacity.refused = now
            gateway.busy(agent, Busy(message.request, message.attempt))
            return
        if message.attempt > 1:
            self.cancel(message.request)
        if replica.batch.due <= now:
            self._advance(replica, now)
        work = Work(gateway, agent, message, client)
        work.replica = replica
        self._works[message.request] = work
        client.version = client.version or self._version
        if message.alone:
            replica.wait(work)
            self._start_waiting(replica, now)
        else:
            self._admit(replica, work, now)
        self._changed(replica.slot)
        self._plan(replica)

    def _admit(self, replica: Replica, work: Work, now: float) -> None:
        self._sequence += 1
        replica.admit(work, self._sequence, now)

    def _start_waiting(self, replica: Replica, now: float) -> None:
        """Who waits for an empty replica may have it now."""
        while (work := replica.capacity.next(now)) is not None:
            self._admit(replica, work, now)

    def cancel(self, request: str) -> None:
        """The client left: no answer."""
        work = self._works.pop(request, None)
        if work is not None:
            replica = work.replica
            self._advance(replica, self._timeline.now)
            if replica.leave(work):
                replica.batch.abort(work.sequence, self._timeline.now)
            self._start_waiting(replica, self._timeline.now)
            self._plan(replica)

    # --- replicas --------------------------------------------------------------------------------------------

    def serve(self, replica: Replica) -> None:
        self.replicas[replica.slot] = replica

    def lost(self, slot: int, why: str, *, own_exit: bool) -> bool:
        """What ran there may go on elsewhere. False when nothing served in this slot."""
        replica = self.replicas.pop(slot, None)
        if replica is None:
            return False
        self._advance(replica, self._timeline.now)
        replica.living = False
        replica.count()
        for work in list(replica.works.values()):
            self._works.pop(work.request, None)
            self._progress(work)
            failed = Failed(work.request, work.attempt, 503, why, retry=True, own_exit=own_exit)
            work.gateway.failed(work.agent, failed)
        for work in replica.waiting:  # nothing was lost, and it cannot be the cause
            self._works.pop(work.request, None)
            work.gateway.busy(work.agent, Busy(work.request, work.attempt))
        return True

    def vanish(self) -> None:
        """The node is gone: clients have what had left it, and nothing more is heard."""
        for replica in self.replicas.values():
            self._advance(replica, self._timeline.now)
            replica.living = False
            replica.count()
            for work in list(replica.works.values()):
                self._progress(work)
        self.replicas.clear()

    def change(self, slot: int, *, slow: float | None = None, frozen: bool | None = None) -> None:
        """See `Batch.change`."""
        replica = self.replicas.get(slot)
        if replica is not None:
            self._advance(replica, self._timeline.now)
            replica.batch.change(self._timeline.now, slow=slow, frozen=frozen)
            self._plan(replica)

    # --- time ------------------------------------------------------------------------------------------------

    def look(self) -> dict[int, tuple[int, Batch]]:
        """Of each busy replica: tokens made since the last look. Long answers tell how far they are."""
        now = self._timeline.now
        found: dict[int, tuple[int, Batch]] = {}
        for slot, replica in self.replicas.items():
            running = replica.works
            if not running:
                continue
            self._advance(replica, now)
            if not running:
                continue
            replica.count()
            tokens = replica.batch.tokens()
            found[slot] = (tokens - replica.told_tokens, replica.batch)
            replica.told_tokens = tokens
            for work in running.values():
                if now - work.told_at > PROGRESS and work.count > work.told:
                    self._progress(work)
        return found

    def loads(self) -> list[Load]:
        """Of replicas that have work, or had some when this was last asked."""
        stirred, self.stirred = self.stirred, set()
        return [replica.load for slot, replica in self.replicas.items() if slot in stirred or replica.works]

    def _changed(self, slot: int) -> None:
        self.touched.add(slot)
        if slot not in self.stirred:
            self.stirred.add(slot)
            self._room.stirred(self)

    # --- inside ----------------------------------------------------------------------------------------------

    def _plan(self, replica: Replica) -> None:
        """Wake when the replica has something to tell next. An earlier plan that holds is left."""
        due = replica.batch.due
        if due < replica.due:
            replica.due = due
            self._timeline.at(due, self._woken, replica)

    def _wake(self, replica: Replica) -> None:
        now = self._timeline.now
        if replica.due <= now and replica.living:  # not planned anew meanwhile
            replica.due = math.inf
            self._advance(replica, now)
            self._plan(replica)

    def _advance(self, replica: Replica, now: float) -> None:
        """What has happened by now."""
        running = replica.works
        for sequence, first in replica.batch.advance(now):
            work = running[sequence]
            if not first:
                self._ended(replica, work, now)
            elif self._fails and self._draw() < self._fails:
                self._cannot(replica, work, now)
            else:
                replica.started(work, now, odd=self._odd > 0 and self._draw() < self._odd)
                self._progress(work)

    def _cannot(self, replica: Replica, work: Work, now: float) -> None:
        """The replica cannot compute this sequence."""
        replica.capacity.meter.failed += 1
        replica.leave(work)
        replica.batch.abort(work.sequence, now)
        del self._works[work.request]
        if replica.capacity.alone:
            self._start_waiting(replica, now)
        why = "the replica could not compute this sequence"
        work.gateway.failed(work.agent, Failed(work.request, work.attempt, 503, why, retry=True))

    def _ended(self, replica: Replica, work: Work, now: float) -> None:
        work.count = work.new
        del self._works[work.request]
        replica.ended(work, now)
        if replica.capacity.alone:
            self._start_waiting(replica, now)
        self._changed(replica.slot)
        done = Done(work.request, work.attempt, b"", work.client.prompt, work.new)
        work.gateway.done(work.agent, done)

    def _progress(self, work: Work) -> None:
        """What the gateway does not know yet."""
        fresh = work.count - work.told
        if fresh:
            frame = Frame(work.request, work.attempt, 0, work.told, _ids(fresh), work.count, b".")
            work.told, work.told_at = work.count, self._timeline.now
            work.gateway.frame(work.agent, frame)


_ONE = [0]


def _ids(count: int) -> list[int]:
    return _ONE if count == 1 else [0] * count
