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
gap is told once, and the lane goes on. Below the floor of the namespace nothing is expected, so
that gap is told at once.
*Late*: what comes into a told gap, or as another candidate of a slot told among the last
``RECENT_MAX``, is told out of order and marked. Positions do not go back for it: a subscriber
that was away meanwhile finds it by asking for the gap.
*Timers*: the earliest of the gaps that wait. *Bounds*: ``lanes_max`` lanes, ``GAPS_MAX`` told gaps
a lane, ``RECENT_MAX`` slots and ``LATE_MAX`` late messages; what goes beyond is counted and told.

Source: user-01, user-02; LP-6421 §2.3; P23, P24, P25, J6, J11.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from luxrelay.bus import ContentId, NamespaceId
from luxrelay.store import StoredMessage

GAPS_MAX: Final = 64
"""Told gaps of one lane that are remembered, so that what fills them is told as late."""
RECENT_MAX: Final = 1024
"""Told slots that are remembered, so that another candidate is told as late."""
LATE_MAX: Final = 256
"""Late messages that wait to be read."""


@dataclass(frozen=True, slots=True)
class Told:
    """A message for the subscriber."""

    message: StoredMessage
    parent: NamespaceId
    late: bool = False


@dataclass(frozen=True, slots=True)
class TellGap:
    """Sequences that will not come in order."""

    namespace_id: NamespaceId
    first: int
    last: int
    reason: str
    """``expired``: this relay holds them no longer, nor does its archive; ``unanswered``: the same,
    but the archive did not answer; ``missing``: it has not got them."""


@dataclass(frozen=True, slots=True)
class TellLive:
    """Everything that was stored before is told."""

    positions: Mapping[NamespaceId, int]


@dataclass(frozen=True, slots=True)
class TellDropped:
    """What was not told because a bound was reached."""

    lanes: int
    late: int


@dataclass(frozen=True, slots=True)
class TellBeyond:
    """The position is above everything held of a lane: what comes up to it is not told."""

    namespace_id: NamespaceId
    held: int
    """The node's latest sequence; 0 for nothing."""
    position: int


Tell = Told | TellGap | TellLive | TellDropped | TellBeyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A page to read: of ``namespace_id`` above ``after``, from ``cursor`` when there is one."""

    namespace_id: NamespaceId
    after: int
    cursor: bytes


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
    gaps: list[tuple[int, int]] = field(default_factory=list)
    beyond: bool = False
    """Its subscriber was told that it stands above everything held."""


class Subscription:
    """What one subscriber follows."""

    def __init__(
        self,
        *,
        lanes_max: int,
        gap_wait_ms: int,
        begin: Mapping[NamespaceId, int] | None = None,
    ) -> None:
        """Begin without lanes; one that turns up later begins behind its entry of ``begin``."""
        self._begin = begin or {}
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
            self._dirty[namespace_id] = None
        elif self._is_late(lane, namespace_id, seq, content_id):
            if len(self._late) < LATE_MAX:
                self._late.append(content_id)
            else:
                self._lost_late += 1

    def look_everywhere(self) -> None:
        """Notes were dropped: every lane is read again, and new ones are looked for."""
        for each in self._lanes:
            self._dirty[each] = None
        self._searching = True

    def next_search(self) -> bool:
        """Return whether to look for lanes that nothing was noted of; `found` takes them."""
        searching, self._searching = self._searching, False
        return searching

    def found(self, lanes: Iterable[tuple[NamespaceId, NamespaceId]]) -> None:
        """Follow lanes and their parents that turned up, from their beginning or their entry."""
        for namespace_id, parent in lanes:
            self.follow(namespace_id, parent, self._begin.get(namespace_id, 0))

    def next_read(self) -> Read | None:
        """Return the next page to read, None when every lane is told as far as it goes."""
        if not self._dirty:
            return None
        namespace_id, _ = self._dirty.popitem(last=False)
        lane = self._lanes[namespace_id]
        return Read(namespace_id=namespace_id, after=lane.position, cursor=lane.cursor)

    def next_late(self) -> list[ContentId]:
        """Return the late messages to read."""
        wanted = list(self._late)
        self._late.clear()
        return wanted

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
            self._remember(message)
            self._out.append(Told(message, lane.parent, late=True))
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
        messages, next_cursor, floor, _, held = page
        gone = "unanswered" if page.unanswered else "expired"
        lane = self._lanes[read.namespace_id]
        lane.cursor = b""
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
        if next_cursor:
            if split or not messages:
                lane.cursor = next_cursor
            self._dirty[read.namespace_id] = None
        else:
            lane.waits_until = None
            if floor > lane.position:
                self._gap(lane, floor, gone)
            elif held is not None and held < lane.position and not self._hushed(lane, held):
                # Of another node, or of this one before its store was lost.
                lane.beyond = True
                self._out.append(TellBeyond(lane.namespace_id, held, lane.position))

    def wake_at(self) -> float | None:
        """Return when `wake` must be called, in monotonic seconds."""
        times = [lane.waits_until for lane in self._lanes.values() if lane.waits_until is not None]
        return min(times, default=None)

    def wake(self, now: float) -> None:
        """Read the lanes again whose gaps have waited long enough."""
        for namespace_id, lane in self._lanes.items():
            if lane.waits_until is not None and lane.waits_until <= now:
                self._dirty[namespace_id] = None

    def drain(self) -> list[Tell]:
        """Return what is to be told, in order."""
        if not self._live and not self._dirty:
            self._live = True
            self._out.append(TellLive(self.positions))
        if len(self._refused) > self._told_refused or self._lost_late:
            self._told_refused = len(self._refused)
            self._out.append(TellDropped(len(self._refused), self._lost_late))
            self._lost_late = 0
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
            self._out.append(Told(message, lane.parent))
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

    def _is_late(
        self, lane: LaneCursor, namespace_id: NamespaceId, seq: int, content_id: ContentId
    ) -> bool:
        known = self._recent.get((namespace_id, seq))
        if known is not None:
            return content_id not in known and content_id not in self._late
        return any(first <= seq <= last for first, last in lane.gaps)

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
        self._gap(lane, behind.seq - 1, "missing")
        return True

    def _gap(self, lane: LaneCursor, last: int, reason: str) -> None:
        self._out.append(TellGap(lane.namespace_id, lane.position + 1, last, reason))
        lane.gaps.append((lane.position + 1, last))
        del lane.gaps[:-GAPS_MAX]
        lane.position = last
