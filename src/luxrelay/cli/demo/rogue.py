"""A rogue libp2p peer that sends broken messages of every kind to one relay.

Each kind breaks one rule of a message that would otherwise be accepted, so that what stops it is
the rule it names.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from luxrelay.bus import (
    Code,
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    lane,
    sha3_commitment,
)
from luxrelay.bus.policy import default_policy
from luxrelay.gossip import (
    HeaderAnnouncement,
    MessageType,
    RelayMessage,
    encode_header_with_blob,
    topic_for_namespace,
)

NETWORK: Final = "demo"
OVERSIZE_BYTES: Final = 60 * 1024
"""Above the 48 KiB that may travel inside an announcement (J7), below an envelope's 64 KiB."""
MALFORMED: Final = "malformed"
"""What the router counts of messages that it cannot read, before there is a code."""
CODES: Final = {
    "bad signature": Code.INVALID_SIGNATURE.name.lower(),
    "wrong namespace": Code.WRONG_TOPIC.name.lower(),
    "reserved flag": Code.RESERVED_FLAGS.name.lower(),
    "truncated": MALFORMED,
    "oversize": Code.MALFORMED_PAYLOAD.name.lower(),
    "replayed": Code.DUPLICATE.name.lower(),
}
"""Each kind with the code of the rule that it breaks; no two have the same."""


@dataclass(frozen=True, slots=True)
class Corrupt:
    """One broken message."""

    kind: str
    """Which rule it breaks."""
    envelope: bytes
    """What is sent."""
    topic: str
    """The topic it is sent on."""
    digests: tuple[bytes, ...]
    """Digests under which it would be found if it had been stored; empty for a replay."""


class Rogue:
    """Makes broken messages; its peer identity and its message key are real."""

    def __init__(self, parent: NamespaceId, seed: int) -> None:
        """Aim at one namespace."""
        self._parent = parent
        self._seed = seed
        self.topic = topic_for_namespace(NETWORK, parent)
        """What its messages are sent on."""
        self.identity = self.identity_of(0)
        self._key = _key(f"luxrelay rogue's sender {seed}")
        self._seq = itertools.count(1)
        self._makers: dict[str, Callable[[MsgHeader, bytes], Corrupt]] = {
            "bad signature": self._bad_signature,
            "wrong namespace": self._wrong_namespace,
            "reserved flag": self._reserved_flag,
            "truncated": self._truncated,
            "oversize": self._oversize,
        }

    def identity_of(self, turn: int) -> SigningKey:
        """Return the libp2p identity with which it comes for the ``turn``-th time, from 0."""
        return _key(f"luxrelay rogue {self._seed} {turn}")

    def make(
        self, count: int, accepted: Sequence[tuple[bytes, bytes]], clock_ms: Callable[[], int]
    ) -> Iterator[Corrupt]:
        """Yield ``count`` broken messages, the kinds in turn, no two of the same bytes.

        Args:
            count: How many.
            accepted: (header, blob) of messages the relay has accepted, for replays; may be empty.
            clock_ms: Asked for the timestamp of each, Unix milliseconds.

        """
        kinds = list(self._makers) + (["replayed"] if accepted else [])
        replays = itertools.count()
        for index, kind in zip(range(count), itertools.cycle(kinds), strict=False):
            now_ms = clock_ms()
            if kind == "replayed":
                rounds, place = divmod(next(replays), len(accepted))
                header_bytes, blob = accepted[place]
                # The relay's stamp tells a second replay from the first: equal bytes have no code.
                yield self._corrupt(kind, header_bytes, blob, (), now_ms - rounds)
            else:
                blob = f"rogue message {index}".encode()
                yield self._makers[kind](self._valid(blob, now_ms), blob)

    def _valid(self, blob: bytes, now_ms: int) -> MsgHeader:
        return self._key.sign_header(
            MsgHeader(
                namespace_id=lane(self._parent, self._key.public_field),
                seq=next(self._seq),
                timestamp=now_ms,
                blob_commitment=sha3_commitment(blob),
                blob_len=len(blob),
                policy_hash=default_policy(self._parent).policy_hash,
            )
        )

    def _bad_signature(self, header: MsgHeader, blob: bytes) -> Corrupt:
        flipped = bytes([header.signature[0] ^ 1]) + header.signature[1:]
        return self._of("bad signature", replace(header, signature=flipped), blob)

    def _wrong_namespace(self, header: MsgHeader, blob: bytes) -> Corrupt:
        elsewhere = NamespaceId(hashlib.sha3_256(header.namespace_id).digest()[:20])
        moved = self._key.sign_header(replace(header, namespace_id=elsewhere))
        return self._of("wrong namespace", moved, blob)

    def _reserved_flag(self, header: MsgHeader, blob: bytes) -> Corrupt:
        return self._of("reserved flag", self._key.sign_header(replace(header, flags=0x80)), blob)

    def _truncated(self, header: MsgHeader, blob: bytes) -> Corrupt:
        whole = self._of("truncated", header, blob)
        return replace(whole, envelope=whole.envelope[: len(whole.envelope) // 2])

    def _oversize(self, header: MsgHeader, _blob: bytes) -> Corrupt:
        big = bytes(OVERSIZE_BYTES)
        grown = replace(header, blob_commitment=sha3_commitment(big), blob_len=len(big))
        return self._of("oversize", self._key.sign_header(grown), big)

    def _of(self, kind: str, header: MsgHeader, blob: bytes) -> Corrupt:
        return self._corrupt(kind, header.encode(), blob, (header.digest,), header.timestamp)

    def _corrupt(
        self,
        kind: str,
        header_bytes: bytes,
        blob: bytes,
        digests: tuple[bytes, ...],
        now_ms: int,
    ) -> Corrupt:
        announcement = HeaderAnnouncement.signed(header_bytes, self.identity, now_ms)
        envelope = RelayMessage(
            type=MessageType.HEADER_WITH_BLOB,
            topic=self.topic,
            payload=encode_header_with_blob(announcement, blob),
        ).encode()
        return Corrupt(kind, envelope, self.topic, digests)


def _key(name: str) -> SigningKey:
    return SigningKey.from_seed(SignatureScheme.ED25519, hashlib.sha3_256(name.encode()).digest())
