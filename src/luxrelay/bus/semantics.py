"""The rules that need context, as one ordered table per profile, cheapest first.

Theory of operation
-------------------
*Decides* whether a well-formed header is acceptable here and now: for gossip (`LIVE_RULES`) and
for history that another relay serves (`SYNC_RULES`). *Does not know* clocks, stores or sockets:
everything comes in a `ValidationContext`. Each row is one condition with one code; the signature
is the last row, because it costs a thousand times what the others do (H29), and a caller with
many messages asks for the cheap rows only and verifies signatures in groups.
*Deviations from the specification*: ±30 s holds for live messages only (H14); a gap is accepted
up to ``ahead_max`` and parked by the store (H16); an unknown policy is ignored, not rejected (H19).
*What else to change when you change this*: the verdict table in docs/reference/verdicts.md.

Source: LP-6411 §3.2; decisions H14–H29, G28, J6 and the verdict table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from luxrelay.bus import constants as c
from luxrelay.bus.header import MsgHeader, NamespaceId
from luxrelay.bus.keys import SIGNING_SCHEMES, verify_header
from luxrelay.bus.namespace import lane
from luxrelay.bus.verdict import ACCEPTED, Code, Verdict, VerdictKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationContext:
    """All that a verdict depends on besides the header."""

    now_ms: int
    """The reference clock, Unix milliseconds."""
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


class ContextRule(NamedTuple):
    """One condition with one answer."""

    code: Code
    kind: VerdictKind
    section: str
    reason: str
    broken: Callable[[MsgHeader, ValidationContext], bool]


_UNKNOWN_NAMESPACE: Final = ContextRule(
    Code.INVALID_NAMESPACE,
    VerdictKind.IGNORE,
    "LP-6411 §2.1",
    "the namespace is not one this node knows",
    lambda _, context: not context.policy_hashes,
)
_WRONG_TOPIC: Final = ContextRule(
    Code.WRONG_TOPIC,
    VerdictKind.REJECT,
    "G28, J6",
    "the header's namespace is neither the topic's nor the sender's lane of it",
    lambda header, context: (
        header.namespace_id != context.parent
        and header.namespace_id != lane(context.parent, header.sender_pub_key)
    ),
)
_KZG: Final = ContextRule(
    Code.UNSUPPORTED_COMMITMENT,
    VerdictKind.IGNORE,
    "LP-6411 §2.4, H2",
    "KZG commitments need luxrelay[kzg]",
    lambda header, _: header.flags & c.FLAG_KZG_COMMITMENT != 0,
)
_SCHEME: Final = ContextRule(
    Code.UNSUPPORTED_SCHEME,
    VerdictKind.IGNORE,
    "LP-6411 §2.7",
    "this build cannot verify the signature scheme",
    lambda header, _: header.sender_pub_key[0] not in SIGNING_SCHEMES,
)
_FEE_KIND: Final = ContextRule(
    Code.FEE_TOO_LOW,
    VerdictKind.IGNORE,
    "LP-6411 §2.9",
    "this node has no verifier for the fee proof's kind",
    lambda header, _: header.fee_proof[0] != 0,
)
_POLICY: Final = ContextRule(
    Code.POLICY_VIOLATION,
    VerdictKind.IGNORE,
    "LP-6411 §2.6, H19",
    "policyHash is none that is in force here",
    lambda header, context: header.policy_hash not in context.policy_hashes,
)
_LIVE_CLOCK: Final = ContextRule(
    Code.TIMESTAMP_INVALID,
    VerdictKind.IGNORE,
    "LP-6411 §2.3, H14",
    "the timestamp is further from our clock than the tolerance",
    lambda header, context: abs(header.timestamp - context.now_ms) > context.tolerance_ms,
)
_AHEAD: Final = ContextRule(
    Code.SEQUENCE_GAP,
    VerdictKind.IGNORE,
    "H16",
    "the sequence is further ahead of our head than we park",
    lambda header, context: header.seq > context.contiguous_seq + context.ahead_max,
)
_FUTURE: Final = ContextRule(
    Code.TIMESTAMP_INVALID,
    VerdictKind.REJECT,
    "H14",
    "history from the future: the timestamp is ahead of our clock by more than the tolerance",
    lambda header, context: header.timestamp > context.now_ms + context.tolerance_ms,
)
_PAST: Final = ContextRule(
    Code.EXPIRED,
    VerdictKind.IGNORE,
    "H14, P14",
    "the message is older than this store keeps",
    lambda header, context: (
        header.timestamp + context.ttl_ms + context.tolerance_ms < context.now_ms
    ),
)
_SIGNATURE: Final = ContextRule(
    Code.INVALID_SIGNATURE,
    VerdictKind.REJECT,
    "LP-6411 §2.8",
    "the signature does not verify",
    lambda header, _: not verify_header(header),
)

_COMMON: Final = (_UNKNOWN_NAMESPACE, _WRONG_TOPIC, _KZG, _SCHEME, _FEE_KIND, _POLICY)
LIVE_RULES: Final = (*_COMMON, _LIVE_CLOCK, _AHEAD)
"""Gossip and publish, without the signature."""
SYNC_RULES: Final = (*_COMMON, _FUTURE, _PAST)
"""History served by a relay, without the signature."""


def check_context(
    header: MsgHeader, context: ValidationContext, rules: Iterable[ContextRule] = LIVE_RULES
) -> Verdict:
    """Return the verdict of the first broken rule, or ACCEPT; the signature is not checked."""
    for rule in rules:
        if rule.broken(header, context):
            return Verdict(rule.kind, rule.code, f"{rule.reason} ({rule.section})")
    return ACCEPTED


def validate(
    header: MsgHeader, context: ValidationContext, rules: Iterable[ContextRule] = LIVE_RULES
) -> Verdict:
    """Return the full verdict on one header: the context's rules, then the signature.

    Source: LP-6411 §3.2; 11-38.
    """
    return check_context(header, context, (*rules, _SIGNATURE))


def signature_verdict(*, holds: bool) -> Verdict:
    """Return the verdict that a signature checked elsewhere leads to."""
    if holds:
        return ACCEPTED
    return Verdict(_SIGNATURE.kind, _SIGNATURE.code, f"{_SIGNATURE.reason} ({_SIGNATURE.section})")
