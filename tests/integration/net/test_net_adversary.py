"""Peers that mean harm on real sockets: each bounded, and harmless to an honest one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio

from luxrelay.errors import NetError
from luxrelay.net.exchange import PEERS
from luxrelay.net.hello import HELLO

pytestmark = pytest.mark.slow


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

        held = relay.host.connections(rogue.peer_id)[0].muxed_conn.streams
        await world.until(lambda: len(held) < len(streams) / 2)
        assert relay.host.stats().swarm.handler_errors == 0
        assert honest.host.peer_id in relay.router.stats().peers
        nursery.cancel_scope.cancel()
