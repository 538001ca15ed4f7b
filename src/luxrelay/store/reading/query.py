"""Reading: pages of a namespace, messages by id.

A page is bounded in messages, bytes and rows looked at, and says whether more is there. Its cursor
is a position in the key order, so it stays right when messages before or after it come and go.
Expired messages are passed over whether or not the deletion cycle has been there (P14).

Source: LP-6421 §4.1; decisions P7, P8, P14, P18, P19, P20, P21, P22, P23, J8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from luxrelay.bus import ContentId, MessageId, MsgHeader, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import StoreArgumentError
from luxrelay.store import blobs, layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.layout import BlobPlace, MessageRow, RowParts
from luxrelay.store.ledger import HotCache
from luxrelay.store.messages import StoredMessage, require_ms
from luxrelay.store.namespaces import NamespaceState
from luxrelay.store.slices import Slices
from luxrelay.store.writing.special_batches import thinned_runs

CURSOR_BYTES: Final = 8 + c.HASH_BYTES
"""Sequence and content id of the last message seen."""
_INLINE: Final = BlobPlace.INLINE


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceQuery:
    """Which messages of a namespace; conditions are joined with *and* (P21).

    Raises:
        StoreArgumentError: a field is out of range; a time looks like seconds (P8).

    """

    namespace_id: NamespaceId
    """The namespace, 20 bytes."""
    from_seq: int = 0
    """Only sequences above this one (P20)."""
    to_seq: int = 0
    """Only sequences up to this one, inclusive; 0 for no bound."""
    from_time: int = 0
    """Only timestamps from this one on, milliseconds; 0 for no bound."""
    to_time: int = 0
    """Only timestamps up to this one, inclusive, milliseconds (P7); 0 for no bound."""
    limit: int = 0
    """Messages in the page; 0 for the default, more than the cap means the cap (P18)."""
    max_bytes: int = 0
    """Header and blob bytes in the page; 0 or more than the cap means the cap."""
    offset: int = 0
    """Matches to pass over before a first page; the cursor is the better way (P19)."""
    cursor: bytes = b""
    """``next_cursor`` of the page before; empty for the first."""
    held: bool = False
    """True for the archive: what is past its time and still here is served too (J8)."""

    def __post_init__(self) -> None:
        """Refuse what no query can mean."""
        if len(self.namespace_id) != c.NAMESPACE_BYTES:
            raise _bad("namespace_id", "must be 20 bytes")
        for name in ("from_seq", "to_seq", "limit", "max_bytes", "offset"):
            if not 0 <= getattr(self, name) <= c.MAX_U64:
                raise _bad(name, "must be a u64")
        for name in ("from_time", "to_time"):
            if getattr(self, name):
                require_ms(f"NamespaceQuery.{name}", getattr(self, name))
        if len(self.cursor) not in (0, CURSOR_BYTES):
            raise _bad("cursor", "is not one that a page gave")

    def admits(self, timestamp: int) -> bool:
        """Return True when a message with this timestamp is asked for."""
        return self.from_time <= timestamp and (not self.to_time or timestamp <= self.to_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPage:
    """Messages in ascending order of sequence, and what is known about the rest."""

    messages: list[StoredMessage]
    """The page; candidates of one slot in the order of their content ids."""
    has_more: bool
    """True when the query goes on at ``next_cursor``."""
    next_cursor: bytes
    """Where the next page begins; empty exactly when ``has_more`` is False."""
    earliest_seq: int
    """Lowest sequence of the namespace that is served at all; 0 without one (P23)."""
    last_seq: int
    """Sequence of the last message of the page; 0 for an empty page."""
    gaps: list[tuple[int, int]]
    """Missing ``[first, last]`` between where the page began and where it ended (P23), thinned ones
    included (J3)."""


@dataclass(slots=True)
class PageBounds:
    """What one page may hold."""

    messages: int
    bytes: int
    rows: int
    skip: int

    @classmethod
    def of(cls, config: RelayStoreConfig, limit: int, max_bytes: int, skip: int = 0) -> PageBounds:
        """Return what a query asks for, within what the configuration allows."""
        return cls(
            messages=min(limit or config.page_messages_default, config.page_messages_max),
            bytes=min(max_bytes or config.page_bytes_max, config.page_bytes_max),
            rows=config.page_rows_max,
            skip=skip,
        )


@dataclass(slots=True)
class PageScan:
    """One page while it is being read."""

    messages: list[StoredMessage] = field(default_factory=list)
    size_bytes: int = 0
    rows: int = 0
    last_key: bytes = b""
    """Key of the last message taken or passed over; the cursor when more is there."""
    first_served: int = 0
    passed: int = 0
    """Highest sequence before it that is past its time and not yet deleted."""
    more: bool = False


def read_page(
    slices: Slices,
    state: NamespaceState | None,
    config: RelayStoreConfig,
    query: NamespaceQuery,
    now_ms: int,
) -> QueryPage:
    """Return one page of ``query``; empty for an unknown namespace (None).

    Raises:
        StoreArgumentError: the offset is above offset_max.
        StoreError: ``store.io`` or ``store.corrupt``.

    """
    if query.offset > config.offset_max:
        raise _bad("offset", f"is above {config.offset_max}; use the cursor")
    skip = 0 if query.cursor else query.offset
    bounds = PageBounds.of(config, query.limit, query.max_bytes, skip)
    began = layout.read_u64(query.cursor) if query.cursor else query.from_seq
    if state is None or began == c.MAX_U64 or not state.messages:
        earliest = 0
        scan = PageScan()
    else:
        scan = _scan(slices, query, bounds, _start_key(query, state), now_ms)
        earliest = state.earliest
        if began < earliest or scan.passed:
            # Reading from the beginning shows whether the rows there are still served.
            earliest = scan.first_served or (scan.passed + 1 if scan.more else 0)
    ended = query.to_seq or c.MAX_U64
    if scan.more:
        ended = min(ended, layout.split_slot(scan.last_key)[1])
    gaps = [] if state is None else state.gaps(began + 1, ended, config.gaps_max)
    if config.thin_ratios:
        more = thinned_runs(slices, query.namespace_id, began + 1, ended, config.gaps_max)
        gaps = sorted([*more, *gaps])[: config.gaps_max]
    return QueryPage(
        messages=scan.messages,
        has_more=scan.more,
        next_cursor=scan.last_key[c.NAMESPACE_BYTES :] if scan.more else b"",
        earliest_seq=earliest,
        last_seq=scan.messages[-1].seq if scan.messages else 0,
        gaps=gaps,
    )


def _start_key(query: NamespaceQuery, state: NamespaceState) -> bytes:
    if query.cursor:
        return query.namespace_id + query.cursor + b"\x00"
    return layout.slot_key(query.namespace_id, max(query.from_seq + 1, state.earliest))


def _scan(
    slices: Slices, query: NamespaceQuery, bounds: PageBounds, start: bytes, now_ms: int
) -> PageScan:
    scan = PageScan()
    timed = bool(query.from_time or query.to_time)
    last, lowest = query.to_seq, 0 if query.held else now_ms + 1
    prefix = layout.slot_key(query.namespace_id, last) if last else query.namespace_id
    parts_of, rows_max = layout.row_parts, bounds.rows
    for rows, (key, value) in enumerate(
        slices.scan(layout.HEADERS, start, layout.after(prefix)), start=1
    ):
        if rows > rows_max:
            scan.more = True
            break
        parts = parts_of(value)
        if parts[1] >= lowest:
            scan.first_served = scan.first_served or layout.split_slot(key)[1]
            if not timed or query.admits(layout.timestamp_of(parts[6])):
                if bounds.skip:
                    bounds.skip -= 1
                elif not take_message(slices, scan, bounds, parts):
                    scan.more = True
                    break
        elif not scan.first_served:
            scan.passed = layout.split_slot(key)[1]
        scan.last_key = key
    return scan


def take_message(slices: Slices, scan: PageScan, bounds: PageBounds, row: RowParts) -> bool:
    """Add the message of ``row``; False when the page has no room for it."""
    received_at, expires_at, finality, place, blob_len, source, header, blob, sidecar_len = row
    messages = scan.messages
    size = scan.size_bytes + len(header) + blob_len
    if messages and (size > bounds.bytes or len(messages) == bounds.messages):
        return False
    if place is _INLINE:
        found: bytes | None = blob
    else:
        try:
            found = blobs.blob_of(slices, MessageRow(*row))
        except KeyError:
            return True  # deleted since this scan began; the page is as if it had begun later
    message = StoredMessage(header, found, received_at, expires_at, source, finality)
    if sidecar_len:
        message.sidecar_len = sidecar_len
    messages.append(message)
    scan.size_bytes = size
    return True


class IdAnswer(NamedTuple):
    """What a read by ids found, and where."""

    found: list[StoredMessage]
    missing: list[MessageId]
    hits: int
    """Ids whose slot was in the hot cache."""
    misses: int
    """Ids that the database was asked for."""


def read_messages(
    slices: Slices,
    hot: HotCache,
    config: RelayStoreConfig,
    ids: Sequence[MessageId],
    now_ms: int,
) -> IdAnswer:
    """Return the messages of the slots named, every candidate, and the ids without any.

    An id in neither list did not fit into page_bytes_max: ask for it again.

    Raises:
        StoreArgumentError: more than ids_max ids, or one that has not 32 bytes (P22).

    """
    if len(ids) > config.ids_max:
        raise StoreArgumentError(
            f"{len(ids)} ids in one call, {config.ids_max} at most", where="get_messages"
        )
    found: list[StoredMessage] = []
    missing: list[MessageId] = []
    size = hits = misses = 0
    for wanted in ids:
        if len(wanted) != c.HASH_BYTES:
            raise StoreArgumentError("a message id has 32 bytes", where="get_messages")
        rows: Iterable[MessageRow]
        row = hot.get(wanted, now_ms)
        if row is None:
            misses += 1
            rows = _slot_rows(slices, wanted)
        else:
            hits += 1
            rows = (layout.decode_row(row),)
        messages = _served(slices, rows, now_ms)
        charge = sum(len(each.header_bytes) + len(each.blob or b"") for each in messages)
        if found and size + charge > config.page_bytes_max:
            break
        size += charge
        found += messages
        if not messages:
            missing.append(wanted)
    return IdAnswer(found, missing, hits, misses)


def _slot_rows(slices: Slices, wanted: MessageId) -> Iterator[MessageRow]:
    slot = slices.get(layout.SLOTS, wanted)
    if slot is not None:
        for _, value in slices.scan(layout.HEADERS, slot, layout.after(slot)):
            yield layout.decode_row(value)


def _served(slices: Slices, rows: Iterable[MessageRow], now_ms: int) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    for row in rows:
        if row.expires_at > now_ms:
            try:
                messages.append(stored_message(row, blobs.blob_of(slices, row)))
            except KeyError:
                continue  # deleted since the slot was read
    return messages


def stored_message(row: MessageRow, blob: bytes | None) -> StoredMessage:
    """Return what others may see of a row."""
    return StoredMessage(
        header_bytes=row.header,
        blob=blob,
        received_at=row.received_at,
        expires_at=row.expires_at,
        source=row.source,
        finality=row.finality,
        sidecar_len=row.sidecar_len,
    )


def _bad(field_name: str, fault: str) -> StoreArgumentError:
    return StoreArgumentError(f"{field_name} {fault}", where=f"NamespaceQuery.{field_name}")


def slot_holders(slices: Slices, namespace_id: NamespaceId, seq: int) -> dict[bytes, ContentId]:
    """Return the senders of a slot's candidates, each with the content that is kept (J11)."""
    slot = layout.slot_key(namespace_id, seq)
    found: dict[bytes, ContentId] = {}
    for _, value in slices.scan(layout.HEADERS, slot, layout.after(slot)):
        header = MsgHeader.decode(layout.decode_row(value).header)
        found[header.sender_pub_key] = header.content_id
    return found


def read_predecessor(
    slices: Slices, state: NamespaceState | None, seq: int
) -> tuple[int, int] | None:
    """Return sequence and timestamp of the nearest message before ``seq``; None without one."""
    if state is None or not state.messages or seq <= state.earliest:
        return None
    namespace = state.namespace_id
    start, stop = layout.slot_key(namespace, 0), layout.slot_key(namespace, seq)
    nearest = b""
    for each in slices.live:
        share = each.shares.get(namespace)
        if share is not None and share.first < seq:
            key = each.table.last_key(start, stop, layout.HEADERS)
            nearest = max(nearest, b"" if key is None else key[: layout.SLOT_BYTES])
    if not nearest:
        return None
    # The first row of a slot has its lowest content id, whichever slices its candidates are in.
    first = next(iter(slices.scan(layout.HEADERS, nearest, layout.after(nearest))), None)
    if first is None:
        return None  # it has gone since
    return layout.split_slot(nearest)[1], layout.timestamp_of(layout.decode_row(first[1]).header)


def mark_regressed(
    slices: Slices,
    states: Mapping[NamespaceId, NamespaceState],
    messages: Sequence[StoredMessage],
) -> None:
    """Mark each message whose timestamp is before its predecessor's (H13).

    In a run of sequences the predecessor is the message before it in the list: one look into the
    store for a page, not one a message.
    """
    slot = before = (NamespaceId(b""), 0, 0)
    whole = False
    """Whether the list began before ``slot``, so that its first candidate is in the list."""
    for message in messages:
        namespace, seq = message.namespace_id, message.seq
        if (namespace, seq) != slot[:2]:
            before = slot if whole else (NamespaceId(b""), 0, 0)
            whole = bool(slot[1])
            slot = (namespace, seq, message.timestamp)
        if before[:2] == (namespace, seq - 1):
            found: tuple[int, int] | None = before[1:]
        else:
            found = read_predecessor(slices, states.get(namespace), seq)
        message.regressed = found is not None and message.timestamp < found[1]
