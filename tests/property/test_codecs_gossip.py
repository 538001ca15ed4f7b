"""Codecs of the gossip room: what goes in comes out, and nothing but the declared error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import EnvelopeError, RpcError, TopicError
from luxrelay.gossip import (
    BlobAvailabilityHint,
    BlockAnnouncement,
    GossipParams,
    HeaderAnnouncement,
    MessageType,
    RelayMessage,
    decode_header_with_blob,
    encode_header_with_blob,
    parse_topic,
    relay_message_id,
)
from luxrelay.gossip.rpc import Rpc, check_rpc, decode_rpc
from luxrelay.gossip.rpc_pb2 import (
    RPC,
    ControlGraft,
    ControlIHave,
    ControlIWant,
    ControlMessage,
    ControlPrune,
    Message,
)

PARAMS = GossipParams()


class Encodable(Protocol):
    """A value with bytes."""

    def encode(self) -> bytes:
        """Return the bytes."""


U64 = st.integers(0, 2**64 - 1)
ASCII = st.text(st.characters(max_codepoint=127), min_size=1, max_size=40)
PEER = st.binary(min_size=1, max_size=64)
ANNOUNCEMENTS = st.builds(
    HeaderAnnouncement,
    header_bytes=st.binary(min_size=112, max_size=400),
    source=PEER,
    timestamp_ms=U64,
    signature=st.binary(max_size=64),
)
HINTS = st.builds(
    BlobAvailabilityHint,
    commitment=st.binary(min_size=32, max_size=32),
    blob_len=st.integers(0, 2 * 1024 * 1024),
    providers=st.lists(PEER, min_size=1, max_size=16).map(tuple),
    expires_at_ms=U64,
)
BLOCKS = st.builds(
    BlockAnnouncement,
    block_hash=st.binary(min_size=32, max_size=32),
    height=U64,
    proposer=PEER,
    timestamp_ms=U64,
)
ENVELOPES = st.builds(
    RelayMessage,
    type=st.sampled_from(MessageType),
    topic=ASCII,
    payload=st.binary(max_size=300),
    signature=st.binary(max_size=64),
)
CODECS = [
    (ENVELOPES, RelayMessage.decode),
    (ANNOUNCEMENTS, HeaderAnnouncement.decode),
    (HINTS, BlobAvailabilityHint.decode),
    (BLOCKS, BlockAnnouncement.decode),
]
CODEC = pytest.mark.parametrize(
    ("values", "decode"), CODECS, ids=["envelope", "header", "hint", "block"]
)
IDS = st.lists(st.binary(max_size=40), max_size=4)
RPCS = st.builds(
    RPC,
    subscriptions=st.lists(
        st.builds(RPC.SubOpts, subscribe=st.booleans(), topicid=ASCII), max_size=4
    ),
    publish=st.lists(st.builds(Message, topic=ASCII, data=st.binary(max_size=80)), max_size=4),
    control=st.builds(
        ControlMessage,
        ihave=st.lists(st.builds(ControlIHave, topicID=ASCII, messageIDs=IDS), max_size=3),
        iwant=st.lists(st.builds(ControlIWant, messageIDs=IDS), max_size=3),
        graft=st.lists(st.builds(ControlGraft, topicID=ASCII), max_size=3),
        prune=st.lists(st.builds(ControlPrune, topicID=ASCII, backoff=U64), max_size=3),
    ),
).map(lambda rpc: rpc.SerializeToString())


LONE = st.builds(
    lambda topic, data: RPC(publish=[Message(topic=topic, data=data)]).SerializeToString(),
    st.text(max_size=20),
    st.binary(max_size=300),
)


@st.composite
def mutated(draw: st.DrawFn, encoded: st.SearchStrategy[bytes]) -> bytes:
    """Return valid bytes with a piece cut out, doubled, or overwritten."""
    data = draw(encoded)
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 8)))
    return data[:start] + draw(st.binary(max_size=8)) + data[end:]


def only(error: type[Exception], decode: Callable[[bytes], object], data: bytes) -> object | None:
    """Return what was decoded, or None after the declared error; another one is a failure."""
    try:
        return decode(data)
    except error:
        return None


@CODEC
@given(st.data())
def test_values_round_trip(
    values: st.SearchStrategy[Encodable], decode: Callable[[bytes], Encodable], data: st.DataObject
) -> None:
    """decode(encode(x)) == x for every payload and the envelope (20-10, 20-33)."""
    value = data.draw(values)

    assert decode(value.encode()) == value


@CODEC
@given(st.data())
def test_mutated_bytes_decode_or_raise_the_one_error(
    values: st.SearchStrategy[Encodable], decode: Callable[[bytes], Encodable], data: st.DataObject
) -> None:
    """What still decodes encodes to the same bytes: each value has one encoding (20-33)."""
    changed = data.draw(mutated(values.map(lambda value: value.encode())))

    value = only(EnvelopeError, decode, changed)

    if value is not None:
        assert value.encode() == changed  # type: ignore[attr-defined]  # an Encodable by decode


@given(data=st.binary(max_size=400))
def test_random_bytes_raise_the_one_error(data: bytes) -> None:
    """Nothing but EnvelopeError comes out of a decoder (20-33)."""
    for _, decode in CODECS:
        only(EnvelopeError, decode, data)


@given(announcement=ANNOUNCEMENTS, blob=st.binary(max_size=500))
def test_an_inline_blob_round_trips(announcement: HeaderAnnouncement, blob: bytes) -> None:
    """Announcement and blob come back as they went in (J7)."""
    payload = encode_header_with_blob(announcement, blob)

    assert decode_header_with_blob(payload) == (announcement, blob)


@given(
    mutated(
        st.builds(encode_header_with_blob, ANNOUNCEMENTS, st.binary(max_size=100)),
    )
)
def test_a_mutated_inline_blob_decodes_or_raises(payload: bytes) -> None:
    """What still decodes encodes to the same bytes (J7)."""
    try:
        announcement, blob = decode_header_with_blob(payload)
    except EnvelopeError:
        return
    assert encode_header_with_blob(announcement, blob) == payload


@given(message=ENVELOPES)
def test_every_envelope_has_an_id_or_the_one_error(message: RelayMessage) -> None:
    """An id has 32 bytes and depends on the payload alone (20-20)."""
    message_id = only(EnvelopeError, lambda _: relay_message_id(message), b"")

    assert message_id is None or len(message_id) == 32  # type: ignore[arg-type]  # bytes


@given(data=st.one_of(RPCS, mutated(RPCS), st.binary(max_size=300)))
def test_frames_decode_or_raise_the_one_error(data: bytes) -> None:
    """Valid, mutated and random frames cause RpcError or nothing."""
    only(RpcError, lambda raw: decode_rpc(raw, PARAMS), data)


def fails(way: Callable[[bytes, GossipParams], object], data: bytes, params: GossipParams) -> bool:
    """Return True when a way to take a frame in raises the one error."""
    try:
        way(data, params)
    except RpcError:
        return True
    return False


@given(data=st.one_of(RPCS, LONE, mutated(RPCS), mutated(LONE), st.binary(max_size=300)))
def test_a_frame_that_is_only_checked_fails_as_one_that_is_read(data: bytes) -> None:
    """Two ways, one opinion on what a frame is, also at the limits."""
    for params in (PARAMS, GossipParams(subscriptions_max=1, controls_max=1, messages_max=1)):
        assert fails(decode_rpc, data, params) == fails(check_rpc, data, params)


@given(data=RPCS)
def test_valid_frames_decode_completely(data: bytes) -> None:
    """Every entry of a frame is in the values."""
    rpc, frame = decode_rpc(data, PARAMS), RPC.FromString(data)

    assert len(rpc.subscriptions) == len(frame.subscriptions)
    assert len(rpc.messages) + rpc.malformed == len(frame.publish)
    assert rpc.graft == [entry.topicID for entry in frame.control.graft]
    assert rpc.prune == [(entry.topicID, entry.backoff) for entry in frame.control.prune]
    assert rpc.iwant == [one for entry in frame.control.iwant for one in entry.messageIDs]
    assert [list(ids) for _, ids in rpc.ihave] == [
        list(entry.messageIDs) for entry in frame.control.ihave
    ]


@given(data=st.one_of(LONE, mutated(LONE)))
def test_a_message_alone_is_read_as_protobuf_reads_it(data: bytes) -> None:
    """The quick way of such frames agrees with protobuf, whatever was done to the bytes."""
    try:
        frame = RPC.FromString(data)
    except DecodeError:
        with pytest.raises(RpcError):
            decode_rpc(data, PARAMS)
        return
    forbidden = ("from", "seqno", "signature", "key")
    fine = [
        (each.topic, each.data)
        for each in frame.publish
        if each.topic and each.data and not any(each.HasField(name) for name in forbidden)
    ]
    rpc = only(RpcError, lambda raw: decode_rpc(raw, PARAMS), data)
    assert isinstance(rpc, Rpc)
    assert rpc.messages == fine
    assert rpc.malformed == len(frame.publish) - len(fine)


@given(text=st.text(max_size=80))
def test_topics_parse_or_raise_the_one_error(text: str) -> None:
    """Any text is a topic or TopicError (20-07)."""
    try:
        topic = parse_topic(text)
    except TopicError:
        return
    assert parse_topic(topic.name) == topic
