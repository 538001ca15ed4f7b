"""One namespace of a catch-up."""

from __future__ import annotations

import pytest

from luxrelay.bus.header import NamespaceId
from luxrelay.sync.heads import PeerHead, SeqRange
from luxrelay.sync.lanes import Hole, LaneRecord
from luxrelay.sync.messages import SyncStatus
from luxrelay.sync.peers import PeerRecord
from luxrelay.sync.report import Outcome

NS = NamespaceId(b"n" * 20)
PARENT = NamespaceId(b"p" * 20)
STORED, REJECTED, UNKEPT = Outcome.STORED, Outcome.REJECTED, Outcome.UNKEPT


def head(earliest: int, latest: int, contiguous: int = 0) -> PeerHead:
    """Return a head of NS."""
    return PeerHead(
        namespace_id=NS,
        parent_id=PARENT,
        earliest_seq=earliest,
        latest_seq=latest,
        contiguous_seq=contiguous,
    )


def peer(index: int, earliest: int, latest: int, contiguous: int = 0) -> PeerRecord:
    """Return a peer that has listed NS."""
    record = PeerRecord(f"peer{index}", 1 << index, listed=True)
    record.heads[NS] = head(earliest, latest, contiguous or latest)
    return record


def lane(latest: int, own: PeerHead | None = None, *gaps: tuple[int, int]) -> LaneRecord:
    """Return the lane of a peer's latest sequence."""
    spans = [SeqRange(*gap) for gap in gaps]
    made = LaneRecord.open(own, spans, head(1, latest), 100)
    assert made is not None
    return made


def test_open_nothing_when_level() -> None:
    """A lane without anything missing is none."""
    assert LaneRecord.open(head(1, 9, 9), [], head(1, 9), 100) is None
    assert LaneRecord.open(head(1, 9, 9), [], None, 100) is None
    assert LaneRecord.open(None, [], head(0, 0), 100) is None


def test_open_with_our_gaps_and_what_lies_beyond() -> None:
    """Own holes and everything up to the peer's latest are missing."""
    assert list(lane(12, head(1, 9, 3), (4, 5)).holes) == [Hole(4, 5, 0), Hole(10, 12, 0)]


def test_extend_to_a_later_head() -> None:
    """A later head lengthens the lane, an earlier one changes nothing."""
    made = lane(5)
    made.extend(4)
    made.extend(8)
    assert list(made.holes) == [Hole(1, 8, 0)]


def test_request_as_far_as_the_peer_reaches() -> None:
    """P25: a peer is asked for what it claims to hold."""
    made = lane(100)
    asked = made.request(0, peer(0, 10, 60), join_max=4)

    assert (asked.from_seq, asked.span) == (9, SeqRange(10, 60))
    assert made.asked


@pytest.mark.parametrize(("join_max", "last"), [(2, 3), (3, 9), (100, 20)])
def test_request_near_holes_together(join_max: int, last: int) -> None:
    """join_max: holes that few held messages separate are asked for in one page."""
    made = lane(20, head(1, 20, 2), (3, 3), (7, 9), (15, 20))
    assert made.request(0, peer(0, 1, 20), join_max).span == SeqRange(3, last)


def test_request_not_what_was_tried() -> None:
    """A near hole that this peer was asked for in vain is not asked for again."""
    made = lane(20, head(1, 20, 2), (3, 3), (5, 6))
    one = peer(0, 1, 20)
    made.holes.settle(SeqRange(5, 6), [], one.bit)
    assert made.request(0, one, join_max=10).span == SeqRange(3, 3)


def settle(
    made: LaneRecord, one: PeerRecord, seqs: list[int], status: SyncStatus, *outcomes: Outcome
) -> None:
    """Ask and answer once."""
    asked = made.request(0, one, join_max=4)
    made.asked = False
    made.settle(asked, seqs, outcomes or (STORED,) * len(seqs), status)


def test_resume_by_cursor_at_the_same_peer() -> None:
    """P24: a page that ended early is continued with its cursor and its range."""
    made, one = lane(9), peer(0, 1, 9)
    settle(made, one, [1, 2], SyncStatus(last_seq=2, has_more=True, next_cursor=b"here"))

    again = made.request(0, one, join_max=4)

    assert (again.from_seq, again.cursor, again.span) == (0, b"here", SeqRange(3, 9))


def test_do_not_take_a_cursor_to_another_peer() -> None:
    """A cursor belongs to the peer that gave it."""
    made = lane(9)
    settle(made, peer(0, 1, 9), [1, 2], SyncStatus(last_seq=2, has_more=True, next_cursor=b"x"))

    other = made.request(0, peer(1, 1, 9), join_max=4)

    assert (other.from_seq, other.cursor) == (2, b"")


def test_count_what_was_claimed_and_withheld() -> None:
    """21-26: a sequence below its own contiguous head that a peer leaves out is counted."""
    made, one = lane(9), peer(0, 1, 9, contiguous=6)
    settle(made, one, [1, 2, 5, 6, 9], SyncStatus(last_seq=9, earliest_seq=1))

    assert one.withheld == 2  # 3 and 4; 7 and 8 lie above its contiguous head
    assert list(made.holes) == [Hole(3, 4, 1), Hole(7, 8, 1)]


def test_blame_nobody_for_what_expired_meanwhile() -> None:
    """What a peer has forgotten since it listed is no lie, and corrects its head."""
    made, one = lane(9), peer(0, 1, 9)
    settle(made, one, [5, 6, 7, 8, 9], SyncStatus(last_seq=9, earliest_seq=5))

    assert one.withheld == 0
    assert one.heads[NS].earliest_seq == 5


def test_prove_nothing_by_forgery() -> None:
    """A rejected message closes no hole and is no evidence."""
    made, one = lane(9), peer(0, 1, 9)
    settle(made, one, [1, 9], SyncStatus(last_seq=9), STORED, REJECTED)

    assert list(made.holes) == [Hole(2, 9, 1)]
    assert made.proven == 1


def forget(made: LaneRecord, *peers: PeerRecord, least: int = 1) -> list[SeqRange]:
    """Return what is skipped."""
    return made.skip(peers, least)


def test_skip_what_every_peer_has_forgotten() -> None:
    """P25: up to the lowest earliest sequence among the peers, below what is proven."""
    made = lane(20)
    made.holes.settle(SeqRange(11, 20), [SeqRange(11, 20)], 0)
    made.proven = 20

    assert forget(made, peer(0, 11, 20), peer(1, 9, 20)) == [SeqRange(1, 8)]
    assert made.contiguous == 8
    assert list(made.holes) == [Hole(9, 10, 0)]


def test_skip_nothing_without_evidence() -> None:
    """A head alone, however many say it, never moves ours: it takes a valid message above."""
    made = lane(2**60)
    assert forget(made, peer(0, 2**59, 2**60), peer(1, 2**59, 2**60)) == []


def test_skip_nothing_that_a_peer_still_claims() -> None:
    """One peer that claims the hole and has not been asked stops the skip."""
    made = lane(20)
    made.proven = 20
    assert forget(made, peer(0, 11, 20), peer(1, 1, 20)) == []


def test_skip_when_a_claim_was_empty() -> None:
    """A peer that claimed and did not deliver does not hold the others up."""
    made = lane(20)
    made.holes.settle(SeqRange(1, 10), [], 2)
    made.proven = 20
    assert forget(made, peer(0, 11, 20), peer(1, 1, 20)) == [SeqRange(1, 10)]


def test_skip_nothing_that_only_was_not_delivered() -> None:
    """A hole that nobody has forgotten stays a hole, though nobody delivers it."""
    made = lane(20)
    made.holes.settle(SeqRange(5, 5), [], 3)
    made.holes.remove(SeqRange(1, 4))
    made.contiguous, made.proven = 4, 20
    assert forget(made, peer(0, 1, 20), peer(1, 1, 20)) == []


def test_skip_nothing_before_everybody_has_listed() -> None:
    """A peer that has not answered may still have it."""
    made = lane(20)
    made.proven = 20
    late = PeerRecord("late", 4)
    assert forget(made, peer(0, 11, 20), late) == []
    late.given_up = "unreachable"
    assert forget(made, peer(0, 11, 20), late) == [SeqRange(1, 10)]


def test_skip_only_by_enough_peers() -> None:
    """skip_peers_min: one forgetful peer is not enough when two are asked for."""
    made = lane(20)
    made.proven = 20
    assert forget(made, peer(0, 11, 20), least=2) == []
    assert forget(made, peer(0, 11, 20), peer(1, 11, 20), least=2) == [SeqRange(1, 10)]


def test_skip_nothing_over_what_was_not_kept() -> None:
    """A full store: what is valid and was not kept is not given up."""
    made, one = lane(20), peer(0, 11, 20)
    settle(made, one, [11], SyncStatus(last_seq=11, has_more=True), UNKEPT)
    assert forget(made, one) == []
    assert not made.done


def test_move_with_the_store() -> None:
    """P25: the store's contiguous head closes what lies below, and never goes back."""
    made = lane(9)
    made.reached(4)
    made.reached(2)
    assert made.contiguous == 4
    assert list(made.holes) == [Hole(5, 9, 0)]
    made.reached(9)
    assert made.done
