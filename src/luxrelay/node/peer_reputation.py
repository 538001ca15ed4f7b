"""Reputation of sync peers: forged and withheld messages, forgiven over time.

A peer that lies is named in the log by whoever keeps this, and asked last; it is asked still,
because it may hold what nobody else has, and what it sends is verified anyway.

Source: 21-27, 21-28; decision P26.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from luxrelay.conduct import Cause
from luxrelay.sync.report import PeerReport

HALF_LIFE_MS: Final = 3_600_000
"""A penalty is half as much after an hour."""
FORGED: Final = 10.0
"""For an invalid message."""
UNUSABLE: Final = 5.0
"""For an answer that breaks the protocol."""
DAMAGED: Final = 1.0
"""For either over a connection without authentication, where the network may have done it (G38)."""
WITHHELD: Final = 1.0
"""For a sequence that was claimed and not delivered."""
OWED_MIN: Final = 0.1
"""Less than this is forgiven."""
PENALTY_MAX: Final = 10_000.0
"""The most a peer can owe, so that it comes back within half a day of good conduct."""
PEERS_MAX: Final = 4096
"""Peers remembered; beyond it the one that has been in order for longest is forgotten."""


class PeerStanding:
    """Penalties by peer: sync peers by address, gossip peers by peer id.

    Every ``now_ms`` is of a clock that nobody sets: a wall clock that jumps would forgive all, or
    nothing for as long as it is behind.
    """

    def __init__(self) -> None:
        """Start without a penalty."""
        self._penalties: dict[str, tuple[float, int]] = {}

    def note(self, report: PeerReport, now_ms: int, cause: Cause = Cause.ANSWER_FORGED) -> float:
        """Take in what a peer did; return what that added.

        Args:
            report: What it did.
            now_ms: Now.
            cause: Whether what does not hold is its own work or may be the network's.

        """
        forged, unusable = (FORGED, UNUSABLE) if cause.misconduct else (DAMAGED, DAMAGED)
        added = forged * report.rejected + unusable * report.unusable + WITHHELD * report.withheld
        if added:
            total = min(PENALTY_MAX, self.penalty(report.peer, now_ms) + added)
            self._penalties.pop(report.peer, None)
            self._penalties[report.peer] = (total, now_ms)
            if len(self._penalties) > PEERS_MAX:
                del self._penalties[next(iter(self._penalties))]
        return added

    def penalty(self, peer: str, now_ms: int) -> float:
        """Return what a peer owes now; 0 for one in good standing."""
        total, at_ms = self._penalties.get(peer, (0.0, now_ms))
        return total * float(0.5 ** (max(0, now_ms - at_ms) / HALF_LIFE_MS))

    def owing(self, now_ms: int) -> dict[str, float]:
        """Return the peers that owe anything, and what."""
        owed = {peer: self.penalty(peer, now_ms) for peer in self._penalties}
        return {peer: penalty for peer, penalty in owed.items() if penalty >= OWED_MIN}

    def order(self, peers: Sequence[str], now_ms: int) -> list[str]:
        """Return the peers, those in the best standing first, else as they were given."""
        return sorted(peers, key=lambda peer: round(self.penalty(peer, now_ms)))
