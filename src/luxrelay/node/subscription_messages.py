"""Following the store: where a subscription begins, and subscriptions for threads.

Theory of operation
-------------------
`Subscription` decides; this drives it for callers that have a thread each, as gRPC gives them. The
feed only notes that something was stored; the thread reads the store by itself, so a slow reader
holds up nobody and nothing is lost where replay meets live.
*Bounds*: ``notes_max`` notes wait for the thread; beyond it every lane is read again. A group of
events is a page of the store.

Source: user-01; LP-6421 §2.3; decisions P23, J6.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from luxrelay.bus import NamespaceId
from luxrelay.errors import BusArgumentError, SyncArgumentError
from luxrelay.node.gateway.subscription import (
    Blobs,
    InOrder,
    Read,
    ReadPage,
    Subscription,
    Tell,
    TellBeyond,
    TellDropped,
    TellGap,
    TellLive,
    TellRefused,
    TellWaiting,
    Told,
    Wish,
    sender_of_any,
)
from luxrelay.node.stages.deliver import Feed, Note
from luxrelay.store import NamespaceHead, NamespaceQuery, QueryPage, RelayStore
from luxrelay.sync.following import (
    Followed,
    FollowedBeyond,
    FollowedDropped,
    FollowedGap,
    FollowedLive,
    FollowedRefused,
    FollowedWaiting,
    FollowEvent,
    SubscribeWanted,
)
from luxrelay.sync.messages import WireMessage

Replay = Callable[[NamespaceQuery, QueryPage, NamespaceHead], ReadPage]
"""Makes a subscriber's page of a question, the store's answer and the head read after it; waits."""
LATEST: Final = -1
"""Begin behind what is stored now."""
NOTES_MAX: Final = 4096
"""Notes that wait for one subscriber."""
PAGE_MESSAGES: Final = 256
"""Messages read for a subscriber at once."""
PAGE_BYTES: Final = 1024 * 1024
"""Bytes of messages read for a subscriber at once; one message always fits."""
BEAT_S: Final = 10.0
"""Longest time without a group of events, an empty one if need be."""
_LOOK_S: Final = 0.25
"""How soon a subscriber that has left is noticed."""


def beginnings(
    store: RelayStore,
    namespaces: Mapping[NamespaceId, int],
    positions: Mapping[NamespaceId, int],
    *,
    lanes: bool,
    lanes_max: int,
) -> list[tuple[NamespaceId, NamespaceId, int]]:
    """Return (namespace, parent, after) of everything that is there to follow.

    Args:
        store: What is followed.
        namespaces: Each with the sequence behind which it begins; `LATEST` for its newest.
        positions: The same for single lanes.
        lanes: With the lanes of the namespaces.
        lanes_max: Stop looking for lanes beyond so many.

    """
    found = []
    for namespace_id, after in namespaces.items():
        head = store.head(namespace_id)
        parent = head.parent if any(head.parent) else namespace_id
        begin = head.latest_seq if after == LATEST else after
        found.append((namespace_id, parent, positions.get(namespace_id, begin)))
        cursor = b""
        while lanes and len(found) <= lanes_max:
            heads, cursor = store.heads(namespace_id, cursor, 0)
            for lane in heads:
                if lane.namespace_id != namespace_id:
                    begin = lane.latest_seq if after == LATEST else after
                    begin = positions.get(lane.namespace_id, begin)
                    found.append((lane.namespace_id, namespace_id, begin))
            if not cursor:
                break
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingConfig:
    """Bounds of a subscription."""

    lanes_max: int = 4096
    """Lanes that one subscriber follows."""
    gap_wait_ms: int = 5_000
    """How long a missing message is waited for when the subscriber does not say."""
    notes_max: int = NOTES_MAX
    """Notes that wait for one subscriber; beyond it every lane is read again."""


class StoreFollowing:
    """Tells subscribers in threads of their own; `luxrelay.sync.rpc` serves it."""

    def __init__(
        self,
        store: RelayStore,
        feed: Feed,
        clock_ms: Callable[[], int],
        config: FollowingConfig | None = None,
        replay: Replay | None = None,
        *,
        in_order: InOrder | None = None,
        carries: Callable[[NamespaceId], bool] = lambda _: True,
    ) -> None:
        """Keep the parts.

        Args:
            store: What is followed.
            feed: Notes what is stored.
            clock_ms: Unix milliseconds.
            config: Bounds.
            replay: Puts what an archive has before a page of the store.
            in_order: Judges for ordered views; None gives none.
            carries: Whether the node takes what comes of a namespace.

        """
        self._in_order = in_order
        self._carries = carries
        self._store = store
        self._feed = feed
        self._clock_ms = clock_ms
        self._config = config or FollowingConfig()
        self._replay = replay

    def follow(
        self, wanted: SubscribeWanted, ended: threading.Event
    ) -> Iterator[Sequence[FollowEvent]]:
        """Yield groups of events until ``ended`` is set; an empty one at least every `BEAT_S`."""
        config = self._config
        wait_ms = config.gap_wait_ms if wanted.gap_wait_ms is None else wanted.gap_wait_ms
        if wanted.ordered and self._in_order is None:
            raise SyncArgumentError(
                "no ordered view is given here", where="SubscribeRequest.ordered"
            )
        subscription = Subscription(
            lanes_max=config.lanes_max,
            gap_wait_ms=wait_ms,
            begin=wanted.positions,
            in_order=self._in_order if wanted.ordered else None,
            wish=_wish(wanted),
            expects=self._feed.expects,
        )
        subscription.not_carried = frozenset(
            each for each in wanted.namespaces if not self._carries(each)
        )
        notes = _Notes(config.notes_max)
        # Followed before anything is read: what is stored from here on is noted.
        self._feed.follow(wanted.namespaces, notes)
        try:
            begin = LATEST if wanted.after is None else wanted.after
            for namespace_id, parent, after in beginnings(
                self._store,
                dict.fromkeys(wanted.namespaces, begin),
                wanted.positions,
                lanes=wanted.lanes,
                lanes_max=config.lanes_max,
            ):
                subscription.follow(namespace_id, parent, after)
            while not ended.is_set():
                if wanted.lanes and subscription.next_search():
                    heads = beginnings(
                        self._store,
                        dict.fromkeys(wanted.namespaces, 0),
                        {},
                        lanes=True,
                        lanes_max=config.lanes_max,
                    )
                    subscription.found((each, parent) for each, parent, _ in heads)
                yield from self._told(subscription)
                yield from self._wait(subscription, notes, wanted, ended)
        finally:
            self._feed.leave(wanted.namespaces, notes)

    def _told(self, subscription: Subscription) -> Iterator[list[FollowEvent]]:
        while (read := subscription.next_read(time.monotonic())) is not None:
            subscription.page(read, self._page(read), time.monotonic(), self._clock_ms())
            if events := [_event(tell) for tell in subscription.drain()]:
                yield events
        more = True
        while more and (late := subscription.next_late()):
            found, missing = self._store.get_contents(late, self._clock_ms())
            self._store.mark_regressed(found)
            more = subscription.late(late, found, missing)
            if events := [_event(tell) for tell in subscription.drain()]:
                yield events
        if events := [_event(tell) for tell in subscription.drain()]:
            yield events

    def _wait(
        self,
        subscription: Subscription,
        notes: _Notes,
        wanted: SubscribeWanted,
        ended: threading.Event,
    ) -> Iterator[list[FollowEvent]]:
        """Return when there is something to read or the subscriber has left."""
        beat_at = time.monotonic() + BEAT_S
        while not ended.is_set():
            now = time.monotonic()
            if now >= beat_at:
                yield []
                beat_at = now + BEAT_S
            wake_at = subscription.wake_at()
            until = min(beat_at, now + _LOOK_S, beat_at if wake_at is None else wake_at)
            everywhere, some = notes.take(until - now)
            if everywhere:
                subscription.look_everywhere()
            for note in some:
                if note.blob:
                    subscription.blob_came(note.content_id)
                elif wanted.lanes or note.namespace_id in wanted.namespaces:
                    subscription.note(note.namespace_id, note.parent, note.seq, note.content_id)
            due = wake_at is not None and time.monotonic() >= wake_at
            if due:
                subscription.wake(time.monotonic())
            if everywhere or some or due:
                return

    def _page(self, read: Read) -> ReadPage:
        query = NamespaceQuery(
            namespace_id=read.namespace_id,
            from_seq=read.after,
            to_seq=read.to,
            limit=min(read.limit or PAGE_MESSAGES, PAGE_MESSAGES),
            max_bytes=PAGE_BYTES,
            cursor=read.cursor,
        )
        page = self._store.query(query, self._clock_ms())
        self._store.mark_regressed(page.messages)
        # The head after the page: what expired between the two was in the page or is below it.
        head = self._store.head(read.namespace_id)
        if self._replay is not None:
            answer = self._replay(query, page, head)
        else:
            answer = ReadPage(
                page.messages, page.next_cursor, head.floor, held=max(head.latest_seq, head.floor)
            )
        if read.ordered:
            before = self._store.predecessor(read.namespace_id, read.after + 1)
            answer = answer._replace(before=before)
        return answer


class _Notes:
    """What was stored and not yet looked at, for one thread."""

    def __init__(self, notes_max: int) -> None:
        self._max = notes_max
        self._some: list[Note] = []
        self._everywhere = False
        self._changed = threading.Condition()

    def note(self, note: Note) -> None:
        """Learn of one message; called on the loop."""
        with self._changed:
            if len(self._some) < self._max:
                self._some.append(note)
            else:
                self._everywhere = True
            self._changed.notify()

    def look_everywhere(self) -> None:
        """Learn that notes were dropped; called on the loop."""
        with self._changed:
            self._everywhere = True
            self._changed.notify()

    def take(self, seconds: float) -> tuple[bool, list[Note]]:
        """Return whether to look everywhere, and the notes, once there are any or time is up."""
        with self._changed:
            if not self._some and not self._everywhere:
                self._changed.wait(max(0.0, seconds))
            some, everywhere = self._some, self._everywhere
            self._some, self._everywhere = [], False
            return everywhere, some


def _wish(wanted: SubscribeWanted) -> Wish:
    try:
        senders = frozenset(map(sender_of_any, wanted.senders))
    except BusArgumentError as error:
        raise SyncArgumentError(error.what, where="SubscribeRequest.senders") from error
    return Wish(senders=senders, max_rate=wanted.max_rate, blobs=Blobs(wanted.blobs))


def _event(tell: Tell) -> FollowEvent:
    match tell:
        case Told(message, parent, late, completes):
            wire = WireMessage(
                message.header_bytes,
                message.blob or b"",
                message.received_at,
                message.expires_at,
                message.finality,
                message.sidecar_len,
            )
            return Followed(wire, parent, late, message.regressed, completes)
        case TellGap(namespace_id, first, last, reason):
            coming = reason == "coming"
            expired = not coming and reason != "missing"
            return FollowedGap(namespace_id, first, last, expired, coming)
        case TellLive(positions, not_carried):
            return FollowedLive(dict(positions), not_carried)
        case TellDropped(lanes, late_ones, blobs):
            return FollowedDropped(lanes, late_ones, blobs)
        case TellBeyond(namespace_id, held, position):
            return FollowedBeyond(namespace_id, held, position)
        case TellRefused(namespace_id, seq, content_id, code, reason):
            return FollowedRefused(namespace_id, seq, content_id, code, reason)
        case TellWaiting(namespace_id, first, last):
            return FollowedWaiting(namespace_id, first, last)
