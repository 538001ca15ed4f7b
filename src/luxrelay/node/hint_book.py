"""Accepted blob hints by provider, until they expire.

Source: LP-6420 §3.2; decisions G3, G10; 20-11.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from luxrelay.gossip import BlobAvailabilityHint, PeerId

BLOBS_MAX: Final = 4096
"""Commitments remembered; beyond it the one whose hint came first is forgotten."""
PROVIDERS_MAX: Final = 16
"""Providers remembered of one blob; beyond it the one named first is forgotten."""


class HintBook:
    """Providers by commitment; any thread may call it."""

    def __init__(self, *, blobs_max: int = BLOBS_MAX, providers_max: int = PROVIDERS_MAX) -> None:
        """Start empty."""
        self._blobs_max = blobs_max
        self._providers_max = providers_max
        self._lock = threading.Lock()
        self._until: OrderedDict[bytes, OrderedDict[PeerId, int]] = OrderedDict()
        self.taken = 0
        """Hints taken since the start."""

    def __len__(self) -> int:
        return len(self._until)

    def take(self, hint: BlobAvailabilityHint) -> None:
        """Remember an accepted hint."""
        with self._lock:
            self.taken += 1
            providers = self._until.setdefault(hint.commitment, OrderedDict())
            for provider in map(PeerId, hint.providers):
                until = max(providers.pop(provider, 0), hint.expires_at_ms)
                providers[provider] = until
                if len(providers) > self._providers_max:
                    providers.popitem(last=False)
            if len(self._until) > self._blobs_max:
                self._until.popitem(last=False)

    def providers(self, commitment: bytes, now_ms: int) -> list[PeerId]:
        """Return who has said, in a hint that is not over, that it has the blob; newest first."""
        with self._lock:
            known = self._until.get(commitment)
            if known is None:
                return []
            for provider in [each for each, until in known.items() if until <= now_ms]:
                del known[provider]
            if not known:
                del self._until[commitment]
            return list(known)[::-1]
