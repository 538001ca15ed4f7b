"""The three doors of the node: gossip, publish and sync, on one path through the stages.

Each door turns what it gets into candidates, has them judged, writes the accepted ones as one
batch, and answers after the commit. Everything here is synchronous and thread-safe; the callers
choose the thread.

Source: LP-6420 §4.2, LP-6421 §2.1, §2.3; H17, J6, J7 and the verdict table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from luxrelay.bus import (
    Code,
    ContentId,
    MsgHeader,
    NamespaceId,
    SigningKey,
    Verdict,
    VerdictKind,
    message_id,
)
from luxrelay.bus.constants import NAMESPACE_BYTES
from luxrelay.bus.semantics import LIVE_RULES, SYNC_RULES, ContextRule
from luxrelay.bus.structure import structure_verdict
from luxrelay.bus.verdict import ACCEPTED, reject
from luxrelay.errors import HeaderError, StoreError
from luxrelay.gossip import (
    HeaderAnnouncement,
    MessageType,
    RelayMessage,
    Validate,
    encode_header_with_blob,
    topic_for_namespace,
)
from luxrelay.node.fees import FeeDesk
from luxrelay.node.logs import log
from luxrelay.node.receipts import ReceiptBook
from luxrelay.node.stages.candidate import Candidate, PeerVerdicts, VerdictCounts
from luxrelay.node.stages.copies import SecondCopies
from luxrelay.node.stages.firsts import FirstStays
from luxrelay.node.stages.global_topics import CLAIMS, GlobalTopics, keys_of
from luxrelay.node.stages.ingest import ingest
from luxrelay.node.stages.latency import LatencyHistogram
from luxrelay.node.stages.verify import Judge
from luxrelay.node.stages.write import write
from luxrelay.node.tracing import Traces
from luxrelay.node.wanted import WantedBlobs
from luxrelay.store import IncomingMessage, NamespaceHead, PutOutcome
from luxrelay.sync import PublishItem, PublishReceipt, WireMessage

_COMPLAIN_MS: Final = 60_000
"""Time between two log lines about a disk that refuses writes, milliseconds."""


class NodeStore(Protocol):
    """What the doors ask of a store."""

    def put_many(self, messages: Sequence[IncomingMessage], now_ms: int) -> list[PutOutcome]:
        """Store a group; durable when it returns."""

    def has(self, content_id: ContentId) -> bool:
        """Return True when the content is stored."""

    def has_blob(self, commitment: bytes, now_ms: int) -> bool:
        """Return True when the blob of a commitment is stored."""

    def head(self, namespace_id: NamespaceId) -> NamespaceHead:
        """Return a namespace's head."""

    def slot_holders(self, namespace_id: NamespaceId, seq: int) -> Mapping[bytes, ContentId]:
        """Return the senders of a slot's candidates, each with the content that is kept."""


Spread = Callable[[Sequence[tuple[str, bytes]]], list[int]]
"""Hands (topic, envelope) pairs to gossip; returns to how many peers each went."""

Deliver = Callable[[str, Sequence[Candidate]], None]
"""Learns, after the commit, by which door which messages came."""


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
        deliver: Deliver = lambda door, candidates: None,  # noqa: ARG005  nobody follows
    ) -> None:
        """Join the parts; ``spread`` is called from the publishing thread.

        Headers that are stored without their blob are noted in ``wanted``; what is stored is told
        to ``deliver``. What was refused is remembered of ``peers_max`` peers. Without ``globals_``
        only headers of namespace topics are taken.
        """
        self._deliver = deliver
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
        self._traces = traces or Traces()
        self.book = ReceiptBook()
        """Receipts given out; `receipts` answers from it."""
        self.receipts = self.book.receipts
        self._firsts = FirstStays(store)
        self._fault = ""
        self._complained_ms = 0
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
        found = [_published(item) for item in items]
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
        peers = iter(self._announce(fresh))
        receipts = []
        for entry, verdict in zip(found, verdicts, strict=True):
            self.counts.add("publish", verdict)
            sent = next(peers) if verdict.accepted else 0
            receipts.append(self.book.note(self._receipt(entry, verdict, sent)))
        return receipts

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
        with self._traces.batch(door, [candidate.header for candidate in candidates]) as traced:
            verdicts = self._judge.judge(candidates, rules, live=live)
            if door == "publish":
                headers = [candidate.header for candidate in candidates]
                with self._firsts.guarded(headers, verdicts) as allowed:
                    written = write(self._store, candidates, allowed, self._clock_ms())
            else:
                written = write(self._store, candidates, verdicts, self._clock_ms())
            traced["accepted"] = sum(verdict.accepted for verdict in written)
        self._settle(candidates, verdicts, written)
        faults = [verdict.reason for verdict in written if verdict.code is Code.LOCAL_FAULT]
        if faults or any(verdict.accepted for verdict in written):
            self._fault = faults[0] if faults else ""
        self._complain(written)
        self._note_blobs(candidates, verdicts, written)
        self._deliver(
            door, [c for c, verdict in zip(candidates, written, strict=True) if verdict.accepted]
        )
        return written

    def _note_blobs(
        self,
        candidates: Sequence[Candidate],
        judged: Sequence[Verdict],
        written: Sequence[Verdict],
    ) -> None:
        """Ask for the blobs that stored headers lack, and no more for those that came."""
        for candidate, before, after in zip(candidates, judged, written, strict=True):
            header = candidate.header
            if not before.accepted or not header.blob_len:
                continue
            if candidate.blob is None:
                if after.accepted:
                    self._wanted.add(
                        header, candidate.parent, _holders(candidate), source=candidate.source
                    )
            elif after.accepted or (
                after.code is Code.DUPLICATE and self._completed(header.blob_commitment)
            ):
                self._wanted.arrived(header.blob_commitment)

    def _completed(self, commitment: bytes) -> bool:
        """Whether a blob that was lacking is stored now: there may have been no room for it."""
        if self._wanted.find(commitment) is None:
            return False
        try:
            return self._store.has_blob(commitment, self._clock_ms())
        except StoreError:
            return False  # it is looked for again when it is asked for

    def _settle(
        self,
        candidates: Sequence[Candidate],
        judged: Sequence[Verdict],
        written: Sequence[Verdict],
    ) -> None:
        """Make the charges of what was stored final, and give the others back."""
        if self._fees is None:
            return
        reserved = [
            (candidate.header, after.accepted)
            for candidate, before, after in zip(candidates, judged, written, strict=True)
            if before.accepted
        ]
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
            if self._globals is not None:
                others += self._globals.announcements(
                    candidate, announcement, inline=inline, now_ms=now_ms
                )
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
            reason=verdict.reason,
            stored=verdict.accepted
            or verdict.code is Code.DUPLICATE
            # Publishing again after a long time meets another rule first, and is still safe.
            or self._store.has(header.content_id),
            peers_sent=peers_sent,
            message_id=message_id(header.namespace_id, header.seq),
            expected_seq=expected,
            digest=header.digest,
            retry_after_ms=verdict.retry_after_ms,
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
    return Candidate(header=header, blob=blob, parent=parent)


def _decode(data: bytes) -> MsgHeader | Verdict:
    try:
        return MsgHeader.decode(data)
    except HeaderError as error:
        return structure_verdict(Code(error.verdict_code))
