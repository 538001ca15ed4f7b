"""What a message is: headers, keys, commitments, namespaces, verdicts. Pure."""

from luxrelay.bus.commitment import check_blob, sha3_commitment
from luxrelay.bus.header import (
    ContentId,
    Digest,
    MessageId,
    MsgHeader,
    NamespaceId,
    TFHESidecarRef,
    message_id,
    sender_address,
)
from luxrelay.bus.hlc import HybridClock, pack_stamp, unpack_stamp
from luxrelay.bus.keys import SigningKey, VerifyKey, verify_header, verify_headers
from luxrelay.bus.namespace import (
    derived_namespace,
    is_reserved,
    lane,
    namespace_id,
    topic_namespace,
)
from luxrelay.bus.policy import Identity, IdentityType, NamespacePolicy, WritersMode
from luxrelay.bus.schemes import SignatureScheme
from luxrelay.bus.semantics import ValidationContext, validate
from luxrelay.bus.structure import validate_structure
from luxrelay.bus.verdict import ACCEPTED, Code, Verdict, VerdictKind

__all__ = [
    "ACCEPTED",
    "Code",
    "ContentId",
    "Digest",
    "HybridClock",
    "Identity",
    "IdentityType",
    "MessageId",
    "MsgHeader",
    "NamespaceId",
    "NamespacePolicy",
    "SignatureScheme",
    "SigningKey",
    "TFHESidecarRef",
    "ValidationContext",
    "Verdict",
    "VerdictKind",
    "VerifyKey",
    "WritersMode",
    "check_blob",
    "derived_namespace",
    "is_reserved",
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
    "verify_headers",
]
