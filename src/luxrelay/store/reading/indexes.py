"""Reads across namespaces: by time, by sender, by content id, and which ids a span of time holds.

A page follows the time index and reads each message by its key, or reads the namespaces in which
the sender has messages; it is bounded like every page in messages, bytes and rows looked at. Its
cursor is a position in that order, so it stays right when messages come and go; a message that goes
while the page is read is passed over.

Reading by content id: the ids of a tree bucket and the messages of ids, for sync between stores.

Both pass over what is past its time or past the retention cut-off: what one peer has forgotten does
not come back from another. A message that goes between two calls is missing from the second; the
next comparison finds the sets equal.

Which contents the store holds in a span of time, without reading the messages.

For reconciliation between relays: one index row an id, so a million ids take a second or two.

Source: LP-6421 §4.2; 21-34, 21-35; retention document, "Sync Soft-Filter"; decisions P6, P7, P8,
P14, P18, P19, P38, J4, J11, J5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from luxrelay.bus import ContentId, NamespaceId, sender_address
from luxrelay.bus import constants as c
from luxrelay.errors import StoreArgumentError
from luxrelay.store import blobs, layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.layout import MessageRow
from luxrelay.store.merkle import BUCKETS, bucket_of, bucket_prefix
from luxrelay.store.messages import StoredMessage, require_ms
from luxrelay.store.reading.query import PageBounds, PageScan, stored_message, take_message
from luxrelay.store.slices import Slices

KEY_BYTES: Final = 8 + layout.MESSAGE_KEY_BYTES
"""Timestamp and message key: what a row of the time index is."""
_CHUNK: Final = 10_000

Stamps = tuple[NDArray[np.uint64], NDArray[np.uint8]]
"""Timestamps in milliseconds, ascending, and as many content ids, rows of 32 bytes."""


def gather(keys: Iterable[bytes], namespaces: frozenset[NamespaceId] | None, limit: int) -> Stamps:
    """Return timestamps and content ids of some rows of the time index.

    Args:
        keys: The rows.
        namespaces: Only these; None for every one.
        limit: Ids at most; the first ones are kept.

    """
    rows = iter(keys)
    stamps: list[NDArray[np.uint64]] = []
    ids: list[NDArray[np.uint8]] = []
    count = 0
    while count < limit and (chunk := list(islice(rows, _CHUNK))):
        table = np.frombuffer(b"".join(chunk), np.uint8).reshape(-1, KEY_BYTES)
        if namespaces is not None:
            wanted = [key[8 : 8 + c.NAMESPACE_BYTES] in namespaces for key in chunk]
            table = table[np.array(wanted, np.bool_)]
        table = table[: limit - count]
        count += len(table)
        stamps.append(np.ascontiguousarray(table[:, :8]).view(">u8").reshape(-1).astype(np.uint64))
        ids.append(np.ascontiguousarray(table[:, -c.HASH_BYTES :]))
    if not ids:
        return np.zeros(0, np.uint64), np.zeros((0, c.HASH_BYTES), np.uint8)
    return np.concatenate(stamps), np.concatenate(ids)


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
        message = _read_sets(slices, config, wanted, now_ms)
        if message is None:
            missing.append(wanted)
            continue
        charge = len(message.header_bytes) + len(message.blob or b"")
        if found and size + charge > config.page_bytes_max:
            break
        size += charge
        found.append(message)
    return found, missing


def _read_sets(
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


TIME_CURSOR_BYTES: Final = 8 + layout.MESSAGE_KEY_BYTES
"""Timestamp and message key of the last message seen."""
SENDER_CURSOR_BYTES: Final = layout.MESSAGE_KEY_BYTES
"""Message key of the last message seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeQuery:
    """Messages of all namespaces in a span of time, ascending by timestamp.

    Raises:
        StoreArgumentError: a field is out of range; a time looks like seconds (P8).

    """

    from_time: int = 0
    """Only timestamps from this one on, milliseconds; 0 for no bound."""
    to_time: int = 0
    """Only timestamps up to this one, inclusive, milliseconds (P7); 0 for no bound."""
    limit: int = 0
    """Messages in the page; 0 for the default, more than the cap means the cap (P18)."""
    max_bytes: int = 0
    """Header and blob bytes in the page; 0 or more than the cap means the cap."""
    cursor: bytes = b""
    """``next_cursor`` of the page before; empty for the first."""

    def __post_init__(self) -> None:
        """Refuse what no query can mean."""
        _check_span(self.from_time, self.to_time)
        _check_bounds(self.limit, self.max_bytes, self.cursor, TIME_CURSOR_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderQuery:
    """Messages of one sender in all namespaces, ascending by namespace and sequence.

    Raises:
        StoreArgumentError: a field is out of range; a time looks like seconds (P8).

    """

    sender: bytes
    """The sender's address, 20 bytes (`luxrelay.bus.sender_address`, P38)."""
    from_time: int = 0
    """Only timestamps from this one on, milliseconds; 0 for no bound."""
    to_time: int = 0
    """Only timestamps up to this one, inclusive, milliseconds (P7); 0 for no bound."""
    limit: int = 0
    """Messages in the page; 0 for the default, more than the cap means the cap (P18)."""
    max_bytes: int = 0
    """Header and blob bytes in the page; 0 or more than the cap means the cap."""
    cursor: bytes = b""
    """``next_cursor`` of the page before; empty for the first."""

    def __post_init__(self) -> None:
        """Refuse what no query can mean."""
        if len(self.sender) != c.ADDRESS_BYTES:
            raise _bad("sender", f"must be {c.ADDRESS_BYTES} bytes")
        _check_span(self.from_time, self.to_time)
        _check_bounds(self.limit, self.max_bytes, self.cursor, SENDER_CURSOR_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPage:
    """Messages in the order of the index."""

    messages: list[StoredMessage]
    """The page."""
    has_more: bool
    """True when the query goes on at ``next_cursor``."""
    next_cursor: bytes
    """Where the next page begins; empty exactly when ``has_more`` is False."""


def read_by_time(
    slices: Slices, config: RelayStoreConfig, query: TimeQuery, now_ms: int
) -> IndexPage:
    """Return one page of ``query``.

    Raises:
        StoreError: ``store.io`` or ``store.corrupt``.

    """
    start = query.cursor + b"\x00" if query.cursor else layout.u64(query.from_time)
    bounded = 0 < query.to_time < c.MAX_U64  # one more would not fit into 8 bytes (P7)
    stop = layout.u64(query.to_time + 1) if bounded else b""

    def rows() -> Iterator[tuple[bytes, bytes | None]]:
        for key in slices.keys(layout.TIMES, start, stop):
            yield key, slices.get(layout.HEADERS, key[8:])

    return _read(slices, config, query, rows(), now_ms)


def read_by_sender(
    slices: Slices, config: RelayStoreConfig, query: SenderQuery, now_ms: int
) -> IndexPage:
    """Return one page of ``query``.

    Raises:
        StoreError: ``store.io`` or ``store.corrupt``.

    """

    def rows() -> Iterator[tuple[bytes, bytes | None]]:
        for namespace in _namespaces_of(slices, query):
            start = max(namespace, query.cursor + b"\x00" if query.cursor else b"")
            yield from slices.scan(layout.HEADERS, start, layout.after(namespace))

    return _read(slices, config, query, rows(), now_ms)


def _namespaces_of(slices: Slices, query: SenderQuery) -> list[bytes]:
    """Return the namespaces in which a sender has messages, from the cursor's on, in order."""
    end, skip = layout.after(query.sender), len(query.sender)
    found = {key[skip:] for key in slices.keys(layout.SENDERS, query.sender, end)}
    return sorted(name for name in found if name >= query.cursor[: c.NAMESPACE_BYTES])


def _read(
    slices: Slices,
    config: RelayStoreConfig,
    query: TimeQuery | SenderQuery,
    rows: Iterator[tuple[bytes, bytes | None]],
    now_ms: int,
) -> IndexPage:
    """Read ``rows``: positions, each the cursor of a page that ends there, and header rows."""
    bounds = PageBounds.of(config, query.limit, query.max_bytes)
    scan = PageScan()
    for position, value in rows:
        if scan.rows == bounds.rows:
            scan.more = True
            break
        scan.rows += 1
        row = None if value is None else layout.decode_row(value)
        wanted = row is not None and row.expires_at > now_ms and _admits(query, row)
        if wanted and row is not None and not take_message(slices, scan, bounds, row):
            scan.more = True
            break
        scan.last_key = position
    return IndexPage(
        messages=scan.messages,
        has_more=scan.more,
        next_cursor=scan.last_key if scan.more else b"",
    )


def _admits(query: TimeQuery | SenderQuery, row: MessageRow) -> bool:
    if isinstance(query, SenderQuery) and sender_address(row.sender) != query.sender:
        return False
    timestamp = row.timestamp
    return query.from_time <= timestamp and (not query.to_time or timestamp <= query.to_time)


def _check_span(from_time: int, to_time: int) -> None:
    for name, value in (("from_time", from_time), ("to_time", to_time)):
        if value:
            require_ms(name, value)


def _check_bounds(limit: int, max_bytes: int, cursor: bytes, cursor_bytes: int) -> None:
    for name, value in (("limit", limit), ("max_bytes", max_bytes)):
        if not 0 <= value <= c.MAX_U64:
            raise _bad(name, "must be a u64")
    if len(cursor) not in (0, cursor_bytes):
        raise _bad("cursor", "is not one that a page gave")


def _bad(field_name: str, fault: str) -> StoreArgumentError:
    return StoreArgumentError(f"{field_name} {fault}", where=field_name)
