"""`RelayStoreConfig`: every bound and choice of the store, checked when it is built.

Source: LP-6421 §1.1; retention document, "Parameters"; decisions J2, P8, P14, P18, P22.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from luxrelay.bus import constants as c
from luxrelay.errors import StoreArgumentError

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
MINUTE_MS: Final = 60_000
DAY_MS: Final = 24 * 60 * MINUTE_MS

BATCH_FLOOR_BYTES: Final = c.MAX_BLOB_BYTES + c.MAX_HEADER_BYTES
"""The largest single message: no byte bound on a group or a page may lie below it."""


class Durability(StrEnum):
    """What has happened to a message when `RelayStore.put_many` returns."""

    FSYNC = "fsync"
    """The write-ahead log has reached the disk: the message outlives a power cut."""
    OS = "os"
    """The operating system has the bytes: the message outlives the process, not a power cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStoreConfig:
    """Bounds and choices of a store; every number is positive.

    Raises:
        StoreArgumentError: a value is out of range; ``where`` names the field.

    """

    cold_store_ttl_ms: int = 10 * MINUTE_MS
    """A message goes this long after the earlier of its arrival and its timestamp (P14);
    milliseconds; 10 minutes for a relay, 30 days for a store (J2)."""
    retention_window_ms: int = 30 * DAY_MS
    """A message goes this long after its timestamp in any case (J2); milliseconds."""
    max_storage_bytes: int = GIB
    """Logical bytes of all messages, index rows included; a message above it is FULL."""
    durability: Durability = Durability.FSYNC
    """What a returned `put_many` promises."""
    namespaces_max: int = 100_000
    """Namespaces with a state row, which outlives their messages; a message of one more is
    FULL. Each costs about 500 bytes of memory."""
    group_messages_max: int = 1_024
    """Messages in one atomic batch; `put_many` cuts longer lists."""
    group_bytes_max: int = 8 * MIB
    """Header and blob bytes in one atomic batch; at least one message of any size."""
    inline_blob_bytes_max: int = 4 * KIB
    """A blob up to this many bytes rides in its header's row, a larger one has its own row."""
    page_messages_default: int = 1_000
    """Messages in a page when a query names no limit (P18)."""
    page_messages_max: int = 10_000
    """Messages in a page whatever a query asks for (P18)."""
    page_bytes_max: int = 16 * MIB
    """Header and blob bytes in a page or a `get_messages` answer (P18)."""
    page_rows_max: int = 100_000
    """Rows a page may look at, so that a narrow filter cannot hold a reader for long; the page
    ends early with ``has_more`` and a cursor."""
    offset_max: int = 10_000
    """Matches a query may skip (P19); a cursor has no such bound."""
    ids_max: int = 1_000
    """Message ids in one `get_messages` call (P22)."""
    heads_max: int = 1_000
    """Heads in one `heads` answer."""
    gaps_max: int = 10_000
    """Gaps listed in one answer; the lowest are kept."""
    gc_batch_limit: int = 100_000
    """Messages one deletion cycle removes (retention document, GC_BATCH_LIMIT)."""
    gc_chunk_size: int = 1_000
    """Messages removed under one hold of the writer's lock (GC_CHUNK_SIZE)."""
    findings_max: int = 1_000
    """Findings `verify` lists before it stops."""
    write_buffer_bytes: int = 64 * MIB
    """Memory for rows not yet in table files, all families together."""
    block_cache_bytes: int = 64 * MIB
    """Memory for blocks of table files."""

    def __post_init__(self) -> None:
        """Refuse what the store could not work with."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "durability":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _out_of_range(field.name, value, "a positive integer")
        if self.durability not in tuple(Durability):
            raise _out_of_range("durability", self.durability, "'fsync' or 'os'")
        object.__setattr__(self, "durability", Durability(self.durability))
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
            namespaces_max=1_000,
            write_buffer_bytes=4 * MIB,
            block_cache_bytes=4 * MIB,
        )

    def expires_at(self, received_at: int, timestamp: int) -> int:
        """Return when a message goes: the earlier of its TTL and the retention window.

        Source: P14, J2.
        """
        return min(
            min(received_at, timestamp) + self.cold_store_ttl_ms,
            timestamp + self.retention_window_ms,
        )


def require_ms(name: str, value: int) -> None:
    """Return when ``value`` can be Unix milliseconds of today.

    Raises:
        StoreArgumentError: it is negative, above u64, or looks like seconds (P8).

    """
    if not c.SECONDS_LOOKALIKE_MAX <= value <= c.MAX_U64:
        raise StoreArgumentError(
            f"{name} is {value}, which is no time in milliseconds",
            where=name,
            hint="times are Unix milliseconds; a value below 10^11 looks like seconds",
        )


def _out_of_range(name: str, value: object, wanted: str) -> StoreArgumentError:
    return StoreArgumentError(
        f"{name} is {value!r}, expected {wanted}", where=f"RelayStoreConfig.{name}"
    )
