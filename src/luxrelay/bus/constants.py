"""Every number of LP-6410 and LP-6411 once, with its unit, section and decision."""

from typing import Final

# LP-6411 §1.2: offsets of the fixed part, bytes, big-endian throughout (11-01).
VERSION: Final = 1
OFFSET_VERSION: Final = 0
OFFSET_FLAGS: Final = 1
OFFSET_NAMESPACE: Final = 2
OFFSET_SEQ: Final = 22
OFFSET_TIMESTAMP: Final = 30
OFFSET_COMMITMENT: Final = 38
OFFSET_BLOB_LEN: Final = 70
OFFSET_POLICY_HASH: Final = 74
OFFSET_KEY_LEN: Final = 106

PREIMAGE_BYTES: Final = 106
"""Bytes under headerHash: everything before the first length field (LP-6411 §2.8)."""
FIXED_BYTES: Final = 112
"""The fixed part with its three length fields; the document's 140 does not add up (H1)."""
SIDECAR_BYTES: Final = 40
"""sidecarCommitment and sidecarEpoch (LP-6411 §1.2)."""
MIN_HEADER_BYTES: Final = FIXED_BYTES
"""The structural floor; the smallest acceptable header is 210 bytes (H1)."""

NAMESPACE_BYTES: Final = 20
HASH_BYTES: Final = 32
ADDRESS_BYTES: Final = 20
SALT_BYTES: Final = 32

# LP-6411 §1.4; bit 0 is the least significant (H36).
FLAG_TFHE_SIDECAR: Final = 0x01
FLAG_KZG_COMMITMENT: Final = 0x02
FLAG_PQ_SIGNATURE: Final = 0x04
FLAG_HYBRID_SIG: Final = 0x08
RESERVED_FLAGS: Final = 0xF0

# LP-6411 §5; all limits hold at once (H8, H10).
MAX_HEADER_BYTES: Final = 8 * 1024
MAX_KEY_FIELD_BYTES: Final = 4 * 1024
MAX_SIGNATURE_BYTES: Final = 8 * 1024
MAX_FEE_PROOF_BYTES: Final = 1024
MAX_BLOB_BYTES: Final = 2 * 1024 * 1024
"""LP-6411 §2.5, inclusive."""

MAX_U32: Final = 2**32 - 1
MAX_U64: Final = 2**64 - 1

FEE_NONE: Final = b"\x00"
"""The one encoding of 'no fee proof'; an empty feeProof is malformed (H12)."""

ZERO_HASH: Final = bytes(HASH_BYTES)
EMPTY_SHA3_256: Final = bytes.fromhex(
    "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"
)
"""SHA3-256 of nothing: the second commitment a header with blobLen 0 may carry (H11)."""

EPOCH_MS: Final = 3_600_000
"""epochDuration, milliseconds (LP-6411 §2.3, H24)."""
LIVE_TOLERANCE_MS: Final = 30_000
"""±30 s around the reference clock for live messages (LP-6411 §2.3, H14)."""
SECONDS_LOOKALIKE_MAX: Final = 10**11
"""A stamp below this looks like seconds, not milliseconds (P8)."""

# LP-6410 domain tags, ASCII.
TAG_NAMESPACE: Final = b"lux.ns.v1"
TAG_DERIVED: Final = b"lux.ns.derived.v1"
TAG_TOPIC: Final = b"lux.topic.v1"
"""Parent namespace of a content topic (J6)."""

HLC_COUNTER_BITS: Final = 16
"""A packed stamp is physical milliseconds in the upper 48 bits, a counter in the lower 16 (J1)."""
