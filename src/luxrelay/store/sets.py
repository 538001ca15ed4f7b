"""Reading by content id: the ids of a tree bucket and the messages of ids, for sync between stores.

Both pass over what is past its time or past the retention cut-off: what one peer has forgotten does
not come back from another. A message that goes between two calls is missing from the second; the
next comparison finds the sets equal.

Source: retention document, "Sync Soft-Filter"; decisions J4, J11, P14.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from luxrelay.bus import ContentId
from luxrelay.bus import constants as c
from luxrelay.errors import StoreArgumentError
from luxrelay.store import blobs, layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.merkle import BUCKETS, bucket_of, bucket_prefix
from luxrelay.store.messages import StoredMessage
from luxrelay.store.query import stored_message
from luxrelay.store.slices import Slices


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketQuery:
    """Which ids of one bucket of the Merkle tree.

    Raises:
        StoreArgumentError: there is no such bucket, or the cursor is none of ours.

    """

    bucket: int
    """0 to 65,535: the first two bytes of the ids."""
    cursor: bytes = b""
    """What the previous answer gave; empty for the first."""
    limit: int = 0
    """Rows to look at; 0 and more than bucket_ids_max mean bucket_ids_max."""

    def __post_init__(self) -> None:
        """Refuse what no query can mean."""
        if not 0 <= self.bucket < BUCKETS:
            raise StoreArgumentError(f"bucket must be 0 to {BUCKETS - 1}", where="BucketQuery")
        known = not self.cursor or bucket_of(self.cursor) == self.bucket
        if len(self.cursor) not in (0, c.HASH_BYTES) or not known or self.limit < 0:
            raise StoreArgumentError("the cursor or limit is out of range", where="BucketQuery")


def read_bucket_ids(
    slices: Slices, config: RelayStoreConfig, query: BucketQuery, now_ms: int
) -> tuple[list[ContentId], bytes]:
    """Return the ids of a bucket in order, and where to go on; empty at the end.

    Whoever chooses ids can fill one bucket, so an answer is bounded like every other.
    """
    bound = min(query.limit or config.bucket_ids_max, config.bucket_ids_max)
    cutoff_ms = config.cutoff_ms(now_ms)
    prefix = bucket_prefix(query.bucket)
    start = query.cursor + b"\x00" if query.cursor else prefix
    found: list[ContentId] = []
    last = b""
    rows = slices.scan(layout.CONTENTS, start, layout.after(prefix))
    for number, (key, value) in enumerate(rows):
        if number == bound:
            return found, last
        last = key
        _, timestamp, expires_at = layout.decode_content(value)
        if expires_at > now_ms and timestamp > cutoff_ms:
            found.append(ContentId(key))
    return found, b""


def read_contents(
    slices: Slices, config: RelayStoreConfig, content_ids: Sequence[ContentId], now_ms: int
) -> tuple[list[StoredMessage], list[ContentId]]:
    """Return the messages with these content ids, and the ids of which none is here.

    An id in neither answer did not fit into page_bytes_max: ask for it again.

    Raises:
        StoreArgumentError: more than ids_max ids, or one that has not 32 bytes.

    """
    if len(content_ids) > config.ids_max:
        raise StoreArgumentError(
            f"{len(content_ids)} ids in one call, {config.ids_max} at most", where="get_contents"
        )
    found: list[StoredMessage] = []
    missing: list[ContentId] = []
    size = 0
    for wanted in content_ids:
        if len(wanted) != c.HASH_BYTES:
            raise StoreArgumentError("a content id has 32 bytes", where="get_contents")
        message = _read(slices, config, wanted, now_ms)
        if message is None:
            missing.append(wanted)
            continue
        charge = len(message.header_bytes) + len(message.blob or b"")
        if found and size + charge > config.page_bytes_max:
            break
        size += charge
        found.append(message)
    return found, missing


def _read(
    slices: Slices, config: RelayStoreConfig, content_id: ContentId, now_ms: int
) -> StoredMessage | None:
    entry = slices.get(layout.CONTENTS, content_id)
    if entry is None:
        return None
    slot, timestamp, expires_at = layout.decode_content(entry)
    if expires_at <= now_ms or timestamp <= config.cutoff_ms(now_ms):
        return None
    value = slices.get(layout.HEADERS, slot + content_id)
    if value is None:
        return None  # deleted since the id was read
    row = layout.decode_row(value)
    try:
        return stored_message(row, blobs.blob_of(slices, row))
    except KeyError:
        return None
