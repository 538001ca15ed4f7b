"""Any split of any offsets covers each sequence once."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from luxrelay.archive.offsets import Offsets, Span, advance, spans_between, split

NAMES = st.integers(0, 12).map(lambda number: f"{number:040x}")
OFFSETS = st.dictionaries(NAMES, st.integers(0, 60), max_size=12)
LARGE = st.dictionaries(NAMES, st.integers(0, 2**63 - 1), max_size=8)


def _sequences(spans: list[Span]) -> Counter[tuple[bytes, int]]:
    return Counter(
        (span.namespace, seq) for span in spans for seq in range(span.first, span.last + 1)
    )


@given(OFFSETS, OFFSETS, st.integers(1, 9), st.integers(1, 40))
def test_split_covers_each_sequence_once(
    start: Offsets, end: Offsets, partitions: int, sequences_min: int
) -> None:
    """Each sequence between two offsets is in exactly one part, and no part is empty."""
    spans = spans_between(start, end)
    parts = split(spans, partitions, sequences_min=sequences_min)

    assert len(parts) <= partitions
    assert all(part and all(span.first <= span.last for span in part) for part in parts)
    wanted = {
        (bytes.fromhex(name), seq)
        for name, last in end.items()
        for seq in range(start.get(name, 0) + 1, last + 1)
    }
    assert _sequences([span for part in parts for span in part]) == Counter(wanted)


@given(OFFSETS, OFFSETS, st.integers(1, 50))
def test_micro_batches_cover_each_sequence_once(start: Offsets, end: Offsets, limit: int) -> None:
    """Advancing by a limit until nothing moves reads the same as one step, each sequence once."""
    covered: Counter[tuple[bytes, int]] = Counter()
    here = start
    while (there := advance(here, end, limit)) != here:
        step = spans_between(here, there)
        assert 1 <= sum(span.size for span in step) <= limit
        covered += _sequences(step)
        here = there

    assert here == advance(start, end)
    assert covered == _sequences(spans_between(start, advance(start, end)))


@given(LARGE, st.integers(1, 64))
def test_huge_ranges_split_by_arithmetic(end: Offsets, partitions: int) -> None:
    """The number of parts and their sizes do not depend on walking the sequences."""
    spans = spans_between({}, end)
    parts = split(spans, partitions)

    total = sum(span.size for span in spans)
    assert sum(span.size for part in parts for span in part) == total
    assert len(parts) <= partitions
    if parts:
        assert max(sum(s.size for s in part) for part in parts) <= -(-total // len(parts)) + len(
            parts
        )
