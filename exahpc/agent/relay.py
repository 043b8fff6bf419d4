"""Between entries, batch rows and replicas: decides, and returns actions. Pure.

A request is validated, templated and tokenized here, its choices become sequences of one replica, and their
tokens become frames of response bytes. Each (request, attempt) has exactly one ending: Done, Failed or Busy; a
cancelled one, and one whose entry is gone, has none. Each row has exactly one: RowEnded or RowLost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from exahpc.agent import outcomes
from exahpc.agent.actions import Action, RowEnded, RowLost, ToPeer, ToReplica, replicas_first
from exahpc.agent.capacity import Capacity
from exahpc.agent.choice import Choice
from exahpc.agent.job import Job
from exahpc.agent.jobs import Jobs
from exahpc.agent.prepare import prepare
from exahpc.agent.prepared import Prepared
from exahpc.agent.rated import hear
from exahpc.agent.service import VARIED, Meter, Timing
from exahpc.agent.tokenizer import Tokenizer
from exahpc.agent.untold import Untold, frames
from exahpc.deployment.spec import Deployment
from exahpc.errors import RequestError
from exahpc.openai.answers import Finish
from exahpc.openai.body import Kind
from exahpc.telemetry.logs import told
from exahpc.telemetry.meters import AgentMeter
from exahpc.telemetry.stories import Stories
from exahpc.wire.messages import (
    Abort,
    Busy,
    Frames,
    Load,
    NoRoom,
    ReplicaHello,
    Service,
    Submit,
    Tokens,
)

__all__ = ["Action", "Relay", "RowEnded", "RowLost", "ToPeer", "ToReplica"]

log = logging.getLogger(__name__)

LIFE_SECONDS = 1.0
"""Who waits for a replica to be emptied is named to its entry this often."""


class Relay:
    """All requests of one agent. `now` is any clock that does not go back, in seconds; version: label of the
    deployment.

    Sequence ids count from 1, so 0 is free for the caller's own use of a replica.
    """

    def __init__(self, deployment: Deployment, tokenizer: Tokenizer, version: str = "") -> None:
        self.measured = AgentMeter()
        self._stories = Stories()
        self._deployment, self._version = deployment, version
        self._tokenizer = tokenizer
        self._slots: dict[int, Capacity[Choice]] = {}
        self._jobs = Jobs()
        self._untold = Untold()
        self._life_at = float("-inf")
        self._sequence = 0
        self._now = float("-inf")
        self._draining = False

    # --- requests -------------------------------------------------------------------------------------------

    def preparation(self, message: Submit) -> Callable[[], Prepared | RequestError] | None:
        """The part of `submit` that takes long for a long request: its caller may run it elsewhere, in another
        thread too, and hand in the outcome. None when there is no room for the request anyway."""
        capacity = self._slots.get(message.slot)
        if self._draining or capacity is None or (capacity.alone if message.alone else capacity.full):
            return None
        return partial(self._prepare, message.kind, message.body, message.created, capacity.hello)

    def submit(
        self, peer: bytes, message: Submit, now: float, found: Prepared | RequestError | None = None
    ) -> list[Action]:
        """An entry's request. A newer attempt of a running one replaces it. found: outcome of `preparation`."""
        self._now = now
        actions: list[Action] = []
        old = self._jobs.get(peer, message.request)
        if old is not None:
            if old.attempt >= message.attempt:
                return []
            actions += self._drop(old)
        busy = ToPeer(peer, Busy(message.request, message.attempt))
        capacity = self._slots.get(message.slot)
        if self._draining or capacity is None or capacity.hello.incarnation != message.incarnation:
            return [*actions, busy]
        if capacity.alone if message.alone else capacity.full:
            capacity.refused = now
            return [*actions, busy]
        if found is None:
            found = self._prepare(message.kind, message.body, message.created, capacity.hello)
        if isinstance(found, RequestError):
            return [*actions, outcomes.refused(peer, message.request, message.attempt, found)]
        job = Job(
            peer,
            message.request,
            message.attempt,
            message.slot,
            message.kind,
            found,
            message.seed,
            message.created,
            stream=message.stream,
            begun=not message.first,
            alone=message.alone,
            told=message.told,
        )
        waiting = job.unfold(message.resume, self._tokenizer)
        if waiting and not message.alone and not capacity.fits(waiting[0].need):
            capacity.refused = now
            return [*actions, busy]
        return [*actions, *self._begin(job, capacity, waiting)]

    def row(
        self,
        key: str,
        kind: Kind,
        body: bytes,
        seed: int,
        slot: int,
        now: float,
        created: int = 0,
        *,
        alone: bool = False,
    ) -> list[Action]:
        """A batch row: the same way, never streamed. It may wait here for room; ask `free` first.

        alone: the replica is emptied for it.
        """
        self._now = now
        capacity = self._slots.get(slot)
        if capacity is None or self._draining or self._jobs.get(None, key) is not None:
            return [RowLost(key, False)]
        found = self._prepare(kind, body, created, capacity.hello)
        if isinstance(found, RequestError):
            return [outcomes.refused(None, key, 0, found)]
        job = Job(None, key, 0, slot, kind, found, seed, created, stream=False, begun=True, alone=alone)
        return self._begin(job, capacity, job.unfold([], self._tokenizer))

    def cancel(self, peer: bytes, request: str) -> list[Action]:
        """The client left: its sequences are freed, nothing is answered."""
        job = self._jobs.get(peer, request)
        return [] if job is None else self._drop(job)

    def cancel_row(self, key: str) -> list[Action]:
        """The batch row is done elsewhere: its sequences are freed, nothing is answered."""
        job = self._jobs.get(None, key)
        return [] if job is None else self._drop(job)

    def peer_gone(self, peer: bytes) -> list[Action]:
        """An entry died: its sequences are freed."""
        return [a for job in self._jobs.of(peer) for a in self._drop(job)]

    # --- replicas -------------------------------------------------------------------------------------------

    def replica_up(self, hello: ReplicaHello) -> list[Action]:
        """A replica takes traffic; it runs nothing of an earlier agent."""
        actions = self.replica_gone(hello.slot, own_exit=False)
        health = self._deployment.health
        meter = Meter(health.window_requests, health.rest_seconds, self.measured)
        self._slots[hello.slot] = Capacity(hello, meter)
        return actions

    def replica_gone(self, slot: int, *, own_exit: bool, story: str = "") -> list[Action]:
        """A replica takes no traffic any more and its sequences are lost: others may go on with them.

        story: how it ended, for the clients whose requests may be the cause.
        """
        capacity = self._slots.pop(slot, None)
        if capacity is None:
            return []
        actions: list[Action] = []
        why = f"replica {slot} was lost under this request"
        if own_exit:
            why = f"replica {slot} ended by itself: {story}"
        for job in dict.fromkeys([choice.job for choice in capacity.choices()]):
            if any(choice.sequence for choice in job.choices):
                actions += self._lose(job, why, own_exit=own_exit)
            else:  # it only waited: nothing was lost, and it cannot be the cause
                actions += self._turn_away(job, capacity)
        return actions

    def tokens(self, slot: int, message: Tokens, now: float) -> list[Action]:
        """One step of a replica. Tokens of sequences that were given up are passed over."""
        self._now = now
        capacity = self._slots.get(slot)
        if capacity is None:
            return []
        actions: list[Action] = []
        first: list[Choice] = []
        running, untold = capacity.running, self._untold
        bunch = untold.bunch(slot)
        if message.logprobs or message.prompt:
            hear(message, running)
        for sequence, count in message.cached:
            if (choice := running.get(sequence)) is not None:
                choice.cached = count
        for sequence, token in message.tokens:
            choice = running.get(sequence)
            if choice is None:
                continue
            done = 1
            if choice.prefill:
                capacity.meter.first(choice, token, now)
                done += choice.prefill
                choice.prefill = 0
            elif token != choice.timing.only:
                choice.timing.only = VARIED
            choice.left -= done
            capacity.outstanding -= done
            state, job = choice.push(token), choice.job
            if state == "stopped":
                actions.append(ToReplica(slot, Abort(sequence)))
                actions += self._end(choice, capacity, "stop")
            elif state == "quiet" or job.events is None:
                if job.peer is not None:
                    untold.ids[choice] = None
            elif job.begun:
                bunch.choices[choice] = None
            else:
                first.append(choice)
        for sequence, reason in message.ended:
            choice = running.get(sequence)
            if choice is None:
                continue
            if reason == "error":
                capacity.meter.failed += 1
                capacity.leave(choice)
                actions += self._lose(
                    choice.job, "the replica could not compute this sequence", own_exit=choice.job.row
                )
            else:
                actions += self._end(choice, capacity, reason)
        untold.stepped(bunch, now)
        if first:
            actions += frames(choice for choice in first if choice.job in self._jobs)
        actions += self._start_waiting(capacity)
        return replicas_first(actions)

    def no_room(self, slot: int, message: NoRoom) -> list[Action]:
        """A replica refused a sequence: it is full, or for good, which is a defect since room is checked here."""
        capacity = self._slots.get(slot)
        choice = capacity.running.get(message.sequence) if capacity else None
        if capacity is None or choice is None:
            return []
        capacity.leave(choice)
        if message.full:
            return self._turn_away(choice.job, capacity)
        capacity.meter.failed += 1
        log.error("replica %d refused sequence %d: %s", slot, message.sequence, message.reason)
        error = RequestError(
            f"the replica refused the sequence: {message.reason}", status=500, type="server_error"
        )
        job = choice.job
        return [*self._drop(job), outcomes.refused(job.peer, job.name, job.attempt, error)]

    def _turn_away(self, job: Job, capacity: Capacity[Choice]) -> list[Action]:
        """The replica does not take it after all: what there is of the request is told, it may go on elsewhere."""
        capacity.refused = self._now
        told = frames(job.choices)
        return [*self._drop(job), *told, outcomes.turned_away(job)]

    # --- the caller's loop ----------------------------------------------------------------------------------

    @property
    def until(self) -> float:
        """When `flush` is to be called at the latest."""
        return self._untold.until

    def flush(self, now: float, *, everything: bool = False) -> list[Action]:
        """Frames that are due, one message a peer. Call after each burst of messages, at `until` and every 50 ms.

        everything: also those that would wait for company.
        """
        self._now = now
        actions = self._untold.due(now, everything=everything)
        if now - self._life_at >= LIFE_SECONDS:
            self._life_at = now
            actions += self._signs_of_life()
        for capacity in self._slots.values():
            if capacity.rows:
                actions += self._start_waiting(capacity)
        return replicas_first(actions)

    def _signs_of_life(self) -> list[Action]:
        """Requests whose replica is being emptied for them: their entries must not take them for lost."""
        return [
            ToPeer(choice.job.peer, Frames([choice.take_frame()]))
            for capacity in self._slots.values()
            for choice in capacity.alone
            if choice.job.peer is not None and not choice.sequence
        ]

    def drain(self) -> None:
        """From now on every new request is told Busy and every new row is lost; what runs goes on."""
        self._draining = True

    def stop_rows(self) -> list[Action]:
        """All batch rows are lost, and run again elsewhere: what is left of a drain is for clients who wait."""
        actions: list[Action] = []
        for job in self._jobs.of(None):
            actions += self._lose(job, "draining", own_exit=False)
        return actions

    def room(self) -> list[Load]:
        """What each replica has to do, by slot."""
        return [capacity.load for _, capacity in sorted(self._slots.items())]

    def service(self, slot: int, now: float) -> Service:
        """How well and how fast this replica serves."""
        capacity = self._slots.get(slot)
        return Service() if capacity is None else capacity.meter.service(capacity.running.values(), now)

    def free(self, slot: int) -> int:
        """Batch rows that this replica can take now. Some places stay free for online requests."""
        capacity = self._slots.get(slot)
        return 0 if capacity is None or self._draining else capacity.free(self._now)

    @property
    def idle(self) -> bool:
        """Nothing runs or waits."""
        return not self._jobs

    # --- inside ---------------------------------------------------------------------------------------------

    def _prepare(self, kind: Kind, body: bytes, created: int, hello: ReplicaHello) -> Prepared | RequestError:
        try:
            return prepare(kind, body, created, hello, self._deployment, self._tokenizer, self._version)
        except RequestError as e:
            return e
        except Exception:  # a defect of ours must not take the other requests of this node down
            log.exception("a request could not be prepared")
            return RequestError("the request could not be prepared: a defect", status=500, type="server_error")

    def _begin(self, job: Job, capacity: Capacity[Choice], waiting: list[Choice]) -> list[Action]:
        job.came = self._now
        if job.told:
            where = told(request=job.name, attempt=job.attempt, slot=job.slot)
            log.info("%d prompt tokens, %d choices", job.prompt_tokens, len(job.choices), extra=where)
        self._jobs.add(job)
        if not waiting:
            return self._complete(job)
        for choice in waiting:
            capacity.wait(choice)
        if not job.row:
            for choice in job.choices:
                if choice.untold:
                    self._untold.soon(choice)
        return self._start_waiting(capacity)

    def _start_waiting(self, capacity: Capacity[Choice]) -> list[Action]:
        actions: list[Action] = []
        while (choice := capacity.next(self._now)) is not None:
            self._sequence += 1
            capacity.start(choice, self._sequence)
            choice.timing = Timing(self._now)
            waited = self._now - choice.job.came
            self.measured.queue.seconds(waited)
            if choice.job.told:
                where = told(request=choice.job.name, slot=capacity.hello.slot, sequence=self._sequence)
                log.info("choice %d begins after %.3f s in line", choice.index, waited, extra=where)
            admit = choice.admit(self._sequence, self._tokenizer.eos_ids)
            actions.append(ToReplica(capacity.hello.slot, admit))
        return actions

    def _end(self, choice: Choice, capacity: Capacity[Choice], reason: Finish) -> list[Action]:
        job = choice.job
        job.odd |= capacity.meter.ended(choice, self._now)
        capacity.leave(choice)
        choice.end(reason)
        job.open -= 1
        if job.open == 0:
            capacity.meter.served += 1
            capacity.meter.odd += job.odd
            return self._complete(job)
        if not job.row:
            self._untold.soon(choice)
        return []

    def _complete(self, job: Job) -> list[Action]:
        seconds = self._now - job.came
        self.measured.ended(seconds, job.prompt_tokens, job.completion_tokens)
        if job.told:
            log.info("done in %.3f s", seconds, extra=told(request=job.name, tokens=job.completion_tokens))
        ended = outcomes.completed(job)
        self._forget(job)
        return [ended]

    def _lose(self, job: Job, why: str, *, own_exit: bool) -> list[Action]:
        """This attempt ends, another one may succeed: first tell what there is, so that it need not be redone."""
        if job.told or (not job.row and self._stories.problem(self._now)):
            lost = told(request=job.name, attempt=job.attempt, slot=job.slot, why=why)
            log.warning("it is lost here" + (" by the replica's own exit" if own_exit else ""), extra=lost)
        last = frames(job.choices)
        return [*self._drop(job), *last, outcomes.interrupted(job, why, own_exit=own_exit)]

    def _drop(self, job: Job) -> list[Action]:
        """Free everything that a job holds; what waited for it may start."""
        capacity = self._slots.get(job.slot)
        if capacity is None:
            self._forget(job)
            return []
        actions: list[Action] = [
            ToReplica(job.slot, Abort(choice.sequence)) for choice in job.choices if capacity.leave(choice)
        ]
        self._forget(job)
        return [*actions, *self._start_waiting(capacity)]

    def _forget(self, job: Job) -> None:
        self._jobs.remove(job)
        self._untold.forget(job.choices)
        job.close()
