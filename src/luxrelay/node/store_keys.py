"""Configuration keys of stored messages: blobs, hot cache.

Source: LP-6421 §1.1, §5.1; decisions J10, P30.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from luxrelay.bus import constants as c
from luxrelay.node.checks import Key, boolean, whole

_YEAR_MS: Final = 365 * 24 * 3_600_000

STORE_KEYS: Final = (
    Key(
        "store",
        "blobs_enabled",
        True,
        "",
        boolean,
        "Whether blobs are kept; without them a node serves headers (LP-6421 §5.1).",
    ),
    Key(
        "store",
        "blob_bytes_max",
        c.MAX_BLOB_BYTES,
        "bytes",
        whole(1, c.MAX_BLOB_BYTES),
        "Largest blob that is kept; of a larger one the header is.",
    ),
    Key(
        "store",
        "blob_cache_bytes",
        0,
        "bytes",
        whole(0, 2**50),
        "Most bytes of all blobs: beyond it those of the oldest messages go and their headers "
        "stay; 0 for no bound beside max_storage_bytes. With one the start reads every header.",
    ),
    Key(
        "store",
        "blob_ttl_ms",
        0,
        "milliseconds",
        whole(0, _YEAR_MS),
        "Time after its message's timestamp at which a blob goes and the header stays; 0 for as "
        "long as its message.",
    ),
    Key(
        "store",
        "hot_messages_max",
        100_000,
        "messages",
        whole(1, 100_000_000),
        "Most messages kept in memory beside the disk (LP-6421 §1.1).",
    ),
    Key(
        "store",
        "hot_bytes_max",
        128 * 1024 * 1024,
        "bytes",
        whole(1, 2**50),
        "Most memory for them (P30).",
    ),
    Key(
        "store",
        "hot_ttl_ms",
        60_000,
        "milliseconds",
        whole(1, _YEAR_MS),
        "Time that a message stays in memory after it came.",
    ),
    Key(
        "store",
        "gc_short_interval_ms",
        60_000,
        "milliseconds",
        whole(100, _YEAR_MS),
        "Time to the next deletion after one that found more than it may delete at once "
        "(GC_SHORT_INTERVAL, J2).",
    ),
)
"""In the order of the documentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """What is kept of messages, with the names of the store's own configuration."""

    blobs_enabled: bool
    blob_bytes_max: int
    blob_cache_bytes: int | None
    blob_ttl_ms: int | None
    hot_messages_max: int
    hot_bytes_max: int
    hot_ttl_ms: int
    gc_short_interval_ms: int

    @property
    def largest_blob(self) -> int:
        """Bytes of the largest blob that is kept, 0 when none is."""
        return self.blob_bytes_max if self.blobs_enabled else 0


def store_limits_of(values: Mapping[str, Any]) -> StoreLimits:
    """Return the limits that the checked values of ``[store]`` mean."""
    found = {key.name: values[key.name] for key in STORE_KEYS}
    for name in ("blob_cache_bytes", "blob_ttl_ms"):
        found[name] = found[name] or None
    return StoreLimits(**found)
