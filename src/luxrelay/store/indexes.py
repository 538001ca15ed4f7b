"""Reading across namespaces: by time, and by sender.

A page follows the time index and reads each message by its key, or reads the namespaces in which
the sender has messages; it is bounded like every page in messages, bytes and rows looked at. Its
cursor is a position in that order, so it stays right when messages come and go; a message that goes
while the page is read is passed over.

Source: LP-6421 §4.2; decisions P6, P7, P8, P14, P18, P19, P38; 21-34, 21-35.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from luxrelay.bus import constants as c
from luxrelay.bus import sender_address
from luxrelay.errors import StoreArgumentError
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig, require_ms
from luxrelay.store.layout import MessageRow
from luxrelay.store.messages import StoredMessage
from luxrelay.store.query import PageBounds, PageScan, take_message
from luxrelay.store.slices import Slices

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
