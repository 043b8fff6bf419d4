"""Laws of batch rows beside online requests: plans of the real scheduler, on a clock that is computed."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from exahpc.replica.batching import Limits, Scheduler
from exahpc.replica.plan import Drawn, Plan
from exahpc.wire.messages import Admit

FIXED, DECODED, PROMPT = 25.8, 4.6, 3.8
"""Milliseconds of an iteration, of each decoding sequence and of each prompt token: SmolLM2-135M on one core."""
PLACES = 7  # that the agent gives to rows
WARM = 5
"""Requests that are not counted: the first ones meet plans of rows that have the replica to themselves."""


class Found(NamedTuple):
    """Milliseconds of each online request, to its first token and to its end; rows that ended."""

    first: list[float]
    whole: list[float]
    rows: int


def scheduler() -> Scheduler:
    of = Limits(8, blocks=4096, context=2048, budget=256, lanes=1, vocabulary=50_000, chunk=32, far=1000, fixed=6)
    return Scheduler(of)


def milliseconds(plan: Plan) -> float:
    sizes = [len(row.ids) for row in plan.rows]
    return FIXED + DECODED * sizes.count(1) + PROMPT * sum(size for size in sizes if size > 1)


class Replica:
    """Online requests as they come, and beside them as many rows as an agent would send."""

    def __init__(self, *, rows: bool, prompt: int) -> None:
        self._scheduler, self._rows, self._prompt = scheduler(), rows, prompt
        self._draw, self._number = Random(1), 0
        self._held: set[int] = set()
        self.ended = 0

    def admit(self, prompt: int, new: int, *, batch: bool = False) -> int:
        self._number += 1
        ids = [self._draw.randrange(40_000) for _ in range(prompt)]
        assert self._scheduler.admit(Admit(self._number, ids, new, 0, 7, 0, [], batch=batch)) is None
        return self._number

    def step(self, online: int) -> tuple[float, list[int], list[int]]:
        """Milliseconds of it, online sequences that got a token, and those that ended."""
        while self._rows and online + len(self._held) < PLACES:
            sizes = self._draw.randint(self._prompt // 6, self._prompt), self._draw.randint(8, 80)
            self._held.add(self.admit(*sizes, batch=True))
        plan = self._scheduler.plan()
        assert plan is not None
        told = self._scheduler.done(plan.lane, Drawn([5] * plan.samples, None, []))
        over = {sequence for sequence, _ in told.ended}
        self.ended += len(over & self._held)
        got = [sequence for sequence, _ in told.tokens if sequence not in self._held]
        ended = sorted(over - self._held)
        self._held -= over
        return milliseconds(plan), got, ended


def serve(seed: int, *, rows: bool, rate: float = 0.5, requests: int = 200, prompt: int = 120) -> Found:
    """rate: online requests a second, by chance; prompt: of the longest rows."""
    replica, draw = Replica(rows=rows, prompt=prompt), Random(seed)
    arrivals, at = [], 0.0
    for _ in range(requests):
        at += draw.expovariate(rate / 1000)
        arrivals.append((at, draw.randint(20, 60), draw.randint(16, 48)))
    now, begun, waits = 0.0, dict[int, float](), set[int]()
    found = Found([], [], 0)
    while arrivals or begun:
        while arrivals and arrivals[0][0] <= now:
            at, *sizes = arrivals.pop(0)
            number = replica.admit(*sizes)
            begun[number] = at
            waits.add(number)
        if not (begun or rows):
            now = arrivals[0][0]
            continue
        took, got, ended = replica.step(len(begun))
        now += took
        for number in waits.intersection(got):
            waits.discard(number)
            found.first.append(now - begun[number])
        found.whole.extend(now - begun.pop(number) for number in ended)
    return found._replace(rows=replica.ended)


def p99(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100]


def both(**more: float) -> tuple[Found, Found]:
    """Without and with rows, the same online requests."""
    alone = [serve(seed, rows=False, **more) for seed in (1, 2)]  # type: ignore[arg-type]
    beside = [serve(seed, rows=True, **more) for seed in (1, 2)]  # type: ignore[arg-type]
    return _together(alone), _together(beside)


def _together(several: list[Found]) -> Found:
    return Found(
        [t for f in several for t in f.first[WARM:]], [t for f in several for t in f.whole[WARM:]], several[0].rows
    )


def test_online_requests_hardly_notice_rows_beside_them() -> None:
    alone, beside = both()
    assert p99(beside.first) <= 1.3 * p99(alone.first)
    assert p99(beside.whole) <= 1.3 * p99(alone.whole)
    assert beside.rows > 100


def test_nor_rows_with_long_prompts_which_take_long() -> None:
    alone, beside = both(rate=1.0, prompt=1200)
    assert p99(beside.first) <= 1.3 * p99(alone.first)
    assert p99(beside.whole) <= 1.3 * p99(alone.whole)
    assert beside.rows > 0


def test_rows_have_the_whole_replica_when_nobody_is_online() -> None:
    replica = Replica(rows=True, prompt=40)
    first = replica.step(0)[0]
    assert first > FIXED + 7 * 40 / 6 * PROMPT, "all prompts at once"


def test_rows_go_on_beside_online_sequences_that_never_pause() -> None:
    """Those that decode take turns; a prompt gets a block whenever enough was saved for one."""
    replica = Replica(rows=True, prompt=120)
    online = replica.admit(20, 2000)
    for _ in range(1500):
        _, got, _ = replica.step(1)
        assert got == [online] or not got
    assert replica.ended > 5
