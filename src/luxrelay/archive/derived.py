"""`refresh`: the tables that are made from messages and rejects, brought up to date.

Theory of operation
-------------------
*Decides* which days must be made anew, and makes them.
*Does not know* relays and micro-batches.
``namespaces``, ``senders``, ``minutes`` and ``roots`` are functions of the messages of a day, so a
day is replaced as a whole: a run that was killed is made good by the next one, and running twice
changes nothing. Which days have changed since the last refresh is read from the log of the table
(`tables.days_since`). ``contention`` and ``gaps`` look at whole namespaces: both come from one
pass over two columns of ``messages``; which ranges are no gaps, and which above the last message
are, `missing_reasons` says.
*Bounds*: ``HOLES_MAX`` open gaps in all; the messages of one namespace and day are held by one
task, 40 bytes each, for their root.
*What else to change when you change this*: `schema`, `proofs`, `gaps`, `missing_reasons`.

Source: LP-6440; decisions H17, J11, P25.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from luxrelay.archive.folder import ArchiveFolder, write_whole
from luxrelay.archive.gaps import GapRow, above, beside, rejected_heads, settle
from luxrelay.archive.missing_reasons import last_seqs, passed_spans, rejected_tops
from luxrelay.archive.offsets import Span
from luxrelay.archive.part_files import PARTS_DDL, PartReport, TableWriter
from luxrelay.archive.proofs import day_root
from luxrelay.archive.schema import (
    CONTENTION,
    GAPS,
    MESSAGES,
    MINUTES,
    MS_PER_DAY,
    NAMESPACES,
    PASSED,
    REJECTS,
    ROOTS,
    SENDERS,
    Table,
)
from luxrelay.archive.tables import (
    days_since,
    open_table,
    replace_files,
    replace_rows,
    retired,
    version_of,
)
from luxrelay.bus.finality import FinalityState
from luxrelay.store.namespaces import CANDIDATES_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOLES_MAX: Final = 200_000
"""Open gaps that are followed; with more of them ``gaps`` stays as it is and the report is cut."""
_STATE: Final = "derived.json"
_MS_PER_MINUTE: Final = 60_000
_EPOCH: Final = date(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshReport:
    """What `refresh` found and did."""

    days: int | None = None
    """Days made anew; None for all there are."""
    open_gaps: int = 0
    """Ranges missing now."""
    missing: int = 0
    """Sequences in them."""
    cut: bool = False
    """There are more gaps than are followed; the table was left as it is."""


def refresh(spark: SparkSession, folder: ArchiveFolder, now_ms: int) -> RefreshReport:
    """Bring the derived tables up to date with what is archived; return what was done.

    Args:
        spark: A running Spark with Delta.
        folder: The archive, held for writing.
        now_ms: When this is, ms; becomes the time at which gaps were seen or filled.

    """
    versions = {table.name: version_of(folder, table) for table in (MESSAGES, REJECTS, PASSED)}
    before = _state(folder)
    if before == versions:
        return _report(0, gap_rows(folder))
    days = days_since(folder, MESSAGES, before.get(MESSAGES.name))
    if days is None or days:
        _by_day(spark, folder, days)
    _replace(_minutes(spark, folder), folder, MINUTES, None)
    cut, rows = _by_slot(spark, folder, now_ms)
    write_whole(folder.path / _STATE, json.dumps(versions))  # last: a killed run is made again
    return _report(None if days is None else len(days), rows, cut=cut)


def _state(folder: ArchiveFolder) -> dict[str, int]:
    try:
        value = json.loads((folder.path / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    known = value if isinstance(value, dict) else {}
    return {name: number for name, number in known.items() if isinstance(number, int)}


def read_table(spark: SparkSession, folder: ArchiveFolder, table: Table) -> DataFrame:
    """Return a table of the archive as a frame."""
    return spark.read.format("delta").load(str(folder.table(table)))


def _replace(
    frame: DataFrame, folder: ArchiveFolder, table: Table, days: list[date] | None
) -> None:
    write = TableWriter(folder=folder.path.resolve(), table=table)
    parts = frame.select(*table.names).mapInArrow(write, PARTS_DDL).collect()
    made = PartReport.total(PartReport.decode(part) for (part,) in parts)
    replace_files(folder, table, made.files, days)


def _within(days: Iterable[date]) -> str:
    return f"date IN ({', '.join(f'''DATE'{day}' ''' for day in days)})"


def _by_day(spark: SparkSession, folder: ArchiveFolder, days: list[date] | None) -> None:
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    messages = read_table(spark, folder, MESSAGES)
    if days is not None:
        messages = messages.where(_within(days))
    sums = (f.count("*").alias("messages"), f.sum("blob_len").alias("blob_bytes"))
    namespaces = messages.groupBy("date", "namespace_id").agg(
        *sums,
        f.count_distinct("seq").alias("slots"),
        f.count_distinct("sender_pub_key").alias("senders"),
        f.min("seq").alias("first_seq"),
        f.max("seq").alias("last_seq"),
        f.sum("copies").alias("copies"),
    )
    _replace(namespaces, folder, NAMESPACES, days)
    senders = messages.groupBy("date", "sender_pub_key").agg(
        *sums,
        f.first("sender_address").alias("sender_address"),
        f.count_distinct("namespace_id").alias("namespaces"),
        f.min("timestamp").alias("first_at"),
        f.max("timestamp").alias("last_at"),
    )
    _replace(senders, folder, SENDERS, days)
    listed = messages.groupBy("date", "namespace_id").agg(
        f.collect_list("seq").alias("seqs"), f.collect_list("content_id").alias("ids")
    )
    _replace(listed.mapInArrow(_roots, ROOTS.plain_ddl()), folder, ROOTS, days)


def _roots(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a row of ``roots`` for each day of a namespace; runs on executors."""
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            leaves = list(zip(row["seqs"], row["ids"], strict=True))
            day = (row["date"] - _EPOCH).days
            rows.append(
                {
                    "date": row["date"],
                    "namespace_id": row["namespace_id"],
                    "messages": len(leaves),
                    "root": day_root(row["namespace_id"], day, leaves),
                }
            )
        yield pa.RecordBatch.from_pylist(rows, schema=ROOTS.arrow())


def _minutes(spark: SparkSession, folder: ArchiveFolder) -> DataFrame:
    """Return every minute: it is the relays' clock, which days of messages say little of."""
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    minute = (f.floor(f.col("received_at") / _MS_PER_MINUTE) * _MS_PER_MINUTE).alias("minute")
    points = f.percentile_approx("latency_ms", [0.5, 0.95, 0.99], 10_000)
    good = (
        read_table(spark, folder, MESSAGES)
        .groupBy(minute)
        .agg(
            f.count("*").alias("messages"),
            f.sum("copies").alias("copies"),
            f.sum("blob_len").alias("blob_bytes"),
            points.alias("points"),
            f.max("latency_ms").alias("latency_max_ms"),
        )
    )
    bad = read_table(spark, folder, REJECTS).where("received_at IS NOT NULL")
    joined = good.join(bad.groupBy(minute).agg(f.count("*").alias("rejected")), "minute", "full")
    filled = joined.na.fill(0, ["messages", "copies", "rejected", "blob_bytes"])
    made = {
        "date": f.date_add(f.lit(_EPOCH), f.floor(f.col("minute") / MS_PER_DAY).cast("int")),
        "latency_p50_ms": f.col("points")[0],
        "latency_p95_ms": f.col("points")[1],
        "latency_p99_ms": f.col("points")[2],
        "duplicate_ratio": f.coalesce(
            f.try_divide(f.col("copies") - f.col("messages"), f.col("copies")), f.lit(0.0)
        ),
        "invalid_ratio": f.col("rejected") / (f.col("copies") + f.col("rejected")),
    }
    return filled.select(*(made.get(name, f.col(name)).alias(name) for name in MINUTES.names))


def _by_slot(spark: SparkSession, folder: ArchiveFolder, now_ms: int) -> tuple[bool, list[GapRow]]:
    """Settle ``contention`` and ``gaps`` from one pass; return whether gaps were cut, and them."""
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    messages = read_table(spark, folder, MESSAGES)
    slots = messages.groupBy("namespace_id", "seq").agg(f.count("*").cast("int").alias("contents"))
    slots = slots.repartition("namespace_id").persist()
    try:
        _replace(_candidates(messages, slots.where("contents > 1")), folder, CONTENTION, None)
        missing, cut = _missing(slots)
    finally:
        slots.unpersist()
    known, lasts = gap_rows(folder), last_seqs(folder)
    missing += rejected_heads(lasts, rejected_tops(folder, lasts), known)
    if cut or len(missing) > HOLES_MAX:
        return True, known
    missing = beside(missing, passed_spans(folder))
    rows = settle(known, above(missing, retired(folder)), now_ms)
    if rows != known:
        _replace_gaps(folder, rows)
    return False, rows


def _candidates(messages: DataFrame, contested: DataFrame) -> DataFrame:
    """Return the messages of contested slots, with what a relay keeps (J11, P40)."""
    from pyspark.sql import Window  # noqa: PLC0415  # heavy; a session is here
    from pyspark.sql import functions as f  # noqa: PLC0415  # as above

    slot = ("namespace_id", "seq")
    own = Window.partitionBy(*slot, "sender_pub_key")
    rivals = Window.partitionBy(*slot, "lowest").orderBy("content_id")
    is_final = f.coalesce(f.col("finality") == int(FinalityState.FINALIZED), f.lit(False))
    return (
        messages.join(f.broadcast(contested), list(slot))
        .withColumn("equivocates", f.count("*").over(own) > 1)
        .withColumn("lowest", f.row_number().over(own.orderBy("content_id")) == 1)
        .withColumn("place", f.row_number().over(rivals))
        .withColumn("final", f.max(is_final).over(Window.partitionBy(*slot)))
        .withColumn(
            "kept",
            f.when(f.col("final"), is_final).otherwise(
                f.col("lowest") & (f.col("place") <= CANDIDATES_MAX)
            ),
        )
    )


def _missing(slots: DataFrame) -> tuple[list[Span], bool]:
    from pyspark.sql import Window  # noqa: PLC0415  # heavy; a session is here
    from pyspark.sql import functions as f  # noqa: PLC0415  # as above

    order = Window.partitionBy("namespace_id").orderBy("seq")
    before = f.coalesce(f.lag("seq").over(order), f.lit(0))
    holes = slots.select("namespace_id", (before + 1).alias("first"), f.col("seq").alias("next"))
    found = holes.where("next > first").limit(HOLES_MAX + 1).collect()
    spans = [Span(bytes(name), first, following - 1) for name, first, following in found]
    return spans[:HOLES_MAX], len(spans) > HOLES_MAX


def gap_rows(folder: ArchiveFolder) -> list[GapRow]:
    """Return the table ``gaps``, in order; needs no Spark."""
    rows = open_table(folder, GAPS).to_pyarrow_table(columns=list(GAPS.names)).to_pylist()
    return sorted(
        (GapRow(**row) for row in rows),
        key=lambda row: (row.namespace_id, row.first, row.seen_at, row.last),
    )


def _replace_gaps(folder: ArchiveFolder, rows: list[GapRow]) -> None:
    values = [{name: getattr(row, name) for name in GAPS.names} for row in rows]
    replace_rows(folder, GAPS, pa.Table.from_pylist(values, schema=GAPS.arrow()))


def _report(days: int | None, rows: list[GapRow], *, cut: bool = False) -> RefreshReport:
    still_open = [row for row in rows if row.filled_at is None]
    return RefreshReport(
        days=days,
        open_gaps=len(still_open),
        missing=sum(row.last - row.first + 1 for row in still_open),
        cut=cut,
    )
