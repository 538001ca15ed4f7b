"""Our frames against the protobuf code that libp2p itself ships."""

from __future__ import annotations

import random

import pytest
from libp2p.pubsub.pb import rpc_pb2 as theirs

from luxrelay.bus import MessageId, NamespaceId, VerdictKind
from luxrelay.gossip import (
    GossipParams,
    GossipRouter,
    HeaderAnnouncement,
    MessageType,
    PeerId,
    RelayMessage,
    Send,
    Validate,
    relay_message_id,
    topic_for_namespace,
)
from luxrelay.gossip import rpc_pb2 as ours
from luxrelay.gossip.rpc import (
    RpcPacker,
    decode_rpc,
    encode_graft,
    encode_ihave,
    encode_iwant,
    encode_message,
    encode_prune,
    encode_subscription,
)

PARAMS = GossipParams()
EXPERIMENTS = 0x20_0000
"""Above this number libp2p leaves fields to whoever tries something."""
TOPIC = topic_for_namespace("net", NamespaceId(b"\x21" * 20))
IDS = [MessageId(bytes([n]) * 32) for n in range(3)]
MESSAGES = [
    "RPC",
    "Message",
    "ControlMessage",
    "ControlIHave",
    "ControlIWant",
    "ControlGraft",
    "ControlPrune",
    "PeerInfo",
]


@pytest.mark.parametrize("name", MESSAGES)
def test_field_numbers_and_types_are_libp2ps(name: str) -> None:
    """Every field we know has libp2p's number and type, or a number for experiments (G29, G41)."""
    known = {f.number: f.type for f in getattr(theirs, name).DESCRIPTOR.fields}

    for field in getattr(ours, name).DESCRIPTOR.fields:
        if field.number > EXPERIMENTS:
            assert field.number not in known, field.name
        else:
            assert known[field.number] == field.type, field.name


def test_a_peer_passes_over_what_is_ours() -> None:
    """libp2p reads our PRUNE as one that says nothing of catching up (G41)."""
    control = theirs.ControlMessage.FromString(encode_prune("topic", 10, pulls=True))
    (prune,) = control.prune
    assert (prune.topicID, prune.backoff, len(prune.peers)) == ("topic", 10, 0)


def test_libp2p_reads_what_we_write() -> None:
    """Every kind of entry that we encode is the same entry for libp2p (G29)."""
    packer = RpcPacker(PARAMS.rpc_max)
    packer.add_fragment(encode_subscription(TOPIC, subscribe=True))
    packer.add_fragment(encode_subscription("b", subscribe=False))
    packer.add_fragment(encode_message(TOPIC, b"one"))
    packer.add_fragment(encode_message(TOPIC, b"two"))
    for body in (
        *encode_ihave(TOPIC, IDS[:2], PARAMS.rpc_max),
        *encode_iwant(IDS[2:], PARAMS.rpc_max),
        encode_graft(TOPIC),
        encode_prune(TOPIC, 60),
    ):
        packer.add_control(body)
    (frame,) = packer.finish()

    rpc = theirs.RPC.FromString(frame)

    assert [(s.subscribe, s.topicid) for s in rpc.subscriptions] == [(True, TOPIC), (False, "b")]
    assert [(m.data, list(m.topicIDs)) for m in rpc.publish] == [
        (b"one", [TOPIC]),
        (b"two", [TOPIC]),
    ]
    for message in rpc.publish:
        assert {field.name for field, _ in message.ListFields()} == {"data", "topicIDs"}
    control = rpc.control
    assert [(i.topicID, list(i.messageIDs)) for i in control.ihave] == [(TOPIC, IDS[:2])]
    assert [list(i.messageIDs) for i in control.iwant] == [IDS[2:]]
    assert [g.topicID for g in control.graft] == [TOPIC]
    assert [(p.topicID, p.backoff) for p in control.prune] == [(TOPIC, 60)]


def test_we_read_what_libp2p_writes() -> None:
    """Subscriptions, messages and control of libp2p are the same values for us (G29)."""
    frame = theirs.RPC(
        subscriptions=[theirs.RPC.SubOpts(subscribe=True, topicid=TOPIC)],
        publish=[theirs.Message(data=b"data", topicIDs=[TOPIC])],
        control=theirs.ControlMessage(
            ihave=[theirs.ControlIHave(topicID=TOPIC, messageIDs=IDS[:1])],
            iwant=[theirs.ControlIWant(messageIDs=IDS[1:2])],
            graft=[theirs.ControlGraft(topicID=TOPIC)],
            prune=[
                theirs.ControlPrune(
                    topicID=TOPIC, peers=[theirs.PeerInfo(peerID=b"other")], backoff=9
                )
            ],
            idontwant=[theirs.ControlIDontWant(messageIDs=IDS)],
        ),
        senderRecord=b"record",
    ).SerializeToString()

    rpc = decode_rpc(frame, PARAMS)

    assert rpc.subscriptions == [(True, TOPIC)]
    assert rpc.messages == [(TOPIC, b"data")]
    assert [(topic, list(ids)) for topic, ids in rpc.ihave] == [(TOPIC, IDS[:1])]
    assert (rpc.iwant, rpc.graft, rpc.prune) == (IDS[1:2], [TOPIC], [(TOPIC, 9)])


@pytest.mark.parametrize("field", ["from_id", "seqno", "signature", "key"])
def test_a_signed_message_of_libp2p_is_malformed(field: str) -> None:
    """What StrictNoSign forbids has libp2p's field numbers (G29)."""
    message = theirs.Message(data=b"data", topicIDs=[TOPIC], **{field: b"x"})

    rpc = decode_rpc(theirs.RPC(publish=[message]).SerializeToString(), PARAMS)

    assert (rpc.malformed, rpc.messages) == (1, [])


def test_a_peer_that_writes_with_libp2p_takes_part() -> None:
    """Subscribe, graft, publish, announce and ask in libp2p's bytes, and read ours (G29)."""
    router = GossipRouter(GossipParams.small(), rng=random.Random(1), own_id=PeerId(b"own"))
    router.subscribe(TOPIC, 0.0)
    peer, other = PeerId(b"peer"), PeerId(b"other")
    for one in (peer, other):
        router.peer_connected(one, "/meshsub/1.1.0", False, 0.0)
        frame = theirs.RPC(
            subscriptions=[theirs.RPC.SubOpts(subscribe=True, topicid=TOPIC)],
            control=theirs.ControlMessage(graft=[theirs.ControlGraft(topicID=TOPIC)]),
        )
        router.received(one, frame.SerializeToString(), 0.0)
    router.drain()
    payload = HeaderAnnouncement(header_bytes=bytes(112), source=b"s", timestamp_ms=1).encode()
    message = RelayMessage(type=MessageType.HEADER, topic=TOPIC, payload=payload)
    frame = theirs.RPC(publish=[theirs.Message(data=message.encode(), topicIDs=[TOPIC])])
    router.received(peer, frame.SerializeToString(), 0.0)
    (validate,) = [action for action in router.drain() if isinstance(action, Validate)]
    router.validated(validate.token, VerdictKind.ACCEPT, 0.0)

    (forwarded,) = [action for action in router.drain() if isinstance(action, Send)]
    ask = theirs.ControlIWant(messageIDs=[relay_message_id(message)])
    frame = theirs.RPC(control=theirs.ControlMessage(iwant=[ask]))
    router.received(peer, frame.SerializeToString(), 0.0)
    (answered,) = [action for action in router.drain() if isinstance(action, Send)]

    assert (forwarded.peer, answered.peer) == (other, peer)
    for send in (forwarded, answered):
        (published,) = theirs.RPC.FromString(send.data).publish
        assert published.data == message.encode()
