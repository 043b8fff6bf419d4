"""The loop of the head rank: hears the agent, schedules, and leads the other ranks.

When the agent is gone (a send fails) its sequences are dropped: nobody could be given their tokens.
"""

from __future__ import annotations

import logging
import time
from collections import deque

from exahpc.replica.batching import Scheduler
from exahpc.replica.mouth import Mouth
from exahpc.replica.plan import Drawn, Plan
from exahpc.replica.waiting import Naps
from exahpc.replica.worker import Incoming, Worker
from exahpc.telemetry.logs import told
from exahpc.wire.messages import (
    Abort,
    Admit,
    Adopt,
    Message,
    ReplicaBeat,
    ReplicaHello,
    StopReplica,
)

log = logging.getLogger(__name__)
BEAT_SECONDS = 1.0
SOON_SECONDS = 0.05
"""Least time between two beats: under load sequences come and end in every step; to hear of it costs the agent
more than their tokens."""


class Head:
    """The loop of rank 0."""

    def __init__(
        self, mouth: Mouth, scheduler: Scheduler, worker: Worker, hello: ReplicaHello, pipelined: bool
    ) -> None:
        self._mouth, self._scheduler, self._worker, self._hello = mouth, scheduler, worker, hello
        self._pipelined = pipelined
        self._flight: deque[tuple[int, Incoming]] = deque()
        self._beaten = self._next_beat = 0.0
        self._stopping = False
        self._told: dict[int, str] = {}  # sequences whose requests are logged
        self._start = time.monotonic()
        self._rested = self._waited = 0.0  # seconds without work; seconds with work, but only elsewhere

    def run(self) -> None:
        """Serve until StopReplica. Blocks in poll, using no processor, while there is nothing to do."""
        while True:
            self._listen()
            if self._stopping:
                break
            self._iterate()
            self._beat()
        for lane, incoming in self._flight:
            self._scheduler.done(lane, incoming.get())
        self._worker.send(Plan(stop=True))

    def _idle(self) -> bool:
        return not (self._flight or self._scheduler.running or self._scheduler.waiting)

    def _listen(self) -> None:
        if self._idle():
            begin = time.monotonic()
            heard = self._mouth.poll(max(0.001, self._next_beat - begin))
            self._rested += time.monotonic() - begin
            if not heard:
                return
        while (message := self._mouth.receive()) is not None:
            match message:
                case Admit():
                    if message.request:
                        self._admitted(message)
                    refused = self._scheduler.admit(message)
                    if refused:
                        self._tell(refused)
                    self._beat_soon()
                case Abort(sequence):
                    self._ended(sequence, "aborted")
                    self._scheduler.abort(sequence)
                    self._beat_soon()
                case Adopt(agent):
                    log.info("adopted by %s", agent)
                    self._told.clear()
                    self._scheduler.drop_all()
                    self._tell(self._hello)
                    self._beat_soon()
                case StopReplica():
                    self._stopping = True
                    return

    def _iterate(self) -> None:
        while self._flight and self._flight[0][1].arrived():
            self._settle()
        plan = self._scheduler.plan()
        if plan is not None:
            self._worker.send(plan)
            drawn = self._worker.run(plan)
            if self._pipelined:
                self._flight.append((plan.lane, self._worker.drawn(plan)))
            else:
                self._finish(plan.lane, drawn or Drawn())
        elif self._flight:
            self._await()

    def _await(self) -> None:
        """Wait for the oldest plan in flight, or for word of the agent, which may bring work for another lane."""
        begin, naps = time.monotonic(), Naps()
        while not self._flight[0][1].arrived() and not self._mouth.poll(0):
            naps.sleep()
        self._waited += time.monotonic() - begin

    def _settle(self) -> None:
        lane, incoming = self._flight.popleft()
        self._finish(lane, incoming.get())

    def _finish(self, lane: int, drawn: Drawn) -> None:
        tokens = self._scheduler.done(lane, drawn)
        if tokens.tokens or tokens.ended or tokens.prompt:
            self._tell(tokens)
        if tokens.ended:
            for sequence, reason in tokens.ended if self._told else ():
                self._ended(sequence, reason)
            self._beat_soon()

    def _admitted(self, message: Admit) -> None:
        """A sequence whose request is to be logged."""
        self._told[message.sequence] = message.request
        fields = told(request=message.request, sequence=message.sequence, tokens=len(message.ids))
        running, waiting = self._scheduler.running, self._scheduler.waiting
        log.info("admitted beside %d that run and %d that wait", running, waiting, extra=fields)

    def _ended(self, sequence: int, reason: str) -> None:
        if request := self._told.pop(sequence, ""):
            log.info("ended: %s", reason, extra=told(request=request, sequence=sequence, step=self._worker.step))

    def _tell(self, message: Message) -> None:
        if not self._mouth.send(message):
            self._scheduler.drop_all()

    def _beat_soon(self) -> None:
        self._next_beat = min(self._next_beat, self._beaten + SOON_SECONDS)

    def _beat(self) -> None:
        now = time.monotonic()
        active = now - self._start - self._rested
        self._worker.hear(active)
        if now < self._next_beat:
            return
        self._beaten, self._next_beat = now, now + BEAT_SECONDS
        s = self._scheduler
        beat = ReplicaBeat(
            s.running,
            s.waiting,
            s.kv_free,
            self._worker.step,
            s.generated,
            s.kv_cached,
            s.prefix_hits,
            s.preemptions,
            [round(share, 3) for share in self._worker.idle(active, self._waited)],
        )
        self._tell(beat)
