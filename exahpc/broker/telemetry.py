"""The broker's telemetry: rollups and beats into figures, figures into answers, alerts and history.

Once in ten seconds (two after a failure) the fleet is walked; files and hooks are written and called in threads.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping

import msgspec

from exahpc.broker.entries import Entries
from exahpc.broker.fleet import Fleet
from exahpc.broker.policies import Policies
from exahpc.broker.recovery import Recovery
from exahpc.deployment.grid import kv_tokens
from exahpc.deployment.spec import Deployment
from exahpc.telemetry.aggregate import Aggregate
from exahpc.telemetry.alerts import Told, Watchman
from exahpc.telemetry.chronicle import Chronicle
from exahpc.telemetry.courses import Courses, samples
from exahpc.telemetry.hooks import Hooks
from exahpc.telemetry.map import fleet_map
from exahpc.telemetry.store import Store
from exahpc.telemetry.tally import Seen
from exahpc.telemetry.values import Readings, values_of
from exahpc.wire.folder import Folder, write_atomic
from exahpc.wire.messages import (
    AgentRollup,
    BatchStatus,
    EntryRollup,
    FiguresQuery,
    FleetFigures,
    FleetMap,
    Refused,
    ReplicaQuery,
    ReplicaStory,
)

LOOK_SECONDS = 10.0
HURRY_SECONDS = 2.0
MOST_BATCHES = 16
"""In one answer."""

_log = logging.getLogger(__name__)


class Telemetry:
    """One broker's. leaves: node -> leaf switch, as far as it is known by now."""

    def __init__(
        self,
        folder: Folder,
        deployment: Deployment,
        fleet: Fleet,
        policies: Policies,
        entries: Entries,
        leaves: Callable[[], Mapping[str, str]],
        now: float,
    ) -> None:
        self._folder, self._deployment = folder, deployment
        self._fleet, self._policies, self._entries, self._leaves = fleet, policies, entries, leaves
        self._pools = {pool.name: pool for pool in deployment.pool}
        self._kv = {pool.name: kv_tokens(pool, deployment.model.context) for pool in deployment.pool}
        self.aggregate = Aggregate(fleet.epoch, {}, now)
        settings = deployment.alerts
        self._watchman = Watchman(settings, now, _firing_before(folder))
        self._hooks = Hooks(deployment.name, _webhook(folder) or settings.webhook or "", settings.command)
        self._readings = Readings(deployment, now)
        self._courses, self._store = Courses(), Store(folder.path / "history")
        self._chronicle = Chronicle()
        self._map: FleetMap | None = None
        self._next = now
        self._soonest = now

    # --- what comes in ----------------------------------------------------------------------------------------

    def agent(self, key: str, rollup: AgentRollup, now: float) -> None:
        view = self._fleet.view(key)
        self.aggregate.agent(view.pool, view.node, rollup, now)

    def entry(self, rollup: EntryRollup, now: float) -> None:
        self.aggregate.entry(rollup, now)
        if any(status >= 500 for status in rollup.statuses):
            self._next = min(self._next, self._soonest)

    def tick(self, now: float) -> None:
        """Call about once a second."""
        if now < self._next:
            return
        self._next, self._soonest = (now // LOOK_SECONDS + 1) * LOOK_SECONDS, now + HURRY_SECONDS
        self.aggregate.leaves = self._leaves()
        self.aggregate.look(self._seen(), self._entries.rows(), now)
        self._map = None
        self._chronicle.look(self.aggregate.seen, now)
        before = self._watchman.firing
        for told in self._watchman.look(values_of(self.aggregate, self._readings, now), now):
            self._tell(told)
        self.aggregate.alerts = self._watchman.alerts(now)
        if self._watchman.firing != before:
            with contextlib.suppress(OSError):  # a full disk: the next broker may tell an alert once more
                write_atomic(self._folder.path / "alerts.json", msgspec.json.encode(self._watchman.firing))
        self._store.add(self._courses.look(samples(self.aggregate, now), now), now)

    def _seen(self) -> Iterator[Seen]:
        for view, _, _, replicas in self._fleet.snapshot():
            pool = self._pools[view.pool]
            slots = pool.slots_of_task(view.task)
            yield Seen(
                view.key,
                view.pool,
                view.node,
                view.incarnation,
                view.phase == "alive",
                0 if view.parked else len(slots),
                self._kv[view.pool],
                replicas,
                {slot: state for slot, state, _ in self._policies.ill(view.key)},
                view.version,
                view.sequences or pool.max_sequences,
                slots.start,
            )

    # --- what goes out ----------------------------------------------------------------------------------------

    def answer(self, query: FiguresQuery, batches: list[BatchStatus], now: float) -> FleetFigures:
        live = [batch for batch in batches if batch.state in ("opening", "running")]
        ended = [batch for batch in batches if batch.state not in ("opening", "running")]
        shown = (live[::-1] + ended[::-1])[:MOST_BATCHES]
        return msgspec.structs.replace(self.aggregate.answer(query, now), batches=shown)

    def map(self) -> FleetMap:
        """Drawn once a look, however many ask."""
        if self._map is None:
            self._map = fleet_map(self.aggregate)
        return self._map

    def story(self, query: ReplicaQuery, recovery: Recovery | None, now: float) -> ReplicaStory | Refused:
        """recovery: None with the local launcher."""
        pool = self._pools.get(query.pool)
        if pool is None or not 0 <= query.slot < pool.replicas:
            return Refused(f"there is no replica {query.pool}/{query.slot}: a pool has slots from 0 on")
        task = query.slot // pool.replicas_per_task
        found = (one for one in self._fleet.snapshot() if (one[0].pool, one[0].task) == (pool.name, task))
        view, restarts, _, replicas = next(found)
        ill = {slot: (state, why) for slot, state, why in self._policies.ill(view.key)}
        health, why = ill.get(query.slot, ("healthy", ""))
        return ReplicaStory(
            query,
            now,
            view.node,
            view.job,
            view.version,
            restarts,
            view.phase == "alive",
            view.reason or (recovery.story(view.key) if recovery else ""),
            health,
            why,
            next((replica for replica in replicas if replica.slot == query.slot), None),
            self._chronicle.of(view.key, query.slot),
        )

    def notes(self) -> list[str]:
        """For `status`."""
        return [f"alert {a.name}: {a.text}" for a in self.aggregate.alerts if a.state in ("firing", "resolving")]

    def close(self, now: float) -> None:
        """Write what of the history is not written yet."""
        self._store.close(now)

    def _tell(self, told: Told) -> None:
        level = logging.ERROR if told.state == "firing" else logging.WARNING
        _log.log(level, "alert %s: %s", told.state, told.text)
        self._hooks.tell(told)


def _firing_before(folder: Folder) -> list[str]:
    """What an earlier broker was told already: it is not told again."""
    try:
        return msgspec.json.decode((folder.path / "alerts.json").read_bytes(), type=list[str])
    except (OSError, msgspec.MsgspecError):
        return []


def _webhook(folder: Folder) -> str:
    try:
        return (folder.path / "secrets" / "webhook").read_text().strip()
    except FileNotFoundError:
        return ""
