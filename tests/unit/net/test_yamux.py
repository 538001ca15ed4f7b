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
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError

from luxrelay.net.charging import Charges
from luxrelay.net.config import NetConfig
from luxrelay.net.guarded import Faults
from luxrelay.net.unread import UnreadBudget
from luxrelay.net.yamux import CREDIT_BYTES, GuardedStream, GuardedYamux, MuxCounters
from luxrelay.sync.cost import CostConfig
from luxrelay.sync.rpc.metering import SharedMeter

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
    faults: Faults
    came: list[float]
    """When bytes came, as far as the multiplexer told."""

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

    async def open(self, stream: int, *, agreed: bool = True) -> GuardedStream:
        """The peer opens a stream and the multiplexer acknowledges it."""
        await self.send(UPDATE, SYN, stream, 0)
        assert await self.heard() == (UPDATE, ACK, stream, 0)
        accepted: Any = await self.mux.accept_stream()
        assert isinstance(accepted, GuardedStream)
        if agreed:
            accepted.agree()
        return accepted

    async def closed(self) -> bool:
        """Whether the multiplexer has hung up."""
        while data := await self.peer.read(12):
            assert len(data) == 12
        return True


@asynccontextmanager
async def bench(
    config: NetConfig = CONFIG, *, blocked: bool = False, budget: UnreadBudget | None = None
) -> AsyncIterator[Bench]:
    """A started multiplexer that was dialled, and its peer."""
    near, far = (
        trio.testing.lockstep_stream_pair() if blocked else trio.testing.memory_stream_pair()
    )
    counters = MuxCounters()
    connection: Any = MemoryConnection(near, initiator=False)
    faults = Faults()
    came: list[float] = []
    mux = GuardedYamux(
        connection,
        ID(b"peer"),
        config,
        counters,
        budget=budget,
        faults=faults,
        heard=lambda: came.append(trio.current_time()),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mux.start)
        await mux.event_started.wait()
        yield Bench(mux, counters, MemoryConnection(far, initiator=True), faults, came)
        nursery.cancel_scope.cancel()


async def test_pass_lawful_data() -> None:
    """Data within the window reaches the stream."""
    async with bench() as b:
        stream = await b.open(1)
        await b.send(DATA, 0, 1, 5, b"hello")

        assert await stream.read(5) == b"hello"


async def test_every_byte_of_the_peer_is_a_sign_of_life() -> None:
    """Headers and each piece of data are told, so that a large frame is no silence (G37)."""
    async with bench() as b:
        await b.send(PING, SYN, 0, 7)
        assert await b.heard() == (PING, ACK, 0, 7)
        assert len(b.came) == 1
        stream = await b.open(1)
        told = len(b.came)
        await b.send(DATA, 0, 1, 3, b"abc")
        assert await stream.read(3) == b"abc"
        assert len(b.came) == told + 2


async def test_a_ping_between_keepalives_counts_as_no_miss() -> None:
    """Whoever asks for a sign of life ends no connection by it."""
    async with bench() as b:
        for _ in range(5):
            await b.mux.ping()
            assert (await b.heard())[:2] == (PING, SYN)
        assert b.counters.keepalive_timeouts == 0
        assert not b.mux._misses
        await b.mux.close()
        await b.mux.ping()  # a connection that is over takes none, and that is all


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


async def test_keep_peer_whose_answers_are_not_read() -> None:
    """While its address pays what it owes, its answers wait in the socket."""
    meter = SharedMeter(CostConfig(), trio.current_time)
    with Charges(meter).of("192.0.2.1") as account:
        assert account is not None
        async with bench() as b:
            account.held = True
            for number in range(1, 4):
                assert await b.heard() == (PING, SYN, 0, number)
            account.held = False
            assert await b.heard() == (PING, SYN, 0, 4)
            assert await b.closed()


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
    """A connection remembers nothing of a stream that is over, nor the credit it still owed."""
    async with bench() as b:
        for number in range(1, 21, 2):
            stream = await b.open(number)
            for _ in range(3):
                await b.send(DATA, 0, number, 10, bytes(10))
                await stream.read(10)
            await stream.reset()
            while (await b.heard())[1] != RST:
                pass  # an update that was due

        assert not b.mux.streams
        assert not b.mux.stream_buffers
        assert not b.mux.stream_events
        assert b.mux.unread == 0


async def granted(b: Bench, stream: int, count: int) -> int:
    """Push so many bytes in small pieces, and return what was granted beyond the first window."""
    credit = 0

    async def listen() -> None:
        nonlocal credit
        while True:
            kind, _, number, length = await b.heard()
            credit += length if kind == UPDATE and number == stream else 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        for _ in range(count // 1024):
            await b.send(DATA, 0, stream, 1024, bytes(1024))
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return credit


@pytest.mark.trial
@pytest.mark.parametrize("step", [32, 1000, 65_536])
async def test_reading_in_any_steps_never_grants_more_than_the_window(step: int) -> None:
    """Whatever the reader's steps, unread bytes and credit stay within `receive_window_max`."""
    async with bench() as b:
        stream = await b.open(1)

        async def read() -> None:
            while True:
                await stream.read(step)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            credit = await granted(b, 1, 3 * WINDOW)
            nursery.cancel_scope.cancel()

        assert WINDOW + credit - 3 * WINDOW <= CONFIG.receive_window_max
        assert stream.recv_window + stream.held <= CONFIG.receive_window_max


@pytest.mark.trial
async def test_a_stream_without_protocol_holds_little() -> None:
    """Until its protocol is known a stream holds `negotiation_unread_max`, and then everything."""
    async with bench() as b, trio.open_nursery() as nursery:
        stream = await b.open(1, agreed=False)
        nursery.start_soon(b.send, DATA, 0, 1, 200_000, bytes(200_000))
        await trio.testing.wait_all_tasks_blocked()
        assert stream.held == CONFIG.negotiation_unread_max

        await stream.read(1000)
        await trio.testing.wait_all_tasks_blocked()
        assert stream.held == CONFIG.negotiation_unread_max

        stream.agree()
        await trio.testing.wait_all_tasks_blocked()
        assert stream.held == 199_000


@pytest.mark.trial
async def test_a_connection_with_too_much_unread_loses_its_fullest_stream() -> None:
    """Above `connection_unread_max` the fullest stream is reset, the others go on."""
    config = replace(CONFIG, connection_unread_max=600_000)
    async with bench(config) as b:
        streams = [await b.open(number) for number in (1, 3, 5)]
        for number, size in ((1, 200_000), (3, 250_000), (5, 200_000)):
            await b.send(DATA, 0, number, size, bytes(size))

        assert await b.heard() == (UPDATE, RST, 3, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert [stream.held for stream in streams] == [200_000, 0, 200_000]
        assert b.mux.unread == 400_000
        assert b.counters.streams_shed == 1
        assert len(await streams[2].read(200_000)) == 200_000


@pytest.mark.trial
async def test_who_fills_the_node_pays_and_not_who_came_last() -> None:
    """Above the node's budget the connection that holds most loses a stream."""
    budget = UnreadBudget(400_000)
    async with bench(budget=budget) as greedy, bench(budget=budget) as honest:
        full = await greedy.open(1)
        other = await honest.open(1)
        await greedy.send(DATA, 0, 1, 250_000, bytes(250_000))
        await greedy.open(3)
        await greedy.send(DATA, 0, 3, 100_000, bytes(100_000))
        await honest.send(DATA, 0, 1, 100_000, bytes(100_000))

        assert await greedy.heard() == (UPDATE, RST, 1, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert full.closed
        assert budget.held == 200_000
        assert len(await other.read(100_000)) == 100_000
        assert honest.counters.streams_shed == 0
        await greedy.mux.close()
        assert budget.held == 0


async def test_the_beginning_of_a_frame_counts_as_unread() -> None:
    """What a reader took and cannot use yet is part of the budget, until its stream is over."""
    budget = UnreadBudget(1_000_000)
    async with bench(budget=budget) as b:
        stream = await b.open(1)
        await b.send(DATA, 0, 1, 1000, bytes(1000))
        await stream.read(1000)
        stream.park(1000)
        assert budget.held == 1000
        stream.park(400)
        assert budget.held == 400

        await b.send(UPDATE, RST, 1, 0)
        await trio.testing.wait_all_tasks_blocked()
        stream.park(5000)

        assert budget.held == 0


@pytest.mark.trial
@pytest.mark.parametrize(
    ("kind", "flags", "number"),
    [
        (UPDATE, 0, 1),
        (UPDATE, ACK, 1),
        (DATA, 0, 1),
        (UPDATE, 0, 99),
        (DATA, FIN, 99),
        (PING, ACK, 0),
    ],
)
async def test_frames_that_carry_nothing_are_read_at_a_pace(
    kind: int, flags: int, number: int
) -> None:
    """A flood of frames without data is read on in the next second; nobody is hung up on."""
    async with bench(replace(CONFIG, idle_frames_per_s=50)) as b, trio.open_nursery() as nursery:
        await b.open(1)
        began = trio.current_time()

        async def flood() -> None:
            for _ in range(500):
                await b.send(kind, flags, number, 0)
            await b.send(PING, SYN, 0, 7)

        nursery.start_soon(flood)
        assert await b.heard() == (PING, ACK, 0, 7)

        assert trio.current_time() - began >= 9.0


@pytest.mark.trial
async def test_data_for_streams_that_never_were_ends_the_connection() -> None:
    """Bytes for unknown streams are passed over up to one window, then hung up on."""
    async with bench() as b:
        for number in range(99, 99 + 2 * WINDOW // 65_536, 2):
            await b.send(DATA, 0, number, 65_536, bytes(65_536))
        await b.send(PING, SYN, 0, 7)
        assert await b.heard() == (PING, ACK, 0, 7)

        await b.send(DATA, 0, 997, 1, b"x")
        assert await b.closed()
        assert b.counters.protocol_errors == 1


async def test_data_under_way_to_a_stream_that_we_reset_is_lawful() -> None:
    """What the peer had credit for may come after our reset, on any number of streams."""
    async with bench() as b:
        for number in range(1, 41, 2):
            stream = await b.open(number)
            await stream.reset()
            assert await b.heard() == (UPDATE, RST, number, 0)
            await b.send(DATA, 0, number, WINDOW, bytes(WINDOW))
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(0.1)

        await b.send(PING, SYN, 0, 7)
        assert await b.heard() == (PING, ACK, 0, 7)
        assert b.mux.unread == 0


async def test_data_arrives_before_its_frame_is_whole() -> None:
    """A frame whose end does not come is handed on as far as it came."""
    async with bench() as b:
        stream = await b.open(1)
        await b.send(DATA, 0, 1, 200_000, bytes(130_000))
        await trio.testing.wait_all_tasks_blocked()

        assert stream.held >= 65_507


async def test_a_stream_opened_twice_ends_the_connection() -> None:
    """An id that is in use cannot be opened again."""
    async with bench() as b:
        await b.open(1)
        await b.send(UPDATE, SYN, 1, 0)

        assert await b.closed()
        assert b.counters.protocol_errors == 1


async def test_a_stream_that_nobody_serves_any_more_is_given_up() -> None:
    """A stream whose handler ended holds nothing, and is reset when the peer leaves it open."""
    async with bench() as b:
        stream = await b.open(1)
        await b.send(DATA, 0, 1, 1000, bytes(1000))
        await trio.testing.wait_all_tasks_blocked()

        stream.abandon()
        await b.send(DATA, 0, 1, 1000, bytes(1000))
        await trio.testing.wait_all_tasks_blocked()
        assert b.mux.unread == 0

        while (await b.heard())[:3] != (UPDATE, RST, 1):
            pass
        assert not b.mux.streams


async def test_writing_waits_for_credit_and_not_for_ever() -> None:
    """A writer without credit is woken by an update, and gives up after `write_stall_s` and one."""
    async with bench(replace(CONFIG, write_stall_s=4.0)) as b, trio.open_nursery() as nursery:
        stream = await b.open(1)

        async def take() -> None:
            while header := await b.peer.read(12):
                _, kind, _, _, length = struct.unpack("!BBHII", header)
                if kind == DATA:
                    await b.peer.read(length)

        nursery.start_soon(take)
        nursery.start_soon(stream.write, bytes(WINDOW + 1000))
        await trio.sleep(1.0)
        assert stream.send_window == 0
        await b.send(UPDATE, 0, 1, 1000)
        await trio.sleep(1.0)
        assert stream.send_window == 0

        began = trio.current_time()
        with pytest.raises(MuxedStreamError, match="no credit"):
            await stream.write(b"x")
        assert trio.current_time() - began == pytest.approx(5.0)
        assert b.counters.window_stalls == 2
        nursery.cancel_scope.cancel()


@pytest.mark.trial
@pytest.mark.parametrize("error", [ValueError("decrypt"), KeyError("x"), ZeroDivisionError()])
async def test_whatever_a_connection_raises_ends_that_connection(error: Exception) -> None:
    """An exception nobody expected is noted, and nothing is raised where connections are run."""
    async with bench() as b:
        stream = await b.open(1)

        async def fail(_: int) -> bytes:
            raise error

        b.mux.secured_conn.read = fail  # type: ignore[method-assign]  # what a library may raise
        await b.send(PING, SYN, 0, 1)
        await b.send(PING, SYN, 0, 2)

        with pytest.raises(MuxedStreamEOF):
            await stream.read(1)
        await b.mux.event_closed.wait()
        assert b.faults.counts() == {"connection": 1}
        assert b.mux.unread == 0
