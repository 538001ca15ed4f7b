"""Calls of `send` and how each of them ends, exactly once.

A request is *open* while a segment of it is neither acknowledged nor failed. Two things are counted
for each segment: it was dispatched, it was acknowledged. What the application hears of that is the
profile's (`EventProfile`), see `events`.

Rows: one a segment that is not acknowledged, so an acknowledgement removes one small row; the last
one that goes takes the request with it. What has ended is remembered in memory alone, up to
``segments_remembered_max`` segments, so that an application may look at it when it hears the end.

Source: reliable-channel-api (ReliableSendId); decision C2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from luxrelay.channel.events import ReliableSendId, RequestId
from luxrelay.channel.state import Journal, Row, StateTable


class RequestOutcome(Enum):
    """What a request has come to."""

    DISPATCHED = 0
    """Every segment has been dispatched; may be followed by one of the others."""
    ACKNOWLEDGED = 1
    """Every segment has been acknowledged."""
    UNDISPATCHED = 2
    """A segment could not be dispatched."""
    UNACKNOWLEDGED = 3
    """A segment was not acknowledged in time."""


@dataclass(frozen=True, slots=True)
class RequestChange:
    """Something an application may want to hear of."""

    request_id: ReliableSendId
    """Which request."""
    outcome: RequestOutcome
    """What it has come to."""
    error: str = ""
    """What went wrong."""
    abandoned: tuple[str, ...] = ()
    """Ids of its other segments, which nobody needs to wait for now."""


@dataclass(frozen=True, slots=True)
class SegmentRequest:
    """One segment of a call of `send` and what became of it."""

    request_id: RequestId
    """Its name."""
    dispatched: bool
    """The layer below has taken it."""
    acknowledged: bool
    """Another participant has it."""


@dataclass(slots=True)
class _Segment:
    request_id: ReliableSendId
    index: int
    dispatched: bool = False


class Requests:
    """The open requests of one participant in one channel.

    Args:
        journal: Where changes are written down.
        segments_remembered_max: Segments of ended requests that are remembered.

    """

    def __init__(self, journal: Journal, segments_remembered_max: int = 4_096) -> None:
        self._journal = journal
        self._remembered_max = segments_remembered_max
        self._segments: dict[str, _Segment] = {}
        self._open: dict[ReliableSendId, dict[str, _Segment]] = {}
        self._names: dict[ReliableSendId, dict[str, int]] = {}
        self._ended: dict[ReliableSendId, tuple[SegmentRequest, ...]] = {}
        self._remembered = 0

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._open

    def progress(self, request_id: ReliableSendId) -> int:
        """Return how many segments of a request are not acknowledged."""
        return len(self._open.get(request_id, ()))

    @property
    def open_ids(self) -> tuple[ReliableSendId, ...]:
        """The requests that have not ended, those of an earlier run included."""
        return tuple(self._open)

    def segments_of(self, request_id: ReliableSendId) -> tuple[SegmentRequest, ...]:
        """Return the segments of a request in order; none when it is not known any more.

        Of one that an earlier run began, only those that were not acknowledged then.
        """
        ended = self._ended.get(request_id)
        if ended is not None:
            return ended
        segments, names = self._open.get(request_id, {}), self._names.get(request_id, {})
        return tuple(
            SegmentRequest(
                RequestId(name),
                dispatched=name not in segments or segments[name].dispatched,
                acknowledged=name not in segments,
            )
            for name in sorted(names, key=names.__getitem__)
        )

    def add(self, request_id: ReliableSendId, ids: Sequence[str]) -> None:
        """Open a request of segments with these message ids, in order."""
        segments = {name: _Segment(request_id, index) for index, name in enumerate(ids)}
        self._open[request_id] = segments
        self._names[request_id] = {name: index for index, name in enumerate(ids)}
        self._segments.update(segments)
        for name, segment in segments.items():
            self._put(name, segment)

    def index(self, message_id: str) -> int | None:
        """Return the place of a segment in its request."""
        segment = self._segments.get(message_id)
        return None if segment is None else segment.index

    def dispatched(self, message_id: str) -> RequestChange | None:
        """Note that a segment was taken by the layer below."""
        segment = self._segments.get(message_id)
        if segment is None or segment.dispatched:
            return None
        segment.dispatched = True
        self._put(message_id, segment)
        request = self._open[segment.request_id]
        if all(one.dispatched for one in request.values()):
            return RequestChange(segment.request_id, RequestOutcome.DISPATCHED)
        return None

    def acknowledged(self, message_id: str) -> list[RequestChange]:
        """Note that another participant has a segment."""
        segment = self._segments.get(message_id)
        if segment is None:
            return []
        self._drop(message_id)
        request = self._open[segment.request_id]
        if not request:
            self._end(segment.request_id)
            # The acknowledgement may be faster than the receipt of the layer below.
            ended = RequestChange(segment.request_id, RequestOutcome.ACKNOWLEDGED)
            if segment.dispatched:
                return [ended]
            return [RequestChange(segment.request_id, RequestOutcome.DISPATCHED), ended]
        if not segment.dispatched and all(one.dispatched for one in request.values()):
            return [RequestChange(segment.request_id, RequestOutcome.DISPATCHED)]
        return []

    def failed(self, message_id: str, error: str) -> RequestChange | None:
        """Note that a segment was refused, or given up: the request ends."""
        segment = self._segments.get(message_id)
        if segment is None:
            return None
        outcome = (
            RequestOutcome.UNACKNOWLEDGED if segment.dispatched else RequestOutcome.UNDISPATCHED
        )
        request = self._open[segment.request_id]
        others = tuple(name for name in request if name != message_id)
        self._end(segment.request_id)
        for name in (message_id, *others):
            self._forget(name)
        return RequestChange(segment.request_id, outcome, error, others)

    def restore(self, row: Row) -> None:
        """Have a row that was kept; rows of other tables are not looked at."""
        if row.table is not StateTable.REQUESTS or row.value is None:
            return
        request_id = ReliableSendId(row.value[3:35].decode())
        segment = _Segment(request_id, int.from_bytes(row.value[1:3], "big"), row.value[0] == 1)
        name = row.key.decode()
        self._segments[name] = segment
        self._open.setdefault(request_id, {})[name] = segment
        self._names.setdefault(request_id, {})[name] = segment.index

    def _put(self, name: str, segment: _Segment) -> None:
        value = bytes((segment.dispatched,)) + segment.index.to_bytes(2, "big")
        self._journal.put(StateTable.REQUESTS, name.encode(), value + segment.request_id.encode())

    def _drop(self, name: str) -> None:
        del self._open[self._segments[name].request_id][name]
        self._forget(name)

    def _forget(self, name: str) -> None:
        del self._segments[name]
        self._journal.remove(StateTable.REQUESTS, name.encode())

    def _end(self, request_id: ReliableSendId) -> None:
        """Have a request no more, and remember how its segments fared."""
        ended = self.segments_of(request_id)
        del self._open[request_id], self._names[request_id]
        self._ended[request_id] = ended
        self._remembered += len(ended)
        while self._remembered > self._remembered_max:
            self._remembered -= len(self._ended.pop(next(iter(self._ended))))
