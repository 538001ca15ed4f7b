"""The rules on bytes alone: is this the one encoding of a header?

Theory of operation
-------------------
*Decides* whether bytes have the form of LP-6411 §1.2 and which rule they break first.
*Does not know* namespaces, policies, clocks or whether a signature holds.
Rules stand in two ordered tables. ``FIXED_RULES`` look at the first 112 bytes; then the three
length fields are walked, each checked against its own limit before anything is sliced (H10);
``SPAN_RULES`` look at the variable parts. The first broken rule is the answer, so a message has
one code, and the cheap rules come first.
The tables say what is wrong; `read_fields` only says yes. Version, flags, keyLen and sigType pick
one of twenty *shapes*, a shape fixes every offset but the end of the fee, and one unpacking with a
few comparisons proves that no rule is broken. Where it does not say yes, the tables are asked.
tests/property/test_structure.py holds it to yes exactly where no rule of the tables is broken.
*Deviations from the specification*: the floor is 112 bytes (H1); feeProof is never empty (H12);
a header without a blob carries a zero commitment or SHA3-256 of nothing (H11).
*What else to change when you change this*: a rule here is a comparison in `read_fields` and a row
in `luxrelay.bus.structure_batch`; also ``Code``, the vectors, docs/reference/verdicts.md.

Source: LP-6411 §3.1, §5; decisions H1–H12, H32, H36, S6.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

from luxrelay.bus import constants as c
from luxrelay.bus.schemes import SCHEMES, SIGNATURE_FLAGS, SchemeSpec
from luxrelay.bus.verdict import ACCEPTED, Code, Verdict, reject

_U16: Final = Struct(">H").unpack_from
_U32: Final = Struct(">I").unpack_from

KEY_START: Final = c.OFFSET_KEY_LEN + 2
"""senderPubKey begins after its length field: offset 108."""


class Spans(NamedTuple):
    """Where the variable parts of a header lie; ends are exclusive, in bytes."""

    key_end: int
    signature_start: int
    signature_end: int
    fee_start: int
    fee_end: int
    end: int
    """Where the header ends by its own account: after the sidecar reference, if flagged."""


class FixedRule(NamedTuple):
    """A rule on the fixed part: ``broken(data)`` means the answer is ``code``."""

    code: Code
    section: str
    reason: str
    broken: Callable[[bytes], bool]


class SpanRule(NamedTuple):
    """A rule on the variable parts: ``broken(data, spans)`` means the answer is ``code``."""

    code: Code
    section: str
    reason: str
    broken: Callable[[bytes, Spans], bool]


def _blob_len(data: bytes) -> int:
    return int(_U32(data, c.OFFSET_BLOB_LEN)[0])


def _commitment(data: bytes) -> bytes:
    return data[c.OFFSET_COMMITMENT : c.OFFSET_BLOB_LEN]


_COMMITMENTS_OF_NOTHING: Final = frozenset({c.ZERO_HASH, c.EMPTY_SHA3_256})

FIXED_RULES: Final = (
    FixedRule(
        Code.HEADER_TOO_LONG,
        "LP-6411 §5, H9",
        f"header is longer than {c.MAX_HEADER_BYTES} bytes",
        lambda data: len(data) > c.MAX_HEADER_BYTES,
    ),
    FixedRule(
        Code.HEADER_TOO_SHORT,
        "LP-6411 §3.1, H1",
        f"header is shorter than {c.MIN_HEADER_BYTES} bytes",
        lambda data: len(data) < c.MIN_HEADER_BYTES,
    ),
    FixedRule(
        Code.UNSUPPORTED_VERSION,
        "LP-6411 §1.3, H37",
        "version is not 1",
        lambda data: data[c.OFFSET_VERSION] != c.VERSION,
    ),
    FixedRule(
        Code.RESERVED_FLAGS,
        "LP-6411 §1.4",
        "a reserved flag (bits 4 to 7) is set",
        lambda data: data[c.OFFSET_FLAGS] & c.RESERVED_FLAGS != 0,
    ),
    FixedRule(
        Code.FLAGS_COMBINATION,
        "LP-6411 §1.4, H7",
        "FLAG_HYBRID_SIG without FLAG_PQ_SIGNATURE",
        lambda data: data[c.OFFSET_FLAGS] & SIGNATURE_FLAGS == c.FLAG_HYBRID_SIG,
    ),
    FixedRule(
        Code.ZERO_NAMESPACE,
        "LP-6410, S6",
        "namespaceId is all zero",
        lambda data: not any(data[c.OFFSET_NAMESPACE : c.OFFSET_SEQ]),
    ),
    FixedRule(
        Code.ZERO_SEQUENCE,
        "LP-6411 §2.2",
        "seq is 0, which is reserved",
        lambda data: not any(data[c.OFFSET_SEQ : c.OFFSET_TIMESTAMP]),
    ),
    FixedRule(
        Code.BLOB_TOO_LARGE,
        "LP-6411 §2.5",
        f"blobLen is above {c.MAX_BLOB_BYTES}",
        lambda data: _blob_len(data) > c.MAX_BLOB_BYTES,
    ),
    FixedRule(
        Code.COMMITMENT_OF_NOTHING,
        "LP-6411 §2.5, H11",
        "blobLen is 0 but the commitment is neither zero nor SHA3-256 of nothing",
        lambda data: _blob_len(data) == 0 and _commitment(data) not in _COMMITMENTS_OF_NOTHING,
    ),
    FixedRule(
        Code.ZERO_COMMITMENT,
        "LP-6411 §2.4, H11",
        "blobLen is not 0 but the commitment is zero",
        lambda data: _blob_len(data) > 0 and _commitment(data) == c.ZERO_HASH,
    ),
)
"""Rules on the first 112 bytes, in the order in which they are asked."""


def _scheme_flags(data: bytes) -> int:
    return SCHEMES[data[KEY_START]].flags


SPAN_RULES: Final = (
    SpanRule(
        Code.UNKNOWN_SCHEME,
        "LP-6411 §2.7, H5",
        "sigType is none of 1 to 5",
        lambda data, spans: spans.key_end == KEY_START or data[KEY_START] not in SCHEMES,
    ),
    SpanRule(
        Code.KEY_LENGTH,
        "LP-6411 §2.7, H6",
        "senderPubKey does not have the length of its scheme",
        lambda data, spans: spans.key_end - KEY_START != SCHEMES[data[KEY_START]].key_field_bytes,
    ),
    SpanRule(
        Code.FLAGS_SCHEME,
        "LP-6411 §1.4, H7",
        "the signature flags do not fit sigType",
        lambda data, _: data[c.OFFSET_FLAGS] & SIGNATURE_FLAGS != _scheme_flags(data),
    ),
    SpanRule(
        Code.SIGNATURE_LENGTH,
        "LP-6411 §2.8",
        "the signature does not have the length of its scheme",
        lambda data, spans: (
            spans.signature_end - spans.signature_start != SCHEMES[data[KEY_START]].signature_bytes
        ),
    ),
    SpanRule(
        Code.FEE_EMPTY,
        "LP-6411 §2.9, H12",
        "feeProof is empty; no fee is the single byte 0x00",
        lambda _, spans: spans.fee_end == spans.fee_start,
    ),
    SpanRule(
        Code.FEE_NONE_WITH_DATA,
        "LP-6411 §2.9, H12",
        "feeProof of kind 0 carries data",
        lambda data, spans: data[spans.fee_start] == 0 and spans.fee_end - spans.fee_start > 1,
    ),
    SpanRule(
        Code.TRUNCATED,
        "LP-6411 §1.2, H32",
        "the sidecar reference that the flags announce is missing or cut",
        lambda data, spans: len(data) < spans.end,
    ),
    SpanRule(
        Code.TRAILING_BYTES,
        "LP-6411 §3.1, H32",
        "there are bytes after the end of the header",
        lambda data, spans: len(data) > spans.end,
    ),
)
"""Rules on the variable parts, in the order in which they are asked."""

_LENGTH_REASONS: Final = {
    Code.KEY_TOO_LONG: ("LP-6411 §5", f"senderPubKey is above {c.MAX_KEY_FIELD_BYTES} bytes"),
    Code.SIGNATURE_TOO_LONG: ("LP-6411 §5", f"signature is above {c.MAX_SIGNATURE_BYTES} bytes"),
    Code.FEE_TOO_LONG: ("LP-6411 §5", f"feeProof is above {c.MAX_FEE_PROOF_BYTES} bytes"),
    Code.TRUNCATED: ("LP-6411 §1.2", "the header ends before its variable fields do"),
}

REASONS: Final[dict[Code, tuple[str, str]]] = {
    **{rule.code: (rule.section, rule.reason) for rule in FIXED_RULES},
    **_LENGTH_REASONS,
    **{
        rule.code: (rule.section, rule.reason)
        for rule in SPAN_RULES
        if rule.code not in _LENGTH_REASONS
    },
}
"""Section and reason of every structural code, in the order in which they are asked; docs and
tests are made from it."""


def walk_spans(data: bytes) -> Spans | Code:
    """Return where the variable parts lie, or the code of the length that cannot be.

    ``data`` has at least 112 bytes. Nothing is sliced or allocated by an unchecked length (11-44).
    """
    size = len(data)
    key_len = _U16(data, c.OFFSET_KEY_LEN)[0]
    if key_len > c.MAX_KEY_FIELD_BYTES:
        return Code.KEY_TOO_LONG
    key_end = KEY_START + key_len
    signature_start = key_end + 2
    if signature_start > size:
        return Code.TRUNCATED
    signature_len = _U16(data, key_end)[0]
    if signature_len > c.MAX_SIGNATURE_BYTES:
        return Code.SIGNATURE_TOO_LONG
    signature_end = signature_start + signature_len
    fee_start = signature_end + 2
    if fee_start > size:
        return Code.TRUNCATED
    fee_len = _U16(data, signature_end)[0]
    if fee_len > c.MAX_FEE_PROOF_BYTES:
        return Code.FEE_TOO_LONG
    fee_end = fee_start + fee_len
    if fee_end > size:
        return Code.TRUNCATED
    flagged = data[c.OFFSET_FLAGS] & c.FLAG_TFHE_SIDECAR
    end = fee_end + (c.SIDECAR_BYTES if flagged else 0)
    return Spans(key_end, signature_start, signature_end, fee_start, fee_end, end)


def check_structure(data: bytes) -> Spans | Code:
    """Return the spans of a well-formed header, or the code of the first rule it breaks.

    The readable truth; slower than `read_fields`, and able to say what is wrong.
    """
    for fixed in FIXED_RULES:
        if fixed.broken(data):
            return fixed.code
    spans = walk_spans(data)
    if isinstance(spans, Code):
        return spans
    for rule in SPAN_RULES:
        if rule.broken(data, spans):
            return rule.code
    return spans


class Shape(NamedTuple):
    """What version, flags, keyLen and sigType together fix of a well-formed header."""

    unpack: Callable[[bytes], tuple[Any, ...]]
    """Every field up to and including feeLen."""
    signature_bytes: int
    """Length of the signature."""
    fee_start: int
    """Where the fee proof begins, bytes."""
    sidecar_bytes: int
    """What follows the fee proof: 0 or 40 bytes."""


def _shape_entry(scheme: SchemeSpec, more_flags: int) -> tuple[bytes, Shape]:
    key, signature = scheme.key_field_bytes, scheme.signature_bytes
    layout = Struct(f">BB20sQQ32sI32sH{key}sH{signature}sH")
    first = bytes([c.VERSION, scheme.flags | more_flags])
    sidecar_bytes = c.SIDECAR_BYTES if more_flags & c.FLAG_TFHE_SIDECAR else 0
    shape = Shape(layout.unpack_from, signature, layout.size, sidecar_bytes)
    return first + key.to_bytes(2) + bytes([scheme.scheme]), shape


SHAPES: Final = dict(
    _shape_entry(scheme, kzg | sidecar)
    for scheme in SCHEMES.values()
    for kzg in (0, c.FLAG_KZG_COMMITMENT)
    for sidecar in (0, c.FLAG_TFHE_SIDECAR)
)
"""By bytes 0, 1 and 106 to 108: version, flags, keyLen and sigType."""

_shape_of: Final = SHAPES.get
_MAX_BLOB_BYTES: Final = c.MAX_BLOB_BYTES  # a name of this module is found faster
_MAX_FEE_PROOF_BYTES: Final = c.MAX_FEE_PROOF_BYTES
_MAX_HEADER_BYTES: Final = c.MAX_HEADER_BYTES
_ZERO_HASH: Final = c.ZERO_HASH
_ZERO_NAMESPACE: Final = bytes(c.NAMESPACE_BYTES)

Fields = tuple[int, int, bytes, int, int, bytes, int, bytes, bytes, bytes, bytes, bool]
"""Version to policyHash in wire order, senderPubKey, signature, feeProof, and whether the last
40 bytes are a sidecar reference; a bare tuple, because a named one doubles the time."""


def read_fields(data: bytes) -> Fields | None:
    """Return the fields of a well-formed header; None when `check_structure` finds a broken rule.

    Nothing is sliced by a length that has not been checked (11-44).
    """
    # Five bytes fix the lengths of everything but the fee proof, so one lookup and one unpack take
    # the whole header; the order of the checks below does not matter, because every one ends in
    # None and `check_structure` names the first that is broken.
    shape = _shape_of(data[:2] + data[106:109])
    if shape is None:
        return None
    unpack, signature_bytes, fee_start, sidecar_bytes = shape
    size = len(data)
    if not fee_start < size <= _MAX_HEADER_BYTES:
        return None
    (
        version,
        flags,
        namespace_id,
        seq,
        timestamp,
        commitment,
        blob_len,
        policy_hash,
        _,
        key,
        signature_len,
        signature,
        fee_len,
    ) = unpack(data)
    fee_end = fee_start + fee_len
    if signature_len != signature_bytes or fee_end + sidecar_bytes != size:
        return None
    if not 0 < fee_len <= _MAX_FEE_PROOF_BYTES or (fee_len > 1 and not data[fee_start]):
        return None
    if not seq or namespace_id == _ZERO_NAMESPACE:
        return None
    if blob_len:
        if blob_len > _MAX_BLOB_BYTES or commitment == _ZERO_HASH:
            return None
    elif commitment not in _COMMITMENTS_OF_NOTHING:
        return None
    return (
        version,
        flags,
        namespace_id,
        seq,
        timestamp,
        commitment,
        blob_len,
        policy_hash,
        key,
        signature,
        data[fee_start:fee_end],
        sidecar_bytes != 0,
    )


def first_broken_rule(data: bytes) -> Code:
    """Return the code of the first rule that ``data`` breaks.

    ``data`` is no header: `read_fields` has returned None for it.
    """
    found = check_structure(data)
    assert isinstance(found, Code), "read_fields refuses what no rule refuses"
    return found


def validate_structure(data: bytes) -> Verdict:
    """Say whether bytes are the one encoding of a header.

    Args:
        data: The header as it arrived, any length.

    Returns:
        ACCEPT, or REJECT with the code, reason and section of the first broken rule.

    Source: LP-6411 §3.1.

    """
    raw = bytes(data)
    if read_fields(raw) is not None:
        return ACCEPTED
    return structure_verdict(first_broken_rule(raw))


def structure_verdict(code: Code) -> Verdict:
    """Return the REJECT verdict of a structural code, with its reason and section."""
    section, reason = REASONS[code]
    return reject(code, f"{reason} ({section})")
