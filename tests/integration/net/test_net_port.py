"""What a stranger or a peer may say at the gossip port, at a running relay: it ends there."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
import trio
from libp2p.identity.identify.pb.identify_pb2 import Identify

from luxrelay.errors import NetError
from luxrelay.net.exchange import PEERS
from luxrelay.net.hello import HELLO, HELLO_MAX
from luxrelay.net.host import IDENTIFY, IDENTIFY_PUSH
from luxrelay.net.streams import encode_frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from luxrelay.net import RelayHost, RelayStream

pytestmark = [pytest.mark.trial, pytest.mark.slow]
MULTISTREAM, NOISE, NA = b"\x13/multistream/1.0.0\n", b"\x07/noise\n", b"\x03na\n"
SYN, ACK, FIN, RST = 1, 2, 4, 8
DATA, UPDATE, PING, GO_AWAY = 0, 1, 2, 3
UNKNOWN = b"".join(bytes([len(name)]) + name for name in (b"/x/%d\n" % n for n in range(5_000)))


def line(text: bytes) -> bytes:
    """One line of multistream-select."""
    return bytes([len(text) + 1]) + text + b"\n"


@asynccontextmanager
async def relay_and_honest(world: Any, **bounds: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A relay and an honest one beside it; in the end a message of the one reaches the other."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", **bounds)
        honest = await world.relay(nursery, "honest")
        await honest.driver.connect(relay.address)
        await world.meshed(relay, honest)
        yield relay, honest
        delivered = len(relay.delivered)
        await honest.driver.publish([(world.topic, world.envelope(1))])
        await world.until(lambda: len(relay.delivered) == delivered + 1)
        assert not relay.host.faults.counts()
        nursery.cancel_scope.cancel()


async def says(relay: Any, data: bytes, *, step: int = 0) -> None:
    """A raw connection that says so, in pieces of so many bytes, until it is hung up on."""
    port = int(relay.address.split("/")[4])
    async with (
        await trio.open_tcp_stream("127.0.0.1", port) as stream,
        trio.open_nursery() as inner,
    ):

        async def hear() -> None:
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some(65_536):
                    pass
            inner.cancel_scope.cancel()

        inner.start_soon(hear)
        with suppress(trio.BrokenResourceError):
            for at in range(0, len(data), step or len(data)):
                await stream.send_all(data[at : at + (step or len(data))])
                if step:
                    await trio.sleep(0.02)
        await trio.sleep_forever()


@pytest.mark.parametrize(
    ("data", "step"),
    [
        (MULTISTREAM + NOISE + bytes(200), 1),
        (MULTISTREAM + UNKNOWN, 0),
        (MULTISTREAM + NA * 5_000, 0),
        (MULTISTREAM * 5_000, 0),
        (MULTISTREAM + b"\x03ls\n" * 5_000, 0),
        (MULTISTREAM + b"\x01\n" * 100, 0),
        (MULTISTREAM + b"\x00" * 100, 0),
        (MULTISTREAM + b"\xff" * 100, 0),
        (MULTISTREAM + b"\x80\x80\x80\x80\x01" + bytes(100), 0),
        (MULTISTREAM + NOISE + b"\x00\x00" * 100, 0),
        (MULTISTREAM + NOISE + b"\xff\xff" + bytes(65_535), 0),
        (MULTISTREAM + NOISE + b"\xff\xff" + bytes(100), 0),
        (MULTISTREAM + NOISE + b"\x00\x20" + bytes(32), 0),
        (MULTISTREAM + NOISE + b"\x00\x01" + b"\xff", 0),
    ],
    ids=[
        "a byte at a time",
        "5,000 protocols",
        "5,000 refusals",
        "5,000 greetings",
        "5,000 lists",
        "empty lines",
        "lines of nothing",
        "a length without end",
        "a length in five bytes",
        "empty Noise messages",
        "a Noise message of 64 KiB",
        "half a Noise message",
        "a Noise key of zeros",
        "a Noise message of a byte",
    ],
)
async def test_what_is_no_handshake_ends_in_time(world: Any, data: bytes, step: int) -> None:
    """However it is cut: the connection is over within the time of a handshake."""
    async with relay_and_honest(world, handshake_timeout_s=2.0) as (relay, _):
        failed = relay.host.stats().swarm.handshakes_failed
        with trio.fail_after(30):
            await says(relay, data, step=step)
        await world.until(lambda: relay.host.stats().swarm.handshakes_failed > failed)
        assert len(relay.host._swarm.inbound.doorway) == 0


@pytest.mark.parametrize("seat", ["greeted", "after 63 names"])
async def test_so_many_lines_are_answered_and_no_more(world: Any, seat: str) -> None:
    """A bound of the file: with ``negotiation_lines_max`` = 8 no ninth line is read."""
    names = b"".join(line(b"/x/%d" % n) for n in range(6 if seat == "greeted" else 63))
    async with relay_and_honest(world, negotiation_lines_max=8, handshake_timeout_s=60.0) as (r, _):
        with trio.move_on_after(1.0 if seat == "greeted" else 30.0) as scope:
            await says(r, MULTISTREAM + names)
        assert scope.cancelled_caught == (seat == "greeted")


async def _version(mux: Any) -> None:
    await mux._secured.write(struct.pack("!BBHII", 1, DATA, SYN, 1, 0))


async def _flags(mux: Any) -> None:
    await mux.send(UPDATE, 0xFFF0, 1)


async def _kind(mux: Any) -> None:
    await mux.send(9, 0, 1)


async def _twice(mux: Any) -> None:
    await mux.send(UPDATE, SYN, 1)
    await mux.send(UPDATE, SYN, 1)


async def _go_away(mux: Any) -> None:
    await mux.send(GO_AWAY, 0, 0, 0xFFFF_FFFF)


async def _huge(mux: Any) -> None:
    await mux.send(DATA, SYN, 1, 0xFFFF_FFFF)


async def _foreign(mux: Any) -> None:
    for number in range(200):
        await mux.send(UPDATE, SYN, 2 * number)


async def _strays(mux: Any) -> None:
    for _ in range(6):
        await mux.data(77, bytes(65_000))


async def _windows(mux: Any) -> None:
    """Credit far beyond 2^32, for streams that are and are not."""
    await mux.send(UPDATE, SYN, 1, 0xFFFF_FFFF)
    for number in range(300):
        await mux.send(UPDATE, 0, 1 if number % 2 else 99, 0xFFFF_FFFF)


async def _half_closed(mux: Any) -> None:
    """Streams that are opened and finished at once, again and again."""
    for number in range(40):
        await mux.send(UPDATE, SYN, 2 * number + 1)
        await mux.send(UPDATE, FIN, 2 * number + 1)


async def _all_flags(mux: Any) -> None:
    for number in range(40):
        await mux.send(UPDATE, SYN | ACK | FIN | RST, 2 * number + 1)


async def _finished_twice(mux: Any) -> None:
    await mux.send(UPDATE, SYN, 1)
    for _ in range(50):
        await mux.send(DATA, FIN, 1)
    await mux.data(1, bytes(1000))


@pytest.mark.parametrize(
    "attack", [_version, _flags, _kind, _twice, _go_away, _huge, _foreign, _strays]
)
async def test_what_is_no_yamux_ends_its_connection(
    world: Any, attack: Callable[[Any], Awaitable[None]]
) -> None:
    """Wrong versions, kinds, flags and stream ids, codes of GO_AWAY, bytes for no stream."""
    async with relay_and_honest(world) as (relay, honest):
        async with world.raw_mux(relay.address, "rogue") as mux, trio.open_nursery() as nursery:
            nursery.start_soon(mux.listen)
            with suppress(Exception):  # it hangs up meanwhile
                await attack(mux)
            await world.until(lambda: mux.over)
        await world.until(lambda: relay.host.stats().peers == 1)
        assert relay.host.is_connected(honest.host.peer_id)


@pytest.mark.parametrize("attack", [_windows, _half_closed, _all_flags, _finished_twice])
async def test_frames_that_are_odd_and_lawful_cost_little(
    world: Any, attack: Callable[[Any], Awaitable[None]]
) -> None:
    """Windows past 2^32, streams half closed or of all flags: bounded, and gone with the peer."""
    bounds = {"handshake_timeout_s": 1.0, "abandoned_s": 0.5, "speak_timeout_s": 2.0}
    async with relay_and_honest(world, **bounds) as (relay, _):
        async with world.raw_mux(relay.address, "rogue") as mux, trio.open_nursery() as nursery:
            nursery.start_soon(mux.listen)
            await attack(mux)
            await mux.send(PING, SYN, 0, 7)
            await world.until(lambda: mux.pongs == 1 or mux.over)
            held = [len(conn.muxed_conn.streams) for conn in relay.host._swarm.get_connections()]
            assert max(held) <= relay.host.config.connection_streams_max
            await world.until(lambda: mux.over)  # it says nothing of ours
        await world.until(lambda: relay.host.stats().peers == 1)
        assert relay.host.unread.held == 0


LIE = {
    "version": 1,
    "network": "devnet",
    "roles": ["validator", "da-operator"],
    "agent": "\x1b[2J\u202e\x07" + "a" * 100,
    "limits": {"frameMax": 2**53, "inlineBlobMax": 2**53},
    "proof": "00" * 2_000,
    "record": "ff" * 500,
}


def identity(addresses: int, agent: str) -> bytes:
    """An answer of Identify."""
    return encode_frame(
        Identify(
            protocol_version="x" * 100_000,
            agent_version=agent,
            public_key=b"\x08\x01\x12\x20" + bytes(32),
            listen_addrs=[bytes.fromhex("04c0000201060fa1")] * addresses,
            protocols=["/x"] * addresses,
            signedPeerRecord=bytes(100_000),
        ).SerializeToString()
    )


@pytest.mark.parametrize(
    ("protocol", "data"),
    [
        (HELLO, encode_frame(json.dumps(LIE).encode())),
        (HELLO, encode_frame(json.dumps(LIE | {"version": 2**53}).encode())),
        (HELLO, encode_frame(b"[" * (HELLO_MAX - 10))),
        (HELLO, b"\xff\xff\xff\xff\x0f" + bytes(100_000)),
        (HELLO, b""),
        (PEERS, encode_frame(bytes(4_000)) * 100),
        (IDENTIFY, identity(10_000, "\x1b[2J\x00\n" * 1_000)),
        (IDENTIFY_PUSH, identity(10_000, "a" * 2**20)),
        ("/ipfs/ping/1.0.0", bytes(100_000)),
    ],
    ids=[
        "a hello that lies",
        "a hello of another version",
        "a hello that nests",
        "a hello without end",
        "no hello",
        "records without sense",
        "an identity of 10,000 addresses",
        "a push of a megabyte",
        "pings without end",
    ],
)
async def test_what_a_peer_says_of_itself_ends_with_it(
    world: Any, protocol: str, data: bytes
) -> None:
    """Told by the peer and answered by it: at most that peer goes."""
    async with relay_and_honest(world, hello_timeout_s=1.0) as (relay, honest):
        async with trio.open_nursery() as nursery:
            rogue: RelayHost = await world.host(nursery, "rogue", connection_streams_max=64)

            async def answer(stream: RelayStream) -> None:
                with suppress(trio.BrokenResourceError):
                    await stream.receive_some(4096)
                    await stream.send_all(data)
                    await stream.send_eof()

            for name in (HELLO, PEERS, IDENTIFY):
                rogue.handle(name, answer)
            await rogue.dial(relay.address)
            for _ in range(3):
                with suppress(NetError, trio.BrokenResourceError), trio.move_on_after(3):
                    stream = await rogue.open_stream(relay.host.peer_id, protocol)
                    await stream.send_all(data)
                    await stream.receive_some(1000)
            nursery.cancel_scope.cancel()
        await world.until(lambda: relay.host.stats().peers == 1)
        assert relay.host.is_connected(honest.host.peer_id)
        assert relay.host.unread.held == 0


async def test_a_dial_tries_so_many_addresses(world: Any) -> None:
    """A bound of the file: with ``dial_addresses_max`` = 4 the fifth of 200 is not tried."""
    absent = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
    met: list[trio.SocketStream] = []

    async def refuse(stream: trio.SocketStream) -> None:
        met.append(stream)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        host: RelayHost = await world.host(nursery, "host", dial_addresses_max=4)
        listeners = await trio.open_tcp_listeners(0, host="0.0.0.0")  # noqa: S104 - loopback is dialled
        await nursery.start(trio.serve_listeners, refuse, listeners)
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(NetError, match="cannot be reached"):
            await host.dial(*(f"/ip4/127.0.0.{n}/tcp/{port}/p2p/{absent}" for n in range(1, 201)))
        assert len(met) == 4
        nursery.cancel_scope.cancel()


async def test_names_that_never_resolve_leave_threads_to_others(world: Any) -> None:
    """Six dials of names wait for a resolver that does not answer; other work has its threads."""
    absent = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
    answer, asked = threading.Event(), []

    def never(host: bytes, *_: object) -> list[Any]:
        asked.append(host)
        answer.wait(60)
        raise OSError("no answer")

    async with trio.open_nursery() as nursery:
        host: RelayHost = await world.host(nursery, "host", dial_timeout_s=0.2, lookups_max=3)
        host.resolver._look_up = never
        try:
            for number in range(6):
                with pytest.raises(NetError, match="cannot be reached"), trio.fail_after(30):
                    await host.dial(f"/dns4/name{number}.invalid/tcp/9640/p2p/{absent}")
            with trio.fail_after(30):
                assert await trio.to_thread.run_sync(lambda: 7) == 7
            assert len(asked) == 3
            assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        finally:
            answer.set()
        nursery.cancel_scope.cancel()


async def test_of_a_name_with_hundreds_of_addresses_a_few_are_tried(world: Any) -> None:
    """A resolver's 500 addresses are cut to ``name_addresses_max``."""
    absent = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"

    def many(_: bytes, port: int, *__: object) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.{n // 250}.{n % 250 + 1}", port))
            for n in range(500)
        ]

    async with trio.open_nursery() as nursery:
        host: RelayHost = await world.host(nursery, "host", name_addresses_max=3)
        host.resolver._look_up = many
        found = await trio.socket.getaddrinfo("many.invalid", 1, type=socket.SOCK_STREAM)
        assert len(found) == 3
        with pytest.raises(NetError, match="cannot be reached"):
            await host.dial(f"/dns4/many.invalid/tcp/1/p2p/{absent}")
        nursery.cancel_scope.cancel()
