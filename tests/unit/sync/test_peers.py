"""What a catch-up knows of a peer."""

from __future__ import annotations

import pytest

from luxrelay.sync.peers import PeerRecord
from luxrelay.sync.report import AcceptResult, Outcome


def test_back_off_twice_as_long_each_time() -> None:
    """backoff_s doubles with each failure and stops at backoff_max_s."""
    peer = PeerRecord("a", 1)
    pauses = []
    for _ in range(5):
        peer.failed(100.0, 0.5, 3.0)
        pauses.append(peer.retry_at - 100.0)

    assert pauses == pytest.approx([0.5, 1.0, 2.0, 3.0, 3.0])


def test_ready_when_listed_and_rested() -> None:
    """A page is asked of a peer that has listed, is rested and in good standing."""
    peer = PeerRecord("a", 1)
    assert not peer.ready(0.0)
    peer.listed = True
    assert peer.ready(0.0)
    peer.retry_at = 5.0
    assert not peer.ready(4.9)
    assert peer.ready(5.0)
    peer.given_up = "why"
    assert not peer.ready(5.0)
    assert peer.settled


def test_count_a_page() -> None:
    """Every outcome of a page is in the peer's report."""
    peer = PeerRecord("a", 1)
    outcomes = (Outcome.STORED, Outcome.STORED, Outcome.DUPLICATE, Outcome.REJECTED, Outcome.UNKEPT)

    peer.count(AcceptResult(outcomes=outcomes, contiguous_seq=9))
    report = peer.report()

    assert (report.pages, report.received, report.stored) == (1, 5, 2)
    assert (report.duplicate, report.rejected, report.unkept) == (1, 1, 1)
