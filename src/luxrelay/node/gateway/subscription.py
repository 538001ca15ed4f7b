"""`Subscription`: a subscriber's place in the namespaces it follows. Pure.

Theory of operation
-------------------
*Decides* which lane to read next and what to tell the subscriber. *Does not know* sockets, threads
or the store; its driver reads pages and sends what `drain` gives.
*The store is the log.* A lane has a position, the sequence up to which everything was told. Replay
and live are one thing: read what lies above the position, tell it, move the position. A note that
something was stored only makes the lane dirty. So nothing is lost or repeated where replay meets
live, and a slow subscriber costs no memory: it reads later.
*Order*: each lane ascending by sequence; the candidates of a slot together, in the order of their
content ids. Lanes take turns, a page each.
*Gaps*: a message above a missing one waits until ``gap_wait_ms`` after it was received; then the
gap is told and the lane goes on, for a link that brings less than is offered must not stop what is
new. While a catch-up may fill it the gap is told as coming, and what is left of it as missing when
the catch-up has ended, or ``CATCH_UP_WAIT_S`` later. Below the floor of the namespace nothing is
expected, so that gap is told at once.
*Late*: what comes into a told gap is read from the store as a range, however much it is, and told
out of order and marked; so is another candidate of a slot told among the last ``RECENT_MAX``.
Positions do not go back for it: a subscriber that was away meanwhile finds it by asking for the
gap.
*In order*: a view for validators. A lane goes on with exactly the next sequence, no earlier in time
and within the policy, and with one message a sequence: the first candidate by content id that
passes. It never passes a hole; what it waits for is told once, after ``gap_wait_ms``, and so is
each message that does not pass, with its code. Only what has expired is passed over, as a gap.
*What is wanted*: of some senders only, at most so many messages a second, with blobs or without.
What is not wanted is passed over; a rate makes the subscriber slower, it loses nothing. With
``Blobs.LATER`` a message that was told without its blob is told again when that comes.
*Timers*: the earliest of the gaps that wait. *Bounds*: ``lanes_max`` lanes, ``GAPS_MAX`` told gaps
a lane, ``RECENT_MAX`` slots, ``LATE_MAX`` late messages and ``AWAITED_MAX`` blobs; what goes beyond
is counted and told.

Source: user-01, user-02; LP-6411 §2.2, §2.3, §3.2; LP-6420 §8.1; LP-6421 §2.3; 20-38 to 20-40; G27,
H16, H18, P23, P24, P25, J6, J11.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import itemgetter
from typing import Final, NamedTuple

from luxrelay.bus import (
    Code,
    ContentId,
    MsgHeader,
    NamespaceId,
    Verdict,
    VerifyKey,
    sender_address,
)
from luxrelay.bus import constants as c
from luxrelay.bus.seq_ranges import inside, without
from luxrelay.errors import BusArgumentError, KeyFormatError
from luxrelay.store import StoredMessage

GAPS_MAX: Final = 1024
"""Told gaps of one lane that are remembered, so that what fills them is told as late."""
CATCH_UP_WAIT_S: Final = 120.0
"""Longest time that a gap is told as coming because a catch-up may fill it, seconds."""
CATCH_UP_LOOK_S: Final = 1.0
"""How often it is looked whether the catch-up has ended, seconds."""
RECENT_MAX: Final = 1024
"""Told slots that are remembered, so that another candidate is told as late."""
LATE_MAX: Final = 256
"""Late candidates of told slots that wait to be read."""
AWAITED_MAX: Final = 1024
"""Messages told without their blobs that are remembered, and blobs that came for others."""
LOOK_S: Final = 30.0
"""How often an ordered view looks whether what it waits for has expired."""
REFUSED_MAX: Final = 64
"""Candidates of one sequence that an ordered view tells as refused; a slot keeps four at a time."""


def sender_of_any(value: bytes) -> bytes:
    """Return the address of a sender that is given as address or as key field.

    Raises:
        BusArgumentError: it is neither.

    """
    if len(value) == c.ADDRESS_BYTES:
        return value
    try:
        VerifyKey(value)
    except KeyFormatError as error:
        raise BusArgumentError(f"neither an address nor a key field: {error.what}") from error
    return sender_address(value)


class Blobs(StrEnum):
    """What a subscriber wants of payloads."""

    HELD = "held"
    """Those that are here when their messages are told."""
    LATER = "later"
    """These, and the others when they come: the message is told again."""
    NONE = "none"
    """Headers alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is wanted of the namespaces that are followed (LP-6420 §8.1)."""

    senders: frozenset[bytes] = frozenset()
    """Addresses, 20 bytes each; empty for all."""
    max_rate: int = 0
    """Messages a second, as many at once; 0 for all."""
    blobs: Blobs = Blobs.HELD


EVERYTHING: Final = Wish()
"""All messages, as fast as they are taken, with the blobs that are here."""


@dataclass(frozen=True, slots=True)
class Told:
    """A message for the subscriber."""

    message: StoredMessage
    parent: NamespaceId
    late: bool = False
    completes: bool = False
    """It was told before without its blob."""


@dataclass(frozen=True, slots=True)
class TellGap:
    """Sequences that will not come in order."""

    namespace_id: NamespaceId
    first: int
    last: int
    reason: str
    """``expired``: this relay holds them no longer, nor does its archive; ``unanswered``: the same,
    but the archive did not answer; ``coming``: a catch-up may bring them, out of order, and what it
    does not is told as missing later; ``missing``: it has not got them."""


@dataclass(frozen=True, slots=True)
class TellLive:
    """Everything that was stored before is told."""

    positions: Mapping[NamespaceId, int]
    not_carried: frozenset[NamespaceId] = frozenset()
    """Of what is followed, the namespaces that the node takes nothing of, as far as it knows."""


@dataclass(frozen=True, slots=True)
class TellDropped:
    """What was not told because a bound was reached."""

    lanes: int
    late: int
    blobs: int = 0
    """Messages told without their blobs that will not be told again with them."""


@dataclass(frozen=True, slots=True)
class TellBeyond:
    """The position is above everything held of a lane: what comes up to it is not told."""

    namespace_id: NamespaceId
    held: int
    """The node's latest sequence; 0 for nothing."""
    position: int


@dataclass(frozen=True, slots=True)
class TellRefused:
    """A message that an ordered view does not take; another one may have its sequence still."""

    namespace_id: NamespaceId
    seq: int
    content_id: ContentId
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class TellWaiting:
    """Sequences that an ordered view waits for; it goes no further without them."""

    namespace_id: NamespaceId
    first: int
    last: int


Tell = Told | TellGap | TellLive | TellDropped | TellBeyond | TellRefused | TellWaiting

InOrder = Callable[[MsgHeader, NamespaceId, int, int | None], Verdict]
"""Says whether a header is the next one of a lane, given parent, position and the time there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A page to read: of ``namespace_id`` above ``after``, from ``cursor`` when there is one."""

    namespace_id: NamespaceId
    after: int
    cursor: bytes
    ordered: bool = False
    """For an ordered view, which asks for the time of the message before, too."""
    limit: int = 0
    """Messages at most; 0 for a page."""
    to: int = 0
    """The last sequence wanted, of a told gap that something came into; 0 for no bound."""


class ReadPage(NamedTuple):
    """What the store gave."""

    messages: Sequence[StoredMessage]
    """Ascending by sequence."""
    next_cursor: bytes
    """How the page goes on; empty at the end of what is stored."""
    floor: int
    """Nothing at or below this sequence is expected any more."""
    unanswered: bool = False
    """Whether an archive may have more of what lies below it, and did not answer."""
    held: int | None = None
    """Latest sequence that the node has held, read after the page; None when it is not known."""
    before: tuple[int, int] | None = None
    """Sequence and timestamp of the message before what was asked; for an ordered view."""


@dataclass(slots=True)
class LaneCursor:
    """One namespace or lane."""

    namespace_id: NamespaceId
    parent: NamespaceId
    position: int
    cursor: bytes = b""
    partial: int = 0
    """A slot of which not every candidate was told yet; its page was cut off."""
    waits_until: float | None = None
    """When the gap above the position is given up."""
    coming: list[tuple[int, int, float]] = field(default_factory=list)
    """Gaps that were told as coming, and until when a catch-up may fill them."""
    settles_at: float | None = None
    """When it is looked whether it has."""
    late: tuple[int, int] | None = None
    """Lowest and highest sequence that came into told gaps and was not read."""
    late_read: Read | None = None
    """The range that is being read for it."""
    late_again: tuple[int, int] | None = None
    """The same of what came while it is being read."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    beyond: bool = False
    """Its subscriber was told that it stands above everything held."""
    before_ms: int | None = None
    """Timestamp of the message at the position; None when it is not known."""
    refused: set[ContentId] = field(default_factory=set)
    """Candidates of the next sequence that did not pass and were told."""
    waiting: tuple[int, int] | None = None
    """The hole that was told last."""


class Subscription:
    """What one subscriber follows."""

    def __init__(
        self,
        *,
        lanes_max: int,
        gap_wait_ms: int,
        begin: Mapping[NamespaceId, int] | None = None,
        in_order: InOrder | None = None,
        wish: Wish = EVERYTHING,
        expects: Callable[[NamespaceId], bool] = lambda _: False,
    ) -> None:
        """Begin without lanes; one that turns up later begins behind its entry of ``begin``.

        With ``in_order`` it is an ordered view. ``expects`` says of a parent whether a catch-up is
        under way or due that may bring what a lane of it lacks.
        """
        self._expects = expects
        self._late_lanes: OrderedDict[NamespaceId, None] = OrderedDict()
        """Lanes with something in a told gap."""
        self.not_carried: frozenset[NamespaceId] = frozenset()
        """Set by the driver before the first page."""
        self._wish = wish
        self._tokens = float(wish.max_rate)
        self._filled_at = float("-inf")
        self._awaited: OrderedDict[ContentId, None] = OrderedDict()
        """Messages told without their blobs."""
        self._came: OrderedDict[ContentId, None] = OrderedDict()
        """Blobs that came for messages not told yet: the page may have been read before."""
        self._lost_blobs = 0
        self._begin = begin or {}
        self._in_order = in_order
        self._lanes_max = lanes_max
        self._gap_wait_ms = gap_wait_ms
        self._lanes: dict[NamespaceId, LaneCursor] = {}
        self._dirty: OrderedDict[NamespaceId, None] = OrderedDict()
        self._recent: OrderedDict[tuple[NamespaceId, int], tuple[ContentId, ...]] = OrderedDict()
        self._late: deque[ContentId] = deque()
        self._refused: set[NamespaceId] = set()
        self._told_refused = 0
        self._lost_late = 0
        self._searching = False
        self._live = False
        self._out: list[Tell] = []

    @property
    def positions(self) -> dict[NamespaceId, int]:
        """Where each lane stands: everything up to it was told."""
        return {each: lane.position for each, lane in self._lanes.items()}

    def follow(self, namespace_id: NamespaceId, parent: NamespaceId, after: int) -> bool:
        """Follow a lane from behind ``after``; False when there are too many."""
        if namespace_id in self._lanes:
            return True
        if len(self._lanes) >= self._lanes_max:
            if len(self._refused) < self._lanes_max:
                self._refused.add(namespace_id)
            return False
        self._lanes[namespace_id] = LaneCursor(namespace_id, parent, after)
        self._dirty[namespace_id] = None
        return True

    def note(
        self, namespace_id: NamespaceId, parent: NamespaceId, seq: int, content_id: ContentId
    ) -> None:
        """A message was stored; a lane that is not followed yet is followed from now on."""
        lane = self._lanes.get(namespace_id)
        if lane is None:
            self.follow(namespace_id, parent, self._begin.get(namespace_id, 0))
        elif seq > lane.position:
            if lane.waiting is None or seq == lane.waiting[0]:
                self._dirty[namespace_id] = None
        elif self._in_order is None and inside(lane.gaps, seq):
            self._came_late(lane, seq, seq)
        elif self._is_late(namespace_id, seq, content_id):
            if len(self._late) < LATE_MAX:
                self._late.append(content_id)
            else:
                self._lost_late += 1

    def _came_late(self, lane: LaneCursor, first: int, last: int) -> None:
        """Have a part of told gaps read again: something may have come into it."""
        if lane.late_read is None:
            lane.late = _with(_with(lane.late, first), last)
        else:  # the page may have been read before
            lane.late_again = _with(_with(lane.late_again, first), last)
        self._late_lanes[lane.namespace_id] = None

    def blob_came(self, content_id: ContentId) -> None:
        """The blob of a stored message has come."""
        if self._wish.blobs is not Blobs.LATER:
            return
        if content_id in self._awaited:
            if content_id not in self._late:  # read twice it would be told as late besides
                self._late.append(content_id)
        else:
            self._came[content_id] = None
            if len(self._came) > AWAITED_MAX:
                self._came.popitem(last=False)

    def look_everywhere(self) -> None:
        """Notes were dropped: every lane is read again, and new ones are looked for."""
        for each, lane in self._lanes.items():
            self._dirty[each] = None
            if lane.gaps and self._in_order is None:
                lane.late = lane.gaps[0][0], lane.gaps[-1][1]
                self._late_lanes[each] = None
        self._late.extend(self._awaited.keys() - set(self._late))
        self._searching = True

    def next_search(self) -> bool:
        """Return whether to look for lanes that nothing was noted of; `found` takes them."""
        searching, self._searching = self._searching, False
        return searching

    def found(self, lanes: Iterable[tuple[NamespaceId, NamespaceId]]) -> None:
        """Follow lanes and their parents that turned up, from their beginning or their entry."""
        for namespace_id, parent in lanes:
            self.follow(namespace_id, parent, self._begin.get(namespace_id, 0))

    def next_read(self, now: float = 0.0) -> Read | None:
        """Return the next page to read, None when every lane is told as far as it may be now."""
        if not (self._dirty or self._late_lanes) or self._must_wait(now):
            return None
        limit = int(self._tokens) if self._wish.max_rate else 0
        if not self._dirty:
            return self._next_gap(limit)
        namespace_id, _ = self._dirty.popitem(last=False)
        lane = self._lanes[namespace_id]
        return Read(
            namespace_id=namespace_id,
            after=lane.position,
            cursor=lane.cursor,
            ordered=self._in_order is not None and lane.before_ms is None,
            limit=limit,
        )

    def _next_gap(self, limit: int) -> Read | None:
        """Return the next part of a told gap that something came into."""
        while self._late_lanes:
            namespace_id = next(iter(self._late_lanes))
            lane = self._lanes[namespace_id]
            if lane.late_read is not None:
                return replace(lane.late_read, limit=limit)
            low, high = lane.late or (1, 0)
            gap = next((each for each in lane.gaps if each[1] >= low and each[0] <= high), None)
            if gap is not None:
                after, to = max(gap[0], low) - 1, min(gap[1], high)
                lane.late_read = Read(namespace_id=namespace_id, after=after, cursor=b"", to=to)
                return replace(lane.late_read, limit=limit)
            lane.late = None
            del self._late_lanes[namespace_id]
        return None

    def _fill(self, read: Read, page: ReadPage) -> None:
        """Tell what came into a told gap, each content once."""
        lane = self._lanes[read.namespace_id]
        for message in page.messages:
            known = self._recent.get((message.namespace_id, message.seq))
            if inside(lane.gaps, message.seq):
                lane.gaps = without(lane.gaps, message.seq)
            elif known is None or message.header.content_id in known:
                continue
            self._say(message, lane.parent, late=True)
            self._remember(message)
        if page.next_cursor:
            lane.late_read = replace(read, cursor=page.next_cursor, limit=0)
            return
        lane.late_read = None
        if lane.late is not None:
            lane.late = (max(lane.late[0], read.to + 1), lane.late[1])
        if lane.late_again is not None:
            low, high = lane.late_again
            lane.late, lane.late_again = _with(_with(lane.late, low), high), None
        self._forget_gaps(lane)

    def _forget_gaps(self, lane: LaneCursor) -> None:
        """Keep the newest gaps; of the others it is told how much may come and not be told."""
        forgotten = lane.gaps[:-GAPS_MAX]
        self._lost_late += sum(last - first + 1 for first, last in forgotten)
        del lane.gaps[:-GAPS_MAX]

    def _must_wait(self, now: float) -> bool:
        """Fill the bucket of the rate; return whether it has no whole message."""
        rate = self._wish.max_rate
        if not rate:
            return False
        self._tokens = min(float(rate), self._tokens + max(0.0, now - self._filled_at) * rate)
        self._filled_at = now
        return self._tokens < 1.0

    def _wants(self, message: StoredMessage) -> bool:
        senders = self._wish.senders
        return not senders or message.header.sender_address in senders

    def _say(self, message: StoredMessage, parent: NamespaceId, *, late: bool = False) -> None:
        """Tell a message as it is wanted, if it is."""
        if not self._wants(message):
            return
        self._tokens -= 1.0
        if self._wish.blobs is Blobs.NONE:
            message = replace(message, blob=None)
        elif self._wish.blobs is Blobs.LATER and _lacks_something(message):
            self._await(message.header.content_id)
        self._out.append(Told(message, parent, late))

    def _await(self, content_id: ContentId) -> None:
        self._awaited[content_id] = None
        if content_id in self._came:
            del self._came[content_id]
            self._late.append(content_id)
        if len(self._awaited) > AWAITED_MAX:
            self._awaited.popitem(last=False)
            self._lost_blobs += 1

    def next_late(self) -> list[ContentId]:
        """Return the late messages to read, and those whose blobs came."""
        return [self._late.popleft() for _ in range(min(len(self._late), LATE_MAX))]

    def late(
        self,
        wanted: Sequence[ContentId],
        messages: Sequence[StoredMessage],
        missing: Sequence[ContentId],
    ) -> bool:
        """Tell late messages that were read; return whether to read on.

        Args:
            wanted: What `next_late` named.
            messages: What the store gave of it.
            missing: What it no longer has. The rest did not fit, and is wanted again.

        """
        answered = set(missing)
        for message in messages:
            lane = self._lanes[message.namespace_id]
            answered.add(message.header.content_id)
            told = message.header.content_id in self._recent.get(
                (message.namespace_id, message.seq), ()
            )
            self._remember(message)
            if message.header.content_id in self._awaited:
                if message.blob is not None or message.sidecar_len:
                    if not _lacks_something(message):
                        del self._awaited[message.header.content_id]
                    self._tokens -= 1.0
                    self._out.append(Told(message, lane.parent, completes=True))
            elif self._in_order is None:
                if not told:
                    self._say(message, lane.parent, late=True)
            else:
                self._out.append(_passed(message))
        self._late.extendleft(each for each in reversed(wanted) if each not in answered)
        return bool(answered) and bool(self._late)

    def page(self, read: Read, page: ReadPage, now: float, now_ms: int) -> None:
        """Tell a page.

        Args:
            read: What was asked.
            page: What the store gave.
            now: Monotonic seconds.
            now_ms: Unix milliseconds, the clock of ``received_at``.

        """
        if read.to:
            self._fill(read, page)
            return
        messages, next_cursor, floor = page.messages, page.next_cursor, page.floor
        gone = "unanswered" if page.unanswered else "expired"
        lane = self._lanes[read.namespace_id]
        lane.cursor = b""
        if self._in_order is not None:
            if self._page_in_order(lane, page, gone, now=now, now_ms=now_ms):
                self._ended(lane, page, gone, cursor=next_cursor)
            return
        split = bool(next_cursor) and bool(messages)
        if split and messages[0].seq != messages[-1].seq:
            # The last slot may go on in the next page, which begins with it.
            messages = [each for each in messages if each.seq != messages[-1].seq]
            split = False
        if lane.partial and (not messages or messages[0].seq != lane.partial):
            lane.position, lane.partial = max(lane.position, lane.partial), 0
        for message in messages:
            if message.seq > lane.position + 1 and not self._pass_gap(
                lane, message, floor, gone, now=now, now_ms=now_ms
            ):
                return
            self._tell(lane, message, whole=not split)
            lane.waits_until = None
        cut = next_cursor if split or not messages else b""
        self._ended(lane, page, gone, cursor=cut)

    def _ended(self, lane: LaneCursor, page: ReadPage, gone: str, *, cursor: bytes) -> None:
        """Go on behind a page whose messages are told: with the next one, or with what expired."""
        if page.next_cursor:
            lane.cursor = cursor
            self._dirty[lane.namespace_id] = None
            return
        lane.waits_until = None
        floor, held = page.floor, page.held
        if floor > lane.position:
            self._gap(lane, floor, gone)
        elif held is not None and held < lane.position and not self._hushed(lane, held):
            # Of another node, or of this one before its store was lost.
            lane.beyond = True
            self._out.append(TellBeyond(lane.namespace_id, held, lane.position))

    def _page_in_order(
        self, lane: LaneCursor, page: ReadPage, gone: str, *, now: float, now_ms: int
    ) -> bool:
        """Tell what is in order of a page; return False when the lane waits for something."""
        assert self._in_order is not None
        if lane.before_ms is None and page.before is not None and page.before[0] == lane.position:
            lane.before_ms = page.before[1]
        for message in page.messages:
            if message.seq > lane.position + 1 and page.floor > lane.position:
                self._gap(lane, min(page.floor, message.seq - 1), gone)
            if message.seq > lane.position + 1:
                self._wait(lane, message, now, now_ms)
                return False
            content = message.header.content_id
            if message.seq <= lane.position:
                self._refuse(lane, message, _passed(message))
                continue
            verdict = self._in_order(message.header, lane.parent, lane.position, lane.before_ms)
            if not verdict.accepted:
                self._refuse(lane, message, TellRefused(
                    lane.namespace_id, message.seq, content, int(verdict.code), verdict.reason
                ))  # fmt: skip
                continue
            self._say(message, lane.parent)
            self._remember(message)
            lane.position, lane.before_ms = message.seq, message.timestamp
            lane.refused.clear()
            lane.waiting = lane.waits_until = None
        return True

    def _refuse(self, lane: LaneCursor, message: StoredMessage, told: TellRefused) -> None:
        content = message.header.content_id
        if content in lane.refused or len(lane.refused) >= REFUSED_MAX:
            return
        lane.refused.add(content)
        self._remember(message)
        self._out.append(told)

    def _wait(self, lane: LaneCursor, behind: StoredMessage, now: float, now_ms: int) -> None:
        """Tell what a lane waits for, once it has waited for ``gap_wait_ms``."""
        hole = (lane.position + 1, behind.seq - 1)
        if lane.waiting is not None and lane.waiting[0] == hole[0]:
            lane.waits_until = now + LOOK_S
            return
        if lane.waits_until is None:
            age_ms = min(max(0, now_ms - behind.received_at), self._gap_wait_ms)
            lane.waits_until = now + (self._gap_wait_ms - age_ms) / 1000
        if lane.waits_until <= now:
            lane.waits_until, lane.waiting = now + LOOK_S, hole
            self._out.append(TellWaiting(lane.namespace_id, *hole))

    def wake_at(self) -> float | None:
        """Return when `wake` must be called, in monotonic seconds."""
        lanes = self._lanes.values()
        times = [lane.waits_until for lane in lanes if lane.waits_until is not None]
        times += [lane.settles_at for lane in lanes if lane.settles_at is not None]
        unread = self._dirty or self._late_lanes
        if unread and self._wish.max_rate and self._tokens < 1.0:
            times.append(self._filled_at + (1.0 - self._tokens) / self._wish.max_rate)
        return min(times, default=None)

    def wake(self, now: float) -> None:
        """Read the lanes again whose gaps have waited long enough; tell what did not come."""
        for namespace_id, lane in self._lanes.items():
            if lane.settles_at is not None and lane.settles_at <= now:
                self._settle(lane, now)
            if lane.waits_until is not None and lane.waits_until <= now:
                self._dirty[namespace_id] = None

    def drain(self) -> list[Tell]:
        """Return what is to be told, in order."""
        if not self._live and not self._dirty:
            self._live = True
            self._out.append(TellLive(self.positions, self.not_carried))
        if len(self._refused) > self._told_refused or self._lost_late or self._lost_blobs:
            self._told_refused = len(self._refused)
            self._out.append(TellDropped(len(self._refused), self._lost_late, self._lost_blobs))
            self._lost_late = self._lost_blobs = 0
        out, self._out = self._out, []
        return out

    def _hushed(self, lane: LaneCursor, held: int) -> bool:
        """Whether a lane that stands above everything held is not told.

        It was told before; or nobody writes to the namespace itself, only to its lanes, and its
        position is the one that was given for all of them.
        """
        general = not held and len(self._lanes) > 1 and lane.namespace_id not in self._begin
        return lane.beyond or general

    def _tell(self, lane: LaneCursor, message: StoredMessage, *, whole: bool) -> None:
        known = self._recent.get((message.namespace_id, message.seq), ())
        if message.seq > lane.position or message.header.content_id not in known:
            self._say(message, lane.parent)
            self._remember(message)
        if whole:
            lane.position, lane.partial = max(lane.position, message.seq), 0
        else:
            lane.partial = message.seq

    def _remember(self, message: StoredMessage) -> None:
        key = (message.namespace_id, message.seq)
        known = self._recent.get(key, ())
        if message.header.content_id not in known:
            self._recent[key] = (*known, message.header.content_id)
        self._recent.move_to_end(key)
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)

    def _is_late(self, namespace_id: NamespaceId, seq: int, content_id: ContentId) -> bool:
        known = self._recent.get((namespace_id, seq))
        if known is not None:
            return content_id not in known and content_id not in self._late
        return False

    def _pass_gap(
        self,
        lane: LaneCursor,
        behind: StoredMessage,
        floor: int,
        gone: str,
        *,
        now: float,
        now_ms: int,
    ) -> bool:
        """Return True when the gap below ``behind`` needs no more waiting; it has been told."""
        if floor > lane.position:
            self._gap(lane, min(floor, behind.seq - 1), gone)
            if lane.position == behind.seq - 1:
                return True
        if lane.waits_until is None:
            age_ms = min(max(0, now_ms - behind.received_at), self._gap_wait_ms)
            lane.waits_until = now + (self._gap_wait_ms - age_ms) / 1000
        if lane.waits_until > now:
            return False
        lane.waits_until = None
        if self._expects(lane.parent):
            lane.coming.append((lane.position + 1, behind.seq - 1, now + CATCH_UP_WAIT_S))
            del lane.coming[:-GAPS_MAX]
            if lane.settles_at is None:
                lane.settles_at = now + CATCH_UP_LOOK_S
            self._gap(lane, behind.seq - 1, "coming")
        else:
            self._gap(lane, behind.seq - 1, "missing")
        return True

    def _settle(self, lane: LaneCursor, now: float) -> None:
        """Tell what is left of gaps that no catch-up fills any more."""
        lane.settles_at = now + CATCH_UP_LOOK_S
        if lane.late is not None:  # some of it is here and not read yet
            return
        expected = self._expects(lane.parent)
        still: list[tuple[int, int, float]] = []
        for first, last, until in lane.coming:
            # Both are ascending: 1,024 of each are looked at every second on the loop.
            begin = bisect_left(lane.gaps, first, key=itemgetter(1))
            end = bisect_right(lane.gaps, last, key=itemgetter(0))
            left = [(max(first, low), min(last, high)) for low, high in lane.gaps[begin:end]]
            if expected and now < until:
                still += [(first, last, until)] if left else []
                continue
            self._out += [TellGap(lane.namespace_id, *each, "missing") for each in left]
        lane.coming = still
        if not still:
            lane.settles_at = None

    def _gap(self, lane: LaneCursor, last: int, reason: str) -> None:
        self._out.append(TellGap(lane.namespace_id, lane.position + 1, last, reason))
        if reason in {"missing", "coming"}:
            lane.gaps.append((lane.position + 1, last))
            if lane.namespace_id in self._dirty:  # something came after the page was read
                self._came_late(lane, lane.position + 1, last)
            self._forget_gaps(lane)
        lane.position = last
        lane.before_ms = lane.waiting = None
        lane.refused.clear()


def _with(span: tuple[int, int] | None, seq: int) -> tuple[int, int]:
    """Return the lowest and highest sequence of a range and one more."""
    if span is None or span[0] > span[1]:
        return seq, seq
    return min(span[0], seq), max(span[1], seq)


def _passed(message: StoredMessage) -> TellRefused:
    header = message.header
    return TellRefused(
        header.namespace_id,
        header.seq,
        header.content_id,
        int(Code.CONTENTION),
        "the view has passed the sequence",
    )


def _lacks_something(message: StoredMessage) -> bool:
    """Return True when a message is here without its payload or its TFHE sidecar."""
    header = message.header
    no_sidecar = header.tfhe_sidecar is not None and not message.sidecar_len
    return no_sidecar or (message.blob is None and header.blob_len > 0)
