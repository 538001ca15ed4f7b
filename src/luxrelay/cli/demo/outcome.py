"""What the demonstration found, as report.json says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOutcome:
    """One relay at the end."""

    name: str
    """Its name."""
    stored: int
    """Published messages it holds."""
    missed_while_offline: int
    """Messages published while its process was away."""
    recovered: int
    """Of these, how many it holds now."""
    contiguous: bool
    """No namespace has a hole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptOutcome:
    """What became of the broken messages."""

    sent: int
    """Sent by the rogue peer."""
    stored: int
    """Found in any relay; must be 0."""
    rejected: int
    """Turned away by the relay it was sent to."""
    kinds: dict[str, int]
    """Sent, by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOutcome:
    """What the archive holds."""

    rows: int
    """Messages, each once."""
    rejected: int
    """Rows that were no valid message."""
    duplicates: int
    """Messages that stand in more than one row; must be 0."""
    gaps: int
    """Missing ranges of sequences; must be 0."""
    copies: int
    """Copies read from all relays together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The whole run."""

    messages: int
    """Published and acknowledged."""
    senders: int
    """Who wrote them."""
    namespaces: int
    """Lanes that carry them."""
    relays: tuple[RelayOutcome, ...]
    """In order of their names."""
    corrupt: CorruptOutcome
    """The rogue's part."""
    latency_ms: dict[str, int]
    """p50, p95, p99 from signature to commit on relays that gossip reached."""
    archive: ArchiveOutcome
    """The archive's part."""
    seconds: dict[str, float]
    """publish, catch_up, archive, total."""

    def faults(self) -> list[str]:
        """Return what went wrong, in words; nothing when all is well."""
        found = [
            f"{relay.name} holds {relay.stored:,} of {self.messages:,} messages"
            for relay in self.relays
            if relay.stored != self.messages
        ]
        found += [f"{relay.name} has holes" for relay in self.relays if not relay.contiguous]
        if self.corrupt.stored:
            found.append(f"{self.corrupt.stored} corrupt messages were stored")
        if self.corrupt.rejected < self.corrupt.sent:
            missing = self.corrupt.sent - self.corrupt.rejected
            found.append(f"{missing} corrupt messages were not judged in time")
        if self.archive.rows != self.messages:
            found.append(f"the archive holds {self.archive.rows:,} of {self.messages:,} messages")
        for value, what in (
            (self.archive.duplicates, "duplicates"),
            (self.archive.gaps, "gaps"),
            (self.archive.rejected, "rejected rows"),
        ):
            if value:
                found.append(f"the archive has {value:,} {what}")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return report.json; its names are stable."""
        return {
            "messages": self.messages,
            "senders": self.senders,
            "namespaces": self.namespaces,
            "relays": [
                {
                    "name": relay.name,
                    "stored": relay.stored,
                    "missed_while_offline": relay.missed_while_offline,
                    "recovered": relay.recovered,
                    "contiguous": relay.contiguous,
                }
                for relay in self.relays
            ],
            "corrupt": {
                "sent": self.corrupt.sent,
                "stored": self.corrupt.stored,
                "rejected": self.corrupt.rejected,
                "kinds": self.corrupt.kinds,
            },
            "latency_ms": self.latency_ms,
            "archive": {
                "rows": self.archive.rows,
                "rejected": self.archive.rejected,
                "duplicates": self.archive.duplicates,
                "gaps": self.archive.gaps,
                "copies": self.archive.copies,
            },
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "faults": self.faults(),
            "ok": not self.faults(),
        }
