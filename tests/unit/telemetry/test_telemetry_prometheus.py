"""Laws of /metrics: text that Prometheus' own parser reads, of bounded size."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exahpc.entry.metrics import query_of
from exahpc.errors import RequestError
from exahpc.telemetry.aggregate import Aggregate
from exahpc.telemetry.prometheus import page
from exahpc.wire.messages import AgentRollup, Alert, EntryRollup, FiguresQuery
from tests.unit.telemetry.test_telemetry_aggregate import replica, seen, sketch


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def fleet(nodes: int = 4) -> Aggregate:
    found = Aggregate(3, {f"n{node}": f's"{node // 2}\\' for node in range(nodes)}, 0.0)
    found.look([seen(node, replica(2 * node), replica(2 * node + 1)) for node in range(nodes)], [], 0.0)
    found.agent("a", "n0", AgentRollup({"ttft": sketch(1000, 3000, 5_000_000)}), 0.0)
    found.entry(EntryRollup({200: 7, 429: 2}, {"queue_full": 2}, 1, 0, 5, 4, {"e2e": sketch(2_000_000)}), 0.0)
    found.alerts = [Alert("queue", "firing", 0.7, 0.5, 10.0, "x"), Alert("p99", "ok", None, 30.0, 10.0, "x")]
    return found


def test_each_scope_has_metrics_of_its_own() -> None:
    found = samples(page(fleet().answer(FiguresQuery("replica", node="n1"), 1.0)))
    assert found["exahpc_fleet_replicas_ready", ()] == 8
    assert found["exahpc_pool_replicas_ready", (("pool", "a"),)] == 8
    assert found["exahpc_switch_replicas_ready", (("switch", 's"1\\'),)] == 4
    assert found["exahpc_node_replicas_ready", (("node", "n1"),)] == 2
    assert [labels for name, labels in found if name == "exahpc_replica_replicas_ready"] == [
        (("replica", "a/2"),),
        (("replica", "a/3"),),
    ]
    assert found["exahpc_client_requests_total", (("status", "429"),)] == 2
    assert (found["exahpc_client_prefix_known_total", ()], found["exahpc_client_prefix_affine_total", ()]) == (
        5,
        4,
    )


def test_histograms_are_cumulative_and_end_in_all() -> None:
    found = samples(page(fleet().answer(FiguresQuery(), 1.0)))
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in found.items()
        if name == "exahpc_pool_ttft_seconds_bucket"
    }
    assert [buckets[edge] for edge in sorted(buckets)] == sorted(buckets.values())
    assert (buckets[0.001024], buckets[0.004096], buckets[float("inf")]) == (1, 2, 3)
    assert found["exahpc_pool_ttft_seconds_sum", (("pool", "a"),)] == pytest.approx(5.004)
    assert found["exahpc_client_e2e_seconds_count", ()] == 1


def test_what_nobody_knows_is_left_out_and_alerts_are_there() -> None:
    found = samples(page(fleet().answer(FiguresQuery(), 1.0)))
    assert found["exahpc_alert_firing", (("alert", "queue"),)] == 1
    assert found["exahpc_alert_firing", (("alert", "p99"),)] == 0
    assert ("exahpc_alert_value", (("alert", "p99"),)) not in found
    blind = Aggregate(1, {}, 0.0)
    assert not any(
        name == "exahpc_fleet_utilization_share" for name, _ in samples(page(blind.answer(FiguresQuery(), 0.0)))
    )


def test_the_page_grows_with_pools_and_switches_only() -> None:
    small, large = (len(page(fleet(n).answer(FiguresQuery(), 1.0))) for n in (128, 2048))
    assert large < 1.1 * small < 200_000


@pytest.mark.parametrize(
    "asked", [{"detail": "all"}, {"detail": "replica"}, {"swich": "s1"}, {"detail": "replica", "switch": ""}]
)
def test_a_wish_that_cannot_be_met_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(RequestError) as found:
        query_of(asked)
    assert found.value.status == 400


def test_a_wish_for_detail_names_a_place() -> None:
    assert query_of({}) == FiguresQuery()
    assert query_of({"detail": "replica", "switch": "s1"}) == FiguresQuery("replica", switch="s1")
    assert query_of({"detail": "node"}) == FiguresQuery("node")
    assert query_of({"detail": "entry"}) is None  # nothing is asked of the broker
