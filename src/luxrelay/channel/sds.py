"""Scalable data sync: causal order, acknowledgement, retransmission.

Theory of operation
===================

*Decides*: what a message carries beside its content, when it may be delivered, when it is
acknowledged, when it is sent again, when a sync message goes out, what is missing and what is lost.

*Does not know*: segments, encryption, rate limits, the network, the application.

*Machines and their states*: `LocalLog` (delivered and sent), `OutgoingMessages` (unacknowledged,
possibly acknowledged, gone), `Incoming` (waiting; missing, lost), `Repair` (to ask, to answer) and
the `RollingBloom` of what was received. A received content message is new, then waiting or
delivered; a message of ours is in the log at once.

*Inputs and what they may cause*: ``send`` broadcasts. ``dispatched`` starts the timeout.
``receive`` may acknowledge, deliver the message and others that waited for it, and look for what is
missing. ``fetched`` ends a fetch. ``wake`` sends again, gives up, fetches, asks, answers, syncs and
declares lost.

*Timers*: each unacknowledged message, each missing one (fetch, ask, lost), each answer, and two for
sync messages (`SyncPlan`).

*Bounds*: `SdsConfig`; each field names one.

*Deviations from the specification*: a causal history holds the tips of the log and what is to be
acknowledged beside the newest messages (`LocalLog` says why); `causal_history_max` equal to
`causal_history_size` gives the bare protocol. Waiting messages are released when what they wait for
comes, not at the next sweep. A clock from others moves ours by ``clock_ahead_max_ms`` at most. A
filter of another length counts as absent. See also `repair`.

*What else to change when you change this*: ``session.py`` (one branch an action), the model in
``tests/property/test_channel.py``, ``docs/explanation/channel.md``.

The Lamport clock of a participant, tied to the wall clock, and the salt of its message ids.

Both only rise, also over restarts and when the wall clock goes back.

What scalable data sync counts.

Source: SDS; SDS (Lamport clock); docs/explanation/channel.md; decisions C5, C6, C7.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from luxrelay.channel.actions import (
    Acknowledged,
    Action,
    Broadcast,
    DeliverMessage,
    Exhausted,
    Fetch,
    Lost,
    Purpose,
)
from luxrelay.channel.bloom import RollingBloom
from luxrelay.channel.history import LocalLog, LogEntry
from luxrelay.channel.incoming import Incoming, WaitingMessage, in_order
from luxrelay.channel.outgoing import OutgoingMessages
from luxrelay.channel.params import SdsConfig
from luxrelay.channel.repair import Repair
from luxrelay.channel.state import Journal, Row, StateTable
from luxrelay.channel.syncing import SyncPlan
from luxrelay.channel.wire import HistoryEntry, MessageKind, SdsMessage, content_id

if TYPE_CHECKING:
    from random import Random

from dataclasses import dataclass

from luxrelay.channel.wire import LAMPORT_MAX


@dataclass(slots=True)
class SdsStats:
    """What happened, counted since the start."""

    sent: int = 0
    """Content messages made."""
    delivered: int = 0
    """Content messages delivered."""
    duplicate: int = 0
    """Messages received again."""
    own: int = 0
    """Messages of ours that came back."""
    foreign: int = 0
    """Messages of another channel."""
    invalid: int = 0
    """Messages without an id or a sender."""
    stale: int = 0
    """Messages older than the log reaches."""
    refused: int = 0
    """Messages that did not fit into the incoming buffer."""
    retransmissions: int = 0
    """Content messages sent again."""
    syncs: int = 0
    """Sync messages made."""
    answers: int = 0
    """Messages of the log sent again because somebody asked."""
    lost: int = 0
    """Messages given up as lost."""
    filters_ignored: int = 0
    """Bloom filters of another length."""


_KEY: Final = b"clock"


class LamportClock:
    """Milliseconds, or more when more happened.

    Args:
        ahead_max_ms: How far ahead of the wall clock others may move it.
        journal: Where changes are written down.
        now_ms: Unix milliseconds; the clock begins here.

    """

    def __init__(self, ahead_max_ms: int, journal: Journal, now_ms: int) -> None:
        self._ahead_max_ms = ahead_max_ms
        self._journal = journal
        self._salt = 0
        self.value = now_ms
        """The clock."""

    def tick(self, now_ms: int) -> int:
        """Return the clock of a new message of ours."""
        self.value = min(max(now_ms, self.value + 1), LAMPORT_MAX)
        self._save()
        return self.value

    def adopt(self, clock: int, now_ms: int) -> int:
        """Move to a clock that was received, within reason; return what of it is believed."""
        clock = min(clock, now_ms + self._ahead_max_ms)
        if self.value < clock:
            self.value = clock
            self._save()
        return clock

    def salt(self, now_ms: int) -> int:
        """Return a salt that no message of ours had: Unix nanoseconds, or a little more."""
        self._salt = max(now_ms * 1_000_000, self._salt + 1)
        return self._salt

    def restore(self, row: Row) -> None:
        """Go on from what was kept; other rows are not looked at."""
        if row.table is StateTable.META and row.key == _KEY and row.value is not None:
            self.value = max(self.value, int.from_bytes(row.value[:8], "big"))
            self._salt = int.from_bytes(row.value[8:], "big")

    def _save(self) -> None:
        value = self.value.to_bytes(8, "big") + self._salt.to_bytes(16, "big")
        self._journal.put(StateTable.META, _KEY, value)


_FETCH_AFTER_S: Final = 0.25
"""Grace for a message that is merely late, before a store is asked."""


class Sds:
    """One participant in one channel.

    The driver's contract: feed inputs; after each, `drain` and do the actions in order; sleep
    until `wake_at`; `wake`; never call the machine from inside one of its own actions. Before
    the actions of a step take effect, what the journal holds is made durable.

    Args:
        channel_id: The channel.
        sender_id: Who we are; unique in the channel and kept between sessions.
        config: Times and bounds.
        journal: Where changes are written down.
        rng: Chance for back-off and the ids of sync messages.
        now: Monotonic seconds.
        now_ms: Unix milliseconds; the clock begins here.

    """

    def __init__(
        self,
        channel_id: str,
        sender_id: str,
        config: SdsConfig,
        journal: Journal,
        rng: Random,
        *,
        now: float,
        now_ms: int,
    ) -> None:
        self._channel = channel_id
        self._own = sender_id
        self._config = config
        self._journal = journal
        self._rng = rng
        self._clock = LamportClock(config.clock_ahead_max_ms, journal, now_ms)
        self._bloom = (
            RollingBloom(config.bloom_capacity, config.bloom_error_rate)
            if config.bloom_capacity
            else None
        )
        self._outgoing = OutgoingMessages(config, journal)
        self._log = LocalLog(config, journal, self._outgoing.__contains__)
        self._incoming = Incoming(config, journal)
        self._repair = Repair(sender_id, config.repair, journal)
        self._plan = SyncPlan(config, self._log, rng, now)
        self._actions: list[Action] = []
        self.stats = SdsStats()

    # Inputs

    def send(self, content: bytes, now: float, now_ms: int) -> str:
        """Make a content message, keep it until it is acknowledged, and return its id.

        Args:
            content: 1 byte or more.
            now: Monotonic seconds.
            now_ms: Unix milliseconds.

        """
        assert content
        name = content_id(self._own, self._clock.salt(now_ms), content)
        clock = self._clock.tick(now_ms)
        names = self._log.ordered(self._plan.names(content=True))
        data = SdsMessage(
            sender_id=self._own,
            message_id=name,
            channel_id=self._channel,
            lamport_timestamp=clock,
            bloom_filter=self._filter(),
            repair_request=self._repair.due_requests(now),
            content=content,
        ).encode([entry.wire() for entry in names])
        if self._bloom is not None:
            marks = self._bloom.marks(name)
            self._bloom.add(name)
        else:
            marks = []
        self._outgoing.add(name, len(data), marks)
        entry = LogEntry(name, clock, self._own, tuple(one.message_id for one in names))
        self._log.hold(entry, data)
        self.stats.sent += 1
        self._actions.append(Broadcast(name, data, Purpose.FIRST))
        return name

    def send_ephemeral(self, content: bytes, now_ms: int) -> str:
        """Make a message that nobody keeps, orders or acknowledges, and return its id."""
        assert content
        name = content_id(self._own, self._clock.salt(now_ms), content)
        data = SdsMessage(
            sender_id=self._own, message_id=name, channel_id=self._channel, content=content
        ).encode()
        self._actions.append(Broadcast(name, data, Purpose.EPHEMERAL))
        return name

    def dispatched(self, name: str, hint: bytes, now: float) -> None:
        """Note that a content message has gone out, and under which name a store has it."""
        self._log.publish(name, hint)
        self._outgoing.dispatched(name, now)
        entry = self._log.get(name)
        if entry is not None:
            self._plan.named(entry.names)

    def dispatch_failed(self, name: str, now: float) -> None:
        """Note that a transmission was not taken: it counts, and is repeated at the timeout."""
        self._outgoing.dispatched(name, now)

    def abandon(self, name: str) -> None:
        """Give up a message of ours; no action follows, and those who ask for it may have it."""
        self._outgoing.forget(name)
        self._log.publish(name, b"")

    def receive(
        self,
        message: SdsMessage,
        data: bytes,
        hint: bytes,
        now: float,
        now_ms: int,
        *,
        fetched: bool = False,
    ) -> None:
        """Take a message from the network or a store.

        Args:
            message: The decoded message.
            data: Its bytes, kept to answer repair requests.
            hint: The name under which a store has it; may be empty.
            now: Monotonic seconds.
            now_ms: Unix milliseconds.
            fetched: It came from a store, and what it depends on may be fetched at once.

        """
        if message.sender_id == self._own:
            self.stats.own += 1
            if self._incoming.wanted(message.message_id):
                self._release(self._incoming.met(message.message_id), now, now_ms)
            return
        if message.channel_id != self._channel:
            self.stats.foreign += 1
            return
        if not message.message_id or not message.sender_id:
            self.stats.invalid += 1
            return
        kind = message.kind
        if kind is MessageKind.EPHEMERAL:
            self._receive_ephemeral(message)
            return
        self._repair.arrived(message.message_id)
        if kind is MessageKind.CONTENT and self._seen(message, now, now_ms):
            return
        self._repair.heard(message.repair_request, self._log.can_answer, now, now_ms)
        self._review(message)
        if kind is MessageKind.CONTENT:
            waiting = WaitingMessage(message, data, hint, set(), [])
            self._receive_content(waiting, now, now_ms, fetched)
        else:
            for entry in self._unmet(message):
                self._miss(entry, now, now_ms, fetched)
        self._plan.heard(message, now)

    def fetched(self, name: str, now: float) -> None:
        """Note that a fetch has ended, whatever it brought."""
        self._incoming.fetched(name, now)

    def wake(self, now: float, now_ms: int) -> None:
        """Do what is due."""
        again, exhausted = self._outgoing.due(now)
        for name, attempt in again:
            self._again(name, attempt)
        self._actions.extend(Exhausted(name) for name in exhausted)
        for entry, free in self._incoming.lose(now):
            self.stats.lost += 1
            self._repair.given_up(entry.message_id)
            self._actions.append(Lost(entry.message_id, entry.sender_id or ""))
            self._release(free, now, now_ms)
        self._actions.extend(Fetch(entry) for entry in self._incoming.due_fetches(now))
        self._ask_anew(now, now_ms)
        for name in self._repair.due_answers(now):
            body = self._log.body(name)
            if body is not None:
                self.stats.answers += 1
                self._actions.append(Broadcast(name, body, Purpose.ANSWER))
        ask = self._repair.request_at()
        if self._plan.due(now) or (ask is not None and ask <= now):
            self._sync(now, now_ms)

    def wake_at(self) -> float:
        """Return when `wake` has something to do."""
        times = (
            self._plan.wake_at(),
            self._outgoing.wake_at(),
            self._incoming.wake_at(),
            self._repair.request_at(),
            self._repair.answer_at(),
        )
        return min(at for at in times if at is not None)

    def drain(self) -> list[Action]:
        """Return what is to be done, in order."""
        actions, self._actions = self._actions, []
        return actions

    # Queries

    @property
    def clock(self) -> int:
        """The Lamport clock."""
        return self._clock.value

    @property
    def unacknowledged(self) -> int:
        """Messages of ours without an acknowledgement."""
        return len(self._outgoing)

    @property
    def waiting(self) -> int:
        """Received messages that wait for missing ones."""
        return len(self._incoming)

    @property
    def missing(self) -> list[str]:
        """Ids that others named and nobody has sent us."""
        return list(self._incoming.missing)

    @property
    def log(self) -> LocalLog:
        """Delivered and sent messages; to be read only."""
        return self._log

    @property
    def retransmissions_max(self) -> int:
        """How often a message is sent again."""
        return self._config.max_retransmissions

    def awaits(self, name: str) -> bool:
        """Return whether a message of ours still needs an acknowledgement."""
        return name in self._outgoing

    def room_for(self, messages: int, size: int) -> bool:
        """Return whether `send` may be called so often with so many bytes in all."""
        return self._outgoing.room_for(messages, size)

    # Restoring

    def restore(self, rows: list[Row], now: float, now_ms: int) -> None:
        """Begin from what was kept: what is unacknowledged is sent again at once.

        Args:
            rows: Rows of this room's tables; others are not looked at.
            now: Monotonic seconds.
            now_ms: Unix milliseconds.

        """
        self._log.restore(row for row in rows if row.table in {StateTable.LOG, StateTable.BODIES})
        self._incoming.restore_lost(rows)
        outgoing = []
        for row in rows:
            assert row.value is not None
            self._clock.restore(row)
            if row.table is StateTable.META and row.key == b"floor":
                self._log.floor = (int.from_bytes(row.value[:8], "big"), row.value[8:].decode())
            elif row.table is StateTable.OUTGOING:
                outgoing.append(row)
        waiting = self._incoming.restore(rows, self._unmet, now)
        if self._bloom is not None:
            for name in (*self._log.newest(self._bloom.capacity), *waiting):
                self._bloom.add(name)
        missing = {name: one.entry for name, one in self._incoming.missing.items()}
        self._repair.restore(rows, missing, now, now_ms)
        self._restore_outgoing(outgoing)
        self._plan.begin(now)

    def _restore_outgoing(self, rows: list[Row]) -> None:
        """Send again what is unacknowledged, oldest first."""
        by_name = {row.key.decode(): row for row in rows}
        for name in (*self._log.ids(), *self._log.pending):
            row = by_name.get(name)
            body = self._log.body(name)
            if row is not None and body is not None:
                marks = self._bloom.marks(name) if self._bloom is not None else []
                attempt = self._outgoing.restore(row, len(body), marks)
                purpose = Purpose.FIRST if name in self._log.pending else Purpose.AGAIN
                self._actions.append(Broadcast(name, body, purpose, attempt))

    # Receiving

    def _receive_ephemeral(self, message: SdsMessage) -> None:
        if self._incoming.seen_lately(message.message_id):
            self.stats.duplicate += 1
            return
        name, content = message.message_id, message.content
        assert content
        self._actions.append(DeliverMessage(name, message.sender_id, content, ephemeral=True))

    def _seen(self, message: SdsMessage, now: float, now_ms: int) -> bool:
        """Return whether a content message need not be looked at again."""
        name = message.message_id
        if name in self._log:
            self.stats.duplicate += 1
            self._plan.acknowledge(name, now)
            return True
        if name in self._incoming:
            self.stats.duplicate += 1
            return True
        assert message.lamport_timestamp is not None
        if (message.lamport_timestamp, name) <= self._log.floor:
            self.stats.stale += 1
            self._release(self._incoming.met(name), now, now_ms)
            return True
        return False

    def _receive_content(
        self, waiting: WaitingMessage, now: float, now_ms: int, fetched: bool
    ) -> None:
        """Deliver a new message, or have it wait."""
        message = waiting.message
        entries = self._unmet(message)
        waiting.unmet.update(entry.message_id for entry in entries)
        if entries:
            evicted = self._incoming.add(waiting)
            self._repair.short |= bool(evicted)
            for one in evicted:
                self.stats.refused += 1
                gone = one.message
                if self._incoming.wanted(gone.message_id):
                    entry = HistoryEntry(gone.message_id, one.hint or None, gone.sender_id)
                    self._miss(entry, now, now_ms, fetched)
            if waiting in evicted:
                return
        self._incoming.found(message.message_id)
        if self._bloom is not None:
            self._bloom.add(message.message_id)
        if entries:
            for entry in entries:
                self._miss(entry, now, now_ms, fetched)
        else:
            self._release([waiting], now, now_ms)

    def _release(self, free: list[WaitingMessage], now: float, now_ms: int) -> None:
        """Deliver messages and all that waited for them, in the order of clocks."""
        heap = [(one.message.lamport_timestamp or 0, one.message.message_id, one) for one in free]
        heapq.heapify(heap)
        while heap:
            _, name, waiting = heapq.heappop(heap)
            self._deliver(waiting, now, now_ms)
            for one in in_order(self._incoming.met(name)):
                place = one.message.lamport_timestamp or 0
                heapq.heappush(heap, (place, one.message.message_id, one))

    def _deliver(self, waiting: WaitingMessage, now: float, now_ms: int) -> None:
        message = waiting.message
        assert message.lamport_timestamp is not None
        assert message.content
        clock = self._clock.adopt(message.lamport_timestamp, now_ms)
        self._log.deliver(message, clock, waiting.hint, waiting.data)
        self._incoming.not_lost(message.message_id)
        self._plan.acknowledge(message.message_id, now)
        self.stats.delivered += 1
        self._actions.append(DeliverMessage(message.message_id, message.sender_id, message.content))

    def _unmet(self, message: SdsMessage) -> list[HistoryEntry]:
        """Return what a message depends on and we have not delivered; what is ours never lacks."""
        log, lost, own, itself = self._log, self._incoming.lost, self._own, message.message_id
        return [
            entry
            for entry in message.causal_history
            if entry.message_id not in log
            and entry.message_id not in lost
            and entry.sender_id != own
            and entry.message_id != itself
        ]

    def _miss(self, entry: HistoryEntry, now: float, now_ms: int, fetched: bool) -> None:
        """Look for a message that was named."""
        after = 0.0 if fetched else _FETCH_AFTER_S
        if self._incoming.miss(entry, now, now + after):
            self._repair.missed(entry, now, now_ms)

    def _ask_anew(self, now: float, now_ms: int) -> None:
        """Ask for what was turned away or overlooked, once there is room for it."""
        incoming, repair = self._incoming, self._repair
        missing = len(incoming.missing)
        incoming.look_again(now)
        if len(incoming.missing) > missing or (repair.short and repair.roomy):
            sought = incoming.sought()
            repair.ask_anew(sought, now, now_ms)
            repair.short |= len(sought) < len(incoming.missing)

    # Acknowledging

    def _review(self, message: SdsMessage) -> None:
        """Find out what of ours a message acknowledges, and what of others."""
        acknowledged: list[str] = []
        if len(self._outgoing):
            acknowledged = self._outgoing.acknowledge(
                entry.message_id for entry in message.causal_history
            )
            bloom = message.bloom_filter
            if bloom is not None and self._bloom is not None:
                if len(bloom) == self._bloom.size_bytes:
                    acknowledged += self._outgoing.review(message.sender_id, bloom)
                else:
                    self.stats.filters_ignored += 1
        self._actions.extend(Acknowledged(name) for name in acknowledged)

    def _sync(self, now: float, now_ms: int) -> None:
        """Send what we have and what we miss, without content."""
        names = self._log.ordered(self._plan.names(content=False))
        self._plan.sent((entry.message_id for entry in names), now)
        name = f"sync-{self._rng.getrandbits(64):016x}"
        data = SdsMessage(
            sender_id=self._own,
            message_id=name,
            channel_id=self._channel,
            lamport_timestamp=self._clock.tick(now_ms),
            bloom_filter=self._filter(),
            repair_request=self._repair.due_requests(now),
        ).encode([entry.wire() for entry in names])
        self.stats.syncs += 1
        self._actions.append(Broadcast(name, data, Purpose.SYNC))

    # What serves them

    def _again(self, name: str, attempt: int) -> None:
        body = self._log.body(name)
        assert body is not None, "the bytes of an unacknowledged message are kept"
        self.stats.retransmissions += 1
        self._actions.append(Broadcast(name, body, Purpose.AGAIN, attempt))

    def _filter(self) -> bytes | None:
        return self._bloom.encode() if self._bloom is not None else None
