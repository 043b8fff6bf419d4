"""The desk: ledger, admission and routing put together. Events in, actions out; the shell performs them. Pure.

A request is sent again, as prompt + what its client already has, when its attempt ends under it: the link to the
agent was lost, the agent said Failed(retry), the replica was reborn, a frame did not fit, or nothing moved for
longer than the agent itself would have taken to notice a stall. After two deaths by the replica's own exit the
request is suspect and ends: it may be what kills them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from exahpc.deployment.spec import Deployment
from exahpc.entry.actions import Action, Connect, Disconnect, Finish, Refuse, Tell
from exahpc.entry.admission import Admission
from exahpc.entry.fleet import Agent, Replica
from exahpc.entry.ledger import Ledger, Record
from exahpc.entry.routing import Router
from exahpc.errors import RequestError
from exahpc.wire.messages import Busy, Cancel, Done, Failed, FleetTable, Frame, Room, Submit

_SUSPECT = 2  # deaths by the replica's own exit


@dataclass(slots=True)
class Counts:
    """Requests ended so far, and tokens."""

    done: int = 0
    failed: int = 0
    rejected: int = 0
    cancelled: int = 0
    resent: int = 0
    busy: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Desk:
    """All decisions of one entry. Times are seconds of one monotonic clock; draw(n): random whole number < n."""

    def __init__(self, deployment: Deployment, draw: Callable[[int], int]) -> None:
        limits = deployment.limits
        self._attempts = limits.attempts
        self._patience = limits.queue_seconds
        # the agent kills a stalled replica itself and says so; this is for an agent that says nothing any more
        self._silence = 1.5 * deployment.recovery.stall_seconds + 1.0
        self.router = Router(draw)
        self.ledger = Ledger()
        self.admission = Admission(limits.max_waiting, limits.queue_seconds)
        self.counts = Counts()

    @property
    def waiting(self) -> int:
        return len(self.admission)

    @property
    def in_flight(self) -> int:
        """Requests that a replica works on."""
        return len(self.ledger.records) - len(self.admission)

    # --- clients ---

    def open(self, record: Record, now: float) -> list[Action]:
        """A fresh request. Raises RequestError (429), before anything is kept, when too many wait."""
        if not len(self.admission):
            replica = self._pick(record, now)
            if replica is not None:
                self.ledger.open(record, now)
                return [self._send(record, replica, now)]
        try:
            self.admission.enter(record)
        except RequestError:
            self.counts.rejected += 1
            raise
        self.ledger.open(record, now)
        return []

    def cancel(self, record: Record, how: str, now: float) -> list[Action]:
        """The client left, or is cut off; its replica frees the sequences. No error when it has ended."""
        if record.phase == "ended":
            return []
        actions: list[Action] = []
        if record.replica is not None:
            actions.append(Tell(record.replica.agent, Cancel(record.id)))
        self.counts.cancelled += 1
        self._end(record, how)
        return actions + self.pump(now)

    def abandon(self, record: Record, error: RequestError, now: float) -> list[Action]:
        """End a request from our side: the client gets `error`, its replica frees the sequences."""
        if record.phase == "ended":
            return []
        actions: list[Action] = []
        if record.replica is not None:
            actions.append(Tell(record.replica.agent, Cancel(record.id)))
        return [*actions, self._refuse(record, error), *self.pump(now)]

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
                actions += [Tell(agent, Cancel(record.id)), *self._lost(record, "a frame was missing", now)]
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
        self.counts.done += 1
        self.counts.prompt_tokens += message.prompt_tokens
        self.counts.completion_tokens += message.completion_tokens
        self._end(record, "done")
        return [Finish(record, message.data), *self.pump(now)]

    def failed(self, agent: Agent, message: Failed, now: float) -> list[Action]:
        record = self.ledger.attempt_of(agent, message.request, message.attempt)
        if record is None:
            return []
        if message.retry:
            record.own_exits += message.own_exit
            return [*self._lost(record, message.message, now), *self.pump(now)]
        error = RequestError(
            message.message, status=message.status, type=message.type, param=message.param, code=message.code
        )
        return [self._refuse(record, error), *self.pump(now)]

    def busy(self, agent: Agent, message: Busy, now: float) -> list[Action]:
        record = self.ledger.attempt_of(agent, message.request, message.attempt)
        if record is None or record.replica is None:
            return []
        self.counts.busy += 1
        self.router.busy(record.replica, now)
        self._release(record)
        self.ledger.stop(record, "busy", now, "busy")
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
        return self._all_lost(lambda replica: replica.agent is agent, f"the link to {agent.name} was lost", now)

    # --- the broker and the clock ---

    def table(self, table: FleetTable, now: float) -> list[Action]:
        changes = self.router.update(table, now)
        if changes is None:
            return []
        actions: list[Action] = [Connect(agent) for agent in changes.opened]
        gone = {id(replica) for replica in changes.reborn}
        gone.update(id(replica) for agent in changes.replaced for replica in agent.replicas.values())
        if gone:
            actions += self._all_lost(lambda replica: id(replica) in gone, "its replica was replaced", now)
        return actions + self.pump(now)

    def tick(self, now: float) -> list[Action]:
        """Time passes; call a few times a second."""
        actions: list[Action] = []
        for record in self.admission.overdue(now):
            actions.append(self._refuse(record, self._no_room(record)))
        limit = now - self._silence
        busy: set[int] = set()
        for record in list(self.ledger.records.values()):
            replica = record.replica
            if replica is None:
                continue
            busy.add(id(replica.agent))
            if record.progress <= limit:
                self.router.busy(replica, now)
                why = f"no progress on {replica.agent.name} for {self._silence:g} s"
                actions += [Tell(replica.agent, Cancel(record.id)), *self._lost(record, why, now)]
        for agent in self.router.expire(now):
            if id(agent) not in busy:
                self.router.forget(agent)
                actions.append(Disconnect(agent))
        return actions + self.pump(now)

    # --- moves ---

    def _pick(self, record: Record, now: float) -> Replica | None:
        return self.router.pick(record.sequences, record.tokens, now, record.shun)

    def _send(self, record: Record, replica: Replica, now: float) -> Tell:
        self.router.take(replica, record.sequences, record.tokens)
        return Tell(replica.agent, self.ledger.send(record, replica, now))

    def _release(self, record: Record) -> None:
        if record.replica is not None:
            self.router.give_back(record.replica, record.sequences, record.tokens)

    def _end(self, record: Record, how: str) -> None:
        self._release(record)
        self.admission.leave(record)
        self.ledger.end(record, how)

    def _refuse(self, record: Record, error: RequestError) -> Refuse:
        if error.status < 500:
            self.counts.rejected += 1
        else:
            self.counts.failed += 1
        self._end(record, f"{error.status}")
        return Refuse(record, error)

    def _lost(self, record: Record, why: str, now: float) -> list[Action]:
        """The running attempt died. The caller pumps."""
        self._release(record)
        self.ledger.stop(record, "lost", now, why)
        if record.own_exits >= _SUSPECT:
            message = (
                f"{record.own_exits} replicas ended by themselves while they worked on this request "
                f"(last: {why}): it will not be tried again"
            )
            return [self._refuse(record, RequestError(message, status=500, type="server_error", code="suspect"))]
        if record.deaths >= self._attempts:
            message = f"this request was interrupted {record.deaths} times (limits.attempts; last: {why})"
            return [self._refuse(record, RequestError(message, status=502, type="server_error", code="attempts"))]
        self.counts.resent += 1
        self.admission.enter_again(record, front=False)
        return []

    def _all_lost(self, dead: Callable[[Replica], bool], why: str, now: float) -> list[Action]:
        actions: list[Action] = []
        for record in list(self.ledger.records.values()):
            if record.replica is not None and dead(record.replica):
                actions += self._lost(record, why, now)
        return actions + self.pump(now)

    def pump(self, now: float) -> list[Action]:
        """Send who waits, in order, as long as a replica takes the first one."""
        actions: list[Action] = []
        while (record := self.admission.first()) is not None:
            replica = self._pick(record, now)
            if replica is None:
                break
            self.admission.leave(record)
            actions.append(self._send(record, replica, now))
        return actions

    def _no_room(self, record: Record) -> RequestError:
        story = f"; it was interrupted before: {record.why}" if record.deaths else ""
        ready = self.router.ready
        state = f"{ready} replicas are up and full" if ready else "no replica is up"
        message = (
            f"no replica took this request within {self._patience:g} s (limits.queue_seconds): {state}{story}"
        )
        return RequestError(message, status=503, type="server_error", code="no_capacity")
