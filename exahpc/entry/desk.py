"""The desk: what each event means for requests. Events in, actions out; the shell performs them. Pure.

A request is sent again, as prompt + what its client already has, when its attempt ends under it: the link to the
agent was lost, the agent said Failed(retry), the replica was reborn, a frame did not fit, or nothing moved for
longer than the agent itself would have taken to notice a stall. Which requests kill replicas: see `interruptions`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from exahpc.deployment.spec import Deployment
from exahpc.entry.actions import Action, Comfort, Connect, Disconnect, Finish
from exahpc.entry.admission import ALONE
from exahpc.entry.fleet import Agent
from exahpc.entry.ledger import Record
from exahpc.entry.moves import Moves, named
from exahpc.entry.patience import Patience
from exahpc.entry.timers import Deadlines, Rounds
from exahpc.errors import RequestError
from exahpc.telemetry.meters import CLIENT_LEFT, Send, Totals
from exahpc.wire.messages import Busy, Done, Failed, FleetTable, Frame, Room, Submit

log = logging.getLogger(__name__)

COMFORT_SECONDS = 15.0
"""A stream that began and waits says something so often: proxies commonly cut one that is quiet for a minute."""


class Desk(Moves):
    """All decisions of one entry. Times are seconds of one monotonic clock; draw(n): random whole number < n;
    node: its own, for one beside an agent."""

    def __init__(self, deployment: Deployment, draw: Callable[[int], int], node: str = "") -> None:
        super().__init__(deployment, draw, node)
        # the agent kills a stalled replica itself and says so; this is for an agent that says nothing any more
        self._silence = 1.5 * deployment.recovery.stall_seconds + 1.0
        self._patience = Patience(deployment.limits)
        self._deadlines = Deadlines(self.ledger.records)
        self._rounds = Rounds(self.ledger.records)

    @property
    def waiting(self) -> int:
        return len(self.admission)

    @property
    def in_flight(self) -> int:
        """Requests that a replica works on."""
        return len(self.ledger.records) - len(self.admission)

    @property
    def outstanding(self) -> int:
        """Tokens that the requests of this entry still want."""
        agents = self.router.agents.values()
        return self.admission.tokens + sum(r.tokens for agent in agents for r in agent.replicas.values())

    def push(self, send: Send, now: float) -> None:
        """Tell the broker what was measured, if it is time."""
        counts, router = self.counts, self.router
        totals = Totals(counts.resent, counts.busy, router.known, router.affine, counts.reasons)
        self.ledger.measured.push(send, totals, now)

    @property
    def asleep(self) -> bool:
        """No replica runs because none was wanted: see FleetTable."""
        return self._patience.asleep

    # --- clients ---

    def open(self, record: Record, now: float) -> list[Action]:
        """A fresh request. Raises RequestError (429), before anything is kept, when too many wait."""
        if self.interruptions.remembered:
            self.interruptions.arrives(record, now)
        if not self.admission.size or not self.admission.waits(self._lane(record)):
            replica = self.pick(record, now)
            if replica is not None:
                self._begin(record, now)
                self.pace.left += 1
                return [self.send(record, replica, now)]
        record.lane = self.router.lane(record)
        try:
            gone = self.admission.enter(record)
        except RequestError as error:
            self.counts.rejected += 1
            self.counts.reasons[error.code or "other"] += 1
            self.ledger.measured.refused(error.status)
            raise
        self._begin(record, now)
        return [] if gone is None else [self.decline(gone, self.admission.gave_way())]

    def _lane(self, record: Record) -> str:
        return ALONE if record.alone else self.router.lane(record)

    def _begin(self, record: Record, now: float) -> None:
        self.ledger.open(record, now)
        if record.told:
            record.told = self.stories.wanted(now)
            key, tokens = record.key, record.tokens
            log.info("%s: at most %d tokens, for %s", record.kind, tokens, key, extra=named(record))
        self._rounds.add(record)
        if record.deadline != math.inf:
            self._deadlines.add(record)

    def cancel(self, record: Record, how: str, now: float) -> list[Action]:
        """The client left, or is cut off; its replica frees the sequences. No error when it has ended."""
        if record.phase == "ended":
            return []
        if record.told:
            log.info("cancelled after %.3f s: %s", now - record.born, how, extra=named(record))
        told = self.free(record)
        self.counts.cancelled += 1
        self.ledger.measured.refused(CLIENT_LEFT)
        self.end(record, how)
        return [*told, *self.pump(now)]

    def abandon(self, record: Record, error: RequestError, now: float) -> list[Action]:
        """End a request from our side: the client gets `error`, its replica frees the sequences."""
        if record.phase == "ended":
            return []
        return [*self.free(record), self.decline(record, error), *self.pump(now)]

    # --- agents ---

    def frames(self, agent: Agent, frames: list[Frame], now: float) -> tuple[list[Record], list[Action]]:
        """Progress. Returns the records whose `out` holds bytes to pass on, each once, and what else to do."""
        ledger, touched, actions = self.ledger, [], []
        for frame in frames:
            record = ledger.attempt_of(agent, frame.request, frame.attempt)
            if record is None:
                continue
            pending = bool(record.out)
            if not ledger.accept(record, frame, now):
                actions += [*self.free(record), *self.lost(record, "a frame was missing", now)]
                continue
            used = len(frame.ids) + record.prompt
            if used > record.tokens:
                used = record.tokens
            record.prompt = 0
            record.tokens -= used
            if record.replica is not None:
                record.replica.tokens -= used
            if record.out and not pending:
                touched.append(record)
        return touched, actions

    def done(self, agent: Agent, message: Done, now: float) -> list[Action]:
        record = self.ledger.attempt_of(agent, message.request, message.attempt)
        if record is None:
            return []
        if record.replica is not None:
            self.router.served(record.replica)
        if record.alone:
            self.interruptions.cleared(record)
        self.counts.done += 1
        self.counts.prompt_tokens += message.prompt_tokens
        self.counts.completion_tokens += message.completion_tokens
        self.ledger.measured.done(now - record.born)
        if record.told:
            tokens = message.completion_tokens
            log.info("done in %.3f s: %d tokens", now - record.born, tokens, extra=named(record))
        self.end(record, "done")
        return [Finish(record, message.data), *self.pump(now)]

    def failed(self, agent: Agent, message: Failed, now: float) -> list[Action]:
        record = self.ledger.attempt_of(agent, message.request, message.attempt)
        if record is None:
            return []
        if message.retry:
            return [*self.lost(record, message.message, now, own_exit=message.own_exit), *self.pump(now)]
        error = RequestError(
            message.message, status=message.status, type=message.type, param=message.param, code=message.code
        )
        return [self.refuse(record, error), *self.pump(now)]

    def busy(self, agent: Agent, message: Busy, now: float) -> list[Action]:
        record = self.ledger.attempt_of(agent, message.request, message.attempt)
        if record is None or record.replica is None:
            return []
        self.counts.busy += 1
        self.router.busy(record.replica, now)
        self.release(record)
        self.ledger.stop(record, "busy", now, "busy")
        record.lane = self.router.lane(record)
        self.admission.enter_again(record, front=True)
        return self.pump(now)

    def room(self, agent: Agent, message: Room, now: float) -> list[Action]:
        self.router.room(agent, message.loads, now)
        return self.pump(now)

    def unsent(self, agent: Agent, message: Submit, now: float) -> list[Action]:
        """A Submit did not leave: the link is down, or its buffer is full."""
        return self.busy(agent, Busy(message.request, message.attempt), now)

    def link_up(self, agent: Agent, now: float) -> list[Action]:
        self.router.link(agent, True)
        return self.pump(now)

    def link_lost(self, agent: Agent, now: float) -> list[Action]:
        self.router.link(agent, False)
        return self.all_lost(lambda replica: replica.agent is agent, f"the link to {agent.name} was lost", now)

    # --- the broker and the clock ---

    def table(self, table: FleetTable, now: float) -> list[Action]:
        changes = self.router.update(table, now)
        if changes is None:
            return []
        self._patience.asleep = table.asleep
        actions: list[Action] = [Connect(agent) for agent in changes.opened]
        gone = {id(replica) for replica in changes.reborn}
        gone.update(id(replica) for agent in changes.replaced for replica in agent.replicas.values())
        if gone:
            actions += self.all_lost(lambda replica: id(replica) in gone, "its replica was replaced", now)
        return actions + self.pump(now)

    def tick(self, now: float) -> list[Action]:
        """Time passes; call a few times a second."""
        self.pace.tick(now, self.admission.size if self.router.serves else 0)  # who loads is not slow
        self._patience.tick(self.router, now)
        if self.admission.waits(ALONE):
            self.count_probations()
        actions: list[Action] = []
        for number in self._deadlines.due(now):
            if (record := self.ledger.records.get(number)) is not None:
                actions += [*self.free(record), self.decline(record, self._patience.too_late(record))]
        limit = now - self._silence
        for record in self._rounds.turn(now):
            if record.replica is None:
                actions += self._waits(record, now)
            elif record.progress <= limit:
                actions += self._silent(record, now)
        for agent in self.router.expire(now):
            if not any(replica.sequences for replica in agent.replicas.values()):
                self.router.forget(agent)
                actions.append(Disconnect(agent))
        return actions + self.pump(now)

    def _waits(self, record: Record, now: float) -> list[Action]:
        error = self._patience.over(record, self.router, now)
        if error is not None:
            error.retry_after = self.pace.retry_after(len(self.admission))
            return [self.decline(record, error)]
        if record.started and now - record.progress >= COMFORT_SECONDS:
            record.progress = now
            return [Comfort(record)]
        return []

    def _silent(self, record: Record, now: float) -> list[Action]:
        replica = record.replica
        assert replica is not None
        self.router.busy(replica, now)
        why = f"no progress on {replica.agent.name} for {self._silence:g} s"
        return [*self.free(record), *self.lost(record, why, now)]
