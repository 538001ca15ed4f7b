"""Chat messages become signed headers in the senders' lanes, and go to one relay at a pace."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from luxrelay.bus import (
    HybridClock,
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    lane,
    sha3_commitment,
    topic_namespace,
    unpack_stamp,
)
from luxrelay.bus.policy import default_policy
from luxrelay.errors import DemoError
from luxrelay.sim import ChatMessage
from luxrelay.sync import PublishItem, PublishReceipt, RelaySyncClient

BATCH: Final = 32
"""Messages handed over at once: about what one heartbeat of a busy network brings."""


def content_topic(channel: str) -> str:
    """Return the content topic of a chat channel."""
    return f"/demo/1/{channel}"


@dataclass(slots=True)
class _Lane:
    key: SigningKey
    parent: NamespaceId
    policy_hash: bytes
    namespace_id: NamespaceId
    seq: int = 0


@dataclass(slots=True)
class Signer:
    """Gives each (channel, sender) a key and a lane, and signs in sequence.

    Keys come from the sender's name and the seed, so that a run can be repeated.
    """

    seed: int
    """Seed of the run."""
    clock: HybridClock = field(default_factory=HybridClock)
    """Stamps headers; never goes back."""
    lanes: dict[tuple[str, str], _Lane] = field(default_factory=dict)
    """By channel and sender."""

    def sign(self, message: ChatMessage, now_ms: int) -> tuple[MsgHeader, PublishItem]:
        """Return the next header of the sender's lane, and what a relay is handed."""
        place = self.lanes.get((message.channel, message.sender))
        if place is None:
            place = self.lanes[message.channel, message.sender] = self._new_lane(message)
        place.seq += 1
        blob = message.payload()
        header = place.key.sign_header(
            MsgHeader(
                namespace_id=place.namespace_id,
                seq=place.seq,
                timestamp=unpack_stamp(self.clock.now(now_ms))[0],
                blob_commitment=sha3_commitment(blob),
                blob_len=len(blob),
                policy_hash=place.policy_hash,
            )
        )
        return header, PublishItem(header=header.encode(), blob=blob, parent_id=place.parent)

    def _new_lane(self, message: ChatMessage) -> _Lane:
        name = f"luxrelay demo {self.seed} {message.sender}".encode()
        key = SigningKey.from_seed(SignatureScheme.ED25519, hashlib.sha3_256(name).digest())
        parent = topic_namespace(content_topic(message.channel))
        return _Lane(
            key, parent, default_policy(parent).policy_hash, lane(parent, key.public_field)
        )


@dataclass(frozen=True, slots=True)
class Published:
    """One accepted message."""

    header: MsgHeader
    """As it was signed."""
    item: PublishItem
    """As it was handed over."""
    at_s: float
    """Seconds since the start when its receipt came."""


class DemoPublisher:
    """Publishes through one relay; every message must be accepted and durable."""

    def __init__(
        self,
        relay: RelaySyncClient,
        signer: Signer,
        *,
        rate: int,
        seconds: Callable[[], float],
    ) -> None:
        """Publish at ``rate`` messages a second, 0 for as fast as receipts come."""
        self._relay = relay
        self._signer = signer
        self._rate = rate
        self._seconds = seconds
        self.published: list[Published] = []

    def publish(self, messages: Sequence[ChatMessage], on_batch: Callable[[], None]) -> None:
        """Publish all; ``on_batch`` is called after each batch.

        Raises:
            DemoError: a message was not accepted.

        """
        due = time.monotonic()
        for start in range(0, len(messages), BATCH):
            batch = messages[start : start + BATCH]
            if self._rate:
                time.sleep(max(0.0, due - time.monotonic()))
                due = max(due, time.monotonic() - 1.0) + len(batch) / self._rate
            signed = [self._signer.sign(m, time.time_ns() // 1_000_000) for m in batch]
            receipts = self._relay.publish(item for _, item in signed)
            at_s = self._seconds()
            for (header, item), receipt in zip(signed, receipts, strict=True):
                _require_stored(header, receipt)
                self.published.append(Published(header, item, at_s))
            on_batch()


def _require_stored(header: MsgHeader, receipt: PublishReceipt) -> None:
    if not receipt.stored:
        raise DemoError(
            f"message {header.seq} of lane {header.namespace_id.hex()} was refused: "
            f"{receipt.reason}",
            where="publish",
        )
