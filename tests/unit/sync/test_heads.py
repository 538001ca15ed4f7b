"""Heads and holes as arithmetic."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus.header import NamespaceId
from luxrelay.sync.heads import (
    Disagreement,
    PeerHead,
    SeqRange,
    disagreements,
    holes_between,
    missing_up_to,
    overlap,
)

NS = NamespaceId(b"n" * 20)


def head(**fields: int | bytes) -> PeerHead:
    """Return a head of NS."""
    return PeerHead(namespace_id=NS, parent_id=NS, **fields)  # type: ignore[arg-type]


def test_range_size_counts_both_ends() -> None:
    """A range holds its first and its last sequence."""
    assert SeqRange(3, 3).size == 1
    assert SeqRange(3, 7).size == 5


@pytest.mark.parametrize(
    ("fields", "plausible", "reach"),
    [
        ({}, True, None),
        ({"earliest_seq": 0, "latest_seq": 9}, True, None),
        ({"earliest_seq": 2, "latest_seq": 9}, True, SeqRange(2, 9)),
        ({"earliest_seq": 9, "latest_seq": 2}, False, SeqRange(9, 2)),
    ],
)
def test_head_says_what_may_be_asked(
    fields: dict[str, int], plausible: bool, reach: SeqRange | None
) -> None:
    """A relay that holds nothing has no reach, though it may know how far things went."""
    assert head(**fields).plausible is plausible
    assert head(**fields).reach == reach


@pytest.mark.parametrize(
    ("held", "holes"),
    [
        ([], [(3, 9)]),
        ([3, 4, 5, 6, 7, 8, 9], []),
        ([4, 4, 7], [(3, 3), (5, 6), (8, 9)]),
        ([1, 2, 12], [(3, 9)]),
        ([9], [(3, 8)]),
    ],
)
def test_holes_are_what_is_absent(held: list[int], holes: list[tuple[int, int]]) -> None:
    """Repeats and sequences outside the range do not matter."""
    assert holes_between(3, 9, held) == holes


@given(st.sets(st.integers(1, 40)), st.integers(1, 40), st.integers(1, 40))
def test_holes_and_held_share_the_range(held: set[int], first: int, last: int) -> None:
    """Every sequence of the range is either held or in exactly one hole (P25)."""
    holes = holes_between(first, last, sorted(held))

    missing = [seq for hole in holes for seq in range(hole.first, hole.last + 1)]
    assert missing == [seq for seq in range(first, last + 1) if seq not in held]
    assert all(before.last + 1 < after.first for before, after in pairwise(holes))


def test_overlap_is_what_both_hold() -> None:
    """Ranges that touch share the touching sequence; others share nothing."""
    assert overlap(SeqRange(1, 5), SeqRange(5, 9)) == SeqRange(5, 5)
    assert overlap(SeqRange(1, 5), SeqRange(6, 9)) is None
    assert overlap(SeqRange(1, 9), SeqRange(3, 4)) == SeqRange(3, 4)


@pytest.mark.parametrize(
    ("own", "gaps", "latest", "missing"),
    [
        (None, [], 5, [(1, 5)]),
        (None, [], 0, []),
        (head(contiguous_seq=5, latest_seq=5), [], 5, []),
        (head(contiguous_seq=5, latest_seq=5), [], 8, [(6, 8)]),
        (head(contiguous_seq=5, latest_seq=9), [SeqRange(6, 7)], 12, [(6, 7), (10, 12)]),
        (head(contiguous_seq=5, latest_seq=9), [SeqRange(6, 7)], 6, [(6, 6)]),
        (head(contiguous_seq=5, latest_seq=9), [SeqRange(2, 7)], 9, [(6, 7)]),
        (head(contiguous_seq=7, latest_seq=3), [], 9, [(8, 9)]),
    ],
)
def test_missing_is_gaps_and_what_lies_beyond(
    own: PeerHead | None, gaps: list[SeqRange], latest: int, missing: list[tuple[int, int]]
) -> None:
    """What is missing lies above our contiguous head and not above the latest."""
    assert missing_up_to(own, gaps, latest) == missing


def test_see_two_hashes_at_one_sequence() -> None:
    """P26: peers that name one latest sequence with two hashes disagree; others do not."""
    a = head(earliest_seq=1, latest_seq=5, latest_header_hash=b"a" * 32)
    b = head(earliest_seq=1, latest_seq=5, latest_header_hash=b"b" * 32)
    later = head(earliest_seq=1, latest_seq=6, latest_header_hash=b"c" * 32)
    silent = head(earliest_seq=1, latest_seq=5)

    assert disagreements({"a": a, "b": b, "a2": a}) == [Disagreement(NS, 5, ("a", "b"))]
    assert disagreements({"a": a, "later": later, "silent": silent}) == []
