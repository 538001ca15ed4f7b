"""What peers served before its time: kept by peer, until it is due, and never more than allowed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus.header import NamespaceId
from luxrelay.sync.postponed import PostponedMessages

LANE = NamespaceId(b"l" * 20)
OTHER = NamespaceId(b"o" * 20)
Entry = tuple[str, NamespaceId, int, int]
entries = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from([LANE, OTHER]),
    st.integers(1, 30),
    st.integers(0, 100),
)


def test_it_is_kept_by_peer_until_it_is_due() -> None:
    """Ranges of one peer are nobody else's; what is due is forgotten (G36)."""
    postponed = PostponedMessages(100)
    for seq in (4, 2, 3, 9):
        postponed.put_off("a", LANE, seq, 1_000)
    postponed.put_off("b", OTHER, 7, 2_000)
    assert postponed.spans(999) == {"a": {LANE: [(2, 4), (9, 9)]}, "b": {OTHER: [(7, 7)]}}
    assert postponed.spans(1_000) == {"b": {OTHER: [(7, 7)]}}
    assert len(postponed) == 1
    assert postponed.spans(2_000) == {}


@given(st.lists(entries, max_size=60), st.integers(1, 10), st.integers(0, 100))
def test_the_newest_are_kept_within_the_bound(put: list[Entry], most: int, now_ms: int) -> None:
    """As a list of the last ones says; the oldest is forgotten, which costs one more fetch."""
    postponed = PostponedMessages(most)
    kept: dict[tuple[str, NamespaceId, int], int] = {}
    for peer, lane, seq, due_ms in put:
        postponed.put_off(peer, lane, seq, due_ms)
        kept.pop((peer, lane, seq), None)
        kept[peer, lane, seq] = due_ms
        kept = dict(list(kept.items())[-most:])
        assert len(postponed) == len(kept) <= most
    found = {
        (peer, lane, seq)
        for peer, lanes in postponed.spans(now_ms).items()
        for lane, spans in lanes.items()
        for span in spans
        for seq in range(span.first, span.last + 1)
    }
    assert found == {key for key, due_ms in kept.items() if due_ms > now_ms}
