"""What of reading gaps again needs no Spark; the rest is in tests/integration/archive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from luxrelay.archive import refetching
from luxrelay.archive.gaps import GapRow
from luxrelay.archive.offsets import Span
from luxrelay.archive.options import SourceOptions
from luxrelay.sync import WireMessage

N, M = b"n" * 20, b"m" * 20
OPTIONS = SourceOptions.parse({"relays": "a:1", "failOnDataLoss": "false"})


def _seqs(tables: list[pa.Table]) -> list[list[tuple[bytes, int]]]:
    return [
        list(zip(*(table.column(name).to_pylist() for name in ("namespace", "seq")), strict=True))
        for table in tables
    ]


def test_every_range_of_a_namespace_is_read(
    forge: Callable[..., WireMessage], memory_relays: Any
) -> None:
    """Gaps, and what a comparison missed beside them, also where other namespaces lie between."""
    for name in (M, N):
        memory_relays.put("a:1", *(forge(name, seq) for seq in range(1, 10)))
    gaps = [GapRow(M, 1, 2, 7), GapRow(M, 4, 4, 7, filled_at=8), GapRow(N, 5, 6, 7)]
    also = [Span(N, 6, 8), Span(M, 2, 3), Span(M, 9, 9)]

    wanted = refetching._missing(gaps, also)
    read = _seqs(list(refetching._raw(OPTIONS, wanted, ())))

    assert wanted == [
        Span(M, 1, 2), Span(M, 3, 3), Span(M, 9, 9), Span(N, 5, 6), Span(N, 7, 8),
    ]  # fmt: skip
    assert [sorted(table) for table in read] == [
        [(M, 1), (M, 2), (M, 3), (M, 9), (N, 5), (N, 6), (N, 7), (N, 8)]
    ]


@pytest.mark.parametrize(
    ("bounds", "sizes"),
    [({"BYTES_MAX": 1}, [1] * 3), ({"ROWS_MAX": 2}, [2, 1]), ({"ROWS_MAX": 3}, [3])],
)
def test_what_is_held_is_bounded_by_rows_and_bytes(
    forge: Callable[..., WireMessage],
    memory_relays: Any,
    monkeypatch: pytest.MonkeyPatch,
    bounds: dict[str, int],
    sizes: list[int],
) -> None:
    """Payloads reach 2 MiB: rows alone would let a table grow without end."""
    memory_relays.put("a:1", *(forge(N, seq) for seq in range(1, 4)))
    monkeypatch.setattr("luxrelay.archive.relays.BATCH_ROWS", 1)
    for name, value in bounds.items():
        monkeypatch.setattr(refetching, name, value)

    tables = list(refetching._raw(OPTIONS, [Span(N, 1, 3)], ()))

    assert [table.num_rows for table in tables] == sizes
    assert [each for seqs in _seqs(tables) for each in seqs] == [(N, 1), (N, 2), (N, 3)]
