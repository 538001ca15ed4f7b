"""State of the dashboard as JSON: samples of the last minutes, and the present.

Theory of operation
-------------------
*Decides* which numbers a person sees. *Does not know* sockets; `live.py` sends what this makes.
*Samples*: one a second, of counters that are cheap to read; the page draws rates from their
differences. *State*: read in a worker thread, once a sample, however many watch.
*Bounds*: ``SAMPLES_MAX`` samples, ``LANES_MAX`` lanes a namespace, ``PEERS_MAX`` peers.

Source: docs/how-to/dashboard.md; LP-6491; user-10.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from luxrelay.bus import NamespaceId, VerdictKind
from luxrelay.gossip import PeerId
from luxrelay.net import NetStats
from luxrelay.node.carried import CarriedNamespace
from luxrelay.node.gateway.calls import hex_text
from luxrelay.node.gateway.http import peer_rows
from luxrelay.node.stages.deliver import Glimpse, LatencyHistogram
from luxrelay.node.stages.verify import VerdictCounts
from luxrelay.store import RelayStore

SAMPLES_MAX: Final = 180
"""Samples kept: three minutes."""
SAMPLE_MS: Final = 1000
"""Milliseconds between two samples."""
LANES_MAX: Final = 100
"""Lanes shown of one namespace, the largest first."""
LANES_READ_MAX: Final = 1000
"""Lanes looked at of one namespace."""
PEERS_MAX: Final = 200
"""Peers shown."""
GAPS_MAX: Final = 1000
"""Gaps counted of one namespace."""
DOORS: Final = ("gossip", "publish", "sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSources:
    """Where the numbers come from."""

    store: RelayStore
    counts: VerdictCounts
    latency: LatencyHistogram
    net: Callable[[], NetStats]
    """Called on the loop."""
    explain: Callable[[PeerId], Mapping[str, Any] | None]
    """Called on the loop."""
    status: Callable[[], dict[str, Any]]
    """Called in a worker thread."""
    healthy: Callable[[], tuple[bool, dict[str, Any]]]
    """Called in a worker thread."""
    namespaces: Callable[[], Sequence[CarriedNamespace]]
    clock_ms: Callable[[], int]
    info: Mapping[str, Any]


class Samples:
    """The counters of the last minutes."""

    def __init__(self, sources: DashboardSources) -> None:
        """Start empty."""
        self._sources = sources
        self.kept: deque[dict[str, Any]] = deque(maxlen=SAMPLES_MAX)
        """Oldest first."""

    def take(self) -> dict[str, Any]:
        """Take one more and return it; called on the loop."""
        sources = self._sources
        net = sources.net()
        counts = sources.counts.snapshot()
        accepted = dict.fromkeys(DOORS, 0)
        for (door, kind, _), count in counts.items():
            if kind is VerdictKind.ACCEPT and door in accepted:
                accepted[door] += count
        buckets, _ = sources.latency.snapshot()
        sample = {
            "ms": sources.clock_ms(),
            "accepted": accepted,
            "received": net.router.received,
            "duplicates": net.router.duplicates,
            "rejected": net.router.rejected,
            "ignored": net.router.ignored,
            "bytesIn": net.host.bytes_in,
            "bytesOut": net.host.bytes_out,
            "latency": [count for _, count in buckets],
        }
        self.kept.append(sample)
        return sample


def network_state(sources: DashboardSources) -> dict[str, Any]:
    """Return peers and meshes; called on the loop."""
    net = sources.net()
    rows = peer_rows(net, sources.explain)
    return {
        "peers": rows[:PEERS_MAX],
        "peersTotal": len(rows),
        "connected": net.host.peers,
        "mesh": dict(net.router.mesh),
        "pending": net.router.pending,
    }


def held_state(sources: DashboardSources) -> dict[str, Any]:
    """Return store, catch-up and namespaces; called in a worker thread."""
    now_ms = sources.clock_ms()
    store = sources.store.stats()
    status = sources.status()
    healthy, why = sources.healthy()
    return {
        "ms": now_ms,
        "info": dict(sources.info),
        "uptimeS": status.get("uptime_s", 0),
        "healthy": healthy,
        "fault": str(why.get("fault", "")) or _down(why.get("down", ())),
        "warnings": list(why.get("warnings", ())),
        "clock": dict(why.get("clock", {})),
        "store": {
            "messages": store.messages,
            "namespaces": store.namespaces,
            "sizeBytes": store.size_bytes,
            "maxBytes": store.max_storage_bytes,
            "windowS": max(0, now_ms - store.oldest_timestamp) // 1000
            if store.oldest_timestamp
            else 0,
            "hitRate": round(store.hit_rate, 4),
            "syncs": store.syncs,
            "batches": store.batches,
            "evicted": sum(store.evicted.values()),
            "refused": sum(store.refused.values()),
            "equivocations": store.equivocations,
        },
        "gc": {
            "running": store.gc.running,
            "cycles": store.gc.cycles,
            "deleted": store.gc.messages_deleted,
            "clockMovedMs": store.gc.clock_moved_ms,
        },
        "archive": {"handoffs": store.handoffs, "held": store.held, "lost": store.unread_evicted},
        "catchUp": status.get("catch_up", {}),
        "namespaces": [_namespace(sources.store, each) for each in sources.namespaces()],
    }


def _down(names: Sequence[str]) -> str:
    return f"{', '.join(names)} does not run." if names else ""


def _namespace(store: RelayStore, carried: CarriedNamespace) -> dict[str, Any]:
    heads, cursor = store.heads(carried.namespace_id, b"", LANES_READ_MAX)
    lanes = sorted(
        (head for head in heads if head.messages or head.namespace_id != carried.namespace_id),
        key=lambda head: head.latest_timestamp,
        reverse=True,
    )
    rows: list[dict[str, Any]] = []
    missing = 0
    for lane in lanes:
        behind = lane.latest_seq - lane.contiguous_seq
        gaps = store.gaps(lane.namespace_id, GAPS_MAX) if behind else []
        lacking = sum(last - first + 1 for first, last in gaps)
        missing += lacking
        rows.append(
            {
                "id": hex_text(lane.namespace_id),
                "lane": lane.namespace_id != carried.namespace_id,
                "latestSeq": lane.latest_seq,
                "contiguousSeq": lane.contiguous_seq,
                "earliestSeq": lane.earliest_seq,
                "latestMs": lane.latest_timestamp,
                "messages": lane.messages,
                "sizeBytes": lane.size_bytes,
                "gaps": len(gaps),
                "missing": lacking,
            }
        )
    return {
        "id": hex_text(carried.namespace_id),
        "topic": carried.content_topic,
        "lanes": len(rows),
        "more": bool(cursor),
        "messages": sum(row["messages"] for row in rows),
        "sizeBytes": sum(row["sizeBytes"] for row in rows),
        "latestMs": max((row["latestMs"] for row in rows), default=0),
        "missing": missing,
        "heads": rows[:LANES_MAX],
    }


def glimpse_json(glimpse: Glimpse, topics: Mapping[NamespaceId, str]) -> dict[str, Any]:
    """Return a stored message as the live view shows it: text where it is text."""
    preview = glimpse.preview
    text: str | None = None
    if preview is not None:
        try:
            text = preview.decode()
        except UnicodeDecodeError as error:
            # A cut inside the last letter is no reason to show hex.
            cut = len(preview) - error.start < 4 and glimpse.blob_len > len(preview)
            text = preview[: error.start].decode() if cut else None
        if text is not None and not all(c.isprintable() or c in "\n\t" for c in text):
            text = None
    return {
        "id": hex_text(glimpse.namespace_id),
        "topic": topics.get(glimpse.parent, ""),
        "seq": glimpse.seq,
        "timestamp": glimpse.timestamp,
        "storedAt": glimpse.stored_at,
        "sender": hex_text(glimpse.sender),
        "bytes": glimpse.blob_len,
        "text": text,
        "hex": None if preview is None or text is not None else preview[:32].hex(),
        "door": glimpse.door,
    }
