"""The library's Yamux, with its window enforced, its waits bounded and its frames read by us.

Theory of operation
  Decides: what each frame of a peer does, and when a connection is dead.
  Does not know: what streams carry.
  Faults worked around: the library only logs when a peer pushes past the receive window of a
    stream, and lets that window double at every read; it accepts any number of streams; it holds a
    frame until its last byte has come; a frame that cannot be written waits for ever, and `close`
    waits behind it; a peer that stopped answering pings is kept; an exception in one connection
    ends the host.
  How: `handle_incoming` is ours. Each frame is judged by its header; data goes to its stream
    (`GuardedStream`) in pieces as they come. Windows are counted in one place, there.
  Bounds: `receive_window_max` a stream, `negotiation_unread_max` before its protocol is known,
    `connection_unread_max` a connection, the host's `UnreadBudget`, `connection_streams_max`
    streams, `streams_per_s` new ones, `refusals_per_s` and `pings_per_s`, which cost a write each,
    `idle_frames_per_s` that carry next to nothing, `write_timeout_s` a frame,
    `keepalive_interval_s` times `keepalive_misses_max` without a sign of life. Data for streams
    that are gone is passed over as far as the peer had credit for it, and no further.
  What else to change: this relies on the library's `streams`, `stream_buffers`, `stream_events`,
    `_cleanup_on_error` and `_finalize_stream_locked`; the version is pinned for that.

A Yamux stream that holds no more than it was granted.

Faults worked around: the library's stream doubles its window at every read, up to 16 MiB, and tells
the peer of each read; whoever waits for credit looks a hundred times a second; bytes of a stream
that was reset stay until a sweep.

The rule here is one equation: what the peer may still send, what it sent and nobody has read, and
what was read and not told yet are together the stream's window, at every moment. Credit is given in
pieces of `CREDIT_BYTES`; the window grows at such a moment only, up to `receive_window_max`, and
only while connection and node hold less than half of what they may.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio
from libp2p.abc import ISecureConn
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError, MuxedStreamReset
from libp2p.stream_muxer.yamux.yamux import (
    DEFAULT_WINDOW_SIZE,
    FLAG_ACK,
    FLAG_FIN,
    FLAG_RST,
    FLAG_SYN,
    GO_AWAY_NORMAL,
    HEADER_SIZE,
    MAX_WINDOW_SIZE,
    TYPE_DATA,
    TYPE_GO_AWAY,
    TYPE_PING,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)

from luxrelay.conduct import Cause
from luxrelay.net.charging import account
from luxrelay.net.config import COALESCED_BYTES, NetConfig
from luxrelay.net.guarded import Faults
from luxrelay.net.scopes import shielded
from luxrelay.net.unread import UnreadBudget

CREDIT_BYTES: Final = 64 * 1024
"""Bytes that may be read from a stream before the peer is told that it may send so many more; a
quarter of the smallest window, so that a sender never waits for them."""
CREDIT_WAIT_S: Final = 5.0
"""Seconds a write waits for credit on a stream of the library's own, as the library does."""


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
        self.credit_wait_s = conn.credit_wait_s
        """Seconds a write waits for credit."""
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
            MuxedStreamError: The stream is over, or no credit came for longer than `write_stall_s`.
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
        self.mux.note_stall()
        with trio.move_on_after(self.credit_wait_s):
            await self._credit.wait()
            return
        raise MuxedStreamError("The peer gave no credit in time")

    async def reset(self) -> None:
        """The stream is over at both ends, and what was not read is gone."""
        self.discard()
        self.mux.note_reset(unless=self.closed)
        try:
            await super().reset()
        finally:
            self.end()
            self.mux.forget(self)


__all__ = ["CREDIT_BYTES", "CREDIT_WAIT_S", "GuardedStream", "GuardedYamux", "MuxCounters"]

_HEADER: Final = struct.Struct(YAMUX_HEADER_FORMAT)
_DRAIN_BYTES: Final = 65_536
_CREDIT_SLACK_S: Final = 1.0
_GOODBYE_S: Final = 0.5
"""Seconds for the farewell frame of an orderly close."""
_STRAY_BYTES: Final = DEFAULT_WINDOW_SIZE
"""Bytes for streams that never were which a connection may send in its life."""
_FULL_FRAME: Final = 64
"""Bytes of data from which on a frame is not idle."""
_KNOWN_FLAGS: Final = FLAG_SYN | FLAG_ACK | FLAG_FIN | FLAG_RST


@dataclass(slots=True)
class MuxCounters:
    """What the multiplexers of one host have stopped."""

    window_exceeded: int = 0
    """Streams reset because the peer pushed past the receive window."""
    streams_refused: int = 0
    """Streams refused because the connection had too many, or the id was not the peer's to give."""
    streams_shed: int = 0
    """Streams reset because too many bytes waited to be read."""
    protocol_errors: int = 0
    """Connections closed for a frame that is not Yamux, or for streams refused without end."""
    pings_ignored: int = 0
    """Pings above `pings_per_s`, passed over."""
    write_timeouts: int = 0
    """Connections closed because no byte of a frame could be written in time."""
    keepalive_timeouts: int = 0
    """Connections closed because the peer stopped answering."""
    opened_in: int = 0
    """Streams that peers opened."""
    opened_out: int = 0
    """Streams that we opened."""
    resets_in: int = 0
    """Streams that peers reset."""
    resets_out: int = 0
    """Streams that we reset, for whatever reason."""
    window_stalls: int = 0
    """Times a write waited because the peer had given no credit."""


class _Pace:
    """Counts what happens within a second."""

    __slots__ = ("_count", "until")

    def __init__(self) -> None:
        self._count = 0
        self.until = float("-inf")

    def over(self, most: int) -> bool:
        """Count once more; True above so many in the second that has begun."""
        now = trio.current_time()
        if now >= self.until:
            self._count, self.until = 0, now + 1.0
        self._count += 1
        return self._count > most


class _FrameError(Exception):
    """The peer does not speak Yamux, or not as it may."""


class _OverError(Exception):
    """The connection is over: the peer said so, or its bytes ended."""


def _frame(kind: int, flags: int, stream_id: int, length: int = 0) -> bytes:
    return _HEADER.pack(0, kind, flags, stream_id, length)


class GuardedYamux(Yamux):
    """A Yamux connection whose peer cannot make it hold more, or wait longer, than configured.

    Args:
        secured_conn: The Noise session.
        peer_id: Who is at its other end.
        config: Bounds.
        counters: What was stopped.
        budget: Bytes that all connections of the host hold together; one of its own when None.
        faults: Where exceptions are noted that nobody expected.
        heard: Called whenever bytes of the peer have come.

    """

    def __init__(
        self,
        secured_conn: ISecureConn,
        peer_id: ID,
        config: NetConfig,
        counters: MuxCounters,
        *,
        budget: UnreadBudget | None = None,
        faults: Faults | None = None,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        initiator = secured_conn.is_initiator
        super().__init__(secured_conn, peer_id, is_initiator=initiator)
        self.negotiation_max = config.negotiation_unread_max
        self.window_max = config.receive_window_max
        self.credit_wait_s = config.write_stall_s + _CREDIT_SLACK_S
        """Seconds a write waits for credit; its writer gives up a little earlier."""
        self.unread = 0
        self.spoke = trio.Event()
        """Set once a stream was agreed on for a protocol of ours, and when the connection ends."""
        self.cause = Cause.ENDED
        """Why it is over, once it is."""
        self._config = config
        self._counters = counters
        self._budget = budget if budget is not None else UnreadBudget(config.unread_max)
        self._faults = faults if faults is not None else Faults()
        self._heard = heard
        self._peer_parity = 0 if initiator else 1
        self._pings, self._opened, self._refused = _Pace(), _Pace(), _Pace()
        self._idle = _Pace()
        self._stray_left = _STRAY_BYTES
        self._misses = 0
        self._budget.join(self)

    # Bytes that are held.

    @property
    def roomy(self) -> bool:
        """Whether a stream may be granted more than it had."""
        return self._budget.roomy and self.unread * 2 < self._config.connection_unread_max

    def holds(self, change: int) -> None:
        """So many bytes more are held for the streams of this connection, or fewer."""
        self.unread += change
        if change < 0:
            self._budget.give(-change)
            return
        while self.unread > self._config.connection_unread_max and self.shed():
            pass
        if change > 0:
            self._budget.take(change)

    def shed(self) -> bool:
        """The fullest stream is reset and its bytes are gone; False when none holds anything."""
        stream = max(self._guarded(), key=lambda found: found.held, default=None)
        if stream is None or not stream.held:
            return False
        self._counters.streams_shed += 1
        self._cut(stream)
        return True

    def _guarded(self) -> list[GuardedStream]:
        return [s for s in self.streams.values() if isinstance(s, GuardedStream)]

    def _cut(self, stream: GuardedStream) -> None:
        """The stream is over; the peer is told as soon as the connection takes it."""
        stream.end()
        self.forget(stream)
        if self._nursery is not None and not self.event_shutting_down.is_set():
            self._nursery.start_soon(self._tell_reset, stream.stream_id)

    async def _tell_reset(self, stream_id: int) -> None:
        with contextlib.suppress(BaseLibp2pError):
            await self._refuse(stream_id)

    async def _refuse(self, stream_id: int) -> None:
        self.note_reset()
        await self.write_frame(_frame(TYPE_WINDOW_UPDATE, FLAG_RST, stream_id))

    def note_reset(self, *, unless: bool = False) -> None:
        """A stream is reset by us, unless it was over already."""
        self._counters.resets_out += not unless

    def note_stall(self) -> None:
        """A write waits for credit."""
        self._counters.window_stalls += 1

    def forget(self, stream: GuardedStream) -> None:
        """The connection knows a stream no longer that is over in both directions."""
        self._finalize_stream_locked(stream, fully_closed=True)

    def _finalize_stream_locked(self, stream: YamuxStream, *, fully_closed: bool) -> None:
        if fully_closed and isinstance(stream, GuardedStream):
            known = self.streams.get(stream.stream_id) is stream
            if known and stream.reset_received:
                self._stray_left += stream.recv_window  # it may be under way
        super()._finalize_stream_locked(stream, fully_closed=fully_closed)

    def _forget_all(self) -> None:
        for stream in self._guarded():
            stream.end()
        self.streams.clear()
        self.stream_buffers.clear()
        self.stream_events.clear()
        self.spoke.set()
        self._budget.give(self.unread)
        self.unread = 0
        self._budget.leave(self)

    # The connection's life.

    async def start(self) -> None:
        """Frames are read until the connection is over; nothing is raised."""
        try:
            await self._faults.run("connection", super().start)
        finally:
            self._forget_all()
            self.event_started.set()  # or whoever waits for the start would wait for ever
        if not self.event_closed.is_set():
            await self._faults.run("connection", self._cleanup_on_error)

    async def _cleanup_on_error(self) -> None:
        self.event_shutting_down.set()
        self._forget_all()
        await super()._cleanup_on_error()

    async def close(self, error_code: int = GO_AWAY_NORMAL) -> None:
        """The connection is closed within half a second, whatever the peer does.

        Also when who closes it is cancelled: half closed, its socket would be nobody's.
        """
        with shielded(2 * _GOODBYE_S):
            if not self.event_shutting_down.is_set():
                with trio.move_on_after(_GOODBYE_S):
                    with contextlib.suppress(ConnectionClosedError):
                        await self.write_frame(_frame(TYPE_GO_AWAY, 0, 0, error_code))
            await self.secured_conn.close()
            self.event_shutting_down.set()
            self._forget_all()
            self.new_stream_send_channel.close()
            await super().close(error_code)

    async def _measure_rtt_loop(self) -> None:
        """Ping the peer and drop the connection when it stays silent (G32)."""
        while not self.event_shutting_down.is_set():
            with trio.move_on_after(self._config.keepalive_interval_s):
                await self.event_shutting_down.wait()
                return
            charged = account()
            if charged is not None and charged.held:
                self._misses = 0  # its answers wait in the socket, because we do not read them
            if self._misses >= self._config.keepalive_misses_max:
                self._counters.keepalive_timeouts += 1
                self.cause = Cause.NO_PONG
                await self.secured_conn.close()
                return
            self._misses += 1
            try:
                await self._send_ping()
            except ConnectionClosedError:
                return

    async def _send_ping(self) -> None:
        self._ping_id = (self._ping_id + 1) % 2**32
        self._ping_sent_time = trio.current_time()
        await self.write_frame(_frame(TYPE_PING, FLAG_SYN, 0, self._ping_id))

    async def ping(self) -> None:
        """The peer was asked for a sign of life, unless the connection is over or takes nothing.

        It counts for none of the misses that end a connection.
        """
        with trio.move_on_after(self._config.probe_timeout_s):
            with contextlib.suppress(ConnectionClosedError):
                await self._send_ping()

    async def _stale_stream_sweeper(self) -> None:
        """Streams whose handler has ended are reset when the peer does not close them."""
        while True:
            await trio.sleep(self._config.abandoned_s)
            due = trio.current_time() - self._config.abandoned_s
            for stream in self._guarded():
                if stream.abandoned_at is not None and stream.abandoned_at <= due:
                    self._cut(stream)

    # Frames out.

    async def write_frame(self, data: bytes) -> None:
        """The frame is in the socket's buffer, or the connection is closed.

        Raises:
            ConnectionClosedError: It was gone, or took longer than `write_timeout_s`; a frame that
                waits behind others does not count that, because each of them moves.

        """
        async with self._write_lock:
            with trio.move_on_after(self._config.write_timeout_s) as scope:
                try:
                    await self.secured_conn.write(data)
                except BaseLibp2pError as error:
                    raise ConnectionClosedError("the connection is gone") from error
        if scope.cancelled_caught:
            self._counters.write_timeouts += 1
            self.cause = Cause.NOTHING_TAKEN
            await self.secured_conn.close()
            raise ConnectionClosedError("the peer takes nothing any more")

    async def write_data(self, stream_id: int, data: bytes) -> None:
        """The data is in the socket's buffer as one frame, or the connection is closed.

        Raises:
            ConnectionClosedError: It was gone, or took longer than `write_timeout_s`.

        """
        await self.write_frame(_frame(TYPE_DATA, 0, stream_id, len(data)) + data)

    async def _write_frame(self, data: bytes) -> None:
        await self.write_frame(data)

    async def open_stream(self) -> YamuxStream:
        """A new stream to the peer.

        Raises:
            MuxedStreamError: The connection is closing.
            ConnectionClosedError: The connection is gone or has its fill of streams.

        """
        if len(self.streams) >= self._config.connection_streams_max:
            raise ConnectionClosedError("the connection has its fill of streams")
        if self.event_shutting_down.is_set():
            raise MuxedStreamError("Connection is shutting down")
        stream = self._new_stream(self.next_stream_id, ours=True)
        self.next_stream_id += 2
        try:
            await self.write_frame(_frame(TYPE_WINDOW_UPDATE, FLAG_SYN, stream.stream_id))
        except BaseException:
            stream.end()
            self.forget(stream)
            raise
        return stream

    def _new_stream(self, stream_id: int, *, ours: bool) -> GuardedStream:
        self._counters.opened_out += ours
        self._counters.opened_in += not ours
        stream = GuardedStream(stream_id, self, is_initiator=ours)
        self.streams[stream_id] = stream
        self.stream_buffers[stream_id] = stream.buffer
        self.stream_events[stream_id] = stream.arrived
        return stream

    # Frames in.

    async def handle_incoming(self) -> None:
        """Frames do what they say until the connection is over."""
        with self._faults.contained("connection"):
            try:
                await self._read_frames()
            except _FrameError:
                self.cause = Cause.NOT_YAMUX
                self._counters.protocol_errors += 1
            except (_OverError, BaseLibp2pError, OSError):
                pass  # it is gone
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # closed by us
        await self._cleanup_on_error()

    async def _read_frames(self) -> None:
        while not self.event_shutting_down.is_set():
            header = await self.secured_conn.read(HEADER_SIZE)
            if len(header) < HEADER_SIZE:
                return
            self._heard()
            await self._incoming(*_HEADER.unpack(header))

    async def _incoming(
        self, version: int, kind: int, flags: int, stream_id: int, length: int
    ) -> None:
        if version != 0 or kind > TYPE_GO_AWAY or flags & ~_KNOWN_FLAGS:
            raise _FrameError
        self._misses = 0
        body = length if kind == TYPE_DATA else 0
        # A header costs as much as a full frame and carries nothing: those that say little are read
        # at a pace, and what is not read fills the sender's own window.
        if body < _FULL_FRAME and self._idle.over(self._config.idle_frames_per_s):
            await trio.sleep_until(self._idle.until)
        if kind == TYPE_PING:
            await self._ping(flags, length)
        elif kind == TYPE_GO_AWAY:
            raise _OverError
        elif body > MAX_WINDOW_SIZE:
            raise _FrameError
        else:
            await self._stream_frame(kind, flags, stream_id, length, body)

    async def _ping(self, flags: int, value: int) -> None:
        if flags & FLAG_SYN:
            if self._pings.over(self._config.pings_per_s):
                self._counters.pings_ignored += 1  # each would be answered with a write of its own
                return
            await self.write_frame(_frame(TYPE_PING, FLAG_ACK, 0, value))
        elif flags & FLAG_ACK:
            took = trio.current_time() - self._ping_sent_time
            self._rtt = (self._rtt + took) / 2 if self._rtt else took

    async def _stream_frame(
        self, kind: int, flags: int, stream_id: int, length: int, body: int
    ) -> None:
        if flags & FLAG_SYN:
            stream = await self._accept(stream_id, flags, body)
        else:
            stream = self._known(stream_id)
        if stream is None:
            if not flags & FLAG_SYN:
                self._pass_over(body)
            await self._drain(body)
            return
        if kind == TYPE_WINDOW_UPDATE:
            stream.credit(length)
        elif body:
            await self._data(stream, body)
        if flags & FLAG_FIN and not stream.recv_closed:
            stream.peer_finished()
        if flags & FLAG_RST:
            self._counters.resets_in += 1
            stream.end()
        if stream.closed and not stream.buffer:
            self.forget(stream)

    def _known(self, stream_id: int) -> GuardedStream | None:
        stream = self.streams.get(stream_id)
        return stream if isinstance(stream, GuardedStream) else None

    async def _accept(self, stream_id: int, flags: int, body: int) -> GuardedStream | None:
        """The stream that the peer opens; None when it may not."""
        if stream_id in self.streams:
            raise _FrameError
        refused = not self._may_open(stream_id)
        if refused or body > DEFAULT_WINDOW_SIZE:
            self._counters.streams_refused += refused
            self._counters.window_exceeded += not refused
            if self._refused.over(self._config.refusals_per_s):
                raise _FrameError
            self._stray_left += max(0, DEFAULT_WINDOW_SIZE - body)
            await self._refuse(stream_id)
            return None
        if flags & FLAG_RST:
            return None
        stream = self._new_stream(stream_id, ours=False)
        await self.write_frame(_frame(TYPE_WINDOW_UPDATE, FLAG_ACK, stream_id))
        await self.new_stream_send_channel.send(stream)
        return stream

    def _may_open(self, stream_id: int) -> bool:
        theirs = stream_id > 0 and stream_id % 2 == self._peer_parity
        room = len(self.streams) < self._config.connection_streams_max
        return theirs and room and not self._opened.over(self._config.streams_per_s)

    async def _data(self, stream: GuardedStream, body: int) -> None:
        """The stream gets its bytes as they come; one that got too many is reset."""
        if body > stream.recv_window:
            self._counters.window_exceeded += 1
            if self._refused.over(self._config.refusals_per_s):
                raise _FrameError
            stream.end()
            self.forget(stream)
            await self._refuse(stream.stream_id)
            await self._drain(body)
            return
        stream.recv_window -= body
        while body:
            room = min(body, stream.room())
            if room <= 0:
                await stream.wait_room()
                continue
            data = await self.secured_conn.read(room)
            if not data:
                raise _OverError
            self._heard()
            body -= len(data)
            stream.push(data)

    def _pass_over(self, body: int) -> None:
        """Data for a stream that is gone is lawful as far as it had credit."""
        self._stray_left -= body
        if self._stray_left < 0:
            raise _FrameError

    async def _drain(self, count: int) -> None:
        while count > 0:
            data = await self.secured_conn.read(min(count, _DRAIN_BYTES))
            if not data:
                raise _OverError
            count -= len(data)
