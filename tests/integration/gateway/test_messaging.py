"""Channels over a node: through its gateway, and in its own process."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import anyio
import anyio.to_thread
import pytest
import trio

from luxrelay.bus import SigningKey, lane, sha3_commitment
from luxrelay.bus.policy import default_policy
from luxrelay.channel import (
    ChannelEvent,
    Counting,
    MessageDispatched,
    MessageReceived,
    MessageSent,
    Messaging,
    RateLimitConfig,
    SegmentationConfig,
    create_reliable_channel,
)
from luxrelay.channel.runtime.lanes import BATCH_BYTES_MAX, BATCH_MAX
from luxrelay.channel.runtime.remote import RemoteMessaging
from luxrelay.client import NO_RETRY, AsyncRelayClient
from luxrelay.errors import ChannelArgumentError, MessagingError
from luxrelay.node.messaging import WAITING_MAX, MessagingParts, NodeMessaging, _Notes
from luxrelay.node.stages.deliver import Note
from luxrelay.store import NamespaceQuery

from .conftest import PARENT, TOPIC, Stand, now_ms

pytestmark = pytest.mark.slow


def local(stand: Stand) -> NodeMessaging:
    """Return messaging inside the stand's process."""
    return NodeMessaging(
        MessagingParts(
            store=stand.store,
            feed=stand.feed,
            publish=stand.doors.publish,
            key=SigningKey.generate(),
            carries=PARENT.__eq__,
            policy_hash={PARENT: default_policy(PARENT).policy_hash}.get,
            blob=lambda commitment: stand.store.get_blob(commitment, now_ms()),
            clock_ms=now_ms,
        )
    )


async def keeps_its_promise(one: Messaging, other: Messaging) -> None:
    """Hold an adapter to what `Messaging` says."""
    began_ms = now_ms()
    assert isinstance(one, Messaging)
    async with one.subscribe(TOPIC) as first, one.subscribe(TOPIC) as second:
        receipt = await other.send(TOPIC, b"hello")
        await one.send(TOPIC, b"mine")
        for subscription in (first, second):
            got = [await anext(subscription), await anext(subscription)]
            assert [each.payload for each in got] == [b"hello", b"mine"]
            assert got[0].hint == receipt.hint
    assert receipt.stored
    assert await one.fetch(TOPIC, receipt.hint) == b"hello"
    assert await one.fetch(TOPIC, bytes(32)) is None
    for number in range(20):
        await other.send(TOPIC, b"%d" % number)
    async with one.subscribe(TOPIC, since_ms=began_ms) as past:
        await other.send(TOPIC, b"last")
        found = [await anext(past) for _ in range(22)]
    assert {b"hello", b"mine", b"0", b"19"} <= {each.payload for each in found}
    assert sha3_commitment(b"hello") == receipt.hint
    largest = bytes(one.payload_bytes_max)
    assert (await one.send(TOPIC, largest)).stored
    for wrong in (b"", largest + b"x"):
        with pytest.raises(MessagingError) as caught:
            await one.send(TOPIC, wrong)
        assert caught.value.code == "channel.refused"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_remote_messaging_keeps_its_promise(stand: Stand, backend: str) -> None:
    """Through a gateway, on both loops."""
    token = stand.token("read", "publish")

    async def use() -> None:
        async with AsyncRelayClient(stand.address, token=token) as client:
            one, other = (RemoteMessaging(client, SigningKey.generate()) for _ in range(2))
            await keeps_its_promise(one, other)

    anyio.run(use, backend=backend)


def test_node_messaging_keeps_its_promise(stand: Stand) -> None:
    """Inside the node's process."""
    trio.from_thread.run(keeps_its_promise, local(stand), local(stand), trio_token=stand._token)


def test_remote_messaging_says_whether_trying_again_helps(stand: Stand) -> None:
    """A missing scope never helps itself; an unknown namespace is refused; a node may come back."""
    reader = stand.token("read")

    async def code(address: str, token: str, topic: str) -> str:
        async with AsyncRelayClient(address, token=token) as client:
            messaging = RemoteMessaging(client, SigningKey.generate(), retry=NO_RETRY)
            with pytest.raises(MessagingError) as caught:
                await messaging.send(topic, b"x")
            return caught.value.code

    assert anyio.run(code, stand.address, reader, TOPIC) == "channel.refused"
    both = stand.token("read", "publish")
    assert anyio.run(code, stand.address, both, "/nowhere") == "channel.messaging"
    assert anyio.run(code, "127.0.0.1:1", both, TOPIC) == "channel.messaging"


def test_notes_of_a_node_subscriber_are_bounded(stand: Stand) -> None:
    """A subscriber that does not read has notes dropped, and counted, not kept."""

    async def overflow() -> int:
        messaging = local(stand)
        notes = _Notes(messaging)
        note = Note(namespace_id=PARENT, parent=PARENT, seq=1, content_id=bytes(32))  # type: ignore[arg-type]
        for _ in range(WAITING_MAX + 3):
            notes.note(note)
        assert len(await notes.next()) <= WAITING_MAX
        return messaging.dropped

    assert trio.from_thread.run(overflow, trio_token=stand._token) == 3


@dataclass(slots=True)
class Party:
    """One participant of the conversation."""

    name: str
    says: bytes
    hears: bytes
    ready: threading.Event = field(default_factory=threading.Event)
    heard: threading.Event = field(default_factory=threading.Event)


async def converse(messaging: Messaging, own: Party, other: Party) -> None:
    """Send a payload on a reliable channel and wait until both have the other's."""
    segments = SegmentationConfig(segment_size_bytes=16 * 1024)
    with anyio.fail_after(60):
        async with create_reliable_channel(
            messaging, "room", TOPIC, own.name, segmentation_config=segments
        ) as channel:
            own.ready.set()
            await anyio.to_thread.run_sync(other.ready.wait, 60)
            await channel.send(own.says)
            async for event in channel.events():
                if isinstance(event, MessageReceived) and event.message == own.hears:
                    own.heard.set()
                    break
            await anyio.to_thread.run_sync(other.heard.wait, 60)


def test_a_reliable_channel_from_a_gateway_into_a_node(stand: Stand) -> None:
    """A large payload goes one way and an answer the other, over both adapters."""
    token = stand.token("read", "publish")
    large, answer = bytes(range(256)) * 1200, b"got it"
    alice, bob = Party("alice", large, answer), Party("bob", answer, large)

    async def remote() -> None:
        async with AsyncRelayClient(stand.address, token=token) as client:
            await converse(RemoteMessaging(client, SigningKey.generate()), alice, bob)

    beside = threading.Thread(target=anyio.run, args=(remote,))
    beside.start()
    trio.from_thread.run(converse, local(stand), bob, alice, trio_token=stand._token)
    beside.join(60)

    assert alice.heard.is_set()
    assert bob.heard.is_set()


def lane_payloads(stand: Stand, key: SigningKey) -> list[tuple[int, bytes]]:
    """Return sequences and payloads of a key's lane as the stand's store has them."""
    query = NamespaceQuery(namespace_id=lane(PARENT, key.public_field), limit=1_000)
    page = stand.store.query(query, now_ms())
    return [(message.seq, message.blob or b"") for message in page.messages]


def test_payloads_that_wait_go_together_and_in_order(stand: Stand) -> None:
    """Forty sends at once need a few calls, and their sequences are those of the sends."""
    token, key = stand.token("read", "publish"), SigningKey.generate()
    payloads = [b"%d" % number for number in range(40)]

    async def use() -> None:
        async with (
            AsyncRelayClient(stand.address, token=token) as client,
            anyio.create_task_group() as tasks,
        ):
            messaging = RemoteMessaging(client, key)
            for payload in payloads:
                tasks.start_soon(messaging.send, TOPIC, payload)

    before = stand.service.stats().public.requests
    anyio.run(use)

    assert sorted(payload for _, payload in lane_payloads(stand, key)) == sorted(payloads)
    assert [seq for seq, _ in lane_payloads(stand, key)] == list(range(1, 41))
    assert stand.service.stats().public.requests - before < 40 // BATCH_MAX + 4


def test_one_call_is_bounded_in_bytes(stand: Stand) -> None:
    """Large payloads that wait are spread over calls."""
    token, key = stand.token("read", "publish"), SigningKey.generate()
    size = 48 * 1024
    count = 2 * BATCH_BYTES_MAX // size

    async def use() -> None:
        async with (
            AsyncRelayClient(stand.address, token=token) as client,
            anyio.create_task_group() as tasks,
        ):
            messaging = RemoteMessaging(client, key)
            for number in range(count):
                tasks.start_soon(messaging.send, TOPIC, bytes([number]) * size)

    before = stand.service.stats().public.requests
    anyio.run(use)

    assert len(lane_payloads(stand, key)) == count
    assert stand.service.stats().public.requests - before >= 2 + count * size // BATCH_BYTES_MAX


def test_a_send_that_is_cancelled_leaves_the_others(stand: Stand) -> None:
    """Whoever waits behind a call that is given up goes with the next one."""
    token, key = stand.token("read", "publish"), SigningKey.generate()
    sent: list[bytes] = []

    async def use() -> None:
        async with AsyncRelayClient(stand.address, token=token) as client:
            messaging = RemoteMessaging(client, key)

            async def send(payload: bytes, scope: anyio.CancelScope) -> None:
                with scope:
                    await messaging.send(TOPIC, payload)
                    sent.append(payload)

            async with anyio.create_task_group() as tasks:
                scopes = [anyio.CancelScope() for _ in range(20)]
                for number, scope in enumerate(scopes):
                    tasks.start_soon(send, b"%d" % number, scope)
                await anyio.wait_all_tasks_blocked()
                for scope in scopes[:10]:
                    scope.cancel()

    anyio.run(use, backend="trio")

    assert {b"%d" % number for number in range(10, 20)} <= set(sent)
    assert set(sent) <= {payload for _, payload in lane_payloads(stand, key)}


def test_a_slot_that_was_taken_meanwhile_is_signed_again(stand: Stand) -> None:
    """The key was used elsewhere since the last call: all goes behind what it wrote there."""
    token, key = stand.token("read", "publish"), SigningKey.generate()

    async def use() -> None:
        async with AsyncRelayClient(stand.address, token=token) as client:
            messaging, elsewhere = (RemoteMessaging(client, key) for _ in range(2))
            await messaging.send(TOPIC, b"one")
            await elsewhere.send(TOPIC, b"two")
            async with anyio.create_task_group() as tasks:
                for payload in (b"three", b"four"):
                    tasks.start_soon(messaging.send, TOPIC, payload)

    anyio.run(use)

    held = [payload for _, payload in lane_payloads(stand, key)]
    assert held[:2] == [b"one", b"two"]
    assert sorted(held[2:]) == [b"four", b"three"]


class _Prover:
    """Stands for a rate limit proof."""

    def prove(self, payload: bytes, epoch: int, nonce: int) -> bytes:
        """Return a proof."""
        return b"%d %d %d" % (len(payload), epoch, nonce)

    def verify(self, payload: bytes, proof: bytes, now_ms: int) -> bool:
        """Return whether it is one."""
        return bool(payload and proof and now_ms)


@pytest.mark.trial
def test_proofs_over_a_node_are_refused_when_the_channel_is_opened(stand: Stand) -> None:
    """Over a gateway and in the node's process alike, and why is said (trial t2)."""
    token = stand.token("read", "publish")
    pace = RateLimitConfig(enabled=True, counting=Counting.EVERY_SEGMENT, proof_provider=_Prover())

    async def refused(layer: Messaging) -> None:
        with pytest.raises(ChannelArgumentError, match="carries no rate limit proofs"):
            await create_reliable_channel(layer, "room", TOPIC, "alice", rate_limit_config=pace)

    async def remote() -> None:
        async with AsyncRelayClient(stand.address, token=token) as client:
            await refused(RemoteMessaging(client, SigningKey.generate()))

    anyio.run(remote)
    trio.from_thread.run(refused, local(stand), trio_token=stand._token)


@pytest.mark.trial
@pytest.mark.parametrize("segment_bytes", [16 * 1024, 102_400])
def test_a_channel_over_one_gateway_tells_its_sender(stand: Stand, segment_bytes: int) -> None:
    """With small segments and with the default ones a line and its `sent` arrive (trial t2)."""
    token = stand.token("read", "publish")
    segments = SegmentationConfig(segment_size_bytes=segment_bytes)

    async def talk() -> list[ChannelEvent]:
        async with AsyncRelayClient(stand.address, token=token) as client:
            layers = [RemoteMessaging(client, SigningKey.generate()) for _ in range(2)]
            alice, bob = [
                await create_reliable_channel(
                    layer, "room", TOPIC, name, segmentation_config=segments
                )
                for layer, name in zip(layers, ("alice", "bob"), strict=True)
            ]
            await alice.send(b"hello")
            told: list[ChannelEvent] = [await anext(aiter(bob.events()))]
            async for event in alice.events():
                told.append(event)
                if isinstance(event, MessageSent):
                    break
            await alice.close()
            await bob.close()
            return told

    told = anyio.run(talk)
    assert isinstance(told[0], MessageReceived)
    assert (told[0].message, told[0].sender_id) == (b"hello", "alice")
    assert [type(event) for event in told[1:]] == [MessageDispatched, MessageSent]


def test_a_topic_that_the_node_does_not_carry_is_refused(stand: Stand) -> None:
    """In the node's process the channel does not open, and what to do is said."""

    async def refused() -> None:
        with pytest.raises(MessagingError, match="does not carry the topic") as caught:
            await create_reliable_channel(local(stand), "room", "/nowhere", "alice")
        assert caught.value.code == "channel.refused"

    trio.from_thread.run(refused, trio_token=stand._token)


def test_a_node_that_stops_ends_what_it_lent(stand: Stand) -> None:
    """A channel in its process breaks, and says that the layer below has closed."""

    async def ends() -> None:
        layer = local(stand)
        channel = await create_reliable_channel(layer, "room", TOPIC, "alice")
        layer.close()
        with pytest.raises(MessagingError, match="has closed"):
            await anext(aiter(channel.events()))
        with pytest.raises(MessagingError, match="has closed"):
            await channel.send(b"x")

    trio.from_thread.run(ends, trio_token=stand._token)
