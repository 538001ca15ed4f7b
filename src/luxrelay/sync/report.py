"""Outcomes, progress and report of a catch-up.

Source: decisions P24, P25, P26; 21-25 to 21-28.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from luxrelay.bus.header import NamespaceId
from luxrelay.sync.heads import SeqRange


class Outcome(IntEnum):
    """What the sink did with one received message."""

    STORED = 0
    """Valid and new; it is in the store."""
    DUPLICATE = 1
    """Valid and held already, or its slot keeps other candidates (J11)."""
    REJECTED = 2
    """Invalid: malformed, forged, or against the policy; the peer is counted."""
    UNKEPT = 3
    """Valid, but not kept: expired, skipped by a rule, or the store is full. Nobody's fault; not
    asked for again in this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptResult:
    """What became of the messages of one page, and how far the store has come."""

    outcomes: tuple[Outcome, ...]
    """One for each message, in order."""
    contiguous_seq: int
    """The store's contiguous head of the namespace afterwards (P25)."""
    reached: Mapping[NamespaceId, int] = field(default_factory=dict)
    """The same of each namespace, when there are messages of several."""

    def count(self, outcome: Outcome) -> int:
        """Return how many messages had this outcome."""
        return self.outcomes.count(outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpProgress:
    """How far a running catch-up has come."""

    round: int
    """1 for the first listing of heads."""
    pages: int
    """Pages answered."""
    received: int
    """Messages received."""
    stored: int
    """Messages new to the store."""
    rejected: int
    """Invalid messages."""
    namespaces: int
    """Namespaces in which something was missing."""
    namespaces_done: int
    """Of those, the ones in which nothing is missing any more."""
    outstanding: int
    """Requests under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReport:
    """What one peer contributed."""

    peer: str
    """Its name, as the caller gave it."""
    heads: int = 0
    """Heads it listed last."""
    pages: int = 0
    """Pages it answered."""
    received: int = 0
    """Messages it sent."""
    stored: int = 0
    """Of those, new to the store."""
    duplicate: int = 0
    """Of those, held already."""
    rejected: int = 0
    """Of those, invalid."""
    unkept: int = 0
    """Of those, valid and not kept."""
    withheld: int = 0
    """Sequences it claimed without a hole and did not deliver (21-26)."""
    cut: int = 0
    """Pages that ended before their end; what had come of them was kept."""
    failures: int = 0
    """Calls that failed: unreachable, busy or too slow."""
    unusable: int = 0
    """Answers that could not be used, and heads that contradict themselves."""
    given_up: str = ""
    """Why it was not asked again; empty while it is in good standing."""
    reason: str = ""
    """What its last call that failed came to, in words; empty when none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpReport:
    """How a catch-up ended."""

    complete: bool
    """A peer answered, and no sequence is missing below the highest that we or a peer report."""
    cancelled: bool
    """It was ended from outside before its end."""
    rounds: int
    """Times the heads were listed."""
    namespaces: int
    """Namespaces in which something was missing."""
    namespaces_done: int
    """Of those, the ones in which nothing is missing any more."""
    holes_left: tuple[tuple[NamespaceId, SeqRange], ...]
    """Sequences still missing, the first ``holes_listed`` of them; the next run asks again."""
    holes_unlisted: int
    """Holes beyond those, and those above the bounds of the machine."""
    skipped: tuple[tuple[NamespaceId, SeqRange], ...]
    """Sequences given up because every peer has forgotten them; the first ``holes_listed``."""
    skipped_messages: int
    """Sequences given up, all together."""
    disagreements: int
    """Namespaces whose latest message differs between peers (P26)."""
    peers: tuple[PeerReport, ...]
    """One for each peer, in the order given."""
    seconds: float
    """From start to end, by the caller's clock."""

    @property
    def pages(self) -> int:
        """Pages answered."""
        return sum(peer.pages for peer in self.peers)

    @property
    def received(self) -> int:
        """Messages received."""
        return sum(peer.received for peer in self.peers)

    @property
    def stored(self) -> int:
        """Messages new to the store."""
        return sum(peer.stored for peer in self.peers)

    @property
    def duplicate(self) -> int:
        """Messages held already."""
        return sum(peer.duplicate for peer in self.peers)

    @property
    def rejected(self) -> int:
        """Invalid messages."""
        return sum(peer.rejected for peer in self.peers)

    @property
    def unkept(self) -> int:
        """Valid messages that were not kept."""
        return sum(peer.unkept for peer in self.peers)
