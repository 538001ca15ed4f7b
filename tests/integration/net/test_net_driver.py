"""Real relays gossip over loopback: hosts, routers and drivers as a node has them."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import pytest
import trio

from luxrelay.bus import VerdictKind
from luxrelay.errors import AddressError, NetError, TopicError
from luxrelay.gossip import Disconnect, GossipParams, RelayMessage, Validate
from luxrelay.gossip.rpc import decode_rpc
from luxrelay.gossip.rpc_pb2 import RPC, Message
from luxrelay.net import RelayHost, raw_pubsub_peer
from luxrelay.net.streams import encode_frame


def topic_of(data: bytes) -> str:
    """The topic an envelope names."""
    return RelayMessage.decode(data).topic


def rpc_with(*envelopes: bytes) -> bytes:
    """One RPC that carries the envelopes."""
    messages = [Message(data=data, topic=topic_of(data)) for data in envelopes]
    return RPC(publish=messages).SerializeToString()


async def publish(relay: Any, *envelopes: bytes) -> list[int]:
    """How many peers each envelope goes to."""
    sent: list[int] = await relay.driver.publish([(topic_of(data), data) for data in envelopes])
    return sent


@pytest.mark.slow
async def test_two_relays_exchange(world: Any) -> None:
    """What one relay publishes the other delivers once, and the other way round (20-49)."""
    async with trio.open_nursery() as nursery:
        one = await world.relay(nursery, "one")
        two = await world.relay(nursery, "two", peers=(one.address,))
        await world.meshed(one, two)

        assert await publish(one, world.envelope(1)) == [1]
        assert await publish(two, world.envelope(2)) == [1]

        await world.until(lambda: one.delivered and two.delivered)
        assert two.delivered == [world.envelope(1)]
        assert one.delivered == [world.envelope(2)]
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_message_crosses_three_relays(world: Any) -> None:
    """In a line of three the one in the middle passes on what it has validated (20-18)."""
    async with trio.open_nursery() as nursery:
        left = await world.relay(nursery, "left")
        middle = await world.relay(nursery, "middle", peers=(left.address,))
        right = await world.relay(nursery, "right", peers=(middle.address,))
        await world.until(lambda: middle.mesh() == 2 and left.mesh() == right.mesh() == 1)
        envelopes = [world.envelope(seq) for seq in range(1, 51)]

        await publish(left, *envelopes)

        await world.until(lambda: len(right.delivered) == 50)
        assert sorted(right.delivered) == sorted(envelopes)
        assert middle.judged == right.judged == 50
        assert left.delivered == []
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_rejected_message_goes_no_further(world: Any) -> None:
    """A message judged REJECT is neither delivered nor forwarded, and its sender is told on."""

    async def reject(batch: list[Validate]) -> list[VerdictKind]:
        return [VerdictKind.REJECT] * len(batch)

    async with trio.open_nursery() as nursery:
        left = await world.relay(nursery, "left")
        middle = await world.relay(nursery, "middle", peers=(left.address,), validate=reject)
        right = await world.relay(nursery, "right", peers=(middle.address,))
        await world.until(lambda: middle.mesh() == 2)

        await publish(left, world.envelope(1))

        await world.until(lambda: middle.router.stats().rejected == 1)
        assert middle.driver.stats().router.peers[left.host.peer_id].rejected == 1
        assert middle.delivered == right.delivered == []
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_burst_arrives_whole(world: Any) -> None:
    """Five thousand messages published at once all arrive, in far fewer writes (20-58)."""
    async with trio.open_nursery() as nursery:
        one = await world.relay(nursery, "one", publish_batch_max=50)
        two = await world.relay(nursery, "two", peers=(one.address,))
        await world.meshed(one, two)
        envelopes = [world.envelope(seq) for seq in range(5000)]

        await publish(one, *envelopes)

        await world.until(lambda: len(two.delivered) == 5000)
        stats = two.driver.stats()
        assert set(two.delivered) == set(envelopes)
        assert stats.driver.inbox_overflows == 0
        assert stats.peers[one.host.peer_id].frames_in < 1000
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_answer_ignore_over_inbox(world: Any) -> None:
    """Messages beyond `inbox_max` are answered with IGNORE; the others get their verdict."""
    release = trio.Event()

    async def wait(batch: list[Validate]) -> list[VerdictKind]:
        await release.wait()
        return [VerdictKind.ACCEPT] * len(batch)

    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", validate=wait, inbox_max=20, batch_max=10)
        async with raw_pubsub_peer(relay.address, world.seed("raw")) as peer:
            await world.until(lambda: relay.router.stats().peers)

            await peer.send_rpc(rpc_with(*(world.envelope(seq) for seq in range(100))))

            await world.until(lambda: relay.router.stats().ignored == 80)
            assert relay.driver.counters.inbox_overflows == 80
            release.set()
            await world.until(lambda: len(relay.delivered) == 20)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_stop_reading_from_peer_with_pending_messages(world: Any) -> None:
    """While a peer's messages wait for verdicts no more is read from it, so none is lost."""
    release = trio.Event()

    async def wait(batch: list[Validate]) -> list[VerdictKind]:
        await release.wait()
        return [VerdictKind.ACCEPT] * len(batch)

    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", validate=wait, peer_pending_max=16)
        async with raw_pubsub_peer(relay.address, world.seed("raw")) as peer:
            await world.until(lambda: relay.router.stats().peers)

            async def push() -> None:
                for seq in range(2000):
                    await peer.send_rpc(rpc_with(world.envelope(seq, size=2000)))

            nursery.start_soon(push)
            await world.until(lambda: relay.router.stats().received > 16)
            assert relay.router.stats().received < 200
            release.set()
            await world.until(lambda: len(relay.delivered) == 2000)
            assert relay.driver.counters.inbox_overflows == 0
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_failing_validation_is_ignore(world: Any) -> None:
    """When `validate` fails or miscounts the batch is answered with IGNORE and gossip goes on."""
    faults = 2

    async def shaky(batch: list[Validate]) -> list[VerdictKind]:
        nonlocal faults
        faults -= 1
        if faults == 1:
            raise OSError("disk trouble")
        return [] if faults == 0 else [VerdictKind.ACCEPT] * len(batch)

    async with trio.open_nursery() as nursery:
        one = await world.relay(nursery, "one")
        two = await world.relay(nursery, "two", peers=(one.address,), validate=shaky)
        await world.meshed(one, two)

        for seq in range(1, 4):
            await publish(one, world.envelope(seq))
            await world.until(lambda seq=seq: two.driver.counters.batches == seq)

        await world.until(lambda: two.delivered == [world.envelope(3)])
        assert two.driver.counters.validate_errors == 2
        assert two.router.stats().ignored == 2
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_redial_vanished_peer(world: Any) -> None:
    """A configured peer that goes away is dialled again and gossip resumes (20-05)."""
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as first:
            one = await world.relay(first, "one")
            port = one.address.split("/")[4]
            two = await world.relay(nursery, "two", peers=(one.address,), redial_min_s=0.05)
            await world.meshed(one, two)
            first.cancel_scope.cancel()
        await world.until(lambda: two.mesh() == 0 and not two.host.connected())
        await world.until(lambda: two.driver.counters.dials_failed > 0)

        again = await world.relay(nursery, "one", listen=(f"/ip4/127.0.0.1/tcp/{port}",))
        await world.meshed(again, two)
        await publish(again, world.envelope(1))

        await world.until(lambda: two.delivered == [world.envelope(1)])
        assert two.driver.counters.dials == 2
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_peer_that_restarted_is_heard_at_once(world: Any) -> None:
    """A peer that is back before its old connection is known to be dead gossips at once."""
    async with trio.open_nursery() as nursery:
        one = await world.relay(nursery, "one")
        proxy = await world.proxy(nursery, one.address)
        before = await world.relay(nursery, "two", peers=(proxy.address,))
        await world.meshed(one, before)
        proxy.freeze()

        after = await world.relay(nursery, "two", peers=(one.address,))
        await world.meshed(after, one)
        await publish(one, world.envelope(1))
        await publish(after, world.envelope(2))

        await world.until(lambda: after.delivered == [world.envelope(1)])
        await world.until(lambda: one.delivered == [world.envelope(2)])
        nursery.cancel_scope.cancel()


async def test_redial_at_growing_intervals(world: Any) -> None:
    """A peer that stays away is dialled less and less often, and our own address never."""
    async with trio.open_nursery() as nursery:
        stranger = await world.host(nursery, "stranger")
        gone = f"/ip4/127.0.0.1/tcp/1/p2p/{stranger.peer_text}"
        own = f"/ip4/127.0.0.1/tcp/1/p2p/{RelayHost(world.seed('relay'), world.config()).peer_text}"

        relay = await world.relay(
            nursery, "relay", peers=(gone, own), redial_min_s=0.02, redial_max_s=0.04
        )

        await world.until(lambda: relay.driver.counters.dials_failed >= 4)
        assert relay.driver.counters.dials == 0
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_drop_stalled_peer(world: Any) -> None:
    """A peer that takes nothing is dropped, and another one gets everything meanwhile (20-58)."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", write_stall_s=2.5)
        good = await world.relay(nursery, "good", peers=(relay.address,))
        async with raw_pubsub_peer(
            relay.address, world.seed("deaf"), topics=[world.topic], deaf=True
        ) as deaf:
            await world.until(lambda: good.mesh() == 1 and len(relay.router.stats().peers) == 2)
            big = [world.envelope(seq, size=8000) for seq in range(400)]

            with trio.fail_after(10):
                for start in range(0, 400, 50):
                    await publish(relay, *big[start : start + 50])

            await world.until(lambda: len(good.delivered) == 400)
            await world.until(lambda: relay.driver.counters.dropped_stalled == 1)
            await deaf.wait_ended()
            assert relay.host.connected() == (good.host.peer_id,)
        nursery.cancel_scope.cancel()


async def test_a_peer_that_does_not_keep_up_is_spared_before_it_is_cut(world: Any) -> None:
    """It leaves the mesh, little waits for it, and only silence drops it (20-58, G39)."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(
            nursery,
            "relay",
            queue_bytes_max=1024 * 1024,
            patience_s=0.05,
            slow_after_s=0.2,
            write_stall_s=6.0,
        )
        async with raw_pubsub_peer(
            relay.address, world.seed("deaf"), topics=[world.topic], deaf=True
        ) as deaf:
            await world.until(lambda: relay.router.stats().peers)
            big = [world.envelope(seq, size=8000) for seq in range(500)]

            for data in big:
                await publish(relay, data)

            await world.until(lambda: relay.router.stats().slow == 1)
            link = relay.driver.stats().peers[deaf.host.peer_id]
            assert link.given_up > 0
            assert link.queued_bytes <= relay.host.config.slow_bytes + 64 * 1024
            assert relay.mesh() == 0
            assert relay.host.connected() == (deaf.host.peer_id,)
            await world.until(lambda: relay.driver.counters.dropped_stalled == 1)
            await world.until(lambda: not relay.host.connected())
            assert relay.driver.stats().bans == {}
        nursery.cancel_scope.cancel()


async def test_a_node_whose_own_link_is_slow_says_so_and_takes_part_again(
    world: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its peers send it nothing unasked, and it catches up until it lacks nothing (G41)."""
    caplog.set_level(logging.INFO, logger="luxrelay.net")
    async with trio.open_nursery() as nursery:
        one = await world.relay(nursery, "one")
        two = await world.relay(nursery, "two", peers=(one.address,), pull_hold_s=0.3)
        await world.until(lambda: one.mesh() == two.mesh() == 1)
        waits_s = 1.0
        two.driver.level = lambda: False
        monkeypatch.setattr(two.host, "waits_s", lambda: waits_s)

        big = world.envelope(1, size=8000)  # or hello and the rest would be most of the traffic
        await publish(one, big)
        await world.until(lambda: one.router.stats().pulling_peers == 1)
        assert two.router.stats().pulling
        assert one.mesh() == two.mesh() == 0
        await world.until(lambda: two.delivered == [big])
        await publish(one, world.envelope(2))
        await world.until(lambda: one.router.stats().slow_spared == 1)

        waits_s = 0.0
        await world.until(lambda: not two.router.stats().pulling)
        await world.until(lambda: one.mesh() == two.mesh() == 1, seconds=60)
        await publish(one, world.envelope(3))
        await world.until(lambda: world.envelope(3) in two.delivered)
        said = [each.message for each in caplog.records if "own link" in each.message]
        assert said == ["own link is slow: catching up", "own link is no longer slow"]
        nursery.cancel_scope.cancel()


async def test_packets_of_a_peer_that_acknowledges_nothing_wait(world: Any) -> None:
    """Round trips over loopback are short; a host without connections waits for nothing."""
    async with trio.open_nursery() as nursery:
        one = await world.relay(nursery, "one")
        assert one.host.waits_s() == 0
        two = await world.relay(nursery, "two", peers=(one.address,))
        await world.until(lambda: one.mesh() == two.mesh() == 1)
        assert one.host.waits_s() < 0.5
        assert one.host.bytes_moved > 0
        nursery.cancel_scope.cancel()


HOSTILE_FRAMES = {
    "too long": b"\xff\xff\xff\x7f",
    "endless length": b"\xff" * 12,
    "longer than needed": b"\x80\x00",
    "many empty ones": bytes(100),
}


@pytest.mark.parametrize("name", sorted(HOSTILE_FRAMES))
@pytest.mark.slow
async def test_survive_hostile_frames(world: Any, name: str) -> None:
    """Bytes that are no frame reset the stream and are counted; gossip goes on."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        async with raw_pubsub_peer(relay.address, world.seed("raw")) as peer:
            await world.until(lambda: relay.router.stats().peers)

            await peer.send_raw(HOSTILE_FRAMES[name])

            await peer.wait_ended()
            assert relay.driver.counters.frame_errors == 1
            assert relay.driver.stats().peers[peer.host.peer_id].frame_errors == 1
            stream = await peer.open_stream()
            await stream.send_all(b"\x00")
            await world.until(lambda: relay.host.connected() == (peer.host.peer_id,))
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_survive_hostile_rpcs(world: Any) -> None:
    """Frames that are no RPC are counted against the peer and change nothing else."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        async with raw_pubsub_peer(relay.address, world.seed("raw")) as peer:
            await world.until(lambda: relay.router.stats().peers)

            for data in (b"\xff" * 50, b"\x0a\xff\xff\xff\x0f", bytes(1000), b"\x12\x02\x12\x00"):
                await peer.send_rpc(data)
            await peer.send_rpc(rpc_with(world.envelope(1)))

            await world.until(lambda: relay.delivered == [world.envelope(1)])
            assert relay.router.stats().malformed >= 2
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_refuse_surplus_gossip_streams(world: Any) -> None:
    """A peer may open `gossip_streams_max` streams; one more is reset, the first go on."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", gossip_streams_max=2)
        async with raw_pubsub_peer(relay.address, world.seed("raw")) as peer:
            await world.until(lambda: relay.router.stats().peers)
            second = await peer.open_stream()

            with contextlib.suppress(NetError):
                third = await peer.open_stream()
                assert await third.receive_some() == b""

            assert relay.driver.counters.streams_refused == 1
            await peer.send_rpc(rpc_with(world.envelope(1)))
            frame = rpc_with(world.envelope(2))
            await second.send_all(encode_frame(frame))
            await world.until(lambda: len(relay.delivered) == 2)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_second_connection_leaves_first_alone(world: Any) -> None:
    """Two relays that dialled each other keep gossiping when one of two connections ends."""
    async with trio.open_nursery() as nursery:
        one = await world.relay(nursery, "one")
        two = await world.relay(nursery, "two")
        async with trio.open_nursery() as dials:
            dials.start_soon(one.driver.connect, two.address)
            dials.start_soon(two.driver.connect, one.address)
        await world.meshed(one, two)
        connections = one.host._swarm.get_connections()
        if len(connections) == 2:
            await connections[0].close()

        await world.meshed(one, two)
        await publish(one, world.envelope(1))
        await publish(two, world.envelope(2))

        await world.until(lambda: two.delivered == [world.envelope(1)])
        await world.until(lambda: one.delivered == [world.envelope(2)])
        nursery.cancel_scope.cancel()


async def test_router_disconnects(world: Any) -> None:
    """When the router wants a peer gone its connection is closed."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        async with raw_pubsub_peer(relay.address, world.seed("raw")) as peer:
            await world.until(lambda: relay.router.stats().peers)
            relay.driver._do_disconnect(Disconnect(peer=peer.host.peer_id, reason="a test"))

            await peer.wait_ended()
            await world.until(lambda: not relay.host.connected())
            await world.until(lambda: not relay.router.stats().peers)
            assert relay.driver.counters.disconnects == 1
        nursery.cancel_scope.cancel()


async def test_greet_peer_that_opens_its_stream_anew(world: Any) -> None:
    """A peer that opens another stream may have forgotten us, as go does; it is told all again."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        async with raw_pubsub_peer(relay.address, world.seed("raw"), topics=[world.topic]) as peer:
            await world.until(lambda: min(heard(peer, world.topic)) >= 1)
            subscriptions, grafts = heard(peer, world.topic)
            relay.driver._links[peer.host.peer_id]._greeting_at = float("-inf")  # no pause now

            again = await peer.open_stream()
            await again.send_all(encode_frame(b"\x1a\x00"))  # an empty control message

            await world.until(lambda: heard(peer, world.topic)[0] > subscriptions)
            await world.until(lambda: heard(peer, world.topic)[1] > grafts)
        nursery.cancel_scope.cancel()


def heard(peer: Any, topic: str) -> tuple[int, int]:
    """How often the peer was told that we follow the topic, and that it is in our mesh."""
    rpcs = [decode_rpc(frame, GossipParams()) for frame in peer.received]
    told = [entry for rpc in rpcs for entry in rpc.subscriptions]
    return told.count((True, topic)), sum(rpc.graft.count(topic) for rpc in rpcs)


async def test_leave_peer_without_gossip_alone(world: Any) -> None:
    """A libp2p peer that does not speak meshsub stays connected and the router never sees it."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", stream_attempts_max=1)
        plain = await world.host(nursery, "plain")

        await plain.dial(relay.address)

        await world.until(lambda: relay.driver.stats().peers)
        await world.until(lambda: relay.host.stats().mux.streams_refused == 0)
        assert relay.router.stats().peers == {}
        assert relay.host.connected() == (plain.peer_id,)
        nursery.cancel_scope.cancel()


async def test_connect_errors(world: Any) -> None:
    """`connect` and the configuration say clearly which address cannot be used."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        stranger = await world.host(nursery, "stranger")
        gone = f"/ip4/127.0.0.1/tcp/1/p2p/{stranger.peer_text}"

        with pytest.raises(NetError):
            await relay.driver.connect(gone)
        with pytest.raises(AddressError):
            await relay.driver.connect("nonsense")
        with pytest.raises(TopicError):
            await relay.driver.publish([("no topic", b"")])
        with pytest.raises(AddressError, match="append /p2p/"):
            await world.relay(nursery, "other", peers=("/ip4/127.0.0.1/tcp/9640",))
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_stats_count_bytes(world: Any) -> None:
    """The snapshot shows connections, bytes on the wire and the frames of each peer (20-43)."""
    async with trio.open_nursery() as nursery:
        one = await world.relay(nursery, "one")
        two = await world.relay(nursery, "two", peers=(one.address,))
        await world.meshed(one, two)
        await publish(one, *(world.envelope(seq) for seq in range(10)))
        await world.until(lambda: len(two.delivered) == 10)

        stats, theirs = one.driver.stats(), two.driver.stats()

        assert (stats.host.inbound, stats.host.outbound) == (1, 0)
        assert (theirs.host.inbound, theirs.host.outbound) == (0, 1)
        assert stats.host.bytes_out > 3400
        assert theirs.host.bytes_in > 3400
        link = stats.peers[two.host.peer_id]
        assert link.frames_out > 1
        assert link.bytes_out > 3400
        assert theirs.peers[one.host.peer_id].bytes_in > 3400
        nursery.cancel_scope.cancel()
