"""`RelayStoreConfig`: every bound and choice of the store, checked when it is built.

Source: LP-6421 §1.1; retention document, "Parameters"; decisions J2, P1, P2, P8, P14, P18, P22.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final

from luxrelay.bus import NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import StoreArgumentError

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * 60 * MINUTE_MS
OFFSET_MAX: Final = 10_000
"""Matches that a query may pass over (P19)."""

BATCH_FLOOR_BYTES: Final = c.MAX_BLOB_BYTES + c.MAX_HEADER_BYTES
"""The largest single message: no byte bound on a group or a page may lie below it."""


DEFAULT_QUOTA_PERCENT: Final = 10
DEFAULT_QUOTA_BYTES_MIN: Final = 16 * MIB
"""A namespace without a quota of its own has this share of the store, or this much (P1)."""


class WhenFull(StrEnum):
    """What a message does that finds its quota or the store full."""

    EVICT = "evict"
    """The oldest messages of its own namespace, then of the store, make room (P2, P13)."""
    REFUSE = "refuse"
    """It is FULL until others expire."""


class Durability(StrEnum):
    """When a message counts as safe: `RelayStore.put_many` waits for it, a receipt tells it."""

    FSYNC = "fsync"
    """The write-ahead log has reached the disk: the message outlives a power cut."""
    GROUP = "group"
    """The same; what nobody waits for is synced at most every group_interval_ms, all together."""
    OS = "os"
    """The operating system has the bytes: the message outlives the process, not a power cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStoreConfig:
    """Bounds and choices of a store; every number is positive, save a quota of 0.

    Raises:
        StoreArgumentError: a value is out of range; ``where`` names the field.

    """

    hot_messages_max: int = 100_000
    """Slots in the hot cache (HotCacheSize)."""
    hot_bytes_max: int = 128 * MIB
    """Bytes in the hot cache (P30)."""
    hot_ttl_ms: int = MINUTE_MS
    """Time a slot stays in the hot cache after its last arrival (HotCacheTTL)."""
    cold_store_ttl_ms: int = 10 * MINUTE_MS
    """A message goes this long after the earlier of its arrival and its timestamp (P14);
    milliseconds; 10 minutes for a relay, 30 days for a store (J2)."""
    retention_window_ms: int = 30 * DAY_MS
    """A message goes this long after its timestamp in any case (J2); milliseconds."""
    max_storage_bytes: int = GIB
    """Logical bytes of all messages, index rows included."""
    when_full: WhenFull = WhenFull.EVICT
    """Whether a full quota or store forgets its oldest messages or refuses new ones (P2)."""
    namespace_quota_bytes: int | None = None
    """Logical bytes of a namespace with its lanes that `namespace_quotas` does not name; None for
    10 % of max_storage_bytes, at least 16 MiB (P1)."""
    namespace_quotas: Mapping[NamespaceId, int] = field(default_factory=dict)
    """Logical bytes by namespace; 0 denies it. A lane named here has its quota to itself."""
    durability: Durability = Durability.FSYNC
    """What a returned `put_many`, or a receipt, promises."""
    group_interval_ms: int = 50
    """Time between two syncs with durability ``group`` while nobody waits for one (P3)."""
    mark_interval_ms: int = 1_000
    """Time between two high-water marks: with durability ``os`` a power cut loses no more than what
    came in it, and what a mark knew of is named when the store is opened."""
    namespaces_max: int = 100_000
    """Namespaces with a state row, which outlives their messages; a message of one more is
    FULL. Each costs about 500 bytes of memory."""
    forgotten_max: int = 1_000_000
    """Namespaces without messages whose heads are kept on the disk alone, about 130 bytes each, so
    that others have their place in memory; they never start again from sequence 1."""
    group_messages_max: int = 1_024
    """Messages in one atomic batch; `put_many` cuts longer lists."""
    group_bytes_max: int = 8 * MIB
    """Header and blob bytes in one atomic batch; at least one message of any size."""
    inline_blob_bytes_max: int = 4 * KIB
    """A blob up to this many bytes rides in its header's row, a larger one has its own row."""
    blobs_enabled: bool = True
    """Whether blobs are kept at all; without them a relay serves headers (LP-6421 §5.1)."""
    blob_bytes_max: int = c.MAX_BLOB_BYTES
    """Bytes of the largest blob that is kept; the header of a larger one is (LP-6421 §5.1)."""
    blob_cache_bytes: int | None = None
    """Bytes of all blobs; beyond it those of the oldest messages go, their headers stay; None for
    no bound beside max_storage_bytes (LP-6421 §5.1). With one, opening reads every header."""
    blob_ttl_ms: int | None = None
    """A blob goes with the deletion cycle that runs this long after its message's timestamp, the
    header stays; milliseconds; None for as long as its message (LP-6421 §5.1)."""
    thin_ratios: Mapping[NamespaceId, int] = field(default_factory=dict)
    """Of these namespaces and their lanes every Nth message alone stays once it is older than
    thin_after_ms; 2 or more (J3). Only for what nobody archives: Ephemeral namespaces."""
    thin_after_ms: int = 5 * MINUTE_MS
    """Age from which messages are thinned, by timestamp; milliseconds (LP-6421 §7.1)."""
    page_messages_default: int = 1_000
    """Messages in a page when a query names no limit (P18)."""
    page_messages_max: int = 10_000
    """Messages in a page whatever a query asks for (P18)."""
    page_bytes_max: int = 16 * MIB
    """Header and blob bytes in a page or a `get_messages` answer (P18)."""
    page_rows_max: int = 100_000
    """Rows a page may look at, so that a narrow filter cannot hold a reader for long; the page
    ends early with ``has_more`` and a cursor."""
    offset_max: int = OFFSET_MAX
    """Matches a query may skip (P19); a cursor has no such bound."""
    ids_max: int = 1_000
    """Message ids in one `get_messages` call (P22)."""
    bucket_ids_max: int = 10_000
    """Rows of a Merkle bucket in one `bucket_ids` answer."""
    heads_max: int = 1_000
    """Heads in one `heads` answer."""
    gaps_max: int = 10_000
    """Gaps listed in one answer; the lowest are kept."""
    gc_interval_ms: int = HOUR_MS
    """From one deletion cycle to the next (GC_INTERVAL); whoever runs the cycles may be quicker."""
    gc_short_interval_ms: int = MINUTE_MS
    """The same after a cycle that hit its limit (GC_SHORT_INTERVAL)."""
    gc_batch_limit: int = 100_000
    """Messages one deletion cycle removes (retention document, GC_BATCH_LIMIT)."""
    gc_chunk_size: int = 1_000
    """Messages removed under one hold of the writer's lock (GC_CHUNK_SIZE)."""
    slice_ms: int | None = None
    """Messages that expire within the same span of this length are forgotten together; None for a
    tenth of the shorter of TTL and window, from a minute to a day. Each slice costs about 4 MB of
    memory."""
    slices_max: int = 64
    """Slices at one time; beyond that a message far from the others widens the nearest one."""
    clock_jump_ms: int = 5 * MINUTE_MS
    """A wall clock that moves further than this against the monotonic one pauses deletion by age
    and raises the alarm (P43)."""
    clock_settle_ms: int = HOUR_MS
    """A clock that has stood by its jump for this long is believed again."""
    equivocations_max: int = 64
    """Equivocations remembered with both headers, the newest (H17)."""
    findings_max: int = 1_000
    """Findings `verify` lists before it stops."""
    write_buffer_bytes: int = 64 * MIB
    """Memory for rows not yet in table files, all families together."""
    block_cache_bytes: int = 64 * MIB
    """Memory for blocks of table files."""

    def __post_init__(self) -> None:
        """Refuse what the store could not work with."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in _NO_BOUNDS or (each.name in _OPTIONAL and value is None):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _out_of_range(each.name, value, "a positive integer")
        if not isinstance(self.blobs_enabled, bool):
            raise _out_of_range("blobs_enabled", self.blobs_enabled, "True or False")
        _check_quotas(self.namespace_quotas)
        object.__setattr__(self, "namespace_quotas", dict(self.namespace_quotas))
        _check_ratios(self.thin_ratios)
        object.__setattr__(self, "thin_ratios", dict(self.thin_ratios))
        for name, choices in (("durability", Durability), ("when_full", WhenFull)):
            value = getattr(self, name)
            if value not in tuple(choices):
                raise _out_of_range(name, value, " or ".join(repr(str(each)) for each in choices))
            object.__setattr__(self, name, choices(value))
        for name in ("group_bytes_max", "page_bytes_max"):
            if getattr(self, name) < BATCH_FLOOR_BYTES:
                raise _out_of_range(
                    name, getattr(self, name), f"{BATCH_FLOOR_BYTES} or more: one largest message"
                )
        if self.page_messages_default > self.page_messages_max:
            raise _out_of_range(
                "page_messages_default", self.page_messages_default, "at most page_messages_max"
            )

    @classmethod
    def small(cls) -> RelayStoreConfig:
        """Return a configuration with little memory, for tests and demonstrations."""
        return cls(
            durability=Durability.OS,
            max_storage_bytes=64 * MIB,
            namespace_quota_bytes=64 * MIB,
            namespaces_max=1_000,
            hot_messages_max=1_000,
            write_buffer_bytes=4 * MIB,
            block_cache_bytes=4 * MIB,
        )

    def cycle_interval_ms(self, *, hit_limit: bool) -> int:
        """Return how long to wait for the next deletion cycle.

        Source: retention document, "Parameters".
        """
        return self.gc_short_interval_ms if hit_limit else self.gc_interval_ms

    def slice_width_ms(self) -> int:
        """Return the span of expiry times that one slice of messages covers.

        Source: ADR 0006 §1.
        """
        if self.slice_ms is not None:
            return self.slice_ms
        stay_ms = min(self.cold_store_ttl_ms, self.retention_window_ms)
        return min(max(stay_ms // 10, MINUTE_MS), DAY_MS)

    def blob_bound(self) -> int | None:
        """Return the bytes that all blobs may have; None for no bound of their own.

        Source: LP-6421 §5.1.
        """
        return self.blob_cache_bytes if self.blobs_enabled else 0

    def bounds_blobs(self) -> bool:
        """Return True when some blob may be refused, or go before its message."""
        small = self.blob_bytes_max < c.MAX_BLOB_BYTES
        return small or self.blob_ttl_ms is not None or self.blob_bound() is not None

    def cutoff_ms(self, now_ms: int) -> int:
        """Return the retention cut-off: a timestamp up to it has aged out.

        It is never stored and never sent.

        Source: retention document, "Rule"; J1.
        """
        return max(0, now_ms - self.retention_window_ms)

    def network_differences(self) -> list[str]:
        """Return one line for each parameter that differs from the retention document's.

        A node may run so; it forgets sooner or later than its peers, and sync converges worse.

        Source: retention document, "Clock Skew and Divergence".
        """
        return [
            f"{name} is {getattr(self, name)}, the network's is {value}"
            for name, value in _NETWORK.items()
            if getattr(self, name) != value
        ]

    def default_quota_bytes(self) -> int:
        """Return the quota of a namespace that has none of its own.

        Source: P1.
        """
        if self.namespace_quota_bytes is not None:
            return self.namespace_quota_bytes
        share = self.max_storage_bytes * DEFAULT_QUOTA_PERCENT // 100
        return max(share, DEFAULT_QUOTA_BYTES_MIN)


_NETWORK: Final = {
    "retention_window_ms": 30 * DAY_MS,
    "gc_batch_limit": 100_000,
    "gc_chunk_size": 1_000,
}
"""RETENTION_WINDOW and what else of the document peers see; when a cycle runs is a node's own."""
_NO_BOUNDS: Final = frozenset(
    {"blobs_enabled", "durability", "when_full", "namespace_quotas", "thin_ratios"}
)
_OPTIONAL: Final = frozenset(
    {"blob_cache_bytes", "blob_ttl_ms", "namespace_quota_bytes", "slice_ms"}
)


def _check_quotas(quotas: Mapping[NamespaceId, object]) -> None:
    for namespace, quota in quotas.items():
        if len(namespace) != c.NAMESPACE_BYTES:
            raise _out_of_range("namespace_quotas", namespace, "ids of 20 bytes")
        if isinstance(quota, bool) or not isinstance(quota, int) or quota < 0:
            raise _out_of_range("namespace_quotas", quota, "0 or a positive number of bytes")


def _check_ratios(ratios: Mapping[NamespaceId, object]) -> None:
    for namespace, ratio in ratios.items():
        if len(namespace) != c.NAMESPACE_BYTES:
            raise _out_of_range("thin_ratios", namespace, "ids of 20 bytes")
        if isinstance(ratio, bool) or not isinstance(ratio, int) or ratio < 2:
            raise _out_of_range("thin_ratios", ratio, "2 or more")


def _out_of_range(name: str, value: object, wanted: str) -> StoreArgumentError:
    return StoreArgumentError(
        f"{name} is {value!r}, expected {wanted}", where=f"RelayStoreConfig.{name}"
    )
