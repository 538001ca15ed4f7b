"""The library's Yamux, with its window enforced and its waits bounded.

Theory of operation
  Decides: which frames of a peer reach the multiplexer, and when a connection is dead.
  Does not know: what streams carry.
  Faults worked around: the library only logs when a peer pushes past the receive window of a
    stream, so a stream nobody reads grows without end; it accepts any number of streams; it lets
    the window grow to 16 MiB; a frame that cannot be written waits for ever, and `close` waits
    behind it; a peer that stopped answering pings is kept.
  How: `FrameGuard` stands between the Noise session and the multiplexer and looks at each frame's
    header first. A frame past its window is drained, its stream reset on both sides: the peer gets
    a reset frame, the multiplexer reads one as if the peer had sent it. The multiplexer's own
    accounting stays in charge of windows, so guard and window updates cannot disagree.
  Bounds: `receive_window_max` a stream, `connection_streams_max` streams, `streams_per_s` new ones,
    `refusals_per_s` and `pings_per_s`, which cost a write each, `write_timeout_s` a frame,
    `keepalive_interval_s` times `keepalive_misses_max` without a sign of life.
  What else to change: the guard relies on the library reading a header of 12 bytes and then the
    body, and on `streams`, `stream_buffers` and `recv_window`; the version is pinned for that.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from typing import Final

import trio
from libp2p.abc import ISecureConn
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.stream_muxer.yamux.yamux import (
    DEFAULT_WINDOW_SIZE,
    FLAG_ACK,
    FLAG_FIN,
    FLAG_RST,
    FLAG_SYN,
    GO_AWAY_NORMAL,
    HEADER_SIZE,
    TYPE_DATA,
    TYPE_GO_AWAY,
    TYPE_PING,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)

from luxrelay.net.config import NetConfig

_HEADER: Final = struct.Struct(YAMUX_HEADER_FORMAT)
_DRAIN_BYTES: Final = 65_536
_GOODBYE_S: Final = 0.5
"""Seconds for the farewell frame of an orderly close."""
CREDIT_BYTES: Final = 64 * 1024
"""Bytes that may be read from a stream before the peer is told that it may send so many more; a
quarter of the smallest window, so that a sender never waits for them."""
_KNOWN_FLAGS: Final = FLAG_SYN | FLAG_ACK | FLAG_FIN | FLAG_RST


@dataclass(slots=True)
class MuxCounters:
    """What the guards of one host have stopped."""

    window_exceeded: int = 0
    """Streams reset because the peer pushed past the receive window."""
    streams_refused: int = 0
    """Streams refused because the connection had too many, or the id was not the peer's to give."""
    protocol_errors: int = 0
    """Connections closed for a frame that is not Yamux, or for streams refused without end."""
    pings_ignored: int = 0
    """Pings above `pings_per_s`, passed over."""
    write_timeouts: int = 0
    """Connections closed because a frame could not be written in time."""
    keepalive_timeouts: int = 0
    """Connections closed because the peer stopped answering."""


class _Pace:
    """Counts what happens within a second."""

    __slots__ = ("_count", "_until")

    def __init__(self) -> None:
        self._count = 0
        self._until = float("-inf")

    def over(self, most: int) -> bool:
        """Count once more; True above so many in the second that has begun."""
        now = trio.current_time()
        if now >= self._until:
            self._count, self._until = 0, now + 1.0
        self._count += 1
        return self._count > most


class FrameGuard:
    """Looks like the secured connection to the multiplexer and lets only lawful frames through."""

    def __init__(
        self, secured: ISecureConn, config: NetConfig, counters: MuxCounters, peer_parity: int
    ) -> None:
        self._secured = secured
        self._config = config
        self._counters = counters
        self._peer_parity = peer_parity
        self._body_left = 0
        self._pings, self._opened, self._refused = _Pace(), _Pace(), _Pace()
        self.mux: GuardedYamux | None = None

    def __getattr__(self, name: str) -> object:
        """Everything but `read` is the secured connection's."""
        return getattr(self._secured, name)

    async def read(self, n: int | None = None) -> bytes:
        """The next header, or the next bytes of the body it announced."""
        if self._body_left:
            wanted = self._body_left if n is None else min(n, self._body_left)
            data = await self._secured.read(wanted)
            self._body_left -= len(data)
            return data
        return await self._next_header()

    async def _next_header(self) -> bytes:
        mux = self.mux
        assert mux is not None
        while True:
            header = await self._secured.read(HEADER_SIZE)
            if len(header) < HEADER_SIZE:
                return header
            version, kind, flags, stream_id, length = _HEADER.unpack(header)
            if version != 0 or kind > TYPE_GO_AWAY or flags & ~_KNOWN_FLAGS:
                return await self._hang_up()
            mux.heard()
            if kind == TYPE_PING and self._pings.over(self._config.pings_per_s):
                self._counters.pings_ignored += 1  # each would be answered with a write of its own
                continue
            if kind in (TYPE_PING, TYPE_GO_AWAY):
                return header
            body = length if kind == TYPE_DATA else 0
            if flags & FLAG_SYN and not self._may_open(mux, stream_id):
                self._counters.streams_refused += 1
                if self._refused.over(self._config.refusals_per_s):
                    return await self._hang_up()
                await self._refuse(mux, stream_id, body)
                continue
            if kind == TYPE_WINDOW_UPDATE:
                return header
            passed = await self._data(mux, header, stream_id, body, opening=bool(flags & FLAG_SYN))
            if passed:
                return passed

    async def _data(
        self, mux: GuardedYamux, header: bytes, stream_id: int, body: int, *, opening: bool
    ) -> bytes:
        """The header that the multiplexer is to read for a frame with data; empty for none."""
        window = self._window(mux, stream_id, opening=opening)
        if window is None:
            await self._drain(body)
            return b""
        if body > window:
            self._counters.window_exceeded += 1
            await self._refuse(mux, stream_id, body)
            if stream_id not in mux.streams:
                return b""
            mux.stream_buffers[stream_id].clear()
            return _frame(TYPE_WINDOW_UPDATE, FLAG_RST, stream_id)
        self._body_left = body
        return header

    async def _hang_up(self) -> bytes:
        self._counters.protocol_errors += 1
        await self._secured.close()
        return b""

    def _may_open(self, mux: GuardedYamux, stream_id: int) -> bool:
        theirs = stream_id > 0 and stream_id % 2 == self._peer_parity
        room = len(mux.streams) < self._config.connection_streams_max
        return theirs and room and not self._opened.over(self._config.streams_per_s)

    def _window(self, mux: GuardedYamux, stream_id: int, *, opening: bool) -> int | None:
        """Bytes the peer may still send on the stream; None when there is no such stream."""
        stream = mux.streams.get(stream_id)
        if stream is None:
            return DEFAULT_WINDOW_SIZE if opening else None
        half = self._config.receive_window_max // 2  # the library doubles it once at most
        stream.target_recv_window = min(stream.target_recv_window, half)
        return stream.recv_window

    async def _refuse(self, mux: GuardedYamux, stream_id: int, body: int) -> None:
        await mux.write_frame(_frame(TYPE_WINDOW_UPDATE, FLAG_RST, stream_id))
        await self._drain(body)

    async def _drain(self, count: int) -> None:
        while count > 0:
            data = await self._secured.read(min(count, _DRAIN_BYTES))
            if not data:
                return
            count -= len(data)


def _frame(kind: int, flags: int, stream_id: int, length: int = 0) -> bytes:
    return _HEADER.pack(0, kind, flags, stream_id, length)


class GuardedYamux(Yamux):
    """A Yamux connection whose peer cannot make it hold more, or wait longer, than configured."""

    def __init__(
        self, secured_conn: ISecureConn, peer_id: ID, config: NetConfig, counters: MuxCounters
    ) -> None:
        initiator = secured_conn.is_initiator
        guard = FrameGuard(secured_conn, config, counters, peer_parity=0 if initiator else 1)
        super().__init__(guard, peer_id, is_initiator=initiator)  # type: ignore[arg-type]  # the guard forwards the rest
        guard.mux = self
        self._config = config
        self._counters = counters
        self._misses = 0
        self._credits: dict[int, int] = {}

    def heard(self) -> None:
        """The peer gave a sign of life."""
        self._misses = 0

    async def write_frame(self, data: bytes) -> None:
        """The frame is in the socket's buffer, or the connection is closed.

        Raises:
            ConnectionClosedError: It was gone, or took longer than `write_timeout_s`.

        """
        with trio.move_on_after(self._config.write_timeout_s) as scope:
            async with self._write_lock:
                await self.secured_conn.write(data)
        if scope.cancelled_caught:
            self._counters.write_timeouts += 1
            await self.secured_conn.close()
            raise ConnectionClosedError("the peer takes nothing any more")

    async def _write_frame(self, data: bytes) -> None:
        if len(data) == HEADER_SIZE:
            data = self._gathered(data)
        if data:
            await self.write_frame(data)
        await trio.lowlevel.checkpoint()

    def _gathered(self, header: bytes) -> bytes:
        """The frame to send for a header: window updates are gathered, none is sent for each read.

        The library tells the peer of every read; half of all frames were such updates.
        """
        _, kind, flags, stream_id, length = _HEADER.unpack(header)
        if kind != TYPE_WINDOW_UPDATE or flags:
            return header
        credit = self._credits.pop(stream_id, 0) + length
        if credit >= CREDIT_BYTES or stream_id not in self.streams:
            return _frame(TYPE_WINDOW_UPDATE, 0, stream_id, credit)
        if len(self._credits) >= self._config.connection_streams_max:
            self._credits = {key: c for key, c in self._credits.items() if key in self.streams}
        self._credits[stream_id] = credit
        return b""

    async def _measure_rtt_loop(self) -> None:
        """Ping the peer and drop the connection when it stays silent (G32)."""
        while not self.event_shutting_down.is_set():
            with trio.move_on_after(self._config.keepalive_interval_s):
                await self.event_shutting_down.wait()
                return
            if self._misses >= self._config.keepalive_misses_max:
                self._counters.keepalive_timeouts += 1
                await self.secured_conn.close()
                return
            self._misses += 1
            self._ping_id = (self._ping_id + 1) % 2**32
            self._ping_sent_time = trio.current_time()
            try:
                await self.write_frame(_frame(TYPE_PING, FLAG_SYN, 0, self._ping_id))
            except ConnectionClosedError:
                return

    async def open_stream(self) -> YamuxStream:
        """A new stream to the peer.

        Raises:
            MuxedStreamError: The connection is closing.
            ConnectionClosedError: The connection is gone or has its fill of streams.

        """
        if len(self.streams) >= self._config.connection_streams_max:
            raise ConnectionClosedError("the connection has its fill of streams")
        return await super().open_stream()

    async def close(self, error_code: int = GO_AWAY_NORMAL) -> None:
        """The connection is closed within half a second, whatever the peer does."""
        if not self.event_shutting_down.is_set():
            with trio.move_on_after(_GOODBYE_S):
                with contextlib.suppress(ConnectionClosedError):
                    await self.write_frame(_frame(TYPE_GO_AWAY, 0, 0, error_code))
        await self.secured_conn.close()
        await super().close(error_code)
