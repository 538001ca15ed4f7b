"""Commitments of a blob: what a header says its payload is.

Source: LP-6411 §2.4, §2.5; decisions H2, H11.
"""

import hashlib

from luxrelay.bus import constants as c
from luxrelay.bus.header import MsgHeader
from luxrelay.bus.verdict import ACCEPTED, Code, Verdict, ignore, reject


def sha3_commitment(blob: bytes) -> bytes:
    """Return SHA3-256 of the blob, or 32 zero bytes for an empty one (H11)."""
    return hashlib.sha3_256(blob).digest() if blob else c.ZERO_HASH


def check_blob(header: MsgHeader, blob: bytes) -> Verdict:
    """Say whether ``blob`` is the payload that ``header`` commits to.

    Returns:
        ACCEPT; REJECT with ``BLOB_MISMATCH``; or IGNORE with ``UNSUPPORTED_COMMITMENT`` for a
        KZG commitment, which needs the extra.

    Source: LP-6411 §2.4; 11-20, 11-21.

    """
    if len(blob) != header.blob_len:
        return reject(
            Code.BLOB_MISMATCH,
            f"blob has {len(blob)} bytes, the header says {header.blob_len} (LP-6411 §2.5)",
        )
    if header.flags & c.FLAG_KZG_COMMITMENT:
        return ignore(
            Code.UNSUPPORTED_COMMITMENT, "KZG commitments need luxrelay[kzg] (LP-6411 §2.4, H2)"
        )
    if not blob:
        return ACCEPTED  # the structural rules admit only the two commitments of nothing
    if hashlib.sha3_256(blob).digest() != header.blob_commitment:
        return reject(Code.BLOB_MISMATCH, "blob does not match blobCommitment (LP-6411 §2.4)")
    return ACCEPTED
