"""The distributed hash table between real hosts: found by it, and nothing more than found."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from libp2p.kad_dht.pb.kademlia_pb2 import Message

from luxrelay.net.records import check, seal
from luxrelay.net.streams import encode_frame, read_frame

pytestmark = pytest.mark.slow
PROTOCOL = "/lux/devnet/kad/1.0.0"


def question(key: bytes, kind: Any = Message.MessageType.FIND_NODE) -> bytes:
    """A question of the hash table, framed."""
    return encode_frame(Message(type=kind, key=key).SerializeToString())


async def asked(stream: Any, key: bytes) -> list[bytes]:
    """The peers that answer a question, by their records."""
    await stream.send_all(question(key))
    answer = Message.FromString(await read_frame(stream, 1 << 20))
    return [check(bytes(peer.signedRecord), None).peer for peer in answer.closerPeers]


async def test_find_peers_through_the_table_alone(world: Any) -> None:
    """In a row of five, each knowing the one before, all find more by lookups (20-04)."""
    async with trio.open_nursery() as nursery:
        relays: list[Any] = []
        for number in range(5):
            before = (relays[-1].address,) if relays else ()
            relays.append(
                await world.relay(
                    nursery,
                    f"relay {number}",
                    bootstrap=before,
                    exchange=False,
                    dht=True,
                    dht_interval_s=0.2,
                    peers_min=3,
                    outbound_target=3,
                    dht_dials_max=1,
                    upkeep_interval_s=0.05,
                )
            )

        await world.until(lambda: all(len(r.host.connected()) >= 3 for r in relays), seconds=25)
        found = [each.driver.stats().finder for each in relays]
        assert sum(each.found for each in found) > 0
        assert sum(each.answered for each in found) > 0
        assert all(each.dialled <= each.lookups + 1 for each in found)
        nursery.cancel_scope.cancel()


async def test_off_by_default(world: Any) -> None:
    """A node of default settings neither answers nor asks (20-04, G21)."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        other = await world.host(nursery, "other")
        await other.dial(relay.address)

        with pytest.raises(Exception, match="opens no stream"):
            await other.open_stream(relay.host.peer_id, PROTOCOL)
        assert relay.driver.stats().finder.lookups == 0
        nursery.cancel_scope.cancel()


async def test_answer_with_signed_records_of_greeted_peers_only(world: Any) -> None:
    """Who said hello and answers where its record says is given out, nobody else (20-03, 20-04)."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", dht=True)
        friend = await world.relay(nursery, "friend")
        await friend.driver.connect(relay.address)
        silent = await world.host(nursery, "silent")
        await silent.dial(relay.address)
        stream = await silent.open_stream(relay.host.peer_id, PROTOCOL)

        with trio.fail_after(10):
            while await asked(stream, b"any") != [friend.host.peer_id]:  # noqa: ASYNC110 - theirs
                await trio.sleep(0.2)

        assert await asked(stream, friend.host.peer_id) == [friend.host.peer_id]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "data",
    [
        question(b"k", Message.MessageType.PUT_VALUE),
        question(b"k", Message.MessageType.ADD_PROVIDER),
        question(b""),
        question(bytes(129)),
        encode_frame(b"\xff" * 20),
        b"\xff\xff\xff\x7f",
    ],
)
async def test_other_questions_end_the_stream(world: Any, data: bytes) -> None:
    """Nothing is stored for strangers, and what is no question ends its stream alone."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", dht=True)
        rogue = await world.host(nursery, "rogue")
        await rogue.dial(relay.address)
        stream = await rogue.open_stream(relay.host.peer_id, PROTOCOL)

        await stream.send_all(data)

        assert await stream.receive_some(1) == b""
        assert rogue.is_connected(relay.host.peer_id)
        assert relay.host.stats().swarm.handler_errors == 0
        nursery.cancel_scope.cancel()


async def test_questions_of_one_peer_are_limited(world: Any) -> None:
    """Above its rate a peer is not answered, another one is."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", dht=True, dht_requests_per_s=0.5)
        for name in ("greedy", "modest"):
            host = await world.host(nursery, name)
            await host.dial(relay.address)
            stream = await host.open_stream(relay.host.peer_id, PROTOCOL)
            await stream.send_all(question(b"a") * 3)
            received = b""
            while data := await stream.receive_some(100):
                received += data
            assert received == b"\x02\x08\x04"  # its type alone: nobody is known

        assert relay.driver.stats().finder.refused == 2
        nursery.cancel_scope.cancel()


async def test_lies_in_answers_are_passed_over(world: Any) -> None:
    """A record of another's hand and addresses without a record are not learned; a true one is."""

    async def lie(stream: Any) -> None:
        await read_frame(stream, 10_000)
        honest = seal(world.seed("honest"), ["/ip4/127.0.0.1/tcp/5"], 1)
        forged = seal(world.seed("forger"), ["/ip4/127.0.0.1/tcp/6"], 1)
        answer = Message(type=Message.MessageType.FIND_NODE)
        answer.closerPeers.add(id=check(honest).peer, signedRecord=honest)
        answer.closerPeers.add(id=b"\x00\x24" + bytes(36), signedRecord=forged)
        answer.closerPeers.add(
            id=b"\x00\x24\x08\x01\x12\x20" + bytes(32), addrs=[b"\x04\x7f\x00\x00\x01\x06\x00\x07"]
        )
        answer.closerPeers.add(id=b"")
        await stream.send_all(encode_frame(answer.SerializeToString()))
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", dht=True, dht_interval_s=0.1)
        liar = await world.host(nursery, "liar")
        liar.handle(PROTOCOL, lie)

        await liar.dial(relay.address)

        await world.until(lambda: relay.driver.stats().finder.lookups > 0)
        (learned,) = relay.driver._connector.book._entries
        assert learned == check(seal(world.seed("honest"), ["/ip4/127.0.0.1/tcp/5"], 1)).peer
        nursery.cancel_scope.cancel()


async def test_stock_table_cannot_be_renamed(world: Any) -> None:
    """The library's own table is `/ipfs/kad/1.0.0` under any prefix: why ours is not that one."""
    from libp2p.kad_dht.kad_dht import DHTMode, KadDHT

    async with trio.open_nursery() as nursery:
        host = await world.host(nursery, "stock")
        KadDHT(host._host, DHTMode.SERVER, protocol_prefix="/lux")

        names = {str(name) for name in host._host.multiselect.handlers}
        assert "/ipfs/kad/1.0.0" in names
        assert not any(name.startswith("/lux/kad") for name in names)
        nursery.cancel_scope.cancel()
