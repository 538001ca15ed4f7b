"""A micro-batch of rows that may have been read before, merged into the tables by their keys.

Theory of operation
-------------------
*Decides* what becomes of a message that the archive knows already.
*Does not know* when that is to be expected (`batches`).
A checkpoint that was lost, segment files beside relays, and gaps that are read again bring rows
that the tables may hold. Spark joins them with what is there: checked rows are persisted, counted,
grouped by content id, and each table takes up what its key does not find.
*Bounds*: none of its own; a batch is as large as the source's limit.
*What else to change when you change this*: `part_files`, which makes the same rows of batches that
cannot have been read before.

Source: 21-52; decisions J8, J11, P42.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Final

from luxrelay.archive.folder import ArchiveFolder
from luxrelay.archive.part_files import AHEAD_MAX_MS, Check
from luxrelay.archive.rules import CODE_EPHEMERAL
from luxrelay.archive.schema import (
    CHECKED,
    MESSAGES,
    MS_PER_DAY,
    PASSED,
    REJECTS,
    SERVED,
    Table,
)
from luxrelay.archive.slot_lookup import (
    FILES_DDL,
    HELD_DDL,
    SEQ_BYTES,
    SLOTS_DDL,
    HeldSlots,
    read_slots,
)
from luxrelay.archive.tables import files_with, target_name
from luxrelay.bus import constants as c
from luxrelay.bus.finality import FinalityState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SLOT_BYTES: Final = c.NAMESPACE_BYTES + SEQ_BYTES
"""Namespace and sequence stand side by side in a header."""
_RELAYS: Final = "array_sort(array_union(t.relays, s.relays))"
_KNOWN: Final = ", ".join(
    f"{name} = {value}"
    for name, value in {
        "relays": _RELAYS,
        "copies": f"size({_RELAYS})",
        "blob": "coalesce(t.blob, s.blob)",
        # A sidecar belongs to the header that refers to it, and to no other copy (H3).
        "sidecar": "if(t.digest = s.digest, coalesce(t.sidecar, s.sidecar), t.sidecar)",
        "received_at": "least(t.received_at, s.received_at)",
        "latency_ms": "least(t.latency_ms, s.latency_ms)",
        "expires_at": "greatest(t.expires_at, s.expires_at)",
    }.items()
)
"""What becomes of a message that is known when another relay serves it.

Its finality stays: statements alone move it (`statements`), whatever a relay claims.
"""


def holds_any(folder: ArchiveFolder, raw: DataFrame) -> bool:
    """Return True when the archive has read a row of one of the slots (`slot_lookup`) before.

    Args:
        folder: The archive.
        raw: Rows of ``schema.RAW``.

    """
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    header_seq = f.conv(f.hex(f.substring("header", c.OFFSET_SEQ + 1, SEQ_BYTES)), 16, 10)
    wanted = (
        raw.select("namespace", "seq")
        .union(raw.select(_named(), header_seq.try_cast("bigint")))
        .union(raw.select(_named(), "seq"))  # of a good row that was asked for under no namespace
        .distinct()
    )
    (low, high), *_ = wanted.agg(f.min("seq"), f.max("seq")).collect()
    return _held(folder, wanted, low, high)


def holds_or_shares(folder: ArchiveFolder, tasks: DataFrame) -> bool:
    """Return True also when two tasks read rows of the same slot.

    Only slots pass through Spark: tasks read what they read once for this, and again to write it.

    Args:
        folder: The archive.
        tasks: What reads rows (`task_source`).

    """
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    shared = (f.min("task") != f.max("task")).alias("shared")
    slots = tasks.mapInArrow(read_slots, SLOTS_DDL).groupBy("namespace", "seq").agg(shared)
    slots = slots.persist()
    try:
        (low, high, some), *_ = slots.agg(f.min("seq"), f.max("seq"), f.max("shared")).collect()
        return bool(some) or _held(folder, slots, low, high)
    finally:
        slots.unpersist()


def _held(folder: ArchiveFolder, wanted: DataFrame, low: int | None, high: int | None) -> bool:
    """Return True when ``raw`` or ``messages`` has one of the slots, whose sequences lie between.

    A row without a namespace or a sequence is as one that has neither. The logs say which files
    may have such sequences; of these tasks read two columns. A row that was deleted and whose file
    is there still counts as held: its batch is merged, which is slower and as good.
    """
    files = [
        (str((folder.table(table) / path).resolve()), name)
        for table, name in ((SERVED, "namespace"), (MESSAGES, "namespace_id"))
        for path in files_with(folder, table, "seq", low, high)
    ]
    if not files:
        return False
    held = wanted.sparkSession.createDataFrame(files, FILES_DDL)
    held = held.mapInArrow(HeldSlots(low, high), HELD_DDL)
    same = [held[name].eqNullSafe(wanted[name]) for name in ("namespace", "seq")]
    return bool(held.join(wanted, same, "left_semi").limit(1).collect())


def by_slot(raw: DataFrame) -> DataFrame:
    """Return the rows so that one task has all that carry the same slot."""
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    return raw.repartition(f.substring("header", c.OFFSET_NAMESPACE + 1, _SLOT_BYTES))


def merge_batch(
    folder: ArchiveFolder, raw: DataFrame, *, check: Check, barred: Sequence[bytes], now_ms: int
) -> tuple[list[tuple[str, int, int]], int]:
    """Merge a micro-batch of raw rows; return rows by relay and code, and how many messages it has.

    Args:
        folder: The archive.
        raw: Rows of ``schema.RAW``.
        check: Raw rows into checked ones, on executors.
        barred: Namespaces that were erased: nothing of them is taken up.
        now_ms: When the batch is written.

    """
    checked = raw.mapInArrow(check, CHECKED.plain_ddl())
    if barred:
        checked = checked.where(~_names(barred))
    # Several actions follow, and each would read the relays again.
    checked = _timed(checked, now_ms).persist()
    try:
        groups = [tuple(row) for row in checked.groupBy("relay", "code").count().collect()]
        codes = {code for _, code, _ in groups}
        messages = 0
        if any(code >= 0 for code in codes):
            _add_absent(folder, _served_of(checked), SERVED)
        if 0 in codes:
            messages = checked.where("code = 0").select("content_id").distinct().count()
            _merge(folder, _messages_of(checked))
        if any(code > 0 for code in codes):
            _add_absent(folder, _rejects_of(checked), REJECTS)
        if CODE_EPHEMERAL in codes:
            _add_absent(folder, _passed_of(checked), PASSED)
    finally:
        checked.unpersist()
    return groups, messages


def _merge(folder: ArchiveFolder, messages: DataFrame) -> None:
    """Add what is new, and to what is known the relays that were not counted yet."""
    messages = messages.persist()  # a merge reads them twice
    days = [str(day) for (day,) in messages.select("date").distinct().collect()]
    within = ", ".join(f"DATE'{day}'" for day in days)
    messages.sparkSession.sql(
        f"MERGE INTO {target_name(folder, MESSAGES)} AS t USING {{source}} AS s"
        f" ON t.date IN ({within}) AND t.date = s.date AND t.content_id = s.content_id"
        f" WHEN MATCHED AND size(array_except(s.relays, t.relays)) > 0 THEN UPDATE SET {_KNOWN}"
        " WHEN NOT MATCHED THEN INSERT *",
        source=messages,
    )
    messages.unpersist()


def _add_absent(folder: ArchiveFolder, frame: DataFrame, table: Table) -> None:
    same = " AND ".join(f"t.{name} <=> s.{name}" for name in table.key)
    frame.sparkSession.sql(
        f"MERGE INTO {target_name(folder, table)} AS t USING {{source}} AS s ON {same}"
        " WHEN NOT MATCHED THEN INSERT *",
        source=frame.dropDuplicates(list(table.key)),
    )


def _names(namespaces: Sequence[bytes]) -> Column:
    """Return the condition that a row was asked for under, or names, one of ``namespaces``."""
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    wanted = [f.lit(bytearray(name)) for name in namespaces]
    named = _named()
    held = f.coalesce(f.col("namespace_id").isin(wanted), f.lit(False))
    return held | f.coalesce(named.isin(wanted), f.lit(False))


def _named() -> Column:
    """Return the namespace in a row's header."""
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    return f.substring("header", c.OFFSET_NAMESPACE + 1, c.NAMESPACE_BYTES)


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

    Copies may differ in unsigned bytes; the first valid one stays (J11). One with its payload, then
    one with its sidecar, is preferred, because a relay may hold the header alone.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    own = {"content_id", "received_at", "expires_at", "finality", "latency_ms", "copies", "relays"}
    carried = [name for name in MESSAGES.names if name not in own and name != "ingested_at"]
    bare = f.col("blob").isNull(), f.col("sidecar").isNull()
    order = f.struct(*bare, f.col("received_at"), f.col("digest"))
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


def _passed_of(checked: DataFrame) -> DataFrame:
    passed = checked.where(f"code = {CODE_EPHEMERAL} AND served_seq IS NOT NULL")
    return passed.selectExpr(
        "namespace_id", "served_seq AS first", "served_seq AS last", "ingested_at"
    )
