"""Frames: decoding within limits, fragments, packing."""

from __future__ import annotations

import pytest

from luxrelay.bus import MessageId
from luxrelay.errors import RpcError
from luxrelay.gossip import GossipParams
from luxrelay.gossip.rpc import (
    RpcPacker,
    decode_rpc,
    encode_graft,
    encode_ihave,
    encode_iwant,
    encode_message,
    encode_prune,
    encode_subscription,
    respell_message,
)
from luxrelay.gossip.rpc_pb2 import RPC, ControlGraft, ControlMessage, Message

PARAMS = GossipParams()
IDS = [MessageId(bytes([n]) * 32) for n in range(200)]


def packed(*, fragments: list[bytes], controls: list[bytes], rpc_max: int = 1024) -> list[bytes]:
    """Return the frames of a packer."""
    packer = RpcPacker(rpc_max)
    for fragment in fragments:
        packer.add_fragment(fragment)
    for body in controls:
        packer.add_control(body)
    return packer.finish()


def test_concatenated_fragments_are_one_frame() -> None:
    """Each message is encoded once and put into any frame as it is."""
    frames = packed(
        fragments=[
            encode_subscription("/a", subscribe=True),
            encode_subscription("/b", subscribe=False),
            encode_message("/a", b"one"),
            encode_message("/b", b"two"),
        ],
        controls=[
            encode_graft("/a"),
            encode_prune("/b", 60),
            *encode_ihave("/a", IDS[:2], 1024),
            *encode_iwant(IDS[2:3], 1024),
        ],
    )

    (frame,) = frames
    rpc = decode_rpc(frame, PARAMS)
    assert rpc.subscriptions == [(True, "/a"), (False, "/b")]
    assert rpc.messages == [("/a", b"one"), ("/b", b"two")]
    assert (rpc.graft, rpc.prune) == (["/a"], [("/b", 60)])
    assert [(topic, list(ids)) for topic, ids in rpc.ihave] == [("/a", IDS[:2])]
    assert rpc.iwant == IDS[2:3]


@pytest.mark.parametrize("field", ["from", "seqno", "signature", "key"])
@pytest.mark.parametrize("value", [b"", b"x"])
def test_reject_a_message_that_breaks_strict_no_sign(field: str, value: bytes) -> None:
    """A forbidden field, even an empty one, makes a message malformed; its frame lives (G29)."""
    bad = Message(data=b"data", topic="/a", **{field: value})
    frame = RPC(publish=[bad, Message(data=b"good", topic="/a")]).SerializeToString()

    rpc = decode_rpc(frame, PARAMS)

    assert (rpc.malformed, rpc.messages) == (1, [("/a", b"good")])


@pytest.mark.parametrize(
    "bad", [Message(data=b"data"), Message(topic="/a"), Message(data=b"data", topic="")]
)
def test_reject_a_message_without_topic_or_data(bad: Message) -> None:
    """A message has both, or it is malformed."""
    rpc = decode_rpc(RPC(publish=[bad]).SerializeToString(), PARAMS)

    assert (rpc.malformed, rpc.messages) == (1, [])


@pytest.mark.parametrize("data", [b"\xff", b"\x12\x05\x12", b"\x1a\xff\xff\xff\xff\x0f"])
def test_reject_what_is_no_protobuf(data: bytes) -> None:
    """Garbage raises the one declared error."""
    with pytest.raises(RpcError, match="not protobuf"):
        decode_rpc(data, PARAMS)


def test_reject_a_topic_that_is_no_text() -> None:
    """Invalid UTF-8 in a topic makes the frame malformed."""
    with pytest.raises(RpcError):
        decode_rpc(b"\x12\x08\x12\x01x\x22\x03\xff\xfe\xfd", PARAMS)


MESSAGE = b"\x12\x01x\x22\x02/a"


@pytest.mark.parametrize(
    "frame",
    [
        b"\x12\x07" + MESSAGE,
        b"\x12\x87\x80\x00" + MESSAGE,
        b"\x12\x87\x80\x80\x80\x00" + MESSAGE,
        b"\x12\x09\x12\x81\x00x\x22\x82\x00/a",
        b"\x12\x07\x22\x02/a\x12\x01x",
        b"\x12\x0a\x12\x01y" + MESSAGE,
        b"\x12\x0b" + MESSAGE + b"\x22\x02/a",
        b"\x12\x09" + MESSAGE + b"\x38\x01",
        b"\x12\x07" + MESSAGE + b"\x38\x01",
    ],
    ids=["usual", "long length", "longest", "long parts", "turned", "data twice", "topic twice",
         "unknown field", "unknown field of the frame"],
)  # fmt: skip
def test_one_message_in_every_writing_of_protobuf(frame: bytes) -> None:
    """The quick way for the usual one reads no other message than protobuf would."""
    assert decode_rpc(frame, PARAMS).messages == [("/a", b"x")]


def test_a_message_whose_topic_is_no_ascii() -> None:
    """It is text for protobuf; whether it is a topic is another question."""
    name = "/ä".encode()
    frame = b"\x12\x08\x12\x01x\x22\x03" + name

    assert decode_rpc(frame, PARAMS).messages == [("/ä", b"x")]


def test_reject_a_frame_beyond_a_limit() -> None:
    """frame_max, subscriptions_max, messages_max and controls_max hold for what arrives."""
    params = GossipParams(subscriptions_max=2, messages_max=2, controls_max=2, frame_max=128 * 1024)
    subscription = encode_subscription("/a", subscribe=True)
    control = ControlMessage(graft=[ControlGraft(topicID="/a")] * 3)

    assert len(decode_rpc(subscription * 2, params).subscriptions) == 2
    with pytest.raises(RpcError, match="3 subscriptions"):
        decode_rpc(subscription * 3, params)
    assert decode_rpc(b"\x12\x00" * 2, params).malformed == 2
    with pytest.raises(RpcError, match="3 messages"):
        decode_rpc(b"\x12\x00" * 3, params)
    with pytest.raises(RpcError, match="3 control entries"):
        decode_rpc(RPC(control=control).SerializeToString(), params)
    with pytest.raises(RpcError, match="above 131072"):
        decode_rpc(bytes(128 * 1024 + 1), params)


def test_an_empty_frame_is_a_frame() -> None:
    """Nothing at all is a valid RPC, as protobuf has it."""
    assert decode_rpc(b"", PARAMS).messages == []


def test_a_frame_is_at_most_rpc_max_long() -> None:
    """What does not fit goes into the next frame, in order."""
    fragments = [encode_message("/a", bytes([n]) * 100) for n in range(50)]
    controls = encode_ihave("/a", IDS, 1024)

    frames = packed(fragments=fragments, controls=controls)

    assert max(map(len, frames)) <= 1024
    assert len(frames) < 20
    rpcs = [decode_rpc(frame, PARAMS) for frame in frames]
    assert [data[0] for rpc in rpcs for _, data in rpc.messages] == list(range(50))
    assert [one for rpc in rpcs for _, ids in rpc.ihave for one in ids] == IDS


@pytest.mark.parametrize("room", range(20))
def test_a_control_body_that_just_fits_or_does_not(room: int) -> None:
    """The tag and the length of the control field count as well."""
    body = encode_graft("/a")
    fragment = encode_message("/a", bytes(1024 - 10 - len(body) - room))

    frames = packed(fragments=[fragment], controls=[body])

    assert max(map(len, frames)) <= 1024
    assert len(frames) == (1 if len(fragment) + 6 + len(body) <= 1024 else 2)
    packer = RpcPacker(1024)
    packer.add_control(body)
    packer.add_fragment(fragment)
    assert list(map(len, packer.finish())) == list(map(len, frames))[::-1] or len(frames) == 1


def test_a_longer_message_goes_alone() -> None:
    """A single message above rpc_max is not lost and not joined by others."""
    small, large = encode_message("/a", b"s"), encode_message("/a", bytes(5000))

    frames = packed(fragments=[small, large, small], controls=[encode_graft("/a")])

    assert frames[:2] == [small, large]
    assert decode_rpc(frames[2], PARAMS).graft == ["/a"]


def test_a_frame_has_one_control_field() -> None:
    """Decoders that take the last control instead of merging lose nothing."""
    bodies = [encode_graft(f"/topic/{n:04d}") for n in range(200)]

    frames = packed(fragments=[encode_message("/a", b"x")], controls=bodies, rpc_max=2048)

    for frame in frames:
        field = RPC.FromString(frame)
        rebuilt = RPC(publish=field.publish, control=field.control).SerializeToString()
        assert len(rebuilt) == len(frame)
    grafts = [topic for frame in frames for topic in decode_rpc(frame, PARAMS).graft]
    assert grafts == [f"/topic/{n:04d}" for n in range(200)]


def test_a_message_can_be_respelled() -> None:
    """The same data under the other spelling of its topic (G5)."""
    fragment = respell_message(encode_message("/a", b"data"), "/b")

    assert decode_rpc(fragment, PARAMS).messages == [("/b", b"data")]


@pytest.mark.parametrize("size", [1, 127, 128, 16_300, 16_383, 16_384, 65_536, 2_097_152])
@pytest.mark.parametrize("name", [1, 90, 256])
def test_a_message_is_encoded_as_protobuf_does(size: int, name: int) -> None:
    """What is written by hand is byte for byte what the library writes."""
    topic, data = "t" * name, bytes(size)

    assert (
        encode_message(topic, data)
        == RPC(publish=[Message(data=data, topic=topic)]).SerializeToString()
    )
