"""Delivery: stored messages to the subscribers of their namespaces.

Theory of operation
-------------------
*Decides* nothing about content: a `Follower` learns that a slot was stored, and reads the store by
itself. The store is the log, a note only says where to look; so a slow follower holds up nobody
and nothing can be lost between replay and live.
*Threads*: `stored` is called by any thread after the commit; followers are called on the loop.
*Bounds*: ``pending_max`` notes wait for the loop; beyond it every follower is told to look
everywhere. ``recent_max`` messages are kept for people who look at the node.

`LatencyHistogram` counts in fixed buckets how long that takes; any thread may observe.

Source: user-01; LP-6421 §2.3; P3.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from luxrelay.bus import ContentId, NamespaceId
from luxrelay.node.stages.verify import Candidate

BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000)
"""Upper bounds, milliseconds; one more bucket takes what lies above."""


class LatencyHistogram:
    """Counts observations by bucket and keeps their sum."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._counts = [0] * (len(BUCKETS_MS) + 1)
        self._sum = 0

    def observe(self, value_ms: int) -> None:
        """Count one value; a negative one, from a peer's clock ahead of ours, counts as 0."""
        value = max(0, value_ms)
        with self._lock:
            self._counts[bisect_left(BUCKETS_MS, value)] += 1
            self._sum += value

    def snapshot(self) -> tuple[list[tuple[str, int]], int]:
        """Return cumulative (upper bound, count) pairs ending with ``+Inf``, and the sum in ms."""
        with self._lock:
            counts, total_ms = list(self._counts), self._sum
        cumulative, running = [], 0
        for bound, count in zip((*map(str, BUCKETS_MS), "+Inf"), counts, strict=True):
            running += count
            cumulative.append((bound, running))
        return cumulative, total_ms


PENDING_MAX: Final = 16_384
"""Notes that wait for the loop."""
RECENT_MAX: Final = 64
"""Messages remembered for the dashboard."""
PREVIEW_BYTES: Final = 160
"""Bytes of a blob that are remembered with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A message was stored."""

    namespace_id: NamespaceId
    parent: NamespaceId
    seq: int
    content_id: ContentId
    blob: bool = False
    """Not the message has come, which was stored before, but its blob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """A stored message as the dashboard shows it."""

    namespace_id: NamespaceId
    parent: NamespaceId
    seq: int
    timestamp: int
    stored_at: int
    """Unix milliseconds."""
    sender: bytes
    blob_len: int
    preview: bytes | None
    """The first bytes of the blob; None when it is not here."""
    door: str
    """``gossip``, ``publish`` or ``sync``."""


class Follower(Protocol):
    """Whoever wants to know."""

    def note(self, note: Note) -> None:
        """Learn of one message; called on the loop."""

    def look_everywhere(self) -> None:
        """Learn that notes were dropped; called on the loop."""


class Feed:
    """Tells followers of what was stored."""

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], None],
        clock_ms: Callable[[], int],
        *,
        pending_max: int = PENDING_MAX,
    ) -> None:
        """Take what runs a function on the loop, from any thread, and the wall clock."""
        self._soon = soon
        self._clock_ms = clock_ms
        self._pending_max = pending_max
        self._lock = threading.Lock()
        self._pending: list[Note] = []
        self._overflow = False
        self._asked = False
        self._followers: dict[NamespaceId, dict[Follower, None]] = {}
        self.expects: Callable[[NamespaceId], bool] = lambda _: False
        """Whether a catch-up is under way or due that may bring what lanes of a parent lack; set
        by whoever catches up."""
        self.recent: deque[Glimpse] = deque(maxlen=RECENT_MAX)
        """The newest stored messages, oldest first."""
        self.stored_total = 0
        """Messages told of since the start."""
        self.overflows = 0
        """Times that notes were dropped and every follower was told to look everywhere."""

    def stored(self, door: str, candidates: Sequence[Candidate]) -> None:
        """Tell of messages that are durable; any thread."""
        if not candidates:
            return
        now_ms = self._clock_ms()
        glimpses = [_glimpse(each, door, now_ms) for each in candidates[-RECENT_MAX:]]
        with self._lock:
            self.stored_total += len(candidates)
            self.recent.extend(glimpses)
        self._note([_note(each) for each in candidates])

    def completed(self, candidates: Sequence[Candidate]) -> None:
        """Tell of stored messages whose blobs have come; any thread."""
        self._note([_note(each, blob=True) for each in candidates])

    def _note(self, notes: Sequence[Note]) -> None:
        with self._lock:
            if not self._followers or not notes:
                return
            if len(self._pending) + len(notes) > self._pending_max:
                self._pending.clear()
                self._overflow = True
                self.overflows += 1
            elif not self._overflow:
                self._pending += notes
            if self._asked:
                return
            self._asked = True
        self._soon(self._tell)

    def follow(self, namespaces: Sequence[NamespaceId], follower: Follower) -> None:
        """Tell ``follower`` of these namespaces and their lanes from now on."""
        with self._lock:
            for each in namespaces:
                self._followers.setdefault(each, {})[follower] = None

    def leave(self, namespaces: Sequence[NamespaceId], follower: Follower) -> None:
        """Tell it no longer."""
        with self._lock:
            for each in namespaces:
                found = self._followers.get(each, {})
                found.pop(follower, None)
                if not found:
                    self._followers.pop(each, None)

    def since(self, told: int) -> tuple[int, list[Glimpse]]:
        """Return how many were told of in all, and the newest of those after the first ``told``."""
        with self._lock:
            fresh = min(self.stored_total - told, len(self.recent))
            return self.stored_total, list(self.recent)[len(self.recent) - fresh :]

    @property
    def followers(self) -> int:
        """How many follow something."""
        with self._lock:
            return len({id(f) for found in self._followers.values() for f in found})

    def _tell(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
            overflow, self._overflow = self._overflow, False
            self._asked = False
            followers = {ns: tuple(found) for ns, found in self._followers.items()}
        if overflow:
            for follower in {id(f): f for found in followers.values() for f in found}.values():
                follower.look_everywhere()
        for note in pending:
            told = followers.get(note.namespace_id, ())
            for follower in told:
                follower.note(note)
            if note.parent != note.namespace_id:
                for follower in followers.get(note.parent, ()):
                    if follower not in told:
                        follower.note(note)


def _note(candidate: Candidate, *, blob: bool = False) -> Note:
    header = candidate.header
    return Note(
        namespace_id=header.namespace_id,
        parent=candidate.parent,
        seq=header.seq,
        content_id=header.content_id,
        blob=blob,
    )


def _glimpse(candidate: Candidate, door: str, now_ms: int) -> Glimpse:
    header, blob = candidate.header, candidate.blob
    return Glimpse(
        namespace_id=header.namespace_id,
        parent=candidate.parent,
        seq=header.seq,
        timestamp=header.timestamp,
        stored_at=now_ms,
        sender=header.sender_address,
        blob_len=header.blob_len,
        preview=None if blob is None else blob[:PREVIEW_BYTES],
        door=door,
    )
