"""The payloads of the envelope."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from luxrelay.bus import Digest, SignatureScheme, SigningKey
from luxrelay.errors import EnvelopeError, GossipArgumentError
from luxrelay.gossip import (
    INLINE_BLOB_MAX,
    BlobAvailabilityHint,
    BlockAnnouncement,
    HeaderAnnouncement,
    decode_header_with_blob,
    encode_header_with_blob,
)
from luxrelay.gossip.announcements import PROVIDERS_MAX

HEADER = bytes(range(112))
ANNOUNCEMENT = HeaderAnnouncement(
    header_bytes=HEADER, source=b"peer", timestamp_ms=0x0102030405060708, signature=b"sig"
)
VECTOR = b"\x00\x70" + HEADER + b"\x00\x04peer" + bytes(range(1, 9)) + b"\x00\x03sig"
HINT = BlobAvailabilityHint(
    commitment=b"c" * 32, blob_len=5, providers=(b"one", b"other"), expires_at_ms=7
)
BLOCK = BlockAnnouncement(block_hash=b"h" * 32, height=3, proposer=b"one", timestamp_ms=9)
KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"a" * 32)


def digest(data: bytes) -> Digest:
    """Return the digest of a header."""
    return Digest(hashlib.sha3_256(data).digest())


def test_the_announcement_has_the_layout_of_g8() -> None:
    """Lengths before header, source and signature, the time in milliseconds (20-10, G8)."""
    assert ANNOUNCEMENT.encode() == VECTOR
    assert HeaderAnnouncement.decode(VECTOR) == ANNOUNCEMENT


def test_the_announcing_relay_signs_header_source_and_time() -> None:
    """Tampering with any signed field breaks the signature (20-10, G8)."""
    signed = HeaderAnnouncement.signed(HEADER, KEY, 1234)
    other = HEADER[:-1] + b"\x00"

    assert signed.signed_bytes(digest(HEADER)) == (
        b"lux.announce.v1" + digest(HEADER) + signed.source + (1234).to_bytes(8)
    )
    assert HeaderAnnouncement.decode(signed.encode()).verify(digest(HEADER))
    assert not signed.verify(digest(other))
    assert not replace(signed, timestamp_ms=1235).verify(digest(HEADER))
    assert not replace(signed, source=ANNOUNCEMENT.source).verify(digest(HEADER))
    assert not replace(signed, signature=b"").verify(digest(HEADER))


@pytest.mark.parametrize(
    ("payload", "decode"),
    [
        (VECTOR, HeaderAnnouncement.decode),
        (encode_header_with_blob(ANNOUNCEMENT, b"blob"), decode_header_with_blob),
        (HINT.encode(), BlobAvailabilityHint.decode),
        (BLOCK.encode(), BlockAnnouncement.decode),
    ],
    ids=["announcement", "with blob", "hint", "block"],
)
def test_reject_a_payload_cut_or_prolonged(payload: bytes, decode: object) -> None:
    """A payload is exactly its fields: cut anywhere or one byte longer, it is refused (20-10)."""
    assert callable(decode)
    for size in range(len(payload)):
        with pytest.raises(EnvelopeError):
            decode(payload[:size])
    with pytest.raises(EnvelopeError, match="bytes after its end"):
        decode(payload + b"\x00")


def test_a_blob_travels_behind_its_announcement() -> None:
    """Type 4 is announcement, u32 length, blob (G6, J7)."""
    payload = encode_header_with_blob(ANNOUNCEMENT, b"blob")

    assert payload == VECTOR + b"\x00\x00\x00\x04blob"
    assert decode_header_with_blob(payload) == (ANNOUNCEMENT, b"blob")


def test_an_inline_blob_has_a_limit() -> None:
    """A blob of inline_blob_max is taken, one byte more is not (J7)."""
    largest = encode_header_with_blob(ANNOUNCEMENT, bytes(INLINE_BLOB_MAX))
    larger = encode_header_with_blob(ANNOUNCEMENT, bytes(INLINE_BLOB_MAX + 1))

    assert len(decode_header_with_blob(largest)[1]) == INLINE_BLOB_MAX
    with pytest.raises(EnvelopeError, match="blob"):
        decode_header_with_blob(larger)
    with pytest.raises(EnvelopeError, match="blob"):
        decode_header_with_blob(encode_header_with_blob(ANNOUNCEMENT, b"x"), 0)


def test_the_hint_lists_its_providers() -> None:
    """Commitment, length, providers, expiry (20-11, LP-6420 §3.2)."""
    data = HINT.encode()

    assert data == (
        b"c" * 32 + b"\x00\x00\x00\x05\x00\x02\x00\x03one\x00\x05other" + (7).to_bytes(8)
    )
    assert BlobAvailabilityHint.decode(data) == HINT


def test_reject_seventeen_providers() -> None:
    """A hint names 1 to 16 providers and a blob of at most 2 MiB (20-11, G10)."""
    most = replace(HINT, providers=(b"p",) * PROVIDERS_MAX)
    assert BlobAvailabilityHint.decode(most.encode()) == most

    for providers in ((), (b"p",) * 17):
        with pytest.raises(GossipArgumentError, match="providers"):
            replace(HINT, providers=providers).encode()
    more = most.encode().replace(b"\x00\x10", b"\x00\x11", 1)
    with pytest.raises(EnvelopeError, match="providers is 17"):
        BlobAvailabilityHint.decode(more)
    too_long = b"c" * 32 + (2 * 1024 * 1024 + 1).to_bytes(4) + HINT.encode()[36:]
    with pytest.raises(EnvelopeError, match="blobLen"):
        BlobAvailabilityHint.decode(too_long)


def test_the_block_announcement_round_trips() -> None:
    """Hash, height, proposer, time (20-12, LP-6420 §3.3)."""
    data = BLOCK.encode()

    assert data == b"h" * 32 + (3).to_bytes(8) + b"\x00\x03one" + (9).to_bytes(8)
    assert BlockAnnouncement.decode(data) == BLOCK


@pytest.mark.parametrize(
    "value",
    [
        replace(ANNOUNCEMENT, header_bytes=bytes(111)),
        replace(ANNOUNCEMENT, header_bytes=bytes(8193)),
        replace(ANNOUNCEMENT, source=b""),
        replace(ANNOUNCEMENT, source=bytes(65)),
        replace(ANNOUNCEMENT, timestamp_ms=-1),
        replace(ANNOUNCEMENT, timestamp_ms=2**64),
        replace(ANNOUNCEMENT, signature=bytes(65)),
        replace(HINT, commitment=bytes(31)),
        replace(HINT, blob_len=-1),
        replace(HINT, providers=(b"",)),
        replace(BLOCK, block_hash=bytes(33)),
        replace(BLOCK, height=2**64),
        replace(BLOCK, proposer=b""),
    ],
)
def test_refuse_to_encode_beyond_a_limit(value: HeaderAnnouncement) -> None:
    """What a peer would reject is not sent."""
    with pytest.raises(GossipArgumentError):
        value.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x6f" + bytes(111) + VECTOR[114:],
        b"\x20\x01" + bytes(8193) + VECTOR[114:],
        VECTOR[:114] + b"\x00\x00" + VECTOR[120:],
        VECTOR[:114] + b"\x00\x41" + bytes(65) + VECTOR[120:],
        VECTOR[:-5] + b"\x00\x41" + bytes(65),
    ],
    ids=["short header", "long header", "no source", "long source", "long signature"],
)
def test_reject_a_field_out_of_range(data: bytes) -> None:
    """Each length is held against its own limit, not against what happens to follow (20-10)."""
    with pytest.raises(EnvelopeError, match="not"):
        HeaderAnnouncement.decode(data)
