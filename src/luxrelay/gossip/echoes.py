"""Which of our own messages peers have shown to hold, by sending or announcing them to us.

An IHAVE names a slot, so a peer that holds another candidate of it (G1) counts as well.

Source: user-05, user-07; LP-6420 §4.2.
"""

from __future__ import annotations

from collections import OrderedDict

from luxrelay.bus import MessageId
from luxrelay.gossip.actions import Echo
from luxrelay.gossip.cache import EnvelopeDigest, Slot
from luxrelay.gossip.identity import PeerId


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
