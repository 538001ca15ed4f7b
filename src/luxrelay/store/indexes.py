"""Reading across namespaces: by time, and by sender.

A page follows the index, reads each message by its key, and is bounded like every page in messages,
bytes and rows looked at. Its cursor is a position in the index, so it stays right when messages
come and go; a message that goes while the page is read is passed over.

Source: LP-6421 §4.2; decisions P6, P7, P8, P14, P18, P19, P38; 21-34, 21-35.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from luxrelay.bus import constants as c
from luxrelay.errors import StoreArgumentError
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig, require_ms
from luxrelay.store.messages import StoredMessage
from luxrelay.store.query import PageBounds, PageScan, take_message
from luxrelay.store.rocks import Database

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
    database: Database, config: RelayStoreConfig, query: TimeQuery, now_ms: int
) -> IndexPage:
    """Return one page of ``query``.

    Raises:
        StoreError: ``store.io`` or ``store.corrupt``.

    """
    start = query.cursor + b"\x00" if query.cursor else layout.u64(query.from_time)
    bounded = 0 < query.to_time < c.MAX_U64  # one more would not fit into 8 bytes (P7)
    stop = layout.u64(query.to_time + 1) if bounded else b""
    index = database.keys(layout.TIMES, start, stop)
    return _read(database, config, query, index, now_ms)


def read_by_sender(
    database: Database, config: RelayStoreConfig, query: SenderQuery, now_ms: int
) -> IndexPage:
    """Return one page of ``query``.

    Raises:
        StoreError: ``store.io`` or ``store.corrupt``.

    """
    start = query.sender + query.cursor + (b"\x00" if query.cursor else b"")
    index = database.keys(layout.SENDERS, start, layout.after(query.sender))
    return _read(database, config, query, index, now_ms)


def _read(
    database: Database,
    config: RelayStoreConfig,
    query: TimeQuery | SenderQuery,
    index: Iterator[bytes],
    now_ms: int,
) -> IndexPage:
    bounds = PageBounds.of(config, query.limit, query.max_bytes)
    scan = PageScan()
    for index_key in index:
        if scan.rows == bounds.rows:
            scan.more = True
            break
        scan.rows += 1
        value = database.get(layout.HEADERS, index_key[-layout.MESSAGE_KEY_BYTES :])
        row = None if value is None else layout.decode_row(value)
        wanted = row is not None and row.expires_at > now_ms and _admits(query, row.timestamp)
        if wanted and row is not None and not take_message(database, scan, bounds, row):
            scan.more = True
            break
        scan.last_key = index_key
    prefix = 0 if isinstance(query, TimeQuery) else c.ADDRESS_BYTES
    return IndexPage(
        messages=scan.messages,
        has_more=scan.more,
        next_cursor=scan.last_key[prefix:] if scan.more else b"",
    )


def _admits(query: TimeQuery | SenderQuery, timestamp: int) -> bool:
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
