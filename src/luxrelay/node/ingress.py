"""The three doors of the node: gossip, publish and sync, on one path through the stages.

Each door turns what it gets into candidates, has them judged, writes the accepted ones as one
batch, and answers after the commit. Everything here is synchronous and thread-safe; the callers
choose the thread.

`FirstStays`: who publishes twice for one slot is told so, and keeps what it published first.

Among peers the order of a slot must not depend on who came first (J11), so there a sender's second
message may push its first one out. At the door where applications publish nothing has been promised
to anybody yet: there the second is refused, with the sequence that is free.

*Threads*: publishers are many. Looking and writing happen under a lock of the namespace, so two
that come at once cannot both be first; namespaces share `STRIPES` locks, taken in their order.

Stage one: an envelope becomes a candidate, or a verdict says why not.

Only bytes and the topic are looked at: type, announcement layout, header structure, and the blob's
length. Nothing is verified and no clock is read.

Stage three: accepted candidates go into the store as one batch; outcomes become verdicts.

What became of published messages: the receipts given out, and who has shown the message since.

Between the doors' threads and the loop of gossip: `LoopSpread` one way, `in_worker` the other.

Source: LP-6420 §4.2, LP-6421 §2.1, §2.3; H17, J6, J7 and the verdict table; user-05; LP-6420 §3.1,
§7.1; G6, G8, J6, J7 and the verdict table; LP-6421 §2.1; H17, J11, P2 and the verdict table;
user-05, user-07; decision H17.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from luxrelay.bus import (
    ACCEPTED,
    Code,
    ContentId,
    Digest,
    MessageId,
    MsgHeader,
    NamespaceId,
    SigningKey,
    Verdict,
    VerdictKind,
    message_id,
)
from luxrelay.bus.constants import LIVE_TOLERANCE_MS, NAMESPACE_BYTES
from luxrelay.bus.semantics import LIVE_RULES, SYNC_RULES, ContextRule
from luxrelay.bus.structure import structure_verdict
from luxrelay.bus.verdict import ignore, reject
from luxrelay.errors import EnvelopeError, GatewayError, HeaderError, StoreError, TopicError
from luxrelay.gossip import (
    HeaderAnnouncement,
    MessageType,
    RelayMessage,
    TopicKind,
    Validate,
    decode_header_with_blob,
    encode_header_with_blob,
    parse_topic,
    topic_for_namespace,
)
from luxrelay.gossip.announcements import parent_named
from luxrelay.node.carried import CarriedNamespaces
from luxrelay.node.fees import FeeDesk
from luxrelay.node.logs import log
from luxrelay.node.missing_blobs import WantedBlobs
from luxrelay.node.stages.copies import SecondCopies
from luxrelay.node.stages.deliver import LatencyHistogram
from luxrelay.node.stages.global_topics import CLAIMS, GlobalTopics, keys_of
from luxrelay.node.stages.verify import (
    ANNOUNCEMENT_AGE_MAX_MS,
    Candidate,
    Judge,
    PeerVerdicts,
    VerdictCounts,
)
from luxrelay.node.tracing import Traces
from luxrelay.store import IncomingMessage, NamespaceHead, PutOutcome
from luxrelay.sync import PublishItem, PublishReceipt, QuotaUse, WireMessage

if TYPE_CHECKING:
    from luxrelay.net import GossipDriver
    from luxrelay.net.peer_clocks import ClockOffset

RECEIPTS_KEPT: Final = 8_192
"""Receipts remembered; beyond it the oldest is forgotten."""
PEERS_KEPT: Final = 64
"""Peers counted for one message as having shown it back."""


class ReceiptBook:
    """The newest receipts by digest; any thread may call it."""

    def __init__(self, *, kept: int = RECEIPTS_KEPT, peers_kept: int = PEERS_KEPT) -> None:
        """Start empty."""
        self._kept = kept
        self._peers_kept = peers_kept
        self._lock = threading.Lock()
        self._receipts: OrderedDict[bytes, PublishReceipt] = OrderedDict()
        self._by_slot: dict[bytes, bytes] = {}
        self._shown: dict[bytes, set[bytes]] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._receipts)

    def note(self, receipt: PublishReceipt) -> PublishReceipt:
        """Remember an accepted message; return the receipt as it stands.

        A message that is published again keeps what is known of it: to how many peers it went,
        and who has shown it since.
        """
        with self._lock:
            before = self._receipts.get(receipt.digest)
            if before is None and not receipt.stored:
                return receipt
            if before is not None:
                receipt = replace(receipt, peers_sent=max(before.peers_sent, receipt.peers_sent))
            self._receipts[receipt.digest] = receipt
            self._by_slot[receipt.message_id] = receipt.digest
            if len(self._receipts) > self._kept:
                digest, old = self._receipts.popitem(last=False)
                if self._by_slot.get(old.message_id) == digest:
                    del self._by_slot[old.message_id]
                self._shown.pop(digest, None)
            return self._standing(receipt)

    def shown(self, peer: bytes, message_ids: Sequence[MessageId]) -> None:
        """Count that ``peer`` has announced or sent these messages to us."""
        with self._lock:
            for each in message_ids:
                digest = self._by_slot.get(each)
                if digest is not None:
                    peers = self._shown.setdefault(digest, set())
                    if len(peers) < self._peers_kept:
                        peers.add(peer)

    def receipts(self, digests: Sequence[bytes]) -> list[PublishReceipt]:
        """Return what is known of messages, in order; *ignore* for one that is not remembered."""
        with self._lock:
            found = [(digest, self._receipts.get(digest)) for digest in digests]
            return [
                self._standing(receipt) if receipt is not None else _unknown(Digest(digest))
                for digest, receipt in found
            ]

    def _standing(self, receipt: PublishReceipt) -> PublishReceipt:
        return replace(receipt, seen_back=len(self._shown.get(receipt.digest, ())))


def _unknown(digest: Digest) -> PublishReceipt:
    return PublishReceipt(
        verdict=VerdictKind.IGNORE,
        code=Code.OK,
        reason="this node does not remember the message",
        digest=digest,
    )


class PolicyStore(Protocol):
    """What writing asks of a store."""

    def put_many(self, messages: Sequence[IncomingMessage], now_ms: int) -> list[PutOutcome]:
        """Store a group; durable when it returns."""

    def why_full(self, message: IncomingMessage) -> str:
        """Return what a message that is FULL finds no room in."""


_OUTCOMES: Final = {
    PutOutcome.STORED: ACCEPTED,
    PutOutcome.DUPLICATE: ignore(Code.DUPLICATE, "the message is stored already (LP-6421 §3.2)"),
    PutOutcome.LOST_SLOT: ignore(Code.CONTENTION, "other candidates keep the slot (J11)"),
    PutOutcome.EXPIRED: ignore(Code.EXPIRED, "the message is past its time to live (P14)"),
}


def write(
    shelf: PolicyStore, candidates: Sequence[Candidate], verdicts: Sequence[Verdict], now_ms: int
) -> list[Verdict]:
    """Return the verdicts after storing every accepted candidate; durable when it returns.

    A store that cannot write is our fault, so its messages are ignored, never rejected.
    """
    accepted = [i for i, verdict in enumerate(verdicts) if verdict.accepted]
    final = list(verdicts)
    if not accepted:
        return final
    incoming = [
        IncomingMessage(
            header=candidates[i].header,
            blob=candidates[i].blob,
            parent=candidates[i].parent,
            received_at=now_ms,
            source=candidates[i].source,
            sidecar=candidates[i].sidecar,
        )
        for i in accepted
    ]
    try:
        outcomes = shelf.put_many(incoming, now_ms)
    except StoreError as error:
        fault = ignore(Code.LOCAL_FAULT, str(error))
        for index in accepted:
            final[index] = fault
        return final
    for index, message, outcome in zip(accepted, incoming, outcomes, strict=True):
        if outcome is PutOutcome.FULL:
            final[index] = ignore(Code.STORE_FULL, shelf.why_full(message))
        else:
            final[index] = _OUTCOMES[outcome]
    return final


_HEADER_TYPES: Final = frozenset({MessageType.HEADER, MessageType.HEADER_WITH_BLOB})


def ingest(
    topic: str,
    message: RelayMessage,
    source: bytes,
    *,
    inline_blob_max: int,
    parent_of: Callable[[MsgHeader, bytes], NamespaceId | None] | None = None,
) -> Candidate | Verdict:
    """Return the candidate in an envelope, or the verdict on bytes that hold none.

    Args:
        topic: The topic the transport named; the envelope must name the same.
        message: The decoded envelope.
        source: Peer id that brought it.
        inline_blob_max: Largest blob accepted inside an announcement, bytes (J7).
        parent_of: Tells the namespace of a header on ``headers/global``, given what the envelope
            names as its own; None when the node does not follow that topic.

    """
    if message.topic != topic:
        return reject(Code.WRONG_TOPIC, "envelope and transport name different topics (G6)")
    if message.type not in _HEADER_TYPES:
        return ignore(Code.UNSUPPORTED_TYPE, f"type {message.type} is not taken on this topic")
    try:
        parsed = parse_topic(topic)
    except TopicError as error:
        return reject(Code.WRONG_TOPIC, str(error))
    if parsed.kind is not TopicKind.NAMESPACE and parent_of is None:
        return ignore(Code.UNSUPPORTED_TYPE, "headers are taken on namespace topics only")
    try:
        blob: bytes | None = None
        if message.type is MessageType.HEADER_WITH_BLOB:
            announcement, blob = decode_header_with_blob(message.payload, inline_blob_max)
        else:
            announcement = HeaderAnnouncement.decode(message.payload)
    except EnvelopeError as error:
        return reject(Code.MALFORMED_PAYLOAD, str(error))
    try:
        header = MsgHeader.decode(announcement.header_bytes)
    except HeaderError as error:
        return reject(Code(error.verdict_code), error.what)
    parent = parsed.namespace_id
    if parent is None and parent_of is not None:
        parent = parent_of(header, parent_named(message))
    if parent is None:
        return ignore(Code.INVALID_NAMESPACE, "the header's namespace is not carried here")
    return Candidate(
        header=header,
        blob=blob,
        parent=parent,
        source=source,
        announcement=announcement,
    )


STRIPES: Final = 64
"""Locks that all namespaces share."""
TAKEN: Final = ignore(Code.CONTENTION, "the sender has put another message into the slot")


class Slots(Protocol):
    """What is asked of a store."""

    def head(self, namespace_id: NamespaceId) -> NamespaceHead:
        """Return a namespace's head."""

    def slot_holders(self, namespace_id: NamespaceId, seq: int) -> Mapping[bytes, ContentId]:
        """Return the senders of a slot's candidates, each with the content that is kept."""


class FirstStays:
    """Refuses a sender's second message for a slot."""

    def __init__(self, store: Slots) -> None:
        """Look into ``store``."""
        self._store = store
        self._locks = [threading.Lock() for _ in range(STRIPES)]

    @contextmanager
    def guarded(
        self, headers: Sequence[MsgHeader], verdicts: Sequence[Verdict]
    ) -> Iterator[list[Verdict]]:
        """Yield the verdicts after refusing rivals; whoever writes does so inside."""
        accepted = [i for i, verdict in enumerate(verdicts) if verdict.accepted]
        stripes = {hash(headers[i].namespace_id) % STRIPES for i in accepted}
        with ExitStack() as held:
            for stripe in sorted(stripes):
                held.enter_context(self._locks[stripe])
            yield self._judged(headers, verdicts, accepted)

    def _judged(
        self, headers: Sequence[MsgHeader], verdicts: Sequence[Verdict], accepted: Sequence[int]
    ) -> list[Verdict]:
        final = list(verdicts)
        slots: dict[tuple[NamespaceId, int], dict[bytes, ContentId]] = {}
        latest: dict[NamespaceId, int] = {}
        for index in accepted:
            header = headers[index]
            name = header.namespace_id
            if name not in latest:
                latest[name] = self._store.head(name).latest_seq
            slot = (name, header.seq)
            if slot not in slots:
                known = header.seq <= latest[name]
                slots[slot] = dict(self._store.slot_holders(name, header.seq)) if known else {}
            first = slots[slot].setdefault(header.sender_pub_key, header.content_id)
            if first != header.content_id:
                final[index] = TAKEN
        return final


_COMPLAIN_MS: Final = 60_000
"""Time between two log lines about a disk that refuses writes, milliseconds."""


class NodeStore(Protocol):
    """What the doors ask of a store."""

    def put_many(self, messages: Sequence[IncomingMessage], now_ms: int) -> list[PutOutcome]:
        """Store a group; durable when it returns."""

    def why_full(self, message: IncomingMessage) -> str:
        """Return what a message that is FULL finds no room in."""

    def has(self, content_id: ContentId) -> bool:
        """Return True when the content is stored."""

    def has_blob(self, commitment: bytes, now_ms: int) -> bool:
        """Return True when the blob of a commitment is stored."""

    def has_sidecar(self, commitment: bytes, now_ms: int) -> bool:
        """Return True when the sidecar of a commitment is stored."""

    def encoded_header(self, content_id: ContentId) -> bytes | None:
        """Return the header that is stored with a content, or None."""

    def head(self, namespace_id: NamespaceId) -> NamespaceHead:
        """Return a namespace's head."""

    def slot_holders(self, namespace_id: NamespaceId, seq: int) -> Mapping[bytes, ContentId]:
        """Return the senders of a slot's candidates, each with the content that is kept."""


Spread = Callable[[Sequence[tuple[str, bytes]]], list[int]]
"""Hands (topic, envelope) pairs to gossip; returns to how many peers each went."""

Deliver = Callable[[str, Sequence[Candidate]], None]
"""Learns, after the commit, by which door which messages came."""
Completed = Callable[[Sequence[Candidate]], None]
"""Learns of which stored messages the blobs have come."""


class Doors:
    """Where messages enter the node."""

    def __init__(
        self,
        *,
        store: NodeStore,
        judge: Judge,
        identity: SigningKey,
        network: str,
        inline_blob_max: int,
        clock_ms: Callable[[], int],
        spread: Spread,
        wanted: WantedBlobs,
        globals_: GlobalTopics | None = None,
        fees: FeeDesk | None = None,
        traces: Traces | None = None,
        peers_max: int = 128,
        carried: CarriedNamespaces | None = None,
        deliver: Deliver = lambda door, candidates: None,  # noqa: ARG005  nobody follows
        completed: Completed = lambda candidates: None,  # noqa: ARG005  nobody follows
        announced: Callable[[bytes, int], None] = lambda peer, stamp_ms: None,  # noqa: ARG005
    ) -> None:
        """Join the parts; ``spread`` is called from the publishing thread.

        Headers that are stored without their blob are noted in ``wanted``; what is stored is told
        to ``deliver``, and of which stored ones the blobs came to ``completed``. What was refused
        is remembered of ``peers_max`` peers. Without ``globals_`` only headers of namespace topics
        are taken. An open node follows the namespaces that are published to here (``carried``).
        ``announced`` learns when peers announced what they published themselves, by their clocks.
        """
        opened = carried is not None and carried.everything
        self._demanded = carried.demanded if carried is not None and opened else None
        self._deliver = deliver
        self._tell_completed = completed
        self._store = store
        self._judge = judge
        self._identity = identity
        self._network = network
        self._inline_blob_max = inline_blob_max
        self._clock_ms = clock_ms
        self._spread = spread
        self._wanted = wanted
        self._globals = globals_
        self._copies = SecondCopies(
            lambda candidates: self._pass("gossip", candidates, LIVE_RULES), judge.announcement
        )
        self._fees = fees
        self._traces = traces if traces is not None and traces.on else None
        self.book = ReceiptBook()
        """Receipts given out; `receipts` answers from it."""
        self.receipts = self.book.receipts
        self.quotas: Callable[[Sequence[bytes]], list[QuotaUse]] = (
            (lambda accounts: [QuotaUse(account=each) for each in accounts])
            if fees is None
            else fees.quotas
        )
        """What was counted of prepaid quotas, by account."""
        self._firsts = FirstStays(store)
        self._fault = ""
        self._complained_ms = 0
        self._announced = announced
        self.peers_clock: ClockOffset | None = None
        """What the peers' clocks say of ours, set anew every second; None before (G36)."""
        self.counts = VerdictCounts()
        """Verdicts by door, kind and code."""
        self.refused = PeerVerdicts(peers_max)
        """Of which peer what was refused over gossip, by code."""
        self.latency = LatencyHistogram()
        """Milliseconds from a header's timestamp to its commit here, gossip only (G31)."""

    def gossip(self, batch: Sequence[Validate]) -> list[VerdictKind]:
        """Return the verdict kinds on a batch from peers; accepted ones are durable."""
        found = [self._arrived(item) for item in batch]
        verdicts = self._copies.judged(found, [item.topic for item in batch])
        now_ms = self._clock_ms()
        for item, entry, verdict in zip(batch, found, verdicts, strict=True):
            around = entry.announcement if isinstance(entry, Candidate) else None
            if around is not None and around.source == item.peer:
                self._announced(item.peer, around.timestamp_ms)
            self.counts.add("claims" if item.message.type in CLAIMS else "gossip", verdict)
            self.refused.add(item.peer, verdict)
            if verdict.code is Code.OK and isinstance(entry, Candidate):
                self.latency.observe(now_ms - entry.header.timestamp)
        return [verdict.kind for verdict in verdicts]

    def publish(self, items: Sequence[PublishItem]) -> list[PublishReceipt]:
        """Return a receipt for each message an application hands in.

        Accepted messages are durable before they are spread and before the receipt leaves. A
        message that is stored already is answered as stored, so that publishing again is safe.

        Source: user-05, user-07.
        """
        found = [self._published(item) for item in items]
        candidates = [entry for entry in found if isinstance(entry, Candidate)]
        judged = iter(self._pass("publish", candidates, LIVE_RULES))
        verdicts = [entry if isinstance(entry, Verdict) else next(judged) for entry in found]
        fresh = [
            entry
            for entry, verdict in zip(found, verdicts, strict=True)
            if verdict.accepted and isinstance(entry, Candidate)
        ]
        for candidate in fresh:  # before it is spread: a peer may show it at once
            self.book.note(self._receipt(candidate, ACCEPTED, 0))
        if self._demanded is not None:
            self._demand(fresh, self._demanded)
        peers = iter(self._announce(fresh))
        receipts = []
        for entry, verdict in zip(found, verdicts, strict=True):
            self.counts.add("publish", verdict)
            sent = next(peers) if verdict.accepted else 0
            receipts.append(self.book.note(self._receipt(entry, verdict, sent)))
        return receipts

    @staticmethod
    def _demand(candidates: Sequence[Candidate], demanded: Callable[[NamespaceId], object]) -> None:
        """Have an open node follow the namespaces; a message that is stored spreads anyhow."""
        for parent in dict.fromkeys(candidate.parent for candidate in candidates):
            try:
                demanded(parent)
            except (GatewayError, OSError) as error:
                log(logging.WARNING, "a namespace is not followed", error=str(error))

    def history(self, parent: NamespaceId, messages: Sequence[WireMessage]) -> list[Verdict]:
        """Return the verdict on each message that a relay served; accepted ones are durable.

        Source: LP-6421 §2.3; the verdict table's sync column.
        """
        found = [_served(message, parent) for message in messages]
        candidates = [entry for entry in found if isinstance(entry, Candidate)]
        judged = iter(self._pass("sync", candidates, SYNC_RULES, live=False))
        verdicts = [entry if isinstance(entry, Verdict) else next(judged) for entry in found]
        for verdict in verdicts:
            self.counts.add("sync", verdict)
        return verdicts

    def fault(self) -> str:
        """Return why the disk refused the last write; empty while it takes them.

        A full store is no fault: a sender can fill it, and its metric says so.
        """
        return self._fault

    def _arrived(self, item: Validate) -> Candidate | Verdict:
        size = len(item.data)
        for _ in range(keys_of(item.message)):
            admitted = self._judge.admit(item.peer, size)
            if not admitted.accepted:
                return admitted
            size = 0
        parent_of = None
        if self._globals is not None:
            claim = self._globals.claim(item, self._clock_ms())
            if claim is not None:
                return claim
            parent_of = self._globals.parent_of
        return ingest(
            item.topic,
            item.message,
            item.peer,
            inline_blob_max=self._inline_blob_max,
            parent_of=parent_of,
        )

    def _pass(
        self,
        door: str,
        candidates: Sequence[Candidate],
        rules: Sequence[ContextRule],
        *,
        live: bool = True,
    ) -> list[Verdict]:
        with self._traced(door, candidates) as traced:
            reserved: list[int] = []
            verdicts = self._judge.judge(candidates, rules, live=live, reserved=reserved)
            if door == "publish":
                headers = [candidate.header for candidate in candidates]
                with self._firsts.guarded(headers, verdicts) as allowed:
                    written = write(self._store, candidates, allowed, self._clock_ms())
            else:
                written = write(self._store, candidates, verdicts, self._clock_ms())
            traced["accepted"] = sum(verdict.accepted for verdict in written)
        self._settle([(candidates[i].header, written[i].accepted) for i in reserved])
        faults = [verdict.reason for verdict in written if verdict.code is Code.LOCAL_FAULT]
        if faults or any(verdict.accepted for verdict in written):
            self._fault = faults[0] if faults else ""
        self._complain(written)
        self._note_blobs(candidates, verdicts, written)
        self._deliver(
            door, [c for c, verdict in zip(candidates, written, strict=True) if verdict.accepted]
        )
        return written

    def _traced(
        self, door: str, candidates: Sequence[Candidate]
    ) -> AbstractContextManager[dict[str, int]]:
        if self._traces is None:
            return nullcontext({})
        return self._traces.batch(door, [candidate.header for candidate in candidates])

    def _note_blobs(
        self,
        candidates: Sequence[Candidate],
        judged: Sequence[Verdict],
        written: Sequence[Verdict],
    ) -> None:
        """Ask for the blobs that stored headers lack, and no more for those that came."""
        completed = []
        for candidate, before, after in zip(candidates, judged, written, strict=True):
            header, came = candidate.header, False
            if not before.accepted:
                continue
            if header.tfhe_sidecar is not None:
                commitment = header.tfhe_sidecar.commitment
                came = self._note_blob(
                    candidate, candidate.sidecar, commitment, after, sidecar=True
                )
            if header.blob_len:
                commitment = header.blob_commitment
                came |= self._note_blob(candidate, candidate.blob, commitment, after)
            if came:
                completed.append(candidate)
        if completed:
            self._tell_completed(completed)

    def _note_blob(
        self,
        candidate: Candidate,
        blob: bytes | None,
        commitment: bytes,
        after: Verdict,
        *,
        sidecar: bool = False,
    ) -> bool:
        """Ask for what a stored header lacks; return whether that came to one stored before."""
        if blob is None:
            if after.accepted:
                self._wanted.add(
                    candidate.header,
                    candidate.parent,
                    _holders(candidate),
                    source=candidate.source,
                    sidecar=sidecar,
                )
        elif commitment in self._wanted.named and (
            after.accepted
            or (after.code is Code.DUPLICATE and self._completed(commitment, sidecar=sidecar))
        ):
            self._wanted.arrived(commitment, sidecar=sidecar)
            return not after.accepted
        return False

    def _completed(self, commitment: bytes, *, sidecar: bool = False) -> bool:
        """Whether what was lacking is stored now: there may have been no room for it."""
        if self._wanted.find(commitment) is None:
            return False
        held = self._store.has_sidecar if sidecar else self._store.has_blob
        try:
            return held(commitment, self._clock_ms())
        except StoreError:
            return False  # it is looked for again when it is asked for

    def _settle(self, reserved: Sequence[tuple[MsgHeader, bool]]) -> None:
        """Make the charges of what was stored final, and give the others back."""
        if self._fees is None or not reserved:
            return
        try:
            self._fees.settle(reserved)
        except StoreError as error:
            log(logging.ERROR, "a quota's account is not kept", error=str(error))

    def _complain(self, verdicts: Sequence[Verdict]) -> None:
        """Tell the operator of a disk that refuses writes, now and then."""
        broken = [verdict.reason for verdict in verdicts if verdict.code is Code.LOCAL_FAULT]
        now_ms = self._clock_ms()
        if broken and now_ms - self._complained_ms >= _COMPLAIN_MS:
            self._complained_ms = now_ms
            log(logging.ERROR, "the store refuses writes", error=broken[0], lost=len(broken))

    def _announce(self, candidates: Sequence[Candidate]) -> list[int]:
        """Spread what was published; return to how many peers of its namespace each went."""
        own, others = [], []
        now_ms = self._clock_ms()
        for candidate in candidates:
            header_bytes, blob = candidate.header.encode(), candidate.blob or b""
            announcement = HeaderAnnouncement.signed(header_bytes, self._identity, now_ms)
            inline = bool(blob) and len(blob) <= self._inline_blob_max
            message = RelayMessage(
                type=MessageType.HEADER_WITH_BLOB if inline else MessageType.HEADER,
                topic=topic_for_namespace(self._network, candidate.parent),
                payload=encode_header_with_blob(announcement, blob)
                if inline
                else announcement.encode(),
            )
            own.append((message.topic, message.encode()))
            if self._globals is not None and self._globals.announces:
                others += self._globals.announcements(candidate, message, now_ms=now_ms)
        return self._spread([*own, *others])[: len(own)]

    def _receipt(
        self, entry: Candidate | Verdict, verdict: Verdict, peers_sent: int
    ) -> PublishReceipt:
        if isinstance(entry, Verdict):
            return PublishReceipt(verdict=verdict.kind, code=verdict.code, reason=verdict.reason)
        header = entry.header
        lost = verdict.code in {Code.CONTENTION, Code.SEQUENCE_GAP}
        expected = self._store.head(header.namespace_id).latest_seq + 1 if lost else 0
        return PublishReceipt(
            verdict=verdict.kind,
            code=verdict.code,
            reason=self._told_reason(header, verdict),
            stored=verdict.accepted
            or verdict.code is Code.DUPLICATE
            # Publishing again after a long time meets another rule first, and is still safe.
            or self._holds(header),
            peers_sent=peers_sent,
            message_id=message_id(header.namespace_id, header.seq),
            expected_seq=expected,
            digest=header.digest,
            retry_after_ms=verdict.retry_after_ms,
        )

    def _told_reason(self, header: MsgHeader, verdict: Verdict) -> str:
        """Return the reason of a receipt, with what the peers' clocks add to it (G36)."""
        clock = self.peers_clock
        if clock is None or not clock.known:
            return verdict.reason
        if verdict.code is Code.TIMESTAMP_INVALID and abs(clock.offset_ms) > LIVE_TOLERANCE_MS:
            return f"{verdict.reason}; this node's clock is {clock.text}: set it (G36)"
        doubt = clock_doubt(clock, header.timestamp - self._clock_ms())
        if verdict.accepted and doubt:
            return f"stored here; {doubt}"
        known = verdict.code is Code.DUPLICATE and doubt
        return f"{verdict.reason}; {doubt}" if known else verdict.reason

    def _published(self, item: PublishItem) -> Candidate | Verdict:
        """Return the candidate of an item; a sidecar comes with it, or is here already."""
        candidate = _published(item)
        if isinstance(candidate, Verdict):
            return candidate
        reference = candidate.header.tfhe_sidecar
        if item.sidecar:
            return replace(candidate, sidecar=item.sidecar)
        if reference is None or self._store.has_sidecar(reference.commitment, self._clock_ms()):
            return candidate
        return reject(
            Code.SIDECAR_INVALID,
            "the header refers to a TFHE sidecar that did not come with it: publish both together "
            "(LP-6411 §2.10)",
        )

    def _holds(self, header: MsgHeader) -> bool:
        """Whether the message is stored; one with a sidecar, with this sidecar (H3)."""
        if header.tfhe_sidecar is None:
            return self._store.has(header.content_id)
        return self._store.encoded_header(header.content_id) == header.encode()


def clock_doubt(clock: ClockOffset, ahead_ms: int) -> str:
    """Return why others refuse a live message of a time; empty when their clocks take it.

    Args:
        clock: What the peers' clocks say of ours.
        ahead_ms: How far the message's timestamp is ahead of our clock, milliseconds.

    Source: H14, G9, G36.

    """
    theirs_ms = ahead_ms + clock.offset_ms
    wrong = abs(clock.offset_ms) > LIVE_TOLERANCE_MS
    refused = abs(theirs_ms) > LIVE_TOLERANCE_MS or abs(clock.offset_ms) > ANNOUNCEMENT_AGE_MAX_MS
    if not (wrong or refused):
        return ""
    end = "others refuse it as live until the clock is set" if refused else "set the clock"
    return (
        f"this node's clock is {clock.text}, the timestamp {abs(theirs_ms) / 1000:,.1f} s "
        f"{'ahead of' if theirs_ms >= 0 else 'behind'} it; {LIVE_TOLERANCE_MS / 1000:g} s are "
        f"allowed: {end} (G36)"
    )


def _holders(candidate: Candidate) -> tuple[bytes, ...]:
    """Return who may have the blob of a header that came alone: its announcer, its bringer."""
    announcer = b"" if candidate.announcement is None else candidate.announcement.source
    return tuple(dict.fromkeys(filter(None, (announcer, candidate.source))))


def _published(item: PublishItem) -> Candidate | Verdict:
    if item.parent_id and len(item.parent_id) != NAMESPACE_BYTES:
        return reject(Code.INVALID_NAMESPACE, "parent_id has not 20 bytes (LP-6410)")
    header = _decode(item.header)
    if isinstance(header, Verdict):
        return header
    parent = NamespaceId(item.parent_id) if item.parent_id else header.namespace_id
    return Candidate(header=header, blob=item.blob, parent=parent)


def _served(message: WireMessage, parent: NamespaceId) -> Candidate | Verdict:
    header = _decode(message.header)
    if isinstance(header, Verdict):
        return header
    # A relay may hold a header without its blob; an empty answer then says nothing about it.
    blob = None if not message.blob and header.blob_len else message.blob
    return Candidate(header=header, blob=blob, parent=parent, sidecar=message.sidecar or None)


def _decode(data: bytes) -> MsgHeader | Verdict:
    try:
        return MsgHeader.decode(data)
    except HeaderError as error:
        return structure_verdict(Code(error.verdict_code))


def wall_ms() -> int:
    """Return the wall clock by which messages are judged, Unix milliseconds."""
    return time.time_ns() // 1_000_000


class LoopSpread:
    """Hands messages from a publishing thread to the gossip loop; made on that loop."""

    def __init__(self) -> None:
        """Spread to nobody until there is a driver."""
        self.driver: GossipDriver | None = None
        self._token = trio.lowlevel.current_trio_token()

    def __call__(self, items: Sequence[tuple[str, bytes]]) -> list[int]:
        """Return to how many peers each item went."""
        if not items or self.driver is None:
            return [0] * len(items)
        try:
            return trio.from_thread.run(self.driver.publish, items, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            # The node is stopping: the messages are stored, and peers will ask for them.
            return [0] * len(items)


def in_worker(doors: Doors) -> Callable[[list[Validate]], Any]:
    """Return what judges and stores a batch of gossip beside the loop."""

    async def validate(batch: list[Validate]) -> list[VerdictKind]:
        return await trio.to_thread.run_sync(doors.gossip, batch)

    return validate
