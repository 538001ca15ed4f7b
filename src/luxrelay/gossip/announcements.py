"""Payloads of the envelope: header announcements, with or without their blob, hints, blocks.

LP-6420 §3 names the fields and leaves the bytes open; G8 lays out the header announcement, the
other two follow its manner: big-endian, a u16 length before each variable field, nothing after
the last. These codecs bound and take apart; whether a claim holds is for the verdict.

What a hint or a block announcement claims, and whether that may be believed.

The codecs of `announcements` bound and take apart; here is what needs a clock and keys. Whoever
answers a `Validate` asks these functions; the router does not know them.

Rules, cheap ones first. A hint (G10): signed; at most 16 providers and 2 MiB, which its codec
holds; not over yet; over within ten minutes; signed by one of its providers or by an operator whom
we trust, so that nobody aims the traffic of others at a third. A block announcement (G12): signed
by its proposer, and of now, so that an old one cannot be sent round again for ever.

Source: LP-6420 §3; LP-6420 §3.2, §3.3; 20-11, 20-12, 20-34; decisions G7, G8, G10, G12, J7, G9,
G19, G34.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from struct import Struct
from typing import Final

from luxrelay.bus import ACCEPTED, Code, Digest, NamespaceId, SigningKey, Verdict
from luxrelay.bus.constants import (
    FIXED_BYTES,
    HASH_BYTES,
    MAX_BLOB_BYTES,
    MAX_HEADER_BYTES,
    MAX_U64,
    NAMESPACE_BYTES,
    OFFSET_NAMESPACE,
)
from luxrelay.bus.verdict import ignore, reject
from luxrelay.errors import EnvelopeError, GossipArgumentError
from luxrelay.gossip.envelope import (
    PEER_ID_MAX,
    SIGNATURE_MAX,
    MessageType,
    PeerId,
    RelayMessage,
    Topic,
    TopicKind,
    global_topic,
    peer_id_of,
    verify_by_peer,
)
from luxrelay.wire import ByteReader

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
        reader = _reader_of(data)
        announcement = _read_announcement(reader)
        reader.end()
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
    reader = _reader_of(payload)
    announcement = _read_announcement(reader)
    blob = reader.take(reader.u32("blobLen"), "blob", 0, blob_max)
    reader.end()
    return announcement, blob


_NAMESPACE_AT: Final = 2 + OFFSET_NAMESPACE
"""Where the namespace id of an announced header stands in the payload."""


def for_headers_global(message: RelayMessage, topic: Topic) -> RelayMessage:
    """Return the announcement of a header as it stands on ``headers/global``, without its blob.

    Its bytes follow from those of the namespace's topic alone, so that every relay which passes it
    on makes the same message. The lane of a namespace hides which one that is: then the envelope's
    last field, which holds no signature because the payload has one, names the parent (G34).

    Args:
        message: The well-formed announcement on the namespace's topic.
        topic: That topic, taken apart.

    Raises:
        EnvelopeError: the payload is no announcement.

    """
    parent, payload = topic.namespace_id or b"", message.payload
    if message.type is MessageType.HEADER_WITH_BLOB:
        reader = _reader_of(payload)
        _read_announcement(reader)
        payload = payload[: reader.offset]
    own = payload[_NAMESPACE_AT : _NAMESPACE_AT + NAMESPACE_BYTES] == parent
    return RelayMessage(
        type=MessageType.HEADER,
        topic=global_topic(topic.network, TopicKind.HEADERS_GLOBAL),
        payload=payload,
        signature=b"" if own else parent,
    )


def parent_named(message: RelayMessage) -> NamespaceId:
    """Return the namespace that an announcement on ``headers/global`` says its header is of.

    It is for the reader to check: the header's own namespace, or the parent that its envelope
    names, of which the header's has to be the sender's lane (G34, J6).
    """
    if len(message.signature) == NAMESPACE_BYTES:
        return NamespaceId(message.signature)
    return NamespaceId(message.payload[_NAMESPACE_AT : _NAMESPACE_AT + NAMESPACE_BYTES])


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
        reader = _reader_of(data)
        commitment = reader.take(HASH_BYTES, "blobCommitment")
        blob_len = reader.within(reader.u32("blobLen"), "blobLen", 0, MAX_BLOB_BYTES)
        count = reader.within(reader.u16("providers"), "providers", 1, PROVIDERS_MAX)
        providers = tuple(
            reader.take(reader.u16("providerLen"), "provider", 1, PEER_ID_MAX) for _ in range(count)
        )
        expires_at_ms = reader.u64("expiresAt")
        reader.end()
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
        reader = _reader_of(data)
        block_hash = reader.take(HASH_BYTES, "blockHash")
        height = reader.u64("blockHeight")
        proposer = reader.take(reader.u16("proposerLen"), "proposer", 1, PEER_ID_MAX)
        timestamp_ms = reader.u64("timestamp")
        reader.end()
        return cls(
            block_hash=block_hash, height=height, proposer=proposer, timestamp_ms=timestamp_ms
        )


def _reader_of(payload: bytes) -> ByteReader:
    return ByteReader(payload, EnvelopeError, "payload")


def _read_announcement(reader: ByteReader) -> HeaderAnnouncement:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimParams:
    """Bounds of what is believed."""

    hint_life_max_ms: int = 600_000
    """How far ahead a hint may expire, milliseconds (G10)."""
    block_age_max_ms: int = 60_000
    """How far a block announcement's timestamp may be from our clock, milliseconds (G9)."""
    operators_max: int = 32
    """Trusted operators whose keys are tried on a hint; further ones are not."""

    def __post_init__(self) -> None:
        """Refuse bounds that hold nothing."""
        for name in ("hint_life_max_ms", "block_age_max_ms", "operators_max"):
            if getattr(self, name) < 1:
                raise GossipArgumentError(f"{name} begins at 1", where="ClaimParams")


DEFAULTS = ClaimParams()


def judge_hint(
    message: RelayMessage,
    now_ms: int,
    *,
    params: ClaimParams = DEFAULTS,
    operators: Collection[PeerId] = (),
) -> Verdict:
    """Return the verdict on an envelope with a blob availability hint; never raises.

    Args:
        message: A decoded envelope of type BLOB_HINT.
        now_ms: Wall clock, Unix milliseconds.
        params: Bounds.
        operators: Peer ids of DA operators that may sign for others; at most ``operators_max``
            are tried. Cost: one Ed25519 verification each, and one a provider.

    """
    try:
        hint = BlobAvailabilityHint.decode(message.payload)
    except EnvelopeError as error:
        return reject(Code.MALFORMED_PAYLOAD, str(error))
    if not message.signature:
        return reject(Code.SOURCE_SIGNATURE, "a hint is signed (G10)")
    if hint.expires_at_ms <= now_ms:
        return ignore(Code.EXPIRED, "the hint is over (LP-6420 §3.2)")
    if hint.expires_at_ms > now_ms + params.hint_life_max_ms:
        return ignore(Code.TIMESTAMP_INVALID, "the hint promises more than ten minutes (G10)")
    signers = (*hint.providers, *islice(operators, params.operators_max))
    if not _signed_by_one(message, signers):
        return reject(Code.SOURCE_SIGNATURE, "no provider signed the hint (G10)")
    return ACCEPTED


def judge_block(message: RelayMessage, now_ms: int, *, params: ClaimParams = DEFAULTS) -> Verdict:
    """Return the verdict on an envelope with a block announcement; never raises.

    Whether the block is what its proposer says is for the finality plug-in (G12).

    Args:
        message: A decoded envelope of type BLOCK.
        now_ms: Wall clock, Unix milliseconds.
        params: Bounds.

    """
    try:
        block = BlockAnnouncement.decode(message.payload)
    except EnvelopeError as error:
        return reject(Code.MALFORMED_PAYLOAD, str(error))
    if abs(now_ms - block.timestamp_ms) > params.block_age_max_ms:
        return ignore(Code.TIMESTAMP_INVALID, "the block announcement is not of now (G9)")
    if not _signed_by_one(message, (block.proposer,)):
        return reject(Code.SOURCE_SIGNATURE, "the proposer did not sign (G10)")
    return ACCEPTED


def _signed_by_one(message: RelayMessage, signers: Iterable[bytes]) -> bool:
    signed = message.signed_bytes()
    return any(verify_by_peer(signer, signed, message.signature) for signer in signers)
