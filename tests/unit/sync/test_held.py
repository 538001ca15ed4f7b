"""Interval lists: what a relay holds in a few numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import constants as c
from luxrelay.sync.heads import SeqRange
from luxrelay.sync.held import from_steps, held_spans, lacking, to_steps
from luxrelay.sync.lanes import spans_of

SEQS = st.sets(st.integers(1, 60)).map(sorted)


@given(SEQS)
def test_steps_are_the_intervals(seqs: list[int]) -> None:
    """Intervals survive the way over the wire."""
    spans = tuple(spans_of(seqs))

    assert from_steps(to_steps(spans)) == spans


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([1], "without an end"),
        ([0, 3], "sequence 0"),
        ([1, 3, 0, 1], "touch"),
        ([c.MAX_U64, 1], "above"),
        ([1, 1, c.MAX_U64, 0], "above"),
    ],
)
def test_refuse_steps_that_are_no_intervals(steps: list[int], why: str) -> None:
    """A list that contradicts itself is an error that says why."""
    with pytest.raises(ValueError, match=why):
        from_steps(steps)


def test_take_the_highest_sequence() -> None:
    """An interval may end at the highest sequence there is."""
    assert from_steps([1, c.MAX_U64 - 1]) == (SeqRange(1, c.MAX_U64),)


@given(SEQS, SEQS)
def test_lacking_is_the_difference_of_the_sets(theirs: list[int], ours: list[int]) -> None:
    """What is lacking is what they hold and we do not (21-26)."""
    found = lacking(spans_of(theirs), spans_of(ours))

    assert [seq for span in found for seq in range(span.first, span.last + 1)] == sorted(
        set(theirs) - set(ours)
    )


@given(SEQS)
def test_spans_of_bounds_and_gaps(seqs: list[int]) -> None:
    """Earliest, latest and the gaps between them say exactly what is held."""
    spans = spans_of(seqs)
    gaps = [(a.last + 1, b.first - 1) for a, b in itertools.pairwise(spans)]
    earliest, latest = (seqs[0], seqs[-1]) if seqs else (0, 0)

    assert held_spans(earliest, latest, gaps, 100) == (tuple(spans), False)


def test_cut_when_gaps_may_be_missing() -> None:
    """With as many gaps as were asked for, nothing above the last of them is claimed."""
    spans, cut = held_spans(1, 100, [(3, 4), (10, 11)], 2)

    assert spans == (SeqRange(1, 2), SeqRange(5, 9))
    assert cut


def test_pass_over_what_lies_below_the_earliest() -> None:
    """A gap below the earliest sequence held claims nothing."""
    assert held_spans(10, 12, [(2, 9)], 5) == ((SeqRange(10, 12),), False)
