"""Bytes that nobody reads: what strangers may make a relay hold, over real Noise connections."""

from __future__ import annotations

from typing import Any

import pytest
import trio

pytestmark = pytest.mark.trial
DATA, UPDATE, PING = range(3)
SYN = 1
WINDOW = 256 * 1024
MULTISTREAM = b"\x13/multistream/1.0.0\n"
PING_STREAM = MULTISTREAM + b"\x11/ipfs/ping/1.0.0\n"
MIB = 1024 * 1024


async def flood(mux: Any, streams: range, opening: bytes, filling: bytes) -> None:
    """Open each stream, let it be read, then push all that was granted and a window more."""
    for number in streams:
        await mux.data(number, opening, flags=SYN)
    await trio.sleep(0.5)
    for number in streams:
        left = WINDOW + mux.granted[number] - len(opening)
        while left > 0 and not mux.over and number not in mux.reset:
            part = (filling * (left // len(filling) + 1))[: min(left, 65_000)]
            await mux.data(number, part)
            left -= len(part)


@pytest.mark.parametrize(
    ("opening", "filling"),
    [
        (PING_STREAM + bytes(32 * 40), b"\x00"),
        (MULTISTREAM + b"\x09/foo/1.0\n" * 60, b"\x09/foo/1.0\n"),
        (b"", b"\x00"),
        (MULTISTREAM, b"\xff\x07"),
        (MULTISTREAM + b"\x0f/meshsub/1.2.0\n", b"\xff\xff\x3f" + bytes(1_000_000)),
    ],
    ids=["ping", "negotiation", "silent", "long lines", "half a frame"],
)
async def test_strangers_make_a_relay_hold_little(
    world: Any, opening: bytes, filling: bytes
) -> None:
    """Three connections on all their streams stay within every bound, and an honest peer talks."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(
            nursery, "relay", connection_unread_max=MIB, unread_max=2 * MIB, handshake_timeout_s=2.0
        )
        honest = await world.relay(nursery, "honest", peers=(relay.address,))
        await world.meshed(relay, honest)
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, relay.host.stats().unread)
                await trio.lowlevel.checkpoint()

        async def stranger(name: str) -> None:
            async with world.raw_mux(relay.address, name) as mux, trio.open_nursery() as inner:
                inner.start_soon(mux.listen)
                await flood(mux, range(1, 30, 2), opening, filling)
                limit = relay.host.config.receive_window_max
                assert all(granted <= limit for granted in mux.granted.values())
                inner.cancel_scope.cancel()

        nursery.start_soon(watch)
        async with trio.open_nursery() as strangers:
            for number in range(3):
                strangers.start_soon(stranger, f"stranger {number}")
            await honest.driver.publish([(world.topic, world.envelope(1))])
            await world.until(lambda: len(relay.delivered) == 1)

        assert most <= 2 * MIB
        assert relay.host.faults.counts() == {}
        await world.until(lambda: relay.host.stats().unread == 0)
        nursery.cancel_scope.cancel()


async def test_who_sends_beyond_its_credit_is_reset(world: Any) -> None:
    """A stream that gets more than it was granted is reset, the connection goes on."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        async with world.raw_mux(relay.address, "stranger") as mux:
            nursery.start_soon(mux.listen)
            await mux.data(1, PING_STREAM, flags=SYN)
            await mux.data(1, bytes(31))
            await trio.sleep(0.2)
            await mux.send(DATA, 0, 1, 2 * WINDOW, bytes(65_000))
            await world.until(lambda: 1 in mux.reset)
            await mux.data(1, bytes(2 * WINDOW - 65_000))
            assert relay.host.stats().mux.window_exceeded == 1
        nursery.cancel_scope.cancel()
