"""Candidates: messages on their way through the stages, and verdict counters."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from luxrelay.bus import Code, MsgHeader, NamespaceId, Verdict, VerdictKind
from luxrelay.gossip import HeaderAnnouncement


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A well-formed message that still has to be judged."""

    header: MsgHeader
    """The decoded header; its bytes are the ones that arrived."""
    blob: bytes | None
    """The payload, or None when only the header came."""
    parent: NamespaceId
    """The namespace whose topic or sync request brought it."""
    source: bytes = b""
    """Peer id it came from; empty for our own publications and for sync."""
    announcement: HeaderAnnouncement | None = None
    """What a relay signed around the header (G8); None for our own and for sync."""
    judged: bool = False
    """The same header was accepted moments ago, without its blob; nothing is charged again."""


class VerdictCounts:
    """Counts verdicts by door, kind and code; any thread may add."""

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, VerdictKind, Code]] = Counter()

    def add(self, door: str, verdict: Verdict) -> None:
        """Count one verdict; ``door`` is ``gossip``, ``claims``, ``publish`` or ``sync``."""
        with self._lock:
            self._counts[door, verdict.kind, verdict.code] += 1

    def snapshot(self) -> dict[tuple[str, VerdictKind, Code], int]:
        """Return a copy of all counts."""
        with self._lock:
            return dict(self._counts)

    def total(self, door: str, kind: VerdictKind) -> int:
        """Return how often ``door`` answered ``kind``."""
        return sum(n for (d, k, _), n in self.snapshot().items() if (d, k) == (door, kind))


class PeerVerdicts:
    """Counts what was refused of each peer's messages by code; any thread may add.

    At most ``peers_max`` peers that something was refused of; beyond it the one that was refused
    longest ago is forgotten. A peer that left and came back is counted on.
    """

    def __init__(self, peers_max: int) -> None:
        """Start without peers."""
        self._peers_max = peers_max
        self._lock = threading.Lock()
        self._refused: OrderedDict[bytes, Counter[Code]] = OrderedDict()

    def add(self, peer: bytes, verdict: Verdict) -> None:
        """Count a verdict on a message that a peer brought, unless it was accepted."""
        if verdict.accepted:
            return
        with self._lock:
            self._refused.setdefault(peer, Counter())[verdict.code] += 1
            self._refused.move_to_end(peer)
            while len(self._refused) > self._peers_max:
                self._refused.popitem(last=False)

    def of(self, peer: bytes) -> Mapping[Code, int]:
        """Return how many of a peer's messages were refused, by code."""
        with self._lock:
            return dict(self._refused.get(peer, ()))
