"""The signature schemes of LP-6411 as a table: number, lengths, flags.

Lengths are exact; the key field is the scheme byte followed by the key.

Source: LP-6411 §2.7, §2.8; H5, H6, H7.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from luxrelay.bus.constants import FLAG_HYBRID_SIG, FLAG_PQ_SIGNATURE


class SignatureScheme(IntEnum):
    """sigType: the first byte of senderPubKey (H5)."""

    ED25519 = 0x01
    SECP256K1 = 0x02
    ML_DSA_65 = 0x03
    ML_DSA_87 = 0x04
    HYBRID_ED25519_ML_DSA_65 = 0x05


@dataclass(frozen=True, slots=True)
class SchemeSpec:
    """What the wire format demands of one scheme."""

    scheme: SignatureScheme
    """Which scheme."""
    key_field_bytes: int
    """Length of senderPubKey: one scheme byte and the key."""
    signature_bytes: int
    """Length of the signature."""
    flags: int
    """The signature flags a header of this scheme carries, no more and no fewer (H7)."""


_PQ: Final = FLAG_PQ_SIGNATURE
_ROWS: Final = (
    SchemeSpec(SignatureScheme.ED25519, 33, 64, 0),
    SchemeSpec(SignatureScheme.SECP256K1, 34, 64, 0),
    SchemeSpec(SignatureScheme.ML_DSA_65, 1953, 3309, _PQ),
    SchemeSpec(SignatureScheme.ML_DSA_87, 2593, 4627, _PQ),
    SchemeSpec(SignatureScheme.HYBRID_ED25519_ML_DSA_65, 1985, 3373, _PQ | FLAG_HYBRID_SIG),
)

SCHEMES: Final[dict[int, SchemeSpec]] = {int(row.scheme): row for row in _ROWS}
"""By scheme byte."""

SIGNATURE_FLAGS: Final = FLAG_PQ_SIGNATURE | FLAG_HYBRID_SIG
"""The two flag bits that the scheme decides."""
