"""Receipts of a node whose clock is wrong, and what announcements say of the peers' clocks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import Code, VerdictKind
from luxrelay.bus.constants import LIVE_TOLERANCE_MS
from luxrelay.gossip.envelope import peer_id_of
from luxrelay.net.peer_clocks import ClockOffset
from luxrelay.node.ingress import clock_doubt
from luxrelay.node.stages.verify import ANNOUNCEMENT_AGE_MAX_MS
from luxrelay.sync import PublishItem, PublishReceipt


def off(offset_ms: int, *, known: bool = True) -> ClockOffset:
    """Return what five peers say of a clock that is so far ahead."""
    return ClockOffset(peers=5, known=known, offset_ms=offset_ms)


def published(bench: Any, *, ahead_ms: int = 0, seq: int = 1) -> PublishReceipt:
    """Return the receipt of a message that is so far ahead of the node's clock."""
    header = bench.header(seq, timestamp=bench.now + ahead_ms)
    item = PublishItem(header=header.encode(), blob=b"hello", parent_id=bench.parent)
    (receipt,) = bench.doors.publish([item])
    return receipt  # type: ignore[no-any-return]


def test_a_receipt_says_why_others_will_not_have_the_message(bench: Any) -> None:
    """Stored, and told with numbers that nobody else takes it; again when asked later (G36)."""
    bench.doors.peers_clock = off(300_000)
    receipt = published(bench)
    assert (receipt.stored, receipt.code, receipt.verdict) == (True, Code.OK, VerdictKind.ACCEPT)
    assert receipt.reason == (
        "stored here; this node's clock is 300.0 s ahead of the median clock of 5 peers, the "
        "timestamp 300.0 s ahead of it; 30 s are allowed: others refuse it as live until the clock "
        "is set (G36)"
    )
    assert bench.doors.receipts([receipt.digest])[0].reason == receipt.reason
    assert "300.0 s ahead" in published(bench).reason  # the same again: stored already


def test_who_is_refused_for_the_nodes_clock_is_told_so(bench: Any) -> None:
    """A message of now is refused by a node that is behind, whose fault it is."""
    bench.doors.peers_clock = off(-300_000)
    receipt = published(bench, ahead_ms=300_000)
    assert (receipt.stored, receipt.code) == (False, Code.TIMESTAMP_INVALID)
    assert "this node's clock is 300.0 s behind the median clock of 5 peers" in receipt.reason
    assert receipt.reason.endswith(": set it (G36)")


@pytest.mark.parametrize(
    "clock", [None, ClockOffset(), off(0), off(25_000), off(300_000, known=False)]
)
def test_a_receipt_says_nothing_of_a_clock_that_is_right_or_not_known(
    bench: Any, clock: ClockOffset | None
) -> None:
    """Few peers make no clock wrong, and others take what is within their tolerance."""
    bench.doors.peers_clock = clock
    assert published(bench).reason == ""


def test_a_refusal_that_has_nothing_to_do_with_time_stays_as_it_is(bench: Any) -> None:
    """The clock is no excuse for a gap."""
    bench.doors.peers_clock = off(300_000)
    assert "clock" not in published(bench, seq=5_000).reason


@given(st.integers(-400_000, 400_000), st.integers(-LIVE_TOLERANCE_MS, LIVE_TOLERANCE_MS))
def test_a_doubt_is_said_exactly_when_others_refuse_or_the_node_is_not_ready(
    offset_ms: int, ahead_ms: int
) -> None:
    """By the rules for headers and announcements, with the peers' clocks at the median."""
    theirs = abs(ahead_ms + offset_ms) > LIVE_TOLERANCE_MS
    stale = abs(offset_ms) > ANNOUNCEMENT_AGE_MAX_MS
    said = clock_doubt(off(offset_ms), ahead_ms)
    assert ("others refuse it" in said) == (theirs or stale)
    assert bool(said) == (theirs or stale or abs(offset_ms) > LIVE_TOLERANCE_MS)


def test_what_a_peer_announced_itself_says_what_time_it_has(bench: Any) -> None:
    """Also when the message is refused for its time; what it passes on for others does not."""
    own = bytes(peer_id_of(bench.identity.public_field[1:]))
    header = bench.header(1, timestamp=bench.now - 300_000)
    bench.doors.gossip([bench.validate(bench.envelope(header.encode()), peer=own)])
    assert bench.announced == [(own, bench.now)]
    bench.doors.gossip([bench.validate(bench.envelope(bench.header(2).encode()), peer=b"other")])
    assert len(bench.announced) == 1
