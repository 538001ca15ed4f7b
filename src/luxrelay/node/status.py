"""Status of the node for pages, metrics and gateway."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import trio

from luxrelay import __version__
from luxrelay.bus import Code
from luxrelay.gossip import PeerId, PeerStats
from luxrelay.net import NetStats
from luxrelay.net.addresses import peer_text
from luxrelay.node.assembly import Parts
from luxrelay.node.config import NodeConfig
from luxrelay.node.gateway.service import GatewayStats
from luxrelay.node.ingress import wall_ms
from luxrelay.node.metrics import NodeMetrics, Sources
from luxrelay.node.modules import DOWN, Modules
from luxrelay.node.observe import ObserverStats, Views
from luxrelay.node.rounds import Rounds
from luxrelay.node.stages.verify import PeerVerdicts
from luxrelay.node.topic_metrics import TopicSources
from luxrelay.store import RelayStore

_Read = TypeVar("_Read")


class Readiness:
    """Since when the node is ready, and whether it is stopping."""

    def __init__(self) -> None:
        """Not ready yet."""
        self._ready_at: float | None = None
        self.stopping = threading.Event()
        """Set when the node has begun to stop."""

    def ready(self) -> None:
        """Say that everything has started."""
        self._ready_at = time.monotonic()

    @property
    def serving(self) -> bool:
        """True between the two."""
        return self._ready_at is not None and not self.stopping.is_set()

    def uptime_s(self) -> float:
        """Return the seconds since the node was ready."""
        return 0.0 if self._ready_at is None else time.monotonic() - self._ready_at


def views_of(
    config: NodeConfig,
    parts: Parts,
    modules: Modules,
    readiness: Readiness,
    *,
    gateway: Callable[[], GatewayStats],
    pages: Callable[[], ObserverStats],
    rounds: Rounds,
    tokens: Callable[[], str],
    channels: Callable[[], Mapping[str, int]],
) -> Views:
    """Return what the pages show; each is called from their threads."""
    read_net = _from_loop(parts.driver.stats)
    metrics = NodeMetrics(
        Sources(
            net=read_net,
            store=parts.store.stats,
            sync=parts.server.stats,
            doors=parts.doors,
            uptime_s=readiness.uptime_s,
            clock_ms=wall_ms,
            catch_up=parts.catch_up.totals,
            blobs=parts.catch_up.blob_stats,
            streams=lambda: asdict(parts.streams.counters),
            catch_up_lag=parts.catch_up.lag,
            rates=parts.guards.rates.refused,
            modules=modules.status,
            rounds=rounds.view,
            round_ages=rounds.ages_s,
            faults=rounds.faults.counts,
            gateway=gateway,
            pages=pages,
            refused=lambda: parts.network.refused,
            tasks=_from_loop(lambda: trio.lowlevel.current_statistics().tasks_living),
            topics=TopicSources(
                blocks=parts.blobs.topics.blocks.totals,
                hints=lambda: parts.blobs.topics.hints.taken,
                wanted=parts.blobs.wanted.view,
                put_off=lambda: parts.blobs.uplink.put_off,
                blob_bytes=lambda: parts.store.stats().blob_bytes,
                carried=parts.carried.numbers,
                channels=channels,
                fetch_latency=parts.catch_up.blob_latency.snapshot,
                blobs=None if parts.blobs.exchange is None else parts.blobs.exchange.counters,
            ),
        )
    )

    def status() -> dict[str, Any]:
        return {
            "name": config.name,
            "version": __version__,
            "network": config.network,
            "uptime_s": round(readiness.uptime_s(), 1),
            "modules": modules.status(),
            "store": _store_view(parts.store),
            "catch_up": parts.catch_up.view(),
            "rounds": rounds.view(),
            "network_health": parts.network.view()[1],
            "blocks": parts.blobs.topics.blocks.view(),
            "wanted": parts.blobs.wanted.view(),
            **_net_view(read_net(), parts.doors.refused),
        }

    healthy = _health_of(parts, modules, readiness, rounds=rounds, tokens=tokens)
    return Views(metrics=metrics.exposition, healthy=healthy, status=status)


def _health_of(
    parts: Parts,
    modules: Modules,
    readiness: Readiness,
    *,
    rounds: Rounds,
    tokens: Callable[[], str],
) -> Callable[[], tuple[bool, dict[str, Any]]]:
    """Return what tells whether the node is ready, and why not."""

    def healthy() -> tuple[bool, dict[str, Any]]:
        fault = parts.doors.fault()
        down = sorted(name for name, m in modules.status().items() if m["state"] in DOWN)
        well, network = parts.network.view()
        ready = readiness.serving and not fault and not down and well
        ages = {name: kind["ended_s"] for name, kind in rounds.view().items()}
        shown = {"ready": ready, "fault": fault, "down": down}
        shown |= network
        shown |= {"hanging": rounds.hanging(), "round_ended_s": ages}
        # A token file that became broken leaves the tokens as they were: told, not unready.
        return ready, shown | ({"tokens": broken} if (broken := tokens()) else {})

    return healthy


def _from_loop(read: Callable[[], _Read]) -> Callable[[], _Read]:
    """Return a reader that may be called from any thread: the loop owns what it reads."""
    token = trio.lowlevel.current_trio_token()

    def call() -> _Read:
        return trio.from_thread.run_sync(read, trio_token=token)

    return call


def _store_view(store: RelayStore) -> dict[str, Any]:
    stats = store.stats()
    return {
        "messages": stats.messages,
        "namespaces": stats.namespaces,
        "size_bytes": stats.size_bytes,
    }


def _net_view(net: NetStats, refused: PeerVerdicts) -> dict[str, Any]:
    def seen(peers: Mapping[PeerId, PeerStats]) -> dict[str, Any]:
        return {
            peer_text(PeerId(peer)): _peer_view(stats, refused.of(peer))
            for peer, stats in peers.items()
        }

    return {
        "peers": seen(net.router.peers),
        "departed": seen(net.router.departed),
        "mesh": dict(net.router.mesh),
    }


def _peer_view(stats: PeerStats, refused: Mapping[Code, int]) -> dict[str, Any]:
    return {
        "received": stats.received,
        "duplicates": stats.duplicates,
        "accepted": stats.accepted,
        "ignored": stats.ignored,
        "rejected": stats.rejected,
        "malformed": stats.malformed,
        "unheard": stats.unheard,
        "refused": {code.name.lower(): count for code, count in sorted(refused.items())},
    }
