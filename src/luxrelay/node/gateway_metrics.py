"""The gateway's Prometheus metrics, beside the others in `luxrelay.node.metrics`.

Labels come from closed sets: two listeners, the statuses and codes that docs/reference/http.md
lists. A gateway that was started again counts from nothing, which Prometheus knows of counters.

Source: LP-6491; docs/reference/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from luxrelay.node.gateway.server import ServerCounters
from luxrelay.node.gateway.service import GatewayStats
from luxrelay.node.gateway.store_and_archive import OlderStats


def gateway_metrics(stats: GatewayStats) -> Iterable[Metric]:
    """Yield what both listeners and the WebSockets have done."""
    listeners = {"public": stats.public, "admin": stats.admin}
    yield from _answers(listeners)
    yield from _connections(listeners)
    refused = CounterMetricFamily(
        "luxrelay_gateway_requests_refused",
        "Requests of the public listener refused before their body was read, by code.",
        labels=("code",),
    )
    for code, count in sorted(stats.refused.items()):
        refused.add_metric((code,), count)
    yield refused
    yield CounterMetricFamily(
        "luxrelay_gateway_busy",
        "Calls refused because too many waited for the store.",
        value=stats.busy,
    )
    contained = CounterMetricFamily(
        "luxrelay_gateway_contained",
        "Failures that nobody expected and that ended one connection; the log names each kind.",
        labels=("kind",),
    )
    for kind in ("accept", "dashboard", "http call", "http connection", "websocket"):
        contained.add_metric((kind,), stats.contained.get(kind, 0))
    yield contained
    yield from _older(stats.older)
    streams = stats.streams
    yield GaugeMetricFamily(
        "luxrelay_gateway_websockets", "WebSockets of subscribers open now.", value=streams.open
    )
    for name, help_text, value in (
        ("subscriptions", "Subscriptions begun.", streams.subscriptions),
        ("messages_told", "Messages told to subscribers.", streams.messages),
        ("messages_late", "Of those, told out of their order.", streams.late),
        ("gaps_told", "Gaps told to subscribers.", streams.gaps),
        ("subscribers_slow", "WebSockets closed because nothing was taken.", streams.slow),
        ("subscribers_failed", "WebSockets closed by a failure of ours.", streams.faults),
        ("subscribers_crowded", "WebSockets without token that gave way.", streams.crowded),
        ("messages_published", "Messages published over WebSockets.", streams.published),
    ):
        yield CounterMetricFamily(f"luxrelay_gateway_{name}", help_text, value=value)


def _older(older: OlderStats) -> Iterable[Metric]:
    calls = CounterMetricFamily(
        "luxrelay_gateway_archive_calls",
        "Questions to the archive for what is no longer here: answered, failed, or quiet when it "
        "had failed a moment ago.",
        labels=("call", "outcome"),
    )
    for (call, outcome), count in sorted(older.calls.items()):
        calls.add_metric((call, outcome), count)
    yield calls
    for name, help_text, value in (
        ("messages", "Messages that the archive gave and that held.", older.messages),
        ("busy", "Questions refused because too many waited for the archive.", older.busy),
    ):
        yield CounterMetricFamily(f"luxrelay_gateway_archive_{name}", help_text, value=value)


def _answers(listeners: dict[str, ServerCounters]) -> Iterable[Metric]:
    answers = CounterMetricFamily(
        "luxrelay_gateway_responses", "Requests answered.", labels=("listener", "status")
    )
    taken = HistogramMetricFamily(
        "luxrelay_gateway_request_ms",
        "From a request's head to its last byte taken, WebSockets apart, milliseconds.",
        labels=("listener",),
    )
    for name, counters in listeners.items():
        for status, count in sorted(counters.answers.items()):
            answers.add_metric((name, str(status)), count)
        buckets, total_ms = counters.taken.snapshot()
        taken.add_metric((name,), buckets, total_ms)
    yield answers
    yield taken


def _connections(listeners: dict[str, ServerCounters]) -> Iterable[Metric]:
    now = GaugeMetricFamily(
        "luxrelay_gateway_connections", "Connections open now.", labels=("listener",)
    )
    for name, counters in listeners.items():
        now.add_metric((name,), counters.open)
    yield now
    for metric, field, help_text in (
        ("connections_refused", "refused", "Connections closed at once: there were too many."),
        ("connections_held", "held", "Connections let in later: their address had cost too much."),
        ("connections_crowded", "crowded", "Connections that gave their place to a newcomer."),
        ("requests_broken", "broken", "Requests that were no HTTP, too large or too slow."),
        ("clients_stalled", "stalled", "Connections closed: their client took too little."),
        ("faults", "faults", "Answers of 500; the log has each."),
    ):
        family = CounterMetricFamily(f"luxrelay_gateway_{metric}", help_text, labels=("listener",))
        for name, counters in listeners.items():
            family.add_metric((name,), getattr(counters, field))
        yield family
