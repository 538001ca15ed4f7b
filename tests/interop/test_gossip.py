"""One mesh of LuxRelay, js-libp2p and go-libp2p-pubsub (G29)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio

from luxrelay.net.streams import encode_frame

CHUNK = 25
"""Messages published before everybody has to have them: go queues 32 for a peer."""
LANGUAGES = ("js", "go")
MESH_OF_TWO = {"d": 2, "dLo": 2, "dHi": 2, "dOut": 0}
NO_MESH = {"d": 0, "dLo": 0, "dHi": 0, "dOut": 0}


@pytest.mark.parametrize("version", ["1.1.0", "1.2.0"])
async def test_mixed_mesh_delivers_each_message_once(lab: Any, version: str) -> None:
    """What any of two peers of each language publishes arrives at the five others, once (G29)."""
    protocols = [f"/meshsub/{version}"]
    async with trio.open_nursery() as nursery:
        ours = [await lab.own(nursery) for _ in range(2)]
        js = [await lab.foreign(nursery, "js", protocols=protocols) for _ in range(2)]
        go = [await lab.foreign(nursery, "go", protocols=protocols) for _ in range(2)]
        peers = [*ours, *js, *go]
        await lab.connected(ours[0], js[0], go[0], ours[1], js[1], go[1])
        await lab.meshed(*peers)

        published: dict[str, set[str]] = {peer.peer: set() for peer in peers}
        for start in range(0, lab.messages // 2, CHUNK):
            seqs = range(start, min(start + CHUNK, lab.messages // 2))
            for number, peer in enumerate(peers):
                space = bytes([number + 1]) * 20
                await peer.publish([lab.envelope(seq, namespace=space) for seq in seqs])
                published[peer.peer] |= {lab.message_id(seq, namespace=space) for seq in seqs}
            for peer in peers:
                await lab.until(lambda peer=peer: wanted(published, peer) <= set(peer.received))

        for peer in peers:
            assert set(peer.received) == wanted(published, peer)
            assert set(peer.received.values()) == {1}
            protocols_seen = (await peer.stats())["protocols"]
            assert {protocols_seen[other.peer] for other in [*js, *go] if other is not peer} == {
                protocols[0]
            }
        nursery.cancel_scope.cancel()


def wanted(published: dict[str, set[str]], peer: Any) -> set[str]:
    """Ids of what the others published."""
    return set().union(*(ids for name, ids in published.items() if name != peer.peer))


@pytest.mark.parametrize("language", LANGUAGES)
async def test_graft_and_prune_are_seen_by_both(lab: Any, language: str) -> None:
    """Either side's GRAFT brings the other into its mesh, either side's PRUNE takes it out."""
    async with trio.open_nursery() as nursery:
        ours = await lab.own(nursery)
        theirs = await lab.foreign(nursery, language)
        await ours.dial(theirs.address)
        await lab.meshed(ours, theirs)

        await ours.unsubscribe(lab.topic)
        await lab.until(lambda: absent(theirs, lab.topic, ours))
        await ours.subscribe(lab.topic)
        await lab.meshed(ours, theirs)
        await theirs.unsubscribe(lab.topic)
        await lab.until(lambda: absent(ours, lab.topic, theirs))
        before = (await ours.stats())["received"]["graft"] + (await ours.stats())["sent"]["graft"]
        await theirs.subscribe(lab.topic)
        await lab.meshed(ours, theirs)

        own, foreign = await ours.stats(), await theirs.stats()
        assert own["sent"]["prune"] >= 1
        assert foreign["received"]["prune"] >= 1
        assert foreign["sent"]["prune"] >= 1
        assert own["received"]["prune"] >= 1
        assert own["sent"]["graft"] + own["received"]["graft"] > before
        assert foreign["received"]["graft"] + foreign["sent"]["graft"] >= 2
        nursery.cancel_scope.cancel()


async def absent(peer: Any, topic: str, other: Any) -> bool:
    """Whether the other is not in the peer's mesh."""
    return other.peer not in (await peer.stats())["mesh"].get(topic, [])


@pytest.mark.parametrize("language", LANGUAGES)
async def test_foreign_peer_recovers_by_ihave(lab: Any, language: str) -> None:
    """A foreign peer that keeps no mesh gets our messages by our IHAVE and its IWANT alone."""
    async with trio.open_nursery() as nursery:
        ours = await lab.own(nursery, flood_publish=False)
        theirs = await lab.foreign(nursery, language, mesh=NO_MESH)
        await ours.dial(theirs.address)
        # Our GRAFT puts it into our mesh until its PRUNE comes: a message in between goes eagerly.
        await lab.until(lambda: pruned(ours, lab.topic))

        await ours.publish([lab.envelope(seq) for seq in range(5)])
        await lab.until(lambda: len(theirs.received) == 5)

        own, foreign = await ours.stats(), await theirs.stats()
        assert own["mesh"][lab.topic] == []
        assert set(theirs.received) == {lab.message_id(seq) for seq in range(5)}
        assert own["sent"]["ihave"] >= 1
        assert foreign["sent"]["iwant"] >= 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("language", LANGUAGES)
async def test_we_recover_by_ihave(lab: Any, language: str) -> None:
    """We get what a foreign peer with a full mesh only announces to us, by our IWANT."""
    async with trio.open_nursery() as nursery:
        theirs = await lab.foreign(nursery, language, mesh=MESH_OF_TWO, floodPublish=False)
        ours = [await lab.own(nursery) for _ in range(3)]
        for peer in ours:
            await peer.dial(theirs.address)
        await lab.until(lambda: full(theirs, lab.topic))
        mesh = (await theirs.stats())["mesh"][lab.topic]
        (outside,) = (peer for peer in ours if peer.peer not in mesh)

        await theirs.publish([lab.envelope(seq) for seq in range(5)])
        await lab.until(lambda: len(outside.received) == 5)

        assert set(outside.received) == {lab.message_id(seq) for seq in range(5)}
        assert (await outside.stats())["sent"]["iwant"] >= 1
        assert (await theirs.stats())["sent"]["ihave"] >= 1
        nursery.cancel_scope.cancel()


async def full(theirs: Any, topic: str) -> bool:
    """Whether the foreign mesh of two is complete."""
    return len((await theirs.stats())["mesh"].get(topic, [])) == 2


async def pruned(ours: Any, topic: str) -> bool:
    """Whether the only follower of the topic refused our GRAFT, and its back-off holds."""
    stats = await ours.stats()
    return bool(stats["received"]["prune"] >= 1 and stats["mesh"][topic] == [])


@pytest.mark.parametrize("language", LANGUAGES)
async def test_refuse_message_of_one_mebibyte(lab: Any, language: str) -> None:
    """A frame above 1 MiB ends the stream on either side, reaches nobody, and does no more harm.

    After it the two disconnect and meet again, and messages pass both ways.
    """
    async with trio.open_nursery() as nursery:
        ours, other = await lab.own(nursery), await lab.own(nursery)
        theirs = await lab.foreign(nursery, language)
        await lab.connected(ours, other, theirs)
        await lab.meshed(ours, other, theirs)

        await theirs.publish([lab.envelope(1)[:-2] + bytes(1024 * 1024)])
        await theirs.publish([lab.envelope(2)])
        await lab.until(lambda: answered(ours, theirs, language))
        if language == "js":
            for peer in (ours, other):
                await theirs.hang_up(peer.peer)
                await lab.until(lambda peer=peer: gone(peer, theirs))
                await peer.dial(theirs.address)
        await lab.meshed(ours, other, theirs)
        await theirs.publish([lab.envelope(3)])
        await ours.publish([lab.envelope(4)])
        await lab.until(lambda: lab.message_id(3) in ours.received)
        await lab.until(lambda: lab.message_id(3) in other.received)
        await lab.until(lambda: lab.message_id(4) in theirs.received)

        assert lab.message_id(1) not in ours.received
        assert lab.message_id(1) not in other.received
        nursery.cancel_scope.cancel()


async def answered(ours: Any, theirs: Any, language: str) -> bool:
    """Whether the long frame met its end: at our door, or at its sender's, as go does."""
    if language == "js":
        return ours.driver.counters.frame_errors >= 1
    return (await theirs.stats())["sent"]["dropped"] >= 1


async def gone(peer: Any, other: Any) -> bool:
    """Whether the two are not connected any more."""
    return other.peer not in (await peer.stats())["peers"]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_disconnect_and_return(lab: Any, language: str) -> None:
    """A foreign peer that was hung up on, by either side, comes back into the mesh and is heard."""
    async with trio.open_nursery() as nursery:
        ours = await lab.own(nursery, prune_backoff_s=1.0)
        theirs = await lab.foreign(nursery, language)
        for number, (leaver, stayer) in enumerate(((ours, theirs), (theirs, ours))):
            await theirs.dial(ours.address)
            await lab.meshed(ours, theirs)

            await leaver.hang_up(stayer.peer)
            await lab.until(lambda: gone(ours, theirs))
            await lab.until(lambda: gone(theirs, ours))
            await leaver.dial(stayer.address)
            await lab.meshed(ours, theirs)
            await ours.publish([lab.envelope(2 * number)])
            await theirs.publish([lab.envelope(2 * number + 1)])

            await lab.until(lambda n=number: theirs.received[lab.message_id(2 * n)] == 1)
            await lab.until(lambda n=number: ours.received[lab.message_id(2 * n + 1)] == 1)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("language", LANGUAGES)
async def test_refuse_our_frame_of_one_mebibyte(lab: Any, language: str) -> None:
    """A frame above 1 MiB that we send by force is refused by the foreign peer as well."""
    async with trio.open_nursery() as nursery:
        theirs = await lab.foreign(nursery, language)
        async with lab.raw_peer(theirs.address) as raw:
            topic = b"\x22" + encode_frame(lab.topic.encode())
            data = b"\x12" + encode_frame(lab.envelope(1)[:-2] + bytes(1024 * 1024))
            with suppress(trio.BrokenResourceError):  # it may be refused while it is being sent
                await raw.send_rpc(b"\x12" + encode_frame(data + topic))
            await raw.wait_ended()

        assert not theirs.received
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("language", LANGUAGES)
async def test_large_messages_are_declined_both_ways(lab: Any, language: str) -> None:
    """Whoever has a large message tells its mesh so by IDONTWANT, and is understood (1.2)."""
    async with trio.open_nursery() as nursery:
        ours, other = await lab.own(nursery), await lab.own(nursery)
        theirs = await lab.foreign(nursery, language)
        await lab.connected(ours, other, theirs)
        await lab.meshed(ours, other, theirs)

        for seq in range(10):
            await other.publish([lab.envelope(seq, size=6000)])
            await theirs.publish([lab.envelope(100 + seq, size=6000)])
        await lab.until(lambda: len(theirs.received) == 10)
        await lab.until(lambda: len(ours.received) == 20)

        await lab.until(lambda: told(theirs))
        assert (await ours.stats())["received"]["idontwant"] >= 1
        assert set(ours.received.values()) == {1}
        nursery.cancel_scope.cancel()


async def told(theirs: Any) -> bool:
    """Whether the foreign peer has heard an IDONTWANT and said one."""
    stats = await theirs.stats()
    return bool(stats["received"]["idontwant"] and stats["sent"]["idontwant"])
