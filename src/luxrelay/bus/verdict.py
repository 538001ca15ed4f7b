"""Verdicts: accept, ignore or reject, with a code and a reason.

A verdict is a value, never an exception: an IGNORE is nobody's fault and a REJECT is the sender's.

Source: decisions G19 and the verdict table; S11, J10.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class VerdictKind(IntEnum):
    """What happens to the message and to the peer that brought it."""

    ACCEPT = 0
    """Store it, deliver it, forward it."""
    IGNORE = 1
    """Drop it without penalty."""
    REJECT = 2
    """Drop it and count it against the peer."""


class Code(IntEnum):
    """Why. 1001–1008 keep the numbers of LP-6400; 1101 and above are the structural rules."""

    OK = 0

    INVALID_NAMESPACE = 1001
    SEQUENCE_GAP = 1002
    POLICY_VIOLATION = 1003
    BLOB_UNAVAILABLE = 1004
    INVALID_SIGNATURE = 1005
    RATE_LIMITED = 1006
    FEE_TOO_LOW = 1007
    TIMESTAMP_INVALID = 1008

    HEADER_TOO_LONG = 1101
    HEADER_TOO_SHORT = 1102
    UNSUPPORTED_VERSION = 1103
    RESERVED_FLAGS = 1104
    FLAGS_COMBINATION = 1105
    ZERO_NAMESPACE = 1106
    ZERO_SEQUENCE = 1107
    BLOB_TOO_LARGE = 1108
    COMMITMENT_OF_NOTHING = 1109
    ZERO_COMMITMENT = 1110
    TRUNCATED = 1111
    KEY_TOO_LONG = 1112
    SIGNATURE_TOO_LONG = 1113
    FEE_TOO_LONG = 1114
    UNKNOWN_SCHEME = 1115
    KEY_LENGTH = 1116
    SIGNATURE_LENGTH = 1117
    FLAGS_SCHEME = 1118
    FEE_EMPTY = 1119
    FEE_NONE_WITH_DATA = 1120
    TRAILING_BYTES = 1121

    BLOB_MISMATCH = 1201
    """The blob is not the one the header commits to."""
    UNSUPPORTED_COMMITMENT = 1202
    """KZG without the extra that checks it (H2)."""
    UNSUPPORTED_SCHEME = 1203
    """A known signature scheme this build cannot verify."""
    MALFORMED_PAYLOAD = 1204
    """The envelope's payload is not what its type says."""
    WRONG_TOPIC = 1205
    """The header's namespace is neither the topic's nor a lane of it (G28, J6)."""
    SOURCE_SIGNATURE = 1206
    """The announcement's relay signature does not verify (G8)."""
    DUPLICATE = 1207
    CONTENTION = 1208
    """Another candidate keeps the slot (J11)."""
    EXPIRED = 1209
    UNSUPPORTED_TYPE = 1210
    """An envelope type that this node does not take."""
    STORE_FULL = 1211
    LOCAL_FAULT = 1212
    """Our own disk or queue; never the peer's fault."""
    SIDECAR_INVALID = 1213
    """The sidecar's container is not the one the header refers to (LP-6411 §2.10)."""
    UNCHECKABLE = 1214
    """The policy asks what this node cannot find out: a balance, an identity (LP-6410 §4)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision about one message."""

    kind: VerdictKind
    """Accept, ignore or reject."""
    code: Code = Code.OK
    """Why; ``Code.OK`` for an accepted message."""
    reason: str = ""
    """For people: what was wrong, with the section that says so."""
    retry_after_ms: int = 0
    """Milliseconds after which the same message may be taken; 0 when time alone changes nothing."""

    @property
    def accepted(self) -> bool:
        """True when the message may be stored and forwarded."""
        return self.kind is VerdictKind.ACCEPT


ACCEPTED: Final = Verdict(VerdictKind.ACCEPT)
"""The one verdict that needs no reason."""


def ignore(code: Code, reason: str, retry_after_ms: int = 0) -> Verdict:
    """Return an IGNORE verdict."""
    return Verdict(VerdictKind.IGNORE, code, reason, retry_after_ms)


def reject(code: Code, reason: str) -> Verdict:
    """Return a REJECT verdict."""
    return Verdict(VerdictKind.REJECT, code, reason)
