"""`PageCalls`: which pages go out in one call, and how much is asked of a peer at once.

Theory of operation
===================

*Decides*: pages of many namespaces share a call, because a relay counts calls (20 a second of one
address) and most namespaces lack a message or two after an absence. A call is put together during
one pass of the machine and closed by the next. It is full at ``call_lanes`` namespaces,
``page_messages`` messages, or the bytes of a page, which are a quarter of the peer's window: so a
slow link is asked for little, and what it brings is stored before more is asked for.

*Does not know*: namespaces, holes, answers. How many bytes a page may bring is told by whoever
asks; it is a guess, from what the peer says of its own store, and a wrong one harms only the pace.

*Bounds*: ``pages_max`` calls, ``peer_pages_max`` of one peer, and each peer's `LinkWindow`.

Source: decisions P24, P46, P47.
"""

from __future__ import annotations

from dataclasses import dataclass

from luxrelay.sync.params import CatchUpConfig
from luxrelay.sync.peers import PeerRecord


@dataclass(slots=True)
class PageCall:
    """One call under way, or being put together."""

    number: int
    """Names it in the asks."""
    peer: PeerRecord
    """Whom it goes to."""
    pages: int = 0
    """Its pages without an end."""
    lanes: int = 0
    """Its namespaces."""
    rows: int = 0
    """Messages that are asked for."""
    size: int = 0
    """Bytes that are expected."""
    left: int = 0
    """Of those, what has not come."""


class PageCalls:
    """The calls of one catch-up; see the theory above."""

    def __init__(self, config: CatchUpConfig) -> None:
        self.config = config
        self._calls: dict[int, PageCall] = {}
        self._open: dict[str, PageCall] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._calls)

    def close_all(self) -> None:
        """What was put together goes out as it is."""
        self._open.clear()

    @property
    def full(self) -> bool:
        """True when neither a further call may begin nor another page join one."""
        return len(self._calls) >= self.config.pages_max and not self._open

    def takes(self, peer: PeerRecord, rows: int, size: int) -> bool:
        """Return True when a page of so many rows and bytes may be asked of the peer now."""
        return self._joins(peer, rows, size) or (
            len(self._calls) < self.config.pages_max
            and peer.outstanding < self.config.peer_pages_max
            and (not peer.window.under_way or peer.window.room >= size)
        )

    def ask(self, peer: PeerRecord, rows: int, size: int, now: float) -> PageCall:
        """Return the call that a page goes out in; it `takes` it."""
        if self._joins(peer, rows, size):
            call = self._open[peer.name]
        else:
            call = self._calls[self._next] = self._open[peer.name] = PageCall(self._next, peer)
            self._next += 1
            peer.outstanding += 1
        call.pages += 1
        call.lanes += 1
        call.rows += rows
        call.size += size
        call.left += size
        peer.window.asked(size, now)
        if not self._room(call):
            del self._open[peer.name]
        return call

    def came(self, number: int, size: int, now: float) -> None:
        """Take note that so many bytes of a call arrived."""
        call = self._calls.get(number)
        if call is not None:
            expected = min(size, call.left)
            call.left -= expected
            call.peer.window.came(size, now, expected)

    def over(self, number: int, now: float, *, late: bool = False) -> None:
        """Take note that a page of the call has ended; the call ends with its last page.

        Args:
            number: The call's.
            now: Monotonic seconds.
            late: Whether the link brought nothing more in time.

        """
        call = self._calls[number]
        call.pages -= 1
        if call.pages:
            return
        del self._calls[number]
        if self._open.get(call.peer.name) is call:
            del self._open[call.peer.name]
        call.peer.outstanding -= 1
        call.peer.window.ended(call.left, now, late=late)

    def drop(self, now: float) -> None:
        """Forget every call; nothing is under way any more."""
        for call in self._calls.values():
            call.peer.outstanding = 0
            call.peer.window.ended(call.left, now)
        self._calls.clear()
        self._open.clear()

    def page_bytes(self, peer: PeerRecord) -> int:
        """Return the bytes that one call asks the peer for."""
        return min(self.config.page_bytes, peer.window.page_bytes)

    def page_rows(self, peer: PeerRecord, each: int) -> int:
        """Return the messages of ``each`` bytes that a call asks for: twice what should fit.

        Where blobs are left out, a page would else bring a thousand headers whose blobs come one
        by one.
        """
        return min(self.config.page_messages, max(1, 2 * self.page_bytes(peer) // each))

    def _joins(self, peer: PeerRecord, rows: int, size: int) -> bool:
        call = self._open.get(peer.name)
        return (
            call is not None
            and call.rows + rows <= self.config.page_messages
            and call.size + size <= self.page_bytes(peer)
        )

    def _room(self, call: PageCall) -> bool:
        config = self.config
        return (
            call.lanes < config.call_lanes
            and call.rows < config.page_messages
            and call.size < self.page_bytes(call.peer)
        )
