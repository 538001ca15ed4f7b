"""A Yamux stream that holds no more than it was granted.

Faults worked around: the library's stream doubles its window at every read, up to 16 MiB, and tells
the peer of each read; whoever waits for credit looks a hundred times a second; bytes of a stream
that was reset stay until a sweep.

The rule here is one equation: what the peer may still send, what it sent and nobody has read, and
what was read and not told yet are together the stream's window, at every moment. Credit is given in
pieces of `CREDIT_BYTES`; the window grows at such a moment only, up to `receive_window_max`, and
only while connection and node hold less than half of what they may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError, MuxedStreamReset
from libp2p.stream_muxer.yamux.yamux import DEFAULT_WINDOW_SIZE, YamuxStream

from luxrelay.net.config import COALESCED_BYTES

if TYPE_CHECKING:
    from luxrelay.net.yamux import GuardedYamux

CREDIT_BYTES: Final = 64 * 1024
"""Bytes that may be read from a stream before the peer is told that it may send so many more; a
quarter of the smallest window, so that a sender never waits for them."""
_CREDIT_WAIT_S: Final = 5.0
"""Seconds a write waits for credit, as the library does."""


class GuardedStream(YamuxStream):
    """One stream of a `GuardedYamux`; which side opened it makes no difference here."""

    def __init__(self, stream_id: int, conn: GuardedYamux, *, is_initiator: bool) -> None:
        super().__init__(stream_id, conn, is_initiator)
        self.mux = conn
        self.buffer = bytearray()
        self.arrived = trio.Event()
        self.parked = 0
        """Bytes that a reader took and cannot use yet: the beginning of a frame."""
        self.agreed = False
        """Whether both sides know what is spoken on it."""
        self.abandoned_at: float | None = None
        """When its handler ended and left it to the peer to close."""
        self._window = DEFAULT_WINDOW_SIZE
        self._owed = 0
        self._room = trio.Event()
        self._credit = trio.Event()

    @property
    def held(self) -> int:
        """Bytes of the peer that are in memory for this stream."""
        return len(self.buffer) + self.parked

    # What the connection does with it.

    def agree(self) -> None:
        """The protocol is known: from now on the whole window may be used."""
        self.agreed = True
        self._room.set()

    def push(self, data: bytes) -> None:
        """Bytes have come; nobody may ever read them when the stream is over for us."""
        if self.recv_closed or self.abandoned_at is not None:
            return
        self.buffer += data
        self.arrived.set()
        self.mux.holds(len(data))

    def room(self) -> int:
        """Bytes that are taken from the connection now; fewer while the protocol is not known."""
        if self.agreed or self.recv_closed or self.abandoned_at is not None:
            return COALESCED_BYTES
        return self.mux.negotiation_max - len(self.buffer)

    async def wait_room(self) -> None:
        """Somebody read, or the stream is agreed on or over."""
        self._room = trio.Event()
        await self._room.wait()

    def credit(self, increment: int) -> None:
        """The peer takes so many bytes more."""
        self.send_window += increment
        self._credit.set()

    def peer_finished(self) -> None:
        """The peer sends nothing more."""
        self.recv_closed = True
        self.closed = self.send_closed
        self._wake()

    def end(self) -> None:
        """The stream is over in both directions, and what it held is gone."""
        self.discard()
        self.closed = self.send_closed = self.recv_closed = self.reset_received = True
        self._wake()

    def discard(self) -> None:
        """Nothing that was not read is held any longer."""
        count = self.held
        self.buffer.clear()
        self.parked = 0
        if count:
            self.mux.holds(-count)

    def park(self, count: int) -> None:
        """The reader keeps so many bytes that it took, until it says otherwise."""
        if self.closed:
            return
        change, self.parked = count - self.parked, count
        if change:
            self.mux.holds(change)

    def abandon(self) -> None:
        """Nobody here reads or writes any more; the peer has a while to close the stream."""
        self.discard()
        if not self.closed and self.abandoned_at is None:
            self.abandoned_at = trio.current_time()
        self._room.set()

    def _wake(self) -> None:
        self.arrived.set()
        self._room.set()
        self._credit.set()

    # What the reader and the writer do with it.

    async def read(self, n: int | None = -1) -> bytes:
        """What has come, at most ``n`` bytes.

        Raises:
            MuxedStreamReset: The stream was reset.
            MuxedStreamEOF: The peer has finished and everything was read, or the connection is
                over.

        """
        while not self.buffer:
            if self.reset_received and not self.mux.event_shutting_down.is_set():
                raise MuxedStreamReset("Stream was reset")
            if self.recv_closed:
                raise MuxedStreamEOF("Stream is closed for receiving")
            self.arrived = trio.Event()
            await self.arrived.wait()
        if n is None or n < 0 or n >= len(self.buffer):
            data = bytes(self.buffer)
            self.buffer.clear()
        else:
            data = bytes(self.buffer[:n])
            del self.buffer[:n]
        self.mux.holds(-len(data))
        if not self.agreed:
            self._room.set()
        if self.closed and not self.buffer:
            self.mux.forget(self)
        elif not self.recv_closed:
            await self._give(len(data))
        return data

    async def _give(self, count: int) -> None:
        """The peer may send what was read again, told in larger pieces."""
        self._owed += count
        if self._owed < CREDIT_BYTES:
            return
        credit, self._owed = self._owed, 0
        if self.agreed and self.mux.roomy:
            grown = min(self._window * 2, self.mux.window_max)
            credit += grown - self._window
            self._window = grown
        self.recv_window += credit
        await self.send_window_update(credit)

    async def write(self, data: bytes) -> None:
        """All of it is on its way, in pieces that the peer gave credit for.

        Raises:
            MuxedStreamError: The stream is over, or no credit came for five seconds.
            ConnectionClosedError: The connection is gone.

        """
        sent = 0
        while sent < len(data):
            if self.send_closed or self.closed:
                raise MuxedStreamError("Stream is closed for sending")
            if self.send_window <= 0:
                await self._wait_credit()
                continue
            part = data[sent : sent + min(self.send_window, COALESCED_BYTES)]
            self.send_window -= len(part)
            sent += len(part)
            await self.mux.write_data(self.stream_id, part)

    async def _wait_credit(self) -> None:
        self._credit = trio.Event()
        with trio.move_on_after(_CREDIT_WAIT_S):
            await self._credit.wait()
            return
        raise MuxedStreamError("The peer gave no credit in time")

    async def reset(self) -> None:
        """The stream is over at both ends, and what was not read is gone."""
        self.discard()
        try:
            await super().reset()
        finally:
            self.end()
            self.mux.forget(self)
