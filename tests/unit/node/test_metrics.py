"""The gossip metrics of LP-6420 §9, from the numbers of a router that has worked."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from luxrelay.bus import NamespaceId, VerdictKind
from luxrelay.gossip import (
    GossipParams,
    GossipRouter,
    GossipStats,
    HeaderAnnouncement,
    MessageType,
    PeerId,
    RelayMessage,
    Validate,
    topic_for_namespace,
)
from luxrelay.gossip.rpc import encode_message, encode_subscription
from luxrelay.node import metrics

TOPIC = topic_for_namespace("net", NamespaceId(b"\x21" * 20))


class Scraped(Collector):
    """Yields what a function makes of a router's numbers."""

    def __init__(self, make: Callable[[GossipStats], Iterable[Metric]], stats: GossipStats) -> None:
        self._make, self._stats = make, stats

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        return self._make(self._stats)


def scrape(make: Callable[[GossipStats], Iterable[Metric]], stats: GossipStats) -> dict[str, float]:
    """Return the samples of a scrape by name and labels, as a dashboard would read them."""
    registry = CollectorRegistry()
    registry.register(Scraped(make, stats))
    return {
        sample.name + "".join(f"{{{k}={v}}}" for k, v in sample.labels.items()): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def message(seq: int) -> bytes:
    """Return an encoded header message."""
    header = b"\x01\x00" + b"\x21" * 20 + seq.to_bytes(8) + bytes(180)
    payload = HeaderAnnouncement(header_bytes=header, source=b"s", timestamp_ms=0).encode()
    return RelayMessage(type=MessageType.HEADER, topic=TOPIC, payload=payload).encode()


def worked() -> GossipStats:
    """Return the numbers of a router with two peers, one gone, and three messages received."""
    router = GossipRouter(GossipParams(), rng=random.Random(1), own_id=PeerId(b"me"))
    router.subscribe(TOPIC, 0.0)
    good, gone = PeerId(b"good"), PeerId(b"gone")
    for peer in (good, gone):
        router.peer_connected(peer, "/meshsub/1.1.0", True, 0.0)
        router.received(peer, encode_subscription(TOPIC, subscribe=True), 0.0)
    router.wake(1.0)
    router.publish(TOPIC, message(9), 1.0)
    for seq, kind in ((1, VerdictKind.ACCEPT), (2, VerdictKind.REJECT)):
        router.received(good, encode_message(TOPIC, message(seq)), 2.0)
        for action in router.drain():
            if isinstance(action, Validate):
                router.validated(action.token, kind, 2.003)
    router.received(good, encode_message(TOPIC, message(1)), 2.0)
    router.peer_disconnected(gone, 42.0)
    return router.stats()


def test_propagation_metrics_are_exported_by_topic() -> None:
    """Received, published, duplicate and invalid ratio, latency on our clock (20-42, G31)."""
    samples = scrape(metrics._topics, worked())

    label = f"{{topic={TOPIC}}}"
    assert samples[f"relay_messages_received_total{label}"] == 3
    assert samples[f"relay_messages_published_total{label}"] == 1
    assert samples[f"relay_duplicate_ratio{label}"] == 1 / 3
    assert samples[f"relay_invalid_ratio{label}"] == 1 / 2
    assert samples[f"relay_mesh_size{label}"] == 1
    assert samples["luxrelay_gossip_forward_ms_bucket{le=2.0}"] == 0
    assert samples["luxrelay_gossip_forward_ms_bucket{le=5.0}"] == 1
    assert samples["luxrelay_gossip_forward_ms_count"] == 1


def test_peer_metrics_are_exported() -> None:
    """The distribution of scores now, and how long connections lasted (20-43)."""
    samples = scrape(metrics._peers, worked())

    assert samples["relay_peer_score_distribution_bucket{le=-10.0}"] == 0
    assert samples["relay_peer_score_distribution_bucket{le=0.0}"] == 1
    assert samples["relay_peer_score_distribution_bucket{le=+Inf}"] == 1
    assert samples["relay_connection_duration_bucket{le=10.0}"] == 0
    assert samples["relay_connection_duration_bucket{le=60.0}"] == 1
    assert samples["relay_connection_duration_sum"] == 42


def test_a_router_without_topics_has_no_topic_samples() -> None:
    """Labels come from followed topics alone, so their number is bounded."""
    router = GossipRouter(GossipParams(), rng=random.Random(1), own_id=PeerId(b"me"))

    samples = scrape(metrics._topics, router.stats())

    assert not any("topic=" in name for name in samples)
