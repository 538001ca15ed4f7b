"""One budget for bytes that have come and that nobody has read yet.

A window says what a peer may send; what a node holds is the sum over all streams of all peers, and
that sum is bounded here. When it is passed, the connection that holds most gives up its fullest
stream: who fills the budget pays for it, and an honest peer, who is read, holds next to nothing.

Source: decisions G21, G32; requirement 20-58.
"""

from __future__ import annotations

from typing import Protocol


class UnreadHolder(Protocol):
    """A connection as the budget sees it."""

    unread: int
    """Bytes that it holds."""

    def shed(self) -> bool:
        """The fullest stream is reset and its bytes are gone; False when there is none."""
        ...


class UnreadBudget:
    """Bytes that the connections of one host hold together.

    Args:
        bytes_max: Bytes that they may hold.

    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        self._holders: set[UnreadHolder] = set()

    def join(self, holder: UnreadHolder) -> None:
        """The connection counts from now on."""
        self._holders.add(holder)

    def leave(self, holder: UnreadHolder) -> None:
        """The connection, which holds nothing any more, is forgotten."""
        self._holders.discard(holder)

    def take(self, count: int) -> None:
        """So many more bytes are held; whoever holds most makes room when they are too many."""
        self.held += count
        while self.held > self.bytes_max:
            fullest = max(self._holders, key=lambda holder: holder.unread, default=None)
            if fullest is None or not fullest.shed():
                return

    def give(self, count: int) -> None:
        """So many bytes are held no longer."""
        self.held -= count

    @property
    def roomy(self) -> bool:
        """Whether less than half is held, so that a stream may be granted more than it had."""
        return self.held * 2 < self.bytes_max
