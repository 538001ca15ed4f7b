"""`ingest`: from relays to the tables ``messages`` and ``rejects``; exactly once.

Theory of operation
-------------------
*Decides* which rows become messages, how copies of one message become one row, and what a batch
that runs again may write.
*Does not know* how relays are read (`source`) or bytes are checked (`decode`).
One streaming query with ``Trigger.AvailableNow`` reads up to the heads of its start and ends. Each
micro-batch goes once through Python on the executors (parse, hash, verify), is persisted, and is
then counted, grouped by content id and written: one Delta commit for messages, and one for rejects
when there are any.
*Exactly once*: a batch carries the checkpoint's name and its number into the table's log; a batch
that runs again after a crash is refused there. Within one checkpoint a sequence is read once, so
appending is enough. When a checkpoint was lost and the archive reads again from the relays, the
batches are merged by content id instead.
*Bounds*: ``rows_per_batch`` raw rows in one micro-batch.
*What else to change when you change this*: `schema`, `completeness`.

Source: decisions J8, J11, P42; 21-52.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from luxrelay.archive.decode import check_batches
from luxrelay.archive.folder import ArchiveFolder, writing
from luxrelay.archive.options import HeadMode, ReadMode, SourceOptions
from luxrelay.archive.schema import CHECKED, CODE_UNREAD, MESSAGES, REJECTS, TABLES, Table
from luxrelay.archive.session import ArchiveSession
from luxrelay.archive.transit import recover
from luxrelay.errors import ArchiveError, LuxRelayError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS_PER_BATCH: Final = 100_000
"""Raw rows of one micro-batch when not given."""
_FAILED_HINT: Final = "run it again: what was written stays and is not written twice"
_CAUSE_CHARS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What one micro-batch did."""

    batch: int
    """Its number in the checkpoint, from 0."""
    rows: int
    """Raw rows read, all relays together."""
    messages: int
    """Messages in it, each counted once."""
    rejected: int
    """Rows that are no messages."""
    seconds: float
    """Time from reading to the last commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What one run of `ingest` did."""

    batches: tuple[BatchReport, ...]
    """The micro-batches, in order; none when nothing was new."""
    rows_by_relay: dict[str, int]
    """Rows that each relay served, good and bad."""
    rejected_by_code: dict[int, int]
    """Rejected rows by the code of their verdict (`luxrelay.bus.Code`)."""
    unread: dict[str, int]
    """Relays that could not be read, with the number of tasks that missed them."""
    seconds: float
    """Time of the whole run, without the start of Spark."""

    @property
    def rows(self) -> int:
        """Raw rows read."""
        return sum(batch.rows for batch in self.batches)

    @property
    def messages(self) -> int:
        """Messages read, each counted once; new in the archive unless its checkpoint was lost."""
        return sum(batch.messages for batch in self.batches)

    @property
    def rejected(self) -> int:
        """Rows that are no messages."""
        return sum(batch.rejected for batch in self.batches)


def ingest(
    session: ArchiveSession,
    *,
    relays: Sequence[str],
    out: Path,
    namespaces: str = "all",
    read_mode: ReadMode = "all",
    heads: HeadMode = "contiguous",
    starting: str = "earliest",
    fail_on_data_loss: bool = True,
    rows_per_batch: int = ROWS_PER_BATCH,
    progress: Callable[[BatchReport], None] | None = None,
) -> IngestReport:
    """Read everything the relays hold and the archive has not read; return what was done.

    A run goes on where the last one ended, also after a crash; nothing is written twice.

    Args:
        session: A running Spark.
        relays: Addresses ``host:port`` of RelaySync services, 1 to 64.
        out: The archive folder; made when absent.
        namespaces: ``all``, ids as hex with commas, or ``parent:<hex>``.
        read_mode: ``all`` reads each relay and counts copies, ``any`` reads one of them a range.
        heads: Read to the first hole (``contiguous``) or to the newest message (``latest``).
        starting: Where the first run begins: ``earliest``, ``latest``, or JSON offsets.
        fail_on_data_loss: Stop when relays have forgotten what was not read; else go on, and the
            gap shows in `audit`.
        rows_per_batch: Rows of one micro-batch, all relays together, 1 to 10,000,000.
        progress: Told of each micro-batch when it is written.

    Raises:
        ArchiveArgumentError: a value is out of range.
        ArchiveError: ``archive.foreign``, ``archive.busy``, ``archive.data_loss``, or
            ``archive.failed`` when Spark ends with an error.
        SyncUnreachableError: nobody serves a range.

    """
    options = {
        "relays": ",".join(relays),
        "namespaces": namespaces,
        "readMode": read_mode,
        "heads": heads,
        "startingOffsets": starting,
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "maxRowsPerTrigger": str(rows_per_batch),
        "numPartitions": str(session.config.tasks),
        "faultRows": "true",
    }
    SourceOptions.parse(options)  # every mistake before anything is touched
    began = time.monotonic()
    with writing(out) as folder:
        _create_tables(session.spark, folder)
        writer = _BatchWriter(folder, progress)
        _run(session.spark, options, folder, writer)
    return IngestReport(
        batches=tuple(writer.batches),
        rows_by_relay=dict(sorted(writer.rows_by_relay.items())),
        rejected_by_code=dict(sorted(writer.rejected_by_code.items())),
        unread=dict(sorted(writer.unread.items())),
        seconds=time.monotonic() - began,
    )


def _create_tables(spark: SparkSession, folder: ArchiveFolder) -> None:
    for table in TABLES:
        if folder.has_table(table):
            continue
        partition = f" PARTITIONED BY ({', '.join(table.partition_by)})" * bool(table.partition_by)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {table_name(folder, table)} ({table.ddl()})"
            f" USING DELTA{partition} COMMENT '{table.meaning}'"
        )


def table_name(folder: ArchiveFolder, table: Table) -> str:
    """Return the name of a table in SQL."""
    path = str(folder.table(table).resolve()).replace("`", "``")
    return f"delta.`{path}`"


def _run(
    spark: SparkSession, options: dict[str, str], folder: ArchiveFolder, writer: _BatchWriter
) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415  # heavy; a session is here

    query = None
    try:
        stream = spark.readStream.format("luxrelay").options(**options).load()
        checked = stream.mapInArrow(check_batches, CHECKED.plain_ddl())
        query = (
            checked.writeStream.foreachBatch(writer.write)
            .option("checkpointLocation", str(folder.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    except PySparkException as error:
        raise failure(error, "ingest") from None
    finally:
        if query is not None and query.isActive:
            query.stop()


def failure(error: Exception, what: str) -> LuxRelayError:
    """Return our own error that Spark carried in ``error``, or one that says Spark failed.

    Raise it ``from None``: the chain would print pages of Java, which are in Spark's log.
    """
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return recover(text) or ArchiveError(
        f"Spark ended {what} with an error: {lines[0][:_CAUSE_CHARS] if lines else type(error)}",
        hint=_FAILED_HINT,
        code="archive.failed",
    )


@dataclass(slots=True)
class _BatchWriter:
    """Writes micro-batches; lives on the driver."""

    folder: ArchiveFolder
    progress: Callable[[BatchReport], None] | None
    batches: list[BatchReport] = field(default_factory=list)
    rows_by_relay: Counter[str] = field(default_factory=Counter)
    rejected_by_code: Counter[int] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)

    def write(self, checked: DataFrame, batch: int) -> None:
        """Write one micro-batch; called by Spark, again after a crash with the same number."""
        began = time.monotonic()
        now_ms = int(time.time() * 1000)
        checked = checked.persist()  # three actions follow, each would read the relays again
        try:
            rows, rejected = self._count(checked)
            messages = _messages_of(checked, now_ms).persist()
            count = messages.count()
            if count:
                self._write_messages(messages, batch)
            messages.unpersist()
            if rejected:
                self._write_rejects(_rejects_of(checked, now_ms), batch)
        finally:
            checked.unpersist()
        report = BatchReport(
            batch=batch,
            rows=rows,
            messages=count,
            rejected=rejected,
            seconds=time.monotonic() - began,
        )
        self.batches.append(report)
        if self.progress is not None:
            self.progress(report)

    def _count(self, checked: DataFrame) -> tuple[int, int]:
        rows = rejected = 0
        for relay, code, count in checked.groupBy("relay", "code").count().collect():
            if code == CODE_UNREAD:
                self.unread[relay] += count
                continue
            rows += count
            self.rows_by_relay[relay] += count
            if code:
                rejected += count
                self.rejected_by_code[code] += count
        return rows, rejected

    def _write_messages(self, messages: DataFrame, batch: int) -> None:
        if self.folder.marker.checkpoints > 1:
            self._merge(messages)
        else:
            self._append(messages, MESSAGES, batch)

    def _write_rejects(self, rejects: DataFrame, batch: int) -> None:
        self._append(rejects, REJECTS, batch)

    def _append(self, frame: DataFrame, table: Table, batch: int) -> None:
        writer = frame.write.format("delta").mode("append")
        writer = writer.option("txnAppId", self.folder.marker.checkpoint)
        writer.option("txnVersion", batch).save(str(self.folder.table(table)))

    def _merge(self, messages: DataFrame) -> None:
        """Add what is new, and to what is known the relays that were not counted yet."""
        from delta.tables import DeltaTable  # noqa: PLC0415  # heavy; a session is here

        days = [str(day) for (day,) in messages.select("date").distinct().collect()]
        within = ", ".join(f"DATE'{day}'" for day in days)
        relays = "array_sort(array_union(t.relays, s.relays))"
        (
            DeltaTable.forPath(messages.sparkSession, str(self.folder.table(MESSAGES)))
            .alias("t")
            .merge(
                messages.alias("s"),
                f"t.date IN ({within}) AND t.date = s.date AND t.content_id = s.content_id",
            )
            .whenMatchedUpdate(
                condition="size(array_except(s.relays, t.relays)) > 0",
                set={
                    "relays": relays,
                    "copies": f"size({relays})",
                    "blob": "coalesce(t.blob, s.blob)",
                    "received_at": "least(t.received_at, s.received_at)",
                    "latency_ms": "least(t.latency_ms, s.latency_ms)",
                    "expires_at": "greatest(t.expires_at, s.expires_at)",
                },
            )
            .whenNotMatchedInsertAll()
            .execute()
        )


def _messages_of(checked: DataFrame, now_ms: int) -> DataFrame:
    """Return one row a content id: the copy that came first, and who had one.

    Copies may differ in unsigned bytes; the first valid one stays (J11). One with its payload is
    preferred, because a relay may hold the header alone.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    own = {"content_id", "received_at", "expires_at", "latency_ms", "copies", "relays"}
    carried = [name for name in MESSAGES.names if name not in own and name != "ingested_at"]
    order = f.struct(f.col("blob").isNull(), f.col("received_at"), f.col("digest"))
    grouped = (
        checked.where(f.col("code") == 0)
        .groupBy("content_id")
        .agg(
            f.min_by(f.struct(*carried), order).alias("first"),
            f.min("received_at").alias("received_at"),
            f.max("expires_at").alias("expires_at"),
            f.array_sort(f.collect_set("relay")).alias("relays"),
        )
    )
    made: dict[str, Column] = {name: f.col(f"first.{name}") for name in carried}
    made |= {name: f.col(name) for name in ("content_id", "received_at", "expires_at", "relays")}
    made["latency_ms"] = f.col("received_at") - f.col("first.timestamp")
    made["copies"] = f.size("relays")
    made["ingested_at"] = f.lit(now_ms).cast("bigint")
    columns = [made[name].alias(name) for name in MESSAGES.names]
    return grouped.select(*columns).sortWithinPartitions("namespace_id", "seq")


def _rejects_of(checked: DataFrame, now_ms: int) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    rejected = checked.where(f.col("code").isNotNull() & ~f.col("code").isin(0, CODE_UNREAD))
    named = rejected.withColumnRenamed("namespace_id", "namespace")
    return named.withColumn("ingested_at", f.lit(now_ms).cast("bigint")).select(*REJECTS.names)
