"""The rules of structure for many headers at once, as numpy masks.

Theory of operation
-------------------
*Decides* for each header of a block which structural rule it breaks first.
*Does not know* Arrow, or what becomes of the fields.
The 112 fixed bytes of each header are copied into one matrix whose fields are strided views; the
three lengths are walked for all rows together. Each rule of `luxrelay.bus.structure` has a *twin*
here that answers for all rows. Twins are applied from the last rule to the first, each
overwriting, so that what stays is the first broken rule: the order is read from the tables of
`structure`, and a rule without a twin fails on import. A broken header never stops the others, and
no read leaves the buffer: places are clipped to it, and what a broken header's lengths point at is
computed and thrown away.
*What else to change when you change this*: `luxrelay.bus.structure`.

Source: LP-6411 §1.2, §3.1; decisions H1, H10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from luxrelay.bus import constants as c
from luxrelay.bus.schemes import SCHEMES, SIGNATURE_FLAGS
from luxrelay.bus.structure import FIXED_RULES, KEY_START, SPAN_RULES
from luxrelay.bus.verdict import Code

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FIXED_FIELDS: Final = {
    "version": ("u1", c.OFFSET_VERSION),
    "flags": ("u1", c.OFFSET_FLAGS),
    "namespace_id": ("V20", c.OFFSET_NAMESPACE),
    "seq": (">u8", c.OFFSET_SEQ),
    "timestamp": (">u8", c.OFFSET_TIMESTAMP),
    "blob_commitment": ("V32", c.OFFSET_COMMITMENT),
    "blob_len": (">u4", c.OFFSET_BLOB_LEN),
    "policy_hash": ("V32", c.OFFSET_POLICY_HASH),
}
"""numpy type and offset of each field before the first length."""

_WORDS: Final = {  # namespace and commitment as words: compared so four times faster than as bytes
    "namespace_0": ("u8", c.OFFSET_NAMESPACE),
    "namespace_1": ("u8", c.OFFSET_NAMESPACE + 8),
    "namespace_2": ("u4", c.OFFSET_NAMESPACE + 16),
    **{f"commitment_{i}": ("u8", c.OFFSET_COMMITMENT + 8 * i) for i in range(4)},
    "key_len": (">u2", c.OFFSET_KEY_LEN),
    "scheme": ("u1", KEY_START),
}
_ALL_FIELDS: Final = FIXED_FIELDS | _WORDS
_ROW: Final = np.dtype(
    {
        "names": list(_ALL_FIELDS),
        "formats": [kind for kind, _ in _ALL_FIELDS.values()],
        "offsets": [offset for _, offset in _ALL_FIELDS.values()],
        "itemsize": c.FIXED_BYTES,
    }
)
_EMPTY_WORDS: Final = np.frombuffer(c.EMPTY_SHA3_256, "u8")


def _by_scheme(field: str) -> Numbers:
    table = np.zeros(256, np.int64)
    for number, spec in SCHEMES.items():
        table[number] = getattr(spec, field)
    return table


_KEY_BYTES: Final = _by_scheme("key_field_bytes")
_SIGNATURE_BYTES: Final = _by_scheme("signature_bytes")
_SCHEME_FLAGS: Final = _by_scheme("flags")


class Block(NamedTuple):
    """Some headers of a buffer: the fixed part of each, and where the rest would lie.

    Places are bytes from the beginning of each header.
    """

    rows: npt.NDArray[Any]
    """The fixed parts; fields by the names of `FIXED_FIELDS`."""
    sizes: Numbers
    """Bytes of each header."""
    scheme: Bytes
    """The sigType byte."""
    key_end: Numbers
    """Where senderPubKey ends."""
    signature_start: Numbers
    signature_end: Numbers
    fee_start: Numbers
    fee_end: Numbers
    fee_kind: Bytes
    """The first byte of the fee proof."""
    end: Numbers
    """Where each header ends by its own account."""
    zero_commitment: Mask
    """True where the commitment is all zero."""


def read_block(data: Bytes, starts: Numbers, sizes: Numbers) -> Block:
    """Return the headers that begin at ``starts``; ``data`` has at least 112 bytes."""
    places = np.minimum(starts, len(data) - c.FIXED_BYTES)
    rows = pieces(data, c.FIXED_BYTES, places).view(_ROW)
    key_end = KEY_START + rows["key_len"].astype(np.int64)
    signature_start = key_end + 2
    signature_end = signature_start + _u16(data, starts + key_end)
    fee_start = signature_end + 2
    fee_end = fee_start + _u16(data, starts + signature_end)
    flagged = rows["flags"] & c.FLAG_TFHE_SIDECAR
    return Block(
        rows,
        sizes,
        rows["scheme"].copy(),
        key_end,
        signature_start,
        signature_end,
        fee_start,
        fee_end,
        data[np.minimum(starts + fee_start, len(data) - 1)],
        fee_end + flagged * np.int64(c.SIDECAR_BYTES),
        _zero_commitment(rows),
    )


def window(data: Bytes, size: int) -> npt.NDArray[np.void]:
    """Return a view whose item at i is the ``size`` bytes from i on; nothing is copied.

    Taking items of it copies whole pieces, which is ten times faster than taking bytes.
    """
    return np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))


def pieces(data: Bytes, size: int, starts: Numbers) -> npt.NDArray[np.void]:
    """Return the ``size`` bytes from each of ``starts``, which lie in ``data`` as a whole.

    Headers of one length stand at even distances; then this is a view and nothing is copied.
    """
    if len(starts) > 1:
        step = int(starts[1] - starts[0])
        if step > 0 and (np.diff(starts) == step).all():
            return np.ndarray((len(starts),), f"V{size}", data, int(starts[0]), (step,))
    return window(data, size)[starts]


def _u16(data: Bytes, places: Numbers) -> Numbers:
    return pieces(data, 2, np.minimum(places, len(data) - 2)).view(">u2").astype(np.int64)


def _zero_namespace(block: Block) -> Mask:
    rows = block.rows
    zero: Mask = (rows["namespace_0"] | rows["namespace_1"] | rows["namespace_2"]) == 0
    return zero


def _zero_commitment(rows: npt.NDArray[Any]) -> Mask:
    first, second, third, fourth = (rows[f"commitment_{i}"] for i in range(4))
    zero: Mask = (first | second | third | fourth) == 0
    return zero


def _commitment_of_nothing(block: Block) -> Mask:
    broken: Mask = (block.rows["blob_len"] == 0) & ~block.zero_commitment
    if broken.any():
        same = [block.rows[f"commitment_{i}"] == _EMPTY_WORDS[i] for i in range(4)]
        broken &= ~(same[0] & same[1] & same[2] & same[3])
    return broken


Twin = Callable[[Block], Mask]
_FIXED_TWINS: Final[dict[Code, Twin]] = {
    Code.HEADER_TOO_LONG: lambda b: b.sizes > c.MAX_HEADER_BYTES,
    Code.HEADER_TOO_SHORT: lambda b: b.sizes < c.MIN_HEADER_BYTES,
    Code.UNSUPPORTED_VERSION: lambda b: b.rows["version"] != c.VERSION,
    Code.RESERVED_FLAGS: lambda b: b.rows["flags"] & c.RESERVED_FLAGS != 0,
    Code.FLAGS_COMBINATION: lambda b: b.rows["flags"] & SIGNATURE_FLAGS == c.FLAG_HYBRID_SIG,
    Code.ZERO_NAMESPACE: _zero_namespace,
    Code.ZERO_SEQUENCE: lambda b: b.rows["seq"] == 0,
    Code.BLOB_TOO_LARGE: lambda b: b.rows["blob_len"] > c.MAX_BLOB_BYTES,
    Code.COMMITMENT_OF_NOTHING: _commitment_of_nothing,
    Code.ZERO_COMMITMENT: lambda b: (b.rows["blob_len"] > 0) & b.zero_commitment,
}
_WALK_TWINS: Final[tuple[tuple[Code, Twin], ...]] = (  # `structure.walk_spans`, line by line
    (Code.KEY_TOO_LONG, lambda b: b.key_end - KEY_START > c.MAX_KEY_FIELD_BYTES),
    (Code.TRUNCATED, lambda b: b.signature_start > b.sizes),
    (
        Code.SIGNATURE_TOO_LONG,
        lambda b: b.signature_end - b.signature_start > c.MAX_SIGNATURE_BYTES,
    ),
    (Code.TRUNCATED, lambda b: b.fee_start > b.sizes),
    (Code.FEE_TOO_LONG, lambda b: b.fee_end - b.fee_start > c.MAX_FEE_PROOF_BYTES),
    (Code.TRUNCATED, lambda b: b.fee_end > b.sizes),
)
_SPAN_TWINS: Final[dict[Code, Twin]] = {
    Code.UNKNOWN_SCHEME: lambda b: (b.key_end == KEY_START) | (_KEY_BYTES.take(b.scheme) == 0),
    Code.KEY_LENGTH: lambda b: b.key_end - KEY_START != _KEY_BYTES.take(b.scheme),
    Code.FLAGS_SCHEME: lambda b: b.rows["flags"] & SIGNATURE_FLAGS != _SCHEME_FLAGS.take(b.scheme),
    Code.SIGNATURE_LENGTH: lambda b: (
        b.signature_end - b.signature_start != _SIGNATURE_BYTES.take(b.scheme)
    ),
    Code.FEE_EMPTY: lambda b: b.fee_end == b.fee_start,
    Code.FEE_NONE_WITH_DATA: lambda b: (b.fee_kind == 0) & (b.fee_end - b.fee_start > 1),
    Code.TRUNCATED: lambda b: b.sizes < b.end,
    Code.TRAILING_BYTES: lambda b: b.sizes > b.end,
}
TWINS: Final[tuple[tuple[Code, Twin], ...]] = (
    *((rule.code, _FIXED_TWINS[rule.code]) for rule in FIXED_RULES),
    *_WALK_TWINS,
    *((rule.code, _SPAN_TWINS[rule.code]) for rule in SPAN_RULES),
)
"""Every structural rule in the order in which it is asked."""


def first_broken_rules(block: Block) -> npt.NDArray[np.uint16]:
    """Return for each header the code of the first rule it breaks, 0 for none."""
    codes = np.zeros(len(block.sizes), np.uint16)
    for code, broken in reversed(TWINS):
        mask = broken(block)
        if mask.any():
            codes[mask] = code
    return codes
