"""State of a peer in a catch-up: heads, load, failures, reputation.

Source: 21-27, 21-28; decision P26.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from luxrelay.bus.header import NamespaceId
from luxrelay.pause import doubled
from luxrelay.sync.heads import PeerHead
from luxrelay.sync.report import AcceptResult, Outcome, PeerReport
from luxrelay.sync.transfer import LinkWindow


@dataclass(slots=True)
class PeerRecord:
    """One peer of one catch-up; mutable, owned by the machine."""

    name: str
    """As the caller gave it."""
    bit: int
    """Its place in `luxrelay.sync.lanes.Hole.tried`."""
    window: LinkWindow = field(default_factory=LinkWindow)
    """How much may be under way from it (P46)."""
    heads: dict[NamespaceId, PeerHead] = field(default_factory=dict)
    """What it listed last, corrected by the statuses of its pages."""
    listing: bool = False
    """A listing of its heads is under way."""
    listed: bool = False
    """It has listed its heads in this round."""
    outstanding: int = 0
    """Calls for pages under way."""
    strikes: int = 0
    """Failures without a success between; broken answers count as well."""
    retry_at: float = 0.0
    """Not asked before this, monotonic seconds."""
    given_up: str = ""
    """Why it is not asked again."""
    pages: int = 0
    received: int = 0
    stored: int = 0
    duplicate: int = 0
    rejected: int = 0
    unkept: int = 0
    withheld: int = 0
    cut: int = 0
    failures: int = 0
    unusable: int = 0

    @property
    def settled(self) -> bool:
        """True when nothing more is to be expected from it in this round's listing."""
        return self.listed or bool(self.given_up)

    def ready(self, now: float) -> bool:
        """Return True when it may be asked for pages now."""
        return self.listed and not self.given_up and self.retry_at <= now

    def count(self, result: AcceptResult) -> None:
        """Count one page and what the sink made of its messages."""
        self.pages += 1
        self.received += len(result.outcomes)
        self.stored += result.count(Outcome.STORED)
        self.duplicate += result.count(Outcome.DUPLICATE)
        self.rejected += result.count(Outcome.REJECTED)
        self.unkept += result.count(Outcome.UNKEPT)

    def failed(self, now: float, backoff_s: float, backoff_max_s: float) -> None:
        """Count a failure and stay away for twice as long as after the one before."""
        self.strikes += 1
        self.retry_at = now + doubled(backoff_s, self.strikes, backoff_max_s)

    def report(self) -> PeerReport:
        """Return what it contributed."""
        return PeerReport(
            peer=self.name,
            heads=len(self.heads),
            pages=self.pages,
            received=self.received,
            stored=self.stored,
            duplicate=self.duplicate,
            rejected=self.rejected,
            unkept=self.unkept,
            withheld=self.withheld,
            cut=self.cut,
            failures=self.failures,
            unusable=self.unusable,
            given_up=self.given_up,
        )
