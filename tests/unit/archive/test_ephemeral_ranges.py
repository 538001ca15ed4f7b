"""What was read and passed over, as ranges."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.archive.ephemeral_ranges import PassedRow, merged, passed_of
from luxrelay.archive.rules import CODE_EPHEMERAL
from luxrelay.archive.schema import CHECKED

A, B = b"a" * 20, b"b" * 20


def _row(name: bytes, first: int, last: int, at: int = 1) -> PassedRow:
    return PassedRow(name, first, last, at)


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 20), st.integers(0, 5))))
def test_merged_rows_are_the_same_sequences(ranges: list[tuple[bytes, int, int]]) -> None:
    """In order, none touching another, whatever overlapped."""
    rows = [_row(name, first, first + more, first) for name, first, more in ranges]

    found = merged(rows)

    def seqs(some: Sequence[PassedRow]) -> set[tuple[bytes, int]]:
        return {(row.namespace_id, seq) for row in some for seq in range(row.first, row.last + 1)}

    assert seqs(found) == seqs(rows)
    assert sum(row.last - row.first + 1 for row in found) == len(seqs(rows))
    pairs = pairwise(found)
    assert all(
        low.namespace_id < high.namespace_id or low.last + 1 < high.first for low, high in pairs
    )


def test_checked_rows_that_are_ephemeral_make_ranges() -> None:
    """Copies of several relays and other verdicts make no rows of their own."""
    rows = [
        {"code": code, "namespace_id": name, "served_seq": seq}
        for name, seq, code in (
            (A, 5, CODE_EPHEMERAL), (A, 4, CODE_EPHEMERAL), (A, 5, CODE_EPHEMERAL),
            (A, 6, 0), (A, 7, 1005), (B, 7, CODE_EPHEMERAL), (B, None, -1),
            (B, None, CODE_EPHEMERAL),
        )
    ]  # fmt: skip

    made = passed_of(pa.Table.from_pylist(rows, schema=CHECKED.arrow()), 77)

    assert made.to_pylist() == [
        {"namespace_id": A, "first": 4, "last": 5, "ingested_at": 77},
        {"namespace_id": B, "first": 7, "last": 7, "ingested_at": 77},
    ]
