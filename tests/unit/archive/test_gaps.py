"""The history of gaps, against sets of sequences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from luxrelay.archive.gaps import GapRow, beside, reached, rejected_heads, settle
from luxrelay.archive.offsets import Span

A, B = b"a" * 20, b"b" * 20


def _ranges(missing: set[int], namespace: bytes = A) -> list[Span]:
    spans: list[Span] = []
    for seq in sorted(missing):
        if spans and spans[-1].last == seq - 1:
            spans[-1] = spans[-1]._replace(last=seq)
        else:
            spans.append(Span(namespace, seq, seq))
    return spans


def _open(rows: list[GapRow]) -> list[int]:
    return [seq for row in rows if row.filled_at is None for seq in range(row.first, row.last + 1)]


def test_a_gap_that_stays_keeps_its_time() -> None:
    """Looking again changes nothing."""
    rows = settle([], [Span(A, 3, 5)], 10)

    assert rows == [GapRow(A, 3, 5, 10)]
    assert settle(rows, [Span(A, 3, 5)], 20) == rows


def test_a_gap_filled_in_part_is_closed_and_the_rest_stays_open_since_then() -> None:
    """What is left remembers when it was first seen (J8)."""
    rows = settle([GapRow(A, 3, 9, 10)], [Span(A, 3, 4), Span(A, 8, 9)], 20)

    assert rows == [
        GapRow(A, 3, 4, 10),
        GapRow(A, 3, 9, 10, 20),
        GapRow(A, 8, 9, 10),
    ]


def test_a_gap_that_grows_opens_only_what_is_new() -> None:
    """Sequences that were missing before keep their time, in each namespace by itself."""
    rows = settle([GapRow(A, 3, 5, 10), GapRow(B, 1, 1, 10)], [Span(A, 2, 7)], 20)

    assert rows == [
        GapRow(A, 2, 2, 20),
        GapRow(A, 3, 5, 10),
        GapRow(A, 6, 7, 20),
        GapRow(B, 1, 1, 10, 20),
    ]


@given(st.lists(st.sets(st.integers(1, 24)), min_size=1, max_size=6))
def test_open_gaps_are_what_is_missing(looks: list[set[int]]) -> None:
    """After any course, each missing sequence is in one open gap, seen when it first was."""
    rows: list[GapRow] = []
    since: dict[int, int] = {}
    for now, missing in enumerate(looks, start=1):
        rows = settle(rows, _ranges(missing), now)
        since = {seq: since.get(seq, now) for seq in missing}

    assert sorted(_open(rows)) == sorted(looks[-1])
    for row in rows:
        if row.filled_at is None:
            assert {since[seq] for seq in range(row.first, row.last + 1)} == {row.seen_at}
        else:
            assert row.seen_at <= row.filled_at


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 6)), max_size=6),
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 6)), max_size=6),
)
def test_what_lies_beside_other_ranges_is_the_difference_of_two_sets(
    spans: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    """Each sequence once, of its own namespace alone."""
    wanted = {seq for first, more in spans for seq in range(first, first + more + 1)}
    taken = {seq for first, more in others for seq in range(first, first + more + 1)}

    left = beside(
        [Span(A, first, first + more) for first, more in spans],
        [Span(A, first, first + more) for first, more in others] + [Span(B, 1, 99)],
    )

    seqs = [seq for span in left for seq in range(span.first, span.last + 1)]
    assert sorted(seqs) == sorted(wanted - taken)


def test_what_was_rejected_above_all_messages_is_missing() -> None:
    """Up to the highest such sequence, of namespaces of which something is archived."""
    tops = {A: 9, B: 4, b"c" * 20: 7}

    assert rejected_heads({A: 5, B: 4}, tops, []) == [Span(A, 6, 9)]


def test_a_gap_above_all_messages_outlives_the_rejects() -> None:
    """Retention takes rejects after a month; the gap stays until a message comes (J8)."""
    known = [GapRow(A, 6, 9, 1), GapRow(A, 2, 3, 1), GapRow(B, 8, 9, 1, 2)]

    assert rejected_heads({A: 5, B: 4}, {}, known) == [Span(A, 6, 9)]
    assert rejected_heads({A: 5, B: 4}, {A: 12}, known) == [Span(A, 6, 12)]
    assert rejected_heads({A: 9, B: 4}, {}, known) == []


def test_how_far_a_namespace_was_read() -> None:
    """Ranges without a message count as long as they touch what was read before them."""
    spans = [Span(A, 9, 9), Span(A, 6, 7), Span(A, 2, 3)]

    assert reached(5, spans) == 7
    assert reached(5, [*spans, Span(A, 8, 8)]) == 9
    assert reached(10, spans) == 10
