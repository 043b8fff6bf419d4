"""In which order a request looks for a replica: a ladder of rungs, each a few lists of open replicas. Pure.

A ladder depends on what kind of request it is, never on who is open now: it is made once a table and kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from exahpc.entry.fleet import CROWDED, PROBE, ROOMY, TIGHT, Group, Replica
from exahpc.wire.messages import Length

Rung = tuple[list[Replica], ...]
Kind = Literal["any", "short", "long", "late"]
"""By length, where pools have length classes; late: a long one that has waited long enough to go anywhere."""

_LENGTHS: dict[Kind, tuple[tuple[Length, ...], tuple[Length, ...]]] = {
    "any": (("any", "short", "long"), ()),
    "short": (("any", "short"), ("long",)),
    "long": (("any", "long"), ()),
    "late": (("any", "long"), ("short",)),
}
"""Classes of pools that a request is for, and those that it may spill to."""


class Ladder(NamedTuple):
    """rungs: the first one with a replica that fits decides; own: the groups that the request is for."""

    rungs: tuple[Rung, ...]
    probes: Rung
    own: frozenset[Group]


def make(groups: Iterable[Group], kind: Kind, versions: tuple[str, ...] | None) -> Ladder:
    """The ladder of requests of one kind. versions: the ones that they may go to, best first; None: all.

    Own node first while it is roomy; then level by level, other length classes behind the own ones, so that nobody
    goes into the headroom of one replica while another one has room. Replicas on probation come last.
    """
    groups = list(groups)
    if versions is None:
        return _make(groups, kind)
    parts = [_make([g for g in groups if g.version == version], kind) for version in versions]
    return Ladder(
        tuple(rung for part in parts for rung in part.rungs),
        tuple(probes for part in parts for probes in part.probes),
        parts[0].own,
    )


def _make(groups: list[Group], kind: Kind) -> Ladder:
    lengths, spill = _LENGTHS[kind]
    own = [g for g in groups if g.length in lengths]
    away = [g for g in groups if g.length in spill]
    rungs = [_rung([g for g in own if g.local], ROOMY)]
    for level in (ROOMY, TIGHT, CROWDED):
        rungs += [_rung(own, level), _rung(away, level)]
    probes = _rung(own + away, PROBE)
    return Ladder(tuple(rung for rung in (*rungs, probes) if rung), probes, frozenset(own))


def _rung(groups: Iterable[Group], level: int) -> Rung:
    return tuple(group.open[level] for group in groups)
