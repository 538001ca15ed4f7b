"""Everything the router remembers of messages, with its bounds from `GossipParams`.

Source: LP-6420 §4.1, §4.3; decisions G1, G2, G3, G4.
"""

from __future__ import annotations

from luxrelay.gossip.announcements import BlobAvailabilityHint
from luxrelay.gossip.cache import (
    EnvelopeDigest,
    FailureCache,
    MessageCache,
    OnceSet,
    SeenSet,
    Slot,
)
from luxrelay.gossip.echoes import Echoes
from luxrelay.gossip.envelope import MessageType
from luxrelay.gossip.hints import HintSet
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.pending import PendingTable


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
