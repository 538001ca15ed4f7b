"""What of writing a batch needs no Spark; the rest is in tests/integration/archive."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from luxrelay.archive.batches import (
    BatchCounts,
    BatchReport,
    BatchWriter,
    StreamStoppedError,
    count_rows,
)
from luxrelay.archive.folder import ArchiveFolder, Marker
from luxrelay.archive.rules import CODE_EPHEMERAL
from luxrelay.archive.schema import CODE_UNREAD


def _counts(number: int) -> BatchCounts:
    return BatchCounts(
        report=BatchReport(batch=number, rows=7, messages=5, rejected=2, seconds=0.5),
        rows_by_relay={"a:1": 7},
        rejected_by_code={1005: 2},
        unread={"b:1": 3},
        ephemeral=1,
    )


def test_rows_rejects_and_unread_relays_are_counted_apart() -> None:
    """An unread relay is neither a row nor a reject, and what is ephemeral is no row."""
    groups = [
        ("a:1", 0, 5),
        ("a:1", 1005, 2),
        ("b:1", 0, 4),
        ("b:1", CODE_UNREAD, 3),
        ("a:1", CODE_EPHEMERAL, 6),
    ]

    assert count_rows(groups) == ({"a:1": 7, "b:1": 4}, {1005: 2}, {"b:1": 3}, 6)


def test_batches_add_up_and_are_told(tmp_path: Path) -> None:
    """Totals are those of all batches; each is told when it is written."""
    told: list[int] = []
    writer = BatchWriter(ArchiveFolder(tmp_path, Marker()), lambda batch: told.append(batch.batch))

    writer.take(_counts(0))
    writer.take(_counts(1))

    assert told == [batch.batch for batch in writer.batches] == [0, 1]
    assert writer.rows_by_relay == {"a:1": 14}
    assert writer.rejected_by_code == {1005: 4}
    assert writer.unread == {"b:1": 6}
    assert writer.ephemeral == 2


def test_a_stop_is_obeyed_between_two_batches(tmp_path: Path) -> None:
    """The batch that was being written counts; the next one is refused unread."""
    stop = threading.Event()
    writer = BatchWriter(ArchiveFolder(tmp_path, Marker()), None, stop=stop)
    writer.take(_counts(0))
    assert not writer.stopped.is_set()

    stop.set()
    writer.take(_counts(1))

    assert writer.stopped.is_set()
    with pytest.raises(StreamStoppedError):
        writer.write(cast("Any", None), 2)


def test_where_rows_go_is_a_value(tmp_path: Path) -> None:
    """It reaches a process of its own, without what only a driver has."""
    writer = BatchWriter(
        ArchiveFolder(tmp_path, Marker()), print, barred=[b"n" * 20], stop=threading.Event()
    )

    copy = pickle.loads(pickle.dumps(writer.tables))  # noqa: S301  our own bytes

    assert (copy.folder, copy.barred, copy.again) == (writer.folder, (b"n" * 20,), False)
    assert copy.check
