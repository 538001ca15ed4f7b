"""One micro-batch of checked rows into the tables; each batch once.

Theory of operation
-------------------
*Decides* which rows become messages, how copies of one message become one row, and what a batch
that runs again may write.
*Does not know* where rows come from and how far a run goes (`pipeline`).
A batch is persisted, counted, grouped by content id and written: one Delta commit for raw rows,
one for messages, and one for rejects when there are any.
*Exactly once*: a batch carries the checkpoint's name and its number into the table's log; a batch
that runs again after a crash is refused there. Within one checkpoint a sequence is read once, so
appending is enough. When a checkpoint was lost and the archive reads again from the relays, reads a
gap again, or has also read segment files, the batches are merged by each table's key instead.
*Bounds*: none of its own; a batch is as large as the source's limit.
*What else to change when you change this*: `schema`, `completeness`.

Source: decisions J8, J11, P42; 21-52.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Final

from luxrelay.archive.folder import ArchiveFolder
from luxrelay.archive.rules import CODE_EPHEMERAL
from luxrelay.archive.schema import CODE_UNREAD, MESSAGES, MS_PER_DAY, REJECTS, SERVED, Table
from luxrelay.archive.tables import target_name
from luxrelay.bus import constants as c
from luxrelay.bus.finality import FinalityState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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


_RELAYS: Final = "array_sort(array_union(t.relays, s.relays))"
_KNOWN: Final = ", ".join(
    f"{name} = {value}"
    for name, value in {
        "relays": _RELAYS,
        "copies": f"size({_RELAYS})",
        "blob": "coalesce(t.blob, s.blob)",
        "received_at": "least(t.received_at, s.received_at)",
        "latency_ms": "least(t.latency_ms, s.latency_ms)",
        "expires_at": "greatest(t.expires_at, s.expires_at)",
    }.items()
)
"""What becomes of a message that is known when another relay serves it.

Its finality stays: statements alone move it (`statements`), whatever a relay claims.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """What one micro-batch held and where it came from; made where the batch is written."""

    report: BatchReport
    """What a user is told."""
    rows_by_relay: dict[str, int]
    """Rows, good and bad."""
    rejected_by_code: dict[int, int]
    """Rejected rows by the code of their verdict."""
    unread: dict[str, int]
    """Tasks that missed a relay."""
    ephemeral: int
    """Valid rows whose class says that they are not archived."""


AHEAD_MAX_MS: Final = 366 * MS_PER_DAY
"""A relay's word for when it received something is kept up to so long after the archive's own."""


class StreamStoppedError(Exception):
    """A micro-batch came after the run was told to end."""


@dataclass(slots=True)
class BatchWriter:
    """Writes micro-batches and adds them up; lives on the driver."""

    folder: ArchiveFolder
    progress: Callable[[BatchReport], None] | None
    batches: list[BatchReport] = field(default_factory=list)
    rows_by_relay: Counter[str] = field(default_factory=Counter)
    rejected_by_code: Counter[int] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    ephemeral: int = 0
    """Valid rows whose class says that they are not archived."""
    barred: Sequence[bytes] = ()
    """Namespaces that were erased: nothing of them is taken up."""
    stop: threading.Event | None = None
    """Set by whoever wants the run to end."""
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set by us, between two batches, when it is to end."""
    again: bool = False
    """The rows may have been read before: merge them instead of appending."""

    @property
    def tables(self) -> BatchTables:
        """Where it writes."""
        return BatchTables(folder=self.folder, barred=tuple(self.barred), again=self.again)

    def write(self, checked: DataFrame, batch: int) -> None:
        """Write one micro-batch; called by Spark, again after a crash with the same number."""
        if self.stopped.is_set():
            raise StreamStoppedError  # not written: the next run begins with this batch
        self.take(self.tables.write(checked, batch))

    def take(self, counts: BatchCounts) -> None:
        """Add up a batch that is written, and tell of it."""
        self.batches.append(counts.report)
        self.rows_by_relay.update(counts.rows_by_relay)
        self.rejected_by_code.update(counts.rejected_by_code)
        self.unread.update(counts.unread)
        self.ephemeral += counts.ephemeral
        if self.progress is not None:
            self.progress(counts.report)
        if self.stop is not None and self.stop.is_set():
            self.stopped.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTables:
    """The tables that a micro-batch goes to; a value, so that it may be sent to another process."""

    folder: ArchiveFolder
    """The archive."""
    barred: tuple[bytes, ...] = ()
    """Namespaces that were erased: nothing of them is taken up."""
    again: bool = False
    """The rows may have been read before: merge them instead of appending."""

    def write(self, checked: DataFrame, batch: int) -> BatchCounts:
        """Write one micro-batch of checked rows; again with the same number does nothing."""
        began = time.monotonic()
        now_ms = int(time.time() * 1000)
        if self.barred:
            checked = checked.where(~_names(self.barred))
        # Several actions follow, and each would read the relays again.
        checked = _timed(checked, now_ms).persist()
        try:
            groups = checked.groupBy("relay", "code").count().collect()
            counts = count_rows((relay, code, number) for relay, code, number in groups)
            rows, rejected = sum(counts[0].values()), sum(counts[1].values())
            count = checked.where("code = 0").select("content_id").distinct().count()
            if rows:
                self._write(_served_of(checked), SERVED, batch)
            if count:
                good = sum(number for _, code, number in groups if code == 0)
                messages = _messages_of(checked) if count < good else _single_messages_of(checked)
                self._write(messages, MESSAGES, batch)
            if rejected:
                self._write(_rejects_of(checked), REJECTS, batch)
        finally:
            checked.unpersist()
        report = BatchReport(
            batch=batch,
            rows=rows,
            messages=count,
            rejected=rejected,
            seconds=time.monotonic() - began,
        )
        return BatchCounts(
            report=report,
            rows_by_relay=counts[0],
            rejected_by_code=counts[1],
            unread=counts[2],
            ephemeral=counts[3],
        )

    def _write(self, frame: DataFrame, table: Table, batch: int) -> None:
        if not self.again and self.folder.marker.checkpoints <= 1:
            self._append(frame, table, batch)
        elif table is MESSAGES:
            self._merge(frame)
        else:
            self._add_absent(frame, table)

    def _append(self, frame: DataFrame, table: Table, batch: int) -> None:
        writer = frame.write.format("delta").mode("append")
        writer = writer.option("txnAppId", self.folder.marker.checkpoint)
        writer.option("txnVersion", batch).save(str(self.folder.table(table)))

    def _merge(self, messages: DataFrame) -> None:
        """Add what is new, and to what is known the relays that were not counted yet."""
        messages = messages.persist()  # a merge reads them twice
        days = [str(day) for (day,) in messages.select("date").distinct().collect()]
        within = ", ".join(f"DATE'{day}'" for day in days)
        messages.sparkSession.sql(
            f"MERGE INTO {target_name(self.folder, MESSAGES)} AS t USING {{source}} AS s"
            f" ON t.date IN ({within}) AND t.date = s.date AND t.content_id = s.content_id"
            f" WHEN MATCHED AND size(array_except(s.relays, t.relays)) > 0 THEN UPDATE SET {_KNOWN}"
            " WHEN NOT MATCHED THEN INSERT *",
            source=messages,
        )
        messages.unpersist()

    def _add_absent(self, frame: DataFrame, table: Table) -> None:
        same = " AND ".join(f"t.{name} <=> s.{name}" for name in table.key)
        frame.sparkSession.sql(
            f"MERGE INTO {target_name(self.folder, table)} AS t USING {{source}} AS s ON {same}"
            " WHEN NOT MATCHED THEN INSERT *",
            source=frame.dropDuplicates(list(table.key)),
        )


def count_rows(
    groups: Iterable[tuple[str, int, int]],
) -> tuple[dict[str, int], dict[int, int], dict[str, int], int]:
    """Return rows by relay, rejects by code, missed reads by relay, and how many are ephemeral.

    Args:
        groups: Relay, code, and how many rows have both.

    """
    served: Counter[str] = Counter()
    rejected: Counter[int] = Counter()
    unread: Counter[str] = Counter()
    ephemeral = 0
    for relay, code, number in groups:
        if code == CODE_UNREAD:
            unread[relay] += number
        elif code == CODE_EPHEMERAL:
            ephemeral += number
        else:
            served[relay] += number
            if code:
                rejected[code] += number
    return dict(served), dict(rejected), dict(unread), ephemeral


def _names(namespaces: Sequence[bytes]) -> Column:
    """Return the condition that a row was asked for under, or names, one of ``namespaces``."""
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    wanted = [f.lit(bytearray(name)) for name in namespaces]
    named = f.substring("header", c.OFFSET_NAMESPACE + 1, c.NAMESPACE_BYTES)
    held = f.coalesce(f.col("namespace_id").isin(wanted), f.lit(False))
    return held | f.coalesce(named.isin(wanted), f.lit(False))


def _timed(checked: DataFrame, now_ms: int) -> DataFrame:
    """Note when rows are written; no relay has received them long after, whatever it says.

    A time at the end of its type would have no day, and keep a message for ever.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    timed = checked.withColumn("ingested_at", _now(now_ms))
    latest = f.col("ingested_at") + f.lit(AHEAD_MAX_MS)
    return timed.withColumn("received_at", f.least("received_at", latest))


def _now(now_ms: int) -> Column:
    """Return the time of a batch as a column.

    A plain number would stand in the code that Spark compiles for a plan, so every batch would be
    compiled, and run cold, anew.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    nothing = f.substring("relay", 1, 0)  # of a column: else it is worked out to a number again
    return f.concat(f.lit(str(now_ms)), nothing).cast("bigint")


def _messages_of(checked: DataFrame) -> DataFrame:
    """Return one row a content id: the copy that came first, and who had one.

    Copies may differ in unsigned bytes; the first valid one stays (J11). One with its payload is
    preferred, because a relay may hold the header alone.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    own = {"content_id", "received_at", "expires_at", "finality", "latency_ms", "copies", "relays"}
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
            f.min("ingested_at").alias("ingested_at"),
        )
    )
    made: dict[str, Column] = {name: f.col(f"first.{name}") for name in carried}
    kept = ("content_id", "received_at", "expires_at", "relays", "ingested_at")
    made |= {name: f.col(name) for name in kept}
    made["finality"] = f.lit(int(FinalityState.PENDING))  # what relays claim stands in raw
    made["latency_ms"] = f.col("received_at") - f.col("first.timestamp")
    made["copies"] = f.size("relays")
    columns = [made[name].alias(name) for name in MESSAGES.names]
    return grouped.select(*columns).sortWithinPartitions("namespace_id", "seq")


def _single_messages_of(checked: DataFrame) -> DataFrame:
    """Return what `_messages_of` returns, when each content id stands once: without a shuffle."""
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    made = {
        "finality": f.lit(int(FinalityState.PENDING)),
        "latency_ms": f.col("received_at") - f.col("timestamp"),
        "copies": f.lit(1),
        "relays": f.array("relay"),
    }
    columns = [made.get(name, f.col(name)).alias(name) for name in MESSAGES.names]
    return checked.where("code = 0").select(*columns).sortWithinPartitions("namespace_id", "seq")


def _served_of(checked: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    served = checked.where(f.col("code").isNotNull() & (f.col("code") >= 0))
    made = {
        # Not by a timestamp: its day is that of the session's time zone, which may be another's.
        "date": f.date_add(
            f.lit(date(1970, 1, 1)), f.floor(f.col("ingested_at") / MS_PER_DAY).cast("int")
        ),
        "namespace": f.col("namespace_id"),
        "seq": f.col("served_seq"),
        "blob_bytes": f.length("blob").cast("bigint"),
    }
    return served.select(*(made.get(name, f.col(name)).alias(name) for name in SERVED.names))


def _rejects_of(checked: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    rejected = checked.where(f.col("code") > 0)
    named = rejected.withColumnRenamed("namespace_id", "namespace")
    return named.select(*REJECTS.names)
