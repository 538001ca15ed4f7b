"""Envelope vectors: RelayMessageV1 and its payloads, signed, and broken ones.

Source: LP-6420 §3, §4.3, §7.1; decisions G4–G12, J7; 20-20, 20-33.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from luxrelay.bus import MsgHeader
from luxrelay.errors import EnvelopeError, HeaderError
from luxrelay.gossip import (
    BlobAvailabilityHint,
    BlockAnnouncement,
    HeaderAnnouncement,
    MessageType,
    RelayMessage,
    decode_header_with_blob,
    encode_header_with_blob,
    relay_message_id,
    topic_for_namespace,
)
from luxrelay.gossip.envelope import PeerId, peer_id_of
from luxrelay.testing.cases.case import Case, Json
from luxrelay.testing.messages import BEGIN_MS, NAMESPACE, SampleMessage, message_line, signing_key
from luxrelay.wire import from_hex, to_hex

_RELAY: Final = signing_key(number=60)
_PEER: Final = peer_id_of(_RELAY.public_field[1:])
_NETWORK: Final = "vectors"


def _message() -> SampleMessage:
    (message,) = message_line(1)
    return message


def _announcement() -> HeaderAnnouncement:
    return HeaderAnnouncement.signed(_message().header.encode(), _RELAY, BEGIN_MS + 5)


def _hint() -> BlobAvailabilityHint:
    header = _message().header
    return BlobAvailabilityHint(
        commitment=header.blob_commitment,
        blob_len=header.blob_len,
        providers=(_PEER, peer_id_of(signing_key(number=61).public_field[1:])),
        expires_at_ms=BEGIN_MS + 600_000,
    )


def _block() -> BlockAnnouncement:
    return BlockAnnouncement(
        block_hash=b"\xb1" * 32, height=12, proposer=_PEER, timestamp_ms=BEGIN_MS
    )


def _envelopes() -> Iterator[tuple[str, RelayMessage]]:
    topic = topic_for_namespace(_NETWORK, NAMESPACE)
    header = RelayMessage(type=MessageType.HEADER, topic=topic, payload=_announcement().encode())
    blob = encode_header_with_blob(_announcement(), _message().blob)
    yield "header", header
    yield "header, signed", header.signed_by(_RELAY)
    yield (
        "header with blob",
        RelayMessage(type=MessageType.HEADER_WITH_BLOB, topic=topic, payload=blob),
    )
    root = f"/lux/{_NETWORK}/relay"
    yield (
        "blob hint",
        RelayMessage(
            type=MessageType.BLOB_HINT, topic=f"{root}/blobs/available", payload=_hint().encode()
        ).signed_by(_RELAY),
    )
    yield (
        "block",
        RelayMessage(
            type=MessageType.BLOCK, topic=f"{root}/blocks/proposed", payload=_block().encode()
        ).signed_by(_RELAY),
    )


def files() -> Iterator[tuple[str, list[Case]]]:
    """Yield the files."""
    signer = to_hex(_PEER)
    yield (
        "valid-types",
        [
            Case(name, {"envelope": to_hex(e.encode()), "signer": signer}, {"wellFormed": True})
            for name, e in _envelopes()
        ],
    )
    yield (
        "reject-structure",
        [
            Case(name, {"envelope": to_hex(data), "signer": signer}, {"wellFormed": False})
            for name, data in _broken_envelopes()
        ],
    )
    yield (
        "valid-payloads",
        [Case(name, {name: to_hex(data)}, {"wellFormed": True}) for name, data in _payloads()],
    )
    yield "reject-payloads", list(_broken_payloads())


def _broken_envelopes() -> Iterator[tuple[str, bytes]]:
    data = dict(_envelopes())["header, signed"].encode()
    topic_len = int.from_bytes(data[2:4], "big")
    payload_at = 4 + topic_len
    for size in (0, 3, 10, payload_at, payload_at + 4, len(data) - 65, len(data) - 1):
        yield f"cut at {size}", data[:size]
    yield "a byte after", data + b"\x00"
    for name, offset, value in (
        ("version 0", 0, b"\x00"),
        ("version 2", 0, b"\x02"),
        ("type 0", 1, b"\x00"),
        ("type 5", 1, b"\x05"),
        ("type 0x11", 1, b"\x11"),
        ("topicLen 0", 2, b"\x00\x00"),
        ("topicLen 257", 2, b"\x01\x01"),
        ("topicLen 65535", 2, b"\xff\xff"),
        ("topic not ASCII", 4, b"\xff"),
        ("payloadLen + 1", payload_at, _more(data[payload_at : payload_at + 4])),
        ("payloadLen 2^32 - 1", payload_at, b"\xff" * 4),
        ("signatureLen 65", len(data) - 66, b"\x00\x41"),
    ):
        yield name, data[:offset] + value + data[offset + len(value) :]


def _more(length: bytes) -> bytes:
    return (int.from_bytes(length, "big") + 1).to_bytes(len(length), "big")


def _payloads() -> Iterator[tuple[str, bytes]]:
    yield "announcement", _announcement().encode()
    yield "headerWithBlob", encode_header_with_blob(_announcement(), _message().blob)
    yield "hint", _hint().encode()
    yield "block", _block().encode()


def _broken_payloads() -> Iterator[Case]:
    bad: Json = {"wellFormed": False}
    for kind, data in _payloads():
        for size in (0, 1, len(data) // 2, len(data) - 1):
            yield Case(f"{kind}, cut at {size}", {kind: to_hex(data[:size])}, bad)
        yield Case(f"{kind}, a byte after", {kind: to_hex(data + b"\x00")}, bad)
    data = _hint().encode()
    for name, offset, value in (
        ("blobLen above 2 MiB", 32, b"\x00\x20\x00\x01"),
        ("no providers", 36, b"\x00\x00"),
        ("17 providers", 36, b"\x00\x11"),
    ):
        changed = data[:offset] + value + data[offset + len(value) :]
        yield Case(f"hint, {name}", {"hint": to_hex(changed)}, bad)


def answer(given: Json) -> Json:
    """Return the fields of an envelope or of a payload."""
    try:
        if "envelope" in given:
            return _answer_envelope(from_hex(given["envelope"]), PeerId(from_hex(given["signer"])))
        ((kind, text),) = given.items()
        return {"wellFormed": True} | _PAYLOADS[kind](from_hex(text))
    except EnvelopeError:
        return {"wellFormed": False}


def _answer_envelope(data: bytes, signer: PeerId) -> Json:
    envelope = RelayMessage.decode(data)
    return {
        "wellFormed": True,
        "type": int(envelope.type),
        "topic": envelope.topic,
        "payload": to_hex(envelope.payload),
        "signed": envelope.verify(signer),
        "messageId": to_hex(relay_message_id(envelope)),
    }


def _answer_announcement(data: bytes) -> Json:
    return _announced(HeaderAnnouncement.decode(data))


def _announced(announcement: HeaderAnnouncement) -> Json:
    try:
        digest = MsgHeader.decode(announcement.header_bytes).digest
    except HeaderError as error:
        raise EnvelopeError("the header is none") from error
    return {
        "header": to_hex(announcement.header_bytes),
        "source": to_hex(announcement.source),
        "timestamp": announcement.timestamp_ms,
        "signedBytes": to_hex(announcement.signed_bytes(digest)),
        "signed": announcement.verify(digest),
    }


def _answer_with_blob(data: bytes) -> Json:
    announcement, blob = decode_header_with_blob(data)
    return _announced(announcement) | {"blob": to_hex(blob)}


def _answer_hint(data: bytes) -> Json:
    hint = BlobAvailabilityHint.decode(data)
    return {
        "commitment": to_hex(hint.commitment),
        "blobLen": hint.blob_len,
        "providers": [to_hex(provider) for provider in hint.providers],
        "expiresAt": hint.expires_at_ms,
    }


def _answer_block(data: bytes) -> Json:
    block = BlockAnnouncement.decode(data)
    return {
        "blockHash": to_hex(block.block_hash),
        "height": block.height,
        "proposer": to_hex(block.proposer),
        "timestamp": block.timestamp_ms,
    }


_PAYLOADS: Final[dict[str, Callable[[bytes], Json]]] = {
    "announcement": _answer_announcement,
    "headerWithBlob": _answer_with_blob,
    "hint": _answer_hint,
    "block": _answer_block,
}
