"""The messages of a run, and the stand-in for their validation.

A message is a real envelope around a real header, so that ids, sizes and every structural rule are
the product's. The signature is a stand-in: SHA-512 over what a signature would cover. Whoever
forges in a simulation does not compute it. Verifying a real one would cost more than all the rest
of a run; its time is modelled instead (`ValidationPlan`).

Source: LP-6411 §1.2; LP-6420 §4.2; decisions J6, J7.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace
from typing import Final

from luxrelay.bus import MessageId, MsgHeader, NamespaceId, SignatureScheme, VerdictKind, lane
from luxrelay.bus import constants as c
from luxrelay.errors import EnvelopeError, HeaderError
from luxrelay.gossip import (
    HeaderAnnouncement,
    MessageType,
    RelayMessage,
    decode_header_with_blob,
    encode_header_with_blob,
    relay_message_id,
    topic_for_namespace,
)
from luxrelay.sim.settings import setting

NETWORK: Final = "sim"
NAMESPACE: Final = NamespaceId(hashlib.sha3_256(b"luxrelay.sim").digest()[:20])
"""The one namespace of a simulation; its messages travel in lanes of it (J6)."""
TOPIC: Final = topic_for_namespace(NETWORK, NAMESPACE)
BEGIN_MS: Final = 1_704_067_200_000
"""What the virtual clock's zero is in Unix milliseconds."""
_POLICY: Final = hashlib.sha3_256(b"luxrelay.sim.policy").digest()
_TAG: Final = b"luxrelay.sim.signature"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPlan:
    """What is published."""

    start_s: float = setting(8.0, "When the first message is published", unit="seconds")
    messages: int = setting(100, "How many messages are published", high=1_000_000)
    rate: float = setting(5.0, "Messages a second, all publishers together", low=0.001, high=1e5)
    publishers: int = setting(20, "Honest nodes that publish, in turn", low=1, high=100_000)
    blob_bytes: int = setting(200, "Length of a message's blob", unit="bytes", high=48 * 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPlan:
    """How long a verdict takes. One message at a time has the processor of a node."""

    cost_us: float = setting(
        200.0, "Processor time of one verdict; verdicts of a node queue for it", unit="microseconds"
    )
    delay_ms: float = setting(
        5.0, "Time a verdict waits besides that, for its batch and the disk", unit="milliseconds"
    )


class Author:
    """One sender: its key field, its lane, its next sequence number."""

    def __init__(self, number: int) -> None:
        seed = hashlib.sha256(b"luxrelay.sim.author %d" % number).digest()
        self.key_field = bytes([SignatureScheme.ED25519]) + seed
        self.lane = lane(NAMESPACE, self.key_field)
        self.seq = 0

    def write(self, blob: bytes, source: bytes, now: float) -> bytes:
        """Return the envelope of this sender's next message, announced by peer ``source``."""
        self.seq += 1
        header = MsgHeader(
            namespace_id=self.lane,
            seq=self.seq,
            timestamp=BEGIN_MS + int(now * 1000),
            blob_commitment=hashlib.sha3_256(blob).digest() if blob else c.ZERO_HASH,
            blob_len=len(blob),
            policy_hash=_POLICY,
            sender_pub_key=self.key_field,
        )
        return envelope(replace(header, signature=stand_in(header)), blob, source)


def envelope(header: MsgHeader, blob: bytes, source: bytes) -> bytes:
    """Return a type 4 envelope of a header and its blob on the simulation's topic."""
    announcement = HeaderAnnouncement(
        header_bytes=header.encode(), source=source, timestamp_ms=header.timestamp
    )
    payload = encode_header_with_blob(announcement, blob)
    return RelayMessage(type=MessageType.HEADER_WITH_BLOB, topic=TOPIC, payload=payload).encode()


def stand_in(header: MsgHeader) -> bytes:
    """Return what stands for the signature of a header: 64 bytes over hash and key."""
    return hashlib.sha512(_TAG + header.header_hash + header.sender_pub_key).digest()


class Forger:
    """Makes well-formed envelopes with fresh ids whose signature is not genuine."""

    def __init__(self) -> None:
        data = twisted(Author(-1).write(b"", b"forger", 0.0))
        at = data.index(Author(-1).lane) + c.NAMESPACE_BYTES
        self._before, self._after = data[:at], data[at + 8 :]

    def next(self, rng: random.Random) -> bytes:
        """Return the next one: another sequence number, and with it another id."""
        return self._before + rng.randbytes(8) + self._after


def twisted(data: bytes) -> bytes:
    """Return the same message with another signature: the same id, other bytes, invalid."""
    message = RelayMessage.decode(data)
    announcement, blob = decode_header_with_blob(message.payload)
    header = MsgHeader.decode(announcement.header_bytes)
    false = bytes(each ^ 0x5A for each in header.signature)
    return envelope(replace(header, signature=false), blob, announcement.source)


class TrafficJudge:
    """The stand-in validator: structure, lane, commitment, stand-in signature.

    One judge serves all nodes of a run, because a verdict depends on the bytes alone; it remembers
    the verdicts of the last ``known_max`` messages.
    """

    __slots__ = ("_known", "_known_max")

    def __init__(self, known_max: int = 65_536) -> None:
        self._known_max = known_max
        self._known: dict[bytes, tuple[VerdictKind, NamespaceId, int]] = {}

    def verdict(self, data: bytes) -> VerdictKind:
        """Return the verdict on the bytes of an envelope."""
        return self.examine(data)[0]

    @staticmethod
    def message_id(data: bytes) -> MessageId:
        """Return the id of an envelope, as the router has it."""
        return relay_message_id(RelayMessage.decode(data))

    def examine(self, data: bytes) -> tuple[VerdictKind, NamespaceId, int]:
        """Return the verdict and, of an accepted message, its lane and sequence number."""
        known = self._known.get(data)
        if known is None:
            known = _examine(data)
            if len(self._known) >= self._known_max:
                del self._known[next(iter(self._known))]
            self._known[data] = known
        return known


def _examine(data: bytes) -> tuple[VerdictKind, NamespaceId, int]:
    try:
        announcement, blob = decode_header_with_blob(RelayMessage.decode(data).payload)
        header = MsgHeader.decode(announcement.header_bytes)
    except (EnvelopeError, HeaderError):
        return VerdictKind.REJECT, NAMESPACE, 0
    genuine = (
        header.signature == stand_in(header)
        and header.namespace_id == lane(NAMESPACE, header.sender_pub_key)
        and header.blob_len == len(blob)
        and (not blob or header.blob_commitment == hashlib.sha3_256(blob).digest())
    )
    kind = VerdictKind.ACCEPT if genuine else VerdictKind.REJECT
    return kind, header.namespace_id, header.seq
