"""The engine's gauges in Prometheus form: one collector over what one read found (durable/sql/gauges.py).

The read runs in the database pool before the scrape is put together; a collector that read by itself would hold up the
event loop. The process's own counters live in durable/metrics.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from durable.sql.gauges import MOST_COUNTED, MOST_QUEUES, Gauges


class EngineCollector(Collector):
    """The gauges of one moment; None when the database could not be read."""

    def __init__(self, gauges: Gauges | None) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("durable_database_up", "1 if the database answered.", int(self._gauges is not None))
        if self._gauges is not None:
            yield from _families(self._gauges)


def _families(gauges: Gauges) -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "durable_queue_oldest_ready_seconds",
        f"How long the oldest ready task of a queue has waited, of the first {MOST_QUEUES} queues by name.",
        labels=("namespace", "task_queue", "kind"),
    )
    for queue in gauges.queues:
        age.add_metric((queue.namespace, queue.task_queue, queue.kind), queue.seconds)
    yield age
    yield GaugeMetricFamily(
        "durable_queues_left_out", f"1 if there are more than {MOST_QUEUES} queues.", int(gauges.has_more_queues)
    )
    yield GaugeMetricFamily(
        "durable_expired_leases",
        f"Leases that ran out and were not taken back yet; not counted beyond {MOST_COUNTED}.",
        gauges.expired_lease_count,
    )
    yield GaugeMetricFamily(
        "durable_oldest_expired_lease_seconds",
        "How long ago the oldest of them ran out.",
        gauges.oldest_expired_lease_seconds,
    )
    lag = GaugeMetricFamily(
        "durable_upkeep_lag_seconds",
        "Since when a duty has not succeeded in any process; written down every few seconds.",
        labels=("duty",),
    )
    for duty, seconds in gauges.upkeep_lag_seconds.items():
        if seconds is not None:
            lag.add_metric((duty,), seconds)
    yield lag


def engine_metrics(gauges: Gauges | None) -> str:
    """The text of a scrape, apart from the process's own metrics."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(gauges))
    return generate_latest(registry).decode()
