"""Payloads of the envelope: header announcements, with or without their blob, hints, blocks.

LP-6420 §3 names the fields and leaves the bytes open; G8 lays out the header announcement, the
other two follow its manner: big-endian, a u16 length before each variable field, nothing after
the last. These codecs bound and take apart; whether a claim holds is for the verdict.

Source: LP-6420 §3; decisions G7, G8, G10, G12, J7.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from struct import Struct
from typing import Final

from luxrelay.bus import Digest, SigningKey
from luxrelay.bus.constants import (
    FIXED_BYTES,
    HASH_BYTES,
    MAX_BLOB_BYTES,
    MAX_HEADER_BYTES,
    MAX_U64,
)
from luxrelay.errors import EnvelopeError, GossipArgumentError
from luxrelay.gossip.identity import PEER_ID_MAX, SIGNATURE_MAX, peer_id_of, verify_by_peer

ANNOUNCE_TAG: Final = b"lux.announce.v1"
"""Domain of the announcing relay's signature (G8)."""
PROVIDERS_MAX: Final = 16
"""Most providers in a hint (G10)."""
INLINE_BLOB_MAX: Final = 48 * 1024
"""Default bound of an inline blob, bytes (G6, J7)."""

_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderAnnouncement:
    """A header, who announces it and when: u16 ‖ header ‖ u16 ‖ peer id ‖ u64 ms ‖ u16 ‖ sig."""

    header_bytes: bytes
    """The encoded LP-6411 header, 112 to 8,192 bytes; not looked into here."""
    source: bytes
    """Peer id of the announcing relay, at most 64 bytes."""
    timestamp_ms: int
    """When it was announced, milliseconds since 1970; for latency figures only (G9)."""
    signature: bytes = b""
    """By ``source`` over `signed_bytes`, at most 64 bytes."""

    @classmethod
    def signed(cls, header_bytes: bytes, key: SigningKey, timestamp_ms: int) -> HeaderAnnouncement:
        """Return an announcement of ``header_bytes`` signed with the relay's identity ``key``."""
        source = peer_id_of(key.public_field[1:])
        bare = cls(header_bytes=header_bytes, source=source, timestamp_ms=timestamp_ms)
        digest = Digest(hashlib.sha3_256(header_bytes).digest())
        return cls(
            header_bytes=header_bytes,
            source=source,
            timestamp_ms=timestamp_ms,
            signature=key.sign(bare.signed_bytes(digest)),
        )

    def signed_bytes(self, digest: Digest) -> bytes:
        """Return what the signature covers: tag ‖ digest ‖ source ‖ timestamp.

        Args:
            digest: SHA3-256 over all bytes of the header, so that also the bytes outside its
                own signature are bound while it travels (G8, H3).

        """
        return ANNOUNCE_TAG + digest + self.source + _U64.pack(self.timestamp_ms)

    def verify(self, digest: Digest) -> bool:
        """Return True when the signature is by ``source``; never raises on a decoded one."""
        return verify_by_peer(self.source, self.signed_bytes(digest), self.signature)

    def encode(self) -> bytes:
        """Return the bytes of G8.

        Raises:
            GossipArgumentError: a field is beyond its limit.

        """
        _check("header", len(self.header_bytes), FIXED_BYTES, MAX_HEADER_BYTES)
        _check("source", len(self.source), 1, PEER_ID_MAX)
        _check("timestamp_ms", self.timestamp_ms, 0, MAX_U64)
        _check("signature", len(self.signature), 0, SIGNATURE_MAX)
        return b"".join(
            (
                _U16.pack(len(self.header_bytes)),
                self.header_bytes,
                _U16.pack(len(self.source)),
                self.source,
                _U64.pack(self.timestamp_ms),
                _U16.pack(len(self.signature)),
                self.signature,
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> HeaderAnnouncement:
        """Return the announcement in ``data``.

        Raises:
            EnvelopeError: the bytes are not exactly one announcement within the limits.

        """
        reader = _Reader(data)
        announcement = _read_announcement(reader)
        reader.finish()
        return announcement


def encode_header_with_blob(announcement: HeaderAnnouncement, blob: bytes) -> bytes:
    """Return the payload of type 4: announcement ‖ u32 blobLen ‖ blob, nothing after (G6, J7)."""
    _check("blob", len(blob), 0, MAX_BLOB_BYTES)
    return announcement.encode() + _U32.pack(len(blob)) + blob


def decode_header_with_blob(
    payload: bytes, blob_max: int = INLINE_BLOB_MAX
) -> tuple[HeaderAnnouncement, bytes]:
    """Return the announcement and the blob of a type 4 payload.

    Args:
        payload: The payload of the envelope.
        blob_max: Longest blob accepted, bytes.

    Raises:
        EnvelopeError: the bytes are not exactly that, or the blob is longer than ``blob_max``.

    """
    reader = _Reader(payload)
    announcement = _read_announcement(reader)
    blob = reader.take(reader.u32("blobLen"), "blob", 0, blob_max)
    reader.finish()
    return announcement, blob


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobAvailabilityHint:
    """Who has a blob: commitment ‖ u32 blobLen ‖ u16 n ‖ n × (u16 ‖ peer id) ‖ u64 ms (§3.2)."""

    commitment: bytes
    """The blob's commitment, 32 bytes."""
    blob_len: int
    """Its length, bytes, at most 2 MiB."""
    providers: tuple[bytes, ...]
    """Peer ids of who has it, 1 to 16 (G10)."""
    expires_at_ms: int
    """When the hint ends, milliseconds since 1970."""

    def encode(self) -> bytes:
        """Return the bytes; GossipArgumentError when a field is beyond its limit."""
        _check("commitment", len(self.commitment), HASH_BYTES, HASH_BYTES)
        _check("blob_len", self.blob_len, 0, MAX_BLOB_BYTES)
        _check("providers", len(self.providers), 1, PROVIDERS_MAX)
        _check("expires_at_ms", self.expires_at_ms, 0, MAX_U64)
        parts = [self.commitment, _U32.pack(self.blob_len), _U16.pack(len(self.providers))]
        for provider in self.providers:
            _check("provider", len(provider), 1, PEER_ID_MAX)
            parts += (_U16.pack(len(provider)), provider)
        return b"".join((*parts, _U64.pack(self.expires_at_ms)))

    @classmethod
    def decode(cls, data: bytes) -> BlobAvailabilityHint:
        """Return the hint in ``data``; EnvelopeError when it is not exactly one (20-11)."""
        reader = _Reader(data)
        commitment = reader.take(HASH_BYTES, "blobCommitment")
        blob_len = reader.within(reader.u32("blobLen"), "blobLen", 0, MAX_BLOB_BYTES)
        count = reader.within(reader.u16("providers"), "providers", 1, PROVIDERS_MAX)
        providers = tuple(
            reader.take(reader.u16("providerLen"), "provider", 1, PEER_ID_MAX) for _ in range(count)
        )
        expires_at_ms = reader.u64("expiresAt")
        reader.finish()
        return cls(
            commitment=commitment,
            blob_len=blob_len,
            providers=providers,
            expires_at_ms=expires_at_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAnnouncement:
    """A proposed or finalized block: hash ‖ u64 height ‖ u16 ‖ proposer ‖ u64 ms (§3.3)."""

    block_hash: bytes
    """32 bytes; what it is a hash of is the finality plug-in's business (G12)."""
    height: int
    """Block height, u64."""
    proposer: bytes
    """Peer id of the proposer."""
    timestamp_ms: int
    """Milliseconds since 1970."""

    def encode(self) -> bytes:
        """Return the bytes; GossipArgumentError when a field is beyond its limit."""
        _check("block_hash", len(self.block_hash), HASH_BYTES, HASH_BYTES)
        _check("height", self.height, 0, MAX_U64)
        _check("proposer", len(self.proposer), 1, PEER_ID_MAX)
        _check("timestamp_ms", self.timestamp_ms, 0, MAX_U64)
        return b"".join(
            (
                self.block_hash,
                _U64.pack(self.height),
                _U16.pack(len(self.proposer)),
                self.proposer,
                _U64.pack(self.timestamp_ms),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> BlockAnnouncement:
        """Return the announcement in ``data``; EnvelopeError when it is not exactly one (20-12)."""
        reader = _Reader(data)
        block_hash = reader.take(HASH_BYTES, "blockHash")
        height = reader.u64("blockHeight")
        proposer = reader.take(reader.u16("proposerLen"), "proposer", 1, PEER_ID_MAX)
        timestamp_ms = reader.u64("timestamp")
        reader.finish()
        return cls(
            block_hash=block_hash, height=height, proposer=proposer, timestamp_ms=timestamp_ms
        )


class _Reader:
    """Takes fields off the front of a payload; every length is checked before it is used."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int, name: str, low: int = 0, high: int | None = None) -> bytes:
        if high is not None:
            self.within(size, f"length of {name}", low, high)
        end = self._at + size
        if end > len(self._data):
            raise EnvelopeError(f"{name} is cut off", where=f"payload byte {self._at}")
        part = self._data[self._at : end]
        self._at = end
        return part

    def u16(self, name: str) -> int:
        return int.from_bytes(self.take(2, name))

    def u32(self, name: str) -> int:
        return int.from_bytes(self.take(4, name))

    def u64(self, name: str) -> int:
        return int.from_bytes(self.take(8, name))

    def within(self, value: int, name: str, low: int, high: int) -> int:
        if not low <= value <= high:
            raise EnvelopeError(
                f"{name} is {value}, not {low} to {high}", where=f"payload byte {self._at}"
            )
        return value

    def finish(self) -> None:
        left = len(self._data) - self._at
        if left:
            raise EnvelopeError(
                f"{left} bytes after the last field", where=f"payload byte {self._at}"
            )


def _read_announcement(reader: _Reader) -> HeaderAnnouncement:
    header_bytes = reader.take(reader.u16("headerLen"), "header", FIXED_BYTES, MAX_HEADER_BYTES)
    source = reader.take(reader.u16("peerIdLen"), "peerId", 1, PEER_ID_MAX)
    timestamp_ms = reader.u64("timestamp")
    signature = reader.take(reader.u16("sigLen"), "sig", 0, SIGNATURE_MAX)
    return HeaderAnnouncement(
        header_bytes=header_bytes,
        source=source,
        timestamp_ms=timestamp_ms,
        signature=signature,
    )


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise GossipArgumentError(
            f"{name} is {value}, not {low} to {high}",
            where="announcement",
            hint="correct the field",
        )
