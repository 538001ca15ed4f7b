"""Verifiers of fee proofs by kind: a table of verifiers, and the four that ship.

Order for one header: ``form`` (no signature: kind, layout, place, time, amount), then, once the
header's own signature holds, ``prove`` (the payer's binding and whatever the kind adds), then
``reserve`` before the message is stored and ``settle`` after. Kind 0 is accepted under the free
tier; a kind without a verifier, and what a verifier cannot find out, is ignored, never held
against a peer; what is wrong for everybody is rejected. A quota's end and place are compared with
the header's own fields, so every node and every later reader finds the same answer.

Source: LP-6411 §2.9, LP-6422 §4; decisions S6, S7 and the verdict table; 11-33, 11-34.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from luxrelay.bus.authorization import Access, identity_access
from luxrelay.bus.constants import MAX_U64
from luxrelay.bus.fee import (
    FeeKind,
    FeeProof,
    OnChain,
    Prepaid,
    Stake,
    StateChannel,
    known_body,
    verify_digest,
)
from luxrelay.bus.header import MsgHeader, NamespaceId
from luxrelay.bus.quota import Charge, ReserveOutcome
from luxrelay.bus.verdict import ACCEPTED, Code, Verdict, ignore, reject
from luxrelay.errors import FeeError

_Body = TypeVar("_Body", Prepaid, OnChain, StateChannel, Stake)
_SECTION: Final = "LP-6411 §2.9"
_SHOWN: Final = 130
"""Hex digits of an owner that a reason shows: the longest key of a payer."""


class FeeVerifier(Protocol):
    """Checks one kind of proof; the table has checked the layout and the payer's binding."""

    def form(self, proof: FeeProof, header: MsgHeader, parent: NamespaceId) -> Verdict:
        """Judge what costs no signature."""

    def prove(self, proof: FeeProof, header: MsgHeader) -> Verdict:
        """Judge the rest; the payer's binding holds already."""

    def charge(self, proof: FeeProof, header: MsgHeader) -> Charge | None:
        """Return what the message takes from an account, None where nothing is counted."""


class FeeQuotaBook(Protocol):
    """A ledger: `luxrelay.bus.quota.QuotaLedger`, or one with a lock or a store around it."""

    def reserve(self, charge: Charge, now_ms: int) -> ReserveOutcome:
        """Take a charge until it is committed or released."""

    def commit(self, message: bytes) -> bool:
        """Make a charge final."""

    def release(self, message: bytes) -> bool:
        """Give a charge back."""

    def remaining(self, account: bytes) -> tuple[int, int] | None:
        """Return the messages and units an account still holds, None for one never charged."""


class FeeVerifiers:
    """The table; with no verifiers it is the default: kind 0 is free, all else is ignored."""

    def __init__(
        self,
        network: str,
        verifiers: Mapping[FeeKind, FeeVerifier] | None = None,
        *,
        book: FeeQuotaBook | None = None,
        free_tier: bool = True,
    ) -> None:
        """Check proofs of ``network``; ``book`` counts what verifiers charge."""
        self._network = network
        self._verifiers = dict(verifiers or {})
        self._book = book
        self._free_tier = free_tier

    def form(self, header: MsgHeader, parent: NamespaceId) -> Verdict:
        """Return the verdict that needs no signature."""
        found = self._find(header)
        if isinstance(found, Verdict):
            return found
        proof, verifier = found
        return verifier.form(proof, header, parent)

    def prove(self, header: MsgHeader) -> Verdict:
        """Return the verdict on the signatures; the header's own is the caller's to check first."""
        found = self._find(header)
        if isinstance(found, Verdict):
            return found
        proof, verifier = found
        if not proof.bound_to(header, self._network):
            return _invalid("the fee proof is not signed for this header")
        return verifier.prove(proof, header)

    def reserve(self, header: MsgHeader, now_ms: int) -> Verdict:
        """Take what the message costs; after an ACCEPT call `settle` when its fate is known.

        Only after an ACCEPT: while one copy of a message is being charged, a second copy is
        refused, and settling the second would give back what the first has taken.
        """
        charge = self._charge(header)
        if charge is None or self._book is None:
            return ACCEPTED
        outcome = self._book.reserve(charge, now_ms)
        if outcome is ReserveOutcome.EXHAUSTED:
            return _used_up(charge, self._book.remaining(charge.account))
        if outcome is ReserveOutcome.EXPIRED:
            return _ended(charge, now_ms)
        return _OUTCOMES[outcome]

    def settle(self, header: MsgHeader, *, stored: bool) -> bool:
        """Make the charge final or give it back; True when nothing is owed.

        False says that a reservation ran out before the message was stored.
        """
        if self._charge(header) is None or self._book is None:
            return True
        if stored:
            return self._book.commit(header.content_id)
        self._book.release(header.content_id)
        return True

    def account(self, header: MsgHeader) -> bytes | None:
        """Return the account that pays for a message, None where nothing is counted."""
        charge = self._charge(header)
        return None if charge is None else charge.account

    def _charge(self, header: MsgHeader) -> Charge | None:
        found = self._find(header)
        if isinstance(found, Verdict):
            return None
        proof, verifier = found
        return verifier.charge(proof, header)

    def _find(self, header: MsgHeader) -> tuple[FeeProof, FeeVerifier] | Verdict:
        data = header.fee_proof
        kind = data[0] if data else -1
        if kind == FeeKind.NONE:
            if self._free_tier:
                return ACCEPTED
            return ignore(
                Code.FEE_TOO_LOW,
                f"this node has no free tier: the message needs a fee proof of kind "
                f"{self._kinds()} ({_SECTION})",
            )
        verifier = self._verifiers.get(FeeKind(kind)) if kind in _KNOWN else None
        if verifier is None or (len(data) > 1 and not known_body(kind, data[1])):
            version = f", version {data[1]}" if len(data) > 1 else ""
            return ignore(
                Code.FEE_TOO_LOW,
                f"this node has no verifier for a fee proof of kind {kind}{version}; "
                f"it has one for {self._kinds()} ({_SECTION})",
            )
        try:
            return FeeProof.decode(data), verifier
        except FeeError as error:
            return _invalid(f"{error.what}, {error.where}")

    def _kinds(self) -> str:
        return ", ".join(str(int(kind)) for kind in sorted(self._verifiers)) or "none"


class PrepaidVerifier:
    """Quotas of known issuers, each spent once (S7)."""

    def __init__(self, network: str, issuers: Sequence[bytes]) -> None:
        """Honour quotas signed by these key fields."""
        self._network = network
        self._issuers = frozenset(issuers)

    def form(self, proof: FeeProof, header: MsgHeader, parent: NamespaceId) -> Verdict:
        """Judge owner, place, end and size."""
        quota = _body(proof, Prepaid)
        if any(quota.namespace_id) and quota.namespace_id not in {header.namespace_id, parent}:
            return _invalid(
                f"the quota is for namespace {quota.namespace_id.hex()}, the message is in "
                f"{parent.hex()} (S6)"
            )
        if header.timestamp > quota.expires_ms:
            late = header.timestamp - quota.expires_ms
            return _invalid(
                f"the quota ended at {quota.expires_ms} (Unix ms), {late:,} ms before the message "
                "(S7)"
            )
        if header.blob_len > quota.bytes_total:
            return _invalid(
                f"the blob has {header.blob_len:,} bytes, the whole quota {quota.bytes_total:,}"
            )
        access = identity_access(quota.owner, proof.payer)
        if access is Access.DENIED:
            owner, payer = quota.owner.value.hex()[:_SHOWN], proof.payer.hex()
            return _invalid(f"the payer {payer} is not the quota's owner {owner}")
        if access is Access.UNKNOWN:
            return ignore(
                Code.FEE_TOO_LOW, f"this node cannot resolve the quota's owner ({_SECTION})"
            )
        if quota.issuer not in self._issuers:
            return ignore(
                Code.FEE_TOO_LOW,
                f"the quota's issuer {quota.issuer.hex()} is none of the {len(self._issuers)} that "
                f"this node honours ({_SECTION})",
            )
        return ACCEPTED

    def prove(self, proof: FeeProof, header: MsgHeader) -> Verdict:
        """Judge the issuer's signature."""
        del header
        quota = _body(proof, Prepaid)
        digest = quota.quota_hash(self._network)
        if not verify_digest(quota.issuer, digest, quota.issuer_signature):
            return _invalid("the issuer's signature does not verify")
        return ACCEPTED

    def charge(self, proof: FeeProof, header: MsgHeader) -> Charge:
        """Take one message and the blob's bytes from the quota."""
        quota = _body(proof, Prepaid)
        return Charge(
            account=quota.quota_hash(self._network),
            message=header.content_id,
            messages_limit=quota.messages,
            units_limit=quota.bytes_total,
            units=header.blob_len,
            expires_ms=quota.expires_ms,
        )


class ChannelTerms(NamedTuple):
    """What a channel's contract says."""

    deposit: int
    """Most that vouchers can redeem."""
    closes_ms: int
    """When it closes, Unix milliseconds."""


class ChannelCheck(Protocol):
    """Knows payment channels."""

    def terms(self, channel_id: bytes, payer: bytes) -> ChannelTerms | None:
        """Return the terms of the payer's channel, None when this node cannot tell."""


class StateChannelVerifier:
    """Vouchers: accepted messages never cost more than the highest voucher promises."""

    def __init__(self, network: str, channels: ChannelCheck, price: int) -> None:
        """Take ``price`` a message, in the channel's smallest unit."""
        self._network = network
        self._channels = channels
        self._price = price

    def form(self, proof: FeeProof, header: MsgHeader, parent: NamespaceId) -> Verdict:
        """Judge that a voucher promises the price of a message at least."""
        del header, parent
        if _body(proof, StateChannel).cumulative < self._price:
            return ignore(Code.FEE_TOO_LOW, f"the voucher is below our price ({_SECTION})")
        return ACCEPTED

    def prove(self, proof: FeeProof, header: MsgHeader) -> Verdict:
        """Judge the voucher's signature and the channel's deposit."""
        del header
        voucher = _body(proof, StateChannel)
        digest = voucher.voucher_digest(self._network)
        if not verify_digest(proof.payer, digest, voucher.voucher_signature):
            return _invalid("the voucher's signature does not verify")
        terms = self._channels.terms(voucher.channel_id, proof.payer)
        if terms is None or voucher.cumulative > terms.deposit:
            return ignore(Code.FEE_TOO_LOW, f"no channel here covers the voucher ({_SECTION})")
        return ACCEPTED

    def charge(self, proof: FeeProof, header: MsgHeader) -> Charge | None:
        """Take the price from what the highest voucher promises."""
        voucher = _body(proof, StateChannel)
        terms = self._channels.terms(voucher.channel_id, proof.payer)
        if terms is None:
            return None
        return Charge(
            account=voucher.account(self._network),
            message=header.content_id,
            messages_limit=MAX_U64,
            units_limit=voucher.cumulative,
            units=self._price,
            expires_ms=terms.closes_ms,
        )


class PaymentCheck(Protocol):
    """Knows payments on a chain, and which message each one pays."""

    def paid(self, payment: OnChain, payer: bytes, header: MsgHeader) -> bool | None:
        """Return whether the payment covers the header, None when this node cannot tell."""


class OnChainVerifier:
    """Payments on a chain, through a check that knows it."""

    def __init__(self, payments: PaymentCheck) -> None:
        """Ask ``payments``."""
        self._payments = payments

    def form(self, proof: FeeProof, header: MsgHeader, parent: NamespaceId) -> Verdict:
        """Judge nothing before the signature: a look at a chain is dear."""
        del proof, header, parent
        return ACCEPTED

    def prove(self, proof: FeeProof, header: MsgHeader) -> Verdict:
        """Judge what the chain says."""
        paid = self._payments.paid(_body(proof, OnChain), proof.payer, header)
        if paid is None:
            return ignore(Code.FEE_TOO_LOW, f"the payment is not to be seen here ({_SECTION})")
        return ACCEPTED if paid else _invalid("the payment does not cover the message")

    def charge(self, proof: FeeProof, header: MsgHeader) -> None:
        """Count nothing: the check knows what a payment has paid."""
        del proof, header


class StakeRoots(Protocol):
    """Knows the roots of the trees of stakes."""

    def known(self, root: bytes) -> bool | None:
        """Return whether the root is one of the network's, None when this node cannot tell."""


class StakeVerifier:
    """Stakes: the right to send comes with them, within `stake_allowance`."""

    def __init__(self, roots: StakeRoots, amount_min: int = 1) -> None:
        """Ask ``roots``; take stakes of ``amount_min`` LUX or more."""
        self._roots = roots
        self._amount_min = amount_min

    def form(self, proof: FeeProof, header: MsgHeader, parent: NamespaceId) -> Verdict:
        """Judge end, amount and the path to the root."""
        del parent
        stake, address = _body(proof, Stake), proof.payer_address
        if header.timestamp > stake.valid_until:
            return _invalid("the stake ended before the message")
        if address is None or not stake.leads_to_root(address):
            return _invalid("the path does not lead from the payer to the root")
        if stake.amount < self._amount_min:
            return ignore(Code.FEE_TOO_LOW, f"the stake is below our minimum ({_SECTION})")
        return ACCEPTED

    def prove(self, proof: FeeProof, header: MsgHeader) -> Verdict:
        """Judge the root."""
        del header
        known = self._roots.known(_body(proof, Stake).root)
        if known is None:
            return ignore(Code.FEE_TOO_LOW, f"the root of stakes is not known here ({_SECTION})")
        return ACCEPTED if known else _invalid("the root of stakes is none of the network's")

    def charge(self, proof: FeeProof, header: MsgHeader) -> None:
        """Count nothing: the rate limits do."""
        del proof, header


def stake_allowance(amount: int, cap: int) -> tuple[int, int]:
    """Return the (messages, bytes) a second that a stake earns: 1 and 1,024 a LUX, up to a cap.

    Source: LP-6422 §4.
    """
    counted = min(amount, cap)
    return counted, counted * 1024


_KNOWN: Final = frozenset(int(kind) for kind in FeeKind)
_OUTCOMES: Final = {
    ReserveOutcome.RESERVED: ACCEPTED,
    ReserveOutcome.DUPLICATE: ignore(Code.DUPLICATE, "the message is being charged (S7)"),
    ReserveOutcome.FULL: ignore(Code.RATE_LIMITED, "the ledger of quotas has no room (S7)"),
}


def _used_up(charge: Charge, left: tuple[int, int] | None) -> Verdict:
    messages, units = left or (charge.messages_limit, charge.units_limit)
    return ignore(
        Code.FEE_TOO_LOW,
        f"the quota is used up: {messages:,} of {charge.messages_limit:,} messages and {units:,} "
        f"of {charge.units_limit:,} bytes are left, the message takes 1 and {charge.units:,} (S7)",
    )


def _ended(charge: Charge, now_ms: int) -> Verdict:
    past = max(0, now_ms - charge.expires_ms)
    return ignore(
        Code.FEE_TOO_LOW,
        f"the quota ended at {charge.expires_ms} (Unix ms), {past:,} ms ago, and is kept no "
        "longer (S7)",
    )


def _invalid(what: str) -> Verdict:
    return reject(Code.FEE_TOO_LOW, f"{what} ({_SECTION})")


def _body(proof: FeeProof, kind: type[_Body]) -> _Body:
    assert isinstance(proof.body, kind)  # the table hands each verifier its own kind
    return proof.body
