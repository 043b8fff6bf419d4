"""Laws of what the alerts look at."""

from __future__ import annotations

from exahpc.deployment.parse import load
from exahpc.telemetry.aggregate import Aggregate
from exahpc.telemetry.values import LEAST, Readings, error_rate, p99, values_of
from exahpc.wire.messages import EntryRollup, EntryStatus, Recent
from tests.unit.telemetry.test_telemetry_aggregate import replica, seen

DEPLOYMENT = load(
    'name = "d"\n[model]\npath = "/m"\n[[pool]]\nname = "a"\nreplicas = 2\n[limits]\nmax_waiting = 100'
)


def entry(waiting: int) -> EntryStatus:
    return EntryStatus(0, "u", "", 0, waiting, 0, 0)


def test_while_nothing_is_known_nothing_is_claimed() -> None:
    assert set(values_of(Aggregate(1, {}, 0.0), Readings(DEPLOYMENT, 0.0), 0.0).values()) == {None}


def test_a_few_requests_are_no_rate() -> None:
    assert error_rate({503: LEAST - 1}, {}) is None
    assert error_rate({200: LEAST - 1, 503: 1}, {}) == 1 / LEAST
    assert error_rate({499: 1000, 200: LEAST, 429: LEAST}, {}) == 0.0, "leaving is no failure, nor is a full queue"
    assert error_rate({200: 100}, {"all": 100, "failed": 50}) == 0.5, "batch rows fail as well"
    assert p99({"ttft": Recent(LEAST - 1, 1.0, 1.0, 9e6)}) is None
    assert p99({"ttft": Recent(LEAST, 1.0, 1.0, 9e6)}) == 9.0


def test_live_replicas_are_missed_once_all_were_there() -> None:
    aggregate, readings = Aggregate(1, {}, 0.0), Readings(DEPLOYMENT, 0.0)

    def live(ready: int, now: float) -> float | None:
        aggregate.look([seen(0, *(replica(slot) for slot in range(ready)))._replace(slots=2)], [], now)
        return values_of(aggregate, readings, now)["replicas"]

    assert live(1, 10.0) is None, "it comes up"
    assert live(2, 20.0) == 1.0
    assert live(1, 30.0) == 0.5
    late = Readings(DEPLOYMENT, 0.0)
    assert values_of(aggregate, late, 10_000.0)["replicas"] == 0.5, "it never came up"


def test_shares_are_those_of_the_fleet() -> None:
    aggregate, readings = Aggregate(1, {}, 0.0), Readings(DEPLOYMENT, 0.0)
    aggregate.look([seen(0, replica(0), replica(1))], [entry(30), entry(70)], 0.0)
    aggregate.entry(EntryRollup({200: 90, 500: 10}, {}, 0, 0, 0, 0, {}), 0.0)
    found = values_of(aggregate, readings, 0.0)
    assert found == {
        "error_rate": 0.1, "p99": None, "utilization": 0.5, "memory": 0.25, "queue": 0.5, "replicas": 1.0,
    }  # fmt: skip
