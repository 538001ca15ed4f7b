"""RelayMessageV1."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey
from luxrelay.errors import EnvelopeError, GossipArgumentError
from luxrelay.gossip import (
    ENVELOPE_MAX,
    PAYLOAD_MAX,
    BlobAvailabilityHint,
    BlockAnnouncement,
    HeaderAnnouncement,
    MessageType,
    RelayMessage,
    encode_header_with_blob,
    peer_id_of,
    relay_message_id,
)

TOPIC = "/lux/mainnet/relay/headers/global"
MESSAGE = RelayMessage(type=MessageType.BLOCK, topic=TOPIC, payload=b"payload", signature=b"s" * 64)
VECTOR = bytes.fromhex("0103" + "0021") + TOPIC.encode() + bytes.fromhex("00000007")
VECTOR += b"payload" + bytes.fromhex("0040") + b"s" * 64


def test_the_layout_is_that_of_the_specification() -> None:
    """Version, type, topic, payload, signature, big-endian (20-33, LP-6420 §7.1, G6)."""
    assert MESSAGE.encode() == VECTOR
    assert RelayMessage.decode(VECTOR) == MESSAGE


@pytest.mark.parametrize("size", range(len(VECTOR)))
def test_reject_an_envelope_cut_at_any_byte(size: int) -> None:
    """A truncated envelope is refused wherever it ends (20-33)."""
    with pytest.raises(EnvelopeError):
        RelayMessage.decode(VECTOR[:size])


def test_reject_trailing_bytes() -> None:
    """Nothing may follow the signature (20-33)."""
    with pytest.raises(EnvelopeError, match="signatureLen"):
        RelayMessage.decode(VECTOR + b"\x00")


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (0, b"\x00", "version 0"),
        (0, b"\x02", "version 2"),
        (1, b"\x00", "unknown type 0"),
        (1, b"\x05", "unknown type 5"),
        (1, b"\x11", "unknown type 17"),
        (2, b"\x00\x00", "topicLen 0"),
        (2, b"\x01\x01", "topicLen 257"),
        (2, b"\xff\xff", "topicLen 65535"),
        (37, b"\xff\xff\xff\xff", "payloadLen 4294967295"),
        (48, b"\x00\x41", "signatureLen 65"),
        (48, b"\xff\xff", "signatureLen 65535"),
        (4, b"\xc3", "ASCII"),
    ],
)
def test_reject_a_field_out_of_range(at: int, value: bytes, text: str) -> None:
    """Each field is checked against its own limit before it is used (20-33, G6)."""
    data = VECTOR[:at] + value + VECTOR[at + len(value) :]

    with pytest.raises(EnvelopeError, match=text):
        RelayMessage.decode(data)


def test_limits_are_inclusive() -> None:
    """The largest topic, payload and signature fit, and together make the largest envelope."""
    largest = RelayMessage(
        type=MessageType.BLOCK, topic="t" * 256, payload=b"p" * PAYLOAD_MAX, signature=b"s" * 64
    )

    data = largest.encode()

    assert len(data) == ENVELOPE_MAX
    assert RelayMessage.decode(data) == largest


@pytest.mark.parametrize(
    "change",
    [
        {"topic": ""},
        {"topic": "t" * 257},
        {"topic": "täg"},
        {"payload": b"p" * (PAYLOAD_MAX + 1)},
        {"signature": b"s" * 65},
        {"version": 2},
    ],
)
def test_refuse_to_encode_beyond_a_limit(change: dict[str, object]) -> None:
    """What a peer would reject is not sent."""
    with pytest.raises(GossipArgumentError):
        replace(MESSAGE, **change).encode()


def test_the_signature_covers_everything_before_it() -> None:
    """A change of type, topic or payload breaks the publisher's signature (20-34, G6)."""
    key = SigningKey.from_seed(SignatureScheme.ED25519, b"k" * 32)
    peer = peer_id_of(key.public_field[1:])
    signed = replace(MESSAGE, signature=b"").signed_by(key)

    assert signed.verify(peer)
    assert signed.signed_bytes() == b"lux.relay.v1\x00" + signed.encode()[:-66]
    for change in ({"type": MessageType.HEADER}, {"topic": TOPIC + "x"}, {"payload": b"Payload"}):
        assert not replace(signed, **change).verify(peer)
    assert not MESSAGE.verify(peer)


def test_the_id_of_a_header_is_its_slot() -> None:
    """The id of vector V1 is SHA3-256 of namespace and sequence (20-20, LP-6420 §4.3)."""
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    header = SigningKey.from_seed(SignatureScheme.ED25519, seed).sign_header(
        MsgHeader(
            namespace_id=NamespaceId(bytes(19) + b"\x01"),
            seq=1,
            timestamp=1704067200000,
            blob_commitment=bytes(32),
            blob_len=0,
            policy_hash=bytes.fromhex("abcd" + "00" * 28 + "1234"),
            sender_pub_key=b"",
            signature=b"",
        )
    )
    announcement = HeaderAnnouncement(header_bytes=header.encode(), source=b"relay", timestamp_ms=1)
    bare = RelayMessage(type=MessageType.HEADER, topic=TOPIC, payload=announcement.encode())
    inline = RelayMessage(
        type=MessageType.HEADER_WITH_BLOB,
        topic=TOPIC,
        payload=encode_header_with_blob(announcement, b""),
    )

    expected = "5ec1bb173b3fcd678770d3f4310f563690c29fb8d95ee7fcd3af94fbdb032756"
    assert relay_message_id(bare).hex() == relay_message_id(inline).hex() == expected


def test_the_ids_of_hints_and_blocks_are_hashes_of_hashes() -> None:
    """SHA3-256 of the commitment and of the block hash (20-20, LP-6420 §4.3)."""
    hint = BlobAvailabilityHint(
        commitment=b"c" * 32, blob_len=1, providers=(b"p",), expires_at_ms=1
    )
    block = BlockAnnouncement(block_hash=b"b" * 32, height=1, proposer=b"p", timestamp_ms=1)

    for kind, payload, hashed in (
        (MessageType.BLOB_HINT, hint.encode(), b"c" * 32),
        (MessageType.BLOCK, block.encode(), b"b" * 32),
    ):
        message = RelayMessage(type=kind, topic=TOPIC, payload=payload)
        assert relay_message_id(message) == hashlib.sha3_256(hashed).digest()


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (MessageType.HEADER, b""),
        (MessageType.HEADER, b"\x00"),
        (MessageType.HEADER, b"\x00\x6f" + bytes(111)),
        (MessageType.HEADER, b"\x00\x70" + bytes(111)),
        (MessageType.HEADER, b"\x20\x01" + bytes(8193)),
        (MessageType.HEADER_WITH_BLOB, b"\xff\xff"),
        (MessageType.BLOB_HINT, bytes(31)),
        (MessageType.BLOCK, b""),
    ],
)
def test_a_payload_too_short_for_an_id_is_refused(kind: MessageType, payload: bytes) -> None:
    """The id is never made of bytes that are not there (20-20)."""
    with pytest.raises(EnvelopeError):
        relay_message_id(RelayMessage(type=kind, topic=TOPIC, payload=payload))
