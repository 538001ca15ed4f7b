"""A node as users run it tells in its receipts who has shown a message since."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from luxrelay.bus import SigningKey, topic_namespace
from luxrelay.bus.policy import default_policy
from luxrelay.client import LaneSigner
from luxrelay.gossip import RelayMessage, relay_message_id, topic_for_namespace
from luxrelay.gossip.rpc_pb2 import RPC, ControlIHave, ControlMessage, Message
from luxrelay.node.folder import Runtime
from luxrelay.node.ingress import wall_ms
from luxrelay.sync import PublishItem, RelaySyncClient

PARENT = topic_namespace("/chat/1/room")
TOPIC = topic_for_namespace("test", PARENT)


def data_in(frames: list[bytes]) -> list[bytes]:
    """Return the envelopes in what a relay sent."""
    return [message.data for frame in frames for message in RPC.FromString(frame).publish]


@pytest.fixture
def runtime(new_node: Callable[[str], Any]) -> Runtime:
    """Where a relay listens that has started before the test's time begins."""
    started: Runtime = new_node("relay").start()
    return started


@pytest.mark.slow
async def test_receipts_count_who_shows_a_message(world: Any, runtime: Runtime) -> None:
    """One peer sends the message back, another names it in an IHAVE: two have seen it."""
    address = runtime.gossip[0]
    signer = LaneSigner(
        SigningKey.generate(), PARENT, policy_hash=default_policy(PARENT).policy_hash
    )
    signed = signer.sign(b"hello", wall_ms())
    item = PublishItem(header=signed.header, blob=b"hello", parent_id=PARENT)
    with RelaySyncClient(runtime.sync) as relay:

        async def seen(digest: bytes, count: int) -> None:
            asked = partial(relay.get_receipts, [digest])
            while True:
                (found,) = await trio.to_thread.run_sync(asked)
                assert found.seen_back <= count
                if found.seen_back == count:
                    return
                await trio.sleep(0.01)

        async with (
            world.raw_peer(address, world.seed("one"), topics=[TOPIC]) as one,
            world.raw_peer(address, world.seed("two"), topics=[TOPIC]) as two,
        ):
            await one.wait_received(1)
            await two.wait_received(1)
            (receipt,) = await trio.to_thread.run_sync(relay.publish, [item])
            assert receipt.stored
            await world.until(lambda: data_in(one.received))
            (data,) = data_in(one.received)
            assert relay_message_id(RelayMessage.decode(data)) == receipt.message_id
            await seen(receipt.digest, 0)

            back = RPC(publish=[Message(topic=TOPIC, data=data)])
            await one.send_rpc(back.SerializeToString())
            await seen(receipt.digest, 1)
            naming = ControlIHave(topicID=TOPIC, messageIDs=[receipt.message_id])
            await two.send_rpc(RPC(control=ControlMessage(ihave=[naming])).SerializeToString())
            await seen(receipt.digest, 2)
