"""The store's slow and obvious twin: a list of messages, everything computed from it when asked.

Also forges the signed messages that the store tests share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from luxrelay.bus import (
    CiphertextType,
    ContentId,
    MessageId,
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    TFHECiphertext,
    attach_sidecar,
    lane,
    sha3_commitment,
    topic_namespace,
)
from luxrelay.store import IncomingMessage, NamespaceHead, NamespaceQuery, PutOutcome

NOW = 1_764_000_000_000
"""Wall clock of the store tests, Unix milliseconds."""
PARENT = topic_namespace("/store/1/tests/proto")


class Forge:
    """Makes valid signed messages; the same arguments give the same message."""

    def __init__(self) -> None:
        self._keys: dict[int, SigningKey] = {}

    def key(self, sender: int) -> SigningKey:
        """Return the key of a numbered sender."""
        if sender not in self._keys:
            seed = sender.to_bytes(32, "big")
            self._keys[sender] = SigningKey.from_seed(SignatureScheme.ED25519, seed)
        return self._keys[sender]

    def lane(self, sender: int) -> NamespaceId:
        """Return the sender's lane under `PARENT`."""
        return lane(PARENT, self.key(sender).public_field)

    def message(
        self,
        seq: int,
        *,
        sender: int = 1,
        at: int = NOW,
        received_at: int | None = None,
        blob: bytes = b"hello",
        with_blob: bool = True,
        namespace: NamespaceId = PARENT,
        parent: NamespaceId | None = None,
        source: bytes = b"",
        nonce: int = 0,
        ciphertext: bytes = b"",
        with_sidecar: bool = True,
    ) -> IncomingMessage:
        """Return a message; ``nonce`` makes another content of the same slot and sender."""
        unsigned = MsgHeader(
            namespace_id=namespace,
            seq=seq,
            timestamp=at,
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=nonce.to_bytes(32, "big"),
        )
        sidecar = None
        if ciphertext:
            encrypted = TFHECiphertext(type=CiphertextType.BYTES, data=ciphertext)
            unsigned, sidecar = attach_sidecar(unsigned, encrypted)
        header = MsgHeader.decode(self.key(sender).sign_header(unsigned).encode())
        return IncomingMessage(
            header=header,
            blob=blob if with_blob else None,
            parent=namespace if parent is None else parent,
            received_at=at if received_at is None else received_at,
            source=source,
            sidecar=sidecar if with_sidecar else None,
        )

    def in_lane(self, seq: int, sender: int, **fields: object) -> IncomingMessage:
        """Return a message in the sender's own lane."""
        return self.message(
            seq,
            sender=sender,
            namespace=self.lane(sender),
            parent=PARENT,
            **fields,  # type: ignore[arg-type]  # passed through
        )


@dataclass
class Held:
    """One message of the list."""

    message: IncomingMessage
    expires_at: int
    blob: bytes | None

    @property
    def content(self) -> ContentId:
        """Its content id."""
        return self.message.header.content_id

    @property
    def slot(self) -> tuple[NamespaceId, int]:
        """Namespace and sequence."""
        return self.message.header.namespace_id, self.message.header.seq

    @property
    def order(self) -> tuple[NamespaceId, int, ContentId]:
        """Where it stands among all: namespace, sequence, content id."""
        return *self.slot, self.content


@dataclass
class Known:
    """What stays of a namespace when its messages go."""

    parent: NamespaceId
    floor: int = 0
    ever: set[int] = field(default_factory=set)
    crown: tuple[int, bytes, int] = (0, bytes(32), 0)
    """Latest sequence, its headerHash and timestamp."""
    watermark: int | None = None
    """How far an archive has read."""


class SlowStore:
    """Does what RelayStore promises, in the simplest way."""

    def __init__(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self.held: list[Held] = []
        self.known: dict[NamespaceId, Known] = {}

    def put(self, message: IncomingMessage, now_ms: int) -> PutOutcome:
        """Decide one message by the rules of J11 and P14."""
        header = message.header
        expires_at = min(message.received_at, header.timestamp) + self.ttl_ms
        if expires_at <= now_ms:
            return PutOutcome.EXPIRED
        blob = message.blob if header.blob_len else b""
        new = Held(message, expires_at, blob)
        slot = [held for held in self.held if held.slot == new.slot]
        for held in slot:
            if held.content == new.content:
                return self._again(held, new, now_ms)
        kept = self._kept([*slot, new], now_ms)
        if new not in kept:
            self._adopt(message)
            return PutOutcome.LOST_SLOT
        self.held = [held for held in self.held if held.slot != new.slot] + kept
        known = self.known.setdefault(header.namespace_id, Known(message.parent))
        self._adopt(message)
        known.ever.add(header.seq)
        if header.seq >= known.crown[0]:
            first = kept[0].message.header
            known.crown = (header.seq, first.header_hash, first.timestamp)
        return PutOutcome.STORED

    def _again(self, held: Held, new: Held, now_ms: int) -> PutOutcome:
        if held.expires_at <= now_ms:
            return PutOutcome.EXPIRED
        held.blob = new.blob if held.blob is None else held.blob
        self._adopt(new.message)
        return PutOutcome.DUPLICATE

    def _kept(self, slot: list[Held], now_ms: int) -> list[Held]:
        """Return each sender's lowest content, the four lowest of them (J11)."""
        best: dict[bytes, Held] = {}
        for held in slot:
            sender = held.message.header.sender_pub_key
            if held.expires_at > now_ms and (
                sender not in best or held.content < best[sender].content
            ):
                best[sender] = held
        return sorted(best.values(), key=lambda held: held.content)[:4]

    def _adopt(self, message: IncomingMessage) -> None:
        known = self.known[message.header.namespace_id]
        if known.parent == message.header.namespace_id:
            known.parent = message.parent

    def skip_to(self, namespace: NamespaceId, parent: NamespaceId, seq: int) -> None:
        """Expect nothing up to ``seq``."""
        known = self.known.setdefault(namespace, Known(parent))
        if known.parent == namespace:
            known.parent = parent
        known.floor = max(known.floor, seq)

    def watermark(self, namespace: NamespaceId) -> int | None:
        """Return how far an archive has read; a lane follows its parent from 0 on (J8)."""
        known = self.known.get(namespace)
        if known is None:
            return None
        if known.watermark is not None or known.parent == namespace:
            return known.watermark
        parent = self.known.get(known.parent)
        return None if parent is None or parent.watermark is None else 0

    def hand_off(self, namespace: NamespaceId, parent: NamespaceId, seq: int) -> None:
        """Take note of how far an archive has read."""
        known = self.known.setdefault(namespace, Known(parent))
        if known.parent == namespace:
            known.parent = parent
        known.watermark = max(seq, known.watermark or 0)

    def waits(self, held: Held) -> bool:
        """Return True when an archive has yet to read a message."""
        watermark = self.watermark(held.slot[0])
        return watermark is not None and held.slot[1] > watermark

    def expire(self, now_ms: int) -> int:
        """Forget what is past its time and awaited by no archive; return how many."""
        gone = [held for held in self.held if held.expires_at <= now_ms and not self.waits(held)]
        for held in gone:
            known = self.known[held.slot[0]]
            known.floor = max(known.floor, held.slot[1])
        self.held = [held for held in self.held if held not in gone]
        return len(gone)

    def matches(self, query: NamespaceQuery, now_ms: int) -> list[Held]:
        """Return everything the query asks for, in order, without any page."""
        found = [
            held
            for held in self.held
            if held.slot[0] == query.namespace_id
            and (held.expires_at > now_ms or query.held)
            and held.slot[1] > query.from_seq
            and (not query.to_seq or held.slot[1] <= query.to_seq)
            and held.message.header.timestamp >= query.from_time
            and (not query.to_time or held.message.header.timestamp <= query.to_time)
        ]
        return sorted(found, key=lambda held: (held.slot[1], held.content))[query.offset :]

    def in_time(self, first: int, last: int, now_ms: int) -> list[Held]:
        """Return what lies in a span of time, by timestamp, namespace, sequence and content."""
        found = [
            held
            for held in self.held
            if held.expires_at > now_ms
            and first <= held.message.header.timestamp
            and (not last or held.message.header.timestamp <= last)
        ]
        return sorted(found, key=lambda held: (held.message.header.timestamp, *held.order))

    def of_sender(self, sender: bytes, first: int, last: int, now_ms: int) -> list[Held]:
        """Return what an address sent in a span of time, by namespace, sequence and content."""
        found = self.in_time(first, last, now_ms)
        return sorted(
            (held for held in found if held.message.header.sender_address == sender),
            key=lambda held: held.order,
        )

    def by_id(self, wanted: MessageId, now_ms: int) -> list[Held]:
        """Return the candidates of a slot."""
        found = [
            held
            for held in self.held
            if held.message.header.message_id == wanted and held.expires_at > now_ms
        ]
        return sorted(found, key=lambda held: held.content)

    def contiguous(self, namespace: NamespaceId) -> int:
        """Return the highest sequence with no hole above the floor."""
        known = self.known[namespace]
        head = known.floor
        while head + 1 in known.ever:
            head += 1
        return head

    def gaps(self, namespace: NamespaceId) -> list[tuple[int, int]]:
        """Return what is missing between floor and latest sequence."""
        known = self.known[namespace]
        missing = [
            seq for seq in range(known.floor + 1, known.crown[0] + 1) if seq not in known.ever
        ]
        gaps: list[tuple[int, int]] = []
        for seq in missing:
            if gaps and gaps[-1][1] == seq - 1:
                gaps[-1] = (gaps[-1][0], seq)
            else:
                gaps.append((seq, seq))
        return gaps

    def head(self, namespace: NamespaceId, size_bytes: int) -> NamespaceHead:
        """Return the head; the logical size is the one thing not computed here."""
        if namespace not in self.known:
            return NamespaceHead(namespace_id=namespace, parent=namespace)
        known = self.known[namespace]
        sequences = [held.slot[1] for held in self.held if held.slot[0] == namespace]
        return NamespaceHead(
            namespace_id=namespace,
            parent=known.parent,
            earliest_seq=min(sequences, default=0),
            contiguous_seq=self.contiguous(namespace),
            latest_seq=known.crown[0],
            latest_header_hash=known.crown[1],
            latest_timestamp=known.crown[2],
            messages=len(sequences),
            size_bytes=size_bytes,
            floor=known.floor,
        )
