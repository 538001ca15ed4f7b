"""Results of the demonstration, as in report.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
class KindOutcome:
    """What became of the broken messages of one kind."""

    kind: str
    """Which rule they break."""
    code: str
    """The verdict code of that rule."""
    sent: int
    """Sent."""
    refused: int
    """Refused with that code."""
    unheard: int
    """Not heard, because the sender's score was below the threshold."""
    otherwise: dict[str, int]
    """Whatever else became of them, by code; must be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptOutcome:
    """What became of the broken messages."""

    sent: int
    """Sent by the rogue peer."""
    stored: int
    """Found in any relay; must be 0."""
    kinds: tuple[KindOutcome, ...]
    """Kind by kind, in the order of their names."""
    identities: int
    """Under how many peer identities the rogue came."""

    @property
    def rejected(self) -> int:
        """Refused by the relay it was sent to."""
        return sum(kind.refused + sum(kind.otherwise.values()) for kind in self.kinds)

    @property
    def unheard(self) -> int:
        """Not heard by that relay, because the rogue's score was below the threshold."""
        return sum(kind.unheard for kind in self.kinds)

    @property
    def unaccounted(self) -> int:
        """Messages of which the relay told nothing; must be 0."""
        return self.sent - self.rejected - self.unheard

    def faults(self) -> list[str]:
        """Return what went wrong, in words."""
        found = []
        if self.stored:
            found.append(f"{self.stored:,} corrupt messages were stored")
        if self.unaccounted:
            found.append(f"{self.unaccounted:,} corrupt messages are not accounted for")
        for kind in self.kinds:
            if kind.sent and not kind.refused:
                found.append(f"no message of the kind {kind.kind!r} was refused as {kind.code}")
            found += [
                f"{count:,} messages of the kind {kind.kind!r} were {_otherwise(code)}"
                for code, count in kind.otherwise.items()
            ]
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the part of report.json."""
        return {
            "sent": self.sent,
            "stored": self.stored,
            "rejected": self.rejected,
            "unheard": self.unheard,
            "unaccounted": self.unaccounted,
            "identities": self.identities,
            "kinds": {kind.kind: kind.sent for kind in self.kinds},
            "fates": {
                kind.kind: {
                    "code": kind.code,
                    "refused": kind.refused,
                    "unheard": kind.unheard,
                    "otherwise": kind.otherwise,
                }
                for kind in self.kinds
            },
        }


def _otherwise(code: str) -> str:
    return code if code == "accepted" else f"refused as {code}"


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
class DemoOutcome:
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
    archive: ArchiveOutcome | None
    """The archive's part; None when it was not made."""
    archive_hint: str = ""
    """Why it was not made, and how to get it."""
    seconds: dict[str, float]
    """publish, catch_up, archive, total; no ``archive`` when it was not made."""

    def faults(self) -> list[str]:
        """Return what went wrong, in words; nothing when all is well."""
        found = [
            f"{relay.name} holds {relay.stored:,} of {self.messages:,} messages"
            for relay in self.relays
            if relay.stored != self.messages
        ]
        found += [f"{relay.name} has holes" for relay in self.relays if not relay.contiguous]
        found += self.corrupt.faults()
        return found if self.archive is None else found + self._archive_faults(self.archive)

    def _archive_faults(self, archive: ArchiveOutcome) -> list[str]:
        found = []
        if archive.rows != self.messages:
            found.append(f"the archive holds {archive.rows:,} of {self.messages:,} messages")
        for value, what in (
            (archive.duplicates, "duplicates"),
            (archive.gaps, "gaps"),
            (archive.rejected, "rejected rows"),
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
            "corrupt": self.corrupt.to_json(),
            "latency_ms": self.latency_ms,
            "archive": None if self.archive is None else asdict(self.archive),
            "archive_hint": self.archive_hint,
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "faults": self.faults(),
            "ok": not self.faults(),
        }
