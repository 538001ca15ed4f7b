"""Held runs agree with a plain set of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.store.namespaces import HeldRuns

SEQUENCES = st.lists(st.integers(1, 40), max_size=40)


def runs_of(held: set[int]) -> list[tuple[int, int]]:
    """Return the maximal runs of a set, slowly."""
    runs: list[tuple[int, int]] = []
    for seq in sorted(held):
        if runs and runs[-1][1] == seq - 1:
            runs[-1] = (runs[-1][0], seq)
        else:
            runs.append((seq, seq))
    return runs


def build(sequences: list[int]) -> HeldRuns:
    """Return the runs of ``sequences`` added in order."""
    runs = HeldRuns()
    for seq in sequences:
        runs.add(seq)
    return runs


@given(SEQUENCES)
def test_hold_exactly_what_was_added(sequences: list[int]) -> None:
    """Runs are disjoint, not adjacent, sorted, and hold what was added in any order."""
    runs = build(sequences)

    assert runs.runs() == runs_of(set(sequences))
    assert bool(runs) == bool(sequences)
    assert {seq for seq in range(45) if seq in runs} == set(sequences)


@given(SEQUENCES, st.integers(0, 42))
def test_take_everything_a_head_reaches(sequences: list[int], head: int) -> None:
    """Runs at or next to the head move it and are given up; the others stay (P25)."""
    held = set(sequences)
    runs = build(sequences)
    expected = head
    for first, last in runs_of(held):
        if first <= expected + 1:
            expected = max(expected, last)

    taken = runs.take_from(head)

    assert taken == expected
    assert runs.runs() == runs_of({seq for seq in held if seq > expected})


@given(SEQUENCES, st.integers(1, 42), st.integers(0, 42), st.integers(1, 5))
def test_list_the_lowest_gaps(sequences: list[int], first: int, last: int, limit: int) -> None:
    """Gaps are the maximal runs of what is not held, clipped, lowest first."""
    missing = {seq for seq in range(first, last + 1) if seq not in set(sequences)}

    assert build(sequences).gaps(first, last, limit) == runs_of(missing)[:limit]


def test_a_copy_is_independent() -> None:
    """Changing a copy leaves the original alone."""
    original = build([3])
    copied = original.copy()
    copied.add(9)

    assert original.runs() == [(3, 3)]
    assert copied.runs() == [(3, 3), (9, 9)]


@pytest.mark.parametrize("seq", [2**64 - 1, 2**64 - 2])
def test_hold_the_highest_sequences(seq: int) -> None:
    """The end of u64 is a sequence like any other (11-15)."""
    runs = build([2**64 - 1, 2**64 - 2])

    assert seq in runs
    assert runs.runs() == [(2**64 - 2, 2**64 - 1)]
