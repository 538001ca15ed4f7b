"""A rogue libp2p peer that sends broken messages of every kind to one relay.

Each kind breaks one rule of a message that would otherwise be accepted, so that what stops it is
the rule it names.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import trio

from luxrelay.bus import (
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
from luxrelay.gossip.rpc import encode_message
from luxrelay.net.addresses import peer_text
from luxrelay.net.raw_peer import raw_pubsub_peer

NETWORK: Final = "demo"
OVERSIZE_BYTES: Final = 60 * 1024
"""Above the 48 KiB that may travel inside an announcement (J7), below an envelope's 64 KiB."""
_PAUSE_S: Final = 0.02


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
        self._topic = topic_for_namespace(NETWORK, parent)
        material = hashlib.sha3_256(f"luxrelay rogue {seed}".encode()).digest()
        self.identity = SigningKey.from_seed(SignatureScheme.ED25519, material)
        self._key = SigningKey.from_seed(SignatureScheme.ED25519, material[::-1])
        self._seq = itertools.count(1)
        self._makers: dict[str, Callable[[MsgHeader, bytes], Corrupt]] = {
            "bad signature": self._bad_signature,
            "wrong namespace": self._wrong_namespace,
            "reserved flag": self._reserved_flag,
            "truncated": self._truncated,
            "oversize": self._oversize,
        }

    def make(
        self, count: int, accepted: Sequence[tuple[bytes, bytes]], now_ms: int
    ) -> list[Corrupt]:
        """Return ``count`` broken messages, the kinds in turn.

        Args:
            count: How many.
            accepted: (header, blob) of messages the relay has accepted, for replays; may be empty.
            now_ms: Timestamp, Unix milliseconds.

        """
        kinds = list(self._makers) + (["replayed"] if accepted else [])
        made = []
        for index, kind in zip(range(count), itertools.cycle(kinds), strict=False):
            if kind == "replayed":
                header_bytes, blob = accepted[index % len(accepted)]
                made.append(self._corrupt(kind, header_bytes, blob, ()))
            else:
                blob = f"rogue message {index}".encode()
                made.append(self._makers[kind](self._valid(blob, now_ms), blob))
        return made

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
        return self._corrupt(kind, header.encode(), blob, (header.digest,))

    def _corrupt(
        self, kind: str, header_bytes: bytes, blob: bytes, digests: tuple[bytes, ...]
    ) -> Corrupt:
        now_ms = time.time_ns() // 1_000_000
        announcement = HeaderAnnouncement.signed(header_bytes, self.identity, now_ms)
        envelope = RelayMessage(
            type=MessageType.HEADER_WITH_BLOB,
            topic=self._topic,
            payload=encode_header_with_blob(announcement, blob),
        ).encode()
        return Corrupt(kind, envelope, self._topic, digests)


def attack(
    address: str,
    identity: SigningKey,
    corrupt: Sequence[Corrupt],
    settled: Callable[[str, int], bool],
    *,
    patience_s: float,
) -> bool:
    """Send every broken message; return whether the relay has judged them all in time.

    Args:
        address: Multiaddress of the relay.
        identity: The rogue's libp2p identity.
        corrupt: What to send.
        settled: Called with the rogue's peer id and the number sent, until it returns True: the
            relay has judged them all.
        patience_s: Seconds to wait for that.

    """

    async def run() -> bool:
        topics = sorted({each.topic for each in corrupt})
        async with raw_pubsub_peer(address, identity.seed, topics=topics) as peer:
            name = peer_text(peer.host.peer_id)
            for each in corrupt:
                await peer.send_rpc(encode_message(each.topic, each.envelope))
                await trio.sleep(_PAUSE_S)
            with trio.move_on_after(patience_s):
                # The relay judges in its own process; asking is the only way to know.
                while not await trio.to_thread.run_sync(settled, name, len(corrupt)):  # noqa: ASYNC110
                    await trio.sleep(0.1)
                return True
            return False

    return trio.run(run)
