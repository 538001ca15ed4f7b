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

Source: LP-6420 §4.1, §4.3; user-05, user-07; LP-6420 §4.2; LP-6420 §3.2, §4.3; 20-24; decisions G1,
G2, G3, G4, G20.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from luxrelay.bus import MessageId
from luxrelay.gossip.actions import Echo
from luxrelay.gossip.announcements import BlobAvailabilityHint
from luxrelay.gossip.cache import (
    EnvelopeDigest,
    FailureCache,
    MessageCache,
    OnceSet,
    SeenSet,
    Slot,
)
from luxrelay.gossip.envelope import MessageType
from luxrelay.gossip.identity import PeerId
from luxrelay.gossip.params import GossipParams


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
