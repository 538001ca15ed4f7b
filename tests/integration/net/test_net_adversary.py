"""Peers that mean harm on real sockets: each bounded, and harmless to an honest one."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from typing import Any

import pytest
import trio

from luxrelay.errors import NetError
from luxrelay.net.exchange import PEERS
from luxrelay.net.hello import HELLO

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("LUXRELAY_CONNECT_ROUNDS", "8"))
"""Connects and disconnects of the memory test; 10,000 in the long run."""


async def test_half_open_streams_hold_nobody_up(world: Any) -> None:
    """A peer that opens every stream it may and then says nothing costs those streams (20-58)."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        honest = await world.relay(nursery, "honest")
        await honest.driver.connect(relay.address)
        await world.meshed(relay, honest)
        rogue = await world.host(nursery, "rogue", connection_streams_max=64)
        await rogue.dial(relay.address)

        streams = []
        for protocol in [HELLO, PEERS, *["/meshsub/1.2.0"] * 30]:
            with suppress(NetError), trio.move_on_after(2):
                streams.append(await rogue.open_stream(relay.host.peer_id, protocol))
        await honest.driver.publish([(world.topic, world.envelope(1))])
        await world.until(lambda: len(relay.delivered) == 1)

        assert len(streams) < 32
        assert relay.host.stats().swarm.handler_errors == 0
        assert honest.host.peer_id in relay.router.stats().peers
        nursery.cancel_scope.cancel()


async def test_objects_are_flat_over_connects(world: Any) -> None:
    """Peers that come and go, each under a new identity, leave nothing behind (20-58)."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")

        async def visit(visitors: trio.Nursery, number: int) -> None:
            host = await world.host(visitors, f"visitor {number}")
            for protocol in ("/meshsub/1.2.0", "/meshsub/1.1.0"):
                host.handle(protocol, hold)
            await host.dial(relay.address)
            await world.until(lambda: host.peer_id in relay.router.stats().peers)

        async def visits(first: int, count: int) -> int:
            for number in range(first, first + count):
                async with trio.open_nursery() as visitors:
                    await visit(visitors, number)
                    visitors.cancel_scope.cancel()
                await world.until(lambda: not relay.host.connected())
            gc.collect()
            return len(gc.get_objects())

        await visits(0, 2)
        before = await visits(2, ROUNDS // 2)
        after = await visits(2 + ROUNDS // 2, ROUNDS // 2)

        assert len(relay.host._swarm.limits) == 0
        assert relay.driver._links == {}
        assert relay.host._host.get_peerstore().peer_ids() == [relay.host._swarm.self_id]
        assert after - before < 20 * ROUNDS + 2_000
        nursery.cancel_scope.cancel()


async def hold(_stream: Any) -> None:
    """Take a stream and never say anything."""
    await trio.sleep_forever()
