"""Every Prometheus metric once: name, help, unit, bounded labels.

Rooms only count; this file reads their snapshots when somebody scrapes. Labels come from closed
sets (doors, verdict kinds, codes, configured topics), so their number is bounded.

Source: LP-6420 §9, LP-6421 §8, LP-6491; decisions G30, P45.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from luxrelay.bus import Code, NamespaceId, VerdictKind
from luxrelay.gossip import GossipStats
from luxrelay.gossip.stats import Histogram
from luxrelay.net import NetStats
from luxrelay.node.gateway.service import GatewayStats
from luxrelay.node.gateway_metrics import gateway_metrics
from luxrelay.node.ingress import Doors
from luxrelay.node.network_health import MostRefused
from luxrelay.node.observe import ObserverStats
from luxrelay.node.topic_metrics import TopicSources, topic_metrics
from luxrelay.node.totals import BLOBS, CATCH_UP, STREAMS
from luxrelay.store import StoreStats
from luxrelay.store.stats import GcStats
from luxrelay.sync.rpc.stats import LATENCY_BOUNDS_MS, SyncServerStats

_SCORE_BOUNDS: Final = (
    -5000.0,
    -2500.0,
    -1000.0,
    -100.0,
    -10.0,
    0.0,
    1.0,
    10.0,
    50.0,
    100.0,
    200.0,
)
"""Classes of scores: LP-6420's thresholds, and what good peers earn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the numbers come from; each is called at every scrape, from the scraping thread."""

    net: Callable[[], NetStats]
    store: Callable[[], StoreStats]
    sync: Callable[[], SyncServerStats]
    doors: Doors
    uptime_s: Callable[[], float]
    clock_ms: Callable[[], int]
    catch_up: Callable[[], dict[str, int]]
    blobs: Callable[[], dict[str, int]]
    streams: Callable[[], dict[str, int]]
    catch_up_lag: Callable[[], dict[NamespaceId | None, int]]
    rates: Callable[[], dict[str, int]]
    modules: Callable[[], dict[str, dict[str, Any]]]
    rounds: Callable[[], dict[str, dict[str, Any]]]
    round_ages: Callable[[], dict[str, float]]
    faults: Callable[[], dict[str, int]]
    gateway: Callable[[], GatewayStats]
    topics: TopicSources = field(default_factory=TopicSources)
    pages: Callable[[], ObserverStats] = ObserverStats
    refused: Callable[[], Iterable[MostRefused]] = tuple
    """What was mostly refused of what peers sent."""
    tasks: Callable[[], int] = lambda: 0
    """Tasks of the event loop."""


class NodeMetrics:
    """The node's registry, apart from any other in the process."""

    def __init__(self, sources: Sources) -> None:
        """Register one collector for all."""
        self._registry = CollectorRegistry()
        self._registry.register(NodeCollector(sources))

    def exposition(self) -> bytes:
        """Return the Prometheus text of this moment."""
        return generate_latest(self._registry)


class NodeCollector(Collector):
    """Yields every metric from the rooms' snapshots."""

    def __init__(self, sources: Sources) -> None:
        """Read from ``sources`` at every scrape."""
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        """Yield every metric as it stands now."""
        yield _gauge(
            "luxrelay_uptime_seconds", "Since the node was ready.", self._sources.uptime_s()
        )
        yield _gauge(
            "luxrelay_process_tasks",
            "Tasks of the event loop; connections and streams have a few each.",
            self._sources.tasks(),
        )
        yield from _modules(self._sources.modules())
        yield from _rounds(self._sources)
        yield from _messages(self._sources)
        net = self._sources.net()
        yield from _network(net)
        yield from _heard(net, self._sources.refused())
        yield from _store(self._sources.store(), self._sources.clock_ms())
        yield from _sync(self._sources)
        yield from gateway_metrics(self._sources.gateway())
        yield from _pages(self._sources.pages())
        yield from topic_metrics(self._sources.topics)

    def describe(self) -> Iterable[Metric]:
        """Say nothing beforehand, so that registering does not read the rooms."""
        return ()


def _modules(modules: dict[str, dict[str, Any]]) -> Iterable[Metric]:
    running = GaugeMetricFamily(
        "luxrelay_module_up", "1 while a module of the node runs.", labels=("module",)
    )
    restarts = CounterMetricFamily(
        "luxrelay_module_restarts", "Times a failed module was started again.", labels=("module",)
    )
    for name, module in modules.items():
        running.add_metric((name,), module["state"] == "running")
        restarts.add_metric((name,), module["restarts"])
    yield running
    yield restarts


def _rounds(sources: Sources) -> Iterable[Metric]:
    ages = GaugeMetricFamily(
        "luxrelay_round_ended_seconds",
        "Since a round of background work (catch-up, reconcile, blobs, retention) came to its end; "
        "before the first one, since the node began.",
        labels=("round",),
    )
    left = GaugeMetricFamily(
        "luxrelay_round_left_behind",
        "Threads of a round that hang and were left behind.",
        labels=("round",),
    )
    rounds = CounterMetricFamily(
        "luxrelay_rounds", "Rounds of background work.", labels=("round", "end")
    )
    for (name, kind), age in zip(
        sources.rounds().items(), sources.round_ages().values(), strict=True
    ):
        ages.add_metric((name,), age)
        left.add_metric((name,), kind["left_behind"])
        rounds.add_metric((name, "whole"), kind["rounds"] - kind["failed"])
        rounds.add_metric((name, "cut"), kind["cut"])
        rounds.add_metric((name, "failed"), kind["failed"] - kind["cut"])
    yield ages
    yield left
    yield rounds
    faults = CounterMetricFamily(
        "luxrelay_faults_contained",
        "Failures of background work that ended one round and nothing else, by kind.",
        labels=("kind",),
    )
    for name, count in sorted(sources.faults().items()):
        faults.add_metric((name,), count)
    yield faults


def _messages(sources: Sources) -> Iterable[Metric]:
    verdicts = CounterMetricFamily(
        "luxrelay_verdicts",
        "Messages judged, by door (gossip, claims, publish, sync), verdict and code.",
        labels=("door", "verdict", "code"),
    )
    for (door, kind, code), count in sorted(sources.doors.counts.snapshot().items()):
        verdicts.add_metric((door, kind.name.lower(), code.name.lower()), count)
    yield verdicts
    processed = sources.doors.counts.snapshot().items()
    yield _counter(
        "luxda_headers_processed",
        "Headers accepted at any door (LP-6491).",
        sum(count for (door, _, code), count in processed if code is Code.OK and door != "claims"),
    )
    refused = CounterMetricFamily(
        "luxrelay_rate_limited",
        "Live messages that a rate refused, by layer (peer, global, namespace, sender).",
        labels=("layer",),
    )
    for layer, count in sorted(sources.rates().items()):
        refused.add_metric((layer,), count)
    yield refused
    buckets, total_ms = sources.doors.latency.snapshot()
    for name in ("relay_message_latency_ms", "luxda_relay_latency_ms"):
        yield HistogramMetricFamily(
            name,
            "From a header's timestamp to its commit here, gossip only, milliseconds.",
            buckets=buckets,
            sum_value=total_ms,
        )


def _heard(net: NetStats, refused: Iterable[MostRefused]) -> Iterable[Metric]:
    for name, help_text, value in (
        (
            "luxrelay_clock_offset_ms",
            "How far the wall clock is ahead of the median of the peers', milliseconds (G36).",
            net.clock.offset_ms,
        ),
        (
            "luxrelay_clock_spread_ms",
            "Median distance of the peers' clocks from their median, milliseconds (G36).",
            net.clock.spread_ms,
        ),
        (
            "luxrelay_clock_peers",
            "Peers whose clocks count; 0 while they are too few to be believed (G36).",
            net.clock.peers if net.clock.known else 0,
        ),
        (
            "luxrelay_net_quiet_seconds",
            "Since a byte of any peer came; 0 without peers, here and in the file (G37).",
            net.quiet_s or 0.0,
        ),
    ):
        yield _gauge(name, help_text, value)
    shares = GaugeMetricFamily(
        "luxrelay_refused_share",
        "Part of what peers sent in the last minute that was refused for one reason (a verdict's "
        "code, or network for peers of another one), while it is more than half (G37).",
        labels=("reason",),
    )
    for each in refused:
        shares.add_metric((each.reason,), each.share)
    yield shares


def _network(net: NetStats) -> Iterable[Metric]:
    router = net.router
    yield from _gossip(router)
    for name, help_text, value in (
        ("luxrelay_net_bytes_in", "Bytes received by libp2p.", net.host.bytes_in),
        ("luxrelay_net_bytes_out", "Bytes sent by libp2p.", net.host.bytes_out),
        (
            "luxrelay_net_held_back",
            "Looks at connections with as much on its way as the path carries (P51).",
            net.host.held_back,
        ),
        (
            "luxrelay_net_dials_failed",
            "Peers not reached, tries.",
            net.driver.dials_failed,
        ),
        (
            "luxrelay_net_frame_errors",
            "Streams reset for bytes that are no frames.",
            net.driver.frame_errors,
        ),
        (
            "luxrelay_net_replaced",
            "Silent connections that gave their place to a newer one of the same peer.",
            net.host.swarm.replaced,
        ),
        (
            "luxrelay_net_streams_lost",
            "Gossip streams that were reset on a live connection and opened anew.",
            net.driver.streams_lost,
        ),
        (
            "luxrelay_net_stalled_peers",
            "Peers dropped because they took nothing.",
            net.driver.dropped_stalled,
        ),
        (
            "luxrelay_net_streams_cut",
            "Gossip streams of peers that ended inside a frame.",
            net.driver.streams_cut,
        ),
    ):
        yield _counter(name, help_text, value)
    for name in ("relay_peer_count", "luxda_peer_count"):
        yield _gauge(name, "Peers connected.", net.host.peers)
    yield _gauge("luxrelay_gossip_pending", "Messages waiting for a verdict.", router.pending)
    yield from _admission(net)
    yield from _streams(net)
    yield from _slow_peers(router)
    yield from _topics(router)
    yield from _peers(router)


def _admission(net: NetStats) -> Iterable[Metric]:
    for name, help_text, value in (
        ("luxrelay_net_dials", "Peers reached.", net.driver.dials),
        (
            "luxrelay_net_address_refused",
            "Inbound connections refused because their address or subnet has enough.",
            net.host.swarm.address_refused,
        ),
        (
            "luxrelay_net_inbound_refused",
            "Inbound connections refused because all places were taken.",
            net.host.swarm.inbound_refused,
        ),
        (
            "luxrelay_net_banned_refused",
            "Connections closed because the peer is banned.",
            net.host.swarm.banned_refused,
        ),
        (
            "luxrelay_net_foreign_peers",
            "Peers let go because they are of another network or version.",
            net.greeting.foreign,
        ),
        (
            "luxrelay_net_hello_errors",
            "Peers let go because their hello cannot be read.",
            net.greeting.errors,
        ),
        (
            "luxrelay_net_overflowed_peers",
            "Peers dropped because too much control waited for them.",
            net.driver.dropped_overflow,
        ),
        ("luxrelay_net_records_given", "Peer records given to others.", net.exchange.given),
        ("luxrelay_net_records_taken", "Peer records of others taken.", net.exchange.taken),
        (
            "luxrelay_net_records_refused",
            "Peer records that were not in order, and askers who came too often.",
            net.exchange.refused + net.exchange.hurried,
        ),
    ):
        yield _counter(name, help_text, value)
    yield from _address_news(net)
    yield _gauge("luxrelay_net_known_peers", "Peers that could be dialled.", net.known_peers)
    yield _gauge("luxrelay_net_bans", "Peers banned now.", len(net.bans))
    faults = CounterMetricFamily(
        "luxrelay_net_faults",
        "Unexpected failures that ended one stream, connection or round and nothing else, by kind.",
        labels=("kind",),
    )
    for kind, count in sorted(net.faults.items()):
        faults.add_metric((kind,), count)
    yield faults
    connections = GaugeMetricFamily(
        "luxrelay_net_connections", "Open connections by direction.", labels=("direction",)
    )
    connections.add_metric(("in",), net.host.inbound)
    connections.add_metric(("out",), net.host.outbound)
    yield connections


def _address_news(net: NetStats) -> Iterable[Metric]:
    for name, help_text, value in (
        (
            "luxrelay_net_hello_late",
            "Peers let go, free to come again, because their hello did not come whole in time.",
            net.greeting.late,
        ),
        ("luxrelay_net_address_changes", "Times our own addresses changed.", net.news.own),
        (
            "luxrelay_net_news_told",
            "Records of new addresses sent to peers, our own among them.",
            net.news.told,
        ),
        (
            "luxrelay_net_news_untold",
            "Peers not told of a new address: of an earlier version, gone, or silent.",
            net.news.untold,
        ),
        (
            "luxrelay_net_news_followed",
            "Records of peers that were newer and named other addresses.",
            net.news.followed,
        ),
        (
            "luxrelay_net_news_refused",
            "Records of new addresses that were not in order, old, of strangers, or too many.",
            net.news.refused,
        ),
    ):
        yield _counter(name, help_text, value)


def _streams(net: NetStats) -> Iterable[Metric]:
    for name, help_text, value in (
        (
            "luxrelay_net_handshakes_failed",
            "Inbound connections that were no libp2p peer, or not in time.",
            net.host.swarm.handshakes_failed,
        ),
        (
            "luxrelay_net_strangers_turned_out",
            "Inbound connections in the handshake that gave their place to a newer one.",
            net.host.swarm.strangers_turned_out,
        ),
        (
            "luxrelay_net_silent_displaced",
            "Inbound peers that had said nothing and gave their place to a newer one.",
            net.host.swarm.silent_displaced,
        ),
        (
            "luxrelay_net_held",
            "Times a connection was not read from because its address had cost too much.",
            net.host.held,
        ),
        (
            "luxrelay_net_silent_closed",
            "Inbound peers closed because they said nothing in time.",
            net.host.swarm.silent_closed,
        ),
        (
            "luxrelay_net_accept_errors",
            "Connections that could not be accepted, for want of descriptors or other reasons.",
            net.host.accept_errors,
        ),
        (
            "luxrelay_net_streams_shed",
            "Streams reset because too many bytes waited to be read.",
            net.host.mux.streams_shed,
        ),
        (
            "luxrelay_net_window_exceeded",
            "Streams reset because the peer sent more than it had been granted.",
            net.host.mux.window_exceeded,
        ),
        (
            "luxrelay_net_streams_refused",
            "Streams refused because a connection had too many or opened them too fast.",
            net.host.mux.streams_refused,
        ),
        (
            "luxrelay_net_protocol_errors",
            "Connections closed for frames that they may not send.",
            net.host.mux.protocol_errors,
        ),
    ):
        yield _counter(name, help_text, value)
    yield _gauge(
        "luxrelay_net_unread_bytes", "Bytes of all peers that wait to be read.", net.host.unread
    )
    yield from _yamux(net)


def _yamux(net: NetStats) -> Iterable[Metric]:
    """Yield what the multiplexers did, all connections together."""
    mux = net.host.mux
    for name, help_text, ours, theirs in (
        ("luxrelay_net_yamux_streams_opened", "Streams opened.", mux.opened_out, mux.opened_in),
        ("luxrelay_net_yamux_streams_reset", "Streams reset.", mux.resets_out, mux.resets_in),
    ):
        family = CounterMetricFamily(name, f"{help_text[:-1]}, by which side.", labels=("by",))
        family.add_metric(("us",), ours)
        family.add_metric(("peer",), theirs)
        yield family
    for name, help_text, value in (
        (
            "luxrelay_net_yamux_window_stalls",
            "Times a write waited because the peer had given no credit.",
            mux.window_stalls,
        ),
        (
            "luxrelay_net_yamux_write_timeouts",
            "Connections closed because no frame could be written in time.",
            mux.write_timeouts,
        ),
        (
            "luxrelay_net_yamux_keepalive_timeouts",
            "Connections closed because the peer answered no ping.",
            mux.keepalive_timeouts,
        ),
    ):
        yield _counter(name, help_text, value)


def _gossip(router: GossipStats) -> Iterable[Metric]:
    for name, help_text, value in (
        ("luxrelay_gossip_duplicates", "Messages received again.", router.duplicates),
        ("luxrelay_gossip_rejected", "Messages rejected.", router.rejected),
        ("luxrelay_gossip_ignored", "Messages ignored.", router.ignored),
        ("luxrelay_gossip_malformed", "Frames and messages that cannot be read.", router.malformed),
        ("luxrelay_gossip_busy", "Messages ignored for want of room.", router.busy),
        ("luxrelay_gossip_forwarded", "Messages sent on to mesh peers.", router.forwarded),
        (
            "luxrelay_gossip_passed_on",
            "Headers of namespaces sent to peers that follow headers/global alone (G34).",
            router.passed_on,
        ),
        (
            "luxrelay_gossip_unwanted",
            "Messages on topics that nobody follows here.",
            router.unwanted,
        ),
        (
            "luxrelay_gossip_throttled",
            "Messages ignored because their topic had taken its bytes.",
            router.throttled,
        ),
        (
            "luxrelay_gossip_unheard",
            "Frames not heard because of the sender's score.",
            router.unheard,
        ),
        (
            "luxrelay_gossip_disconnected",
            "Peers disconnected for their score.",
            router.disconnected,
        ),
        ("luxrelay_gossip_rotated", "Peers that made room for others.", router.rotated),
        ("luxrelay_gossip_refused", "Connections refused by the router.", router.refused),
        (
            "luxrelay_gossip_promises_broken",
            "Messages announced to us, asked for and not delivered.",
            router.promises_broken,
        ),
        (
            "luxrelay_gossip_control_floods",
            "Times a peer exceeded a cap on control messages.",
            router.control_floods,
        ),
        (
            "luxrelay_gossip_declined",
            "Messages not sent because the peer had declined them.",
            router.idontwant_heeded,
        ),
        (
            "luxrelay_gossip_dropped",
            "Messages a full queue had no room for.",
            router.dropped_messages,
        ),
    ):
        yield _counter(name, help_text, value)


def _slow_peers(router: GossipStats) -> Iterable[Metric]:
    for name, help_text, value in (
        (
            "luxrelay_gossip_promises_stalled",
            "Messages promised by peers that sent nothing at all meanwhile, which is no offence.",
            router.promises_stalled,
        ),
        (
            "luxrelay_gossip_slowed",
            "Times a peer left the meshes because its link took less than was offered.",
            router.slowed,
        ),
        (
            "luxrelay_gossip_slow_spared",
            "Messages not sent to slow peers, which are told the ids that fit.",
            router.slow_spared,
        ),
        (
            "luxrelay_gossip_pulled",
            "Times our own link was slow, so that messages were fetched by catching up.",
            router.pulled,
        ),
        (
            "luxrelay_gossip_ihave_left",
            "Announced ids not asked for meanwhile.",
            router.ihave_left,
        ),
    ):
        yield _counter(name, help_text, value)
    yield _gauge("luxrelay_gossip_slow_peers", "Peers whose link is slow now.", router.slow)
    yield _gauge(
        "luxrelay_gossip_pulling",
        "1 while our own link is slow and messages are fetched by catching up.",
        int(router.pulling),
    )
    yield _gauge(
        "luxrelay_gossip_pulling_peers",
        "Peers that said that they fetch messages by catching up.",
        router.pulling_peers,
    )


def _topics(router: GossipStats) -> Iterable[Metric]:
    """Yield the propagation metrics of LP-6420 §9.1, by topic."""
    received = CounterMetricFamily(
        "relay_messages_received", "Messages received from peers, by topic.", labels=("topic",)
    )
    published = CounterMetricFamily(
        "relay_messages_published", "Messages this node published, by topic.", labels=("topic",)
    )
    duplicate = GaugeMetricFamily(
        "relay_duplicate_ratio",
        "Duplicates among messages received, 0 to 1, by topic.",
        labels=("topic",),
    )
    invalid = GaugeMetricFamily(
        "relay_invalid_ratio",
        "Rejected among messages judged, 0 to 1, by topic.",
        labels=("topic",),
    )
    for topic, found in sorted(router.topics.items()):
        judged = found.accepted + found.ignored + found.rejected
        received.add_metric((topic,), found.received)
        published.add_metric((topic,), found.published)
        ratio = found.duplicates / found.received if found.received else 0.0
        duplicate.add_metric((topic,), ratio)
        invalid.add_metric((topic,), found.rejected / judged if judged else 0.0)
    mesh = GaugeMetricFamily("relay_mesh_size", "Mesh peers by topic.", labels=("topic",))
    for topic, size in sorted(router.mesh.items()):
        mesh.add_metric((topic,), size)
    yield from (received, published, duplicate, invalid, mesh)
    yield HistogramMetricFamily(
        "luxrelay_gossip_forward_ms",
        "From receiving a message to forwarding it, by this node's clock, milliseconds (G31).",
        buckets=_buckets(router.forward_ms),
        sum_value=router.forward_ms.total,
    )


def _peers(router: GossipStats) -> Iterable[Metric]:
    """Yield the peer metrics of LP-6420 §9.2 that the router knows."""
    scores = Histogram.of(_SCORE_BOUNDS)
    for peer in router.peers.values():
        scores.observe(peer.score)
    yield GaugeHistogramMetricFamily(
        "relay_peer_score_distribution",
        "Scores of the connected peers now.",
        buckets=_buckets(scores),
        gsum_value=scores.total,
    )
    yield HistogramMetricFamily(
        "relay_connection_duration",
        "How long ended connections lasted, seconds.",
        buckets=_buckets(router.durations_s),
        sum_value=router.durations_s.total,
    )


def _buckets(found: Histogram) -> list[tuple[str, float]]:
    """Return cumulative counts by upper bound."""
    bounds = (*map(str, found.bounds), "+Inf")
    return list(zip(bounds, accumulate(found.counts), strict=True))


def _store(store: StoreStats, now_ms: int) -> Iterable[Metric]:
    yield _gauge("relay_store_messages", "Messages stored.", store.messages)
    yield _gauge("relay_store_size_bytes", "Bytes of messages stored.", store.size_bytes)
    yield _gauge("luxrelay_store_namespaces", "Namespaces with a head.", store.namespaces)
    oldest = store.oldest_timestamp
    window = max(0.0, (now_ms - oldest) / 1000) if oldest else 0.0
    yield _gauge("relay_store_window_seconds", "Age of the oldest message.", window)
    yield _gauge(
        "relay_store_hit_rate", "Ids read from memory, 0 to 1, five minutes.", store.hit_rate
    )
    for name, help_text, value in (
        ("luxrelay_store_hits", "Ids read that were in memory.", store.hot_hits),
        ("luxrelay_store_misses", "Ids read that were not.", store.hot_misses),
        ("luxrelay_store_syncs", "Times the log was synced to the disk.", store.syncs),
        (
            "luxrelay_store_equivocations",
            "Second contents of a sender for a slot (H17).",
            store.equivocations,
        ),
        (
            "luxrelay_store_unread_evicted",
            "Messages gone before an archive had read them (J8).",
            store.unread_evicted,
        ),
        (
            "luxrelay_store_thinned",
            "Messages gone early because their namespace is thinned (J3).",
            store.thinned,
        ),
        (
            "luxrelay_store_superseded",
            "Candidates that lost their slot to a finalized one (P40).",
            store.superseded,
        ),
        (
            "luxrelay_store_blobs_dropped",
            "Blobs gone before their messages, for age or room (LP-6421 §5.1).",
            store.blobs_dropped,
        ),
    ):
        yield _counter(name, help_text, value)
    for name, help_text, counts in (
        ("luxrelay_store_evicted", "Messages that made room, by what was full.", store.evicted),
        ("luxrelay_store_refused", "Messages without room, by what was full.", store.refused),
    ):
        family = CounterMetricFamily(name, help_text, labels=("lack",))
        for lack, count in sorted(counts.items()):
            family.add_metric((lack.name.lower(),), count)
        yield family
    yield from _retention(store.gc)


def _retention(gc: GcStats) -> Iterable[Metric]:
    yield HistogramMetricFamily(
        "luxrelay_gc_cycle_duration_seconds",
        "Duration of a deletion cycle.",
        buckets=[("+Inf" if b == math.inf else str(b), count) for b, count in gc.duration_buckets],
        sum_value=gc.duration_sum_s,
    )
    yield _gauge("luxrelay_gc_running", "1 while a deletion cycle runs.", gc.running)
    yield _gauge("luxrelay_retention_cutoff_ts_ms", "Cut-off of the last cycle.", gc.cutoff_ms)
    yield _gauge(
        "luxrelay_clock_moved_ms",
        "How far the wall clock has jumped; not 0 pauses deletion (P43).",
        gc.clock_moved_ms,
    )
    for name, help_text, value in (
        (
            "luxrelay_gc_messages_deleted",
            "Messages that deletion cycles removed.",
            gc.messages_deleted,
        ),
        (
            "luxrelay_gc_namespaces_processed",
            "Namespaces of these, anew in each cycle.",
            gc.namespaces_processed,
        ),
        ("luxrelay_clock_alarms", "Jumps of the wall clock seen.", gc.clock_alarms),
    ):
        yield _counter(name, help_text, value)


def _sync(sources: Sources) -> Iterable[Metric]:
    sync = sources.sync()
    requests = CounterMetricFamily(
        "relay_sync_requests", "Sync calls by method and gRPC status.", labels=("method", "status")
    )
    for (method, status), count in sorted(sync.requests.items()):
        requests.add_metric((method, status), count)
    yield requests
    latency = HistogramMetricFamily(
        "relay_sync_latency_ms", "Duration of sync calls, milliseconds.", labels=("method",)
    )
    for method, taken in sorted(sync.latency.items()):
        running, buckets = 0, []
        for bound, count in zip((*map(str, LATENCY_BOUNDS_MS), "+Inf"), taken.counts, strict=True):
            running += count
            buckets.append((bound, running))
        latency.add_metric((method,), buckets, taken.sum_ms)
    yield latency
    yield _counter("luxrelay_sync_messages_served", "Messages served.", sync.messages_sent)
    yield _counter("luxrelay_sync_bytes_served", "Bytes of messages served.", sync.bytes_sent)
    mishaps = CounterMetricFamily(
        "luxrelay_sync_mishaps",
        "Calls that an exception nobody expected has ended, by call and class of the exception.",
        labels=("call", "exception"),
    )
    for kind, count in sorted(sync.mishaps.items()):
        mishaps.add_metric(tuple(kind.partition(" ")[::2]), count)
    yield mishaps
    yield _counter(
        "luxrelay_sync_validator_pages",
        "Pages that a proven validator asked for (P33).",
        sync.validator_pages,
    )
    yield _counter("luxrelay_sync_errors", "Sync calls that failed.", sync.errors)
    yield _counter(
        "luxrelay_sync_messages_rejected",
        "Messages of relays that were older than this store keeps.",
        sources.doors.counts.snapshot().get(("sync", VerdictKind.IGNORE, Code.EXPIRED), 0),
    )
    totals = sources.catch_up()
    for name, help_text in CATCH_UP.items():
        yield _counter(f"luxrelay_catch_up_{name}", help_text, totals[name])
    blobs, streams = sources.blobs(), sources.streams()
    for name, help_text in BLOBS.items():
        made = _gauge if name == "in_flight" else _counter
        yield made(f"luxrelay_blob_fetch_{name}", help_text, blobs[name])
    for name, help_text in STREAMS.items():
        yield _counter(f"luxrelay_reconcile_stream_{name}", help_text, streams[name])
    yield _lag(sources)
    yield _gauge("luxrelay_sync_waiting", "Sync calls that wait for their turn.", sync.waiting)
    yield _gauge(
        "luxrelay_sync_held_bytes", "Bytes read and not yet taken by readers.", sync.held_bytes
    )
    yield _counter(
        "luxrelay_sync_stalled", "Sync calls ended because their reader took nothing.", sync.stalled
    )
    yield from _cost(sync)
    yield from _connections(sync)


def _connections(sync: SyncServerStats) -> Iterable[Metric]:
    yield _gauge("luxrelay_sync_connections", "Connections to the sync port.", sync.connections)
    yield _counter(
        "luxrelay_sync_streams_crowded",
        "Sync streams that gave their place to a newcomer when all were taken.",
        sync.streams_crowded,
    )
    for name, help_text, value in (
        ("refused", "whose address has or opens too many", sync.connections_refused),
        ("crowded", "that gave their place to a newcomer", sync.connections_crowded),
        ("silent", "that said nothing in time", sync.connections_silent),
    ):
        yield _counter(
            f"luxrelay_sync_connections_{name}",
            f"Connections to the sync port closed: those {help_text}.",
            value,
        )


def _lag(sources: Sources) -> GaugeMetricFamily:
    lag = GaugeMetricFamily(
        "luxrelay_catch_up_lag_messages",
        "Messages of a followed namespace and its lanes still lacking after the last catch-up; in "
        "an open node of every namespace together.",
        labels=("namespace",),
    )
    lags = {"every" if n is None else n.hex(): m for n, m in sources.catch_up_lag().items()}
    for namespace, messages in sorted(lags.items()):
        lag.add_metric((namespace,), messages)
    return lag


def _cost(sync: SyncServerStats) -> Iterable[Metric]:
    yield _counter(
        "luxrelay_cost_refused",
        "Requests of all doors refused because their caller had cost too much.",
        sync.cost_refused,
    )
    yield _counter(
        "luxrelay_cost_waited", "Requests that waited for their caller's cost.", sync.cost_waited
    )
    yield _gauge(
        "luxrelay_cost_strangers_seconds",
        "CPU time charged to callers without a token so far.",
        sync.cost_strangers_s,
    )
    yield _gauge("luxrelay_cost_payers", "Callers whose cost is remembered now.", sync.cost_payers)
    yield _gauge(
        "luxrelay_cost_pace",
        "How many times as long this machine takes as the one on which prices were measured.",
        sync.cost_pace,
    )


def _pages(stats: ObserverStats) -> Iterable[Metric]:
    for name, help_text, value in (
        ("asked", "that were given a place", stats.pages.asked),
        ("cut", "cut off: too slow, or others wanted the place", stats.pages.cut),
        ("waited", "held until their address had paid", stats.pages.waited),
        ("refused", "refused because their address had cost too much", stats.pages.refused),
    ):
        yield _counter(
            f"luxrelay_pages_{name}", f"Connections to the operator's pages {help_text}.", value
        )
    yield _gauge("luxrelay_pages_held", "Connections to the pages held now.", stats.pages.held)
    yield _counter(
        "luxrelay_pages_charged_seconds",
        "CPU time charged at the operator's pages, to addresses that are not in sync.known_hosts.",
        stats.charged_s,
    )
    faults = CounterMetricFamily(
        "luxrelay_pages_faults",
        "Failures at the operator's pages that nobody expected, by kind; the log has each kind.",
        labels=("kind",),
    )
    for name, count in sorted(stats.faults.items()):
        faults.add_metric((name,), count)
    yield faults


def _counter(name: str, help_text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, help_text, value=value)


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, value=value)
