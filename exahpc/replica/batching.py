"""Continuous batching over a paged KV cache: which tokens of which sequences run next. Pure: no clock, no device.

**Order.** Each sequence has a key (step of its arrival, number); a batch row counts as if it had arrived
`patience` steps later. The lower key goes first, always: so online sequences go before batch rows, and since only
finitely many have lower keys than a given one, nobody starves. Waiting sequences start in this order and nobody
overtakes.

**A plan** holds one token of each decoding sequence and fills the rest of `budget` with parts of prompts; while
online sequences decode, so that they need not wait long for their next token, only `chunk` prompt tokens or two
for each that decodes, and fewer far into a long prompt. The prompt with the lowest key is sure of a quarter of
that room (a block at least) in every plan; the others go by what is left of them, the shortest first, batch rows
last. So a long prompt neither holds up short ones nor waits for ever.

**Batch rows** take turns while online sequences are there: plans then have room for so many tokens of rows that
they take a seventh longer, on the mean. For a while after that their prompts take small parts, since who comes
next waits for the plan in flight (`beside`). Else rows have all the room.

**Blocks** are taken when they are needed. If none is free, the running sequence with the highest key gives way:
it gives back its blocks and waits with its old key; what it computed stays remembered, so that going on is often
free. An online sequence that cannot start makes batch rows give way. The lowest key never gives way, hence
everything ends. Prompts that begin alike share blocks (`blocks`), even within one plan.

**Lanes** are plans in flight at once, one a pipeline stage. A sequence whose token is in flight waits for it; each
plan takes its share of the decoding ones, so lanes stay even.
"""

from __future__ import annotations

import math
from itertools import repeat

from exahpc.errors import StateError
from exahpc.replica.beside import Beside, due
from exahpc.replica.blocks import BLOCK
from exahpc.replica.limits import Limits, impossible, least_budget
from exahpc.replica.plan import Drawn, Plan, Row
from exahpc.replica.residents import Residents
from exahpc.replica.sequence import Sequence
from exahpc.wire.messages import Admit, Likelihood, NoRoom, Reason, Tokens

__all__ = ["Limits", "Scheduler", "least_budget"]


class Scheduler:
    """Owns all sequences of a replica. Each `plan` is answered by one `done` with its lane, in the same order."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._residents = Residents(limits.sequences, limits.blocks, limits.prefix)
        self._known: dict[int, Sequence] = {}
        self._flight: dict[int, tuple[list[Sequence], list[Sequence]]] = {}  # who samples, who scores
        self._admitted = self._steps = 0
        self._beside = Beside(limits)
        self.generated = 0

    # --- what the agent says --------------------------------------------------------------------------------

    def admit(self, message: Admit) -> NoRoom | None:
        """Take a sequence in, or say why not."""
        known = message.sequence in self._known
        reason = f"sequence {message.sequence} runs already" if known else impossible(message, self.limits)
        if reason:
            return NoRoom(message.sequence, reason)
        if self.waiting >= self.limits.queue:
            return NoRoom(message.sequence, f"{self.waiting} sequences wait already", full=True)
        self._admitted += 1
        found = Sequence(message, (self._steps + message.batch * self.limits.patience, self._admitted))
        self._known[message.sequence] = found
        self._residents.enqueue(found)
        return None

    def abort(self, sequence: int) -> None:
        """Forget a sequence and free what it holds, at once; unknown ones have ended meanwhile."""
        found = self._known.get(sequence)
        if found is not None:
            self._end(found)

    def drop_all(self) -> None:
        """Forget every sequence (a new agent took over)."""
        for sequence in list(self._known.values()):
            self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        sequence.dead = True
        del self._known[sequence.message.sequence]
        self._residents.leave(sequence)

    # --- iterations -----------------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """The next plan, for a lane that is not in flight; None when nothing can run now."""
        lane = next((n for n in range(self.limits.lanes) if n not in self._flight), None)
        if lane is None:
            return None
        gave_way = -1
        chosen: list[tuple[Sequence, Row]] = []
        while not chosen and gave_way != self.preemptions:  # whoever was due gave way: others can run
            gave_way = self.preemptions
            chosen = self._choose()
        if not chosen:
            return None
        self._steps += 1
        chosen.sort(key=lambda pair: (len(pair[1].ids) > 1, pair[1].slot))
        self._flight[lane] = [s for s, row in chosen if row.sample], [s for s, row in chosen if row.score]
        wipe = self._residents.pool.unclean()
        begins = [s.begin() for s, _ in chosen if not s.begun]
        blocks = [s.tell() for s, _ in chosen if s.untold]
        return Plan(lane, wipe, begins, blocks, [row for _, row in chosen])

    def done(self, lane: int, drawn: Drawn) -> Tokens:
        """Take in what was drawn for the plan of `lane`.

        Raises StateError when that lane is not in flight or the answer is not one to its plan.
        """
        if lane not in self._flight:
            raise StateError(f"lane {lane} is not in flight, yet its tokens {drawn.tokens} came back")
        sampling, scoring = self._flight.pop(lane)
        if (len(sampling), len(scoring)) != (len(drawn.tokens), len(drawn.scores)):
            raise StateError(
                f"lane {lane} asked for {len(sampling)} tokens and {len(scoring)} scores "
                f"and got {len(drawn.tokens)} and {len(drawn.scores)}"
            )
        told = Tokens([], [])
        for sequence, score in zip(scoring, drawn.scores, strict=True):
            if score and not sequence.dead:
                told.prompt.append((sequence.message.sequence, score))
        for sequence, token, logprob in zip(
            sampling, drawn.tokens, drawn.logprobs or repeat(None), strict=bool(drawn.logprobs)
        ):
            if not sequence.dead:
                self._take(sequence, token, logprob, told)
        return told

    def _take(self, sequence: Sequence, token: int, logprob: Likelihood | None, told: Tokens) -> None:
        sequence.awaited = False
        number = sequence.message.sequence
        reason: Reason | None = None
        if token < 0:
            reason = "error"
            self._residents.pool.condemn(sequence.blocks)
        else:
            sequence.sound = len(sequence.ids)
            if sequence.found and not sequence.generated:
                told.cached.append((number, sequence.found))
            if token in sequence.stop:
                reason = "stop"
            else:
                told.tokens.append((number, token))
                if logprob is not None:
                    told.logprobs.append((number, logprob))
                sequence.ids.append(token)
                sequence.generated += 1
                self.generated += 1
                if sequence.generated == sequence.message.new:
                    reason = "length"
        if reason:
            told.ended.append((number, reason))
            self._end(sequence)

    # --- what others ask ------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self._residents.running)

    @property
    def waiting(self) -> int:
        return len(self._residents.waiting)

    @property
    def kv_free(self) -> int:
        """KV tokens that no running sequence holds."""
        return self._residents.pool.free * BLOCK

    @property
    def kv_cached(self) -> int:
        """Those of them that are remembered for the next prompt that begins alike."""
        return self._residents.pool.remembered * BLOCK

    @property
    def prefix_hits(self) -> int:
        """Prompt tokens that did not have to be computed, so far."""
        return self._residents.hits

    @property
    def preemptions(self) -> int:
        """How often a running sequence had to give way, so far."""
        return self._residents.preemptions

    @property
    def in_flight(self) -> int:
        return len(self._flight)

    # --- who runs -------------------------------------------------------------------------------------------

    def _choose(self) -> list[tuple[Sequence, Row]]:
        residents, limits, beside = self._residents, self.limits, self._beside
        residents.start()
        idle = [s for s in residents.running if not s.awaited]
        for sequence in idle:
            residents.adopt(sequence)
        beside.look(residents.running, self._steps)
        prompts = [s for s in idle if s.left > 1]
        decoding = due([s for s in idle if s.left == 1], residents.running, limits.lanes)
        hurry = beside.lately or any(not s.message.batch for s in residents.running if s.left <= 1)  # in any lane
        room = limits.room(len(decoding), hurry, beside.lately)
        if beside.online:
            prompts.sort(key=lambda s: s.message.batch)
        beside.earn(sum(s.left for s in (*decoding, *prompts) if not s.message.batch))
        sure = _sure(prompts, room)
        chosen: list[tuple[Sequence, Row]] = []
        for sequence in sorted([*decoding, *prompts[:1]], key=lambda s: s.key):
            if sequence.slot < 0:  # gave way to one before it
                continue
            decodes = sequence.left == 1
            weight = limits.weight(sequence.cached, hurry)
            count = beside.most(sequence, 1 if decodes else sequence.cut(max(BLOCK, math.ceil(sure / weight))))
            if not count:
                continue
            if residents.grow(sequence, count):
                chosen.append((sequence, self._row(sequence, count)))
                room -= 0 if decodes else int(count * weight)
            elif sequence.slot >= 0:  # it waits for tokens in flight: nobody takes what they will give back
                return chosen
        for sequence in sorted(prompts[1:], key=lambda s: (*_size(s), s.key)):
            if sequence.slot < 0:
                continue
            residents.adopt(sequence)  # also what rows of this very plan compute
            weight = limits.weight(sequence.cached, hurry)
            count = beside.most(sequence, sequence.cut(max(0, math.ceil(room / weight))))
            if count and residents.has(sequence, count) and residents.grow(sequence, count):
                chosen.append((sequence, self._row(sequence, count)))
                room -= int(count * weight)
        return chosen

    def _row(self, sequence: Sequence, count: int) -> Row:
        before = sequence.cached
        row = sequence.row(count)
        sequence.turn = self._steps
        self._residents.publish(sequence, before)
        return row


def _sure(prompts: list[Sequence], room: int) -> int:
    """Tokens for the prompt that goes first: its quarter, or what the shorter ones leave."""
    shorter = sum(s.left for s in prompts if _size(s) < _size(prompts[0]))
    return max(BLOCK, room // 4, room - shorter)


def _size(prompt: Sequence) -> tuple[bool, int]:
    """The shorter prompts come first, those of batch rows after all others."""
    return prompt.message.batch, prompt.left
