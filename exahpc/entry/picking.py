"""Which of the replicas that stand on one rung: the less loaded of two, or the one that knows the prompt. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from exahpc.entry.affinity import Marks
from exahpc.entry.fleet import Replica
from exahpc.entry.ladder import Rung

SMALL = 8
"""Up to so many open replicas all are compared."""
_DRAWS = 8  # random looks for a pair that fits, on a longer rung


class Ask(Protocol):
    """What picking needs to know of a request (`ledger.Record`).

    sequences: that are to run; tokens: estimate of what is to be computed; size: most tokens that one sequence
    comes to; shun: the replica that it just left; deaths: attempts that ended under it; version: label that it
    must run at, None when any will do; lot: its draw among versions, -1 before; prefix: see `affinity`.
    """

    sequences: int
    tokens: int
    size: int
    shun: Replica | None
    deaths: int
    version: str | None
    lot: int
    prefix: Marks


def better(rung: Rung, ask: Ask, now: float, draw: Callable[[int], int]) -> Replica | None:
    """The less loaded of two random replicas that fit; of a handful, the least loaded."""
    count, home = 0, rung[0]
    for one in rung:
        if one:
            count += len(one)
            home = one
    if count == 0:
        return None
    mixed = count != len(home)
    sequences, tokens, shun = ask.sequences, ask.tokens, ask.shun
    best: Replica | None = None
    least = 0.0
    start = draw(count)  # spreads ties of a small fleet; a big one is only sampled
    for turn in range(count if count <= SMALL else _DRAWS):
        place = (start + turn) % count if count <= SMALL or turn == 0 else draw(count)
        replica = _at(rung, place) if mixed else home[place]
        if replica is best or replica is shun or (sequences > 1 and not replica.fits(sequences)):
            continue
        score = (replica.load(now) + tokens) * replica.factor
        if best is None:
            best, least = replica, score
            continue
        if score < least:
            best, least = replica, score
        if count > SMALL:
            break
    return best


def _at(rung: Rung, place: int) -> Replica:
    """As if the lists stood behind each other."""
    for home in rung:
        if place < len(home):
            return home[place]
        place -= len(home)
    raise IndexError(place)


def saves(kin: Replica, best: Replica, saved: int, ask: Ask, now: float) -> bool:
    """Whether to prefer `kin`, where so many tokens of the request need not be computed, to `best`.

    It may have as many tokens more to do, but it must be open on the same level or a better one.
    """
    if kin is best or not 0 <= kin.level <= best.level or kin is ask.shun or not kin.fits(ask.sequences):
        return False
    return (kin.load(now) + ask.tokens - saved) * kin.factor <= (best.load(now) + ask.tokens) * best.factor
