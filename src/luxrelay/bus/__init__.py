"""Messages as values: headers, keys, commitments, namespaces, verdicts. Pure."""

from luxrelay.bus.authorization import Access, authorize_write
from luxrelay.bus.fee import FeeKind, FeeProof
from luxrelay.bus.fee_verifiers import FeeVerifiers
from luxrelay.bus.finality import FinalityOracle, FinalityState
from luxrelay.bus.header import (
    ContentId,
    Digest,
    MessageId,
    MsgHeader,
    NamespaceId,
    TFHESidecarRef,
    check_blob,
    message_id,
    sender_address,
    sha3_commitment,
)
from luxrelay.bus.hlc import HybridClock, pack_stamp, unpack_stamp
from luxrelay.bus.keys import SigningKey, VerifyKey, verify_header
from luxrelay.bus.kzg import KzgCommitment, kzg_available, kzg_commit, verify_kzg
from luxrelay.bus.limits import LimitConfig, RateLimiter
from luxrelay.bus.namespace import (
    Naming,
    create_namespace,
    derived_namespace,
    direct_namespace,
    dkg_namespace,
    group_namespace,
    is_reserved,
    lane,
    namespace_id,
    topic_namespace,
)
from luxrelay.bus.policy import Identity, IdentityType, NamespacePolicy, TokenGate, WritersMode
from luxrelay.bus.quota import QuotaLedger
from luxrelay.bus.registry import PolicyRegistry, RegistryConfig
from luxrelay.bus.schemes import SignatureScheme
from luxrelay.bus.semantics import ValidationContext, validate
from luxrelay.bus.sidecar import (
    CiphertextType,
    TFHECiphertext,
    TFHESidecar,
    attach_sidecar,
    check_sidecar,
)
from luxrelay.bus.signed_policy import SignedPolicy
from luxrelay.bus.structure import validate_structure
from luxrelay.bus.verdict import ACCEPTED, Code, Verdict, VerdictKind

__all__ = [
    "ACCEPTED",
    "Access",
    "CiphertextType",
    "Code",
    "ContentId",
    "Digest",
    "FeeKind",
    "FeeProof",
    "FeeVerifiers",
    "FinalityOracle",
    "FinalityState",
    "HybridClock",
    "Identity",
    "IdentityType",
    "KzgCommitment",
    "LimitConfig",
    "MessageId",
    "MsgHeader",
    "NamespaceId",
    "NamespacePolicy",
    "Naming",
    "PolicyRegistry",
    "QuotaLedger",
    "RateLimiter",
    "RegistryConfig",
    "SignatureScheme",
    "SignedPolicy",
    "SigningKey",
    "TFHECiphertext",
    "TFHESidecar",
    "TFHESidecarRef",
    "TokenGate",
    "ValidationContext",
    "Verdict",
    "VerdictKind",
    "VerifyKey",
    "WritersMode",
    "attach_sidecar",
    "authorize_write",
    "check_blob",
    "check_sidecar",
    "create_namespace",
    "derived_namespace",
    "direct_namespace",
    "dkg_namespace",
    "group_namespace",
    "is_reserved",
    "kzg_available",
    "kzg_commit",
    "lane",
    "message_id",
    "namespace_id",
    "pack_stamp",
    "sender_address",
    "sha3_commitment",
    "topic_namespace",
    "unpack_stamp",
    "validate",
    "validate_structure",
    "verify_header",
    "verify_kzg",
]
