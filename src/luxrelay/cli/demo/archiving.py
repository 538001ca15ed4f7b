"""The last leg: every relay into Delta by Spark, and an audit of what is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from luxrelay.archive import ArchiveSession, audit, ingest
from luxrelay.archive.completeness import AuditReport
from luxrelay.archive.session import SessionConfig
from luxrelay.cli.demo.outcome import ArchiveOutcome
from luxrelay.cli.output import Progress


@dataclass(frozen=True, slots=True)
class Archived:
    """What the archive holds, in short and in full."""

    outcome: ArchiveOutcome
    """For report.json."""
    audit: AuditReport
    """For the page."""


def archive(addresses: Sequence[str], out: Path, progress: Progress) -> Archived:
    """Read all relays into ``out/archive`` and audit it.

    Raises:
        ArchiveError: Spark is not to be had, or ended with an error.

    """
    folder = out / "archive"
    with ArchiveSession(SessionConfig(log_file=out / "spark.log")) as session:
        ingest(
            session,
            relays=addresses,
            out=folder,
            progress=lambda batch: progress.update(f"archived a batch of {batch.rows:,} rows"),
            derived=False,  # `luxrelay archive report` makes the other tables when it is asked
        )
        progress.step("auditing the archive")
        found = audit(session, out=folder, relays=addresses)
    return Archived(
        ArchiveOutcome(
            rows=found.rows,
            rejected=found.rejected,
            duplicates=found.duplicates,
            gaps=len(found.gaps) + len(found.behind),
            copies=found.copies,
        ),
        found,
    )
