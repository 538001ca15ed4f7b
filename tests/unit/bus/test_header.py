"""The header codec against vector V1 and its own laws."""

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from luxrelay.bus import MsgHeader, NamespaceId, SigningKey, TFHESidecarRef, message_id
from luxrelay.bus.constants import FLAG_TFHE_SIDECAR, MAX_U64
from luxrelay.bus.header import sender_address
from luxrelay.errors import BusArgumentError, HeaderError

PREIMAGE = bytes.fromhex(
    "0100" + "00" * 19 + "01" + "0000000000000001" + "0000018cc251f400" + "00" * 32 + "00000000"
    "abcd" + "00" * 28 + "1234"
)
SIGNATURE = bytes.fromhex(
    "7fcea78ed084f51cabc1c32ab75fd357c77ed70f8a3b2b2e434ad734c941d39e"
    "03dbf1bcd9af43a046a6d871963631d5641efc5d16245c3b504838d4bf572b0f"
)


def test_encode_vector_v1(signed: MsgHeader, key: SigningKey) -> None:
    """Vector V1 byte for byte (11-01, 11-27)."""
    assert signed.preimage == PREIMAGE
    assert signed.header_hash.hex() == (
        "e9bb9fd3bdf378bf66f1c57841d6d8c75718c56202fe1304f7d5af6b323c521a"
    )
    assert signed.signature == SIGNATURE
    expected = PREIMAGE + b"\x00\x21" + key.public_field + b"\x00\x40" + SIGNATURE + b"\x00\x01\x00"
    assert signed.encode() == expected
    assert len(expected) == 210
    assert signed.digest.hex() == (
        "6494c15df87e8a9af63d62b11a2975de0fa3bcf5b786da9408601d0466c23e25"
    )


def test_message_id_vector_v1(signed: MsgHeader) -> None:
    """The id of the slot is SHA3-256 of namespace and sequence (21-29)."""
    expected = "5ec1bb173b3fcd678770d3f4310f563690c29fb8d95ee7fcd3af94fbdb032756"
    assert signed.message_id.hex() == expected
    assert message_id(signed.namespace_id, 1).hex() == expected


def test_decode_inverts_encode(signed: MsgHeader) -> None:
    """decode(encode(h)) == h and encode(decode(b)) == b (11-03)."""
    decoded = MsgHeader.decode(signed.encode())

    assert decoded == signed
    assert decoded.encode() == signed.encode()
    assert decoded.header_hash == signed.header_hash
    assert decoded.content_id == signed.content_id


def test_fixed_part_is_112_and_152_bytes(unsigned: MsgHeader) -> None:
    """With empty variable fields the codec writes 112 bytes, 152 with a sidecar (11-02, H1)."""
    bare = replace(unsigned, fee_proof=b"")
    sidecar = TFHESidecarRef(commitment=bytes(32), epoch=MAX_U64)
    flagged = replace(bare, flags=FLAG_TFHE_SIDECAR, tfhe_sidecar=sidecar)

    assert len(bare.encode()) == 112
    assert len(flagged.encode()) == 152


def test_sidecar_round_trip(unsigned: MsgHeader, key: SigningKey) -> None:
    """A header with a sidecar reference has 250 bytes and comes back whole (11-04)."""
    sidecar = TFHESidecarRef(commitment=b"\x07" * 32, epoch=473_352)
    header = key.sign_header(replace(unsigned, flags=FLAG_TFHE_SIDECAR, tfhe_sidecar=sidecar))

    assert len(header.encode()) == 250
    assert MsgHeader.decode(header.encode()) == header


def test_largest_numbers_survive(unsigned: MsgHeader, key: SigningKey) -> None:
    """u64 maxima come back unchanged from bytes and from JSON (11-15, 11-42)."""
    header = key.sign_header(replace(unsigned, seq=MAX_U64, timestamp=MAX_U64))

    assert MsgHeader.decode(header.encode()) == header
    assert MsgHeader.from_json(header.to_json()) == header


def test_replace_drops_the_old_bytes(signed: MsgHeader) -> None:
    """A changed copy of a decoded header encodes its new fields, not the bytes that arrived."""
    changed = replace(MsgHeader.decode(signed.encode()), seq=2)

    assert changed.encode() != signed.encode()
    assert changed.header_hash != signed.header_hash


def test_variable_fields_are_outside_the_hash(signed: MsgHeader) -> None:
    """Two headers that differ only in key, signature or fee share headerHash (11-41, H3)."""
    other = replace(signed, signature=bytes(64))

    assert other.header_hash == signed.header_hash
    assert other.digest != signed.digest
    assert other.content_id == signed.content_id
    assert replace(signed, sender_pub_key=b"\x01" * 33).content_id != signed.content_id


@pytest.mark.parametrize(
    "change",
    [
        {"fee_proof": b"\x01another"},
        {"signature": bytes(64)},
        {"tfhe_sidecar": TFHESidecarRef(commitment=b"\x08" * 32, epoch=2)},
    ],
)
def test_unsigned_fields_cannot_be_swapped_unnoticed(
    unsigned: MsgHeader, key: SigningKey, change: dict[str, object]
) -> None:
    """What headerHash leaves out changes the digest; slot and content stay (11-32, H3, H38)."""
    sidecar = TFHESidecarRef(commitment=b"\x07" * 32, epoch=1)
    header = key.sign_header(replace(unsigned, flags=FLAG_TFHE_SIDECAR, tfhe_sidecar=sidecar))

    swapped = MsgHeader.decode(replace(header, **change).encode())

    assert swapped.digest != header.digest
    assert (swapped.message_id, swapped.content_id) == (header.message_id, header.content_id)


def test_decoded_header_is_frozen_and_whole(signed: MsgHeader) -> None:
    """A decoded header is a MsgHeader like one that was built: frozen, hashable, picklable."""
    decoded = MsgHeader.decode(bytearray(signed.encode()))

    assert type(decoded) is MsgHeader
    assert hash(decoded) == hash(signed)
    assert pickle.loads(pickle.dumps(decoded)) == signed  # noqa: S301  our own bytes
    with pytest.raises(FrozenInstanceError):
        decoded.seq = 2  # type: ignore[misc]  # that is the point


def test_json_form(signed: MsgHeader) -> None:
    """JSON has the names of LP-6411 §4.2, lower-case 0x hex and null for no sidecar (11-42)."""
    obj = signed.to_json()

    assert list(obj) == [
        "version", "flags", "namespaceId", "seq", "timestamp", "blobCommitment", "blobLen",
        "policyHash", "senderPubKey", "signature", "feeProof", "tfheSidecar",
    ]  # fmt: skip
    assert obj["namespaceId"] == "0x" + "00" * 19 + "01"
    assert obj["feeProof"] == "0x00"
    assert obj["tfheSidecar"] is None


def test_json_takes_decimal_strings_and_no_sidecar_key(signed: MsgHeader) -> None:
    """u64 as text and a missing tfheSidecar are accepted, for JavaScript (H34)."""
    obj = signed.to_json()
    obj["timestamp"] = "1704067200000"
    del obj["tfheSidecar"]

    assert MsgHeader.from_json(obj) == signed


@pytest.mark.parametrize(
    ("key_name", "value"),
    [
        ("seq", -1),
        ("seq", True),
        ("seq", 2**64),
        ("seq", "1e3"),
        ("seq", None),
        ("namespaceId", "0x00"),
        ("namespaceId", 5),
        ("signature", "7fce"),
        ("signature", "0x7"),
        ("tfheSidecar", {"commitment": "0x00", "epoch": 1}),
        ("tfheSidecar", {"commitment": "0x" + "00" * 32, "epoch": 1}),
        ("tfheSidecar", []),
        ("senderPubKey", "0x" + "00" * 5000),
        ("more", 1),
    ],
)
def test_reject_json_field(signed: MsgHeader, key_name: str, value: object) -> None:
    """A wrong, unknown or misfitting field is refused with its own error (H34)."""
    obj = signed.to_json()
    obj[key_name] = value

    with pytest.raises(HeaderError):
        MsgHeader.from_json(obj)


@pytest.mark.parametrize("obj", [None, [], "x", 5, {}])
def test_reject_json_document(obj: object) -> None:
    """What is no object, or an empty one, is refused with the header's error."""
    with pytest.raises(HeaderError):
        MsgHeader.from_json(obj)


@pytest.mark.parametrize(
    "change",
    [
        {"namespace_id": NamespaceId(b"short")},
        {"seq": -1},
        {"seq": 2**64},
        {"timestamp": 1.5},
        {"blob_len": 2**32},
        {"flags": 256},
        {"flags": FLAG_TFHE_SIDECAR},
        {"signature": bytes(8193)},
        {"fee_proof": bytes(1025)},
        {"sender_pub_key": bytes(4097)},
        {"sender_pub_key": bytes(4096), "signature": bytes(4000)},
    ],
)
def test_reject_argument(unsigned: MsgHeader, change: dict[str, object]) -> None:
    """A field that the layout cannot hold is the caller's error (11-43)."""
    with pytest.raises(BusArgumentError):
        replace(unsigned, **change)


def test_address_is_20_bytes_of_keccak(key: SigningKey) -> None:
    """The address of RFC 8032's first key, as another Keccak implementation gives it (H27)."""
    assert sender_address(key.public_field) == sender_address(bytes(key.public_field))
    assert sender_address(b"\x01").hex() == "dcc703c0e500b653ca82273b7bfad8045d85a470"


@pytest.mark.parametrize("field", [b"", b"\x02" + bytes(33)])
def test_reject_address_without_rule(field: bytes) -> None:
    """An empty key and a secp256k1 key that is no compressed point have no address (H27)."""
    with pytest.raises(BusArgumentError):
        sender_address(field)


def test_truncation_at_every_offset_is_a_header_error(signed: MsgHeader) -> None:
    """Cut anywhere, decode raises its own error and no other (11-06)."""
    data = signed.encode()

    for size in range(len(data)):
        with pytest.raises(HeaderError) as caught:
            MsgHeader.decode(data[:size])
        assert caught.value.verdict_code >= 1101
