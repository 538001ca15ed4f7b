"""Commitments of a blob, as a header carries them.

Source: LP-6411 §2.4, §2.5; decisions H2, H11.
"""

import hashlib

from luxrelay.bus import constants as c
from luxrelay.bus.header import MsgHeader
from luxrelay.bus.kzg import KzgCommitment, kzg_available, kzg_field, verify_kzg
from luxrelay.bus.verdict import ACCEPTED, Code, Verdict, ignore, reject
from luxrelay.errors import KzgUnavailableError


def sha3_commitment(blob: bytes) -> bytes:
    """Return SHA3-256 of the blob, or 32 zero bytes for an empty one (H11)."""
    return hashlib.sha3_256(blob).digest() if blob else c.ZERO_HASH


def check_blob(header: MsgHeader, blob: bytes, received: KzgCommitment | None = None) -> Verdict:
    """Say whether ``blob`` is the payload that ``header`` commits to.

    Args:
        header: A header that keeps the structural rules.
        blob: The payload.
        received: The commitments and proofs that came with the payload of a header with the KZG
            flag; without them the commitments are computed, which takes 30 times as long.

    Returns:
        ACCEPT; REJECT with ``BLOB_MISMATCH``; or IGNORE with ``UNSUPPORTED_COMMITMENT`` for a
        KZG commitment while the extra is not installed.

    Source: LP-6411 §2.4; H2; 11-10, 11-20, 11-21.

    """
    if len(blob) != header.blob_len:
        return reject(
            Code.BLOB_MISMATCH,
            f"blob has {len(blob)} bytes, the header says {header.blob_len} (LP-6411 §2.5)",
        )
    if header.flags & c.FLAG_KZG_COMMITMENT:
        return _check_kzg(header.blob_commitment, blob, received)
    if not blob:
        return ACCEPTED  # the structural rules admit only the two commitments of nothing
    if hashlib.sha3_256(blob).digest() != header.blob_commitment:
        return reject(Code.BLOB_MISMATCH, "blob does not match blobCommitment (LP-6411 §2.4)")
    return ACCEPTED


def _check_kzg(field: bytes, blob: bytes, received: KzgCommitment | None) -> Verdict:
    if not kzg_available():
        return ignore(
            Code.UNSUPPORTED_COMMITMENT, "KZG commitments need luxrelay[kzg] (LP-6411 §2.4, H2)"
        )
    if not blob:
        return ACCEPTED  # nothing to cut into polynomials; see `check_blob`
    try:
        holds = kzg_field(blob) == field if received is None else verify_kzg(field, blob, received)
    except KzgUnavailableError as error:  # our own installation is never the peer's fault
        return ignore(Code.UNSUPPORTED_COMMITMENT, f"{error.what} (LP-6411 §2.4, H2)")
    if holds:
        return ACCEPTED
    return reject(Code.BLOB_MISMATCH, "blob does not match its KZG commitment (LP-6411 §2.4, H2)")
