"""The deletion cycle: what is past its time goes, in chunks.

Theory of operation
-------------------
*Decides* how much one cycle removes and whether the next should come soon.
*Does not know* when it runs; the node calls it every GC_INTERVAL, or after GC_SHORT_INTERVAL when
``hit_limit`` is true.
*Machine*: take the oldest ``gc_chunk_size`` rows of the expiry index that are due, delete their
messages whole in one batch, let writers in, repeat.
*Cost*: proportional to what has expired, not to what is stored (P12).
*Timers*: none. *Bounds*: gc_batch_limit a cycle, gc_chunk_size a hold of the writer's lock.
*Deviations*: the document finds expired messages by a scan of the id index and range-deletes the
rest; here each message's rows go together, so no index row can outlive its message (P9).
*What else to change when you change this*: `group.forget`, the metrics of the node.

Source: retention document, "GC Cycle"; decisions J2, P9, P12, P14.
"""

from __future__ import annotations

from dataclasses import dataclass

from luxrelay.bus import NamespaceId
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.writer import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleStats:
    """What one deletion cycle did."""

    removed_count: int
    """Messages removed."""
    namespaces_processed: int
    """Namespaces they belonged to."""
    hit_limit: bool
    """True when expired messages remain: the next cycle should come soon."""


def run_cycle(writer: Writer, config: RelayStoreConfig, now_ms: int) -> CycleStats:
    """Every message expired at ``now_ms`` is gone, or gc_batch_limit of them are.

    Raises:
        StoreError: chunks before the failing one are gone, the failing one is whole.

    """
    removed = 0
    namespaces: set[NamespaceId] = set()
    hit_limit = False
    while True:
        chunk = min(config.gc_chunk_size, config.gc_batch_limit - removed)
        if not chunk:
            hit_limit = writer.has_expired(now_ms)
            break
        touched = writer.remove_expired(now_ms, chunk)
        removed += len(touched)
        namespaces.update(touched)
        if len(touched) < chunk:
            break
    return CycleStats(
        removed_count=removed, namespaces_processed=len(namespaces), hit_limit=hit_limit
    )
