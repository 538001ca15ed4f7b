"""`PageReader`: store rows to the frames of one SyncNamespace page, in constant memory.

A page is read in slices and sent in frames; what it holds in memory is one slice and one frame.
The cursor on the wire is a position, the sequence and content id of the last message sent: it stays
right when messages come and go, and it survives a restart of the relay.

Frames of SyncNamespace as bytes, joined from a store's rows without a protobuf object a message.

Protobuf's own objects cost 10 µs a message here, most of it in serializing submessages; joining the
same bytes by hand costs 2. A test holds the two equal.

Source: LP-6421 §2.2; 21-18 to 21-22, 21-53; 21-21, 21-53, 21-57; decisions P18, P20, P21, P23, P35,
J11, P36.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from luxrelay.bus import constants as c
from luxrelay.bus.header import NamespaceId
from luxrelay.errors import SyncArgumentError
from luxrelay.store import NamespaceQuery
from luxrelay.sync.heads import SeqRange
from luxrelay.sync.messages import LaneRange, SyncStatus
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.backing import ArchiveFallback, StoreHead, StorePage, StoreRow, SyncStore
from luxrelay.sync.rpc.config import PAGE_MESSAGES_DEFAULT, SyncServerConfig
from luxrelay.sync.rpc.frames import from_status
from luxrelay.wire import varint

_HEADER: Final = b"\x0a"
"""Field 1, bytes."""
_BLOB: Final = b"\x12"
"""Field 2, bytes."""
_RECEIVED: Final = b"\x18"
"""Field 3, varint."""
_EXPIRES: Final = b"\x28"
"""Field 5, varint."""
_FINALITY: Final = b"\x30"
_SIDECAR_LEN: Final = b"\x50"
"""Field 6, varint."""
_BATCH: Final = b"\x4a"
"""Field 9, a message."""
_CACHED: Final = 4_096
"""Prefixes remembered; lengths and the upper bits of times repeat from message to message."""


class FrameBytes:
    """One frame while it is filled: `StoredMessage` with `batch`, or a single message.

    Args:
        grouped: True for frames of `batch`; False for the plain protocol, one message a frame.
        blob_max: Bytes of a blob above which it is left out; 0 for none.

    """

    __slots__ = ("_blob_max", "_grouped", "_parts", "count", "size_bytes")

    def __init__(self, *, grouped: bool, blob_max: int = 0) -> None:
        self._grouped = grouped
        self._blob_max = blob_max or c.MAX_BLOB_BYTES
        self._parts: list[bytes] = []
        self.count = 0
        """Messages and statuses in it."""
        self.size_bytes = 0
        """Header and blob bytes of its messages."""

    def extend(self, rows: Sequence[StoreRow], size_bytes: int) -> None:
        """Append messages of so many bytes; where they came from stays here (P35, 21-53)."""
        parts, grouped, blob_max = self._parts, self._grouped, self._blob_max
        for row in rows:
            header, blob = row.header_bytes, row.blob
            if blob and len(blob) > blob_max:
                blob = None
            tail = _tail(row.received_at, row.expires_at, row.finality)
            if row.sidecar_len:
                tail += _SIDECAR_LEN + varint(row.sidecar_len)
            before, header_head, blob_head = _heads(len(header), len(blob or b""), len(tail))
            if grouped:
                parts.append(before)
            parts += (
                (header_head, header, blob_head, blob, tail)
                if blob
                else (header_head, header, tail)
            )
        self.count += len(rows)
        self.size_bytes += size_bytes

    def end(self, status: pb.StoredMessage) -> None:
        """Append a status."""
        data = status.SerializeToString()
        if self._grouped:
            self._parts += (_BATCH, varint(len(data)))
        self._parts.append(data)
        self.count += 1

    def take(self) -> bytes:
        """Return the frame and begin the next."""
        data = b"".join(self._parts)
        self._parts.clear()
        self.count = self.size_bytes = 0
        return data


@lru_cache(_CACHED)
def _heads(header_len: int, blob_len: int, tail_len: int) -> tuple[bytes, bytes, bytes]:
    """Return what goes before the message in a group, before its header and before its blob."""
    header_head = _HEADER + varint(header_len)
    blob_head = _BLOB + varint(blob_len) if blob_len else b""
    whole = len(header_head) + header_len + len(blob_head) + blob_len + tail_len
    return _BATCH + varint(whole), header_head, blob_head


@lru_cache(_CACHED)  # messages that arrived in one group share it
def _tail(received_at: int, expires_at: int, finality: int) -> bytes:
    """Return times and finality; what is zero is left out, as protobuf does."""
    tail = _RECEIVED + _time(received_at) if received_at else b""
    if expires_at:
        tail += _EXPIRES + _time(expires_at)
    return tail + _FINALITY + varint(finality) if finality else tail


def _time(value_ms: int) -> bytes:
    """Return `varint` of a time: its upper bits change every 16 seconds only."""
    upper = value_ms >> 14
    if not upper:
        return varint(value_ms)
    return bytes((value_ms & 127 | 128, value_ms >> 7 & 127 | 128)) + _upper(upper)


_upper: Final = lru_cache(_CACHED)(varint)


CURSOR_BYTES: Final = 8 + c.HASH_BYTES
"""Sequence, big-endian, and content id of the last message sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPageRequest:
    """A checked SyncRequest with every default filled in."""

    lanes: tuple[LaneRange, ...]
    """What is asked for, in order; one namespace in the plain protocol."""
    several: bool
    """True for a call with lanes: every status names its namespace."""
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
    frame_size: int
    """Bytes of a frame of several messages at most."""
    blob_size: int
    """Bytes of a blob above which it is left out; 0 for none."""
    held: bool
    """Also what is past its time and waits for the archive (J8)."""

    @classmethod
    def check(cls, request: pb.SyncRequest, config: SyncServerConfig) -> ServedPageRequest:
        """Return the request as it will be served.

        Raises:
            SyncArgumentError: a field is out of range; the text names it.

        """
        _check_time("from_timestamp", request.from_timestamp)
        _check_time("to_timestamp", request.to_timestamp)
        lanes = _lanes(request, config)
        return cls(
            lanes=lanes,
            several=bool(request.lanes),
            from_time=request.from_timestamp,
            to_time=request.to_timestamp,
            rows=min(request.max_messages or PAGE_MESSAGES_DEFAULT, config.page_messages_max),
            size=min(request.max_bytes or config.page_bytes_max, config.page_bytes_max),
            frame_rows=min(request.max_frame_messages or 1, config.frame_messages_max),
            frame_size=min(request.max_frame_bytes or config.frame_bytes, config.frame_bytes),
            blob_size=request.max_blob_bytes,
            held=request.held,
        )

    @property
    def timed(self) -> bool:
        """True when timestamps decide as well, so that absent sequences are no gaps."""
        return bool(self.from_time or self.to_time)


class PageTurn(Protocol):
    """One use of the store, as whoever shares it out wants to know it."""

    def read(self, size_bytes: int) -> None:
        """Say how much was read; held until the next turn of this page."""
        ...


Turns = Callable[[], AbstractContextManager[PageTurn]]
"""Waits until it is this page's turn to read."""


class _NoTurn:
    """Nobody else reads."""

    def read(self, size_bytes: int) -> None:
        """Forget it."""


@contextmanager
def at_once() -> Iterator[PageTurn]:
    """Let a page read without waiting for anybody."""
    yield _NoTurn()


class PageReader:
    """One page: frames out of the store, a status after each namespace.

    Args:
        store: Where the messages are.
        config: Sizes of slices and frames.
        request: What was asked.
        now_ms: Wall clock; what has expired by then is not served (P14).
        stop: True when the page must end at the next slice, for want of time.
        turns: Waits until it is this page's turn to read the next slice.
        beyond: What the store has no more; None without.

    """

    def __init__(
        self,
        store: SyncStore,
        config: SyncServerConfig,
        request: ServedPageRequest,
        *,
        now_ms: int,
        stop: Callable[[], bool],
        turns: Turns = at_once,
        beyond: ArchiveFallback | None = None,
    ) -> None:
        self._store = store
        self._beyond = beyond
        self._config = config
        self._request = request
        self._now_ms = now_ms
        self._stop = stop
        self._turns = turns
        self._frame = FrameBytes(grouped=request.frame_rows > 1, blob_max=request.blob_size)
        self.messages = 0
        """Messages sent so far."""
        self.size_bytes = 0
        """Their header and blob bytes."""

    def frames(self) -> Iterator[bytes]:
        """Yield the frames of the page, each an encoded `StoredMessage`.

        The last one carries a status (P23).
        """
        for lane in self._request.lanes:
            if self.messages and self._full():
                break
            scan = _LaneScan(lane, self._request, self._config, self._store.head(lane.namespace_id))
            yield from self._rows(scan)
            if self.messages and scan.more and not scan.messages:
                break  # its first message does not fit; it was not looked at
            status = scan.status(self._now_ms)
            if not self._request.several:
                yield from self._flush()
                yield from_status(status).SerializeToString()
                continue
            if self._frame.count >= self._request.frame_rows:
                yield from self._flush()
            self._frame.end(from_status(status, lane.namespace_id))
        yield from self._flush()

    def _rows(self, scan: _LaneScan) -> Iterator[bytes]:
        """Yield full frames of one namespace; its last messages stay in the open one."""
        cursor = scan.lane.cursor
        while scan.more:
            page, sizes = self._read(self._slice(scan.lane, cursor))
            if cursor == scan.lane.cursor:
                scan.begin(page.earliest_seq)
            rows = page.messages[: scan.admit(page.messages[: self._fitting(sizes)])]
            yield from self._filled(rows, sizes)
            scan.more = page.has_more or len(rows) < len(page.messages)
            if len(rows) < len(page.messages) or self._full():
                break
            cursor = page.next_cursor

    def _read(self, asked: NamespaceQuery) -> tuple[StorePage, list[int]]:
        """Return a page and the sizes of its messages."""
        with self._turns() as turn:
            page = self._store.query(asked, self._now_ms)
            sizes = _sizes(page, self._request.blob_size)
            turn.read(sum(sizes))
        if self._beyond is None:
            return page, sizes
        whole = self._beyond.page(asked, page)
        if whole is page:
            return page, sizes
        with self._turns() as turn:  # for what is held now in the place of the page
            sizes = _sizes(whole, self._request.blob_size)
            turn.read(sum(sizes))
        return whole, sizes

    def _fitting(self, sizes: Sequence[int]) -> int:
        """Return how many of these still belong to the page, by their bytes."""
        total = self.size_bytes
        for index, size in enumerate(sizes):
            total += size
            if total > self._request.size and (index or self.messages):
                return index
        return len(sizes)

    def _filled(self, rows: Sequence[StoreRow], sizes: Sequence[int]) -> Iterator[bytes]:
        """Yield the frames that ``rows`` fill, and leave the last of them open."""
        frame, rows_max, size_max = self._frame, self._request.frame_rows, self._request.frame_size
        count, size_bytes, start = frame.count, frame.size_bytes, 0
        for index in range(len(rows)):
            size = sizes[index]
            if count and (count >= rows_max or size_bytes + size > size_max):
                frame.extend(rows[start:index], size_bytes - frame.size_bytes)
                yield frame.take()
                count, size_bytes, start = 0, 0, index
            self.messages += 1
            self.size_bytes += size
            count += 1
            size_bytes += size
        frame.extend(rows[start:], size_bytes - frame.size_bytes)

    def _flush(self) -> Iterator[bytes]:
        """Yield the open frame, if it has anything."""
        if self._frame.count:
            yield self._frame.take()

    def _slice(self, lane: LaneRange, cursor: bytes) -> NamespaceQuery:
        """Return the store query for the next rows: no more than still belong to this page."""
        request, config = self._request, self._config
        return NamespaceQuery(
            namespace_id=lane.namespace_id,
            from_seq=lane.from_seq,
            to_seq=lane.to_seq,
            from_time=request.from_time,
            to_time=request.to_time,
            limit=min(config.read_messages, request.rows - self.messages),
            max_bytes=min(config.read_bytes, max(1, request.size - self.size_bytes)),
            cursor=cursor,
            held=request.held,
        )

    def _full(self) -> bool:
        """Return True when the page ends here, whether or not there is more."""
        full = self.messages >= self._request.rows or self.size_bytes >= self._request.size
        return full or (self.messages > 0 and self._stop())


class _LaneScan:
    """One namespace of a page while it is read: what was sent, what is missing, how it ends."""

    def __init__(
        self, lane: LaneRange, request: ServedPageRequest, config: SyncServerConfig, head: StoreHead
    ) -> None:
        self.lane = lane
        self._request = request
        self._config = config
        self._head = head
        self._gaps: list[SeqRange] = []
        self._last: StoreRow | None = None
        self._earliest = 0
        self._expected = 0
        self.messages = 0
        self.more = True
        """There may be more rows."""

    def begin(self, earliest_seq: int) -> None:
        """Note where the relay's messages begin, as the first slice has shown."""
        beyond = 0 < self.lane.to_seq < self._head.earliest_seq
        self._earliest = self._head.earliest_seq if beyond else earliest_seq
        cursor = self.lane.cursor
        # The lowest sequence this page may bring, candidates of the cursor's slot apart.
        first = (int.from_bytes(cursor[:8], "big") if cursor else self.lane.from_seq) + 1
        self._expected = max(first, self._earliest)

    def admit(self, rows: Sequence[StoreRow]) -> int:
        """Count rows; return how many until the status would have to name too many gaps."""
        expected, timed, admitted = self._expected, self._request.timed, len(rows)
        for index, row in enumerate(rows):
            seq = row.seq
            if seq > expected and not timed:
                if len(self._gaps) == self._config.gaps_max:
                    admitted = index
                    break
                self._gaps.append(SeqRange(expected, seq - 1))
            if seq >= expected:
                expected = seq + 1
        if admitted:
            self._last = rows[admitted - 1]
        self._expected = expected
        self.messages += admitted
        return admitted

    def status(self, now_ms: int) -> SyncStatus:
        """Return how the namespace ended on this page."""
        latest, last, more = self._head.latest_seq, self._last, self.more
        if not (more or self._request.timed):
            top = min(self.lane.to_seq or latest, latest)
            if self._expected <= top and self._earliest:
                self._gaps.append(SeqRange(self._expected, top))
        lowest = self._earliest or latest + 1
        # A time that begins where nothing can have expired yet asks for nothing too old.
        fresh = self._request.from_time > max(0, now_ms - self._config.window_ms)
        too_old = self.lane.from_seq + 1 < lowest and not fresh
        return SyncStatus(
            complete=not (more or self._gaps or too_old),
            last_seq=last.seq if last else 0,
            has_more=more,
            earliest_seq=self._earliest,
            gaps=tuple(self._gaps),
            next_cursor=_cursor(last) if more and last else b"",
        )


def _sizes(page: StorePage, blob_max: int) -> list[int]:
    """Return the bytes of each message as it is sent."""
    if not blob_max:
        return [len(row.header_bytes) + len(row.blob or b"") for row in page.messages]
    blobs = [len(row.blob or b"") for row in page.messages]
    return [
        len(row.header_bytes) + (size if size <= blob_max else 0)
        for row, size in zip(page.messages, blobs, strict=True)
    ]


def to_frame(row: StoreRow, blob_max: int = c.MAX_BLOB_BYTES) -> pb.StoredMessage:
    """Return the row as a frame of its own; a blob above ``blob_max`` bytes is left out."""
    frame = pb.StoredMessage()
    _fill(row, frame, blob_max)
    return frame


def _fill(row: StoreRow, frame: pb.StoredMessage, blob_max: int) -> None:
    """Copy the row; where the message came from stays here (P35, 21-53)."""
    frame.header = row.header_bytes
    if row.blob and len(row.blob) <= blob_max:
        frame.blob_data = row.blob
    frame.received_at = row.received_at
    frame.expires_at = row.expires_at
    if row.finality:
        frame.finality = row.finality
    if row.sidecar_len:
        frame.sidecar_len = row.sidecar_len


def _cursor(row: StoreRow) -> bytes:
    return row.seq.to_bytes(8, "big") + row.header.content_id


def _lanes(request: pb.SyncRequest, config: SyncServerConfig) -> tuple[LaneRange, ...]:
    if not request.lanes:
        return (_lane(request),)
    if request.namespace_id:
        raise _bad("namespace_id", "lanes are given as well", "leave one of them out")
    if len(request.lanes) > config.lanes_max:
        raise _bad("lanes", f"there are {len(request.lanes)}", f"send {config.lanes_max} at most")
    lanes = tuple(_lane(each) for each in request.lanes)
    if len({lane.namespace_id for lane in lanes}) != len(lanes):
        raise _bad("lanes", "a namespace is named twice", "name each once")
    return lanes


def _lane(asked: pb.SyncRequest | pb.LaneRange) -> LaneRange:
    if len(asked.namespace_id) != c.NAMESPACE_BYTES:
        raise _bad("namespace_id", f"it has {len(asked.namespace_id)} bytes", "send 20 bytes")
    if asked.to_seq and asked.to_seq < asked.from_seq:
        raise _bad("to_seq", "it lies below from_seq", "send 0 for the latest")
    seq = int.from_bytes(asked.cursor[:8], "big")
    inside = asked.from_seq < seq <= (asked.to_seq or c.MAX_U64)
    if asked.cursor and (len(asked.cursor) != CURSOR_BYTES or not inside):
        raise _bad(
            "cursor",
            "it does not belong to this request",
            "repeat the request of the page it came with, or leave it out",
        )
    return LaneRange(
        namespace_id=NamespaceId(asked.namespace_id),
        from_seq=asked.from_seq,
        to_seq=asked.to_seq,
        cursor=asked.cursor,
    )


def _check_time(name: str, value: int) -> None:
    if 0 < value < c.SECONDS_LOOKALIKE_MAX:
        raise _bad(name, f"{value} looks like seconds", "send Unix milliseconds, or 0 for none")


def _bad(name: str, what: str, hint: str) -> SyncArgumentError:
    return SyncArgumentError(
        f"{name} cannot be used: {what}", where=f"SyncRequest.{name}", hint=hint
    )
