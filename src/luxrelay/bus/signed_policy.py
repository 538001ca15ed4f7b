"""Signed policy documents: how a policy reaches a relay without a chain, and how it changes.

    SignedPolicyV1 := "lux.policy.v1" ‖ networkLen u8 ‖ network ‖ namespaceId 20
                      ‖ policyLen u32 ‖ PolicyV1 ‖ activationSeq u64 ‖ activationTime u64 (ms)
                      ‖ keyLen u16 ‖ key field ‖ signatureLen u16 ‖ signature

The signature is by the key, over SHA3-256 of everything before signatureLen. It names the network
and the namespace, so a document is worth nothing anywhere else (H4). The key is a senderPubKey
field: scheme byte and key.

Source: LP-6410 §2, §3; decisions H19, H20, H21.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final

from luxrelay.bus.authorization import Access, IdentityCheck, identity_access
from luxrelay.bus.constants import MAX_U64, NAMESPACE_BYTES
from luxrelay.bus.header import NamespaceId
from luxrelay.bus.keys import SigningKey, VerifyKey
from luxrelay.bus.policy import MAX_POLICY_BYTES, NamespacePolicy
from luxrelay.bus.schemes import SCHEMES
from luxrelay.errors import BusArgumentError, KeyFormatError, PolicyError
from luxrelay.wire import ByteReader

TAG_POLICY: Final = b"lux.policy.v1"
"""Domain tag of signed policies."""
NETWORK_PATTERN: Final = re.compile(r"[a-z0-9-]{1,32}")
"""Names of networks, as in topics and in a node's configuration."""
MAX_DOCUMENT_BYTES: Final = MAX_POLICY_BYTES + 8192
"""Longest signed policy; the longest key field and signature fit."""

_ACTIVATION: Final = Struct(">QQ")
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedPolicy:
    """A policy with where and from when it holds, signed by the owner's key.

    Raises:
        BusArgumentError: a value is out of range.

    """

    network: str
    """The network it is meant for, 1 to 32 of a-z 0-9 -."""
    namespace_id: NamespaceId
    """The namespace it rules, 20 bytes."""
    policy: NamespacePolicy
    """The rules."""
    activation_seq: int = 0
    """First sequence of the namespace it holds for, u64; lanes go by time alone."""
    activation_ms: int = 0
    """First header timestamp it holds for, Unix milliseconds, u64."""
    signer: bytes = b""
    """Key field of the signer: the owner, or before a transfer the owner that hands over."""
    signature: bytes = b""
    """Over `digest`; empty until signed."""

    def __post_init__(self) -> None:
        """Refuse what has no encoding."""
        if not NETWORK_PATTERN.fullmatch(self.network):
            raise BusArgumentError("a network has 1 to 32 of a-z 0-9 -", where="SignedPolicy")
        if len(self.namespace_id) != NAMESPACE_BYTES or not any(self.namespace_id):
            raise BusArgumentError(
                "a namespace has 20 bytes that are not all zero", where="SignedPolicy"
            )
        for stamp in (self.activation_seq, self.activation_ms):
            if not 0 <= stamp <= MAX_U64:
                raise BusArgumentError("an activation is a u64", where="SignedPolicy")

    @property
    def digest(self) -> bytes:
        """SHA3-256 of everything before the signature: what the signer signs."""
        return hashlib.sha3_256(self._signed_bytes()).digest()

    def encode(self) -> bytes:
        """Return the one encoding."""
        return self._signed_bytes() + _U16.pack(len(self.signature)) + self.signature

    def _signed_bytes(self) -> bytes:
        network, policy = self.network.encode(), self.policy.encode()
        return b"".join(
            (
                TAG_POLICY,
                bytes([len(network)]),
                network,
                self.namespace_id,
                _U32.pack(len(policy)),
                policy,
                _ACTIVATION.pack(self.activation_seq, self.activation_ms),
                _U16.pack(len(self.signer)),
                self.signer,
            )
        )

    def signed_by(self, key: SigningKey) -> SignedPolicy:
        """Return the document with ``key`` as its signer."""
        unsigned = replace(self, signer=key.public_field, signature=b"")
        return replace(unsigned, signature=key.sign(unsigned.digest))

    def verify(self) -> bool:
        """Return True when the signature is by ``signer``; says nothing about who that is."""
        try:
            key = VerifyKey.from_field(self.signer)
        except KeyFormatError:
            return False
        return key.verify(self.digest, self.signature)

    @classmethod
    def decode(cls, data: bytes) -> SignedPolicy:
        """Return the document that ``data`` encodes; the signature is not checked.

        Raises:
            PolicyError: the bytes are cut, too long, or not the one encoding of a document.

        """
        if len(data) > MAX_DOCUMENT_BYTES:
            raise PolicyError(
                f"a signed policy has at most {MAX_DOCUMENT_BYTES} bytes", where="signed policy"
            )
        reader = ByteReader(bytes(data), PolicyError, "signed policy")
        if reader.take(len(TAG_POLICY)) != TAG_POLICY:
            raise reader.fail("the tag is not lux.policy.v1")
        network = reader.take(reader.u8())
        namespace = NamespaceId(reader.take(NAMESPACE_BYTES))
        policy = NamespacePolicy.decode(reader.take(reader.u32()))
        activation_seq, activation_ms = reader.u64(), reader.u64()
        signer = reader.take(reader.u16())
        signature = reader.take(reader.u16())
        reader.end()
        spec = SCHEMES.get(signer[0]) if signer else None
        if spec is None or (len(signer), len(signature)) != (
            spec.key_field_bytes,
            spec.signature_bytes,
        ):
            raise reader.fail("key and signature do not have the lengths of a scheme")
        try:
            return cls(
                network=network.decode("ascii", "replace"),
                namespace_id=namespace,
                policy=policy,
                activation_seq=activation_seq,
                activation_ms=activation_ms,
                signer=signer,
                signature=signature,
            )
        except BusArgumentError as error:
            raise reader.fail(error.what) from error


def check_first(document: SignedPolicy, identities: IdentityCheck | None = None) -> None:
    """Return when ``document`` may be the first of its namespace: its owner signed it.

    Raises:
        PolicyError: the signature does not hold or the signer is not the owner.

    """
    _check_signer(document, document.policy, identities)


def check_update(
    document: SignedPolicy,
    previous: NamespacePolicy,
    previous_activation: tuple[int, int],
    identities: IdentityCheck | None = None,
) -> None:
    """Return when ``document`` may follow ``previous`` (H21).

    The owner in ``previous`` signed it, also when it hands the namespace to another owner; the
    version rises; the encryption mode stays; and it begins no earlier than what it replaces.

    Args:
        document: The new document.
        previous: The policy it replaces.
        previous_activation: (sequence, milliseconds) from which ``previous`` holds.
        identities: Resolves owners that are neither key nor address.

    Raises:
        PolicyError: one of these does not hold.

    """
    new = document.policy
    if new.version <= previous.version:
        raise PolicyError(
            f"version {new.version} does not rise above {previous.version}", where="policy update"
        )
    if new.encryption_mode is not previous.encryption_mode:
        raise PolicyError("encryptionMode never changes (H21)", where="policy update")
    begins = (document.activation_seq, document.activation_ms)
    if begins[0] < previous_activation[0] or begins[1] < previous_activation[1]:
        raise PolicyError("it begins before the policy it replaces", where="policy update")
    _check_signer(document, previous, identities)


def _check_signer(
    document: SignedPolicy, authority: NamespacePolicy, identities: IdentityCheck | None
) -> None:
    access = identity_access(authority.owner, document.signer, identities)
    if access is Access.UNKNOWN:
        raise PolicyError("this node cannot resolve the owner's identity", where="signed policy")
    if not access:
        raise PolicyError("the signer is not the owner", where="signed policy")
    if not document.verify():
        raise PolicyError("the signature does not verify", where="signed policy")
