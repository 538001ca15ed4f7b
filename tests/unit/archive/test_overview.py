"""The page about an archive, from tables written without Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from luxrelay.archive.overview import overview
from luxrelay.archive.reporting import render
from luxrelay.archive.schema import GAPS, MINUTES, NAMESPACES, SENDERS, Table
from luxrelay.errors import ArchiveError
from luxrelay.sync import WireMessage

T0 = 1_704_067_200_000
DAY = 86_400_000
A, B = b"\xaa" * 20, b"\xbb" * 20


def _write(path: Path, table: Table, *rows: dict[str, object]) -> None:
    whole = [{column.name: None for column in table.columns} | row for row in rows]
    data = pa.Table.from_pylist(whole, schema=table.arrow())
    write_deltalake(str(path / table.name), data, mode="append")


@pytest.fixture
def archive(
    archive_of: Callable[..., Path], forge: Callable[..., WireMessage], tmp_path: Path
) -> Path:
    """An archive of two namespaces with what is derived from it."""
    messages = [forge(A, seq, timestamp=T0 + seq) for seq in range(1, 6)]
    messages += [forge(B, 1, timestamp=T0 + 40 * DAY)]
    path = archive_of(tmp_path / "archive", messages)
    day = {"senders": 1, "first_seq": 1, "copies": 9}
    _write(
        path,
        NAMESPACES,
        day | {"date": date(2024, 1, 1), "namespace_id": A, "messages": 5, "slots": 5,
               "last_seq": 5, "blob_bytes": 4_096},
        day | {"date": date(2024, 2, 10), "namespace_id": B, "messages": 1, "slots": 1,
               "last_seq": 1, "blob_bytes": 5},
    )  # fmt: skip
    _write(
        path,
        SENDERS,
        {"date": date(2024, 1, 1), "sender_pub_key": b"k", "sender_address": b"\xcc" * 20,
         "messages": 5, "namespaces": 1, "blob_bytes": 10, "first_at": 1, "last_at": 2},
    )  # fmt: skip
    base = {"date": date(2024, 1, 1), "blob_bytes": 1, "latency_p50_ms": 40, "latency_p95_ms": 60,
            "latency_p99_ms": 70, "latency_max_ms": 80}  # fmt: skip
    _write(
        path,
        MINUTES,
        base | {"minute": T0, "messages": 3, "copies": 6, "rejected": 1},
        base | {"minute": T0 + 240_000, "messages": 2, "copies": 2, "rejected": 0},
        base | {"minute": T0 + 300_000, "messages": 1, "copies": 1, "rejected": 0},
    )
    _write(
        path,
        GAPS,
        {"namespace_id": A, "first": 7, "last": 9, "seen_at": T0},
        {"namespace_id": B, "first": 2, "last": 2, "seen_at": T0, "filled_at": T0 + 1},
    )
    return path


def test_numbers_at_the_top(archive: Path) -> None:
    """Messages, duplicates, invalid rows and open gaps are the sums of the tables."""
    page = overview(archive, now_ms=T0 + 45 * DAY)

    shown = {tile.label: (tile.value, tile.note) for tile in page.tiles}
    assert page.summary == "The folder archive as it was on 2024-02-15 at 00:00:00 UTC."
    assert shown["Messages"] == ("6", "2024-01-01 to 2024-02-10")
    assert shown["Payloads"][0] == "4.0 KiB"
    assert shown["Duplicates"] == ("33.33 %", "9 copies served by relays")
    assert shown["Invalid"] == ("10.00 %", "1 rows")
    assert shown["Missing"] == ("3", "1 gaps")


def test_tables_and_forecast(archive: Path) -> None:
    """Largest namespaces and senders first, and what retention takes within some days."""
    tables = {part.title: part for part in overview(archive, now_ms=T0 + 45 * DAY).tables}

    assert [row[:2] for row in tables["Largest namespaces"].rows] == [
        (A.hex(), "5"), (B.hex(), "1"),
    ]  # fmt: skip
    assert tables["Busiest senders"].rows == (("cc" * 20, "5", "10 B"),)
    assert tables["Latency by day"].rows == (("2024-01-01", "6", "40", "70", "80"),)
    forecast = {row[0]: row[1] for row in tables["Retention forecast"].rows}
    assert forecast == {"1 day": "5", "7 days": "5", "30 days": "6", "90 days": "6"}


def test_throughput_has_a_point_for_every_minute(archive: Path) -> None:
    """Minutes in which nothing came are points at zero; the newest is not whole and is left out."""
    (line,) = overview(archive).throughput

    assert [seconds for seconds, _ in line.points] == [0, 60, 120, 180, 240]
    assert [rate * 60 for _, rate in line.points] == [3, 0, 0, 0, 2]


def test_a_long_history_has_a_bound(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond POINTS_MAX minutes are summed; a last step that is shorter has its own length."""
    monkeypatch.setattr("luxrelay.archive.overview.POINTS_MAX", 3)

    (line,) = overview(archive).throughput

    assert [seconds for seconds, _ in line.points] == [0, 120, 240]
    assert [rate * 120 for _, rate in line.points] == [3, 0, 4]


def test_the_page_is_made_and_an_empty_archive_has_one(
    archive: Path,
    archive_of: Callable[..., Path],
    forge: Callable[..., WireMessage],
    tmp_path: Path,
) -> None:
    """An archive without derived rows shows what it can."""
    bare = archive_of(tmp_path / "bare", [forge(A, 1)])

    assert "Retention forecast" in render(overview(archive))
    assert "LuxRelay archive" in render(overview(bare))
    with pytest.raises(ArchiveError, match="no LuxRelay archive"):
        overview(tmp_path / "nothing")
