"""Range-based set reconciliation, wire-compatible with the Negentropy protocol version 1.

Theory of operation
===================

*Decides*: which ranges of the two sets to sum up, split or list next; which ids we have and the
other side lacks, and the reverse.

*Does not know*: the store, streams, clocks. A message comes in as bytes, the answer goes out.

*Machines and their states*: an **initiator** begins, and is done when its answer would say nothing
any more; a **responder** has no state between messages but its set.

*Messages*: the version, then ranges in ascending order. A range has an upper bound (its lower one
is the bound before), a mode and a payload: *skip* nothing to say, *fingerprint* of the sender's ids
in it, or the *list* of them. A fingerprint that differs is answered by splitting the range into 16,
or by listing it when fewer than 32 ids are in it; a list is compared.

*Inputs and what they may cause*: ``receive`` an answer, or the end, or an error when the bytes are
no message.

*Timers*: none.

*Bounds*: `ReconcileConfig`. An answer that would be longer than ``frame_bytes`` ends with one
fingerprint for the rest, as the protocol has it; so does one to more than ``ranges_max`` ranges.
Ids found are bounded by ``found_max``; a further one ends the exchange, and the next one goes on.

*Deviations from the specification*: none on the wire. Timestamps are milliseconds where Nostr has
seconds, and ids content ids (J5, J11).

*What else to change when you change this*: ``tests/interop/negentropy`` compares every byte.

Source: the protocol's public description, version 1 (0x61); decision J5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from luxrelay.errors import ReconcileError, SyncArgumentError
from luxrelay.sync.idset import FINGERPRINT_BYTES, ID_BYTES, SortedIds

VERSION: Final = 0x61
"""Protocol version 1."""
_VERSIONS: Final = range(0x60, 0x70)
_SKIP: Final = 0
_FINGERPRINT: Final = 1
_LIST: Final = 2
_BUCKETS: Final = 16
_LIST_BELOW: Final = 2 * _BUCKETS
_FRAME_MARGIN: Final = 200
"""Room that the protocol keeps below its frame limit for the fingerprint of the rest."""
_INFINITY: Final = 1 << 64
"""A timestamp above all others."""
_VARINT_BYTES_MAX: Final = 10
RANGE_BYTES_MIN: Final = 3
"""Bytes of the smallest range: step, length of an empty prefix, mode."""

BREATH_RANGES: Final = 32
"""Ranges of a message between two breaths: 0.4 ms by `cost.Price.RANGE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileConfig:
    """Bounds of one reconciliation; every number is positive."""

    set_max: int = 2_000_000
    """Ids of one side at most; 40 bytes of memory each."""
    frame_bytes: int = 2 * 1024 * 1024
    """An answer ends with a fingerprint for the rest near this many bytes; 4,096 at least."""
    message_bytes_max: int = 4 * 1024 * 1024 - 64 * 1024
    """Largest message taken, bytes."""
    ranges_max: int = 4_096
    """Ranges of one message that are looked at; the rest is answered with one fingerprint."""
    rounds_max: int = 64
    """Messages sent in one reconciliation at most."""
    found_max: int = 100_000
    """Ids found on either side at most; what is left is found by the next reconciliation."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for each in fields(self):
            low = 4_096 if each.name == "frame_bytes" else 1
            if getattr(self, each.name) < low:
                raise SyncArgumentError(
                    f"{each.name} must be {low} or more", where="ReconcileConfig"
                )


class _Bound(NamedTuple):
    """Where a range ends: the first (timestamp, id) that is not in it."""

    stamp: int
    prefix: bytes


_END: Final = _Bound(_INFINITY, b"")


class _Reader:
    """A message while it is read; bounds are deltas, so it remembers the last timestamp."""

    __slots__ = ("_at", "_data", "_stamp")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stamp = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, length: int) -> bytes:
        """Return the next bytes."""
        end = self._at + length
        if end > len(self._data):
            raise _bad("it ends in the middle of a range", self._at)
        found = self._data[self._at : end]
        self._at = end
        return found

    def varint(self) -> int:
        """Return the next number: groups of seven bits, highest first."""
        value = 0
        for _ in range(_VARINT_BYTES_MAX):
            byte = self.take(1)[0]
            value = value << 7 | byte & 127
            if byte < 128:
                if value >= _INFINITY:
                    break
                return value
        raise _bad("a number of more than 64 bits", self._at)

    def bound(self) -> _Bound:
        """Return the next bound."""
        step = self.varint()
        infinite = step == 0 or self._stamp == _INFINITY
        self._stamp = _INFINITY if infinite else min(_INFINITY, self._stamp + step - 1)
        length = self.varint()
        if length > ID_BYTES:
            raise _bad(f"a bound with {length} bytes of an id", self._at)
        return _Bound(self._stamp, self.take(length))

    def ids(self) -> list[bytes]:
        """Return the ids of a list."""
        count = self.varint()
        if count > (len(self._data) - self._at) // ID_BYTES:
            raise _bad(f"a list of {count} ids", self._at)
        data = self.take(count * ID_BYTES)
        return [data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)]


class _Writer:
    """An answer while it is made."""

    __slots__ = ("_stamp", "data")

    def __init__(self) -> None:
        self.data = bytearray([VERSION])
        self._stamp = 0

    def bound(self, bound: _Bound) -> None:
        """Write a bound, its timestamp as the step from the last one."""
        if bound.stamp >= _INFINITY:
            self._stamp = _INFINITY
            self.data.append(0)
        else:
            self.data += varint(bound.stamp - self._stamp + 1)
            self._stamp = bound.stamp
        self.data += varint(len(bound.prefix))
        self.data += bound.prefix

    def skip(self, bound: _Bound) -> None:
        """Say nothing about everything up to a bound."""
        self.bound(bound)
        self.data.append(_SKIP)

    def fingerprint(self, bound: _Bound, fingerprint: bytes) -> None:
        """Sum up a range."""
        self.bound(bound)
        self.data.append(_FINGERPRINT)
        self.data += fingerprint

    def ids(self, bound: _Bound, ids: list[bytes]) -> None:
        """List a range."""
        self.bound(bound)
        self.data.append(_LIST)
        self.data += varint(len(ids))
        self.data += b"".join(ids)


def varint(value: int) -> bytes:
    """Return a number in groups of seven bits, highest first, all but the last marked."""
    if value < 128:
        return bytes([value])
    data = bytearray([value & 127])
    while value := value >> 7:
        data.append(128 | value & 127)
    data.reverse()
    return bytes(data)


class _Side:
    """What both sides share: reading a message against a set and writing the answer."""

    def __init__(self, held: SortedIds, config: ReconcileConfig | None = None) -> None:
        self._held = held
        self._config = config or ReconcileConfig()
        self._learner: Callable[[set[bytes], int, int], None] | None = None
        """Takes a list in; None on the side that answers it with its own."""
        self._breathe: Callable[[], object] | None = None
        """Called after every `BREATH_RANGES` ranges."""

    def _open(self, message: bytes) -> _Reader | None:
        """Return the reader of a message; None when it speaks another version."""
        if len(message) > self._config.message_bytes_max:
            raise _bad(f"{len(message)} bytes, {self._config.message_bytes_max} at most", 0)
        reader = _Reader(message)
        version = reader.take(1)[0]
        if version not in _VERSIONS:
            raise _bad(f"it begins with 0x{version:02x}, which is no version of the protocol", 0)
        return reader if version == VERSION else None

    def _answer(self, reader: _Reader) -> bytes:
        """Return the answer; the steps, and where a full frame is cut, are the protocol's."""
        writer = _Writer()
        size = len(self._held)
        before, place, skipped, ranges = _Bound(0, b""), 0, False, 0
        limit = self._config.frame_bytes - _FRAME_MARGIN
        while reader:
            bound, mode = reader.bound(), reader.varint()
            # Bounds ascend, so the search begins where the last range ended: a message that names a
            # place below it finds an empty range and cannot make us look twice.
            upper = self._held.lower_bound(place, size, *bound)
            written = len(writer.data)
            differs, kept = True, False
            if mode == _SKIP:
                differs = False
            elif mode == _FINGERPRINT:
                theirs = reader.take(FINGERPRINT_BYTES)
                differs = theirs != self._held.fingerprint(place, upper)
                if differs:
                    self._pass(writer, before, skipped=skipped)
                    self._split(writer, place, upper, bound)
            elif mode == _LIST:
                listed = reader.ids()
                differs = kept = self._learner is None
                if self._learner is None:
                    room = max(0, limit - written + ID_BYTES) // ID_BYTES
                    self._pass(writer, before, skipped=skipped)
                    upper = self._list(writer, place, upper, bound, room)
                else:
                    self._learner(set(listed), place, upper)
            else:
                raise _bad(f"a range of mode {mode}", 0)
            # What is equal is not answered; skips are put together into one, before the next thing
            # said.
            skipped = not differs
            ranges += 1
            if self._breathe is not None and not ranges % BREATH_RANGES:
                self._breathe()
            full = len(writer.data) > limit
            if full and not kept:  # what was written for this range has no room
                del writer.data[written:]
            # One fingerprint for the rest keeps the answer right whatever is cut: the other side
            # splits it again, and nobody looks at more than ranges_max for one message.
            if full or (reader and ranges >= self._config.ranges_max):
                self._pass(writer, bound, skipped=skipped and not full)
                writer.fingerprint(_END, self._held.fingerprint(upper, size))
                break
            place, before = upper, bound
        return bytes(writer.data)

    @staticmethod
    def _pass(writer: _Writer, before: _Bound, *, skipped: bool) -> None:
        """Close the ranges that nothing was said about."""
        if skipped:
            writer.skip(before)

    def _split(self, writer: _Writer, lower: int, upper: int, bound: _Bound) -> None:
        """List a small range, sum up sixteen parts of a large one."""
        count = upper - lower
        if count < _LIST_BELOW:
            writer.ids(bound, self._held.ids(lower, upper))
            return
        each, longer = divmod(count, _BUCKETS)
        at = lower
        for part in range(_BUCKETS):
            end = at + each + (part < longer)
            edge = bound if end == upper else self._between(end)
            writer.fingerprint(edge, self._held.fingerprint(at, end))
            at = end

    def _between(self, index: int) -> _Bound:
        """Return the shortest bound between an item and the one before it."""
        stamp, wanted = self._held.item(index)
        stamp_before, before = self._held.item(index - 1)
        if stamp != stamp_before:
            return _Bound(stamp, b"")
        shared = next(at for at in range(ID_BYTES) if wanted[at] != before[at])
        return _Bound(stamp, wanted[: shared + 1])

    def _list(self, writer: _Writer, lower: int, upper: int, bound: _Bound, room: int) -> int:
        """List a range, ``room`` ids of it at most; return the place where it ends."""
        end = min(upper, lower + room)
        edge = bound if end == upper else _Bound(*self._held.item(end))
        writer.ids(edge, self._held.ids(lower, end))
        return end


class Responder(_Side):
    """Answers the messages of an initiator; learns nothing itself.

    Args:
        held: Our set.
        config: Bounds.
        breathe: Called now and then in a long message, so that others of the process come to turn.

    """

    def __init__(
        self,
        held: SortedIds,
        config: ReconcileConfig | None = None,
        *,
        breathe: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(held, config)
        self._breathe = breathe

    def receive(self, message: bytes) -> bytes:
        """Return the answer; to another version of the protocol, our version alone.

        Raises:
            ReconcileError: the bytes are no message.

        """
        reader = self._open(message)
        return bytes([VERSION]) if reader is None else self._answer(reader)


class Initiator(_Side):
    """Begins, and learns what each side has that the other lacks.

    Args:
        held: Our set.
        config: Bounds.

    """

    def __init__(self, held: SortedIds, config: ReconcileConfig | None = None) -> None:
        super().__init__(held, config)
        self._learner = self._compare
        self.need: dict[bytes, None] = {}
        """Ids the other side has and we lack, in the order found."""
        self.have: dict[bytes, None] = {}
        """Ids we have and the other side lacks, in the order found."""
        self.rounds = 0
        """Messages sent."""
        self.cut = False
        """A bound ended the exchange; another one finds the rest."""

    def start(self) -> bytes:
        """Return the first message."""
        self.rounds = 1
        writer = _Writer()
        self._split(writer, 0, len(self._held), _END)
        return bytes(writer.data)

    def receive(self, message: bytes) -> bytes | None:
        """Return the next message; None when the sets are compared, or a bound is reached.

        Raises:
            ReconcileError: the bytes are no message, or the other side speaks no version of ours.

        """
        reader = self._open(message)
        if reader is None:
            raise _bad(f"the other side speaks version 0x{message[0]:02x}, we 0x{VERSION:02x}", 0)
        answer = self._answer(reader)
        if len(answer) == 1:
            return None
        self.cut = self.cut or self.rounds >= self._config.rounds_max
        if self.cut:
            return None
        self.rounds += 1
        return answer

    def _compare(self, listed: set[bytes], lower: int, upper: int) -> None:
        ours = self._held.ids(lower, upper)
        for each in ours:
            if each in listed:
                listed.discard(each)
            else:
                self._note(self.have, each)
        for each in sorted(listed):
            self._note(self.need, each)

    def _note(self, found: dict[bytes, None], each: bytes) -> None:
        if len(found) < self._config.found_max:
            found[each] = None
        else:
            self.cut = True


def _bad(what: str, at: int) -> ReconcileError:
    return ReconcileError(f"a reconciliation message cannot be used: {what}", where=f"byte {at}")
