"""Metrics of the global topics and of the blob stream.

Source: LP-6420 §9; G10, G12, P28.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from luxrelay.net.blobs import BlobCounters
from luxrelay.node.stages.deliver import LatencyHistogram

_BLOBS: Final = {
    "served": "Blobs that peers took over libp2p streams.",
    "served_bytes": "Bytes of blobs that peers took over libp2p streams.",
    "unknown": "Questions of peers for blobs that are not here.",
    "later": "Questions of peers that were put off, because the blob was on its way to another.",
    "busy": "Questions of peers for blobs above a bound, answered so.",
    "malformed": "Blob streams whose question could not be read or did not come in time.",
    "unfinished": "Blobs of which a peer took nothing for too long, or went away.",
    "crowded": "Of those, slow ones that gave their place to a newcomer when all were taken.",
    "told": "Peers that were told of a blob which came after they had asked for it.",
    "asked": "Questions for blobs to peers over libp2p streams.",
    "fetched": "Parts of blobs that peers sent to their end over libp2p streams.",
    "fetched_bytes": "Bytes of blobs that peers sent over libp2p streams.",
    "failed": "Questions for blobs to peers that brought nothing.",
    "broken": "Of those, answers that break the protocol.",
}


def _no_blocks() -> dict[str, int]:
    return {"proposed": 0, "finalized": 0, "conflicts": 0, "height": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSources:
    """Where the numbers come from; each is called at every scrape, from the scraping thread."""

    blocks: Callable[[], dict[str, int]] = _no_blocks
    """Totals of a `BlockBoard`."""
    hints: Callable[[], int] = int
    """Blob hints taken."""
    wanted: Callable[[], Mapping[str, int]] = lambda: {"blobs": 0, "sidecars": 0}
    """Headers stored without their blob, which is asked for."""
    blobs: BlobCounters | None = None
    """Of the blob stream; None when it is off."""
    put_off: Callable[[], int] = int
    """Blobs that a peer was asked to come again for, at every door that peers fetch from."""
    blob_bytes: Callable[[], int] = int
    """Bytes of blobs stored."""
    fetch_latency: Callable[[], tuple[list[tuple[str, int]], int]] = LatencyHistogram().snapshot
    """How long blobs took that were fetched from others."""
    carried: Callable[[], dict[str, int]] = dict
    """Numbers of `CarriedNamespaces`."""
    channels: Callable[[], Mapping[str, int]] = dict
    """Totals of `LentMessaging`; nothing when no channel was opened."""


def topic_metrics(sources: TopicSources) -> Iterable[Metric]:
    """Yield every metric of these as it stands now."""
    blocks = sources.blocks()
    announced = CounterMetricFamily(
        "luxrelay_blocks_announced",
        "Block announcements taken, by what was announced (LP-6420 §3.3).",
        labels=("kind",),
    )
    for kind in ("proposed", "finalized"):
        announced.add_metric((kind,), blocks[kind])
    yield announced
    yield CounterMetricFamily(
        "luxrelay_block_conflicts",
        "Finalized blocks announced of a height that had another one.",
        value=blocks["conflicts"],
    )
    yield GaugeMetricFamily(
        "luxrelay_block_height", "Highest finalized height announced.", value=blocks["height"]
    )
    yield CounterMetricFamily(
        "luxrelay_blob_hints", "Blob hints taken (LP-6420 §3.2).", value=sources.hints()
    )
    wanted = sources.wanted()
    yield GaugeMetricFamily(
        "luxrelay_blobs_wanted", "Stored headers that lack their blob.", value=wanted["blobs"]
    )
    yield GaugeMetricFamily(
        "luxrelay_sidecars_wanted",
        "Stored headers that lack their TFHE sidecar (LP-6411 §2.10).",
        value=wanted["sidecars"],
    )
    yield GaugeMetricFamily(
        "luxda_blobs_stored_bytes", "Bytes of blobs stored (LP-6491).", value=sources.blob_bytes()
    )
    buckets, total_ms = sources.fetch_latency()
    yield HistogramMetricFamily(
        "luxda_da_retrieval_latency_ms",
        "How long blobs took that were fetched from others, milliseconds (LP-6491).",
        buckets=buckets,
        sum_value=total_ms,
    )
    yield from _carried_metrics(sources.carried())
    yield _channel_payloads(sources.channels())
    yield CounterMetricFamily(
        "luxrelay_blob_put_off",
        "Blobs that a peer was put off for on a narrow uplink, over libp2p and gRPC (P52).",
        value=sources.put_off(),
    )
    counters = sources.blobs or BlobCounters()
    for each in fields(counters):
        yield CounterMetricFamily(
            f"luxrelay_blob_stream_{each.name}",
            _BLOBS[each.name],
            value=getattr(counters, each.name),
        )


def _channel_payloads(totals: Mapping[str, int]) -> Metric:
    payloads = CounterMetricFamily(
        "luxrelay_channel_payloads",
        "Payloads of channels in this process: sent, received, and dropped because a channel had "
        "not taken thousands before; others send those again (C10).",
        labels=("what",),
    )
    for what in ("sent", "received", "dropped"):
        payloads.add_metric((what,), totals.get(what, 0))
    return payloads


def _carried_metrics(numbers: dict[str, int]) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "luxrelay_followed_namespaces",
        "Namespaces whose topics the node follows, of its file and at run time (G35).",
        value=numbers.get("followed", 0),
    )
    yield CounterMetricFamily(
        "luxrelay_followed_given_way",
        "Namespaces followed no longer because applications asked for others (G35).",
        value=numbers.get("given_way", 0),
    )
    yield CounterMetricFamily(
        "luxrelay_follow_demands_refused",
        "Times that an application asked for a namespace and the node did not follow it (G35).",
        value=numbers.get("refused", 0),
    )
