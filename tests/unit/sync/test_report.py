"""What a catch-up tells."""

from __future__ import annotations

from luxrelay.sync.report import AcceptResult, CatchUpReport, Outcome, PeerReport


def test_count_outcomes() -> None:
    """A result counts its outcomes."""
    result = AcceptResult(
        outcomes=(Outcome.STORED, Outcome.REJECTED, Outcome.STORED), contiguous_seq=2
    )

    assert result.count(Outcome.STORED) == 2
    assert result.count(Outcome.UNKEPT) == 0


def test_sum_over_peers() -> None:
    """The report's totals are the sums of its peers."""
    peers = (
        PeerReport(peer="a", pages=1, received=6, stored=3, duplicate=1, rejected=1, unkept=1),
        PeerReport(peer="b", pages=2, received=4, stored=2, duplicate=2),
    )
    report = CatchUpReport(
        complete=True, cancelled=False, rounds=1, namespaces=1, namespaces_done=1, holes_left=(),
        holes_unlisted=0, skipped=(), skipped_messages=0, disagreements=0, peers=peers, seconds=0.0,
    )  # fmt: skip

    assert (report.pages, report.received, report.stored) == (3, 10, 5)
    assert (report.duplicate, report.rejected, report.unkept) == (3, 1, 1)
