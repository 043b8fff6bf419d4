"""The fleet's figures: rollups and beats in, rows by fleet, pool, switch, node and replica out. Pure.

`look` walks the fleet, every ten seconds (sooner after a failure); what is asked in between gets what it saw. A
rollup is merged when it comes: into its pool's and switch's last minute, and into its pool's total.

A task that is not heard keeps its counts, and leaves all gauges: the last known load of a lost node is neither
nothing nor a full node.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from exahpc.telemetry.tally import Counts, Seen, Tally, counts_of, of_replica
from exahpc.telemetry.window import Histograms, Window, merge, recent, sketches
from exahpc.wire.messages import (
    AgentRollup,
    Alert,
    EntryFigures,
    EntryRollup,
    EntryStatus,
    Figures,
    FiguresQuery,
    FleetFigures,
    Measure,
    Recent,
    Scope,
)

MOST_SWITCHES = 64
"""Further ones are not told apart: each has the rows and series of a pool."""
MOST_ROWS = 1024
"""Of nodes or replicas in one answer, some 100 kB."""
MOST_NODES = 64
"""Of more nodes in one answer percentiles are left out: merging them would hold up the broker."""
_MINUTE = 60.0
_NODE_ROLLUPS = 14  # of a minute, with two agents on a node
_INCARNATION_COUNTS = 3  # of `Counts`: how many begin anew with a replica's incarnation

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AgentRollup).decode


class Aggregate:
    """One broker's. leaves: node -> leaf switch, as far as it is known. Times are Unix seconds."""

    def __init__(self, epoch: int, leaves: Mapping[str, str], now: float) -> None:
        self.epoch, self.leaves, self.at = epoch, leaves, now
        self._seen: dict[str, Seen] = {}
        self._told: dict[str, tuple[int, dict[int, tuple[int, Counts]]]] = {}  # agent's life, slot -> replica's
        self._counts: dict[Scope, dict[str, Counts]] = {"fleet": {}, "pool": {}, "switch": {}, "node": {}}
        self._tallies: dict[Scope, dict[str, Tally]] = {}
        self._windows: dict[tuple[Scope, str], Window] = {}
        self._totals: dict[tuple[str, str], Histograms] = {}
        self._nodes: dict[str, deque[tuple[float, bytes]]] = {}  # encoded: a twentieth of the memory
        self._entry_window = Window()
        self._entry_totals: Histograms = {}
        self._statuses: Counter[int] = Counter()
        self._refused: Counter[str] = Counter()
        self._entry_counts = Counter[str]()
        self._entries: Sequence[EntryStatus] = ()
        self.alerts: list[Alert] = []

    # --- what comes in ----------------------------------------------------------------------------------------

    def agent(self, pool: str, node: str, rollup: AgentRollup, now: float) -> None:
        places: list[tuple[Scope, str]] = [("pool", pool), ("switch", self._switch(node))]
        for place in places:
            if place[1]:
                self._windows.setdefault(place, Window()).add(now, rollup.sketches)
                merge(self._totals.setdefault(place, {}), rollup.sketches)
        self._nodes.setdefault(node, deque(maxlen=_NODE_ROLLUPS)).append((now, _encode(rollup)))

    def entry(self, rollup: EntryRollup, now: float) -> None:
        counts = {str(status): count for status, count in rollup.statuses.items()}
        self._entry_window.add(now, rollup.sketches, counts)
        merge(self._entry_totals, rollup.sketches)
        self._statuses.update(rollup.statuses)
        self._refused.update(rollup.refused)
        self._entry_counts.update(
            {"resent": rollup.resent, "busy": rollup.busy, "known": rollup.known, "affine": rollup.affine}
        )

    def look(self, agents: Iterable[Seen], entries: Sequence[EntryStatus], now: float) -> None:
        """Count everything up, as of now."""
        self.at, self._entries = now, entries
        self._seen = {seen.key: self._remembered(seen) for seen in agents}
        nodes: dict[str, Tally] = {}
        pools: dict[str, Tally] = {}
        for seen in self._seen.values():
            grown = self._grown(seen)
            tally = Tally()
            tally.task(seen)
            if any(grown):
                for scope, name in self._places(seen):
                    counts = self._counts[scope]
                    counts[name] = counts.get(name, Counts()).plus(grown)
            nodes.setdefault(seen.node, Tally()).merge(tally)
            pools.setdefault(seen.pool, Tally()).merge(tally)
        nodes.pop("", None)
        switches: dict[str, Tally] = {}
        for node, tally in nodes.items():
            if switch := self._switch(node):
                switches.setdefault(switch, Tally()).merge(tally)
        fleet = Tally()
        for tally in pools.values():
            fleet.merge(tally)
        self._tallies = {"fleet": {"": fleet}, "pool": pools, "switch": switches, "node": nodes}
        for gone in self._nodes.keys() - nodes.keys():
            del self._nodes[gone]
        for gone in self._counts["node"].keys() - nodes.keys():
            del self._counts["node"][gone]

    @property
    def seen(self) -> Iterable[Seen]:
        """Every task, as of the last look."""
        return self._seen.values()

    def _remembered(self, seen: Seen) -> Seen:
        """A task that is not heard: with what its replicas told last."""
        before = self._seen.get(seen.key)
        if seen.heard or before is None:
            return seen
        return seen._replace(replicas=before.replicas, node=seen.node or before.node)

    def _grown(self, seen: Seen) -> Counts:
        """What its replicas counted since the last look. The first look at an agent that was there before this
        broker is where counting begins."""
        life, told = self._told.get(seen.key, (None, {}))
        grown = Counts()
        heard: dict[int, tuple[int, Counts]] = {}
        for replica in seen.replicas:
            counts = counts_of(replica)
            heard[replica.slot] = replica.incarnation, counts
            incarnation, before = told.get(replica.slot, (replica.incarnation, Counts()))
            if life is None:
                continue
            if (life, incarnation, before) == (seen.life, replica.incarnation, counts):
                continue
            if life != seen.life:
                before = Counts()
            elif incarnation != replica.incarnation:
                before = Counts(*(0,) * _INCARNATION_COUNTS, *before[_INCARNATION_COUNTS:])
            more = (now - was if now >= was else now for now, was in zip(counts, before, strict=True))
            grown = grown.plus(Counts(*more))
        if heard:
            self._told[seen.key] = seen.life, heard
        return grown

    def _places(self, seen: Seen) -> list[tuple[Scope, str]]:
        places: list[tuple[Scope, str]] = [("fleet", ""), ("pool", seen.pool)]
        if seen.node:
            places.append(("node", seen.node))
            if switch := self._switch(seen.node):
                places.append(("switch", switch))
        return places

    def _switch(self, node: str) -> str:
        return self.leaves.get(node, "")

    # --- what goes out ----------------------------------------------------------------------------------------

    def row(self, scope: Scope, name: str, now: float, *, percentiles: bool = True) -> Figures:
        """Fleet, a pool, a switch or a node."""
        tally = self._tallies.get(scope, {}).get(name) or Tally()
        counts = self._counts[scope].get(name, Counts())
        last_minute = recent(self.histograms(scope, name, now)) if percentiles else {}
        return tally.figures(scope, name, counts, last_minute)

    def histograms(self, scope: Scope, name: str, now: float) -> Histograms:
        """Of the last minute."""
        if scope == "node":
            found: Histograms = {}
            for at, rollup in self._nodes.get(name, ()):
                if at > now - _MINUTE:
                    merge(found, _decode(rollup).sketches)
            return found
        if scope == "fleet":
            found = {}
            for (kind, _), window in self._windows.items():
                if kind == "pool":
                    merge(found, window.histograms(now))
            return found
        window_of = self._windows.get((scope, name))
        return window_of.histograms(now) if window_of else {}

    def totals(self, scope: str, name: str) -> Histograms:
        """Since the broker began, of fleet, clients, a pool or a switch."""
        if scope == "clients":
            return self._entry_totals
        if name:
            return self._totals.get((scope, name), {})
        fleet: Histograms = {}
        for (kind, _), found in self._totals.items():
            if kind == "pool":
                merge(fleet, found)
        return fleet

    def groups(self) -> list[tuple[Scope, str]]:
        """(scope, name) of the rows that every answer has: fleet, pools, the first MOST_SWITCHES switches."""
        pools = sorted(self._tallies.get("pool", {}))
        switches = sorted(self._tallies.get("switch", {}))[:MOST_SWITCHES]
        return [("fleet", ""), *(("pool", name) for name in pools), *(("switch", name) for name in switches)]

    def answer(self, query: FiguresQuery, now: float) -> FleetFigures:
        rows = [self.row(scope, name, now) for scope, name in self.groups()]
        wanted = self._detail(query, now)
        pools = sorted(name for scope, name in self._totals if scope == "pool")
        totals = {pool: sketches(self.totals("pool", pool)) for pool in ("", *pools)}
        return FleetFigures(
            query,
            self.epoch,
            self.at,
            rows + wanted[:MOST_ROWS],
            totals,
            self.entries(now),
            self.alerts,
            max(0, len(wanted) - MOST_ROWS),
        )

    def _detail(self, query: FiguresQuery, now: float) -> list[Figures]:
        if not query.detail:
            return []
        chosen = [
            seen
            for seen in self._seen.values()
            if seen.node
            and query.pool in ("", seen.pool)
            and query.node in ("", seen.node)
            and query.switch in ("", self._switch(seen.node))
        ]
        nodes = sorted({seen.node for seen in chosen})
        rows = [self.row("node", node, now, percentiles=len(nodes) <= MOST_NODES) for node in nodes]
        if query.detail == "replica":
            rows += [of_replica(seen, replica) for seen in chosen for replica in seen.replicas]
        return rows

    def entries(self, now: float) -> EntryFigures:
        """All entries together."""
        count = self._entry_counts
        return EntryFigures(
            len(self._entries),
            sum(entry.in_flight for entry in self._entries),
            sum(entry.waiting for entry in self._entries),
            dict(self._statuses),
            dict(self._refused),
            count["resent"],
            count["busy"],
            count["known"],
            count["affine"],
            sketches(self._entry_totals),
            self.entry_recent(now),
        )

    def entry_recent(self, now: float) -> dict[Measure, Recent]:
        """Of the last minute, as clients saw it."""
        return recent(self._entry_window.histograms(now))

    def statuses(self, now: float) -> dict[int, int]:
        """Requests that ended in the last minute, by HTTP status."""
        return {int(status): count for status, count in self._entry_window.counts(now).items()}
