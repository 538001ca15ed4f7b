"""A TCP connection of ours, over a pair of sockets that never leave the machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from libp2p.io.exceptions import ConnectionClosedError
from multiaddr import Multiaddr

from luxrelay.net import transport
from luxrelay.net.send_window import FLOOR, SocketLook
from luxrelay.net.transport import RelayTcp, RelayTcpStream, SocketRegistry


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[RelayTcpStream, trio.SocketStream, SocketRegistry]]:
    """Our end, the other end, and the registry."""
    near, far = trio.socket.socketpair()
    registry = SocketRegistry()
    other = trio.SocketStream(far)
    async with other:
        stream = RelayTcpStream(trio.SocketStream(near), registry)
        yield stream, other, registry
        await stream.cut()


async def test_small_reads_come_from_buffer() -> None:
    """Reads of a few bytes get what one system call brought, in order."""
    async with pair() as (stream, other, registry):
        await other.send_all(b"abcdef")

        assert await stream.read(2) == b"ab"
        assert registry.traffic.bytes_in == 6
        assert await stream.read(0) == b""
        assert await stream.read(3) == b"cde"
        assert await stream.read(None) == b"f"


async def test_end_is_empty() -> None:
    """The end of the peer's bytes, and our own closing, read as nothing."""
    async with pair() as (stream, other, _registry):
        await other.send_eof()

        assert await stream.read(10) == b""
        await stream.close()
        assert await stream.read(10) == b""


async def test_writing_to_closed_connection_fails() -> None:
    """A write after closing raises instead of pretending."""
    async with pair() as (stream, _other, registry):
        await stream.write(b"abc")
        await stream.close()

        with pytest.raises(ConnectionClosedError):
            await stream.write(b"lost")

        assert registry.traffic.bytes_out == 3
        assert not registry.open


async def test_a_cancelled_write_is_finished_by_the_next_one() -> None:
    """The bytes of a write that was cancelled halfway arrive whole, before those after it."""
    async with pair() as (stream, other, registry):
        first, second = bytes(250_000) + b"end", b"second"
        with trio.move_on_after(0.1) as scope:
            while True:
                await stream.write(first)
        assert scope.cancelled_caught
        with trio.move_on_after(0):
            await stream.write(second)

        received = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, b"last")
            while not received.endswith(b"last"):
                received += await other.receive_some(65_536)
        begun = received.count(b"end")

        assert received == first * begun + second + b"last"
        assert registry.traffic.bytes_out == len(received)


async def test_a_peer_that_takes_nothing_is_given_up_after_so_many_cancelled_writes() -> None:
    """Writes that are cancelled again and again do not pile up."""
    async with pair() as (stream, _other, _registry):
        with pytest.raises(ConnectionClosedError):  # noqa: PT012 - the one that is too many
            for _ in range(100):
                with trio.move_on_after(0.1):
                    while True:
                        await stream.write(bytes(65_536))
        assert len(stream._unsent) <= 512 * 1024


async def test_registry_cuts_all() -> None:
    """Whatever is open is closed by the registry, even under cancellation."""
    async with pair() as (stream, other, registry):
        assert registry.open == {stream}
        with trio.CancelScope() as scope:
            scope.cancel()
            await registry.cut_all()

        assert not registry.open
        assert await other.receive_some(10) == b""


async def test_unnamed_socket_has_no_address() -> None:
    """A socket without a host and port has no remote address."""
    async with pair() as (stream, _other, _registry):
        assert stream.get_remote_address() is None


def test_serve_plain_tcp_only() -> None:
    """Plain TCP is ours; everything else belongs to nobody here."""
    tcp = RelayTcp(SocketRegistry())

    assert tcp.protocols() == ["tcp"]
    assert tcp.can_dial(Multiaddr("/dns4/a/tcp/1"))
    assert tcp.can_listen(Multiaddr("/ip4/127.0.0.1/tcp/0"))
    assert not tcp.can_dial(Multiaddr("/ip4/127.0.0.1/tcp/1/ws"))
    assert not tcp.can_listen(Multiaddr("/ip4/127.0.0.1/udp/1/quic-v1"))


async def test_packets_wait_by_the_usual_round_trip_or_by_the_one_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G41: bytes that nobody acknowledges between two looks wait, those sent meanwhile do not."""
    async with pair() as (stream, _other, _registry):
        said = SocketLook(0, 0.3, 0.1)

        def waits_s(now: float, in_flight: int, sent: int = 0) -> float | None:
            nonlocal said
            stream._sent += sent
            said = SocketLook(in_flight, 0.3, 0.1)
            return stream.waits_s(now)

        monkeypatch.setattr(transport, "_look_at", lambda _: said)
        assert waits_s(0.0, 0) == pytest.approx(0.2)
        assert waits_s(5.0, 100, 100) == pytest.approx(0.2)  # sent since the last look
        assert waits_s(6.0, 150, 50) == pytest.approx(0.9)  # more was sent, nothing came
        assert waits_s(7.0, 150) == pytest.approx(1.9)
        assert waits_s(8.0, 40) == pytest.approx(0.2)  # something came
        assert waits_s(9.0, 40) == pytest.approx(0.9)
        assert waits_s(10.0, 0) == pytest.approx(0.2)
        said = SocketLook(0, 0.3, 0.1, closed=True)
        assert stream.waits_s(11.0) is None


async def test_a_write_waits_while_its_window_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """P51: 200 KB go as they are acknowledged, never more than the window, and none is lost."""
    acknowledged, most = 0, 0
    async with pair() as (stream, other, registry):

        def look(_: object) -> SocketLook:
            nonlocal acknowledged, most
            waiting = registry.traffic.bytes_out - acknowledged
            most = max(most, waiting)
            acknowledged += min(waiting, 4_000)
            return SocketLook(waiting, 0.02, 0.02)

        monkeypatch.setattr(transport, "_look_at", look)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, bytes(200_000))
            came = 0
            while came < 200_000:
                came += len(await other.receive_some(65_536))

    assert FLOOR <= most <= 4 * FLOOR
    assert registry.traffic.held_back >= 1


async def test_what_the_system_says_of_a_connection() -> None:
    """P51: bytes that nobody took, a round trip; nothing of what is no TCP socket or closed."""
    listener = await trio.open_tcp_listeners(0, host="127.0.0.1")
    near = await trio.testing.open_stream_to_socket_listener(listener[0])
    far = await listener[0].accept()
    await near.send_all(bytes(100_000))
    look = transport._look_at(near.socket)
    assert look is not None
    assert 0 <= look.in_flight <= 100_000
    assert 0 < look.shortest_s <= look.rtt_s < 1
    assert not look.closed
    await trio.testing.wait_all_tasks_blocked()
    await far.aclose()
    await near.aclose()
    assert transport._look_at(near.socket) is None
    async with pair() as (_, other, _registry):
        assert transport._look_at(other.socket) is None
    await listener[0].aclose()
