"""What one level of concurrency gave, from the times at which clients saw something. Pure; times in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec


class Stream(msgspec.Struct, frozen=True):
    """One answer as its client saw it.

    start: the request was sent; arrivals: of each piece of text; tokens: what the answer's usage says, 0 when the
    stream was cut off at the end of the measurement.
    """

    start: float
    arrivals: tuple[float, ...]
    tokens: int = 0


class Sample(msgspec.Struct, frozen=True):
    """One look at the deployment. kv_tokens: KV cache in use; memory: bytes of the replicas' processes, where they
    run on this machine, each shared page counted once (PSS)."""

    at: float
    running: int
    waiting: int
    kv_tokens: int
    memory: int | None = None


class Spread(msgspec.Struct, frozen=True):
    """Nearest-rank percentiles of `count` times; zeros when there are none."""

    count: int = 0
    p50: float = 0.0
    p99: float = 0.0


class Level(msgspec.Struct, frozen=True):
    """One point of the curve.

    tokens_per_second: of all streams together; first_token: from sending a request to its first text; between:
    from one piece of text to the next of a stream; refused: requests that were answered with 429 or 503;
    kv_tokens, memory: the most that was seen, None when nothing was.
    """

    concurrency: int
    seconds: float
    tokens_per_second: float
    requests: int
    refused: int
    first_token: Spread
    between: Spread
    running: int
    waiting: int
    kv_tokens: int | None
    memory: int | None


def spread(times: Iterable[float]) -> Spread:
    found = sorted(times)
    return Spread(len(found), quantile(found, 0.5), quantile(found, 0.99)) if found else Spread()


def quantile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: the least value that at least this share of all values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def level(
    concurrency: int,
    streams: Sequence[Stream],
    samples: Sequence[Sample],
    refused: int,
    begin: float,
    end: float,
) -> Level:
    """Only what happened in [begin, end) counts.

    A piece of text is usually one token, but may hold several, and a token may have no text: pieces are counted as
    the tokens that they had on average in the answers whose usage is known.
    """
    whole = [s for s in streams if s.tokens and s.arrivals]
    pieces = sum(len(s.arrivals) for s in whole)
    each = sum(s.tokens for s in whole) / pieces if pieces else 1.0
    seen = [[t for t in s.arrivals if begin <= t < end] for s in streams]
    looks = [s for s in samples if begin <= s.at < end]
    memory = [s.memory for s in looks if s.memory is not None]
    return Level(
        concurrency=concurrency,
        seconds=end - begin,
        tokens_per_second=sum(map(len, seen)) * each / (end - begin),
        requests=sum(s.arrivals[-1] < end for s in whole if s.arrivals[-1] >= begin),
        refused=refused,
        first_token=spread(
            s.arrivals[0] - s.start for s in streams if s.arrivals and begin <= s.arrivals[0] < end
        ),
        between=spread(b - a for times in seen for a, b in pairwise(times)),
        running=max((s.running for s in looks), default=0),
        waiting=max((s.waiting for s in looks), default=0),
        kv_tokens=max((s.kv_tokens for s in looks), default=None),
        memory=max(memory, default=None),
    )
