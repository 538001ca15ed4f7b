"""`compact`, `retain`, `erase`: fewer files, nothing kept past its class, one namespace deleted.

Theory of operation
-------------------
*Decides* which rows are past their time, and which days have too many files.
*Does not know* relays and micro-batches.
A message is kept by the class of its policy: Standard 30 days, Archive a year, Permanent for ever;
Ephemeral is never written. A class that nobody told counts as Standard. Its age is that of the
later of two clocks, the sender's and the first relay's, so that neither can make it old too soon.
Before rows are deleted, the table ``retired`` notes up to which sequence a namespace has been
retired: what was deleted on purpose is no gap. A namespace erased by law is noted as such, its
rows go from every table and from every older version of it, and `ingest` never takes it up again.
*Bounds*: a day is rewritten when it has ``FILES_MIN`` files or more, into files of
``FILE_BYTES``.
*What else to change when you change this*: `schema`, `derived`, `batches`.

Source: LP-6400 retention classes; decisions J1, J2, P42.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from luxrelay.archive.derived import read_table, refresh
from luxrelay.archive.folder import ArchiveFolder, open_folder, writing
from luxrelay.archive.jvm_errors import failure
from luxrelay.archive.missing_reasons import gather_passed
from luxrelay.archive.schema import (
    CONTENTION,
    ERASED,
    GAPS,
    MAX_I64,
    MESSAGES,
    MS_PER_DAY,
    NAMESPACES,
    PASSED,
    REJECTS,
    RETIRED,
    ROOTS,
    SERVED,
    TABLES,
    Table,
)
from luxrelay.archive.session import ArchiveSession
from luxrelay.archive.tables import (
    file_counts,
    prepare_tables,
    table_name,
    target_name,
    vacuum,
)
from luxrelay.bus.policy import RetentionClass
from luxrelay.errors import ArchiveArgumentError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_MIN: Final = 4
"""A day of a table with this many files is compacted."""
FILE_BYTES: Final = 64 * 1024 * 1024
"""Size that compaction aims at: small enough that bounds of files rule most of them out."""
VACUUM_HOURS: Final = 168
"""Files that no version of the last week needs are removed."""
KEEP_DAYS: Final[Mapping[int, int | None]] = {
    RetentionClass.STANDARD: 30,
    RetentionClass.ARCHIVE: 365,
    RetentionClass.PERMANENT: None,
}
"""Days that messages of a class are kept; None for ever."""
SERVED_DAYS: Final = 30
"""Days that ``raw`` and ``rejects`` are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """What `compact` did."""

    files_before: int
    """Files of all tables before."""
    files_after: int
    """And after."""
    compacted: int
    """Days, or tables without days, that were rewritten."""
    seconds: float
    """Time it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainReport:
    """What `retain` or `erase` removed."""

    messages: int
    """Messages."""
    others: int
    """Rows of ``raw`` and ``rejects``."""
    namespaces: int
    """Namespaces that lost messages."""
    seconds: float
    """Time it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """How long what is kept."""

    keep_days: Mapping[int, int | None] = field(default_factory=lambda: dict(KEEP_DAYS))
    """Days by class (`RetentionClass`); None for ever."""
    unknown: int = RetentionClass.STANDARD
    """The class of messages whose policy nobody told."""
    served_days: int = SERVED_DAYS
    """Days of ``raw`` and ``rejects``, 1 or more."""

    def __post_init__(self) -> None:
        """Refuse what would delete by accident."""
        given = {days for days in self.keep_days.values() if days is not None}
        if set(self.keep_days) != set(KEEP_DAYS) or self.unknown not in self.keep_days:
            raise ArchiveArgumentError(
                "the classes are standard, archive and permanent", where="RetentionConfig"
            )
        if min(given | {self.served_days}) < 1:
            raise ArchiveArgumentError(
                "a class is kept for a day or more", where="RetentionConfig.keep_days"
            )


def compact(
    session: ArchiveSession,
    *,
    out: Path,
    files_min: int = FILES_MIN,
    vacuum_hours: int = VACUUM_HOURS,
) -> CompactReport:
    """Rewrite days with many files into few, along `Table.cluster_by`, and remove old files.

    Changes no row. May run again at any time; readers of older versions have ``vacuum_hours``.

    Args:
        session: A running Spark.
        out: The archive folder.
        files_min: Days with this many files are rewritten, 2 or more.
        vacuum_hours: Age of files that no version needs, from which on they are removed; 24 or
            more, because a reader or another writer may still be at work on them.

    Raises:
        ArchiveArgumentError: a value is out of range.
        ArchiveError: ``archive.foreign``, ``archive.busy``, or ``archive.failed``.

    """
    if files_min < 2 or vacuum_hours < 24:
        raise ArchiveArgumentError("files_min is 2 or more, vacuum_hours 24", where="compact")
    began = time.monotonic()
    with _at_work(session, out) as folder:
        before, compacted = 0, 0
        for table in TABLES:
            counts = file_counts(folder, table)
            before += sum(counts.values())
            crowded = [day for day, files in counts.items() if files >= files_min]
            for day in sorted(crowded, key=str):
                where = "" if day is None else f" WHERE date = DATE'{day}'"
                order = f" ZORDER BY ({', '.join(table.cluster_by)})" if table.cluster_by else ""
                session.spark.sql(f"OPTIMIZE {table_name(folder, table)}{where}{order}")
            compacted += len(crowded)
            if crowded:
                vacuum(folder, table, vacuum_hours)
        after = sum(sum(file_counts(folder, table).values()) for table in TABLES)
    return CompactReport(
        files_before=before,
        files_after=after,
        compacted=compacted,
        seconds=time.monotonic() - began,
    )


def retain(
    session: ArchiveSession,
    *,
    out: Path,
    now_ms: int | None = None,
    config: RetentionConfig | None = None,
    vacuum_hours: int = VACUUM_HOURS,
) -> RetainReport:
    """Delete what is past its class; nothing younger goes, by whichever clock it is younger.

    Args:
        session: A running Spark.
        out: The archive folder.
        now_ms: The time, Unix milliseconds; the clock's when not given.
        config: Days by class.
        vacuum_hours: As in `compact`; deleted rows are on disk until then.

    Raises:
        ArchiveArgumentError: a value is out of range.
        ArchiveError: ``archive.foreign``, ``archive.busy``, or ``archive.failed``.

    """
    if vacuum_hours < 24:
        raise ArchiveArgumentError("vacuum_hours is 24 or more", where="retain")
    now = int(time.time() * 1000) if now_ms is None else now_ms
    given = config or RetentionConfig()
    began = time.monotonic()
    with _at_work(session, out) as folder:
        spark = session.spark
        past = past_condition(given, now)
        if past:
            _retire(spark, folder, past, now)
        namespaces, messages = _delete(spark, folder, MESSAGES, past) if past else (0, 0)
        edge = now - given.served_days * MS_PER_DAY
        others = 0
        for table in (SERVED, REJECTS):
            others += _delete(spark, folder, table, f"ingested_at < {edge}")[1]
        gather_passed(folder)
        refresh(spark, folder, now)
        for table in (MESSAGES, SERVED, REJECTS, PASSED):
            vacuum(folder, table, vacuum_hours)
    return RetainReport(
        messages=messages,
        others=others,
        namespaces=namespaces,
        seconds=time.monotonic() - began,
    )


def erase(
    session: ArchiveSession, *, out: Path, namespace_id: bytes, now_ms: int | None = None
) -> RetainReport:
    """Delete a namespace from every table and from the disk, and never archive it again.

    Older versions of the tables cannot be read afterwards. May run again after a crash.

    Args:
        session: A running Spark.
        out: The archive folder.
        namespace_id: 20 bytes.
        now_ms: The time, Unix milliseconds; the clock's when not given.

    Raises:
        ArchiveArgumentError: a value is out of range.
        ArchiveError: ``archive.foreign``, ``archive.busy``, or ``archive.failed``.

    """
    if len(namespace_id) != 20:
        raise ArchiveArgumentError("a namespace has 20 bytes", where="erase")
    now = int(time.time() * 1000) if now_ms is None else now_ms
    name, began = f"X'{namespace_id.hex()}'", time.monotonic()
    with _at_work(session, out) as folder:
        spark = session.spark
        barred = spark.sql(f"SELECT {name} AS namespace_id, {MAX_I64} AS up_to")
        _note_frame(barred, folder, now, ERASED)
        namespaces, messages = _delete(spark, folder, MESSAGES, f"namespace_id = {name}")
        others = 0
        for table in (SERVED, REJECTS):
            # A broken row may name the namespace in its bytes alone.
            held = f"namespace = {name} OR substring(header, 3, 20) = {name}"
            others += _delete(spark, folder, table, held)[1]
        for table in (GAPS, CONTENTION, NAMESPACES, ROOTS, PASSED):
            _delete(spark, folder, table, f"namespace_id = {name}")
        refresh(spark, folder, now)
        for table in TABLES:
            vacuum(folder, table, 0)
    return RetainReport(
        messages=messages,
        others=others,
        namespaces=namespaces,
        seconds=time.monotonic() - began,
    )


def past_condition(config: RetentionConfig, now_ms: int) -> str:
    """Return the SQL condition of messages that are past their class; empty when none can be."""
    parts = []
    for kind, days in config.keep_days.items():
        if days is None:
            continue
        edge = now_ms - days * MS_PER_DAY
        held = f"coalesce(retention, {config.unknown}) = {int(kind)}"
        # By the day first, which is a folder: younger days are not even opened.
        oldest = f"date <= DATE'1970-01-01' + {max(0, edge) // MS_PER_DAY}"
        parts.append(f"({held} AND {oldest} AND timestamp < {edge} AND received_at < {edge})")
    return " OR ".join(parts)


@contextmanager
def _at_work(session: ArchiveSession, out: Path) -> Iterator[ArchiveFolder]:
    """Hold an archive that exists; Spark's errors leave as ours."""
    from pyspark.errors import PySparkException  # noqa: PLC0415  # heavy; a session is here

    open_folder(out)
    with writing(out) as folder:
        prepare_tables(folder)
        settings = {"spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES)}
        kept = {name: session.spark.conf.get(name, None) for name in settings}
        for name, value in settings.items():
            session.spark.conf.set(name, value)
        try:
            yield folder
        except PySparkException as error:
            raise failure(error, "upkeep") from None
        finally:
            for name, before in kept.items():
                if before is None:
                    session.spark.conf.unset(name)
                else:
                    session.spark.conf.set(name, before)


def _retire(spark: SparkSession, folder: ArchiveFolder, past: str, now_ms: int) -> None:
    """Note how far each namespace is about to be retired: before the rows go."""
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    rows = read_table(spark, folder, MESSAGES).where(past)
    highest = rows.groupBy("namespace_id").agg(f.max("seq").alias("up_to"))
    _note_frame(highest.select("namespace_id", "up_to"), folder, now_ms, "retention")


def _note_frame(frame: DataFrame, folder: ArchiveFolder, now_ms: int, cause: str) -> None:
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    rows = frame.withColumn("retired_at", f.lit(now_ms).cast("bigint"))
    target = target_name(folder, RETIRED)
    # In SQL: Delta's own Python table needs a plugin on a Spark Connect server.
    frame.sparkSession.sql(
        f"MERGE INTO {target} AS t USING {{noted}} AS s ON t.namespace_id = s.namespace_id"
        " WHEN MATCHED AND s.up_to > t.up_to THEN UPDATE SET *"
        " WHEN NOT MATCHED THEN INSERT *",
        noted=rows.withColumn("cause", f.lit(cause)),
    )


def _delete(
    spark: SparkSession, folder: ArchiveFolder, table: Table, condition: str
) -> tuple[int, int]:
    """Delete rows; return how many namespaces and rows they were."""
    name = "namespace" if "namespace" in table.names else "namespace_id"
    rows = read_table(spark, folder, table).where(condition)
    namespaces, count = rows.selectExpr(f"count(DISTINCT {name})", "count(*)").collect()[0]
    if count:
        spark.sql(f"DELETE FROM {table_name(folder, table)} WHERE {condition}")  # noqa: S608
    return namespaces, count
