"""`PageReader`: store rows to the frames of one SyncNamespace page, in constant memory.

A page is read in slices and sent in frames; what it holds in memory is one slice and one frame.
The cursor on the wire is a position, the sequence and content id of the last message sent: it stays
right when messages come and go, and it survives a restart of the relay.

Source: LP-6421 §2.2; decisions P18, P20, P21, P23, P35, J11; 21-18 to 21-22, 21-53.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from luxrelay.bus import constants as c
from luxrelay.bus.header import NamespaceId
from luxrelay.errors import SyncArgumentError
from luxrelay.store import NamespaceQuery
from luxrelay.sync.heads import SeqRange
from luxrelay.sync.messages import SyncStatus
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.backing import StoreRow, SyncStore
from luxrelay.sync.rpc.config import PAGE_MESSAGES_DEFAULT, SyncServerConfig
from luxrelay.sync.rpc.frames import from_status

CURSOR_BYTES: Final = 8 + c.HASH_BYTES
"""Sequence, big-endian, and content id of the last message sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A checked SyncRequest with every default filled in."""

    namespace_id: NamespaceId
    """The namespace."""
    from_seq: int
    """Exclusive."""
    to_seq: int
    """Inclusive; 0 = latest."""
    from_time: int
    """Inclusive, Unix milliseconds; 0 = open."""
    to_time: int
    """Inclusive, Unix milliseconds; 0 = open."""
    rows: int
    """Messages at most."""
    size: int
    """Bytes at most."""
    frame_rows: int
    """Messages in a frame at most; 1 = the plain protocol."""
    cursor: bytes
    """Where the page before ended; empty for the first page."""

    @classmethod
    def check(cls, request: pb.SyncRequest, config: SyncServerConfig) -> PageRequest:
        """Return the request as it will be served.

        Raises:
            SyncArgumentError: a field is out of range; the text names it.

        """
        if len(request.namespace_id) != c.NAMESPACE_BYTES:
            raise _bad("namespace_id", f"it has {len(request.namespace_id)} bytes", "send 20 bytes")
        if request.to_seq and request.to_seq < request.from_seq:
            raise _bad("to_seq", "it lies below from_seq", "send 0 for the latest")
        _check_time("from_timestamp", request.from_timestamp)
        _check_time("to_timestamp", request.to_timestamp)
        _check_cursor(request)
        return cls(
            namespace_id=NamespaceId(request.namespace_id),
            from_seq=request.from_seq,
            to_seq=request.to_seq,
            from_time=request.from_timestamp,
            to_time=request.to_timestamp,
            rows=min(request.max_messages or PAGE_MESSAGES_DEFAULT, config.page_messages_max),
            size=min(request.max_bytes or config.page_bytes_max, config.page_bytes_max),
            frame_rows=min(request.max_frame_messages or 1, config.frame_messages_max),
            cursor=request.cursor,
        )

    @property
    def timed(self) -> bool:
        """True when timestamps decide as well, so that absent sequences are no gaps."""
        return bool(self.from_time or self.to_time)

    @property
    def begin(self) -> int:
        """The lowest sequence this page may bring, candidates of the cursor's slot apart."""
        return int.from_bytes(self.cursor[:8], "big") + 1 if self.cursor else self.from_seq + 1


class PageReader:
    """One page: frames out of the store, then the status.

    Args:
        store: Where the messages are.
        config: Sizes of slices and frames.
        request: What was asked.
        now_ms: Wall clock; what has expired by then is not served (P14).
        stop: True when the page must end at the next slice, for want of time.

    """

    def __init__(
        self,
        store: SyncStore,
        config: SyncServerConfig,
        request: PageRequest,
        *,
        now_ms: int,
        stop: Callable[[], bool],
    ) -> None:
        self._store = store
        self._config = config
        self._request = request
        self._now_ms = now_ms
        self._stop = stop
        self._gaps: list[SeqRange] = []
        self._head = store.head(request.namespace_id)
        self._last: StoreRow | None = None
        self._earliest = 0
        self._expected = 0
        self.messages = 0
        """Messages sent so far."""
        self.size_bytes = 0
        """Their header and blob bytes."""

    def frames(self) -> Iterator[pb.StoredMessage]:
        """Yield the frames of the page; the last one carries the status (P23)."""
        frame, frame_bytes = pb.StoredMessage(), 0
        cursor, more = self._request.cursor, True
        while more:
            page = self._store.query(self._slice(cursor), self._now_ms)
            if cursor == self._request.cursor:
                self._begin(page.earliest_seq)
            taken = 0
            for row in page.messages:
                size = len(row.header_bytes) + len(row.blob or b"")
                if not self._admit(row, size):
                    break
                taken += 1
                if self._request.frame_rows == 1:
                    yield to_frame(row)
                    continue
                full = len(frame.batch) == self._request.frame_rows
                if frame.batch and (full or frame_bytes + size > self._config.frame_bytes):
                    yield frame
                    frame, frame_bytes = pb.StoredMessage(), 0
                _fill(row, frame.batch.add())
                frame_bytes += size
            more = page.has_more or taken < len(page.messages)
            if taken < len(page.messages) or self._full():
                break
            cursor = page.next_cursor
        if frame.batch:
            yield frame
        yield from_status(self._status(more=more))

    def _slice(self, cursor: bytes) -> NamespaceQuery:
        """Return the store query for the next rows: no more than still belong to this page."""
        request, config = self._request, self._config
        return NamespaceQuery(
            namespace_id=request.namespace_id,
            from_seq=request.from_seq,
            to_seq=request.to_seq,
            from_time=request.from_time,
            to_time=request.to_time,
            limit=min(config.read_messages, request.rows - self.messages),
            max_bytes=min(config.read_bytes, max(1, request.size - self.size_bytes)),
            cursor=cursor,
        )

    def _begin(self, earliest_seq: int) -> None:
        """Note where the relay's messages begin, as the first slice has shown."""
        beyond = 0 < self._request.to_seq < self._head.earliest_seq
        self._earliest = self._head.earliest_seq if beyond else earliest_seq
        self._expected = max(self._request.begin, self._earliest)

    def _full(self) -> bool:
        """Return True when the page ends here, whether or not there is more."""
        full = self.messages == self._request.rows or self.size_bytes >= self._request.size
        return full or (self.messages > 0 and self._stop())

    def _admit(self, row: StoreRow, size: int) -> bool:
        """Count the row; False when the page is full before it."""
        if self.messages and self.size_bytes + size > self._request.size:
            return False
        if row.seq > self._expected and not self._request.timed:
            if len(self._gaps) == self._config.gaps_max:
                return False
            self._gaps.append(SeqRange(self._expected, row.seq - 1))
        self._expected = max(self._expected, row.seq + 1)
        self._last = row
        self.messages += 1
        self.size_bytes += size
        return True

    def _status(self, *, more: bool) -> SyncStatus:
        request = self._request
        latest = self._head.latest_seq
        if not (more or request.timed):
            top = min(request.to_seq or latest, latest)
            if self._expected <= top and self._earliest:
                self._gaps.append(SeqRange(self._expected, top))
        lowest = self._earliest or latest + 1
        too_old = request.from_seq + 1 < lowest and not self._within_window()
        last = self._last
        return SyncStatus(
            complete=not (more or self._gaps or too_old),
            last_seq=last.seq if last else 0,
            has_more=more,
            earliest_seq=self._earliest,
            gaps=tuple(self._gaps),
            next_cursor=_cursor(last) if more and last else b"",
        )

    def _within_window(self) -> bool:
        """Return True when the asked time begins where nothing can have expired yet."""
        return self._request.from_time > max(0, self._now_ms - self._config.window_ms)


def to_frame(row: StoreRow) -> pb.StoredMessage:
    """Return the row as a frame of its own."""
    frame = pb.StoredMessage()
    _fill(row, frame)
    return frame


def _fill(row: StoreRow, frame: pb.StoredMessage) -> None:
    """Copy the row; where the message came from stays here (P35, 21-53)."""
    frame.header = row.header_bytes
    if row.blob:
        frame.blob_data = row.blob
    frame.received_at = row.received_at
    frame.expires_at = row.expires_at
    if row.finality:
        frame.finality = row.finality


def _cursor(row: StoreRow) -> bytes:
    return row.seq.to_bytes(8, "big") + row.header.content_id


def _check_cursor(request: pb.SyncRequest) -> None:
    seq = int.from_bytes(request.cursor[:8], "big")
    inside = request.from_seq < seq <= (request.to_seq or c.MAX_U64)
    if request.cursor and (len(request.cursor) != CURSOR_BYTES or not inside):
        raise _bad(
            "cursor",
            "it does not belong to this request",
            "repeat the request of the page it came with, or leave it out",
        )


def _check_time(name: str, value: int) -> None:
    if 0 < value < c.SECONDS_LOOKALIKE_MAX:
        raise _bad(name, f"{value} looks like seconds", "send Unix milliseconds, or 0 for none")


def _bad(name: str, what: str, hint: str) -> SyncArgumentError:
    return SyncArgumentError(
        f"{name} cannot be used: {what}", where=f"SyncRequest.{name}", hint=hint
    )
