"""An archive as a store behind the sync port: a relay that has not forgotten.

`RelaySyncServer(ArchiveStore(path))` answers pages, heads, slots, contents and blobs from the
tables, without a JVM. A node that names it among its ``sync.peers`` catches up from it what other
relays have no more, and an empty relay restores itself that way; `luxrelay query` reads it too. Set
reconciliation is for relays among themselves and is refused.

Source: LP-6440; decisions P22, P37, J6; architecture, rule 10.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from luxrelay.archive.answers import AnswerPlace, ArchivedMessage, ArchivePage, NamespaceReach
from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.schema import MAX_I64, MAX_TIMESTAMP_MS
from luxrelay.bus import NamespaceId
from luxrelay.bus.header import ContentId, MessageId
from luxrelay.errors import SyncArgumentError
from luxrelay.store.messages import StoredMessage
from luxrelay.store.reading.indexes import IndexPage, SenderQuery, TimeQuery
from luxrelay.store.reading.query import CURSOR_BYTES, NamespaceQuery

PAGE_MAX: Final = 1_000
"""Messages of one page."""
PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Payload bytes of one page, unless one message alone has more."""
SEARCH_MAX: Final = 200
"""Messages of one page of a search: with the longest headers they still fit into a frame."""
SEARCH_BYTES_MAX: Final = 1024 * 1024
"""Payload bytes of one page of a search, unless one message alone has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveStorePage:
    """One page; fits `StorePage`."""

    messages: list[StoredMessage]
    has_more: bool
    next_cursor: bytes
    earliest_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveHead:
    """How far a namespace reaches in the archive; fits `StoreHead`."""

    namespace_id: NamespaceId
    parent: NamespaceId
    earliest_seq: int = 0
    contiguous_seq: int = 0
    latest_seq: int = 0
    finalized_seq: int = 0
    latest_header_hash: bytes = b""
    latest_timestamp: int = 0
    messages: int = 0
    size_bytes: int = 0
    floor: int = 0


class ArchiveStore:
    """The archive at ``path`` as the sync service wants a store; any thread may call.

    Raises:
        ArchiveError: ``archive.foreign`` or ``archive.setup``.

    """

    def __init__(self, path: Path) -> None:
        self._lock, self._search_lock = threading.Lock(), threading.Lock()
        self._reader = ArchiveReader(path)
        self._searcher = ArchiveReader(path)  # what looks at many files holds no page up
        self._heads: dict[bytes, ArchiveHead] = {}
        self._read_heads()

    def refresh(self) -> None:
        """Look at the tables as they are now; heads are worked out anew when they have changed.

        Raises:
            ArchiveError: they cannot be read now; what was seen before stays.

        """
        with self._lock:
            if self._reader.refresh():
                self._read_heads()
        with self._search_lock:
            self._searcher.refresh()

    def _read_heads(self) -> None:
        self._heads = {reach.namespace_id: _head(reach) for reach in self._reader.reaches()}

    def query(self, query: NamespaceQuery, now_ms: int) -> ArchiveStorePage:
        """Return one page of a namespace."""
        del now_ms
        if query.from_seq >= MAX_I64:  # the wire has such sequences, no table does
            return ArchiveStorePage(
                messages=[],
                has_more=False,
                next_cursor=b"",
                earliest_seq=self.head(query.namespace_id).earliest_seq,
            )
        after = b""
        if query.cursor:
            assert len(query.cursor) == CURSOR_BYTES
            seq, content = int.from_bytes(query.cursor[:8], "big"), query.cursor[8:]
            after = AnswerPlace(0, query.namespace_id, seq, content).encode()
        with self._lock:
            page = self._reader.by_namespace(
                query.namespace_id,
                from_seq=query.from_seq + 1,
                to_seq=query.to_seq or MAX_I64,
                limit=min(query.limit or PAGE_MAX, PAGE_MAX),
                cursor=after,
                max_bytes=min(query.max_bytes or PAGE_BYTES_MAX, PAGE_BYTES_MAX),
            )
        kept = [each for each in page.messages if query.admits(each.place.timestamp)]
        more = bool(page.next_cursor)
        last = page.messages[-1].place if more else None
        return ArchiveStorePage(
            messages=[_stored(each) for each in kept],
            has_more=more,
            next_cursor=b"" if last is None else last.seq.to_bytes(8, "big") + last.content_id,
            earliest_seq=self.head(query.namespace_id).earliest_seq,
        )

    def query_time(self, query: TimeQuery, now_ms: int) -> IndexPage:
        """Return one page of all namespaces in the order of a store's index of time."""
        del now_ms
        stamp = int.from_bytes(query.cursor[:8], "big")
        if stamp > MAX_TIMESTAMP_MS or not _in_tables(query):
            return IndexPage(messages=[], has_more=False, next_cursor=b"")
        with self._search_lock:
            page = self._searcher.by_time(
                query.from_time,
                query.to_time or MAX_TIMESTAMP_MS,
                limit=min(query.limit or SEARCH_MAX, SEARCH_MAX),
                cursor=query.cursor,
                max_bytes=min(query.max_bytes or SEARCH_BYTES_MAX, SEARCH_BYTES_MAX),
            )
        return _index_page(page, page.next_cursor)

    def query_sender(self, query: SenderQuery, now_ms: int) -> IndexPage:
        """Return one page of a sender's messages in the order of a store's index of senders."""
        del now_ms
        if not _in_tables(query):
            return IndexPage(messages=[], has_more=False, next_cursor=b"")
        with self._search_lock:
            page = self._searcher.by_sender_in_lanes(
                query.sender,
                query.from_time,
                query.to_time or MAX_TIMESTAMP_MS,
                limit=min(query.limit or SEARCH_MAX, SEARCH_MAX),
                cursor=bytes(8) + query.cursor if query.cursor else b"",
                max_bytes=min(query.max_bytes or SEARCH_BYTES_MAX, SEARCH_BYTES_MAX),
            )
        return _index_page(page, page.next_cursor[8:])

    def get_messages(
        self, ids: Sequence[MessageId], now_ms: int
    ) -> tuple[list[StoredMessage], list[MessageId]]:
        """Return the messages of slots, and the slots that are not archived."""
        del now_ms
        with self._lock:
            found = self._reader.by_ids("message_id", ids)
        there = {slot for slot, _ in found}
        missing = [each for each in ids if each not in there]
        return [_stored(message) for _, message in found], missing

    def get_contents(
        self, content_ids: Sequence[ContentId], now_ms: int
    ) -> tuple[list[StoredMessage], list[ContentId]]:
        """Return messages by content id, and the ids that are not archived."""
        del now_ms
        with self._lock:
            found = self._reader.by_ids("content_id", content_ids)
        there = {content for content, _ in found}
        missing = [each for each in content_ids if each not in there]
        return [_stored(message) for _, message in found], missing

    def get_blob(self, commitment: bytes, now_ms: int) -> bytes | None:
        """Return the blob or sidecar committed to; None when it is not archived."""
        del now_ms
        with self._search_lock:
            page = self._searcher.by_blob(commitment, limit=PAGE_MAX)
        found = (each.payload(commitment) for each in page.messages)
        return next((each for each in found if each is not None), None)

    def head(self, namespace_id: NamespaceId) -> ArchiveHead:
        """Return the head of a namespace; zeros for an unknown one."""
        known = self._heads.get(namespace_id)
        return known or ArchiveHead(namespace_id=namespace_id, parent=namespace_id)

    def heads(
        self, parent: NamespaceId | None, cursor: bytes, limit: int
    ) -> tuple[list[ArchiveHead], bytes]:
        """Return heads after a cursor, of a parent and its lanes or of all."""
        heads = self._heads
        names = [
            name
            for name in sorted(heads)
            if name > cursor and parent in {None, heads[name].parent, name}
        ]
        chosen = names[: limit or None]
        rest = chosen[-1] if len(chosen) < len(names) else b""
        return [heads[name] for name in chosen], rest

    def gaps(self, namespace_id: NamespaceId, limit: int) -> list[tuple[int, int]]:
        """Return the lowest missing ranges between the first and the last sequence."""
        with self._lock:
            return self._reader.holes(namespace_id, limit)

    def watermark(self, namespace_id: NamespaceId) -> None:
        """Return None: no archive reads an archive."""
        del namespace_id

    def stamps(self, *_: object) -> NoReturn:
        """Refuse set reconciliation."""
        raise _refusal()

    def tree_nodes(self) -> NoReturn:
        """Refuse set reconciliation."""
        raise _refusal()

    def tree_buckets(self, node: int) -> NoReturn:
        """Refuse set reconciliation."""
        del node
        raise _refusal()

    def bucket_ids(self, *_: object) -> NoReturn:
        """Refuse set reconciliation."""
        raise _refusal()


def _refusal() -> SyncArgumentError:
    return SyncArgumentError(
        "an archive takes no part in set reconciliation",
        where="archive",
        hint="read pages of it, or ask a relay",
    )


def _head(reach: NamespaceReach) -> ArchiveHead:
    return ArchiveHead(
        namespace_id=NamespaceId(reach.namespace_id),
        parent=NamespaceId(reach.parent_id or reach.namespace_id),
        earliest_seq=reach.first_seq,
        contiguous_seq=reach.contiguous_seq,
        latest_seq=reach.last_seq,
        latest_header_hash=reach.last_header_hash,
        latest_timestamp=reach.last_timestamp,
        messages=reach.messages,
        floor=reach.first_seq - 1,
    )


def _in_tables(query: TimeQuery | SenderQuery) -> bool:
    """Return whether a table can have what is asked for; the wire has stranger times."""
    return query.from_time <= min(query.to_time or MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS)


def _index_page(page: ArchivePage, cursor: bytes) -> IndexPage:
    messages = [_stored(each) for each in page.messages]
    return IndexPage(messages=messages, has_more=bool(cursor), next_cursor=cursor)


def _stored(message: ArchivedMessage) -> StoredMessage:
    return StoredMessage(
        header_bytes=message.header,
        blob=message.blob,
        received_at=message.received_at,
        expires_at=message.expires_at,
        finality=message.finality,
        sidecar_len=len(message.sidecar or b""),
    )
