"""A reliable channel with its defaults on the bus: segments of 100 kB over blobs, across relays."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from luxrelay.bus import SigningKey
from luxrelay.channel import MessageReceived, MessageSent, create_reliable_channel
from luxrelay.channel.runtime.remote import RemoteMessaging
from luxrelay.cli.main import main
from luxrelay.client import AsyncRelayClient

pytestmark = [pytest.mark.slow, pytest.mark.trial]
TOPIC = "/chat/1/room"


def token(relay: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """Return a token of a running relay that may read and publish."""
    scopes = ["--scope", "read", "--scope", "publish"]
    assert main(["node", "token", "new", "--config", str(relay.config), *scopes, "test"]) == 0
    (found,) = re.findall(r"lrt_\S+", capsys.readouterr().out)
    return str(found)


@pytest.mark.parametrize("size", [1_000, 100_000, 300_000])
def test_two_relays_with_nothing_set(
    new_node: Callable[[str], Any], capsys: pytest.CaptureFixture[str], size: int
) -> None:
    """What one sends the other gets, and the sender knows it (trial t7)."""
    relays = [new_node(f"relay-{n}") for n in (1, 2)]
    for number, relay in enumerate(relays):
        relay.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
        relay.sections["gossip"]["peers"] = [r.runtime.gossip[0] for r in relays[:number]]
        relay.sections["sync"]["peers"] = [r.runtime.sync for r in relays[:number]]
        relay.runtime = relay.start()
    topic = relays[0].topics[0]
    payload = os.urandom(size)

    async def talk() -> bytes:
        clients = [AsyncRelayClient(r.runtime.gateway, token=token(r, capsys)) for r in relays]
        async with clients[0] as one, clients[1] as two:
            layers = [RemoteMessaging(each, SigningKey.generate()) for each in (one, two)]
            async with (
                create_reliable_channel(layers[0], "room", topic, "alice") as alice,
                create_reliable_channel(layers[1], "room", topic, "bob") as bob,
            ):
                got: list[bytes] = []

                async def listen() -> None:
                    async for event in bob.events():
                        if isinstance(event, MessageReceived):
                            got.append(event.message)
                            return

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(listen)
                    await alice.send(payload)
                    async for event in alice.events():
                        if isinstance(event, MessageSent):
                            break
                return got[0]

    async def bounded() -> bytes:
        with anyio.fail_after(120):
            return await talk()

    assert anyio.run(bounded, backend="trio") == payload
