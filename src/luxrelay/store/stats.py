"""Numbers of a store: `StoreStats` for metrics, and how long it lasts at a rate. Pure.

How long a store lasts at a rate: the formula, and the warning when it does not last. Pure.

A message of ``b`` bytes (header and blob) costs ``b + INDEX_BYTES`` logical bytes and stays for the
shorter of TTL and retention window, so a rate of ``r`` messages a second needs
``r × (b + INDEX_BYTES) × seconds``. A gibibyte of ten minutes takes about 2,200 messages a second
with Ed25519 headers and 200 bytes of payload.

Source: LP-6421 §8; retention document, "Metrics"; 21-46, 21-55; decisions P15, P45, P31.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from luxrelay.bus import NamespaceId
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.messages import PutOutcome
from luxrelay.store.namespaces import Lack, QuotaBook


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRate:
    """What a namespace's policy allows to come in."""

    namespace_id: NamespaceId
    """The namespace; its lanes share the rate as they share the quota."""
    messages_per_s: int
    """Messages a second."""
    bytes_per_s: int
    """Header and blob bytes a second."""

    def needed_bytes(self, config: RelayStoreConfig) -> int:
        """Return the logical bytes that stand when the rate is used fully."""
        incoming = self.bytes_per_s + self.messages_per_s * layout.INDEX_BYTES
        return incoming * window_ms(config) // 1000


def window_ms(config: RelayStoreConfig) -> int:
    """Return how long a message stays when nothing presses, milliseconds (J2)."""
    return min(config.cold_store_ttl_ms, config.retention_window_ms)


def capacity_warnings(config: RelayStoreConfig, rates: Iterable[DeclaredRate]) -> list[str]:
    """Return one line for each bound that the declared rates exceed; empty when all fit."""
    found: list[str] = []
    book = QuotaBook(config)
    total = 0
    for rate in rates:
        needed = rate.needed_bytes(config)
        total += needed
        quota = book.quota(rate.namespace_id)
        if needed > quota:
            found.append(
                f"namespace {rate.namespace_id.hex()} may bring {needed} bytes in "
                f"{window_ms(config)} ms, its quota is {quota}; its oldest messages go early"
            )
    if total > config.max_storage_bytes:
        found.append(
            f"all namespaces may bring {total} bytes in {window_ms(config)} ms, "
            f"max_storage_bytes is {config.max_storage_bytes}; the oldest messages go early"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GcStats:
    """What the deletion cycles have done since the store was opened."""

    cycles: int
    """Cycles run."""
    running: bool
    """True while one runs."""
    messages_deleted: int
    """Messages removed by cycles."""
    namespaces_processed: int
    """Namespaces they belonged to, counted anew in each cycle."""
    cutoff_ms: int
    """The last cycle's retention cut-off, Unix milliseconds; 0 before the first."""
    duration_buckets: tuple[tuple[float, int], ...]
    """(seconds, cycles that took at most as long), cumulative; the last is infinity."""
    duration_sum_s: float
    """Seconds that all cycles took together."""
    clock_moved_ms: int
    """How far the wall clock has jumped; 0 while it is believed (P43). Not 0 is an alarm."""
    clock_alarms: int
    """Jumps of the wall clock seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """What the store holds, and what it has done since it was opened."""

    messages: int
    """Messages held, expired ones that await the deletion cycle included."""
    namespaces: int
    """Namespaces known."""
    size_bytes: int
    """Logical bytes of all messages, index rows included."""
    max_storage_bytes: int
    """The bound on ``size_bytes``."""
    oldest_timestamp: int
    """Timestamp of the oldest message, milliseconds; 0 without one (P15)."""
    opened_at: int
    """``now_ms`` of `open`."""
    outcomes: dict[PutOutcome, int]
    """Messages put, by outcome."""
    equivocations: int
    """Times a sender brought a second content for a slot (H17)."""
    removed: int
    """Messages removed because their time had passed."""
    evicted: dict[Lack, int]
    """Messages that made room, by what was full (P13)."""
    refused: dict[Lack, int]
    """Messages that were FULL, by what was full (P2)."""
    unread_evicted: int
    """Messages that went although an archive had not read them (J8)."""
    thinned: int
    """Messages that went early because their namespace is thinned (J3)."""
    superseded: int
    """Candidates that lost their slot to a finalized one (P40)."""
    blobs_dropped: int
    """Blobs that went before their messages (LP-6421 §5.1)."""
    blob_bytes: int
    """Bytes of blobs stored."""
    held: int
    """Messages past their TTL that wait for the archive (J8)."""
    handoffs: int
    """Namespaces that an archive reads."""
    hot_messages: int
    """Slots in the hot cache."""
    hot_bytes: int
    """Bytes of the hot cache."""
    hot_hits: int
    """Ids read that were in the hot cache."""
    hot_misses: int
    """Ids read that were not."""
    hit_rate: float
    """Hits by ids read over the last five minutes, 0 to 1 (P45)."""
    gc: GcStats
    """The deletion cycles (retention document, "Metrics")."""
    batches: int
    """Atomic batches written."""
    syncs: int
    """Times the log was synced to the disk."""
    recovered: int
    """Times the database was opened again after its disk had refused a write."""
