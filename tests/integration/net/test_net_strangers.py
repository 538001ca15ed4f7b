"""Strangers hold no places: before the handshake, and after it without a word."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any

import pytest
import trio

from luxrelay.errors import NetError

pytestmark = pytest.mark.trial
ATTACKERS = [f"127.9.{net}.{host}" for net in range(1, 4) for host in range(1, 5)]
"""Addresses of three /24 of one /16."""
BOUNDS = {"loopback_exempt": False, "first_byte_timeout_s": 1.0, "handshake_timeout_s": 4.0}


def port_of(address: str) -> int:
    """The TCP port of a multiaddress."""
    return int(address.split("/")[4])


async def besiege(address: str, local: str, count: int, greeting: bytes) -> None:
    """Keep so many connections open from one address, each with the same first bytes."""
    held: list[trio.SocketStream] = []
    try:
        while True:
            while len(held) < count:
                held.append(
                    await trio.open_tcp_stream("127.0.0.1", port_of(address), local_address=local)
                )
                with contextlib.suppress(trio.BrokenResourceError):
                    await held[-1].send_all(greeting)
            await trio.sleep(0.02)
            over = [stream for stream in held if ended(stream)]
            for stream in over:
                held.remove(stream)
                stream.socket.close()
    finally:
        for stream in held:
            stream.socket.close()


def ended(stream: trio.SocketStream) -> bool:
    """Whether the other side has closed the connection."""
    fd = socket.socket(fileno=socket.dup(stream.socket.fileno()))
    try:
        while data := fd.recv(1000, socket.MSG_DONTWAIT):
            assert data
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        fd.close()
    return True


@pytest.mark.parametrize(
    "greeting",
    [b"", b"\x13/multistream/1.0.0\n", b"\x13/multistream/1.0.0\n\x07/noise\n\x00"],
    ids=["silent", "multistream", "noise"],
)
async def test_honest_dials_succeed_beside_strangers(world: Any, greeting: bytes) -> None:
    """96 connections from one /16 that never finish keep nobody out, of 8 dials none fails."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", **BOUNDS, inbound_max=16)
        for local in ATTACKERS:
            nursery.start_soon(besiege, relay.address, local, 8, greeting)
        await world.until(lambda: relay.host.stats().swarm.strangers_turned_out > 50)

        for number in range(8):
            honest = await world.host(nursery, f"honest {number}")
            await honest.dial(relay.address)
            await honest.disconnect(relay.host.peer_id)
        stats = relay.host.stats()

        assert stats.swarm.inbound_accepted == 8
        assert stats.swarm.inbound_refused == stats.swarm.address_refused == 0
        nursery.cancel_scope.cancel()


async def test_a_connection_without_a_first_byte_is_closed_in_time(world: Any) -> None:
    """Silence ends after `first_byte_timeout_s`, half a handshake after `handshake_timeout_s`."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", **BOUNDS)
        port, began = port_of(relay.address), trio.current_time()

        async def seconds(greeting: bytes) -> float:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(greeting)
                with contextlib.suppress(trio.BrokenResourceError):
                    while await stream.receive_some(1000):
                        pass
            return trio.current_time() - began

        silent = await seconds(b"")
        assert silent >= 1.0
        began = trio.current_time()
        assert await seconds(b"\x13/multistream/1.0.0\n") > silent + 1.0
        assert relay.host.stats().swarm.handshakes_failed == 2
        nursery.cancel_scope.cancel()


async def test_identities_that_say_nothing_lose_their_places(world: Any) -> None:
    """Proven peers without hello or stream have a share, and go for whoever comes."""
    async with trio.open_nursery() as nursery, contextlib.AsyncExitStack() as stack:
        relay = await world.host(nursery, "relay", **BOUNDS, inbound_max=8, speak_timeout_s=3600.0)
        muxes = []
        for number in range(12):
            local = ATTACKERS[number]
            mux = await stack.enter_async_context(
                world.raw_mux(relay.addresses[0], f"stranger {number}", local=local)
            )
            nursery.start_soon(mux.listen)
            muxes.append(mux)
        await world.until(lambda: relay.stats().swarm.silent_displaced == 8)
        await world.until(lambda: sum(mux.over for mux in muxes) == 8)
        assert [mux.over for mux in muxes] == [True] * 8 + [False] * 4

        honest = [await world.host(nursery, f"honest {number}") for number in range(8)]
        for host in honest:
            await host.dial(relay.addresses[0])
            await (await host.open_stream(relay.peer_id, "/ipfs/ping/1.0.0")).reset()
        await world.until(lambda: relay.stats().inbound == 8)
        nursery.cancel_scope.cancel()


async def test_a_peer_without_hello_or_stream_is_closed_in_time(world: Any) -> None:
    """Pings and identify make no peer of ours; a stream for what we serve does."""
    async with trio.open_nursery() as nursery:
        relay = await world.host(nursery, "relay", speak_timeout_s=1.0)

        async def serve(stream: Any) -> None:
            while await stream.receive_some():
                pass

        relay.handle("/test/1", serve)
        silent = await world.host(nursery, "silent")
        speaker = await world.host(nursery, "speaker")
        await silent.dial(relay.addresses[0])
        await silent.open_stream(relay.peer_id, "/ipfs/ping/1.0.0")
        await speaker.dial(relay.addresses[0])
        await speaker.open_stream(relay.peer_id, "/test/1")

        await world.until(lambda: not silent.is_connected(relay.peer_id))
        assert relay.stats().swarm.silent_closed == 1
        await trio.sleep(1.0)
        assert speaker.is_connected(relay.peer_id)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "code", [errno.EMFILE, errno.ECONNABORTED, errno.ENETDOWN, errno.EPROTO, errno.EPERM]
)
async def test_what_accept_says_of_one_connection_is_not_the_listeners_end(
    world: Any, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Want of descriptors and broken connections are counted, and the next dial is served."""
    async with trio.open_nursery() as nursery:
        accept, failures = trio.SocketListener.accept, [code] * 3

        async def failing(listener: trio.SocketListener) -> trio.SocketStream:
            stream = await accept(listener)
            if not failures:
                return stream
            await trio.aclose_forcefully(stream)
            raise OSError(failures.pop(), "accept")

        monkeypatch.setattr(trio.SocketListener, "accept", failing)
        relay = await world.host(nursery, "relay")
        honest = await world.host(nursery, "honest", dial_timeout_s=1.0)
        for _ in range(6):
            with contextlib.suppress(NetError):
                await honest.dial(relay.addresses[0])
                break
        assert honest.is_connected(relay.peer_id)
        assert relay.stats().accept_errors == 3
        assert relay.faults.counts() == {"accept": 3}
        nursery.cancel_scope.cancel()


async def test_ten_relays_of_one_private_network_find_each_other(world: Any) -> None:
    """Ten relays of one private /16 that know one of them mesh, with the limits of a real node."""
    bounds = {
        "loopback_exempt": False,
        "upkeep_interval_s": 0.1,
        "exchange_interval_s": 0.1,
        "peers_min": 9,
        "outbound_target": 9,
    }
    async with trio.open_nursery() as nursery:
        first = await world.relay(
            nursery,
            "relay 0",
            listen=("/ip4/127.10.0.1/tcp/0",),
            local="127.10.0.1",
            strict=True,
            **bounds,
        )
        others = [
            await world.relay(
                nursery,
                f"relay {number}",
                listen=(f"/ip4/127.10.{number}.1/tcp/0",),
                local=f"127.10.{number}.1",
                bootstrap=(first.address,),
                strict=True,
                **bounds,
            )
            for number in range(1, 10)
        ]
        relays = [first, *others]
        for relay in relays:
            await world.until(
                lambda relay=relay: len(relay.router.stats().peers) == 9, seconds=100.0
            )
        await first.driver.publish([(world.topic, world.envelope(1))])
        for relay in others:
            await world.until(lambda relay=relay: len(relay.delivered) == 1)
        nursery.cancel_scope.cancel()
