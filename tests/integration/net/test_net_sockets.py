"""A socket that was opened is closed, whoever is cancelled on the way."""

from __future__ import annotations

import gc
import random
import tracemalloc
import warnings
from contextlib import suppress
from typing import Any

import pytest
import trio

from luxrelay.errors import NetError
from luxrelay.net.host import RelayHost

pytestmark = pytest.mark.slow
GREETING = b"\x13/multistream/1.0.0\n\x07/noise\n"
ANSWERS = [None, b"", bytes(200), GREETING, GREETING + b"\xff\xff" + bytes(300)]
"""What listens and is no relay: closes at once, says nothing, says something wrong."""


async def test_a_connection_whose_closing_is_cancelled_is_closed(world: Any) -> None:
    """Who lets a peer go and is cancelled leaves no socket and no connection behind."""
    async with trio.open_nursery() as nursery:
        server: RelayHost = await world.host(nursery, "server")
        client: RelayHost = await world.host(nursery, "client")
        for give_up_s in (0.0, 0.001, 0.05):
            await client.dial(server.addresses[0])
            await world.until(lambda: server.stats().peers == 1)
            with trio.move_on_after(give_up_s):
                await client.disconnect(server.peer_id)

            assert client.stats().peers == 0
            assert not client._registry.open
            await world.until(lambda: server.stats().peers == 0)
        nursery.cancel_scope.cancel()


async def test_no_dial_leaves_a_socket_to_the_collector(world: Any) -> None:
    """Dials that are cancelled at any moment, refused, or met with nonsense close what they had."""
    rng = random.Random(4)

    async def answer(stream: trio.SocketStream) -> None:
        said = rng.choice(ANSWERS)
        with suppress(trio.BrokenResourceError):
            if said is not None:
                await stream.send_all(said)
                await trio.sleep(0.05)
        await stream.aclose()

    gc.collect()
    tracemalloc.start(12)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ResourceWarning)
            async with trio.open_nursery() as nursery:
                server: RelayHost = await world.host(nursery, "server")
                listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
                await nursery.start(trio.serve_listeners, answer, listeners)
                port = listeners[0].socket.getsockname()[1]
                false = f"/ip4/127.0.0.1/tcp/{port}/p2p/{server.peer_text}"
                for number in range(4):
                    await _one_life(world, f"client {number}", server.addresses[0], false, rng)
                await world.until(lambda: not server._registry.open)
                nursery.cancel_scope.cancel()
            gc.collect()
    finally:
        tracemalloc.stop()
    assert [str(each.message) for each in caught] == []


async def _one_life(world: Any, name: str, true: str, false: str, rng: random.Random) -> None:
    async def dial(client: RelayHost, address: str) -> None:
        with suppress(NetError):
            await client.dial(address)

    async with trio.open_nursery() as nursery:
        client: RelayHost = await world.host(nursery, name, listen=(), dial_timeout_s=0.2)
        for _ in range(8):
            with trio.move_on_after(rng.choice((0.0, 0.001, 0.01, 0.05, 1.0))):
                await dial(client, false)
        assert not client.connected()
        await world.until(lambda: not client._registry.open)
        with trio.move_on_after(rng.choice((0.001, 0.01, 0.03))):
            await dial(client, true)
        nursery.start_soon(dial, client, true)
        await trio.sleep(rng.choice((0.0, 0.01, 0.03)))
        nursery.cancel_scope.cancel()
    assert not client._registry.open
