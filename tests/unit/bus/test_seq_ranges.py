"""Ranges of sequences against sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import NamespaceId
from luxrelay.bus.seq_ranges import GAPS_MAX, ToldGaps, inside, without

LANE = NamespaceId(b"l" * 20)


def ranges_of(seqs: set[int]) -> list[tuple[int, int]]:
    """Return sequences as ranges."""
    found: list[tuple[int, int]] = []
    for seq in sorted(seqs):
        if found and found[-1][1] == seq - 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return found


@given(st.sets(st.integers(1, 40)), st.lists(st.integers(0, 41), max_size=30))
def test_ranges_are_as_sets(seqs: set[int], taken: list[int]) -> None:
    """P48: what is taken out is gone, everything else stays, in as few ranges as there are."""
    ranges = ranges_of(seqs)
    for seq in taken:
        assert inside(ranges, seq) == (seq in seqs)
        ranges = without(ranges, seq)
        seqs.discard(seq)
        assert ranges == ranges_of(seqs)


def test_told_gaps_are_bounded_and_end_with_their_last_sequence() -> None:
    """P48: the newest gaps stay; another candidate of a slot that was just filled belongs to it."""
    told = ToldGaps()
    for seq in range(0, 2 * GAPS_MAX + 4, 2):
        told.tell(LANE, seq, seq)
    assert len(told.ranges[LANE]) == GAPS_MAX
    assert next(told.spans()) == (LANE, 4, 4)
    assert not told.fill(LANE, 5)
    assert told.fill(LANE, 4)
    assert told.fill(LANE, 4)
    for _, seq, _ in told.spans():
        assert told.fill(LANE, seq)
    assert not told.fill(LANE, 4)
    assert not told.ranges
