"""Block announcements: counted, the newest kept, passed on to subscribers.

Whether a block is what its proposer says is not known here (G12); the announcement was signed by
the proposer and is of now, no more.

Source: LP-6420 §2.2, §3.3; decision G12.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from luxrelay.errors import NodeError
from luxrelay.gossip import BlockAnnouncement, TopicKind

RECENT_MAX: Final = 64
"""Announcements kept."""
HEIGHTS_MAX: Final = 1024
"""Finalized heights whose hash is remembered; beyond it the one heard first is forgotten."""
FOLLOWERS_MAX: Final = 16
"""Who may follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSeen:
    """An announcement that was taken."""

    finalized: bool
    """Of a finalized block; else of a proposed one."""
    block: BlockAnnouncement
    """What it says."""
    heard_ms: int
    """When it came, Unix milliseconds."""


BlockFollower = Callable[[BlockSeen], None]
"""Called by a worker thread with each announcement; must not block and not raise."""


class BlockBoard:
    """Takes announcements; any thread may call it."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._recent: deque[BlockSeen] = deque(maxlen=RECENT_MAX)
        self._finalized: OrderedDict[int, bytes] = OrderedDict()
        self._followers: list[BlockFollower] = []
        self._proposed_total = 0
        self._finalized_total = 0
        self._height = 0
        self._conflicts = 0

    def post(self, block: BlockAnnouncement, kind: TopicKind, now_ms: int) -> BlockSeen:
        """Take one announcement of a block topic."""
        seen = BlockSeen(finalized=kind is TopicKind.BLOCKS_FINALIZED, block=block, heard_ms=now_ms)
        with self._lock:
            self._recent.append(seen)
            if seen.finalized:
                self._finalize(block)
            else:
                self._proposed_total += 1
            followers = tuple(self._followers)
        for follower in followers:
            follower(seen)
        return seen

    def _finalize(self, block: BlockAnnouncement) -> None:
        self._finalized_total += 1
        self._height = max(self._height, block.height)
        known = self._finalized.setdefault(block.height, block.block_hash)
        self._conflicts += known != block.block_hash
        if len(self._finalized) > HEIGHTS_MAX:
            self._finalized.popitem(last=False)

    def follow(self, follower: BlockFollower) -> None:
        """Tell ``follower`` of each announcement from now on.

        Raises:
            NodeError: ``FOLLOWERS_MAX`` follow already.

        """
        with self._lock:
            if len(self._followers) >= FOLLOWERS_MAX:
                raise NodeError(f"{FOLLOWERS_MAX} follow the blocks already", where="BlockBoard")
            self._followers.append(follower)

    def leave(self, follower: BlockFollower) -> None:
        """Tell it no longer."""
        with self._lock:
            self._followers.remove(follower)

    def recent(self) -> list[BlockSeen]:
        """Return the newest announcements, oldest first."""
        with self._lock:
            return list(self._recent)

    def totals(self) -> dict[str, int]:
        """Return the counters, and the highest finalized height."""
        with self._lock:
            return {
                "proposed": self._proposed_total,
                "finalized": self._finalized_total,
                "conflicts": self._conflicts,
                "height": self._height,
            }

    def view(self) -> dict[str, Any]:
        """Return the state for the status page."""
        latest = [
            {
                "finalized": seen.finalized,
                "hash": seen.block.block_hash.hex(),
                "height": seen.block.height,
                "timestamp": seen.block.timestamp_ms,
                "heard": seen.heard_ms,
            }
            for seen in self.recent()[-8:]
        ]
        return {**self.totals(), "latest": latest}
