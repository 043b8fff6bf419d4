"""Continuous batching: which tokens of which sequences run next. Pure: no clock, no device.

A sequence waits, then holds a slot and a reservation of KV tokens for its whole possible length, so a running
sequence never has to give way. Each plan holds every decoding sequence of its lane (one token each) and at most
`chunk` prompt tokens of prefilling ones. Online sequences start before batch rows; within a class, first come,
first served, and nobody overtakes a sequence that does not fit yet.

Lanes are the micro-batches of a pipeline. A lane owns a range of slots, is in flight from `plan` to `done`, and
its sequences never change lanes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items
from itertools import pairwise

import msgspec

from exahpc.errors import StateError
from exahpc.replica.plan import Move, Plan, Row
from exahpc.wire.messages import Admit, NoRoom, Reason, Tokens


class Limits(msgspec.Struct, frozen=True):
    """sequences: slots; tokens: KV tokens over all slots; context: longest sequence; chunk: prompt tokens of one
    plan; lanes: micro-batches in flight; vocabulary: token ids are below it."""

    sequences: int
    tokens: int
    context: int
    chunk: int
    lanes: int
    vocabulary: int


class _Sequence:
    """One admitted sequence. ids: prompt and generated tokens; cached: how many of them are in the KV cache."""

    __slots__ = ("cached", "dead", "generated", "ids", "message", "slot", "stop")

    def __init__(self, message: Admit) -> None:
        self.message = message
        self.ids = list(message.ids)
        self.stop = frozenset(message.stop_ids)
        self.cached = self.generated = 0
        self.slot = -1
        self.dead = False

    @property
    def need(self) -> int:
        return len(self.message.ids) + self.message.new


class _Lane:
    """slots: range of the cache; active: in order of start; flight: whose tokens the plan in flight will bring;
    wipe: slots left with numbers that are not finite (attention multiplies what it masks by zero)."""

    __slots__ = ("active", "flight", "free", "slots", "wipe")

    def __init__(self, slots: range) -> None:
        self.slots = slots
        self.free = list(slots)  # kept sorted: the lowest is used first
        self.active: list[_Sequence] = []
        self.flight: list[_Sequence] | None = None
        self.wipe: list[int] = []


class Scheduler:
    """Owns all sequences of a replica. `plan` and `done` alternate for each lane."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        lanes = max(1, min(limits.lanes, limits.sequences))
        edges = [limits.sequences * i // lanes for i in range(lanes + 1)]
        self._lanes = [_Lane(range(a, b)) for a, b in pairwise(edges)]
        self._waiting: tuple[deque[_Sequence], deque[_Sequence]] = (deque(), deque())  # online, batch
        self._known: dict[int, _Sequence] = {}
        self._reserved = 0
        self.generated = 0

    # --- what the agent says --------------------------------------------------------------------------------

    def admit(self, message: Admit) -> NoRoom | None:
        """Take a sequence in, or say why it can never run. Waiting sequences are not bounded here."""
        reason = self._impossible(message)
        if reason:
            return NoRoom(message.sequence, reason)
        found = _Sequence(message)
        self._known[message.sequence] = found
        self._waiting[message.batch].append(found)
        return None

    def _impossible(self, message: Admit) -> str:
        limits, need = self.limits, len(message.ids) + message.new
        if message.sequence in self._known:
            return f"sequence {message.sequence} runs already"
        if not message.ids:
            return "no tokens: a sequence needs at least one"
        if message.new < 1:
            return f"new = {message.new}: a sequence must be allowed to generate at least one token"
        if need > limits.context:
            return f"{len(message.ids)} prompt + {message.new} new tokens exceed the context of {limits.context}"
        if need > limits.tokens:
            return f"{len(message.ids)} prompt + {message.new} new tokens exceed the KV cache of {limits.tokens}"
        if min(message.ids) < 0 or max(message.ids) >= limits.vocabulary:
            return f"token ids must lie in 0..{limits.vocabulary - 1}"
        temperature, top_p = message.sampling.temperature, message.sampling.top_p
        if not 0.0 <= temperature < float("inf") or not 0.0 < top_p <= 1.0:
            return f"temperature = {temperature}, top_p = {top_p} are out of range"
        return ""

    def abort(self, sequence: int) -> None:
        """Forget a sequence; unknown ones have ended meanwhile. A plan in flight keeps its slot till `done`."""
        found = self._known.pop(sequence, None)
        if found is None:
            return
        found.dead = True
        if found.slot < 0:
            self._waiting[found.message.batch].remove(found)

    def drop_all(self) -> None:
        """Forget every sequence (a new agent took over)."""
        for sequence in list(self._known):
            self.abort(sequence)

    # --- iterations -----------------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """The next plan of a lane that is not in flight; None when there is nothing to run now."""
        idle = [lane for lane in self._lanes if lane.flight is None]
        for lane in idle:
            self._sweep(lane)
        for lane in idle:
            self._start(lane)
        # The lane that waited longest is first: lanes are kept in the order in which they were planned.
        for lane in idle:
            if lane.active:
                self._lanes.remove(lane)
                self._lanes.append(lane)
                return self._compose(lane)
        return None

    def done(self, lane: int, sampled: Items[int]) -> Tokens:
        """Take in the tokens drawn by the plan of `lane`: one for each row with `sample`; negative: no number.

        Raises StateError when that lane is not in flight.
        """
        found = next((x for x in self._lanes if x.slots.start == lane), None)
        if found is None or found.flight is None:
            raise StateError(f"lane {lane} is not in flight, yet its tokens {list(sampled)} came back")
        if len(found.flight) != len(sampled):
            raise StateError(f"lane {lane} asked for {len(found.flight)} tokens and got {len(sampled)}")
        tokens: list[tuple[int, int]] = []
        ended: list[tuple[int, Reason]] = []
        for sequence, token in zip(found.flight, sampled, strict=True):
            if sequence.dead:
                continue
            number = sequence.message.sequence
            reason: Reason | None = None
            if token < 0:
                reason = "error"
                found.wipe.append(sequence.slot)
            elif token in sequence.stop:
                reason = "stop"
            else:
                tokens.append((number, token))
                sequence.ids.append(token)
                sequence.generated += 1
                self.generated += 1
                if sequence.generated == sequence.message.new:
                    reason = "length"
            if reason:
                ended.append((number, reason))
                sequence.dead = True
                del self._known[number]
        found.flight = None
        self._sweep(found)
        return Tokens(tokens, ended)

    # --- what others ask ------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        return sum(len(lane.active) for lane in self._lanes)

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._waiting)

    @property
    def kv_free(self) -> int:
        """KV tokens that no running sequence has reserved."""
        return self.limits.tokens - self._reserved

    @property
    def in_flight(self) -> int:
        return sum(lane.flight is not None for lane in self._lanes)

    # --- inside ---------------------------------------------------------------------------------------------

    def _sweep(self, lane: _Lane) -> None:
        """Give back what dead sequences hold."""
        dead = [s for s in lane.active if s.dead]
        if dead:
            lane.active = [s for s in lane.active if not s.dead]
            lane.free = sorted([*lane.free, *(s.slot for s in dead)])
            self._reserved -= sum(s.need for s in dead)

    def _start(self, lane: _Lane) -> None:
        """Start waiting sequences, no more than this lane's share so that all lanes have work."""
        share = -(-(self.running + self.waiting) // len(self._lanes))
        while lane.free and len(lane.active) < share:
            queue = next((q for q in self._waiting if q), None)
            if queue is None or queue[0].need > self.kv_free:
                return
            sequence = queue.popleft()
            sequence.slot = lane.free.pop(0)
            self._reserved += sequence.need
            lane.active.append(sequence)

    def _compose(self, lane: _Lane) -> Plan:
        moves = self._compact(lane)
        rows: list[tuple[_Sequence, int]] = []
        budget = self.limits.chunk
        # Prompts share what the chunk allows, online ones first; whoever has one token left always runs.
        for sequence in sorted(lane.active, key=lambda s: s.message.batch):
            left = len(sequence.ids) - sequence.cached
            count = min(left, budget) if left > 1 else 1
            if count:
                rows.append((sequence, count))
                budget -= count if left > 1 else 0
        rows.sort(key=lambda row: (row[1] > 1, row[0].slot))  # single tokens in slot order: batched attention
        built = [self._row(sequence, count) for sequence, count in rows]
        lane.flight = [s for (s, _), row in zip(rows, built, strict=True) if row.sample]
        for sequence, count in rows:
            sequence.cached += count
        wipe, lane.wipe = lane.wipe, []
        return Plan(lane=lane.slots.start, wipe=wipe, moves=moves, rows=built)

    def _row(self, sequence: _Sequence, count: int) -> Row:
        message, at = sequence.message, sequence.cached
        ids = sequence.ids[at : at + count]
        if at + count < len(sequence.ids):
            return Row(sequence.slot, at, ids, False)
        return Row(
            sequence.slot,
            at,
            ids,
            True,
            message.sampling,
            message.seed & (2**64 - 1),
            message.stream,
            message.position + sequence.generated,
        )

    def _compact(self, lane: _Lane) -> list[Move]:
        """Keep running sequences in the lane's first slots: attention batches neighbours without copies."""
        moves: list[Move] = []
        for sequence in sorted(lane.active, key=lambda s: -s.slot):
            if not lane.free or lane.free[0] > sequence.slot:
                break
            target = lane.free.pop(0)
            if sequence.cached:
                moves.append(Move(sequence.slot, target, sequence.cached))
            lane.free = sorted([*lane.free, sequence.slot])
            sequence.slot = target
        return moves
