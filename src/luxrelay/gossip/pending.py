"""The messages that wait for a verdict: known by their bytes, bounded three ways.

Source: LP-6420 §4.2; decisions G1, G20.
"""

from __future__ import annotations

from luxrelay.gossip.announcements import BlobAvailabilityHint
from luxrelay.gossip.cache import EnvelopeDigest, Slot
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
