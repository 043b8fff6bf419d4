"""EMULATED: how long a replica would take, without computing anything. Pure: times are arguments, in seconds.

A replica works in *steps*: each gives one token to every sequence that decodes, and computes parts of prompts
beside them (continuous batching with chunked prefill, as `exahpc.replica.batching` does it). A step takes

    base + each * decoding [+ prompt + tokens / rate, when `tokens` prompt tokens are computed in it]

All that happens is counted in steps: a `Batch` only remembers how many were done (a fraction while one runs) and
how long one takes now, so that nothing has to happen between the arrival of a request, its first token and its
end, and still every token has its time.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Annotated

import msgspec

_SURE = 0.25
"""Share of a step's prompt tokens that a long prompt gets while shorter ones go before it."""
_TINY = 1e-6
"""Steps: sums of floating-point numbers that are whole in truth may be off by less."""


_Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a step costs. The defaults give the reference load (9.2 requests/s a replica, prompts and answers of 64
    tokens) a first token after 54 ms and a further one each 24 ms, in the middle."""

    base_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 0.0174
    """A step in which nothing decodes or is computed."""
    each_seconds: _Seconds = 0.00015
    """Each sequence that decodes in it."""
    prompt_seconds: _Seconds = 0.0133
    """A step that computes parts of prompts takes so much longer, ..."""
    prompt_rate: Annotated[float, msgspec.Meta(gt=0, le=1e12)] = 8000.0
    """... and one second longer for so many prompt tokens."""
    chunk: Annotated[int, msgspec.Meta(ge=1)] = 512
    """Most prompt tokens of one step."""

    def step(self, decoding: int) -> float:
        """Seconds of a step without prompts."""
        return self.base_seconds + self.each_seconds * decoding

    def alone(self, prompt: int, new: int) -> tuple[float, float]:
        """(seconds to the first token, to the last one) of a request that is alone on a replica."""
        steps = -(-prompt // self.chunk)
        first = steps * (self.base_seconds + self.prompt_seconds) + prompt / self.prompt_rate
        return first, first + (new - 1) * self.step(1)


Progress = tuple[int, bool]
"""(sequence, whether its first token is out; otherwise it has ended with its last one)."""


class _Running:
    __slots__ = ("began", "kv", "left", "new", "number", "placed", "prompt")

    def __init__(self, number: int, prompt: int, new: int) -> None:
        self.number, self.prompt, self.new = number, prompt, new
        self.left = float(prompt)  # of the prompt, to be computed
        self.kv = prompt + new
        self.placed = False
        self.began = -1.0  # steps that were done at its first token


class Batch:
    """One replica: what runs on it, and when what will happen if nothing else comes.

    steps: done so far; decoding, running, waiting: sequences that make tokens, that have a place, that have none;
    kv: tokens that the running ones will hold in the end. slow: everything takes so many times as long; frozen:
    nothing goes on any more (a replica that looks alive). due: when `advance` has something to tell next; infinite
    when nothing runs, or nothing moves.
    """

    __slots__ = (
        "_at", "_base", "_begun", "_each", "_ends", "_known", "_left_tokens", "_long", "_open", "_phase",
        "_phase_end", "_phase_extra", "_phase_rate", "_short", "_step", "_waiting", "decoding", "due", "frozen",
        "kv", "kv_tokens", "latency", "running", "sequences", "slow", "steps",
    )  # fmt: skip

    def __init__(self, latency: Latency, sequences: int, kv_tokens: int, slow: float = 1.0) -> None:
        self.latency, self.sequences, self.kv_tokens, self.slow = latency, sequences, kv_tokens, slow
        self._base, self._each = latency.base_seconds, latency.each_seconds
        self.frozen = False
        self.due = math.inf
        self.steps = 0.0
        self.running = self.decoding = self.kv = 0
        self._left_tokens = 0  # of sequences that are gone
        self._open = 0  # prompts not computed yet, and all tokens of the answers of known sequences
        self._begun = 0.0  # sum of `began` of those that decode
        self._at = 0.0  # when `steps` was right
        self._step = latency.base_seconds * slow  # seconds that one takes now
        self._known: dict[int, _Running] = {}
        self._waiting: deque[_Running] = deque()
        self._short: deque[_Running] = deque()  # prompts that fit in one step, in order
        self._long: deque[_Running] = deque()  # the others; only the first is computed
        self._phase: list[_Running] = []  # short prompts that are computed until ...
        self._phase_end = math.inf  # ... so many steps are done; infinite while no prompt is computed
        self._phase_extra = 0.0  # seconds that prompts add to each step
        self._phase_rate = 0.0  # tokens of the first long prompt that each step computes
        self._ends: list[tuple[float, int]] = []  # (steps at its end, number) of those that decode

    # --- what is asked ---------------------------------------------------------------------------------------

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._known

    def __len__(self) -> int:
        return len(self._known)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def emitted(self, sequence: int) -> int:
        """Tokens of a known sequence that were out when the clock last moved."""
        return self._emitted(self._known[sequence])

    def tokens(self) -> int:
        """All tokens ever, as of when the clock last moved. Costs a look at each sequence."""
        return self._left_tokens + sum(map(self._emitted, self._known.values()))

    @property
    def outstanding(self) -> int:
        """Tokens to be computed or generated, as of when the clock last moved."""
        return max(0, round(self._open + self._begun - self.decoding * (1 + self.steps)))

    def next_step(self) -> float:
        """When the present step is done: then every decoding sequence has one more token."""
        if not self.running or self.frozen:
            return math.inf
        return self._at + (math.floor(self.steps + _TINY) + 1 - self.steps) * self._step

    # --- what happens ----------------------------------------------------------------------------------------

    def admit(self, sequence: int, prompt: int, new: int, now: float) -> None:
        """A sequence comes; prompt: tokens to compute, at least one; new: tokens to generate, at least one. Call
        `advance(now)` before."""
        if now > self._at:
            self._move(now)
        found = self._known[sequence] = _Running(sequence, prompt, new)
        self._open += found.kv
        self._waiting.append(found)
        self._start()
        self._settle()

    def abort(self, sequence: int, now: float) -> None:
        """It is not wanted any more, its place is free at once. Unknown ones have ended meanwhile."""
        found = self._known.pop(sequence, None)
        if found is None:
            return
        self._move(now)
        self._left_tokens += self._emitted(found)
        self._open -= found.new if found.began >= 0 else found.kv
        if not found.placed:
            self._waiting.remove(found)
        else:
            self.running -= 1
            self.kv -= found.kv
            if found.began >= 0:
                self.decoding -= 1
                self._begun -= found.began
                self._ends = [end for end in self._ends if end[1] != sequence]
                heapify(self._ends)
            elif found in self._phase:
                self._phase.remove(found)  # its part of the present step is computed all the same
            elif found in self._short:
                self._short.remove(found)
            else:
                if found is self._long[0]:
                    self._phase_rate = 0.0
                self._long.remove(found)
        if not self._phase and not self._phase_rate:
            self._cut()
        self._start()
        self._settle()

    def advance(self, now: float) -> list[Progress]:
        """Let time pass: what has happened by `now`, in order."""
        told: list[Progress] = []
        while self.due <= now:
            if self._phase_rate:
                self._move(self.due)
            elif self.due > self._at:
                self._at = self.due  # the steps are set below
            ends, reached = self._ends, self._phase_end
            if ends and ends[0][0] <= reached:
                reached = ends[0][0]
                while ends and ends[0][0] == reached:  # those that began together end together
                    self._end(self._known[heappop(ends)[1]], told)
                self.steps = reached
            else:
                self.steps = reached
                self._prompts_done(told)
            if self._waiting:
                self._start()
            self._settle()
        if now > self._at:
            self._move(now)
        return told

    def change(self, now: float, *, slow: float | None = None, frozen: bool | None = None) -> None:
        """It becomes slower, or stops (or goes on) without a word. Call `advance(now)` before."""
        self._move(now)
        self.slow = self.slow if slow is None else slow
        self.frozen = self.frozen if frozen is None else frozen
        self._settle()

    # --- inside ----------------------------------------------------------------------------------------------

    def _emitted(self, one: _Running) -> int:
        return 0 if one.began < 0 else min(one.new, 1 + int(self.steps - one.began + _TINY))

    def _move(self, now: float) -> None:
        """Count the steps since the clock last moved."""
        if self.running and not self.frozen and now > self._at:
            done = (now - self._at) / self._step
            self.steps += done
            if self._phase_rate:
                self._long[0].left -= done * self._phase_rate
        self._at = max(now, self._at)

    def _start(self) -> None:
        """Give places to those that wait, in order; nobody overtakes."""
        waiting = self._waiting
        while waiting and self.running < self.sequences:
            first = waiting[0]
            if self.running and self.kv + first.kv > self.kv_tokens:
                break
            waiting.popleft()
            if not self.running:  # steps begin with the work
                self.steps = float(math.ceil(self.steps - _TINY))
            first.placed = True
            self.running += 1
            self.kv += first.kv
            (self._short if first.prompt <= self.latency.chunk else self._long).append(first)

    def _end(self, one: _Running, told: list[Progress]) -> None:
        del self._known[one.number]
        self._left_tokens += one.new
        self._open -= one.new
        self._begun -= one.began
        self.running -= 1
        self.kv -= one.kv
        self.decoding -= 1
        told.append((one.number, False))

    def _prompts_done(self, told: list[Progress]) -> None:
        """The steps that computed prompts are through."""
        firsts = self._phase
        self._cut()
        if self._long and self._long[0].left <= 1e-3:
            firsts.append(self._long.popleft())
        for one in firsts:
            one.began = self.steps
            self._open -= one.prompt
            self._begun += one.began
            self.decoding += 1
            told.append((one.number, True))
            if one.new == 1:
                self._end(one, told)
            else:
                heappush(self._ends, (self.steps + one.new - 1, one.number))

    def _cut(self) -> None:
        self._phase, self._phase_end, self._phase_extra, self._phase_rate = [], math.inf, 0.0, 0.0

    def _settle(self) -> None:
        """Choose which prompts the next steps compute, where that is open, and how long they take from now on."""
        if self._short and not self._phase:  # a long prompt that is computed alone makes room for shorter ones
            self._cut()
        if self._phase_end == math.inf and (self._short or self._long):
            self._begin_phase()
        due, ends = self._phase_end, self._ends
        self._step = step = (self._base + self._each * self.decoding + self._phase_extra) * self.slow
        if ends and ends[0][0] < due:
            due = ends[0][0]
        self.due = math.inf if self.frozen else self._at + (due - self.steps) * step

    def _begin_phase(self) -> None:
        """Short prompts, as many as fit, are computed in one step, and a part of a long one beside them; a long
        one that is alone in as many as it takes. The step that runs ends before."""
        latency, short = self.latency, self._short
        chunk = latency.chunk
        room = chunk * (1 - _SURE) if self._long else chunk
        tokens = 0
        while short and (not tokens or tokens + short[0].prompt <= room):
            self._phase.append(short.popleft())
            tokens += self._phase[-1].prompt
        part = 0.0
        count = 1
        if self._long:
            left = self._long[0].left
            part = min(left, max(chunk - tokens, chunk * _SURE)) if tokens else left
            count = 1 if tokens else max(1, math.ceil(left / chunk - _TINY))
        begin = math.ceil(self.steps - _TINY)
        self._phase_end = float(begin + count)
        span = self._phase_end - self.steps
        self._phase_extra = (count * latency.prompt_seconds + (tokens + part) / latency.prompt_rate) / span
        self._phase_rate = part / span
