"""The gateway's metrics say what its counters hold."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from luxrelay.node.gateway.server import ServerCounters
from luxrelay.node.gateway.service import GatewayStats
from luxrelay.node.gateway.store_and_archive import OlderStats
from luxrelay.node.gateway.websocket import StreamCounters
from luxrelay.node.gateway_metrics import gateway_metrics


class Scraped(Collector):
    """Yields the metrics of fixed numbers."""

    def __init__(self, stats: GatewayStats) -> None:
        self._stats = stats

    def collect(self) -> list[Metric]:
        """Return the metrics."""
        return list(gateway_metrics(self._stats))


def scrape(stats: GatewayStats) -> dict[str, float]:
    """Return what a scrape reads, by name without its prefix and labels' values."""
    registry = CollectorRegistry()
    registry.register(Scraped(stats))
    return {
        ".".join([sample.name.removeprefix("luxrelay_gateway_"), *sample.labels.values()]): (
            sample.value
        )
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_every_counter_is_told_under_its_own_name() -> None:
    """Each number is a different one, so none can stand for another."""
    public = ServerCounters(refused=2, broken=3, stalled=4, open=5, faults=6)
    for status, times in ((200, 7), (404, 8)):
        for _ in range(times):
            public.answered(status)
    public.taken.observe(3)
    public.taken.observe(30_001)
    stats = GatewayStats(
        public=public,
        admin=ServerCounters(faults=9),
        streams=StreamCounters(
            open=10, subscriptions=11, messages=12, gaps=13, late=14, slow=15, published=16
        ),
        refused={"gateway.rate": 17},
        busy=18,
        older=OlderStats(
            calls={("page", "answered"): 19, ("search", "quiet"): 20}, messages=21, busy=22
        ),
    )

    told = scrape(stats)

    assert {name: value for name, value in told.items() if value and "request_ms" not in name} == {
        "connections_refused_total.public": 2,
        "requests_broken_total.public": 3,
        "clients_stalled_total.public": 4,
        "connections.public": 5,
        "faults_total.public": 6,
        "responses_total.public.200": 7,
        "responses_total.public.404": 8,
        "faults_total.admin": 9,
        "websockets": 10,
        "subscriptions_total": 11,
        "messages_told_total": 12,
        "gaps_told_total": 13,
        "messages_late_total": 14,
        "subscribers_slow_total": 15,
        "messages_published_total": 16,
        "requests_refused_total.gateway.rate": 17,
        "busy_total": 18,
        "archive_calls_total.page.answered": 19,
        "archive_calls_total.search.quiet": 20,
        "archive_messages_total": 21,
        "archive_busy_total": 22,
    }
    assert told["request_ms_bucket.5.public"] == 1
    assert told["request_ms_bucket.+Inf.public"] == told["request_ms_count.public"] == 2
    assert told["request_ms_sum.public"] == 30_004


def test_a_node_without_a_gateway_has_the_same_names() -> None:
    """A dashboard finds its series before there is anything to count."""
    told = scrape(GatewayStats.none())

    assert {"connections.admin", "websockets", "busy_total"} <= set(told)
    assert not any(told.values())
