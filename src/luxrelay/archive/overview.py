"""The archive's page for `report`, from its tables, without Spark.

Volumes and latencies by minute, the largest namespaces and senders, gaps and how old they are,
and what retention will remove in the coming days: all from the derived tables.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from luxrelay.archive.chart_data import Series
from luxrelay.archive.completeness import AuditReport
from luxrelay.archive.derived import gap_rows
from luxrelay.archive.folder import ArchiveFolder, open_folder
from luxrelay.archive.reporting import ReportTable, RunReport, Tile
from luxrelay.archive.schema import MESSAGES, MINUTES, NAMESPACES, SENDERS, Table
from luxrelay.archive.tables import file_counts, open_table
from luxrelay.archive.upkeep import KEEP_DAYS
from luxrelay.bus.policy import RetentionClass

TOP: Final = 15
"""Namespaces and senders listed."""
POINTS_MAX: Final = 600
"""Points of a line; longer histories are summed into steps."""
FORECAST_DAYS: Final = (1, 7, 30, 90)


def overview(out: Path, audit: AuditReport | None = None, now_ms: int | None = None) -> RunReport:
    """Return the page about the archive at ``out``.

    Args:
        out: The archive folder.
        audit: Its audit; becomes a part of the page.
        now_ms: The time, Unix milliseconds; the clock's when not given.

    Raises:
        ArchiveError: ``archive.foreign``: there is no archive.

    """
    folder = open_folder(out)
    now = int(time.time() * 1000) if now_ms is None else now_ms
    minutes = _read(folder, MINUTES).sort_by("minute")
    namespaces = _read(folder, NAMESPACES)
    messages = _sum(namespaces, "messages")
    copies, rejected = _sum(minutes, "copies"), _sum(minutes, "rejected")
    gaps = [row for row in gap_rows(folder) if row.filled_at is None]
    missing = sum(row.last - row.first + 1 for row in gaps)
    tiles = (
        Tile(label="Messages", value=f"{messages:,}", note=_span_note(namespaces)),
        Tile(label="Payloads", value=_bytes(_sum(namespaces, "blob_bytes"))),
        Tile(
            label="Duplicates",
            value=_percent(copies - messages, copies),
            note=f"{copies:,} copies served by relays",
        ),
        Tile(
            label="Invalid", value=_percent(rejected, copies + rejected), note=f"{rejected:,} rows"
        ),
        Tile(
            label="Missing",
            value=f"{missing:,}",
            note=f"{len(gaps):,} gaps",
            tone="bad" if gaps else "good",
        ),
        Tile(label="Files", value=f"{sum(file_counts(folder, MESSAGES).values()):,}"),
    )
    when = f"{datetime.fromtimestamp(now / 1000, UTC):%Y-%m-%d at %H:%M:%S}"
    return RunReport(
        title="LuxRelay archive",
        summary=f"The folder {out.resolve().name} as it was on {when} UTC.",
        tiles=tiles,
        throughput=_lines(minutes),
        audit=audit,
        tables=tuple(_tables(folder, namespaces, minutes, now)),
    )


def _tables(
    folder: ArchiveFolder, namespaces: pa.Table, minutes: pa.Table, now_ms: int
) -> Iterable[ReportTable]:
    if minutes.num_rows:
        yield _latencies(minutes)
    if namespaces.num_rows:
        yield _top(
            "Largest namespaces",
            namespaces,
            ("namespace_id",),
            (("messages", "Messages"), ("slots", "Slots"), ("blob_bytes", "Payload")),
        )
        yield _top(
            "Busiest senders",
            _read(folder, SENDERS),
            ("sender_pub_key", "sender_address"),
            (("messages", "Messages"), ("blob_bytes", "Payload")),
        )
        yield _forecast(folder, now_ms)


def _latencies(minutes: pa.Table) -> ReportTable:
    """Return latencies by day: the median minute's and the worst minute's percentiles."""
    rows = []
    for day in sorted(set(minutes.column("date").to_pylist())):
        part = minutes.filter(pc.equal(minutes.column("date"), day))
        part = part.filter(pc.greater(part.column("messages"), 0))
        if not part.num_rows:
            continue
        rows.append(
            (
                day.isoformat(),
                f"{_sum(part, 'messages'):,}",
                *(
                    f"{value:,.0f}"
                    for value in (
                        _median(part, "latency_p50_ms"),
                        _median(part, "latency_p99_ms"),
                        pc.max(part.column("latency_max_ms")).as_py(),
                    )
                ),
            )
        )
    return ReportTable(
        title="Latency by day",
        head=("Day", "Messages", "Median ms", "99 % ms", "Most ms"),
        rows=tuple(rows),
        note="From the sender's clock to the first relay; percentiles of the day's median minute.",
    )


def _top(
    title: str, rows: pa.Table, names: tuple[str, ...], sums: tuple[tuple[str, str], ...]
) -> ReportTable:
    grouped = rows.group_by(list(names)).aggregate([(column, "sum") for column, _ in sums])
    ordered = grouped.sort_by([(f"{sums[0][0]}_sum", "descending"), (names[0], "ascending")])
    cells = []
    for row in ordered.slice(0, TOP).to_pylist():
        shown = row[names[-1]] or row[names[0]]
        amounts = [row[f"{column}_sum"] for column, _ in sums]
        cells.append(
            (
                shown.hex()[:40],
                *(
                    _bytes(amount) if column == "blob_bytes" else f"{amount:,}"
                    for (column, _), amount in zip(sums, amounts, strict=True)
                ),
            )
        )
    return ReportTable(
        title=title,
        head=(names[-1].removesuffix("_id").replace("_", " ").capitalize(), *(n for _, n in sums)),
        rows=tuple(cells),
        note=f"{grouped.num_rows:,} in all." if grouped.num_rows > TOP else "",
    )


def _forecast(folder: ArchiveFolder, now_ms: int) -> ReportTable:
    """Return what will be past its class in some days, when nothing new comes."""
    columns = ["date", "retention", "blob_len"]
    dataset = open_table(folder, MESSAGES).to_pyarrow_dataset()
    held = pa.TableGroupBy(dataset.to_table(columns=columns), ["date", "retention"]).aggregate(
        [("blob_len", "sum"), ("blob_len", "count")]
    )
    today = datetime.fromtimestamp(now_ms / 1000, UTC).date()
    rows = []
    for days in FORECAST_DAYS:
        gone = [row for row in held.to_pylist() if _past(row, today + timedelta(days=days))]
        rows.append(
            (
                "1 day" if days == 1 else f"{days} days",
                f"{sum(row['blob_len_count'] for row in gone):,}",
                _bytes(sum(row["blob_len_sum"] for row in gone)),
            )
        )
    return ReportTable(
        title="Retention forecast",
        head=("Within", "Messages past their class", "Payload"),
        rows=tuple(rows),
        note="Standard 30 days, Archive 365, Permanent for ever; `archive retain` deletes.",
    )


def _past(row: dict[str, Any], day: date) -> bool:
    kept = KEEP_DAYS[RetentionClass.STANDARD if row["retention"] is None else row["retention"]]
    return kept is not None and row["date"] < day - timedelta(days=kept)


def _lines(minutes: pa.Table) -> tuple[Series, ...]:
    """Return the throughput up to the newest minute, which is not whole and would seem a fall."""
    if minutes.num_rows < 3:
        return ()
    begin, end = (pc.min(minutes["minute"]).as_py(), pc.max(minutes["minute"]).as_py())
    minutes = minutes.filter(pc.less(minutes["minute"], end))
    step = max(1, -(-(end - begin) // 60_000 // POINTS_MAX)) * 60_000
    sums: dict[int, int] = {}
    for minute, count in zip(
        minutes["minute"].to_pylist(), minutes["messages"].to_pylist(), strict=True
    ):
        place = (minute - begin) // step
        sums[place] = sums.get(place, 0) + count
    lengths = {place: min(step, end - begin - place * step) for place in range(POINTS_MAX)}
    points = tuple(
        (place * step / 1000, sums.get(place, 0) / (length / 1000))
        for place, length in lengths.items()
        if length > 0
    )
    return (Series(name="archived", points=points),)


def _read(folder: ArchiveFolder, table: Table) -> pa.Table:
    return open_table(folder, table).to_pyarrow_table(columns=list(table.names))


def _sum(rows: pa.Table, column: str) -> int:
    return int(pc.sum(rows.column(column)).as_py() or 0)


def _median(rows: pa.Table, column: str) -> float:
    return float(pc.quantile(rows.column(column), 0.5)[0].as_py())


def _span_note(namespaces: pa.Table) -> str:
    if not namespaces.num_rows:
        return ""
    days = pc.min_max(namespaces.column("date")).as_py()
    first, last = days["min"], days["max"]
    return f"{first}" if first == last else f"{first} to {last}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "–"


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"
