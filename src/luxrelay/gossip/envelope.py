"""`RelayMessage`: the envelope RelayMessageV1 around every payload, its limits and its id.

The bytes of an envelope stay the same from hop to hop, so that a digest over them names one
message everywhere (G6).

Peer ids: the bytes of a libp2p peer id, with the Ed25519 key inside.

Topic names: their grammar, the four global topics, one topic a namespace, one alias.

Source: LP-6420 §4.3, §7.1; decisions G4, G6, J7; LP-6420 §3; decisions G7; LP-6420 §2, §8.2;
decisions G5, G25.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import lru_cache
from struct import Struct
from typing import Final, NewType

from luxrelay.bus import MessageId, NamespaceId, SignatureScheme, SigningKey, VerifyKey
from luxrelay.bus.constants import (
    FIXED_BYTES,
    HASH_BYTES,
    MAX_HEADER_BYTES,
    OFFSET_NAMESPACE,
    OFFSET_TIMESTAMP,
)
from luxrelay.errors import EnvelopeError, GossipArgumentError, TopicError

TOPIC_MAX: Final = 256
"""Longest topic name, bytes of ASCII (G6)."""
NAMESPACE_BYTES: Final = 20

_NETWORK: Final = r"[a-z0-9][a-z0-9-]{0,31}"
_TOPIC: Final = re.compile(
    rf"/lux/(?P<network>{_NETWORK})/relay/"
    r"(?:namespace/(?:0x)?(?P<namespace>[0-9a-f]{40})"
    r"|(?P<kind>headers/global|blocks/proposed|blocks/finalized|blobs/available))"
)
_NETWORK_NAME: Final = re.compile(_NETWORK)
_FOLDED_MAX: Final = 4096
"""Names whose meaning is remembered; it depends on the text alone."""


class TopicKind(StrEnum):
    """What travels on a topic (LP-6420 §2.2, §2.3)."""

    NAMESPACE = "namespace"
    """Headers of one namespace and of its lanes (J6)."""
    HEADERS_GLOBAL = "headers/global"
    """All headers; for validators and indexers."""
    BLOCKS_PROPOSED = "blocks/proposed"
    """Announcements of proposed blocks; for validators."""
    BLOCKS_FINALIZED = "blocks/finalized"
    """Announcements of finalized blocks; for everyone."""
    BLOBS_AVAILABLE = "blobs/available"
    """Blob availability hints; for DA operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic taken apart."""

    network: str
    """Name of the network: 1 to 32 characters of ``a-z 0-9 -``, not starting with ``-``."""
    kind: TopicKind
    """Which family of topics it belongs to."""
    namespace_id: NamespaceId | None = None
    """The namespace of a namespace topic; None for the four global ones."""

    @property
    def name(self) -> str:
        """The canonical text: 40 lower-case hexadecimal digits without ``0x`` (G5)."""
        if self.namespace_id is not None:
            return f"/lux/{self.network}/relay/{self.kind}/{self.namespace_id.hex()}"
        return f"/lux/{self.network}/relay/{self.kind}"


@lru_cache(maxsize=_FOLDED_MAX)
def parse_topic(text: str) -> Topic:
    """Return the parts of a topic; ``0x`` before a namespace id is folded away (G5).

    Raises:
        TopicError: the text is no topic of LP-6420 §2.1.

    Source: LP-6420 §2.1; 20-07, 20-09.

    """
    match = _TOPIC.fullmatch(text) if len(text) <= TOPIC_MAX else None
    if match is None:
        raise TopicError("not a topic", where=repr(text[:80]))
    network, namespace, kind = match.group("network", "namespace", "kind")
    if namespace is not None:
        return Topic(
            network=network,
            kind=TopicKind.NAMESPACE,
            namespace_id=NamespaceId(bytes.fromhex(namespace)),
        )
    return Topic(network=network, kind=TopicKind(kind))


def topic_for_namespace(network: str, namespace_id: NamespaceId) -> str:
    """Return the canonical topic of a namespace.

    Raises:
        GossipArgumentError: the network name or the length of the id is wrong.

    Source: LP-6420 §2.3, §8.2, G5.

    """
    if len(namespace_id) != NAMESPACE_BYTES:
        raise GossipArgumentError(
            f"a namespace id has {NAMESPACE_BYTES} bytes, found {len(namespace_id)}",
            where="topic_for_namespace",
        )
    _check_network(network)
    return Topic(network=network, kind=TopicKind.NAMESPACE, namespace_id=namespace_id).name


@lru_cache(maxsize=_FOLDED_MAX)
def global_topic(network: str, kind: TopicKind) -> str:
    """Return the name of one of the four global topics (LP-6420 §2.2).

    Raises:
        GossipArgumentError: the network name is wrong, or ``kind`` needs a namespace.

    """
    if kind is TopicKind.NAMESPACE:
        raise GossipArgumentError(
            "a namespace topic is not global",
            where="global_topic",
            hint="use topic_for_namespace",
        )
    _check_network(network)
    return Topic(network=network, kind=kind).name


@lru_cache(maxsize=_FOLDED_MAX)
def fold_topic(text: str) -> str | None:
    """Return the canonical name of ``text``, or None when it is no topic of ours.

    Peers of other applications may share a connection, so a foreign topic is no fault.
    """
    try:
        return parse_topic(text).name
    except TopicError:
        return None


def _check_network(network: str) -> None:
    if _NETWORK_NAME.fullmatch(network) is None:
        raise GossipArgumentError(
            f"network name {network[:40]!r} is not 1 to 32 characters of a-z, 0-9 and -",
            where="topic",
            hint="choose a name such as mainnet",
        )


PeerId = NewType("PeerId", bytes)
"""A libp2p peer id; 38 bytes when it carries an Ed25519 key, which ours do (G7)."""

PEER_ID_MAX: Final = 64
"""Longest peer id that a payload of ours may carry, bytes."""
SIGNATURE_MAX: Final = 64
"""Longest signature by a peer's identity key, bytes: Ed25519."""

_KEY_BYTES: Final = 32
# An identity multihash (0x00, 36 bytes) around a libp2p public key message: type 1 (Ed25519), then
# 32 bytes of key.
_ED25519_PREFIX: Final = bytes.fromhex("002408011220")


def peer_id_of(public_key: bytes) -> PeerId:
    """Return the peer id that contains the 32-byte Ed25519 ``public_key``."""
    return PeerId(_ED25519_PREFIX + public_key)


def verify_by_peer(peer: bytes, message: bytes, signature: bytes) -> bool:
    """Return True when ``signature`` over ``message`` is by the key inside ``peer``; never raises.

    False also for a peer id without an Ed25519 key inside: nobody could check such a signature
    without asking for the key first (G7).
    """
    if len(peer) != len(_ED25519_PREFIX) + _KEY_BYTES or not peer.startswith(_ED25519_PREFIX):
        return False
    field = bytes([SignatureScheme.ED25519]) + peer[len(_ED25519_PREFIX) :]
    return VerifyKey.from_field(field).verify(message, signature)


VERSION: Final = 1
PAYLOAD_MAX: Final = 64 * 1024
"""Longest payload that is gossiped, bytes (G6)."""
ENVELOPE_MIN: Final = 11
"""Shortest envelope, bytes: ten of framing and a topic of one."""
ENVELOPE_MAX: Final = 10 + TOPIC_MAX + PAYLOAD_MAX + SIGNATURE_MAX
"""Longest envelope, bytes."""
SIGNATURE_TAG: Final = b"lux.relay.v1\x00"
"""Domain of the envelope's signature (G6)."""

_HEAD: Final = Struct(">BBH")
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")


class MessageType(IntEnum):
    """What the payload is (G6); 0x11 to 0x16 are kept for control codes on other transports."""

    HEADER = 1
    """`HeaderAnnouncement`."""
    BLOB_HINT = 2
    """`BlobAvailabilityHint`."""
    BLOCK = 3
    """`BlockAnnouncement`."""
    HEADER_WITH_BLOB = 4
    """`HeaderAnnouncement`, then the blob it commits to (J7)."""


_TYPES: Final[dict[int, MessageType]] = {int(kind): kind for kind in MessageType}

_HEADERS: Final = frozenset({MessageType.HEADER, MessageType.HEADER_WITH_BLOB})
CARRIED: Final[dict[TopicKind, frozenset[MessageType]]] = {
    TopicKind.NAMESPACE: _HEADERS,
    TopicKind.HEADERS_GLOBAL: _HEADERS,
    TopicKind.BLOCKS_PROPOSED: frozenset({MessageType.BLOCK}),
    TopicKind.BLOCKS_FINALIZED: frozenset({MessageType.BLOCK}),
    TopicKind.BLOBS_AVAILABLE: frozenset({MessageType.BLOB_HINT}),
}
"""Which types a topic carries; any other is rejected (LP-6420 §2.2; 20-08)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayMessage:
    """One RelayMessageV1: version, type, topic, payload, signature, big-endian throughout."""

    type: MessageType
    """What the payload is."""
    topic: str
    """The topic as its publisher spelled it, 1 to 256 bytes of ASCII; signed."""
    payload: bytes
    """At most 64 KiB."""
    signature: bytes = b""
    """Ed25519 signature of the publishing peer; empty where the payload has one (G8), or the parent
    of a lane's header on ``headers/global`` (G34)."""
    version: int = VERSION
    """Always 1."""

    def encode(self) -> bytes:
        """Return the bytes of LP-6420 §7.1.

        Raises:
            GossipArgumentError: a field is beyond its limit.

        """
        topic = self._checked_topic()
        return b"".join(
            (
                _HEAD.pack(self.version, self.type, len(topic)),
                topic,
                _U32.pack(len(self.payload)),
                self.payload,
                _U16.pack(len(self.signature)),
                self.signature,
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> RelayMessage:
        """Return the envelope in ``data``; each length is checked before it is used.

        Raises:
            EnvelopeError: the bytes are not exactly one envelope within the limits.

        Source: LP-6420 §7.1; 20-33.

        """
        size = len(data)
        if not ENVELOPE_MIN <= size <= ENVELOPE_MAX:
            raise EnvelopeError(
                f"an envelope has {ENVELOPE_MIN} to {ENVELOPE_MAX} bytes, found {size}"
            )
        version, code, topic_len = _HEAD.unpack_from(data)
        if version != VERSION:
            raise EnvelopeError(f"version {version} is not {VERSION}", where="byte 0")
        kind = _TYPES.get(code)
        if kind is None:
            raise EnvelopeError(f"unknown type {code}", where="byte 1")
        payload_at = 4 + topic_len + 4
        if not 1 <= topic_len <= TOPIC_MAX or payload_at > size:
            raise EnvelopeError(f"topicLen {topic_len} does not fit", where="byte 2")
        (payload_len,) = _U32.unpack_from(data, payload_at - 4)
        signature_at = payload_at + payload_len + 2
        if payload_len > PAYLOAD_MAX or signature_at > size:
            raise EnvelopeError(
                f"payloadLen {payload_len} does not fit", where=f"byte {payload_at - 4}"
            )
        (signature_len,) = _U16.unpack_from(data, signature_at - 2)
        if signature_len > SIGNATURE_MAX or signature_at + signature_len != size:
            raise EnvelopeError(
                f"signatureLen {signature_len} does not fit", where=f"byte {signature_at - 2}"
            )
        try:
            topic = data[4 : 4 + topic_len].decode("ascii")
        except UnicodeDecodeError:
            raise EnvelopeError("the topic is not ASCII", where="byte 4") from None
        return cls(
            version=version,
            type=kind,
            topic=topic,
            payload=data[payload_at : payload_at + payload_len],
            signature=data[signature_at:],
        )

    def signed_bytes(self) -> bytes:
        """Return what the envelope's signature covers: everything before it, under a tag (G6)."""
        topic = self._checked_topic()
        return b"".join(
            (
                SIGNATURE_TAG,
                _HEAD.pack(self.version, self.type, len(topic)),
                topic,
                _U32.pack(len(self.payload)),
                self.payload,
            )
        )

    def signed_by(self, key: SigningKey) -> RelayMessage:
        """Return a copy that carries the signature of ``key``."""
        return replace(self, signature=key.sign(self.signed_bytes()))

    def verify(self, signer: PeerId) -> bool:
        """Return True when the signature is by ``signer``; never raises on a decoded envelope."""
        return verify_by_peer(signer, self.signed_bytes(), self.signature)

    def _checked_topic(self) -> bytes:
        try:
            topic = self.topic.encode("ascii")
        except UnicodeEncodeError:
            raise GossipArgumentError("the topic is not ASCII", where="RelayMessage") from None
        for name, value, low, high in (
            ("version", self.version, VERSION, VERSION),
            ("topic", len(topic), 1, TOPIC_MAX),
            ("payload", len(self.payload), 0, PAYLOAD_MAX),
            ("signature", len(self.signature), 0, SIGNATURE_MAX),
        ):
            if not low <= value <= high:
                raise GossipArgumentError(
                    f"{name} is {value}, not {low} to {high}",
                    where="RelayMessage",
                    hint="send what is larger as a blob",
                )
        return topic


def relay_message_id(message: RelayMessage) -> MessageId:
    """Return the id under which a message is deduplicated, SHA3-256.

    Of namespace and sequence number for headers with or without a blob, of the commitment for
    hints, of the block hash for blocks. Only as much of the payload is read as the id needs.

    Raises:
        EnvelopeError: the payload is too short for its type.

    Source: LP-6420 §4.3, G4; 20-20.

    """
    payload = message.payload
    if message.type in _HEADERS:
        header_len = _U16.unpack_from(payload)[0] if len(payload) >= 2 else 0
        if not FIXED_BYTES <= header_len <= min(MAX_HEADER_BYTES, len(payload) - 2):
            raise EnvelopeError(f"headerLen {header_len} does not fit", where="payload byte 0")
        slot = payload[2 + OFFSET_NAMESPACE : 2 + OFFSET_TIMESTAMP]
        return MessageId(hashlib.sha3_256(slot).digest())
    if len(payload) < HASH_BYTES:
        raise EnvelopeError(f"{len(payload)} bytes hold no hash", where="payload byte 0")
    return MessageId(hashlib.sha3_256(payload[:HASH_BYTES]).digest())
