"""Offsets, read limits and the split into partitions."""

from dataclasses import dataclass

import pytest

from luxrelay.archive import offsets as module
from luxrelay.archive.offsets import (
    LEAP_MAX,
    Reach,
    Span,
    Wanted,
    advance,
    end_offsets,
    holed,
    lost_spans,
    parse_offsets,
    spans_between,
    split,
    starting_offsets,
    union_reach,
)
from luxrelay.archive.schema import MAX_I64
from luxrelay.errors import ArchiveArgumentError

A, B = b"a" * 20, b"b" * 20


@dataclass
class View:
    """A head as a relay reports it."""

    namespace_id: bytes
    earliest_seq: int
    contiguous_seq: int
    latest_seq: int


def test_union_takes_the_furthest_contiguous_head() -> None:
    """What one relay lacks another one serves."""
    reach = union_reach([[View(A, 1, 5, 9)], [View(A, 4, 8, 8), View(B, 1, 2, 2)]])

    assert reach == {A.hex(): Reach(8, ((1, 8),)), B.hex(): Reach(2, ((1, 2),))}
    assert list(reach) == sorted(reach)


def test_union_to_the_latest_crosses_holes() -> None:
    """On request a hole is given up."""
    assert union_reach([[View(A, 1, 5, 9)]], to_latest=True) == {A.hex(): Reach(9, ((1, 9),))}


def test_a_relay_that_forgot_everything_still_says_how_far_it_was() -> None:
    """The reach ends there, and nobody holds it."""
    reach = union_reach([[View(A, 0, 7, 0)]])

    assert reach[A.hex()] == Reach(7, ())
    assert reach[A.hex()].earliest == 8


def test_unknown_namespaces_do_not_appear() -> None:
    """A head of zeros is no namespace."""
    assert union_reach([[View(A, 0, 0, 0)]]) == {}


def test_a_lying_head_is_bounded() -> None:
    """A sequence beyond a table's range ends at that range."""
    assert union_reach([[View(A, 1, 2**64 - 1, 2**64 - 1)]])[A.hex()].last == MAX_I64


def test_a_message_far_beyond_a_hole_is_not_read_to() -> None:
    """One forged sequence would keep a run busy for ever: LEAP_MAX beyond the head is the end."""
    head = View(A, 1, 5, 2**63)

    for reach in (
        union_reach([[head]], to_latest=True),
        union_reach([[head]], given_up={A.hex(): 2**62}),
    ):
        assert reach[A.hex()].last == 5 + LEAP_MAX


def test_a_store_that_begins_late_is_read() -> None:
    """One that was restored, or joined late, has nothing below its first message."""
    head = View(A, 3_000_000, 0, 3_000_005)

    for reach in (
        union_reach([[head]], to_latest=True),
        union_reach([[head]], given_up={A.hex(): 3_000_005}),
    ):
        assert reach == {A.hex(): Reach(3_000_005, ((3_000_000, 3_000_005),))}
        assert end_offsets(reach) == {A.hex(): 3_000_005}


@pytest.mark.parametrize(
    "liar", [View(A, 2**62, 2**62, 2**62), View(A, 0, 2**62, 0), View(A, 9_000_000, 9_000_001, 0)]
)
def test_a_leap_that_one_relay_makes_alone_is_not_followed(liar: View) -> None:
    """The offset would pass what the others have yet to bring, and nobody would miss it."""
    reach = union_reach([[liar], [View(A, 900, 1_000, 1_000)]])

    for start in (950, 1_000):
        assert end_offsets(reach, {A.hex(): start}) == {A.hex(): 1_000}
    assert end_offsets(reach) == {A.hex(): 1_000}
    assert end_offsets(union_reach([[View(A, 0, 1_000, 0)], [liar]]), {A.hex(): 1_000}) == {
        A.hex(): 1_000
    }


def test_a_window_that_has_passed_is_followed() -> None:
    """Nobody stands where the archive does, so what is there now counts; so does a small leap."""
    far = union_reach([[View(A, 8_000_000, 8_000_100, 8_000_100)]])
    near = union_reach([[View(A, 1, 10, 10)], [View(A, 10 + LEAP_MAX, 20 + LEAP_MAX, 0)]])

    assert end_offsets(far, {A.hex(): 1_000}) == {A.hex(): 8_000_100}
    assert end_offsets(far) == {A.hex(): 8_000_100}
    assert end_offsets(near, {A.hex(): 10}) == {A.hex(): 20 + LEAP_MAX}


def test_too_many_namespaces_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of an offset is bounded by NAMESPACES_MAX."""
    monkeypatch.setattr(module, "NAMESPACES_MAX", 1)

    with pytest.raises(ArchiveArgumentError, match="above 1"):
        union_reach([[View(A, 1, 1, 1), View(B, 1, 1, 1)]])


def test_starting_points() -> None:
    """Earliest is what is still held, latest is nothing of it, JSON is itself."""
    reach = {A.hex(): Reach(9, ((4, 9),))}

    assert starting_offsets("earliest", reach) == {A.hex(): 3}
    assert starting_offsets("latest", reach) == end_offsets(reach) == {A.hex(): 9}
    assert starting_offsets({B.hex(): 2}, reach) == {B.hex(): 2}


def test_advance_without_limit_reaches_the_target() -> None:
    """All of it, and never backwards."""
    assert advance({"a": 3, "b": 9}, {"a": 5, "b": 4, "c": 2}) == {"a": 5, "b": 9, "c": 2}


def test_advance_returns_the_start_when_nothing_is_new() -> None:
    """Equal offsets mean there is nothing to read."""
    start = {"b": 9, "a": 3}

    assert list(advance(start, {"a": 3}).items()) == list(start.items())


def test_a_hot_namespace_does_not_starve_a_quiet_one() -> None:
    """Each gets its share first; the rest goes to who needs it."""
    reached = advance({}, {"hot": 1_000, "quiet": 3, "calm": 10}, 30)

    assert reached["quiet"] == 3
    assert reached["calm"] == 10
    assert reached["hot"] == 17


def test_a_small_limit_still_moves() -> None:
    """One sequence at least, whatever the limit."""
    assert sum(advance({}, {"a": 5, "b": 5}, 0).values()) == 1


def test_lost_is_what_no_relay_holds() -> None:
    """Before, between and after the held ranges."""
    reach = {A.hex(): Reach(20, ((5, 9), (12, 15)))}

    lost = lost_spans([Span(A, 3, 18), Span(B, 1, 2)], reach)

    assert lost == [Span(A, 3, 4), Span(A, 10, 11), Span(A, 16, 18), Span(B, 1, 2)]
    assert lost_spans([Span(A, 6, 8)], reach) == []


def test_small_lanes_share_a_part_and_a_hot_one_is_cut() -> None:
    """Parts are about equal."""
    spans = [Span(n.to_bytes(20, "big"), 1, 10) for n in range(40)] + [Span(A, 1, 800)]

    parts = split(spans, 3, sequences_min=1)

    assert [sum(span.size for span in part) for part in parts] == [400, 400, 400]
    assert len(parts[0]) == 40


def test_nothing_to_read_has_no_part() -> None:
    """An empty range gives no partition."""
    assert split(spans_between({"a" * 40: 4}, {"a" * 40: 4}), 8) == []


def test_a_small_read_is_one_part() -> None:
    """A task costs more than a few sequences."""
    assert len(split([Span(A, 1, 100)], 8)) == 1


@pytest.mark.parametrize(
    "value", [[], None, {"ab": 1}, {"a" * 40: True}, {"a" * 40: "1"}, {"a" * 40: 2**63}, {1: 1}]
)
def test_refuse_offsets(value: object) -> None:
    """Offsets that are none are refused by name."""
    with pytest.raises(ArchiveArgumentError):
        parse_offsets(value)


def test_offsets_come_back_in_order() -> None:
    """Equal offsets have equal JSON."""
    parsed = parse_offsets({B.hex(): 1, "0x" + A.hex().upper(): 2})

    assert list(parsed.items()) == [(A.hex(), 2), (B.hex(), 1)]


def test_what_was_given_up_is_within_reach() -> None:
    """A hole that was waited for no longer ends the read, but the newest message does."""
    heads = [[View(A, 1, 4, 9)]]

    assert union_reach(heads)[A.hex()].last == 4
    assert union_reach(heads, given_up={A.hex(): 7})[A.hex()].last == 7
    assert union_reach(heads, given_up={A.hex(): 99})[A.hex()].last == 9
    assert union_reach(heads, given_up={A.hex(): 2})[A.hex()].last == 4


def test_holes_are_where_messages_lie_beyond_every_contiguous_head() -> None:
    """A hole of one relay that another has filled is none."""
    assert holed([[View(A, 1, 4, 9)], [View(A, 1, 9, 9)]]) == {}
    assert holed([[View(A, 1, 4, 9)], [View(A, 1, 6, 8)]]) == {A.hex(): (6, 9)}


def test_filters_narrow_a_read() -> None:
    """Namespaces are intersected, bounds tightened, and nothing outside is read (push-down)."""
    spans = [Span(A, 1, 10), Span(B, 5, 6)]
    wanted = Wanted().among([A, B]).among([A]).between(0, 8).between(3, MAX_I64)

    assert wanted.cut(spans) == [Span(A, 3, 8)]
    assert Wanted().cut(spans) == spans
    assert Wanted().between(11, MAX_I64).cut(spans) == []
    assert Wanted().among([]).cut(spans) == []
