"""One living replica as the agent's loop sees it: its step, the link to its head rank, its canary."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from exahpc.agent.ending import Verdict
from exahpc.agent.events import Beat, CanaryEnded, Ended, Event, Hello, LinkLost, Moved
from exahpc.agent.steps import Step
from exahpc.wire import local
from exahpc.wire.messages import (
    Admit,
    Admits,
    Adopt,
    Message,
    NoRoom,
    ReplicaBeat,
    ReplicaHello,
    ReplicaToAgent,
    StopReplica,
    Tokens,
)

log = logging.getLogger(__name__)

CANARY_SEQUENCE = 0  # the relay numbers its sequences from 1
CANARY_PROMPT = [1, 2, 3]  # token ids that every vocabulary has
CANARY_TOKENS = 4
_LONGEST_WAIT = 0.25  # the socket is local: looking for it costs nothing
SILENT_SECONDS = 8.0
"""A replica that called itself idle, got no work and said nothing for so long is stopped: it beats every second.
One that works may be deep in a step, and is judged by its tokens."""
_LOOKS = 4


class Replica:
    """Turns what the step and its head rank do into events. `hello` is the last one heard."""

    def __init__(
        self,
        step: Step,
        agent: str,
        emit: Callable[[Event], None],
        on_tokens: Callable[[int, Tokens], None],
        on_no_room: Callable[[int, NoRoom], None],
    ) -> None:
        self.step = step
        self.slot, self.incarnation = step.record.slot, step.record.incarnation
        self.hello: ReplicaHello | None = None
        self._agent, self._emit = agent, emit
        self._on_tokens, self._on_no_room = on_tokens, on_no_room
        self._canary: int | None = None  # tokens so far, while a canary runs
        self._admits: list[Admit] = []  # leave at the end of this turn of the loop
        self._idle = self._given = False  # it said so last; it got something since its last beat
        self._missed = 0  # looks in a row that saw no word of it
        self._loop = asyncio.get_running_loop()
        self._socket = Path(step.record.socket)
        self._client = local.Client(
            self._socket,
            ReplicaToAgent,
            self._heard,
            on_up=self._greet,
            on_lost=lambda: emit(LinkLost(self.slot, self.incarnation)),
            longest_wait=_LONGEST_WAIT,
        )
        self._looking = self._loop.call_later(SILENT_SECONDS / _LOOKS, self._look)
        step.watch(self._ended)

    def _greet(self) -> None:
        """Each connection begins with nothing running: what an older one started is dropped by the replica."""
        self._canary, self._idle, self._given = None, False, True
        self._admits.clear()
        self._client.send(Adopt(self._agent))

    def _look(self) -> None:
        """Looks are counted, not timed: an agent that slept itself has missed one at most."""
        self._looking = self._loop.call_later(SILENT_SECONDS / _LOOKS, self._look)
        self._missed += 1
        if self._idle and self._missed > _LOOKS:
            log.warning("slot %d says nothing, though it has nothing else to do", self.slot)
            self._client.reconnect()

    def _heard(self, message: ReplicaHello | Tokens | ReplicaBeat | NoRoom) -> None:
        self._missed = 0
        match message:
            case Tokens():
                if self._canary is not None:
                    message = self._canary_heard(message)
                if message.tokens or message.ended or message.prompt:
                    self._emit(Moved(self.slot, self.incarnation, len(message.tokens)))
                    self._on_tokens(self.slot, message)
            case ReplicaBeat():
                # of what it was just given, a beat that was on its way knows nothing
                self._idle, self._given = not (message.running or message.waiting or self._given), False
                self._emit(
                    Beat(
                        self.slot,
                        self.incarnation,
                        message.running,
                        message.waiting,
                        message.kv_free,
                        message.steps,
                        tuple(message.idle),
                        message.prefix_hits,
                        message.preemptions,
                    )
                )
            case NoRoom():
                if message.sequence == CANARY_SEQUENCE:
                    self._canary_over(message.reason)
                else:
                    self._on_no_room(self.slot, message)
            case ReplicaHello():
                if (message.slot, message.incarnation) != (self.slot, self.incarnation):
                    log.error("%s is not the replica that was started there: %s", self._socket, message)
                    return
                self.hello = message
                self._emit(Hello(self.slot, self.incarnation))

    def probe(self) -> None:
        """Run the canary: a short greedy generation through all ranks. Ends in CanaryEnded, or in silence."""
        self._canary, self._idle, self._given = 0, False, True
        self._client.send(
            Admit(
                sequence=CANARY_SEQUENCE,
                ids=CANARY_PROMPT,
                new=CANARY_TOKENS,
                position=0,
                seed=0,
                stream=0,
                stop_ids=[],
            )
        )

    def _canary_heard(self, message: Tokens) -> Tokens:
        """Take the canary's share out of a message."""
        assert self._canary is not None
        mine = [token for sequence, token in message.tokens if sequence == CANARY_SEQUENCE]
        ends = [reason for sequence, reason in message.ended if sequence == CANARY_SEQUENCE]
        self._canary += len(mine)
        if ends:
            good = ends[0] != "error" and self._canary == CANARY_TOKENS
            self._canary_over(None if good else f"{self._canary} of {CANARY_TOKENS} tokens, then {ends[0]!r}")
        if not mine and not ends:
            return message
        return msgspec.structs.replace(
            message,
            tokens=[pair for pair in message.tokens if pair[0] != CANARY_SEQUENCE],
            ended=[pair for pair in message.ended if pair[0] != CANARY_SEQUENCE],
        )

    def _canary_over(self, problem: str | None) -> None:
        self._canary = None
        self._emit(CanaryEnded(self.slot, self.incarnation, problem))

    def send(self, message: Message) -> None:
        """In order. Sequences that come in one turn of the loop leave at its end in one message: under load, a
        message costs more than what the agent does for a token."""
        self._idle, self._given = False, True
        if isinstance(message, Admit):
            if not self._admits:
                self._loop.call_soon(self._flush)
            self._admits.append(message)
        else:
            self._flush()
            self._client.send(message)

    def _flush(self) -> None:
        admits, self._admits = self._admits, []
        if admits:
            self._client.send(admits[0] if len(admits) == 1 else Admits(admits))

    def stop(self) -> None:
        """Ask it to end in order; without a link nobody could hear, so it is killed."""
        if not self._client.send(StopReplica()):
            self.step.kill()

    def _ended(self, verdict: Verdict) -> None:
        self._close()
        self._emit(Ended(self.slot, self.incarnation, verdict.story, verdict.own_exit))

    def release(self) -> None:
        """Let go; the step lives on."""
        self._close()
        self.step.release()

    def _close(self) -> None:
        self._looking.cancel()
        self._client.close()
