"""Fee proofs, envelopes and payloads for the second implementation in ``header.py``.

Nothing but struct and hashlib; what needs cryptography is left out.
"""

from __future__ import annotations

import hashlib
import struct

Answer = dict[str, object]

KEY_BYTES = {1: 33, 2: 34}
"""sigType to key field, for the two schemes that fit a fee proof."""


class Cut(Exception):  # noqa: N818  it is a finding, not an error
    """The bytes are not what they should be."""


class Reader:
    """Takes bytes off the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        if count > len(self.data):
            raise Cut
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, count: int) -> int:
        """Return the next bytes as a number."""
        return int.from_bytes(self.take(count), "big")

    def field(self, count: int, low: int, high: int) -> bytes:
        """Return what stands behind a length of that many bytes."""
        length = self.number(count)
        if not low <= length <= high:
            raise Cut
        return self.take(length)

    def end(self) -> None:
        """Demand that nothing is left."""
        if self.data:
            raise Cut


def sha3(*parts: bytes) -> bytes:
    """Return SHA3-256 over the parts, joined."""
    return hashlib.sha3_256(b"".join(parts)).digest()


def text(value: bytes) -> str:
    """Return 0x and hex digits."""
    return "0x" + value.hex()


def raw(value: object) -> bytes:
    """Return the bytes of 0x and hex digits."""
    return bytes.fromhex(str(value)[2:])


def key_field(reader: Reader) -> bytes:
    """Return a key field behind its u8 length."""
    key = reader.field(1, 33, 34)
    if KEY_BYTES.get(key[0]) != len(key):
        raise Cut
    return key


def fee(given: Answer) -> Answer:
    """Answer a fee proof, but for its signatures and the payer's address."""
    data, header = raw(given["feeProof"]), raw(given["header"])
    network = str(given["network"]).encode()
    prefix = bytes([len(network)]) + network
    try:
        found = _fee(data, prefix)
    except Cut:
        return {"wellFormed": False}
    sender = header[108 : 108 + int.from_bytes(header[106:108], "big")]
    binding = sha3(
        b"lux.feeproof.v1", prefix, data[:1], sha3(header[:106]), sha3(sender), data[1:-64]
    )
    return {"wellFormed": True, "kind": data[0], "bindingDigest": text(binding)} | found


def _fee(data: bytes, prefix: bytes) -> Answer:
    reader = Reader(data)
    kind, version = reader.number(1), reader.number(1)
    if len(data) > 1024 or kind not in (1, 2, 3, 4) or not 1 <= version <= (2 if kind == 1 else 1):
        raise Cut
    body = Reader(reader.field(2, 0, 1024))
    found: Answer = {}
    if kind == 1:
        statement = body.data[:-64]
        body.take(1)
        body.field(2, 1, 4096)
        body.take(20)
        if not body.number(8):
            raise Cut
        body.take(32)
        key_field(body)
        body.take(64)
        found["quotaHash"] = text(sha3(b"lux.quota.v1", prefix, bytes([version]), statement))
    elif kind == 2:
        body.take(8 + 20 + 32 + 4 + 32)
    elif kind == 3:
        found["voucherDigest"] = text(sha3(b"lux.voucher.v1", prefix, body.take(64)))
        body.take(64)
    else:
        body.take(16 + 32)
        index, count = struct.unpack(">IB", body.take(5))
        body.take(32 * count)
        if count > 20 or index >> count:
            raise Cut
    body.end()
    key_field(reader)
    reader.take(64)
    reader.end()
    return found


def envelope(given: Answer) -> Answer:
    """Answer an envelope or a payload, but for its signature."""
    (kind, value), *_ = given.items()
    try:
        return {"wellFormed": True} | READERS[kind](Reader(raw(value)))
    except Cut:
        return {"wellFormed": False}


def _envelope(reader: Reader) -> Answer:
    version, kind = reader.take(2)
    topic = reader.field(2, 1, 256)
    payload = reader.field(4, 0, 64 * 1024)
    reader.field(2, 0, 64)
    reader.end()
    if version != 1 or not 1 <= kind <= 4 or not topic.isascii():
        raise Cut
    named = payload[4:32] if kind in (1, 4) else payload[:32]  # namespace and seq, or a hash
    return {
        "type": kind,
        "topic": topic.decode(),
        "payload": text(payload),
        "messageId": text(sha3(named)),
    }


def _announced(reader: Reader) -> Answer:
    header = reader.field(2, 112, 8192)
    source = reader.field(2, 1, 64)
    stamp = reader.take(8)
    reader.field(2, 0, 64)
    return {
        "header": text(header),
        "source": text(source),
        "timestamp": int.from_bytes(stamp, "big"),
        "signedBytes": text(b"lux.announce.v1" + sha3(header) + source + stamp),
    }


def _announcement(reader: Reader) -> Answer:
    found = _announced(reader)
    reader.end()
    return found


def _with_blob(reader: Reader) -> Answer:
    found = _announced(reader) | {"blob": text(reader.field(4, 0, 48 * 1024))}
    reader.end()
    return found


def _hint(reader: Reader) -> Answer:
    commitment, blob_len, count = reader.take(32), reader.number(4), reader.number(2)
    if blob_len > 2 * 1024 * 1024 or not 1 <= count <= 16:
        raise Cut
    providers = [text(reader.field(2, 1, 64)) for _ in range(count)]
    expires = reader.number(8)
    reader.end()
    return {
        "commitment": text(commitment),
        "blobLen": blob_len,
        "providers": providers,
        "expiresAt": expires,
    }


def _block(reader: Reader) -> Answer:
    found: Answer = {
        "blockHash": text(reader.take(32)),
        "height": reader.number(8),
        "proposer": text(reader.field(2, 1, 64)),
        "timestamp": reader.number(8),
    }
    reader.end()
    return found


READERS = {
    "envelope": _envelope,
    "announcement": _announcement,
    "headerWithBlob": _with_blob,
    "hint": _hint,
    "block": _block,
}
