"""Blob hints by slot: one that says something new is let through under the same id (G3).

The id of a hint is its commitment's (LP-6420 §4.3), so a later hint, with other providers or a
longer life, would look like a copy. It is news when its expiry is a minute later than the latest
one known, or when it names a provider that no accepted one named.

Bounds: a slot takes renewals_max hints until it is forgotten, hint_ttl_s after its first one, so
that signed hints of ever new identities cannot travel without end.

Source: LP-6420 §3.2, §4.3; decision G3; 20-24.
"""

from __future__ import annotations

from typing import Final

from luxrelay.gossip.announcements import BlobAvailabilityHint
from luxrelay.gossip.cache import EnvelopeDigest, SeenSet, Slot

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
