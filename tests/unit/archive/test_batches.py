"""What of writing a batch needs no Spark; the rest is in tests/integration/test_archive.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, cast

from luxrelay.archive.batches import BatchWriter
from luxrelay.archive.folder import ArchiveFolder, Marker
from luxrelay.archive.schema import CODE_UNREAD


class Grouped:
    """Stands where a frame stands that is grouped, counted and collected."""

    def __init__(self, *rows: tuple[str, int, int]) -> None:
        self._rows = rows

    def groupBy(self, *names: str) -> Self:  # noqa: N802  PySpark's name
        """Group by relay and code."""
        assert names == ("relay", "code")
        return self

    def count(self) -> Self:
        """Count."""
        return self

    def collect(self) -> list[tuple[str, int, int]]:
        """Return relay, code and count."""
        return list(self._rows)


def test_rows_rejects_and_unread_relays_are_counted_apart(tmp_path: Path) -> None:
    """An unread relay is neither a row nor a reject; batches add up."""
    writer = BatchWriter(ArchiveFolder(tmp_path, Marker()), None)
    frame = cast("Any", Grouped(("a:1", 0, 5), ("a:1", 1005, 2), ("b:1", CODE_UNREAD, 3)))

    assert writer._count(frame) == (7, 2)
    assert writer._count(frame) == (7, 2)

    assert writer.rows_by_relay == {"a:1": 14}
    assert writer.rejected_by_code == {1005: 4}
    assert writer.unread == {"b:1": 6}
