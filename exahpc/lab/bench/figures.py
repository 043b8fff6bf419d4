"""From what the processes saw to figures. Pure; times in seconds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

import msgspec

from exahpc.lab.bench.seen import Answer, Seen
from exahpc.lab.bench.wish import Slo, Wish
from exahpc.lab.level import quantile
from exahpc.telemetry.histogram import Histogram
from exahpc.wire.messages import Sketch

BUSY = 0.7
"""Share of the time that a process may compute, or wait for a core, before the client itself is in doubt."""
LATE = 0.02
"""Seconds by which a process may be late, one time in a hundred: later, and latencies are the client's own."""
_MOST_ERRORS = 5


class Spread(msgspec.Struct, frozen=True):
    """Of `count` times: mean, nearest-rank percentiles and the longest; zeros when there are none."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Drained(msgspec.Struct, frozen=True):
    """The same requests with the time until the last of them had its answer: what a finite piece of work gets."""

    seconds: float
    requests_per_second: float
    tokens_per_second: float


class Client(msgspec.Struct, frozen=True):
    """What the load client itself had to do.

    busy: the highest share of the counted time that a process computed or waited for a core; late: P99 of by how
    much a process was late to do what was due; unsent: P99 from when a request was due until it was sent;
    most_requests, most_tokens: a second, that these processes could ask for at 100 % (proportional to busy; a
    bound rather than a promise).
    """

    processes: int
    busy: float
    late: float
    unsent: float
    most_requests: float
    most_tokens: float

    @property
    def doubts(self) -> list[str]:
        """Why the figures may be the client's own, and not the endpoint's."""
        found = []
        if self.busy > BUSY:
            found.append(f"a process of the client was busy {self.busy:.0%} of the time (more than {BUSY:.0%})")
        if self.late > LATE:
            found.append(
                f"it was late by {1e3 * self.late:.0f} ms one time in a hundred ({1e3 * LATE:g} ms at most)"
            )
        if self.unsent > LATE:
            found.append(f"one request in a hundred was sent {1e3 * self.unsent:.0f} ms after it was due")
        return found


class Result(msgspec.Struct, frozen=True):
    """One measurement.

    Requests that were due in the counted `seconds` count, wherever they ended: ok, refused (429, 503), failed,
    open (without an end when the drain was over). Rates are of answers that ended, and tokens that arrived, in
    these seconds; error: standard error of tokens_per_second, from ten parts of them. Latencies are of requests
    that are ok, from when they were *due*: ttft to the first text, tbt from token to token on average of each
    answer, gap from one piece of text to the next (within 2.2 %), e2e to the end. goodput: answers a second
    within the SLO; good: their share of all requests; both None without one. prompt, new: tokens on average, 0
    where answers have no usage.
    """

    wish: Wish
    date: str
    requests: int
    ok: int
    refused: int
    failed: int
    open: int
    seconds: float
    requests_per_second: float
    tokens_per_second: float
    error: float
    drained: Drained
    ttft: Spread
    tbt: Spread
    gap: Spread
    e2e: Spread
    prompt: float
    new: float
    goodput: float | None
    good: float | None
    client: Client
    errors: dict[str, int]
    emulated: bool = False


def spread(times: Iterable[float]) -> Spread:
    found = sorted(times)
    if not found:
        return Spread()
    p50, p90, p95, p99 = (quantile(found, share) for share in (0.5, 0.9, 0.95, 0.99))
    return Spread(len(found), fmean(found), p50, p90, p95, p99, found[-1])


def spread_of(histogram: Histogram) -> Spread:
    """Of one in microseconds."""
    count = histogram.count
    if not count:
        return Spread()
    p50, p90, p95, p99, top = ((histogram.quantile(share) or 0.0) / 1e6 for share in (0.5, 0.9, 0.95, 0.99, 1.0))
    return Spread(count, histogram.total / count / 1e6, p50, p90, p95, p99, top)


def ttft(answer: Answer) -> float | None:
    """None when no text came."""
    return answer.first - answer.due if answer.first else None


def tbt(answer: Answer) -> float | None:
    """From token to token on average; None for fewer than two. A piece counts as a token where usage is
    missing."""
    steps = (answer.tokens or answer.pieces) - 1
    return (answer.last - answer.first) / steps if answer.first and steps > 0 else None


def is_good(answer: Answer, slo: Slo) -> bool:
    """Whether it met the SLO. What has no such time (a first text, a second token) meets its part."""
    if answer.outcome != "ok":
        return False
    pairs = ((ttft(answer), slo.ttft), (tbt(answer), slo.tbt), (answer.end - answer.due, slo.e2e))
    return all(time is None or most is None or time <= most for time, most in pairs)


def result(wish: Wish, seen: Sequence[Seen], begin: float, date: str, *, emulated: bool = False) -> Result:
    """begin: of the counted time, on the clock of `seen`."""
    end, seconds = begin + wish.seconds, wish.seconds
    every = [answer for one in seen for answer in one.answers]
    counted = [answer for answer in every if begin <= answer.due < end]
    ok = [answer for answer in counted if answer.outcome == "ok"]
    outcomes = Counter(answer.outcome for answer in counted)
    each = _tokens_a_piece(every)
    slices = [sum(parts) * each for parts in zip(*(one.slices for one in seen), strict=True)]
    rate = sum(answer.outcome == "ok" and begin <= answer.end < end for answer in every) / seconds
    tokens = sum(slices) / seconds
    last = max((answer.end for answer in ok), default=end)
    whole = max(last, end) - begin
    good = sum(is_good(answer, wish.slo) for answer in counted)
    return Result(
        wish=wish,
        date=date,
        requests=len(counted),
        ok=len(ok),
        refused=outcomes["refused"],
        failed=outcomes["failed"],
        open=outcomes["open"],
        seconds=seconds,
        requests_per_second=rate,
        tokens_per_second=tokens,
        error=stdev(slices) * math.sqrt(len(slices)) / seconds,
        drained=Drained(whole, len(ok) / whole, sum(a.tokens or a.pieces * each for a in ok) / whole),
        ttft=spread(time for answer in ok if (time := ttft(answer)) is not None),
        tbt=spread(time for answer in ok if (time := tbt(answer)) is not None),
        gap=spread_of(_merged(one.gaps for one in seen)),
        e2e=spread(answer.end - answer.due for answer in ok),
        prompt=fmean(answer.prompt for answer in ok) if ok else 0.0,
        new=fmean(answer.tokens for answer in ok) if ok else 0.0,
        goodput=good / seconds if wish.slo else None,
        good=(good / len(counted) if counted else 0.0) if wish.slo else None,
        client=_client(seen, counted, seconds, rate, tokens),
        errors=dict(Counter(answer.error for answer in counted if answer.error).most_common(_MOST_ERRORS)),
        emulated=emulated,
    )


def _tokens_a_piece(answers: Iterable[Answer]) -> float:
    """A piece of text is usually one token, but may hold several: as on average where usage is known."""
    told = [(answer.tokens, max(1, answer.pieces)) for answer in answers if answer.tokens]
    return sum(tokens for tokens, _ in told) / sum(pieces for _, pieces in told) if told else 1.0


def _merged(sketches: Iterable[Sketch]) -> Histogram:
    found = Histogram()
    for sketch in sketches:
        found.merge(sketch)
    return found


def _client(seen: Sequence[Seen], counted: Sequence[Answer], seconds: float, rate: float, tokens: float) -> Client:
    shares = [(one.cpu + (one.wanting or 0.0)) / seconds for one in seen]
    busy = max(shares)
    mean = max(fmean(shares), 1e-6)
    late = _merged(one.lag for one in seen).quantile(0.99) or 0.0
    return Client(
        processes=len(seen),
        busy=min(1.0, busy),
        late=late / 1e6,
        unsent=spread(answer.start - answer.due for answer in counted).p99,
        most_requests=rate / mean,
        most_tokens=tokens / mean,
    )
