"""A payload into segments and back.

Theory of operation
===================

*Decides*: where a payload is cut, which segments belong together, when a payload is whole, and
which partial one is given up.

*Does not know*: acknowledgement, order, encryption, the network.

*Machines and their states*: a **set** is what segments of one payload of one sender have arrived;
it is open, then complete or given up. A complete set with parity leaves a **mark**, because the
segments that were not needed arrive later: the mark swallows each once and is gone when all have
come. The same payload sent again is therefore whole a second time.

*Inputs and what they may cause*: ``add`` returns a `Complete` when a payload is whole, `SetGivenUp`
for sets that gave way or did not have the hash they claimed, and raises `SegmentError` for bytes
that are no segment. ``wake`` returns `SetGivenUp` for sets that waited too long.

*Timers*: one for each open set, from its last new segment.

*Bounds*: `SegmentationConfig`: segments of a payload, open sets and their bytes, marks. Sets are
kept for each sender by itself, so that one sender cannot occupy another's places by content; the
number of sets is common to all.

*Deviations from the specification*: revision B, which has no length, leaves the padding of a
recovered last segment in the payload; here the hash finds it again (at most 16 tries).

*What else to change when you change this*: ``state.Table``, the pages ``explanation/channel.md``.

Source: segmentation specification, revisions B and C; decision C4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from luxrelay.channel.params import SegmentationConfig, SegmentRevision
from luxrelay.channel.parity import recover
from luxrelay.channel.segments import Segment, payload_hash
from luxrelay.channel.state import Journal, Row, StateTable
from luxrelay.errors import ChannelArgumentError

_STRIPS_MAX: Final = 16
"""Tries to find the end of a recovered last segment (revision B)."""


class Reason(Enum):
    """Why a partial payload was given up."""

    EXPIRED = "no new segment for too long"
    EVICTED = "other partial messages needed its place"
    HASH_MISMATCH = "its segments do not have the hash they claim"


@dataclass(frozen=True, slots=True)
class Complete:
    """A payload is whole."""

    sender_id: str
    """Whose."""
    payload: bytes
    """The bytes."""


@dataclass(frozen=True, slots=True)
class SetGivenUp:
    """A partial payload will not become whole."""

    sender_id: str
    """Whose."""
    payload_hash: bytes
    """Which."""
    reason: Reason
    """Why."""


@dataclass(slots=True)
class _Set:
    """Segments of one payload so far."""

    sender_id: str
    payload_hash: bytes
    length: int
    data_count: int
    parity_count: int
    deadline: float
    data: dict[int, bytes] = field(default_factory=dict)
    parity: dict[int, bytes] = field(default_factory=dict)
    size: int = 0


@dataclass(slots=True)
class SegmentationStats:
    """What happened to segments."""

    completed: int = 0
    """Payloads made whole."""
    recovered: int = 0
    """Of these, with the help of parity."""
    duplicate: int = 0
    """Segments that were there already, or late."""
    mismatched: int = 0
    """Segments that contradict others of their payload."""
    given_up: int = 0
    """Partial payloads given up."""


class Reassembly:
    """Puts segments together. The state of one participant in one channel.

    Args:
        config: Bounds and revision.
        journal: Where changes are written down.

    """

    def __init__(self, config: SegmentationConfig, journal: Journal) -> None:
        self._config = config
        self._journal = journal
        self._sets: dict[bytes, _Set] = {}
        self._marks: dict[bytes, int] = {}
        self._size = 0
        self.stats = SegmentationStats()

    # Inputs

    def add(self, sender_id: str, data: bytes, now: float) -> list[Complete | SetGivenUp]:
        """Take a segment of a sender; duplicates and late ones do nothing.

        Raises:
            SegmentError: the bytes are no segment of the configured revision.

        """
        segment = Segment.decode(data, self._config)
        key = _set_key(sender_id, segment)
        if self._swallowed(key, segment):
            self.stats.duplicate += 1
            return []
        found = self._sets.get(key)
        outcomes: list[Complete | SetGivenUp] = []
        if found is None:
            found = _Set(
                sender_id,
                segment.payload_hash,
                segment.payload_length,
                segment.data_count,
                segment.parity_count,
                now,
            )
            outcomes += self._make_room(self._config.sets_max - 1, len(segment.payload))
            self._sets[key] = found
            self._journal.put(StateTable.SETS, key, sender_id.encode())
        elif (found.data_count, found.parity_count) != (segment.data_count, segment.parity_count):
            self.stats.mismatched += 1
            return []
        pieces = found.parity if segment.is_parity else found.data
        if segment.index in pieces:
            self.stats.duplicate += 1
            return []
        self._keep(key, segment, data, now)
        if len(found.data) + len(found.parity) >= found.data_count:
            outcomes.append(self._finish(key, found))
        elif self._size > self._config.buffered_bytes_max:
            outcomes += self._make_room(self._config.sets_max, 0)
        return outcomes

    def wake(self, now: float) -> list[SetGivenUp]:
        """Give up sets whose time is over."""
        timeout = self._config.set_timeout_ms / 1000
        out = []
        while self._sets:
            key, oldest = next(iter(self._sets.items()))
            if oldest.deadline + timeout > now:
                break
            out.append(self._give_up(key, Reason.EXPIRED))
        return out

    def wake_at(self) -> float | None:
        """Return when `wake` has something to do."""
        if not self._sets:
            return None
        return next(iter(self._sets.values())).deadline + self._config.set_timeout_ms / 1000

    def restore(self, rows: Iterable[Row], now: float) -> None:
        """Begin from what was kept; waiting times begin anew.

        Args:
            rows: Rows of the tables SETS, SEGMENTS and COMPLETED; others are not looked at.
            now: Monotonic seconds.

        """
        senders: dict[bytes, str] = {}
        for row in rows:
            assert row.value is not None
            if row.table is StateTable.SETS:
                senders[row.key] = row.value.decode()
            elif row.table is StateTable.COMPLETED:
                self._marks[row.key] = int.from_bytes(row.value, "big")
            elif row.table is StateTable.SEGMENTS:
                key = row.key[:-3]
                segment = Segment.decode(row.value, self._config)
                found = self._sets.setdefault(
                    key,
                    _Set(
                        senders[key],
                        segment.payload_hash,
                        segment.payload_length,
                        segment.data_count,
                        segment.parity_count,
                        now,
                    ),
                )
                pieces = found.parity if segment.is_parity else found.data
                pieces[segment.index] = segment.payload
                found.size += len(segment.payload)
                self._size += len(segment.payload)

    # Queries

    @property
    def held(self) -> int:
        """Payload bytes of partial messages."""
        return self._size

    def progress(self) -> list[tuple[str, int, int]]:
        """Return for each partial payload its sender, the segments held and the segments needed."""
        return [
            (one.sender_id, len(one.data) + len(one.parity), one.data_count)
            for one in self._sets.values()
        ]

    # What serves them

    def _keep(self, key: bytes, segment: Segment, data: bytes, now: float) -> None:
        """Put a new segment into its set, which is the youngest from now on."""
        found = self._sets.pop(key)
        self._sets[key] = found
        pieces = found.parity if segment.is_parity else found.data
        pieces[segment.index] = segment.payload
        found.size += len(segment.payload)
        found.deadline = now
        self._size += len(segment.payload)
        self._journal.put(
            StateTable.SEGMENTS, _segment_key(key, segment.is_parity, segment.index), data
        )

    def _swallowed(self, key: bytes, segment: Segment) -> bool:
        """Return whether a mark was waiting for just this segment, and note that it has come."""
        seen = self._marks.get(key)
        if seen is None:
            return False
        place = 1 << (segment.index + segment.data_count * segment.is_parity)
        if seen & place:
            return False
        seen |= place
        if seen == (1 << segment.data_count + segment.parity_count) - 1:
            del self._marks[key]
            self._journal.remove(StateTable.COMPLETED, key)
        else:
            self._mark(key, seen)
        return True

    def _mark(self, key: bytes, seen: int) -> None:
        self._marks[key] = seen
        self._journal.put(StateTable.COMPLETED, key, seen.to_bytes(32, "big"))
        if len(self._marks) > self._config.completed_max:
            oldest = next(iter(self._marks))
            del self._marks[oldest]
            self._journal.remove(StateTable.COMPLETED, oldest)

    def _finish(self, key: bytes, found: _Set) -> Complete | SetGivenUp:
        """Return the payload of a set that has enough, or that it is not what it claims."""
        recovered = len(found.data) < found.data_count
        payload = self._assemble(found)
        if payload is None:
            return self._give_up(key, Reason.HASH_MISMATCH)
        seen = sum(1 << index for index in found.data)
        seen |= sum(1 << index + found.data_count for index in found.parity)
        self._forget(key)
        if len(found.data) + len(found.parity) < found.data_count + found.parity_count:
            self._mark(key, seen)
        self.stats.completed += 1
        self.stats.recovered += recovered
        return Complete(found.sender_id, payload)

    def _assemble(self, found: _Set) -> bytes | None:
        """Return the payload of a set, or None when it does not have its hash."""
        if len(found.data) == found.data_count:
            whole = b"".join(found.data[index] for index in range(found.data_count))
            return whole if self._right(found, whole) else None
        size = len(next(iter(found.parity.values())))
        padded = {index: piece.ljust(size, b"\0") for index, piece in found.data.items()}
        try:
            shards = recover(padded, found.parity, found.data_count, found.parity_count)
        except ChannelArgumentError:
            return None
        whole = b"".join(shards)
        if self._config.revision is SegmentRevision.C:
            whole = whole[: found.length]
            return whole if self._right(found, whole) else None
        last = found.data.get(found.data_count - 1)
        if last is not None:
            whole = whole[: len(whole) - size + len(last)]
            return whole if self._right(found, whole) else None
        shortest = max(len(whole.rstrip(b"\0")), len(whole) - size)
        for length in range(shortest, min(shortest + _STRIPS_MAX, len(whole)) + 1):
            if payload_hash(whole[:length]) == found.payload_hash:
                return whole[:length]
        return None

    def _right(self, found: _Set, whole: bytes) -> bool:
        """Return whether bytes are what a set claims."""
        if self._config.revision is SegmentRevision.C and len(whole) != found.length:
            return False
        return payload_hash(whole) == found.payload_hash

    def _make_room(self, sets: int, size: int) -> list[SetGivenUp]:
        """Give up the sets that waited longest until ``sets`` are left and ``size`` bytes fit."""
        out = []
        while self._sets and (
            len(self._sets) > sets or self._size + size > self._config.buffered_bytes_max
        ):
            out.append(self._give_up(next(iter(self._sets)), Reason.EVICTED))
        return out

    def _give_up(self, key: bytes, reason: Reason) -> SetGivenUp:
        found = self._sets[key]
        self._forget(key)
        self.stats.given_up += 1
        return SetGivenUp(found.sender_id, found.payload_hash, reason)

    def _forget(self, key: bytes) -> None:
        """Drop a set and its rows."""
        found = self._sets.pop(key)
        self._size -= found.size
        self._journal.remove(StateTable.SETS, key)
        for pieces, is_parity in ((found.data, False), (found.parity, True)):
            for index in pieces:
                self._journal.remove(StateTable.SEGMENTS, _segment_key(key, is_parity, index))


def _set_key(sender_id: str, segment: Segment) -> bytes:
    """Return the name of a segment's set: payload and sender."""
    return segment.payload_hash + segment.payload_length.to_bytes(4, "big") + sender_id.encode()


def _segment_key(key: bytes, is_parity: bool, index: int) -> bytes:
    return key + bytes((is_parity,)) + index.to_bytes(2, "big")
