"""Announced blocks: counted, remembered within bounds, told."""

import pytest

from luxrelay.errors import NodeError
from luxrelay.gossip import BlockAnnouncement, TopicKind
from luxrelay.node.block_board import FOLLOWERS_MAX, HEIGHTS_MAX, RECENT_MAX, BlockBoard, BlockSeen


def block(height: int, name: bytes = b"a") -> BlockAnnouncement:
    """Return an announcement."""
    return BlockAnnouncement(
        block_hash=name * 32, height=height, proposer=b"peer", timestamp_ms=1_000
    )


def test_totals_and_conflicts() -> None:
    """Proposals and final blocks are counted apart; a second final block of a height is told."""
    board = BlockBoard()

    board.post(block(7, b"p"), TopicKind.BLOCKS_PROPOSED, 5)
    board.post(block(7), TopicKind.BLOCKS_FINALIZED, 6)
    board.post(block(7), TopicKind.BLOCKS_FINALIZED, 7)
    board.post(block(6), TopicKind.BLOCKS_FINALIZED, 8)
    board.post(block(7, b"b"), TopicKind.BLOCKS_FINALIZED, 9)

    assert board.totals() == {"proposed": 1, "finalized": 4, "conflicts": 1, "height": 7}
    assert [seen.finalized for seen in board.recent()] == [False, True, True, True, True]
    latest = board.view()["latest"]
    assert latest[-1] == {
        "finalized": True, "hash": "62" * 32, "height": 7, "timestamp": 1_000, "heard": 9,
    }  # fmt: skip


def test_memory_is_bounded() -> None:
    """Only the newest announcements and heights are kept."""
    board = BlockBoard()

    for height in range(HEIGHTS_MAX + 10):
        board.post(block(height), TopicKind.BLOCKS_FINALIZED, height)
    board.post(block(0, b"b"), TopicKind.BLOCKS_FINALIZED, 1)
    board.post(block(HEIGHTS_MAX + 9, b"b"), TopicKind.BLOCKS_FINALIZED, 1)

    assert len(board.recent()) == RECENT_MAX
    assert board.totals()["conflicts"] == 1


def test_followers_are_told_until_they_leave() -> None:
    """Each announcement is told once to each follower, of whom there are so many."""
    board, told = BlockBoard(), list[BlockSeen]()
    for _ in range(FOLLOWERS_MAX - 1):
        board.follow(lambda _: None)
    board.follow(told.append)
    with pytest.raises(NodeError, match="follow"):
        board.follow(told.append)

    seen = board.post(block(1), TopicKind.BLOCKS_PROPOSED, 5)
    board.leave(told.append)
    board.post(block(2), TopicKind.BLOCKS_PROPOSED, 6)

    assert told == [seen]
    assert seen.block.height == 1
