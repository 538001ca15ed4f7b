"""Stage two: candidates are judged, the cheap rules first, signatures last and in groups.

Order for one candidate (G20, H29): the rules on context, what the store already holds, the
blob, the announcer's signature, the sender's signature, the order of timestamps within the group,
and then what may be asked of a proven sender only. Signatures of a large group are shared among
threads, because libsodium releases the GIL.

A `Candidate` is a message on its way through the stages.

Source: LP-6411 §3.2; G8, G9, G20 and the verdict table.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from luxrelay.bus import (
    ACCEPTED,
    Code,
    ContentId,
    MsgHeader,
    NamespaceId,
    ValidationContext,
    Verdict,
    VerdictKind,
    check_blob,
    check_sidecar,
    verify_header,
)
from luxrelay.bus.bound import verify_header_bound
from luxrelay.bus.constants import SIDECAR_BYTES
from luxrelay.bus.finality import FinalityOracle
from luxrelay.bus.policy import NamespacePolicy
from luxrelay.bus.registry import PolicySource
from luxrelay.bus.semantics import (
    FREE_ONLY,
    ORDER_RULES,
    PROVEN_RULES,
    VIEW_RULES,
    ContextRule,
    check_context,
    signature_verdict,
)
from luxrelay.bus.verdict import ignore, reject
from luxrelay.gossip import HeaderAnnouncement
from luxrelay.node.fees import FeeDesk
from luxrelay.node.rates import NodeRates
from luxrelay.store import RelayStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A well-formed message that still has to be judged."""

    header: MsgHeader
    """The decoded header; its bytes are the ones that arrived."""
    blob: bytes | None
    """The payload, or None when only the header came."""
    parent: NamespaceId
    """The namespace whose topic or sync request brought it."""
    source: bytes = b""
    """Peer id it came from; empty for our own publications and for sync."""
    announcement: HeaderAnnouncement | None = None
    """What a relay signed around the header (G8); None for our own and for sync."""
    judged: bool = False
    """The same header was accepted moments ago, without its blob; nothing is charged again."""
    sidecar: bytes | None = None
    """The TFHE sidecar, or None when the header refers to none or came without it."""


class VerdictCounts:
    """Counts verdicts by door, kind and code; any thread may add."""

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, VerdictKind, Code]] = Counter()

    def add(self, door: str, verdict: Verdict) -> None:
        """Count one verdict; ``door`` is ``gossip``, ``claims``, ``publish`` or ``sync``."""
        with self._lock:
            self._counts[door, verdict.kind, verdict.code] += 1

    def snapshot(self) -> dict[tuple[str, VerdictKind, Code], int]:
        """Return a copy of all counts."""
        with self._lock:
            return dict(self._counts)

    def total(self, door: str, kind: VerdictKind) -> int:
        """Return how often ``door`` answered ``kind``."""
        return sum(n for (d, k, _), n in self.snapshot().items() if (d, k) == (door, kind))


class PeerVerdicts:
    """Counts what was refused of each peer's messages by code; any thread may add.

    At most ``peers_max`` peers that something was refused of; beyond it the one that was refused
    longest ago is forgotten. A peer that left and came back is counted on.
    """

    def __init__(self, peers_max: int) -> None:
        """Start without peers."""
        self._peers_max = peers_max
        self._lock = threading.Lock()
        self._refused: OrderedDict[bytes, Counter[Code]] = OrderedDict()

    def add(self, peer: bytes, verdict: Verdict) -> None:
        """Count a verdict on a message that a peer brought, unless it was accepted."""
        if verdict.accepted:
            return
        with self._lock:
            self._refused.setdefault(peer, Counter())[verdict.code] += 1
            self._refused.move_to_end(peer)
            while len(self._refused) > self._peers_max:
                self._refused.popitem(last=False)

    def of(self, peer: bytes) -> Mapping[Code, int]:
        """Return how many of a peer's messages were refused, by code."""
        with self._lock:
            return dict(self._refused.get(peer, ()))


UNSIGNED_SIDECAR: Final = ignore(
    Code.SIDECAR_INVALID,
    "this network's signatures leave out the reference to a TFHE sidecar, so any relay could swap "
    'it: sign for a network with node.signing = "bound", or set node.unsigned_sidecars (H3)',
)
SWAPPED_SIDECAR: Final = ignore(
    Code.SIDECAR_INVALID,
    "the same signed content is stored with another TFHE sidecar; the first one stays (H3)",
)

_GROUP_MIN: Final = 32
"""Fewer signatures than this are not worth a second thread."""


class KnownMessages(Protocol):
    """What judging asks of a store."""

    def has(self, content_id: ContentId) -> bool:
        """Return True when the content is stored."""

    def get_blob(self, commitment: bytes) -> bytes | None:
        """Return a stored blob, or None."""

    def has_sidecar(self, commitment: bytes) -> bool:
        """Return True when the sidecar of a commitment is stored."""

    def encoded_header(self, content_id: ContentId) -> bytes | None:
        """Return the header that is stored with a content, or None."""

    def contiguous_seq(self, namespace_id: NamespaceId) -> int:
        """Return the contiguous head of a namespace."""

    def predecessor(self, namespace_id: NamespaceId, seq: int) -> tuple[int, int] | None:
        """Return sequence and timestamp of the nearest message before a slot, or None."""


class PolicyHashes(Protocol):
    """What judging asks of namespaces of which the hash is all that is known; a mapping will do."""

    def get(self, parent: NamespaceId, default: frozenset[bytes], /) -> frozenset[bytes]:
        """Return the hashes in force."""


class StoreKnowledge:
    """Answers a judge from a store."""

    def __init__(self, store: RelayStore) -> None:
        """Ask ``store``."""
        self.has = store.has
        self.get_blob = store.get_blob
        self.has_sidecar = store.has_sidecar
        self.encoded_header = store.encoded_header
        self.predecessor = store.predecessor
        self._head = store.head

    def contiguous_seq(self, namespace_id: NamespaceId) -> int:
        """Return the contiguous head of a namespace."""
        return self._head(namespace_id).contiguous_seq


ANNOUNCEMENT_AGE_MAX_MS: Final = 60_000
"""How far an announcement's timestamp may be from our clock, milliseconds (G9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """Bounds of judging."""

    ttl_ms: int
    """Time to live of the store, milliseconds."""
    ahead_max: int = 1024
    """How far ahead of our head a live message may be, sequences (H16)."""
    announcement_age_max_ms: int = ANNOUNCEMENT_AGE_MAX_MS
    """How far an announcement's timestamp may be from our clock, milliseconds (G9)."""
    threads: int = 2
    """Threads that verify signatures of one group."""
    bound_network: str = ""
    """Network whose headers are signed bound to it; empty for LP-6411's own signatures (H3)."""
    unsigned_sidecars: bool = False
    """Take sidecars also where no signature covers their reference (H3)."""


class Judge:
    """Gives verdicts on groups of candidates; any thread may call it."""

    def __init__(
        self,
        known: KnownMessages,
        policy_hashes: PolicyHashes,
        config: JudgeConfig,
        clock_ms: Callable[[], int],
        *,
        registry: PolicySource | None = None,
        rates: NodeRates | None = None,
        fees: FeeDesk | None = None,
        finality: FinalityOracle | None = None,
    ) -> None:
        """Take the store to ask, the policies in force, the bounds and the wall clock.

        Args:
            known: The store.
            policy_hashes: Namespaces of which the hash is all that is known.
            config: Bounds.
            clock_ms: The wall clock, Unix milliseconds.
            registry: Full policies; a namespace it knows is checked by them.
            rates: Limits of live messages; None limits nothing.
            fees: What messages cost; None takes free ones only.
            finality: What consensus says; None leaves every message pending (J9).

        """
        self._known = known
        self._policies = policy_hashes
        self._config = config
        self._clock_ms = clock_ms
        self._registry = registry
        self._rates = rates
        self._fees = fees
        self._finality = finality
        self._pool = ThreadPoolExecutor(config.threads, thread_name_prefix="verify")

    def close(self) -> None:
        """End the verifying threads."""
        self._pool.shutdown()

    def admit(self, peer: bytes, size: int) -> Verdict:
        """Return whether a peer may bring one more message now, before anything is parsed (G20)."""
        if self._rates is None or self._rates.admit(peer, size):
            return ACCEPTED
        return ignore(Code.RATE_LIMITED, "the peer sends more than it may (LP-6422)")

    def judge(
        self,
        candidates: Sequence[Candidate],
        rules: Iterable[ContextRule],
        *,
        live: bool = True,
        reserved: list[int] | None = None,
    ) -> list[Verdict]:
        """Return the verdict on each candidate, in order.

        A duplicate inside the group is found by the store, which keeps the first. Rates are
        those of live messages; history is not measured by them.

        Args:
            candidates: What came.
            rules: What is asked of it.
            live: Whether it is of now; else it is history.
            reserved: Takes the places of the candidates whose fee is reserved now, for
                `FeeDesk.settle`.

        """
        now_ms = self._clock_ms()
        taken: list[int] = [] if reserved is None else reserved
        ordered = tuple(rules)
        rates = self._rates if live else None
        # Nothing is written meanwhile, so a namespace of the group is looked up once.
        names = {candidate.header.namespace_id for candidate in candidates}
        reached = {name: self._known.contiguous_seq(name) for name in names}
        contexts = [
            self._context(candidate, now_ms, rates, reached, live=live) for candidate in candidates
        ]
        verdicts = [
            self._cheap(candidate, context, ordered)
            for candidate, context in zip(candidates, contexts, strict=True)
        ]
        # Signatures last and together: one costs more than all cheap rules, and a large group of
        # them is shared among threads. Rates are charged behind them, or a forger would spend a
        # sender's.
        open_at = [i for i, verdict in enumerate(verdicts) if verdict.accepted]
        checked = self._signatures([candidates[i] for i in open_at])
        for index, verdict in zip(open_at, checked, strict=True):
            verdicts[index] = verdict
        if live:
            _keep_order(candidates, contexts, verdicts)
        for index in open_at:
            if verdicts[index].accepted:
                verdicts[index] = self._proven(
                    candidates[index], contexts[index], rates, partial(taken.append, index)
                )
        return verdicts

    def _context(
        self,
        candidate: Candidate,
        now_ms: int,
        rates: NodeRates | None,
        reached: Mapping[NamespaceId, int],
        *,
        live: bool,
    ) -> ValidationContext:
        header, parent = candidate.header, candidate.parent
        hashes = self._policies.get(parent, frozenset())
        policies: dict[bytes, NamespacePolicy] = {}
        if self._registry is not None:
            seq = header.seq if header.namespace_id == parent else None  # a lane counts for itself
            records = self._registry.in_force(parent, seq, header.timestamp)
            policies = {record.policy_hash: record.policy for record in records}
            hashes = hashes | policies.keys()

        def over_limit(header: MsgHeader) -> bool:
            return rates is not None and rates.over(
                header, parent, policies.get(header.policy_hash)
            )

        def rate_answer(header: MsgHeader) -> Verdict:
            assert rates is not None, "only what rates refuse is answered"
            return rates.answer(header, parent, policies.get(header.policy_hash))

        finalized = 0
        if self._finality is not None:
            finalized = self._finality.finalized_seq(header.namespace_id)
        before = self._known.predecessor(header.namespace_id, header.seq) if live else None
        before_seq, before_ms = before or (0, None)
        return ValidationContext(
            now_ms=now_ms,
            parent=parent,
            policy_hashes=hashes,
            policies=policies,
            contiguous_seq=reached[header.namespace_id],
            ahead_max=self._config.ahead_max,
            ttl_ms=self._config.ttl_ms,
            predecessor_ms=before_ms,
            predecessor_seq=before_seq,
            predecessor_final=0 < before_seq <= finalized,
            finalized_seq=finalized,
            over_limit=None if rates is None or candidate.judged else over_limit,
            rate_answer=None if rates is None or candidate.judged else rate_answer,
            fees=FREE_ONLY if self._fees is None else self._fees.verifiers,
        )

    def _cheap(
        self, candidate: Candidate, context: ValidationContext, rules: Sequence[ContextRule]
    ) -> Verdict:
        header, now_ms = candidate.header, context.now_ms
        verdict = check_context(header, context, rules)
        if not verdict.accepted:
            return verdict
        if header.tfhe_sidecar is not None and not self._signs_sidecars():
            return UNSIGNED_SIDECAR
        if (
            self._known.has(header.content_id)
            and not self._completes(candidate)
            and not self._is_swapped(header)
        ):
            return ignore(Code.DUPLICATE, "the message is stored already (LP-6421 §3.2)")
        return self._around(candidate, now_ms)

    def in_order(
        self, header: MsgHeader, parent: NamespaceId, position: int, before_ms: int | None
    ) -> Verdict:
        """Return the verdict of an ordered view on a message that is stored.

        Args:
            header: Its header; the signature was checked when it came.
            parent: The namespace that it is a lane of, or its own.
            position: Sequence of the message that the view took before.
            before_ms: Timestamp of that, milliseconds; None when it is not known.

        Source: LP-6411 §2.2, §2.3, §3.2; H16, H18.

        """
        candidate = Candidate(header=header, blob=None, parent=parent)
        reached = {header.namespace_id: position}
        context = self._context(candidate, header.timestamp, None, reached, live=False)
        context = replace(context, predecessor_ms=before_ms, predecessor_seq=position)
        return check_context(header, context, VIEW_RULES)

    def announcement(self, candidate: Candidate) -> Verdict:
        """Return the verdict on what stands around a header that was judged before."""
        verdict = self._around(candidate, self._clock_ms())
        return self._announcer(candidate) if verdict.accepted else verdict

    def _around(self, candidate: Candidate, now_ms: int) -> Verdict:
        """Return the verdict on the announcement's time and on the blob beside the header."""
        if candidate.announcement is not None:
            distance = abs(now_ms - candidate.announcement.timestamp_ms)
            if distance > self._config.announcement_age_max_ms:
                return ignore(Code.TIMESTAMP_INVALID, "the announcement is not of now (G9)")
        verdict = ACCEPTED
        if candidate.blob is not None:
            verdict = check_blob(candidate.header, candidate.blob)
        if candidate.sidecar is not None and verdict.accepted:
            verdict = check_sidecar(candidate.header, candidate.sidecar)
        return verdict

    @staticmethod
    def _announcer(candidate: Candidate) -> Verdict:
        announcement = candidate.announcement
        if announcement is not None and not announcement.verify(candidate.header.digest):
            return reject(Code.SOURCE_SIGNATURE, "the announcer's signature does not verify (G8)")
        return ACCEPTED

    def _completes(self, candidate: Candidate) -> bool:
        """Return True when it brings the blob or sidecar that a stored header still lacks."""
        header = candidate.header
        if candidate.blob and self._known.get_blob(header.blob_commitment) is None:
            return True
        reference = header.tfhe_sidecar
        return (
            candidate.sidecar is not None
            and reference is not None
            and not self._known.has_sidecar(reference.commitment)
        )

    def _signs_sidecars(self) -> bool:
        return bool(self._config.bound_network) or self._config.unsigned_sidecars

    def _is_swapped(self, header: MsgHeader) -> bool:
        """Return True when the content is stored and stands there with another sidecar (H3).

        Whether the sender signed this reference, too, is for the signature to say.
        """
        if header.tfhe_sidecar is None:
            return False
        stored = self._known.encoded_header(header.content_id)
        return stored is not None and _reference(stored) != _reference(header.encode())

    def _signatures(self, candidates: Sequence[Candidate]) -> list[Verdict]:
        if len(candidates) < _GROUP_MIN:
            return [self._check_signatures(candidate) for candidate in candidates]
        share = -(-len(candidates) // self._config.threads)
        parts = [candidates[i : i + share] for i in range(0, len(candidates), share)]
        checked = self._pool.map(lambda part: [self._check_signatures(c) for c in part], parts)
        return [verdict for part in checked for verdict in part]

    def _check_signatures(self, candidate: Candidate) -> Verdict:
        header, announced = candidate.header, self._announcer(candidate)
        if not announced.accepted:
            return announced
        network = self._config.bound_network
        holds = verify_header_bound(header, network) if network else verify_header(header)
        return signature_verdict(holds=holds)

    def _proven(
        self,
        candidate: Candidate,
        context: ValidationContext,
        rates: NodeRates | None,
        reserved: Callable[[], object],
    ) -> Verdict:
        """Return the verdict on a message whose sender is known; tell when a fee is reserved."""
        header = candidate.header
        if self._is_swapped(header):
            return SWAPPED_SIDECAR
        verdict = check_context(header, context, PROVEN_RULES)
        if not verdict.accepted:
            if rates is not None and verdict.kind is VerdictKind.REJECT:
                rates.record(header.sender_pub_key, good=False)
            return verdict
        if candidate.judged:
            return verdict
        policy = context.policies.get(header.policy_hash)
        if rates is not None and not rates.charge(header, candidate.parent, policy):
            return rates.answer(header, candidate.parent, policy)
        # What is stored was paid for when it came: its blob, or sidecar, comes at no further cost,
        # also when the quota is used up by now.
        fees = self._fees
        if fees is not None and fees.charges and not self._known.has(header.content_id):
            verdict = fees.reserve(header, context.now_ms)
            if verdict.accepted:
                reserved()
        if rates is not None and verdict.accepted:
            rates.record(header.sender_pub_key, good=True)
        return verdict


def _keep_order(
    candidates: Sequence[Candidate],
    contexts: Sequence[ValidationContext],
    verdicts: list[Verdict],
) -> None:
    """Refuse what goes back in time behind a predecessor of the same group (H13).

    The predecessor is the one that the store will have: the nearest accepted sequence below, and in
    its slot the lowest content id. One that is refused here is nobody's predecessor.
    """
    lanes: dict[NamespaceId, list[int]] = {}
    for index, verdict in enumerate(verdicts):
        if verdict.accepted:
            lanes.setdefault(candidates[index].header.namespace_id, []).append(index)
    for lane in lanes.values():
        if len(lane) < 2:
            continue
        lane.sort(key=lambda index: (candidates[index].header.seq, _content(candidates[index])))
        slot = before = (0, 0)
        for index in lane:
            header, context = candidates[index].header, contexts[index]
            if header.seq > slot[0]:
                before = slot
            if before[0] > context.predecessor_seq:
                context = replace(
                    context, predecessor_seq=before[0], predecessor_ms=before[1],
                    predecessor_final=before[0] <= context.finalized_seq,
                )  # fmt: skip
                verdicts[index] = check_context(header, context, ORDER_RULES)
            if verdicts[index].accepted and header.seq > slot[0]:
                slot = (header.seq, header.timestamp)


def _reference(header: bytes) -> bytes:
    return header[-SIDECAR_BYTES:]


def _content(candidate: Candidate) -> bytes:
    return candidate.header.content_id
