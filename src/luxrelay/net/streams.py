"""Streams of a connection, and frames on them: decoding of received bytes, batching of sent ones.

`RelayStream` is the library's stream with trio's manners.

A frame is an unsigned varint length and that many bytes, as every libp2p pubsub sends them. What
waits for a peer is bounded in bytes and frames; whatever is ready leaves in one write of up to
64 KiB, because a write costs a Noise message, a system call and a task switch however small it is.

An empty frame says nothing, costs its sender one byte and is counted nowhere. A gossip stream may
carry a few, because a peer that follows no topic greets with an empty RPC; other streams none.

Source: LP-6420 §10, G29; requirement 20-58.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

import trio
from libp2p.abc import INetStream
from libp2p.exceptions import BaseLibp2pError
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.network.stream.net_stream import NetStream

from luxrelay.errors import FrameError
from luxrelay.gossip import PeerId
from luxrelay.net.config import COALESCED_BYTES, NetConfig
from luxrelay.net.scopes import shielded
from luxrelay.net.yamux import CREDIT_WAIT_S, GuardedStream

_PREFIX_MAX: Final = 4
"""Bytes of a length prefix; 2^28 is far above any frame we take."""
_READ_BYTES: Final = 262_144
_SLOW_CHUNK: Final = 16 * 1024
"""Bytes of one write to a slow peer, so that the link shows its progress."""
_LONG_WRITE_S: Final = 0.25
"""Writes that take longer, by the mean of the last ones, are followed by such short ones."""
FAREWELL_S: Final = 0.5
"""Seconds to reset or close one stream before we stop caring."""


class ByteStream(Protocol):
    """The part of a trio stream that frames need."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """What is there, at most ``max_bytes``; empty at the end."""
        ...

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """All of ``data`` is on its way."""
        ...


class RelayStream:
    """A stream to one peer, with trio's manners: empty bytes at the end, trio's own errors."""

    def __init__(self, stream: INetStream, protocol: str) -> None:
        self._stream = stream
        self.protocol = protocol
        self.peer = PeerId(stream.muxed_conn.peer_id.to_bytes())

    @property
    def raw(self) -> INetStream:
        """The library's stream, for code of the library."""
        return self._stream

    @property
    def credit_wait_s(self) -> float:
        """Seconds that a write waits until the peer takes more."""
        muxed = getattr(self._stream, "muxed_stream", None)
        return muxed.credit_wait_s if isinstance(muxed, GuardedStream) else CREDIT_WAIT_S

    @credit_wait_s.setter
    def credit_wait_s(self, seconds: float) -> None:
        muxed = getattr(self._stream, "muxed_stream", None)
        if isinstance(muxed, GuardedStream):
            muxed.credit_wait_s = seconds

    def shares_connection(self, other: RelayStream) -> bool:
        """Whether both streams run over the same connection."""
        return self._stream.muxed_conn is other._stream.muxed_conn

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What has arrived; empty when the peer has finished, reset the stream, or is gone."""
        try:
            return await self._stream.read(max_bytes)
        except (StreamEOF, BaseLibp2pError):
            return b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """The bytes are on their way.

        Raises:
            trio.BrokenResourceError: The stream or its connection is gone.

        """
        try:
            await self._stream.write(bytes(data))
        except (BaseLibp2pError, KeyError) as error:
            raise trio.BrokenResourceError(str(error)) from error

    def park(self, count: int) -> None:
        """So many bytes that were received are the beginning of something and wait for the rest."""
        muxed = getattr(self._stream, "muxed_stream", None)
        if isinstance(muxed, GuardedStream):
            muxed.park(count)

    async def reset(self) -> None:
        """The stream is over at both ends; what was under way is lost."""
        with shielded(FAREWELL_S):
            await self._stream.reset()

    async def send_eof(self) -> None:
        """The peer knows that we send nothing more; what it still sends can be read.

        Raises:
            trio.BrokenResourceError: The stream or its connection is gone.

        """
        try:
            assert isinstance(self._stream, NetStream)
            await self._stream.close_write()
        except (BaseLibp2pError, KeyError) as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def aclose(self) -> None:
        """We send nothing more; the stream is over once the peer has finished too."""
        with shielded(FAREWELL_S):
            try:
                await self._stream.close()
            except (BaseLibp2pError, KeyError):
                await self._stream.reset()


class FrameCutError(FrameError, trio.BrokenResourceError):
    """The stream ended inside a frame, as any network may end it: no word about its sender."""


StreamHandler = Callable[[RelayStream], Awaitable[None]]


def encode_frame(payload: bytes) -> bytes:
    """The payload with its length in front."""
    length = len(payload)
    prefix = bytearray()
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + payload


class FrameDecoder:
    """Cuts frames out of a stream of bytes, holding one unfinished frame at most.

    Args:
        frame_max: Bytes of the largest frame.
        empty_max: Empty frames on the whole stream; they are left out.

    """

    def __init__(self, frame_max: int, *, empty_max: int = 0) -> None:
        self._frame_max = frame_max
        self._empty_left = empty_max
        self._buffer = bytearray()
        self._at = 0

    @property
    def unfinished(self) -> int:
        """Bytes that are held of frames that were not handed out."""
        return len(self._buffer) - self._at

    @property
    def announced(self) -> int | None:
        """Length of the next frame, whose bytes need not have come; None before its prefix.

        Raises:
            FrameError: The length is above the maximum or not in its shortest form.

        """
        length, start = self._length()
        return None if start < 0 else length

    def feed(self, data: bytes | bytearray) -> None:
        """The bytes are held until `take` has handed out their frames."""
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def take(self, count_max: int) -> list[bytes]:
        """Complete frames, at most ``count_max``, none of them empty.

        Raises:
            FrameError: A length is above the maximum or not in its shortest form, or there are more
                empty frames than a stream may have.

        """
        frames: list[bytes] = []
        buffer = self._buffer
        while len(frames) < count_max:
            length, start = self._length()
            if start < 0 or len(buffer) < start + length:
                break
            self._at = start + length
            if length:
                frames.append(bytes(buffer[start : self._at]))
            elif self._empty_left:
                self._empty_left -= 1
            else:
                raise FrameError("A stream has too many empty frames")
        return frames

    def _length(self) -> tuple[int, int]:
        """The next frame's length and where it starts; (0, -1) when its prefix is unfinished."""
        value = 0
        for index in range(_PREFIX_MAX):
            position = self._at + index
            if position >= len(self._buffer):
                return 0, -1
            byte = self._buffer[position]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value > self._frame_max:
                    raise FrameError(f"A frame of {value} bytes is above {self._frame_max}")
                if byte == 0 and index:
                    raise FrameError("A frame length is not in its shortest form")
                return value, position + 1
        raise FrameError(f"A frame length has more than {_PREFIX_MAX} bytes")


class FrameReader:
    """Reads frames from a stream in batches.

    Args:
        stream: Where they come from.
        config: `frame_max`, `empty_frames_max`, `frame_batch_max`.
        park: Told how many bytes of an unfinished frame wait here, before more are waited for.

    """

    def __init__(
        self, stream: ByteStream, config: NetConfig, park: Callable[[int], None] = lambda _: None
    ) -> None:
        self._stream = stream
        self._park = park
        self._decoder = FrameDecoder(config.frame_max, empty_max=config.empty_frames_max)
        self._batch_max = config.frame_batch_max

    async def receive(self) -> list[bytes]:
        """The frames that have arrived, at least one; none at the end of the stream.

        Raises:
            FrameCutError: The stream ended inside a frame.
            FrameError: The peer's bytes are no frames.

        """
        while True:
            frames = self._decoder.take(self._batch_max)
            if frames:
                await trio.lowlevel.checkpoint()
                return frames
            self._park(self._decoder.unfinished)
            data = await self._stream.receive_some(_READ_BYTES)
            if not data:
                if self._decoder.unfinished:
                    raise FrameCutError("The stream ended inside a frame")
                return []
            self._decoder.feed(data)


async def read_frame(stream: ByteStream, frame_max: int) -> bytes:
    """The one frame that is expected; what stands after it is thrown away.

    Raises:
        FrameCutError: The stream ended before the frame was whole.
        FrameError: The frame is too long, or empty.

    """
    decoder = FrameDecoder(frame_max)
    while True:
        data = await stream.receive_some(frame_max)
        if not data:
            raise FrameCutError("The stream ended before its frame")
        decoder.feed(data)
        for frame in decoder.take(1):
            return frame


async def until_over(stream: ByteStream, scope: trio.CancelScope) -> None:
    """The peer ended the stream; what it says on it until then is not part of the protocol."""
    while await stream.receive_some(4096):
        pass
    scope.cancel()


class WriterEnd(Enum):
    """Why a `PeerWriter` stopped."""

    LOST = "lost"
    """The stream broke under it."""
    STALLED = "stalled"
    """The peer took nothing for `write_stall_s`."""
    OVERFLOWED = "overflowed"
    """More control waited for the peer than its queue may hold."""


@dataclass(slots=True)
class _Waiting:
    """A frame that waits for a peer."""

    frame: bytes
    since: float
    urgent: bool


class PeerWriter:
    """The bounded queue in front of one stream, and the only one who writes to it.

    A message that does not fit is given up, and may be asked for; what is urgent goes first, has as
    much room of its own, and ends the writer when it does not fit. A peer is slow from the moment
    its oldest frame has waited `slow_after_s`, that which is being written included, or a message
    was given up, until its queue was found empty for `slow_hold_s`. What waits for it goes then:
    its other neighbours are about to send the same, so it asks one of them for each (G39).
    """

    def __init__(
        self, stream: ByteStream, config: NetConfig, clock: Callable[[], float] = trio.current_time
    ) -> None:
        self._stream = stream
        self._config = config
        self._clock = clock
        self._frames: deque[_Waiting] = deque()
        self._offset = 0
        self._urgent = self._urgent_bytes = 0
        self._wake = trio.Event()
        self._overflowed = False
        self._write_scope: trio.CancelScope | None = None
        self._pressed_since: float | None = None
        self._gave_up = False
        self._well_since: float | None = None
        self._passed = self._took = 0.0
        self._writing_since: float | None = None
        self.slow = False
        """Whether less passes than is offered, as of the last `look`."""
        self.given_up = 0
        """Frames of messages that were not sent because too much waited."""
        self.queued_bytes = 0
        self.frames_out = 0
        self.bytes_out = 0
        self.writes = 0
        self.on_progress: Callable[[], None] = lambda: None

    @property
    def queued_frames(self) -> int:
        """Frames not written yet, one partly written included."""
        return len(self._frames)

    def pressed(self, now: float) -> bool:
        """Whether it is half full, and has not been for longer than `patience_s`.

        Whoever makes more for this peer should wait a little. A peer that stays slower than that
        is not waited for: it is slow, and what does not fit is given up.
        """
        since = self._pressed_since
        return since is not None and now - since < self._config.patience_s

    def look(self, now: float) -> int | None:
        """How many bytes of messages a slow peer may be sent now; None while it is not slow.

        Called about once a heartbeat. What passes in `slow_after_s` may wait, at most `slow_bytes`;
        whoever has nothing waiting has room for one message at least.
        """
        config = self._config
        late = self._waits_since(now) > config.slow_after_s
        if self._gave_up or late:
            if not self.slow:
                self.slow = True
                self.trim()
            self._gave_up, self._well_since = False, None
        elif self._frames:
            self._well_since = None
        elif self.slow:
            self._well_since = now if self._well_since is None else self._well_since
            self.slow = now - self._well_since < config.slow_hold_s
        if not self.slow:
            return None
        fits = self._passed / self._took * config.slow_after_s if self._took else math.inf
        room = min(config.slow_bytes, fits) - self.queued_bytes
        return max(int(room), 0 if self._frames else 1)

    def _waits_since(self, now: float) -> float:
        """Seconds that the oldest frame has waited; 0 when none does."""
        since = self._writing_since
        if since is None:
            since = self._frames[0].since if self._frames else now
        return now - since

    def trim(self) -> None:
        """Nothing waits any more but what is urgent, and the rest of a frame that was begun."""
        begun = bool(self._offset)
        while len(self._frames) > begun and not self._frames[-1].urgent:
            self.queued_bytes -= len(self._frames.pop().frame)
            self.given_up += 1
        self._weigh()

    def _weigh(self) -> None:
        config = self._config
        if (
            self.queued_bytes * 2 <= config.queue_bytes_max
            and len(self._frames) * 2 <= config.queue_frames_max
        ):
            self._pressed_since = None
        elif self._pressed_since is None:
            self._pressed_since = self._clock()

    def offer(self, payload: bytes, *, urgent: bool = False) -> bool:
        """Whether the payload waits to be sent; an urgent one that does not ends the writer."""
        if self._overflowed:
            return False
        frame = encode_frame(payload)
        config = self._config
        size, count = self.queued_bytes - self._urgent_bytes, len(self._frames) - self._urgent
        if urgent:
            size, count = self._urgent_bytes, self._urgent
        if size + len(frame) > config.queue_bytes_max or count >= config.queue_frames_max:
            if urgent:
                self._overflow()
            else:
                self.given_up += 1
                self._gave_up = True
            return False
        waiting = _Waiting(frame, self._clock(), urgent)
        if urgent:  # behind what is urgent already, and never inside a frame
            begun = bool(self._offset) and not self._frames[0].urgent
            self._frames.insert(self._urgent + begun, waiting)
            self._urgent += 1
            self._urgent_bytes += len(frame)
        else:
            self._frames.append(waiting)
        self.queued_bytes += len(frame)
        self._weigh()
        self._wake.set()
        return True

    def _overflow(self) -> None:
        self._overflowed = True
        self._wake.set()
        if self._write_scope is not None:
            self._write_scope.cancel()

    async def run(self) -> WriterEnd:
        """Writes what is offered until the peer is gone, stalls, or has too much waiting."""
        while True:
            if self._overflowed:
                return WriterEnd.OVERFLOWED
            if not self._frames:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            self._writing_since = self._frames[0].since
            chunk = self._gather()
            began = self._clock()
            with trio.move_on_after(self._config.write_stall_s) as self._write_scope:
                try:
                    await self._stream.send_all(chunk)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return WriterEnd.LOST
            if self._write_scope.cancelled_caught:
                return self._why_cut()
            self._write_scope = self._writing_since = None
            self._note_written(len(chunk), self._clock() - began)
            self.on_progress()

    def _note_written(self, count: int, seconds: float) -> None:
        self.bytes_out += count
        self.writes += 1
        # Halved each time, so that the last few writes count: bytes and seconds apart, because a
        # buffer that takes a write at once says nothing about the link.
        self._passed = (self._passed + count) / 2
        self._took = (self._took + seconds) / 2

    def _why_cut(self) -> WriterEnd:
        return WriterEnd.OVERFLOWED if self._overflowed else WriterEnd.STALLED

    def _gather(self) -> bytes:
        """Up to 64 KiB of what waits, 16 KiB after long writes, taken out of the queue."""
        frames = self._frames
        parts: list[bytes] = []
        room = _SLOW_CHUNK if self.slow or self._took > _LONG_WRITE_S else COALESCED_BYTES
        while frames and room > 0:
            frame = frames[0].frame
            end = self._offset + room
            part = frame[self._offset : end] if self._offset or end < len(frame) else frame
            parts.append(part)
            room -= len(part)
            self._offset += len(part)
            if self._offset >= len(frame):
                if frames.popleft().urgent:
                    self._urgent -= 1
                    self._urgent_bytes -= len(frame)
                self._offset = 0
                self.frames_out += 1
        chunk = b"".join(parts)
        self.queued_bytes -= len(chunk)
        self._weigh()
        return chunk
