"""Everything the router remembers of messages, with its bounds from `GossipParams`.

Which of our own messages peers have shown to hold, by sending or announcing them to us.

An IHAVE names a slot, so a peer that holds another candidate of it (G1) counts as well.

Blob hints by slot: one that says something new is let through under the same id (G3).

The id of a hint is its commitment's (LP-6420 §4.3), so a later hint, with other providers or a
longer life, would look like a copy. It is news when its expiry is a minute later than the latest
one known, or when it names a provider that no accepted one named.

Bounds: a slot takes renewals_max hints until it is forgotten, hint_ttl_s after its first one, so
that signed hints of ever new identities cannot travel without end.

The messages that wait for a verdict: known by their bytes, bounded three ways.

Message caches: messages to send again, known ids, failed contents.

Source: LP-6420 §4.1, §4.3; user-05, user-07; LP-6420 §4.2; LP-6420 §3.2, §4.3; 20-24; decisions G1,
G2, G3, G4, G20; decisions G1, G2, G3, G15.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import ClassVar, Final, NewType

from luxrelay.bus import MessageId, VerdictKind
from luxrelay.gossip.actions import Echo
from luxrelay.gossip.announcements import BlobAvailabilityHint
from luxrelay.gossip.envelope import MessageType, PeerId
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.rpc import respell_message

EnvelopeDigest = NewType("EnvelopeDigest", bytes)
"""SHA-256 over the bytes of an envelope; never leaves the process."""

Slot = tuple[str, MessageId]
"""Canonical topic and message id: the key of what is known (G2)."""


class SeenSet:
    """Accepted messages by slot, each slot with up to ``digests_max`` distinct envelopes (G1).

    Only accepted messages enter, so a forged one never makes the true one a duplicate. A slot is
    forgotten ``ttl_s`` after its first message or the last copy of an accepted one, so that bytes
    which keep coming are accepted once (G14). Other envelopes prolong nothing, and a full slot is
    not prolonged: nobody can keep others out of it for longer than ``ttl_s``.
    """

    __slots__ = ("_digests", "_digests_max", "_entries_max", "_slots", "_ttl_s")

    FRESH: ClassVar[float] = 0.75
    """Part of its time that a slot must have left for a copy to change nothing: most copies come
    within seconds and cost no more than a look."""

    def __init__(self, *, ttl_s: float, entries_max: int, digests_max: int) -> None:
        self._ttl_s = ttl_s
        self._entries_max = entries_max
        self._digests_max = digests_max
        # Flat tuples of numbers and bytes: the garbage collector does not have to visit them.
        self._slots: dict[Slot, tuple[float, tuple[EnvelopeDigest, ...]]] = {}
        self._digests: dict[EnvelopeDigest, Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def has(self, slot: Slot) -> bool:
        """Return True when a message of this slot was accepted."""
        return slot in self._slots

    def has_digest(self, digest: EnvelopeDigest) -> bool:
        """Return True when exactly these bytes were accepted."""
        return digest in self._digests

    def full(self, slot: Slot) -> bool:
        """Return True when the slot takes no further envelope."""
        entry = self._slots.get(slot)
        return entry is not None and len(entry[1]) >= self._digests_max

    def count(self, slot: Slot) -> int:
        """Return how many messages of this slot were accepted."""
        entry = self._slots.get(slot)
        return 0 if entry is None else len(entry[1])

    def add(self, slot: Slot, digest: EnvelopeDigest, now: float) -> bool:
        """Note an accepted message; False when it is known or its slot is full."""
        if digest in self._digests:
            return False
        entry = self._slots.get(slot)
        if entry is None:
            if len(self._slots) >= self._entries_max:
                self._forget(next(iter(self._slots)))
            self._slots[slot] = (now + self._ttl_s, (digest,))
        elif len(entry[1]) >= self._digests_max:
            return False
        else:
            self._slots[slot] = (entry[0], (*entry[1], digest))
        self._digests[digest] = slot
        return True

    def sighted(self, digest: EnvelopeDigest, now: float) -> Slot | None:
        """Note a copy of accepted bytes; the slot that is remembered for longer, or None."""
        slot = self._digests.get(digest)
        if slot is None:
            return None
        expires, digests = self._slots[slot]
        if expires - now > self.FRESH * self._ttl_s or len(digests) >= self._digests_max:
            return None
        del self._slots[slot]  # entries stand in order of expiry
        self._slots[slot] = (now + self._ttl_s, digests)
        return slot

    def expire(self, now: float) -> None:
        """Forget what is older than its time; entries stand in order of age."""
        while self._slots:
            slot, (expires, _) = next(iter(self._slots.items()))
            if expires > now:
                return
            self._forget(slot)

    def _forget(self, slot: Slot) -> None:
        _, digests = self._slots.pop(slot)
        for digest in digests:
            del self._digests[digest]


class OnceSet:
    """Message ids handed to the application, each once for ``ttl_s`` from its last sight (G2)."""

    __slots__ = ("_entries", "_entries_max", "_ttl_s")

    def __init__(self, *, ttl_s: float, entries_max: int) -> None:
        self._ttl_s = ttl_s
        self._entries_max = entries_max
        self._entries: dict[MessageId, float] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._entries

    def add(self, message_id: MessageId, now: float) -> bool:
        """Note an id; False when it is known."""
        if message_id in self._entries:
            return False
        if len(self._entries) >= self._entries_max:
            del self._entries[next(iter(self._entries))]
        self._entries[message_id] = now + self._ttl_s
        return True

    def sighted(self, message_id: MessageId, now: float) -> None:
        """Remember an id that is known for ``ttl_s`` from now."""
        if self._entries.pop(message_id, None) is not None:
            self._entries[message_id] = now + self._ttl_s

    def expire(self, now: float) -> None:
        """Forget what is older than its time; entries stand in order of age."""
        while self._entries:
            oldest = next(iter(self._entries))
            if self._entries[oldest] > now:
                return
            del self._entries[oldest]


class FailureCache:
    """Digests of messages that were not accepted, for a short time and apart from ids (G1)."""

    __slots__ = ("_entries", "_entries_max")

    def __init__(self, *, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: dict[EnvelopeDigest, tuple[float, VerdictKind]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, digest: EnvelopeDigest, kind: VerdictKind, until: float) -> None:
        """Note a failed message until a time."""
        if len(self._entries) >= self._entries_max and digest not in self._entries:
            del self._entries[next(iter(self._entries))]
        self._entries[digest] = (until, kind)

    def verdict(self, digest: EnvelopeDigest, now: float) -> VerdictKind | None:
        """Return how these bytes failed, or None when they are not known to."""
        entry = self._entries.get(digest)
        return entry[1] if entry is not None and entry[0] > now else None

    def expire(self, now: float) -> None:
        """Forget what is over; times differ by kind, so all are looked at."""
        over = [digest for digest, (until, _) in self._entries.items() if until <= now]
        for digest in over:
            del self._entries[digest]


class CachedMessage:
    """A message that can be sent again."""

    __slots__ = ("_alias", "_fragment", "_sent", "beside", "message_id", "size", "topic")

    def __init__(
        self, topic: str, message_id: MessageId, fragment: bytes, beside: str = ""
    ) -> None:
        self.topic = topic
        # The topic on which those that follow it get the same header from us (G34).
        self.beside = beside
        self.message_id = message_id
        self.size = len(fragment)
        self._fragment = fragment
        # Both are rare, and made when they are needed.
        self._alias: bytes | None = None
        self._sent: dict[PeerId, int] | None = None

    def wire(self, spelled: str) -> bytes:
        """Return it encoded under a spelling of its topic; a topic has at most two (G5)."""
        if spelled == self.topic:
            return self._fragment
        if self._alias is None:
            self._alias = respell_message(self._fragment, spelled)
        return self._alias

    def sent_to(self, peer: PeerId) -> int:
        """Return how often it was sent to ``peer`` on request."""
        return 0 if self._sent is None else self._sent.get(peer, 0)

    def count_sent(self, peer: PeerId) -> None:
        """Count that it was sent on request; forgotten with the message itself."""
        if self._sent is None:
            self._sent = {}
        self._sent[peer] = self._sent.get(peer, 0) + 1


class MessageCache:
    """The messages of the last ``history_length`` heartbeats, bounded in number and bytes."""

    __slots__ = ("_by_id", "_bytes", "_bytes_max", "_count", "_gossip", "_messages_max", "_windows")

    def __init__(self, *, length: int, gossip: int, messages_max: int, bytes_max: int) -> None:
        self._gossip = gossip
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._windows: deque[deque[CachedMessage]] = deque(deque() for _ in range(length))
        self._by_id: dict[MessageId, list[CachedMessage]] = {}
        self._count = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """Bytes of the messages held."""
        return self._bytes

    def put(self, message: CachedMessage) -> None:
        """Hold a message; the oldest ones make room."""
        self._windows[0].append(message)
        self._by_id.setdefault(message.message_id, []).append(message)
        self._count += 1
        self._bytes += message.size
        while self._count > self._messages_max or self._bytes > self._bytes_max:
            self._evict_oldest()

    def get(self, message_id: MessageId) -> list[CachedMessage]:
        """Return the messages of an id: one a topic, more when the slot is contended."""
        return self._by_id.get(message_id, [])

    def recent(self) -> dict[tuple[str, str], list[MessageId]]:
        """Return the distinct ids of the last ``history_gossip`` heartbeats.

        By topic, and by the one beside it on which followers of both get the same header.
        """
        found: dict[tuple[str, str], dict[MessageId, None]] = {}
        for window in list(self._windows)[: self._gossip]:
            for message in window:
                found.setdefault((message.topic, message.beside), {})[message.message_id] = None
        return {topics: list(ids) for topics, ids in found.items()}

    def newest(self) -> Iterator[CachedMessage]:
        """Yield the messages of the last ``history_gossip`` heartbeats, the newest first."""
        for window in list(self._windows)[: self._gossip]:
            yield from reversed(window)

    def shift(self) -> None:
        """Begin a new heartbeat's window and let the oldest go."""
        for message in self._windows.pop():
            self._forget(message)
        self._windows.appendleft(deque())

    def _evict_oldest(self) -> None:
        for window in reversed(self._windows):
            if window:
                self._forget(window.popleft())
                return

    def _forget(self, message: CachedMessage) -> None:
        messages = self._by_id[message.message_id]
        messages.remove(message)
        if not messages:
            del self._by_id[message.message_id]
        self._count -= 1
        self._bytes -= message.size


class Pending:
    """A message in validation."""

    __slots__ = (
        "data",
        "deadline",
        "digest",
        "hint",
        "holders",
        "kind",
        "senders",
        "since",
        "slot",
        "token",
    )

    def __init__(
        self,
        *,
        token: int,
        slot: Slot,
        digest: EnvelopeDigest,
        kind: MessageType,
        data: bytes,
        since: float,
        deadline: float,
    ) -> None:
        self.token = token
        self.slot = slot
        self.digest = digest
        self.kind = kind
        self.data = data
        self.since = since
        """When it came."""
        self.deadline = deadline
        self.hint: BlobAvailabilityHint | None = None
        """What it says, when it is a hint."""
        self.senders: dict[PeerId, None] = {}
        """Who sent exactly these bytes, the first one first; at most ``peers_max`` at a time."""
        self.holders: dict[PeerId, None] = {}
        """Who announced the id; they need not be sent the message either."""

    def add_sender(self, peer: PeerId, peers_max: int) -> None:
        """Note another peer that sent these bytes, up to ``peers_max``."""
        if len(self.senders) < peers_max:
            self.senders[peer] = None


class PendingTable:
    """All messages in validation, by token, by digest and by slot."""

    __slots__ = ("_by_digest", "_by_peer", "_by_slot", "_by_token", "_bytes", "_next", "_params")

    def __init__(self, params: GossipParams) -> None:
        self._params = params
        self._by_token: dict[int, Pending] = {}
        self._by_digest: dict[EnvelopeDigest, Pending] = {}
        self._by_slot: dict[Slot, dict[int, Pending]] = {}
        self._by_peer: dict[PeerId, int] = {}
        self._bytes = 0
        self._next = 1

    def __len__(self) -> int:
        return len(self._by_token)

    @property
    def size_bytes(self) -> int:
        """Bytes of the messages held."""
        return self._bytes

    def by_digest(self, digest: EnvelopeDigest) -> Pending | None:
        """Return the message with exactly these bytes."""
        return self._by_digest.get(digest)

    def room(self, peer: PeerId, size: int) -> bool:
        """Return True when one more message of ``size`` bytes from ``peer`` may wait."""
        params = self._params
        return (
            len(self._by_token) < params.pending_max
            and self._bytes + size <= params.pending_bytes_max
            and self._by_peer.get(peer, 0) < params.pending_peer_max
        )

    def add(
        self,
        peer: PeerId,
        *,
        slot: Slot,
        digest: EnvelopeDigest,
        kind: MessageType,
        data: bytes,
        now: float,
    ) -> Pending:
        """Let a message wait that ``peer`` brought; the caller has looked at `room`."""
        pending = Pending(
            token=self._next,
            slot=slot,
            digest=digest,
            kind=kind,
            data=data,
            since=now,
            deadline=now + self._params.validation_timeout_s,
        )
        pending.senders[peer] = None
        self._next += 1
        self._by_token[pending.token] = pending
        self._by_digest[digest] = pending
        self._by_slot.setdefault(slot, {})[pending.token] = pending
        self._by_peer[peer] = self._by_peer.get(peer, 0) + 1
        self._bytes += len(data)
        return pending

    def of_peer(self, peer: PeerId) -> int:
        """Return how many messages wait that ``peer`` brought first."""
        return self._by_peer.get(peer, 0)

    def note_holder(self, slot: Slot, peer: PeerId) -> bool:
        """Note that ``peer`` has a message of this slot; False when none is in validation."""
        waiting = self._by_slot.get(slot)
        if waiting is None:
            return False
        for pending in waiting.values():
            if len(pending.holders) < self._params.peers_max:
                pending.holders[peer] = None
        return True

    def take(self, token: int) -> Pending | None:
        """Return the message of a token and let it wait no longer."""
        pending = self._by_token.pop(token, None)
        if pending is None:
            return None
        del self._by_digest[pending.digest]
        waiting = self._by_slot[pending.slot]
        del waiting[token]
        if not waiting:
            del self._by_slot[pending.slot]
        source = next(iter(pending.senders))
        self._by_peer[source] -= 1
        if not self._by_peer[source]:
            del self._by_peer[source]
        self._bytes -= len(pending.data)
        return pending

    def postpone(self, seconds: float, now: float) -> None:
        """Give every verdict so much more time, but none more than one that begins now."""
        latest = now + self._params.validation_timeout_s
        for pending in self._by_token.values():
            pending.deadline = min(pending.deadline + seconds, latest)

    def overdue(self, now: float) -> list[int]:
        """Return the tokens whose time is over; they stand in order of age."""
        tokens = []
        for token, pending in self._by_token.items():
            if pending.deadline > now:
                break
            tokens.append(token)
        return tokens


EXPIRY_STEP_MS: Final = 60_000
"""How much later a hint has to expire to be news, milliseconds."""


class HintSet(SeenSet):
    """Accepted hints, and what each slot is known to promise."""

    __slots__ = ("_known",)

    def __init__(self, *, ttl_s: float, entries_max: int, renewals_max: int) -> None:
        super().__init__(ttl_s=ttl_s, entries_max=entries_max, digests_max=renewals_max)
        self._known: dict[Slot, tuple[int, frozenset[bytes]]] = {}

    def news(self, slot: Slot, hint: BlobAvailabilityHint) -> bool:
        """Return True when a hint says what no accepted one of its slot has said."""
        known = self._known.get(slot)
        return (
            known is None
            or hint.expires_at_ms >= known[0] + EXPIRY_STEP_MS
            or not known[1].issuperset(hint.providers)
        )

    def learn(
        self, slot: Slot, digest: EnvelopeDigest, hint: BlobAvailabilityHint, now: float
    ) -> bool:
        """Note an accepted hint; False when its bytes are known or its slot is full."""
        if not self.add(slot, digest, now):
            return False
        expiry_ms, providers = self._known.get(slot, (0, frozenset()))
        self._known[slot] = (
            max(expiry_ms, hint.expires_at_ms),
            providers.union(hint.providers),
        )
        return True

    def _forget(self, slot: Slot) -> None:
        super()._forget(slot)
        self._known.pop(slot, None)


class Echoes:
    """What we published lately, and who has shown it since the last `take`."""

    __slots__ = ("_by_digest", "_by_slot", "_heard", "_published_max")

    def __init__(self, published_max: int) -> None:
        self._published_max = published_max
        self._by_digest: OrderedDict[EnvelopeDigest, Slot] = OrderedDict()
        self._by_slot: dict[Slot, EnvelopeDigest] = {}
        self._heard: dict[PeerId, dict[MessageId, None]] = {}

    def __len__(self) -> int:
        return len(self._by_digest)

    def published(self, slot: Slot, digest: EnvelopeDigest) -> None:
        """Note a message of ours; beyond ``published_max`` the oldest is forgotten."""
        if len(self._by_digest) >= self._published_max:
            oldest, forgotten = self._by_digest.popitem(last=False)
            if self._by_slot.get(forgotten) == oldest:
                del self._by_slot[forgotten]
        self._by_digest[digest] = slot
        self._by_slot[slot] = digest

    def sent(self, digest: EnvelopeDigest, peer: PeerId) -> None:
        """Note that a peer sent these bytes."""
        slot = self._by_digest.get(digest)
        if slot is not None:
            self._heard.setdefault(peer, {})[slot[1]] = None

    def announced(self, slot: Slot, peer: PeerId) -> None:
        """Note that a peer announced a message of this slot."""
        if slot in self._by_slot:
            self._heard.setdefault(peer, {})[slot[1]] = None

    def take(self) -> list[Echo]:
        """Return one action for each peer that showed something since the last call."""
        if not self._heard:
            return []
        heard, self._heard = self._heard, {}
        return [Echo(peer=peer, message_ids=tuple(ids)) for peer, ids in heard.items()]


class Memory:
    """Everything that is remembered of messages."""

    __slots__ = ("cache", "delivered", "echoes", "failures", "hints", "pending", "seen")

    def __init__(self, params: GossipParams) -> None:
        self.cache = MessageCache(
            length=params.history_length,
            gossip=params.history_gossip,
            messages_max=params.cache_messages_max,
            bytes_max=params.cache_bytes_max,
        )
        self.seen = SeenSet(
            ttl_s=params.seen_ttl_s,
            entries_max=params.seen_max,
            digests_max=params.digests_max,
        )
        # Hints are renewed under one id, so they are forgotten sooner (G3).
        self.hints = HintSet(
            ttl_s=params.hint_ttl_s,
            entries_max=params.seen_max,
            renewals_max=params.hint_renewals_max,
        )
        self.delivered = OnceSet(ttl_s=params.seen_ttl_s, entries_max=params.seen_max)
        self.echoes = Echoes(params.published_max)
        self.failures = FailureCache(entries_max=params.failures_max)
        self.pending = PendingTable(params)

    def seen_of(self, kind: MessageType) -> SeenSet:
        """Return the set that remembers accepted messages of a type (G4)."""
        return self.hints if kind is MessageType.BLOB_HINT else self.seen

    def learn(
        self,
        slot: Slot,
        digest: EnvelopeDigest,
        now: float,
        hint: BlobAvailabilityHint | None = None,
    ) -> bool:
        """Note an accepted message; False when its bytes are known or its slot is full."""
        if hint is not None:
            return self.hints.learn(slot, digest, hint, now)
        return self.seen.add(slot, digest, now)

    def has(self, slot: Slot) -> bool:
        """Return True when a message of this slot was accepted, of whatever type."""
        return self.seen.has(slot) or self.hints.has(slot)

    def accepted(self, digest: EnvelopeDigest) -> bool:
        """Return True when exactly these bytes were accepted."""
        return self.seen.has_digest(digest) or self.hints.has_digest(digest)

    def sighted(self, digest: EnvelopeDigest, now: float) -> None:
        """Remember accepted bytes that came again for as long as they keep coming (G14).

        Hints are renewed under one id and are forgotten on time (G3).
        """
        slot = self.seen.sighted(digest, now)
        if slot is not None:
            self.delivered.sighted(slot[1], now)

    def expire(self, now: float) -> None:
        """Forget what is over."""
        self.seen.expire(now)
        self.hints.expire(now)
        self.delivered.expire(now)
        self.failures.expire(now)
