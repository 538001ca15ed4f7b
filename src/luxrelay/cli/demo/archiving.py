"""The last act: every relay into Delta by Spark, and an audit of the result.

Spark is an extra; without it the demonstration ends before this leg, and says how to get it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from luxrelay.cli.demo.outcome import ArchiveOutcome
from luxrelay.cli.output import Progress

if TYPE_CHECKING:
    from luxrelay.archive.completeness import AuditReport

PACKAGES: Final = ("pyspark", "delta", "deltalake", "pyarrow", "pandas", "matplotlib")
"""What the extra ``archive`` brings."""


@dataclass(frozen=True, slots=True)
class ArchivingAct:
    """What the archive holds, in short and in full; nothing of both when it was not made."""

    outcome: ArchiveOutcome | None
    """For report.json."""
    audit: AuditReport | None
    """For the page."""
    hint: str = ""
    """Why it was not made, and how to get it."""


def missing_extra() -> str:
    """Return what to do for an archive when the extra is not installed; empty when it is."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    return (
        f"not made: its extra is not installed (there is no {', '.join(missing)}); "
        "pip install 'luxrelay[archive]', then python -m luxrelay.archive.jars"
    )


def require_java() -> None:
    """Return when Spark will find a Java.

    Raises:
        ArchiveError: there is none that it can run on.

    """
    from luxrelay.archive.java import find_java  # noqa: PLC0415  with the extra only

    find_java()


def archive(addresses: Sequence[str], out: Path, progress: Progress) -> ArchivingAct:
    """Read all relays into ``out/archive`` and audit it.

    Raises:
        ArchiveError: Spark is not to be had, or ended with an error.

    """
    from luxrelay.archive import ArchiveSession, audit, ingest  # noqa: PLC0415  with the extra only
    from luxrelay.archive.session import SessionConfig  # noqa: PLC0415  with the extra only

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
    return ArchivingAct(
        ArchiveOutcome(
            rows=found.rows,
            rejected=found.rejected,
            duplicates=found.duplicates,
            gaps=len(found.gaps) + len(found.behind),
            copies=found.copies,
        ),
        found,
    )
