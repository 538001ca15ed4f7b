"""The host over real sockets: each fault of the stock library first, then that ours holds."""

from __future__ import annotations

import contextlib
import gc
import socket
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio
from libp2p import new_host
from libp2p.abc import IHost, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.network.config import ConnectionConfig
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from multiaddr import Multiaddr

from luxrelay.errors import AddressError, NetError
from luxrelay.net.address_news import MOVED
from luxrelay.net.config import MESHSUB
from luxrelay.net.exchange import PEERS
from luxrelay.net.hello import HELLO
from luxrelay.net.host import RelayHost
from luxrelay.net.records import check
from luxrelay.net.streams import RelayStream, read_frame

ECHO = "/test/echo/1.0.0"
ANY_PORT = Multiaddr("/ip4/127.0.0.1/tcp/0")
BROKEN = (SwarmException, NetError, trio.TooSlowError)


@pytest.fixture
def leaky() -> Iterator[None]:
    """Collects the sockets that the stock library leaves open, before they count as ours."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@contextlib.asynccontextmanager
async def stock_host(seed: bytes, **options: Any) -> AsyncIterator[IHost]:
    """The library's host as it comes."""
    host = new_host(key_pair=create_new_key_pair(seed), listen_addrs=[ANY_PORT], **options)
    async with host.run([ANY_PORT]):
        yield host


def full_address(host: IHost) -> str:
    """The address of a stock host."""
    return str(host.get_addrs()[0])


async def echo(stream: RelayStream) -> None:
    """Send back what arrives."""
    while data := await stream.receive_some(4096):
        await stream.send_all(data)


async def says(client: RelayHost, server: RelayHost) -> bytes:
    """What the server's echo answers."""
    stream = await client.open_stream(server.peer_id, ECHO)
    await stream.send_all(b"hello")
    answer = await stream.receive_some(4096)
    await stream.reset()
    return answer


async def test_identity_follows_from_seed(world: Any) -> None:
    """The peer id is the identity multihash of the key: 38 bytes, 12D3… in base58 (G7)."""
    host = RelayHost(world.seed("a"), world.config())
    key = create_new_key_pair(world.seed("a")).public_key

    assert host.peer_id == bytes.fromhex("002408011220") + key.to_bytes()
    assert host.peer_text.startswith("12D3KooW")


async def test_two_hosts_talk(world: Any) -> None:
    """A dialled host opens a stream and both ends read what the other wrote (20-56)."""
    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server")
        client = await world.host(nursery, "client")
        server.handle(ECHO, echo)

        peer = await client.dial(server.addresses[0])
        answer = await says(client, server)

        assert peer == server.peer_id
        assert answer == b"hello"
        assert client.dialled(server.peer_id)
        assert not server.dialled(client.peer_id)
        assert server.connected() == (client.peer_id,)
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("leaky")
@pytest.mark.slow
async def test_stock_leaks_inbound_slots(world: Any) -> None:
    """The stock host turns everybody away once as many have come in its life as it has slots."""
    slots = ConnectionConfig(
        max_connections=4, min_connections=1, low_watermark=1, high_watermark=4
    )
    async with stock_host(world.seed("stock"), connection_config=slots) as server:
        admitted = 0
        for number in range(5):
            async with trio.open_nursery() as nursery:
                client = await world.host(nursery, f"c{number}", dial_timeout_s=1.0)
                with contextlib.suppress(NetError):
                    await client.dial(full_address(server))
                    admitted += 1
                nursery.cancel_scope.cancel()

        assert admitted == 3


@pytest.mark.slow
async def test_give_inbound_slot_back(world: Any) -> None:
    """A slot is free again when its connection has ended, however often that happens (20-05)."""
    async with trio.open_nursery() as servers:
        server = await world.host(servers, "server", inbound_max=3)
        for number in range(10):
            async with trio.open_nursery() as nursery:
                client = await world.host(nursery, f"c{number}")
                await client.dial(server.addresses[0])
                nursery.cancel_scope.cancel()
            await world.until(lambda: server.stats().inbound == 0)

        assert server.stats().swarm.inbound_accepted == 10
        assert server.stats().swarm.inbound_refused == 0
        servers.cancel_scope.cancel()


async def until_ended(stream: RelayStream) -> None:
    """Take what comes on the stream until it is over."""
    while await stream.receive_some():
        pass


@pytest.mark.slow
async def test_refuse_above_inbound_max(world: Any) -> None:
    """While peers that speak have all slots a further dial is refused; a freed slot admits it."""
    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server", inbound_max=2)
        server.handle(ECHO, until_ended)
        clients = [await world.host(nursery, f"c{n}", dial_timeout_s=2.0) for n in range(3)]
        for client in clients[:2]:
            await client.dial(server.addresses[0])
            await client.open_stream(server.peer_id, ECHO)

        with pytest.raises(NetError) as caught:
            await clients[2].dial(server.addresses[0])

        assert caught.value.code == "net.dial"
        assert server.stats().inbound == 2
        assert server.stats().swarm.inbound_refused == 1
        await clients[0].disconnect(server.peer_id)
        await world.until(lambda: server.stats().inbound == 1)
        await clients[2].dial(server.addresses[0])
        assert server.stats().inbound == 2
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("leaky")
@pytest.mark.slow
async def test_stock_dies_of_handler_exception(world: Any) -> None:
    """On the stock host one exception in one stream handler ends the whole swarm."""
    fell = False

    async def broken(_stream: INetStream) -> None:
        raise RuntimeError("a bug in a handler")

    async def run_server(ready: trio.Event, found: list[str]) -> None:
        nonlocal fell
        try:
            async with stock_host(world.seed("stock")) as server:
                server.set_stream_handler(TProtocol(ECHO), broken)
                found.append(full_address(server))
                ready.set()
                await trio.sleep_forever()
        except* RuntimeError:
            fell = True

    async with trio.open_nursery() as nursery:
        ready, found = trio.Event(), list[str]()
        nursery.start_soon(run_server, ready, found)
        await ready.wait()
        client = await world.host(nursery, "client")
        peer = await client.dial(found[0])
        with contextlib.suppress(NetError):
            await client.open_stream(peer, ECHO)
        await world.until(lambda: fell)
        nursery.cancel_scope.cancel()

    assert fell


@pytest.mark.slow
async def test_survive_handler_exception(world: Any) -> None:
    """An exception in a handler resets its stream, is counted, and harms nobody else."""

    async def broken(stream: RelayStream) -> None:
        await stream.receive_some()
        raise RuntimeError("a bug in a handler")

    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server")
        client = await world.host(nursery, "client")
        server.handle("/test/broken/1.0.0", broken)
        server.handle(ECHO, echo)
        await client.dial(server.addresses[0])

        stream = await client.open_stream(server.peer_id, "/test/broken/1.0.0")
        await stream.send_all(b"go on")

        assert await stream.receive_some() == b""
        assert await says(client, server) == b"hello"
        assert server.stats().swarm.handler_errors == 1
        nursery.cancel_scope.cancel()


def plaintext_client(seed: bytes) -> IHost:
    """A stock host that speaks nothing but plaintext."""
    keys = create_new_key_pair(seed)
    security = {TProtocol(PLAINTEXT_PROTOCOL_ID): InsecureTransport(keys)}
    return new_host(key_pair=keys, sec_opt=security, listen_addrs=[ANY_PORT])


async def plaintext_gets_in(seed: bytes, address: str) -> bool:
    """Whether a plaintext peer gets a connection."""
    client = plaintext_client(seed)
    host, _, peer = address.partition("/p2p/")
    async with client.run([ANY_PORT]):
        try:
            with trio.fail_after(2.0):
                await client.connect(PeerInfo(ID.from_string(peer), [Multiaddr(host)]))
        except BROKEN:
            return False
        return True


@pytest.mark.usefixtures("leaky")
@pytest.mark.slow
async def test_stock_lets_plaintext_in(world: Any) -> None:
    """The stock host accepts a peer that encrypts nothing."""
    async with stock_host(world.seed("stock")) as server:
        assert await plaintext_gets_in(world.seed("plain"), full_address(server))


@pytest.mark.usefixtures("leaky")
@pytest.mark.slow
async def test_refuse_plaintext(world: Any) -> None:
    """Our host speaks Noise or nothing (G33)."""
    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server")

        assert not await plaintext_gets_in(world.seed("plain"), server.addresses[0])
        assert server.stats().swarm.handshakes_failed > 0
        nursery.cancel_scope.cancel()


async def push_blindly(stream: RelayStream, size: int) -> None:
    """Push that many bytes without regard to the peer's window."""
    muxed: Any = stream._stream.muxed_stream
    muxed.send_window = 2**40
    with contextlib.suppress(trio.BrokenResourceError):
        for _ in range(size // 65_536):
            await stream.send_all(bytes(65_536))


@pytest.mark.usefixtures("leaky")
@pytest.mark.slow
async def test_stock_buffers_without_end(world: Any) -> None:
    """The stock host takes 4 MiB into a stream that nobody reads and whose window is 256 KiB."""
    held: list[Any] = []

    async def keep(stream: INetStream) -> None:
        held.append(stream)
        await trio.sleep_forever()

    async with stock_host(world.seed("stock")) as server, trio.open_nursery() as nursery:
        server.set_stream_handler(TProtocol(ECHO), keep)
        client = await world.host(nursery, "client")
        peer = await client.dial(full_address(server))
        stream = await client.open_stream(peer, ECHO)

        await push_blindly(stream, 4 * 1024 * 1024)

        buffers = held[0].muxed_conn.stream_buffers
        await world.until(lambda: sum(map(len, buffers.values())) == 4 * 1024 * 1024)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_reset_stream_past_window(world: Any) -> None:
    """A peer that pushes past the window loses that stream, and only that one (20-58)."""
    unread = trio.Event()

    async def ignore(_stream: RelayStream) -> None:
        unread.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server")
        client = await world.host(nursery, "client")
        server.handle("/test/unread/1.0.0", ignore)
        server.handle(ECHO, echo)
        await client.dial(server.addresses[0])
        stream = await client.open_stream(server.peer_id, "/test/unread/1.0.0")
        await unread.wait()

        await push_blindly(stream, 4 * 1024 * 1024)

        assert await stream.receive_some() == b""
        muxed: Any = server._swarm.get_connections()[0].muxed_conn
        assert sum(map(len, muxed.stream_buffers.values())) <= server.config.receive_window_max
        assert server.stats().mux.window_exceeded >= 1
        assert await says(client, server) == b"hello"
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_honest_bulk_within_window(world: Any) -> None:
    """A peer that respects the window sends megabytes through, and nothing is reset."""
    size = 8 * 1024 * 1024
    got = 0
    done = trio.Event()

    async def count(stream: RelayStream) -> None:
        nonlocal got
        while data := await stream.receive_some(100_000):
            got += len(data)
            if got == size:
                done.set()

    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server")
        client = await world.host(nursery, "client")
        server.handle(ECHO, count)
        await client.dial(server.addresses[0])
        stream = await client.open_stream(server.peer_id, ECHO)

        for _ in range(size // 65_536):
            await stream.send_all(bytes(65_536))
        await done.wait()

        assert server.stats().mux.window_exceeded == 0
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_refuse_streams_above_max(world: Any) -> None:
    """A connection has `connection_streams_max` streams; one more is reset and counted."""

    async def hold(_stream: RelayStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server", connection_streams_max=6)
        client = await world.host(nursery, "client", connection_streams_max=100)
        server.handle(ECHO, hold)
        await client.dial(server.addresses[0])

        refused = 0
        for _ in range(10):
            try:
                await client.open_stream(server.peer_id, ECHO)
            except NetError:
                refused += 1

        assert refused >= 4
        assert server.stats().mux.streams_refused >= 4
        assert client.is_connected(server.peer_id)
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("leaky")
@pytest.mark.slow
async def test_stock_shares_busy_port(world: Any) -> None:
    """Two stock hosts bind one port without an error, so connections go to either."""
    async with stock_host(world.seed("one")) as first:
        port = first.get_addrs()[0].value_for_protocol("tcp")
        address = Multiaddr(f"/ip4/127.0.0.1/tcp/{port}")
        second = new_host(key_pair=create_new_key_pair(world.seed("two")), listen_addrs=[address])
        async with second.run([address]):
            assert str(second.get_addrs()[0]).startswith(str(address))


async def test_refuse_busy_port(world: Any) -> None:
    """A taken port is an error that names the address and carries the code net.port."""
    async with trio.open_nursery() as nursery:
        first = await world.host(nursery, "one")
        taken = first.addresses[0].partition("/p2p/")[0]
        second = RelayHost(world.seed("two"), world.config(listen=(taken,)))

        with pytest.raises(NetError) as caught:
            await second.run()

        error = caught.value
        assert (error.code, error.where) == ("net.port", taken)
        assert "in use" in str(error)
        nursery.cancel_scope.cancel()


HOSTILE = {
    "web": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "long line": b"\x13/multistream/1.0.0\n" + b"\xff" * 8 + b"\x7f" + bytes(65_536),
    "no text": b"\x04\xff\xfe\xfd\n",
    "empty line": b"\x00" * 100,
    "bad noise": b"\x13/multistream/1.0.0\n\x07/noise\n" + b"\xff\xff" + bytes(range(256)) * 256,
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
@pytest.mark.slow
async def test_survive_hostile_bytes_on_port(world: Any, name: str) -> None:
    """Whatever a stranger writes to the port, it is hung up on and honest peers get in."""
    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server", handshake_timeout_s=1.0)
        server.handle(ECHO, echo)
        port = int(server.addresses[0].split("/")[4])

        stranger = await trio.open_tcp_stream("127.0.0.1", port)
        with contextlib.suppress(trio.BrokenResourceError):
            await stranger.send_all(HOSTILE[name])
            while await stranger.receive_some():
                pass
        await stranger.aclose()

        await world.until(lambda: server.stats().swarm.handshakes_failed == 1)
        client = await world.host(nursery, "client")
        await client.dial(server.addresses[0])
        assert await says(client, server) == b"hello"
        assert server.stats().swarm.handler_errors == 0
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_drop_silent_stranger(world: Any) -> None:
    """A connection that says nothing gives its slot back after `handshake_timeout_s`."""
    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server", handshake_timeout_s=0.2, inbound_max=1)
        port = int(server.addresses[0].split("/")[4])

        stranger = await trio.open_tcp_stream("127.0.0.1", port)
        with contextlib.suppress(trio.BrokenResourceError):
            while await stranger.receive_some():
                pass
        await stranger.aclose()

        client = await world.host(nursery, "client")
        await client.dial(server.addresses[0])
        assert server.stats().swarm.handshakes_failed == 1
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_survive_hostile_bytes_on_stream_negotiation(world: Any) -> None:
    """A stream whose first bytes are no protocol line is reset; the connection stays."""
    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server")
        client = await world.host(nursery, "client")
        server.handle(ECHO, echo)
        await client.dial(server.addresses[0])

        for data in (b"\xff" * 64, b"\x00", b"\x02\xff\n", b"\x13/multistream/1.0.0\n\x00"):
            stream = RelayStream(await client._swarm.new_stream(ID(server.peer_id)), "")
            await stream.send_all(data)
            while await stream.receive_some():
                pass

        assert await says(client, server) == b"hello"
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_notice_frozen_peer_by_keepalive(world: Any) -> None:
    """A peer behind a dead network is dropped after some pings without an answer (20-37)."""
    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server")
        proxy = await world.proxy(nursery, server.addresses[0])
        client = await world.host(
            nursery, "client", keepalive_interval_s=0.1, keepalive_misses_max=3
        )
        await client.dial(proxy.address)
        # More pings than may be missed have been sent: a living peer is kept.
        (connection,) = client._swarm.get_connections()
        await world.until(lambda: connection.muxed_conn._ping_id > 4)
        assert client.is_connected(server.peer_id)

        proxy.freeze()

        await world.until(lambda: not client.connected())
        assert client.stats().mux.keepalive_timeouts == 1
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_notice_frozen_peer_by_write(world: Any) -> None:
    """A frame that cannot be written in time ends the connection."""

    async def sink(stream: RelayStream) -> None:
        while await stream.receive_some():
            pass

    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server")
        server.handle(ECHO, sink)
        proxy = await world.proxy(nursery, server.addresses[0])
        client = await world.host(nursery, "client", write_timeout_s=0.5)
        await client.dial(proxy.address)
        streams = [await client.open_stream(server.peer_id, ECHO) for _ in range(8)]
        proxy.freeze()

        async def push(stream: RelayStream) -> None:
            with contextlib.suppress(trio.BrokenResourceError):
                await push_blindly(stream, 64 * 1024 * 1024)

        for stream in streams:
            nursery.start_soon(push, stream)

        await world.until(lambda: not client.connected())
        assert client.stats().mux.write_timeouts >= 1
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_close_within_bound(world: Any) -> None:
    """A host with a peer that takes nothing closes within `close_timeout_s`, sockets and all."""
    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server")
        proxy = await world.proxy(nursery, server.addresses[0])
        async with trio.open_nursery() as closing:
            client = await world.host(closing, "client", close_timeout_s=1.0)
            await client.dial(proxy.address)
            stream = await client.open_stream(server.peer_id, "/ipfs/ping/1.0.0")
            proxy.freeze()
            closing.start_soon(push_blindly, stream, 64 * 1024 * 1024)
            await world.until(lambda: client.stats().bytes_out > 100_000)

            began = trio.current_time()
            closing.cancel_scope.cancel()

        assert trio.current_time() - began < 2.0
        assert not client._registry.open
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("listen", ["/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0"])
@pytest.mark.slow
async def test_listen_and_dial_both_families(world: Any, listen: str) -> None:
    """IPv4 and IPv6 work alike, and a name leads to the same host as its address."""
    if listen.startswith("/ip6") and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    async with trio.open_nursery() as nursery:
        try:
            server = await world.host(nursery, "server", listen=(listen,))
        except NetError:
            pytest.skip(f"this machine does not bind {listen}")
        client = await world.host(nursery, "client")
        server.handle(ECHO, echo)

        await client.dial(server.addresses[0])

        assert await says(client, server) == b"hello"
        if listen.startswith("/ip4"):
            named = server.addresses[0].replace("/ip4/127.0.0.1/", "/dns4/localhost/")
            other = await world.host(nursery, "other")
            await other.dial(named)
            assert await says(other, server) == b"hello"
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_dial_each_other_at_once(world: Any) -> None:
    """Both sides dialling at the same moment end up connected, with two connections at most."""
    async with trio.open_nursery() as nursery:
        one = await world.host(nursery, "one")
        two = await world.host(nursery, "two")
        one.handle(ECHO, echo)
        two.handle(ECHO, echo)

        async with trio.open_nursery() as dials:
            dials.start_soon(one.dial, two.addresses[0])
            dials.start_soon(two.dial, one.addresses[0])

        assert await says(one, two) == b"hello"
        assert await says(two, one) == b"hello"
        assert one.stats().inbound + one.stats().outbound <= 2
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_refuse_third_connection_of_peer(world: Any) -> None:
    """A peer holds `peer_connections_max` connections; a further one leaves the first alone."""
    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server", peer_connections_max=1)
        twins = [await world.host(nursery, "twin") for _ in range(2)]
        server.handle(ECHO, echo)
        await twins[0].dial(server.addresses[0])

        with contextlib.suppress(NetError):
            await twins[1].dial(server.addresses[0])

        await world.until(lambda: server.stats().swarm.duplicates_refused == 1)
        assert await says(twins[0], server) == b"hello"
        assert server.stats().inbound == 1
        nursery.cancel_scope.cancel()


async def test_refuse_bad_dials(world: Any) -> None:
    """A dial that cannot work says why: somebody else, nobody, ourselves, no id, no room."""
    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server")
        client = await world.host(nursery, "client", outbound_max=1)
        base = server.addresses[0].partition("/p2p/")[0]
        stranger = RelayHost(world.seed("stranger"), world.config()).peer_text

        with pytest.raises(NetError, match="cannot be reached"):
            await client.dial(f"{base}/p2p/{stranger}")
        with pytest.raises(NetError, match="cannot be reached"):
            await client.dial(f"/ip4/127.0.0.1/tcp/1/p2p/{stranger}")
        with pytest.raises(AddressError, match="our own"):
            await client.dial(client.addresses[0])
        with pytest.raises(AddressError, match="append /p2p/"):
            await client.dial(base)
        with pytest.raises(NetError, match="not connected"):
            await client.open_stream(server.peer_id, ECHO)
        await client.dial(server.addresses[0])
        with pytest.raises(NetError, match="outbound_max"):
            await client.dial(f"/ip4/127.0.0.1/tcp/1/p2p/{stranger}")
        nursery.cancel_scope.cancel()


async def test_give_up_dial_in_time(world: Any) -> None:
    """A dial into a network that says nothing ends after `dial_timeout_s`."""
    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server")
        proxy = await world.proxy(nursery, server.addresses[0])
        client = await world.host(nursery, "client", dial_timeout_s=0.2)
        proxy.freeze()
        began = trio.current_time()

        with pytest.raises(NetError, match="cannot be reached"):
            await client.dial(proxy.address)

        assert trio.current_time() - began < 2.0
        assert client.stats().outbound == 0
        assert not client._registry.open
        nursery.cancel_scope.cancel()


async def test_forget_departed_peers(world: Any) -> None:
    """Nothing is kept about a peer whose last connection has ended."""
    async with trio.open_nursery() as nursery:
        server = await world.host(nursery, "server")
        client = await world.host(nursery, "client")
        await client.dial(server.addresses[0])
        await world.until(lambda: len(server.connected()) == 1)

        await client.disconnect(server.peer_id)

        await world.until(lambda: server.stats().peers == 0)
        assert server._swarm.peerstore.peer_ids() == [ID(server.peer_id)]
        nursery.cancel_scope.cancel()


QUIET_PROGRAM = """
import logging, trio
from luxrelay.errors import NetError
from luxrelay.net.config import NetConfig
from luxrelay.net.host import RelayHost

async def main():
    config = NetConfig(listen=("/ip4/127.0.0.1/tcp/0",))
    one, two, three = (RelayHost(name * 32, config) for name in (b"1", b"2", b"3"))
    async with trio.open_nursery() as nursery:
        await nursery.start(one.run)
        await nursery.start(two.run)
        await one.dial(two.addresses[0])
        try:
            await one.dial("/ip4/127.0.0.1/tcp/1/p2p/" + three.peer_text)
        except NetError:
            pass
        nursery.cancel_scope.cancel()

trio.run(main)
assert logging.getLogger().handlers == []
"""


@pytest.mark.slow
def test_say_nothing_on_terminal() -> None:
    """A process with two hosts and a failed dial prints nothing and gains no log handler."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", QUIET_PROGRAM],
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


async def test_identify_says_luxrelay_and_what_it_speaks(world: Any) -> None:
    """Whoever asks learns program and version, our addresses, and exactly what is served."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", agent="luxrelay/1.2.3")
        asker = await world.host(nursery, "asker")
        await asker.dial(relay.address)
        stream = await asker.open_stream(relay.host.peer_id, "/ipfs/id/1.0.0")
        message = Identify.FromString(await read_frame(stream, 65_536))

        assert message.agent_version == "luxrelay/1.2.3"
        assert message.protocol_version == "ipfs/0.1.0"
        assert message.public_key == relay.host.keys.public_key.serialize()
        assert [str(Multiaddr(data)) for data in message.listen_addrs] == [
            relay.address.partition("/p2p/")[0]
        ]
        assert check(message.signedPeerRecord, relay.host.peer_id).addresses
        assert str(Multiaddr(message.observed_addr)).startswith("/ip4/127.0.0.1/tcp/")
        assert set(message.protocols) == {
            "/ipfs/id/1.0.0",
            "/ipfs/ping/1.0.0",
            HELLO,
            MOVED,
            PEERS,
            *MESHSUB,
        }
        for name in message.protocols:
            await (await asker.open_stream(relay.host.peer_id, name)).reset()
        with pytest.raises(NetError):
            await asker.open_stream(relay.host.peer_id, "/ipfs/id/push/1.0.0")
        nursery.cancel_scope.cancel()
