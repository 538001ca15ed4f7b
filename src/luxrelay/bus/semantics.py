"""The rules that need context, as ordered tables, cheapest first.

Theory of operation
-------------------
*Decides* whether a well-formed header is acceptable here and now: for gossip (`LIVE_RULES`), for
history that another relay serves (`SYNC_RULES`), and for a validator that keeps a namespace in
order (`VALIDATOR_RULES`). *Does not know* clocks, stores or sockets: everything comes in a
`ValidationContext`, and what it leaves out is not asked. Each row is one condition with one code.
*Order*: rows without a hash, then rows with a hash or a look-up, then the signature, which costs a
thousand times as much (H29), then `PROVEN_RULES`: what may be asked only of a proven sender,
because it costs signatures or asks the outside (fee proofs, token balances). A denied writer is
rejected before the signature, since the key it claims is the one refused; an allowed one is
nothing until the signature holds. A caller with many messages asks for the first rows, verifies
signatures in groups, then asks for the last.
*Profiles*: a relay takes messages out of order, parks up to ``ahead_max`` and ignores what may be
right elsewhere; a validator takes the next one only and rejects the rest (H16, H18).
*Deviations from the specification*: ±30 s holds for live messages only (H14), and so does the order
of timestamps: history that goes back is taken and marked (H13); an unknown policy is ignored by
relays, not rejected (H19).
*What else to change when you change this*: the verdict table in docs/reference/verdicts.md.

Source: LP-6411 §3.2; decisions H14–H29, G20, G28, J6, J11 and the verdict table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from luxrelay.bus import constants as c
from luxrelay.bus.authorization import (
    Access,
    BalanceCheck,
    IdentityCheck,
    allowed_scheme,
    authorize_write,
    sidecar_fits,
)
from luxrelay.bus.fee import FeeKind, FeeProof, Prepaid
from luxrelay.bus.fee_verifiers import FeeVerifiers
from luxrelay.bus.header import ContentId, MsgHeader, NamespaceId
from luxrelay.bus.keys import SIGNING_SCHEMES, verify_header
from luxrelay.bus.namespace import lane
from luxrelay.bus.policy import NamespacePolicy, WritersMode
from luxrelay.bus.verdict import ACCEPTED, Code, Verdict, VerdictKind, ignore
from luxrelay.errors import FeeError

SLOT_SENDERS_MAX: Final = 4
"""Senders a slot keeps (H17, J11)."""
FREE_ONLY: Final = FeeVerifiers("none")
"""What a node without fee verifiers takes: kind 0."""


class SlotRival(NamedTuple):
    """A message that holds a place in the header's slot already."""

    content_id: ContentId
    """What is signed and who signed it."""
    sender: bytes
    """The senderPubKey field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationContext:
    """All that a verdict depends on besides the header."""

    now_ms: int
    """The reference clock, Unix milliseconds; a validator gives the median of its peers'."""
    parent: NamespaceId
    """Namespace of the topic, or the parent that a sync request named."""
    policy_hashes: frozenset[bytes]
    """Hashes in force for ``parent``, grace included (H19); empty when it is unknown."""
    contiguous_seq: int = 0
    """Our contiguous head of the header's namespace (P25)."""
    ahead_max: int = 1024
    """How far ahead of the head a live message may be, sequences (H16)."""
    tolerance_ms: int = c.LIVE_TOLERANCE_MS
    """Live clock tolerance, milliseconds (LP-6411 §2.3)."""
    ttl_ms: int = 600_000
    """Time to live of the store, milliseconds; history older than this is not wanted (H14)."""
    policies: Mapping[bytes, NamespacePolicy] = field(default_factory=dict)
    """Full policies by hash; a hash in force without one is checked as a hash only (H20)."""
    balances: BalanceCheck | None = None
    """Answers token gates; without it they are not for this node to tell."""
    identities: IdentityCheck | None = None
    """Resolves writers that are neither key nor address."""
    predecessor_ms: int | None = None
    """Timestamp of the nearest message before this one in its namespace, milliseconds; of several
    in its slot the one that J11 puts first. None when unknown."""
    predecessor_seq: int = 0
    """Its sequence."""
    predecessor_final: bool = False
    """Whether that message is finalized."""
    finalized_seq: int = 0
    """Finalized head of the header's namespace; 0 without an oracle (J9)."""
    duplicate: bool = False
    """Whether the content is stored already."""
    slot: tuple[SlotRival, ...] = ()
    """What holds places in the header's slot (J11)."""
    over_limit: Callable[[MsgHeader], bool] | None = None
    """Peeks at the rate limits without taking anything (G20); charge after the signature."""
    rate_answer: Callable[[MsgHeader], Verdict] | None = None
    """Says which rate refuses the message, how much it allows and when again."""
    fees: FeeVerifiers = FREE_ONLY
    """Checks fee proofs; the default takes kind 0 and ignores the rest."""
    kzg: bool = False
    """Whether this node checks KZG commitments (H2)."""
    schemes: frozenset[int] = frozenset(SIGNING_SCHEMES)
    """Signature schemes this node verifies."""


class ContextRule(NamedTuple):
    """One condition with one answer; ``answer`` replaces it where the reason depends on more."""

    code: Code
    kind: VerdictKind
    section: str
    reason: str
    broken: Callable[[MsgHeader, ValidationContext], bool]
    answer: Callable[[MsgHeader, ValidationContext], Verdict] | None = None

    def verdict(self, header: MsgHeader, context: ValidationContext) -> Verdict:
        """Return what a header that breaks the rule gets."""
        if self.answer is not None:
            return self.answer(header, context)
        return Verdict(self.kind, self.code, f"{self.reason} ({self.section})")


def equivocates(header: MsgHeader, slot: Iterable[SlotRival]) -> bool:
    """Return True when the sender has another content in the same slot: evidence (H17)."""
    return any(
        rival.sender == header.sender_pub_key and rival.content_id != header.content_id
        for rival in slot
    )


def _policy(header: MsgHeader, context: ValidationContext) -> NamespacePolicy | None:
    return context.policies.get(header.policy_hash)


def _pq_broken(header: MsgHeader, context: ValidationContext) -> bool:
    policy = _policy(header, context)
    return policy is not None and not allowed_scheme(policy, header.sender_pub_key)


def _sidecar_broken(header: MsgHeader, context: ValidationContext) -> bool:
    policy = _policy(header, context)
    return policy is not None and not sidecar_fits(policy, header)


def _access(header: MsgHeader, context: ValidationContext) -> Access:
    """Return what can be said of the writer without asking a chain."""
    policy = _policy(header, context)
    if policy is None or policy.writers_mode is WritersMode.TOKEN_GATED:
        return Access.ALLOWED
    return authorize_write(header, policy, None, context.identities)


def _gate_access(header: MsgHeader, context: ValidationContext) -> Access:
    policy = _policy(header, context)
    if policy is None or policy.writers_mode is not WritersMode.TOKEN_GATED:
        return Access.ALLOWED
    return authorize_write(header, policy, context.balances, context.identities)


def _regresses(header: MsgHeader, context: ValidationContext) -> bool:
    return context.predecessor_ms is not None and header.timestamp < context.predecessor_ms


def _back(kind: VerdictKind, what: str) -> Callable[[MsgHeader, ValidationContext], Verdict]:
    """Return what says how far a timestamp has gone back, and behind which sequence."""

    def answer(header: MsgHeader, context: ValidationContext) -> Verdict:
        assert context.predecessor_ms is not None
        back_s = (context.predecessor_ms - header.timestamp) / 1000
        return Verdict(
            kind,
            Code.TIMESTAMP_INVALID,
            f"the timestamp is {back_s:,.3f} s before that of sequence "
            f"{context.predecessor_seq}, {what}; it may be equal or later (LP-6411 §2.3, H13)",
        )

    return answer


def _loses_slot(header: MsgHeader, context: ValidationContext) -> bool:
    """Return True when the slot keeps others: the store's own order, the content id (J11)."""
    if not context.slot:
        return False
    best: dict[bytes, bytes] = {}
    for content, sender in sorted(context.slot):
        best.setdefault(sender, content)
    own = best.get(header.sender_pub_key)
    if own is not None:
        return own <= header.content_id
    smaller = sum(content < header.content_id for content in best.values())
    return smaller >= SLOT_SENDERS_MAX


_IGNORE: Final = VerdictKind.IGNORE
_REJECT: Final = VerdictKind.REJECT

_UNKNOWN_NAMESPACE: Final = ContextRule(
    Code.INVALID_NAMESPACE,
    _IGNORE,
    "LP-6411 §2.1",
    "the namespace is not one this node knows",
    lambda _, context: not context.policy_hashes,
)
_WRONG_TOPIC: Final = ContextRule(
    Code.WRONG_TOPIC,
    _REJECT,
    "G28, J6",
    "the header's namespace is neither the topic's nor the sender's lane of it",
    lambda header, context: (
        header.namespace_id != context.parent
        and header.namespace_id != lane(context.parent, header.sender_pub_key)
    ),
)
_KZG: Final = ContextRule(
    Code.UNSUPPORTED_COMMITMENT,
    _IGNORE,
    "LP-6411 §2.4, H2",
    "a node takes no KZG commitments, with or without the extra",
    lambda header, context: header.flags & c.FLAG_KZG_COMMITMENT != 0 and not context.kzg,
)
_SCHEME: Final = ContextRule(
    Code.UNSUPPORTED_SCHEME,
    _IGNORE,
    "LP-6411 §2.7",
    "this node does not verify the signature scheme",
    lambda header, context: header.sender_pub_key[0] not in context.schemes,
)
_FEE_FORM: Final = ContextRule(
    Code.FEE_TOO_LOW,
    _IGNORE,
    "LP-6411 §2.9",
    "this node has no verifier for the fee proof's kind; what is wrong for everybody is a REJECT",
    lambda header, context: (
        (
            header.fee_proof != c.FEE_NONE
            or context.fees is not FREE_ONLY  # a node may have no free tier
        )
        and not context.fees.form(header, context.parent).accepted
    ),
    lambda header, context: context.fees.form(header, context.parent),
)
_POLICY: Final = ContextRule(
    Code.POLICY_VIOLATION,
    _IGNORE,
    "LP-6411 §2.6, H19",
    "policyHash is none that is in force here",
    lambda header, context: header.policy_hash not in context.policy_hashes,
)
_PQ_MODE: Final = ContextRule(
    Code.POLICY_VIOLATION,
    _REJECT,
    "LP-6410 §4, H28",
    "the policy's pqMode does not allow the signature scheme",
    _pq_broken,
)
_SIDECAR: Final = ContextRule(
    Code.POLICY_VIOLATION,
    _REJECT,
    "LP-6411 §2.10, H22",
    "the policy demands a TFHE sidecar that is missing, or forbids the one that is there",
    _sidecar_broken,
)


def _off_clock(header: MsgHeader, context: ValidationContext) -> str:
    """Say how far a timestamp is from our clock, in which direction, and what is allowed."""
    ahead_ms = header.timestamp - context.now_ms
    side = "ahead of" if ahead_ms > 0 else "behind"
    return (
        f"the timestamp is {abs(ahead_ms) / 1000:,.1f} s {side} our clock, "
        f"at most {context.tolerance_ms / 1000:g} s are allowed"
    )


_LIVE_CLOCK: Final = ContextRule(
    Code.TIMESTAMP_INVALID,
    _IGNORE,
    "LP-6411 §2.3, H14",
    "the timestamp is further from our clock than the tolerance",
    lambda header, context: abs(header.timestamp - context.now_ms) > context.tolerance_ms,
    lambda header, context: Verdict(
        _IGNORE, Code.TIMESTAMP_INVALID, f"{_off_clock(header, context)} (LP-6411 §2.3, H14)"
    ),
)
_AHEAD: Final = ContextRule(
    Code.SEQUENCE_GAP,
    _IGNORE,
    "H16",
    "the sequence is further ahead of our head than we park",
    lambda header, context: header.seq > context.contiguous_seq + context.ahead_max,
)
_FUTURE: Final = ContextRule(
    Code.TIMESTAMP_INVALID,
    _REJECT,
    "H14",
    "history from the future: the timestamp is ahead of our clock by more than the tolerance",
    lambda header, context: header.timestamp > context.now_ms + context.tolerance_ms,
    lambda header, context: Verdict(
        _REJECT,
        Code.TIMESTAMP_INVALID,
        f"history from the future: {_off_clock(header, context)} (H14)",
    ),
)
_PAST: Final = ContextRule(
    Code.EXPIRED,
    _IGNORE,
    "H14, P14",
    "the message is older than this store keeps",
    lambda header, context: (
        header.timestamp + context.ttl_ms + context.tolerance_ms < context.now_ms
    ),
)
_FINALIZED: Final = ContextRule(
    Code.DUPLICATE,
    _IGNORE,
    "LP-6413, J9",
    "the sequence is not above the finalized head",
    lambda header, context: header.seq <= context.finalized_seq,
)
_REGRESSION: Final = ContextRule(
    Code.TIMESTAMP_INVALID,
    _REJECT,
    "LP-6411 §2.3, H13",
    "the timestamp is before that of the finalized predecessor",
    lambda header, context: context.predecessor_final and _regresses(header, context),
    _back(_REJECT, "the finalized predecessor"),
)
_PENDING_REGRESSION: Final = ContextRule(
    Code.TIMESTAMP_INVALID,
    _IGNORE,
    "LP-6411 §2.3, H13",
    "the timestamp is before that of the predecessor",
    _regresses,
    _back(_IGNORE, "the predecessor"),
)
_DUPLICATE: Final = ContextRule(
    Code.DUPLICATE,
    _IGNORE,
    "LP-6421 §3.2",
    "the message is stored already",
    lambda _, context: context.duplicate,
)
_CONTENTION: Final = ContextRule(
    Code.CONTENTION,
    _IGNORE,
    "H17, J11",
    "other candidates keep the slot",
    _loses_slot,
)
_RATE_WORDS: Final = (Code.RATE_LIMITED, "a rate or quota is used up (LP-6422, G20)")
_RATE: Final = ContextRule(
    Code.RATE_LIMITED,
    _IGNORE,
    "LP-6422, G20",
    "a rate or quota is used up",
    lambda header, context: context.over_limit is not None and context.over_limit(header),
    lambda header, context: (
        context.rate_answer(header) if context.rate_answer else Verdict(_IGNORE, *_RATE_WORDS)
    ),
)
_WRITER: Final = ContextRule(
    Code.POLICY_VIOLATION,
    _REJECT,
    "LP-6410 §4, H27",
    "the policy does not let this sender write",
    lambda header, context: _access(header, context) is Access.DENIED,
)
_WRITER_UNKNOWN: Final = ContextRule(
    Code.UNCHECKABLE,
    _IGNORE,
    "LP-6410 §4",
    "this node cannot resolve the identities of the policy's writers",
    lambda header, context: _access(header, context) is Access.UNKNOWN,
)
_SIGNATURE: Final = ContextRule(
    Code.INVALID_SIGNATURE,
    _REJECT,
    "LP-6411 §2.8",
    "the signature does not verify",
    lambda header, _: not verify_header(header),
)
_GATE: Final = ContextRule(
    Code.POLICY_VIOLATION,
    _REJECT,
    "LP-6410 §4",
    "the sender does not hold what the token gate asks",
    lambda header, context: _gate_access(header, context) is Access.DENIED,
)
_GATE_UNKNOWN: Final = ContextRule(
    Code.UNCHECKABLE,
    _IGNORE,
    "LP-6410 §4",
    "this node cannot tell what the sender holds",
    lambda header, context: _gate_access(header, context) is Access.UNKNOWN,
)
_FEE_PROOF: Final = ContextRule(
    Code.FEE_TOO_LOW,
    _REJECT,
    "LP-6411 §2.9, H3",
    "the fee proof's signatures do not hold; what this node cannot check is an IGNORE",
    lambda header, context: (
        header.fee_proof != c.FEE_NONE and not context.fees.prove(header).accepted
    ),
    lambda header, context: context.fees.prove(header),
)


def _unpaid(header: MsgHeader, context: ValidationContext) -> str:
    """Return what a policy that wants messages prepaid has against one; empty for nothing."""
    policy = _policy(header, context)
    issuers = None if policy is None else policy.prepaid_issuers
    if issuers is None:
        return ""
    kind = header.fee_proof[0] if header.fee_proof else 0
    wanted = f"the policy wants a prepaid quota of one of {len(issuers)} issuers"
    if kind != FeeKind.PREPAID:
        return f"{wanted}, the message has a fee proof of kind {kind}"
    try:
        body = FeeProof.decode(header.fee_proof).body
    except FeeError as error:
        return f"{wanted}, {error.what}"
    assert isinstance(body, Prepaid)
    return "" if body.issuer in issuers else f"{wanted}, this one is of {body.issuer.hex()}"


_PREPAID: Final = ContextRule(
    Code.FEE_TOO_LOW,
    _IGNORE,
    "LP-6411 §2.9, S7",
    "the policy wants a prepaid quota of issuers that it names, and the message has none",
    lambda header, context: bool(_unpaid(header, context)),
    lambda header, context: ignore(
        Code.FEE_TOO_LOW, f"{_unpaid(header, context)} (LP-6411 §2.9, S7)"
    ),
)
_NOT_NEXT: Final = ContextRule(
    Code.SEQUENCE_GAP,
    _REJECT,
    "LP-6411 §2.2, H18",
    "the sequence is not the one after the head",
    lambda header, context: header.seq != context.contiguous_seq + 1,
)


def _stricter(rule: ContextRule) -> ContextRule:
    """Return the rule as a validator has it: what a relay ignores, it rejects."""
    answer = rule.answer
    if answer is None:
        return rule._replace(kind=_REJECT)
    return rule._replace(
        kind=_REJECT,
        answer=lambda header, context: replace(answer(header, context), kind=_REJECT),
    )


ORDER_RULES: Final = (_REGRESSION, _PENDING_REGRESSION)
"""The order of timestamps, asked again of messages that come in one group (H13)."""
_COMMON: Final = (_UNKNOWN_NAMESPACE, _WRONG_TOPIC, _KZG, _SCHEME, _FEE_FORM, _POLICY)
_BY_POLICY: Final = (_PQ_MODE, _SIDECAR)
_KNOWN_ALREADY: Final = (_DUPLICATE, _CONTENTION, _RATE, _WRITER, _WRITER_UNKNOWN, _PREPAID)
LIVE_RULES: Final = (
    *_COMMON,
    _LIVE_CLOCK,
    _AHEAD,
    _FINALIZED,
    *_BY_POLICY,
    *ORDER_RULES,
    *_KNOWN_ALREADY,
)
"""Gossip and publish, before the signature."""
SYNC_RULES: Final = (
    *_COMMON,
    _FUTURE,
    _PAST,
    *_BY_POLICY,
    *_KNOWN_ALREADY,
)
"""History served by a relay, before the signature. A timestamp that goes back is taken, or stores
that saw two messages in another order would never agree; whoever reads it is told (H13)."""
VALIDATOR_RULES: Final = (
    _stricter(_UNKNOWN_NAMESPACE),
    _WRONG_TOPIC,
    _KZG,
    _SCHEME,
    _FEE_FORM,
    _stricter(_POLICY),
    _stricter(_DUPLICATE),
    _NOT_NEXT,
    _stricter(_LIVE_CLOCK),
    *_BY_POLICY,
    _stricter(_PENDING_REGRESSION),
    _RATE,
    _WRITER,
    _WRITER_UNKNOWN,
    _PREPAID,
)
"""The ordered view of a namespace, before the signature (LP-6411 §3.2, H16)."""
VIEW_RULES: Final = (
    _stricter(_UNKNOWN_NAMESPACE),
    _WRONG_TOPIC,
    _SCHEME,
    _stricter(_POLICY),
    _NOT_NEXT,
    *_BY_POLICY,
    _stricter(_PENDING_REGRESSION),
    _WRITER,
    _WRITER_UNKNOWN,
)
"""An ordered view of what a relay holds: those of a validator but for clock, rates and fees, which
were asked when the message came (LP-6411 §2.2, §2.3, §3.2)."""
PROVEN_RULES: Final = (_GATE, _GATE_UNKNOWN, _FEE_PROOF)
"""After the signature, in every profile."""


def check_context(
    header: MsgHeader, context: ValidationContext, rules: Iterable[ContextRule] = LIVE_RULES
) -> Verdict:
    """Return the verdict of the first broken rule, or ACCEPT; the signature is not checked."""
    for rule in rules:
        if rule.broken(header, context):
            return rule.verdict(header, context)
    return ACCEPTED


def validate(
    header: MsgHeader, context: ValidationContext, rules: Iterable[ContextRule] = LIVE_RULES
) -> Verdict:
    """Return the full verdict on one header: the context's rules, the signature, the proven ones.

    Source: LP-6411 §3.2; 11-38.
    """
    return check_context(header, context, (*rules, _SIGNATURE, *PROVEN_RULES))


def signature_verdict(*, holds: bool) -> Verdict:
    """Return the verdict that a signature checked elsewhere leads to."""
    if holds:
        return ACCEPTED
    return Verdict(_SIGNATURE.kind, _SIGNATURE.code, f"{_SIGNATURE.reason} ({_SIGNATURE.section})")
