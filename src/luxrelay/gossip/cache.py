"""Message caches: messages to send again, known ids, failed contents.

Source: LP-6420 §4.1, §4.3; decisions G1, G2, G3, G15.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar, NewType

from luxrelay.bus import MessageId, VerdictKind
from luxrelay.gossip.identity import PeerId
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

    __slots__ = ("_alias", "_fragment", "_sent", "message_id", "size", "topic")

    def __init__(self, topic: str, message_id: MessageId, fragment: bytes) -> None:
        self.topic = topic
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

    def recent(self) -> dict[str, list[MessageId]]:
        """Return the distinct ids of the last ``history_gossip`` heartbeats by topic."""
        found: dict[str, dict[MessageId, None]] = {}
        for window in list(self._windows)[: self._gossip]:
            for message in window:
                found.setdefault(message.topic, {})[message.message_id] = None
        return {topic: list(ids) for topic, ids in found.items()}

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
