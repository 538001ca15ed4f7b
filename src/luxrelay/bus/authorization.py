"""A policy's decision on one header: writer, signature scheme, sidecar.

A header carries its sender's key, so identities are compared with that key; nothing is recovered
from a signature (H27). A denial needs no signature, because the key that the header claims is the
one refused; an ALLOWED means nothing until the signature holds. Lanes follow their parent's
policy (J6).

Source: LP-6410 §4; decisions H22, H27, H28; LP-6460.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum
from typing import Final, Protocol

from luxrelay.bus.constants import FLAG_TFHE_SIDECAR
from luxrelay.bus.header import MsgHeader, sender_address
from luxrelay.bus.policy import (
    EncryptionMode,
    Identity,
    IdentityType,
    NamespacePolicy,
    PqMode,
    TokenGate,
    WritersMode,
)
from luxrelay.bus.schemes import SignatureScheme
from luxrelay.errors import BusArgumentError


class Access(Enum):
    """The answer to 'may this sender write'; true only when it is ALLOWED."""

    ALLOWED = "allowed"
    DENIED = "denied"
    """The policy says no: every node that knows it says the same."""
    UNKNOWN = "unknown"
    """This node cannot tell: it has no balance check, or the check has no answer now."""

    def __bool__(self) -> bool:
        """Return True for ALLOWED only, so that a bare `if` denies by default."""
        return self is Access.ALLOWED


class BalanceCheck(Protocol):
    """Answers whether an address holds what a token gate asks; given by whoever knows a chain."""

    def holds(self, address: bytes, gate: TokenGate) -> bool | None:
        """Return True or False as of a state that all nodes share, None when it cannot tell."""


class IdentityCheck(Protocol):
    """Resolves identities that are no key and no address: ENS, DID, email, phone, X.509."""

    def matches(self, identity: Identity, key_field: bytes) -> bool | None:
        """Return whether the key belongs to the identity, None when it cannot tell."""


PQ_SCHEMES: Final[dict[PqMode, frozenset[SignatureScheme]]] = {
    PqMode.CLASSICAL: frozenset({SignatureScheme.ED25519, SignatureScheme.SECP256K1}),
    PqMode.HYBRID: frozenset({SignatureScheme.HYBRID_ED25519_ML_DSA_65}),
    PqMode.PQ_ONLY: frozenset({SignatureScheme.ML_DSA_65, SignatureScheme.ML_DSA_87}),
}
"""Schemes that may sign in each mode; secp256k1 counts as classical (H28)."""


def authorize_write(
    header: MsgHeader,
    policy: NamespacePolicy,
    balances: BalanceCheck | None = None,
    identities: IdentityCheck | None = None,
) -> Access:
    """Say whether the header's key may write under ``policy``; whatever is not listed is denied.

    The caller verifies the signature before it trusts an ALLOWED.

    Source: LP-6411 §3.2, LP-6410 §4; 11-39.
    """
    key = header.sender_pub_key
    if policy.writers_mode is WritersMode.OPEN:
        return Access.ALLOWED
    if policy.writers_mode is WritersMode.OWNER_ONLY:
        return identity_access(policy.owner, key, identities)
    if policy.writers_mode is WritersMode.ALLOWLIST:
        return _any_writer(policy, key, identities)
    gate = policy.token_gate
    return Access.DENIED if gate is None else _gate_access(gate, key, balances)


def identity_access(
    identity: Identity, key_field: bytes, identities: IdentityCheck | None = None
) -> Access:
    """Say whether a senderPubKey field belongs to an identity."""
    if identity.type is IdentityType.RAW_KEY:
        return _answer(identity.value == key_field)
    if identity.type is IdentityType.WALLET:
        return _answer(identity.value == key_address(key_field))
    return _answer(None if identities is None else identities.matches(identity, key_field))


def key_address(key_field: bytes) -> bytes | None:
    """Return the address of a senderPubKey field, or None for a key that has none."""
    try:
        return sender_address(key_field)
    except BusArgumentError:
        return None


def allowed_scheme(policy: NamespacePolicy, key_field: bytes) -> bool:
    """Return True when the key's scheme may sign in the policy's mode (H28; 11-40)."""
    return bool(key_field) and key_field[0] in PQ_SCHEMES[policy.pq_mode]


def sidecar_fits(policy: NamespacePolicy, header: MsgHeader) -> bool:
    """Return True when the header has a sidecar reference exactly where it may or must (H22).

    tfheOrch demands one; encryption mode TFHE allows one; every other policy forbids it.

    Source: LP-6411 §2.10; 11-37.
    """
    carried = bool(header.flags & FLAG_TFHE_SIDECAR)
    if policy.tfhe_orch:
        return carried
    return not carried or policy.encryption_mode is EncryptionMode.TFHE


def _any_writer(
    policy: NamespacePolicy, key_field: bytes, identities: IdentityCheck | None
) -> Access:
    address = key_address(key_field)
    own = [bytes([IdentityType.RAW_KEY]) + len(key_field).to_bytes(2, "big") + key_field]
    if address is not None:
        own.append(Identity(IdentityType.WALLET, address).encode())
    # The list is sorted by its bytes, of which the type is the first.
    writers, order = policy.writers, Identity.encode
    for wanted in own:
        place = bisect_left(writers, wanted, key=order)
        if place < len(writers) and writers[place].encode() == wanted:
            return Access.ALLOWED
    start = bisect_left(writers, bytes([IdentityType.ENS]), key=order)
    stop = bisect_left(writers, bytes([IdentityType.RAW_KEY]), key=order)
    answers = {identity_access(writer, key_field, identities) for writer in writers[start:stop]}
    for access in (Access.ALLOWED, Access.UNKNOWN):
        if access in answers:
            return access
    return Access.DENIED


def _gate_access(gate: TokenGate, key_field: bytes, balances: BalanceCheck | None) -> Access:
    address = key_address(key_field)
    if address is None:
        return Access.DENIED
    return _answer(None if balances is None else balances.holds(address, gate))


def _answer(holds: bool | None) -> Access:
    if holds is None:
        return Access.UNKNOWN
    return Access.ALLOWED if holds else Access.DENIED
