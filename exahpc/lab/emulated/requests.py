"""EMULATED: the requests of one emulated agent: validated by nobody, tokenized by nobody, answered with one word
over and over. Pure: messages and steps in, messages out.

It stands where the real agent has its relay; the messages to entries are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from exahpc.lab.emulated.engine import Engine
from exahpc.lab.emulated.label import LABEL
from exahpc.openai.answers import DONE, NO_LOGPROBS, EventFormat, Finish, answer
from exahpc.openai.peek import peek
from exahpc.wire.messages import Admit, Busy, Done, Failed, Frame, Load, Submit, Tokens

WORD = " word"
NEW_TOKENS = 16  # of a request that names no max_tokens
_BYTES_PER_TOKEN = 4

To = tuple[bytes, Busy | Done | Failed]
"""(entry, what it is told)."""


class _Request:
    """One attempt. left: tokens still to come; count: tokens so far, those of earlier attempts included."""

    __slots__ = (
        "body",
        "chunk",
        "count",
        "events",
        "left",
        "name",
        "peer",
        "prompt",
        "sequence",
        "slot",
        "submit",
    )

    def __init__(self, peer: bytes, submit: Submit, sequence: int) -> None:
        asked = peek(submit.body, submit.kind)
        self.peer, self.submit, self.sequence, self.slot = peer, submit, sequence, submit.slot
        self.name = submit.request
        self.count = len(submit.resume[0].ids) if submit.resume else 0
        self.left = max(1, (asked.max_tokens or NEW_TOKENS) - self.count)
        self.prompt = max(1, asked.size // _BYTES_PER_TOKEN)
        self.events: EventFormat | None = None
        self.chunk = b""
        if submit.stream:
            self.events = EventFormat(submit.kind, self.name, submit.created, LABEL, include_usage=False)
            self.chunk = self.events.text(0, WORD)

    def admit(self) -> Admit:
        return Admit(
            sequence=self.sequence,
            ids=[0] * (self.prompt + self.count),
            new=self.left,
            position=self.count,
            seed=self.submit.seed,
            stream=0,
            stop_ids=[],
        )

    def frame(self, ids: list[int], ended: bool) -> Frame:
        """What a step yielded, as bytes for the client."""
        before = self.count
        self.count += len(ids)
        self.left -= len(ids)
        data = b""
        if self.events is not None:
            data = self.chunk * len(ids)
            if before == 0 and self.submit.first:
                data = self.events.role(0) + data
            if ended:
                data += self.events.finish(0, "length")
        return Frame(
            self.name, self.submit.attempt, 0, before, ids, len(WORD) * self.count if data else 0, data, ended
        )

    def done(self) -> Done:
        data = DONE
        if self.events is None:
            made: list[tuple[str, Finish, bytes]] = [(WORD * self.count, "length", NO_LOGPROBS)]
            submit = self.submit
            data = answer(submit.kind, self.name, submit.created, LABEL, made, self.prompt, self.count)
        return Done(self.name, self.submit.attempt, data, self.prompt, self.count)


class Requests:
    """By slot and sequence. The replicas themselves are `Engine`s, which the caller advances."""

    def __init__(self) -> None:
        self.engines: dict[int, Engine] = {}
        self.incarnations: dict[int, int] = {}
        self._by_slot: dict[int, dict[int, _Request]] = {}
        self._by_name: dict[tuple[bytes, str], _Request] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._by_name)

    def serve(self, slot: int, incarnation: int, engine: Engine) -> None:
        """A replica takes traffic from now on."""
        self.engines[slot], self.incarnations[slot] = engine, incarnation
        self._by_slot[slot] = {}

    def submit(self, peer: bytes, message: Submit, now: float) -> To | None:
        engine = self.engines.get(message.slot)
        old = self._by_name.get((peer, message.request))
        if old is not None:
            self._forget(old, now)
        busy = peer, Busy(message.request, message.attempt)
        if engine is None or self.incarnations[message.slot] != message.incarnation:
            return busy
        running = self._by_slot[message.slot]
        if len(running) >= engine.sequences:
            return busy
        self._sequence += 1
        request = _Request(peer, message, self._sequence)
        refused = engine.admit(request.admit(), now)
        if refused is not None:
            return busy if refused.full else (peer, Failed(message.request, message.attempt, 400, refused.reason))
        running[request.sequence] = self._by_name[peer, message.request] = request
        return None

    def cancel(self, peer: bytes, name: str, now: float) -> None:
        request = self._by_name.get((peer, name))
        if request is not None:
            self._forget(request, now)

    def peer_gone(self, peer: bytes, now: float) -> None:
        for request in [r for (its, _), r in self._by_name.items() if its == peer]:
            self._forget(request, now)

    def _forget(self, request: _Request, now: float) -> None:
        self.engines[request.slot].abort(request.sequence, now)
        del self._by_slot[request.slot][request.sequence], self._by_name[request.peer, request.name]

    def lost(self, slot: int, own_exit: bool, now: float) -> Iterator[To]:
        """The replica is gone, and what it ran goes on elsewhere."""
        for request in list(self._by_slot.pop(slot, {}).values()):
            del self._by_name[request.peer, request.name]
            why = f"{LABEL} replica {slot} was lost under this request"
            yield (
                request.peer,
                Failed(request.name, request.submit.attempt, 503, why, retry=True, own_exit=own_exit),
            )
        self.engines.pop(slot, None)
        self.incarnations.pop(slot, None)

    def step(self, slot: int, message: Tokens) -> tuple[dict[bytes, list[Frame]], list[tuple[bytes, Done]]]:
        """Frames by entry, and the requests that are complete with them."""
        running = self._by_slot[slot]
        over = {sequence for sequence, _ in message.ended}
        ids: dict[int, list[int]] = {}
        for sequence, token in message.tokens:
            ids.setdefault(sequence, []).append(token)
        frames: dict[bytes, list[Frame]] = {}
        done: list[tuple[bytes, Done]] = []
        for sequence, fresh in ids.items():
            request = running[sequence]
            ended = sequence in over
            frames.setdefault(request.peer, []).append(request.frame(fresh, ended))
            if ended:
                done.append((request.peer, request.done()))
                del running[sequence], self._by_name[request.peer, request.name]
        return frames, done

    def loads(self) -> list[Load]:
        """For `Room`, by slot."""
        return [
            Load(slot, sum(r.left for r in running.values()), len(running), self.engines[slot].kv_share)
            for slot, running in sorted(self._by_slot.items())
        ]
