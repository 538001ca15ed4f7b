"""Holes and whom they were asked of."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from luxrelay.sync.heads import SeqRange
from luxrelay.sync.lanes import Hole, HoleList, spans_of

A, B = 1, 2


def holes(*spans: tuple[int, int], most: int = 100) -> HoleList:
    """Return a list of untried holes."""
    made = HoleList(most)
    made.add(SeqRange(*span) for span in spans)
    return made


def test_settle_closes_what_was_delivered() -> None:
    """What arrived is gone; what was covered and did not arrive remembers the peer."""
    missing = holes((1, 10))

    missing.settle(SeqRange(1, 8), [SeqRange(1, 3), SeqRange(6, 6)], A)

    assert list(missing) == [Hole(4, 5, A), Hole(7, 8, A), Hole(9, 10, 0)]


def test_settle_keeps_every_peer_that_was_tried() -> None:
    """A hole asked of two peers in vain remembers both; parts keep their own history."""
    missing = holes((1, 6))

    missing.settle(SeqRange(1, 6), [], A)
    missing.settle(SeqRange(3, 4), [], B)

    assert list(missing) == [Hole(1, 2, A), Hole(3, 4, A | B), Hole(5, 6, A)]


def test_settle_leaves_what_was_not_covered() -> None:
    """An answer says nothing about sequences outside its range."""
    missing = holes((1, 3), (5, 9))

    missing.settle(SeqRange(4, 6), [SeqRange(4, 5)], A)

    assert list(missing) == [Hole(1, 3, 0), Hole(6, 6, A), Hole(7, 9, 0)]


def test_remove_forgets_a_span() -> None:
    """What is held or gone everywhere is no hole; the rest keeps its history."""
    missing = holes((2, 5), (8, 9))

    missing.remove(SeqRange(1, 3))
    missing.remove(SeqRange(1, 1))

    assert list(missing) == [Hole(4, 5, 0), Hole(8, 9, 0)]
    assert missing[0].span == SeqRange(4, 5)
    assert len(missing) == 2


def test_merge_neighbours_with_one_history() -> None:
    """Adjacent holes with one history are one hole."""
    missing = holes((1, 3))
    missing.add([SeqRange(4, 6)])

    assert list(missing) == [Hole(1, 6, 0)]


def test_bound_the_holes() -> None:
    """holes_max: the highest holes beyond the bound are dropped and counted."""
    missing = holes((1, 1), (3, 3), (5, 5), (7, 7), most=3)

    assert list(missing) == [Hole(1, 1, 0), Hole(3, 3, 0), Hole(5, 5, 0)]
    assert missing.dropped == 1


def test_spans_join_what_is_adjacent() -> None:
    """Ascending sequences become ranges; candidates of one slot count once."""
    assert spans_of([]) == []
    assert spans_of([1, 2, 2, 3, 7, 9, 10]) == [(1, 3), (7, 7), (9, 10)]


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30), st.sets(st.integers(1, 30)))),
)
def test_settle_agrees_with_a_set(answers: list[tuple[int, int, set[int]]]) -> None:
    """Any series of answers leaves the holes that a dictionary of sequences would leave."""
    missing = holes((1, 30))
    twin = dict.fromkeys(range(1, 31), 0)

    for index, (first, length, brought) in enumerate(answers):
        last = first + length
        inside = sorted(seq for seq in brought if first <= seq <= last)
        missing.settle(SeqRange(first, last), spans_of(inside), 1 << index)
        for seq in range(first, min(last, 30) + 1):
            if seq in brought:
                twin.pop(seq, None)
            elif seq in twin:
                twin[seq] |= 1 << index

    listed = {seq: hole.tried for hole in missing for seq in range(hole.first, hole.last + 1)}
    assert listed == twin
    assert [hole.first for hole in missing] == sorted(hole.first for hole in missing)


@given(
    st.lists(st.integers(1, 40), max_size=30),
    st.lists(st.integers(1, 40), max_size=30),
    st.lists(st.integers(1, 40), max_size=30),
)
def test_marking_changes_what_a_peer_is_asked_for_and_nothing_else(
    missing: list[int], tried: list[int], put_off: list[int]
) -> None:
    """As marked one by one; what is missing stays missing (G36)."""
    holes = HoleList(100)
    holes.add(spans_of(sorted(set(missing))))
    holes.mark(spans_of(sorted(set(tried))), 1)
    marked = holes.mark(spans_of(sorted(set(put_off))), 2)
    assert marked == bool(set(missing) & set(put_off))
    bits = {seq: hole.tried for hole in holes for seq in range(hole.first, hole.last + 1)}
    assert bits == {seq: (seq in tried) + 2 * (seq in put_off) for seq in missing}
    assert all(left.last < right.first for left, right in pairwise(holes))
