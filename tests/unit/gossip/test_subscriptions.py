"""What applications want."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from luxrelay.bus import MsgHeader, NamespaceId, SigningKey, lane, sha3_commitment
from luxrelay.errors import GossipArgumentError, TopicError
from luxrelay.gossip import (
    BlobAvailabilityHint,
    BlobNotice,
    BlockAnnouncement,
    Deliver,
    HeaderAnnouncement,
    HeaderNotice,
    MessageType,
    Notice,
    RelayMessage,
    SubscriptionOptions,
    SubscriptionParams,
    Subscriptions,
    TopicKind,
    encode_header_with_blob,
    global_topic,
    relay_message_id,
    topic_for_namespace,
)
from luxrelay.testing import signing_key

Kit = Any

NS = NamespaceId(b"\x41" * 20)
OTHER = NamespaceId(b"\x42" * 20)
TOPIC = topic_for_namespace("net", NS)
GLOBAL = global_topic("net", TopicKind.HEADERS_GLOBAL)
BLOBS = global_topic("net", TopicKind.BLOBS_AVAILABLE)
ALICE, BOB = signing_key(number=1), signing_key(number=2)


class Topics:
    """Topics that are followed, with a bound like the router's."""

    def __init__(self, *followed: str, room: int = 100) -> None:
        self.followed = dict.fromkeys(followed)
        self.room = room

    def follows(self, topic: str) -> bool:
        """Return True when it is followed."""
        return topic in self.followed

    def subscribe(self, topic: str, _now: float) -> None:
        """Follow it, or raise."""
        if len(self.followed) >= self.room:
            raise GossipArgumentError("too many", where="subscribe")
        self.followed[topic] = None

    def unsubscribe(self, topic: str, _now: float) -> None:
        """Follow it no longer."""
        del self.followed[topic]


def header(
    seq: int = 1, *, key: SigningKey = ALICE, namespace: bytes = NS, blob: bytes = b""
) -> MsgHeader:
    """Return a signed header."""
    bare = MsgHeader(
        namespace_id=NamespaceId(namespace),
        seq=seq,
        timestamp=1_700_000_000_000,
        blob_len=len(blob),
        blob_commitment=sha3_commitment(blob),
        policy_hash=bytes(32),
        fee_proof=b"\x00",
    )
    return key.sign_header(bare)


def deliver(found: MsgHeader, topic: str = TOPIC, *, inline: bytes | None = None) -> Deliver:
    """Return the delivery of a header, with its blob or without."""
    announcement = HeaderAnnouncement(header_bytes=found.encode(), source=b"s", timestamp_ms=1)
    if inline is None:
        message = RelayMessage(type=MessageType.HEADER, topic=topic, payload=announcement.encode())
    else:
        message = RelayMessage(
            type=MessageType.HEADER_WITH_BLOB,
            topic=topic,
            payload=encode_header_with_blob(announcement, inline),
        )
    return Deliver(topic=topic, data=message.encode(), message_id=relay_message_id(message))


def hint_of(blob: bytes) -> Deliver:
    """Return the delivery of a hint."""
    hint = BlobAvailabilityHint(
        commitment=sha3_commitment(blob), blob_len=len(blob), providers=(b"p",), expires_at_ms=9
    )
    message = RelayMessage(type=MessageType.BLOB_HINT, topic=BLOBS, payload=hint.encode())
    return Deliver(topic=BLOBS, data=message.encode(), message_id=relay_message_id(message))


def kinds(notices: list[Notice]) -> list[type[Notice]]:
    """Return what the notices are."""
    return [type(notice) for notice in notices]


def test_headers_of_a_followed_namespace_are_reported() -> None:
    """OnHeader: the header, its blob when it came along, its id (20-38)."""
    subscriptions = Subscriptions("net", Topics())
    subscriptions.subscribe(NS, 0.0)
    found = header(blob=b"hello")

    (notice,) = subscriptions.delivered(deliver(found, inline=b"hello"), 0.0)

    assert isinstance(notice, HeaderNotice)
    assert (notice.namespace_id, notice.header, notice.blob) == (NS, found, b"hello")
    assert notice.message_id == hashlib.sha3_256(NS + (1).to_bytes(8)).digest()
    foreign = deliver(header(namespace=OTHER), topic_for_namespace("net", OTHER))
    assert subscriptions.delivered(foreign, 0.0) == []
    assert (subscriptions.stats().headers, subscriptions.stats().foreign) == (1, 1)


@pytest.mark.parametrize("by", ["key", "address"])
def test_other_senders_are_filtered(by: str) -> None:
    """SenderFilter takes keys and addresses; what it stops is counted (20-39, G27)."""
    wanted = ALICE.public_field if by == "key" else header().sender_address
    subscriptions = Subscriptions("net", Topics())
    subscriptions.subscribe(NS, 0.0, SubscriptionOptions(sender_filter=frozenset({wanted})))

    assert len(subscriptions.delivered(deliver(header()), 0.0)) == 1
    assert subscriptions.delivered(deliver(header(key=BOB)), 0.0) == []
    assert subscriptions.stats().filtered == 1


def test_a_filter_does_not_stop_forwarding(kit: Kit) -> None:
    """Two hops: the middle one wants nobody's messages, the far one gets them all (20-39, G27)."""
    world = kit.World(3)
    world.connect(0, 1)
    world.connect(1, 2)
    nobody = SubscriptionOptions(sender_filter=frozenset({b"nobody"}))
    middle = Subscriptions("net", world.routers[1])
    middle.subscribe(NS, world.now, nobody)
    for node in (0, 2):
        world.routers[node].subscribe(TOPIC, world.now)
    world.run(1.0)
    for seq in range(1, 6):
        world.publish(0, TOPIC, deliver(header(seq)).data)

    notices = [n for d in world.delivered[1] for n in middle.delivered(d, world.now)]

    assert (len(world.delivered[1]), notices, middle.stats().filtered) == (5, [], 5)
    assert len(world.delivered[2]) == 5


def test_a_rate_limits_notices() -> None:
    """MaxRate headers a second, counted beyond; 0 is no limit (20-40)."""
    slow, free = Subscriptions("net", Topics()), Subscriptions("net", Topics())
    slow.subscribe(NS, 0.0, SubscriptionOptions(max_rate=3))
    free.subscribe(NS, 0.0)

    told = [
        sum(len(subscriptions.delivered(deliver(header(n)), now)) for n in range(1, 11))
        for subscriptions, now in ((slow, 0.0), (slow, 1.0), (slow, 0.5), (slow, 60.0), (free, 0.0))
    ]

    assert told == [3, 3, 0, 3, 10]
    assert slow.stats().throttled == 31
    with pytest.raises(GossipArgumentError, match="max_rate"):
        SubscriptionOptions(max_rate=-1)


def test_hints_of_reported_headers_are_reported() -> None:
    """OnBlob: before or after the header, for who wants it, not when the blob is there (20-38)."""
    subscriptions = Subscriptions("net", Topics())
    subscriptions.subscribe(NS, 0.0, SubscriptionOptions(want_blobs=True))
    subscriptions.subscribe(OTHER, 0.0)

    first = subscriptions.delivered(deliver(header(1, blob=b"a" * 99)), 0.0)
    then = subscriptions.delivered(hint_of(b"a" * 99), 0.0)
    early = subscriptions.delivered(hint_of(b"b" * 99), 0.0)
    late = subscriptions.delivered(deliver(header(2, blob=b"b" * 99)), 0.0)
    inline = subscriptions.delivered(deliver(header(3, blob=b"c"), inline=b"c"), 0.0)
    hint = subscriptions.delivered(hint_of(b"c"), 0.0)
    elsewhere = deliver(header(1, namespace=OTHER, blob=b"d"), topic_for_namespace("net", OTHER))

    assert (kinds(first), kinds(then)) == ([HeaderNotice], [BlobNotice])
    assert (kinds(early), kinds(late)) == ([], [HeaderNotice, BlobNotice])
    assert (kinds(inline), kinds(hint)) == ([HeaderNotice], [])
    assert kinds(subscriptions.delivered(elsewhere, 0.0)) == [HeaderNotice]
    assert subscriptions.delivered(hint_of(b"d"), 0.0) == []
    assert subscriptions.stats().blobs == 2


def test_blobs_of_filtered_senders_are_not_reported() -> None:
    """A hint follows the header's filter (20-38, 20-39)."""
    subscriptions = Subscriptions("net", Topics())
    options = SubscriptionOptions(want_blobs=True, sender_filter=frozenset({b"nobody"}))
    subscriptions.subscribe(NS, 0.0, options)

    subscriptions.delivered(deliver(header(1, blob=b"a" * 99)), 0.0)

    assert subscriptions.delivered(hint_of(b"a" * 99), 0.0) == []


def test_subscribing_joins_and_leaves_topics() -> None:
    """Twice is once; leaving leaves what was joined for it, not what was there before (20-41)."""
    topics = Topics(TOPIC)
    subscriptions = Subscriptions("net", topics)
    blobs = SubscriptionOptions(want_blobs=True)

    subscriptions.subscribe(NS, 0.0, blobs)
    subscriptions.subscribe(NS, 0.0, blobs)
    subscriptions.subscribe(OTHER, 0.0, blobs)
    assert set(topics.followed) == {TOPIC, BLOBS, topic_for_namespace("net", OTHER)}
    assert subscriptions.stats().active == 2
    subscriptions.unsubscribe(NS, 0.0)
    subscriptions.unsubscribe(NS, 0.0)
    assert set(topics.followed) == {TOPIC, BLOBS, topic_for_namespace("net", OTHER)}
    subscriptions.unsubscribe(OTHER, 0.0)

    assert set(topics.followed) == {TOPIC}
    assert subscriptions.delivered(deliver(header()), 0.0) == []


def test_options_can_be_changed() -> None:
    """A second subscription replaces the options and leaves the hints when nobody wants them."""
    topics = Topics()
    subscriptions = Subscriptions("net", topics)
    subscriptions.subscribe(NS, 0.0, SubscriptionOptions(want_blobs=True))

    subscriptions.subscribe(NS, 0.0, SubscriptionOptions(max_rate=1))

    assert set(topics.followed) == {TOPIC}
    assert [len(subscriptions.delivered(deliver(header(n)), 0.0)) for n in (1, 2)] == [1, 0]


def test_a_failed_subscription_changes_nothing() -> None:
    """An error on the second topic gives the first one back (20-41, G27)."""
    topics = Topics(room=1)
    subscriptions = Subscriptions("net", topics)

    with pytest.raises(GossipArgumentError):
        subscriptions.subscribe(NS, 0.0, SubscriptionOptions(want_blobs=True))
    with pytest.raises(GossipArgumentError):
        subscriptions.subscribe(NamespaceId(b"short"), 0.0)

    assert (topics.followed, subscriptions.stats().active) == ({}, 0)
    subscriptions.subscribe(NS, 0.0)
    assert set(topics.followed) == {TOPIC}


def test_lanes_belong_to_their_parent() -> None:
    """On the parent's topic and on headers/global; foreign lanes belong to nobody (J6, G2)."""
    subscriptions = Subscriptions("net", Topics())
    subscriptions.subscribe(NS, 0.0)
    own = header(1, namespace=lane(NS, ALICE.public_field))
    foreign = header(1, namespace=lane(OTHER, ALICE.public_field))

    for topic in (TOPIC, GLOBAL, GLOBAL):
        (notice,) = subscriptions.delivered(deliver(own, topic), 0.0)
        assert notice.namespace_id == NS
    assert len(subscriptions.delivered(deliver(header(), GLOBAL), 0.0)) == 1
    assert subscriptions.delivered(deliver(foreign, GLOBAL), 0.0) == []
    subscriptions.subscribe(OTHER, 0.0)
    assert len(subscriptions.delivered(deliver(foreign, GLOBAL), 0.0)) == 1


def test_what_is_remembered_is_bounded() -> None:
    """Subscriptions, awaited blobs, hints and lanes each have their bound (20-58)."""
    params = SubscriptionParams(
        subscriptions_max=2, blobs_awaited_max=3, hints_kept_max=3, lanes_known_max=3
    )
    subscriptions = Subscriptions("net", Topics(), params)
    subscriptions.subscribe(NS, 0.0, SubscriptionOptions(want_blobs=True))
    subscriptions.subscribe(OTHER, 0.0)
    with pytest.raises(GossipArgumentError, match="2 namespaces"):
        subscriptions.subscribe(NamespaceId(b"\x43" * 20), 0.0)
    subscriptions.subscribe(OTHER, 0.0)

    for number in range(1, 11):
        subscriptions.delivered(deliver(header(number, blob=b"%d" % number)), 0.0)
        subscriptions.delivered(hint_of(b"x%d" % number), 0.0)
        subscriptions.delivered(deliver(header(1, namespace=bytes([number]) * 20), GLOBAL), 0.0)

    assert len(subscriptions._awaited) == len(subscriptions._hints) == 3
    assert len(subscriptions._parents) == 3
    assert subscriptions.delivered(hint_of(b"1"), 0.0) == []
    assert len(subscriptions.delivered(hint_of(b"10"), 0.0)) == 1
    with pytest.raises(GossipArgumentError, match="hints_kept_max"):
        SubscriptionParams(hints_kept_max=0)


def test_blocks_and_rubbish_are_no_notices() -> None:
    """Blocks are the finality plug-in's; a payload that cannot be read is counted."""
    subscriptions = Subscriptions("net", Topics())
    subscriptions.subscribe(NS, 0.0)
    topic = global_topic("net", TopicKind.BLOCKS_FINALIZED)
    block = BlockAnnouncement(block_hash=b"h" * 32, height=1, proposer=b"p", timestamp_ms=1)
    message = RelayMessage(type=MessageType.BLOCK, topic=topic, payload=block.encode())

    for data in (message.encode(), b"rubbish", deliver(header()).data[:-40]):
        found = Deliver(topic=topic, data=data, message_id=relay_message_id(message))
        assert subscriptions.delivered(found, 0.0) == []

    assert (subscriptions.stats().foreign, subscriptions.stats().unreadable) == (1, 2)


def test_a_router_knows_what_it_follows(kit: Kit) -> None:
    """In either spelling; another application's topic is not followed (20-41, G5)."""
    desk = kit.Desk()
    desk.router.subscribe(TOPIC, desk.now)

    assert desk.router.follows(TOPIC)
    assert desk.router.follows(TOPIC.replace("namespace/", "namespace/0x"))
    assert not desk.router.follows("chat")
    with pytest.raises(TopicError):
        desk.router.subscribe("chat", desk.now)
