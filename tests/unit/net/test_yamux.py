"""The guarded multiplexer over an in-memory connection: lawful frames pass, others do not."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.stream_muxer.yamux.yamux import YamuxStream

from luxrelay.net.config import NetConfig
from luxrelay.net.yamux import CREDIT_BYTES, GuardedYamux, MuxCounters

CONFIG = NetConfig(
    connection_streams_max=3, keepalive_interval_s=10.0, keepalive_misses_max=2, write_timeout_s=5.0
)
WINDOW = 256 * 1024
DATA, UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8


class MemoryConnection:
    """What a Noise session is to the multiplexer, in the clear and in memory."""

    def __init__(self, stream: trio.abc.Stream, *, initiator: bool) -> None:
        self.stream = stream
        self.is_initiator = initiator
        self._buffer = b""

    async def read(self, n: int) -> bytes:
        """Exactly ``n`` bytes, fewer at the end."""
        while len(self._buffer) < n:
            try:
                data = bytes(await self.stream.receive_some(65_536))
            except trio.ClosedResourceError:
                data = b""
            if not data:
                break
            self._buffer += data
        chunk, self._buffer = self._buffer[:n], self._buffer[n:]
        return chunk

    async def write(self, data: bytes) -> None:
        """All of it, or the library's error."""
        try:
            await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError("gone") from error

    async def close(self) -> None:
        """Both directions."""
        await self.stream.aclose()


@dataclass
class Bench:
    """A multiplexer under test and a peer that writes frames by hand."""

    mux: GuardedYamux
    counters: MuxCounters
    peer: MemoryConnection

    async def send(
        self, kind: int, flags: int, stream: int, length: int, body: bytes = b""
    ) -> None:
        """One frame, true or not."""
        await self.peer.write(struct.pack("!BBHII", 0, kind, flags, stream, length) + body)

    async def heard(self) -> tuple[int, int, int, int]:
        """Kind, flags, stream and length of the next frame of the multiplexer."""
        header = await self.peer.read(12)
        assert len(header) == 12, "the connection was closed"
        _, kind, flags, stream, length = struct.unpack("!BBHII", header)
        return kind, flags, stream, length

    async def open(self, stream: int) -> YamuxStream:
        """The peer opens a stream and the multiplexer acknowledges it."""
        await self.send(UPDATE, SYN, stream, 0)
        assert await self.heard() == (UPDATE, ACK, stream, 0)
        accepted: Any = await self.mux.accept_stream()
        assert isinstance(accepted, YamuxStream)
        return accepted

    async def closed(self) -> bool:
        """Whether the multiplexer has hung up."""
        while data := await self.peer.read(12):
            assert len(data) == 12
        return True


@asynccontextmanager
async def bench(config: NetConfig = CONFIG, *, blocked: bool = False) -> AsyncIterator[Bench]:
    """A started multiplexer that was dialled, and its peer."""
    near, far = (
        trio.testing.lockstep_stream_pair() if blocked else trio.testing.memory_stream_pair()
    )
    counters = MuxCounters()
    connection: Any = MemoryConnection(near, initiator=False)
    mux = GuardedYamux(connection, ID(b"peer"), config, counters)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mux.start)
        await mux.event_started.wait()
        yield Bench(mux, counters, MemoryConnection(far, initiator=True))
        nursery.cancel_scope.cancel()


async def test_pass_lawful_data() -> None:
    """Data within the window reaches the stream."""
    async with bench() as b:
        stream = await b.open(1)
        await b.send(DATA, 0, 1, 5, b"hello")

        assert await stream.read(5) == b"hello"


async def test_reset_stream_past_window() -> None:
    """One byte past the window resets the stream at both ends and frees what it held."""
    async with bench() as b:
        stream = await b.open(1)
        await b.send(DATA, 0, 1, WINDOW, bytes(WINDOW))
        await b.send(DATA, 0, 1, 1, b"x")

        assert await b.heard() == (UPDATE, RST, 1, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert b.counters.window_exceeded == 1
        assert not any(b.mux.stream_buffers.values())
        assert stream.closed
        other = await b.open(3)
        await b.send(DATA, 0, 3, 2, b"ok")
        assert await other.read(2) == b"ok"


async def test_refuse_body_before_reading_it() -> None:
    """A frame that announces more than the window is drained in pieces, not held."""
    async with bench() as b:
        await b.open(1)
        await b.send(DATA, 0, 1, 8 * WINDOW)
        assert await b.heard() == (UPDATE, RST, 1, 0)
        for _ in range(8):
            await b.peer.write(bytes(WINDOW))

        await b.send(PING, SYN, 0, 7)

        assert await b.heard() == (PING, ACK, 0, 7)
        assert not any(b.mux.stream_buffers.values())


async def test_refuse_overlong_first_frame() -> None:
    """A stream that is opened with more than a window of data is not opened."""
    async with bench() as b:
        await b.send(DATA, SYN, 1, WINDOW + 1, bytes(WINDOW + 1))

        assert await b.heard() == (UPDATE, RST, 1, 0)
        assert 1 not in b.mux.streams


async def test_drain_data_of_unknown_stream() -> None:
    """Data for a stream that does not exist is passed over."""
    async with bench() as b:
        await b.send(DATA, 0, 9, 3, b"abc")
        await b.send(PING, SYN, 0, 1)

        assert await b.heard() == (PING, ACK, 0, 1)


async def test_window_stays_within_bound() -> None:
    """However fast a stream is read, the peer is never granted more than `receive_window_max`."""
    async with bench() as b:
        stream = await b.open(1)
        granted = WINDOW

        async def read() -> None:
            while True:
                await stream.read(65_536)

        async def listen() -> None:
            nonlocal granted
            while True:
                kind, _, _, length = await b.heard()
                granted += length if kind == UPDATE else 0

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(listen)
            for count in range(1, 201):
                await b.send(DATA, 0, 1, 32_768, bytes(32_768))
                await trio.testing.wait_all_tasks_blocked()
                assert granted - count * 32_768 <= CONFIG.receive_window_max
            nursery.cancel_scope.cancel()
        assert granted > 200 * 32_768
        assert b.counters.window_exceeded == 0


async def test_refuse_stream_above_max() -> None:
    """A stream above `connection_streams_max` is reset; a closed one makes room."""
    async with bench() as b:
        for number in (1, 3, 5):
            await b.open(number)

        await b.send(UPDATE, SYN, 7, 0)
        assert await b.heard() == (UPDATE, RST, 7, 0)
        assert b.counters.streams_refused == 1
        await b.send(UPDATE, RST, 3, 0)
        await b.open(9)
        assert set(b.mux.streams) == {1, 5, 9}


async def test_refuse_own_stream_above_max() -> None:
    """We open no stream either when the connection has its fill."""
    async with bench() as b:
        for number in (1, 3, 5):
            await b.open(number)

        with pytest.raises(ConnectionClosedError, match="fill of streams"):
            await b.mux.open_stream()


@pytest.mark.parametrize("stream", [0, 2])
async def test_refuse_stream_id_that_is_not_the_peers(stream: int) -> None:
    """The side that dialled opens odd streams; zero and even ones are refused."""
    async with bench() as b:
        await b.send(UPDATE, SYN, stream, 0)

        assert await b.heard() == (UPDATE, RST, stream, 0)
        assert b.counters.streams_refused == 1


@pytest.mark.parametrize(
    "header", ["010000000000000100000000", "000400000000000100000000", "00000f10" * 3]
)
async def test_hang_up_on_foreign_frames(header: str) -> None:
    """A wrong version, kind or flag ends the connection."""
    async with bench() as b:
        await b.peer.write(bytes.fromhex(header))

        assert await b.closed()
        assert b.counters.protocol_errors == 1


async def test_answer_so_many_pings_a_second() -> None:
    """A flood of pings costs a few writes, and the next second is answered again (20-37, 20-58)."""
    async with bench(replace(CONFIG, pings_per_s=3)) as b:
        for number in range(1_000):
            await b.send(PING, SYN, 0, number)
        assert [await b.heard() for _ in range(3)] == [(PING, ACK, 0, n) for n in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        assert b.counters.pings_ignored == 997

        await trio.sleep(1.0)
        await b.send(PING, SYN, 0, 7)
        assert await b.heard() == (PING, ACK, 0, 7)


async def test_refuse_streams_opened_too_fast() -> None:
    """Opening and ending streams without pause is refused, and in the end hung up on (20-58)."""
    async with bench(replace(CONFIG, streams_per_s=2, refusals_per_s=3)) as b:
        for number in (1, 3):
            await b.open(number)
            await b.send(UPDATE, RST, number, 0)
        for number in (5, 7, 9):
            await b.send(UPDATE, SYN, number, 0)
            assert await b.heard() == (UPDATE, RST, number, 0)
        assert b.mux.streams == {}

        await trio.sleep(1.0)
        await b.open(11)
        for number in range(13, 30, 2):
            await b.send(UPDATE, SYN, number, 0)
        assert await b.closed()
        assert b.counters.protocol_errors >= 1  # once for each frame that it still had in hand


async def test_drop_peer_that_answers_no_ping() -> None:
    """After `keepalive_misses_max` pings without a word the connection is closed (20-37)."""
    async with bench() as b:
        began = trio.current_time()

        assert await b.heard() == (PING, SYN, 0, 1)
        assert await b.heard() == (PING, SYN, 0, 2)
        assert await b.closed()

        assert trio.current_time() - began == pytest.approx(30.0)
        assert b.counters.keepalive_timeouts == 1


async def test_keep_peer_that_answers_pings() -> None:
    """A peer that answers each ping with its number is kept."""
    async with bench() as b:
        for number in range(1, 5):
            assert await b.heard() == (PING, SYN, 0, number)
            await b.send(PING, ACK, 0, number)

        assert b.counters.keepalive_timeouts == 0


async def test_close_connection_when_write_stalls() -> None:
    """A frame that is not taken within `write_timeout_s` closes the connection."""
    async with bench(replace(CONFIG, keepalive_interval_s=1000.0), blocked=True) as b:
        began = trio.current_time()

        with pytest.raises(ConnectionClosedError, match="takes nothing"):
            await b.mux.write_frame(bytes(12))

        assert trio.current_time() - began == pytest.approx(5.0)
        assert b.counters.write_timeouts == 1


async def test_close_without_waiting_for_peer() -> None:
    """Closing takes well under a second when the peer takes nothing."""
    async with bench(blocked=True) as b:
        began = trio.current_time()

        await b.mux.close()

        assert trio.current_time() - began < 1.0
        assert b.mux.is_closed


async def test_window_updates_are_gathered() -> None:
    """Small reads are told together, and the peer never lacks more than a quarter of its window."""
    part, parts = 8 * 1024, 64
    async with bench() as b:
        stream = await b.open(1)
        granted, updates = WINDOW, 0

        async def listen() -> None:
            nonlocal granted, updates
            while True:
                kind, _, _, length = await b.heard()
                if kind == UPDATE:
                    granted, updates = granted + length, updates + 1
                    assert length >= CREDIT_BYTES

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            for count in range(1, parts + 1):
                await b.send(DATA, 0, 1, part, bytes(part))
                await stream.read(part)
                await trio.testing.wait_all_tasks_blocked()
                assert granted - count * part > WINDOW - CREDIT_BYTES
            nursery.cancel_scope.cancel()
        assert 0 < updates <= parts // 4


async def test_credits_of_streams_that_are_gone_are_forgotten() -> None:
    """A connection remembers withheld updates of so many streams as it may have, and no more."""
    async with bench() as b:
        for number in range(1, 21, 2):
            stream = await b.open(number)
            for _ in range(3):
                await b.send(DATA, 0, number, 10, bytes(10))
                await stream.read(10)
            await stream.reset()
            while (await b.heard())[1] != RST:
                pass  # an update that was due

        assert 0 < len(b.mux._credits) <= CONFIG.connection_streams_max
