"""Structure of many headers at once: rules as numpy masks, fields as Arrow columns.

Theory of operation
-------------------
*Columns*: the fields of headers that break no rule. *Do not know* what a field means, signatures,
tables or Spark.
No Python object is made for a header, except where hashes are asked for. Rows are worked on in
blocks, so that what is computed in between stays in the processor's cache; each block writes into
columns that were made for the whole buffer. Variable fields are copied by length: as there are
five schemes, keys and signatures of a buffer have five lengths at most.
*Bounds*: a buffer has at most `BUFFER_BYTES_MAX` bytes; memory is about twice the buffer.
*What else to change when you change this*: `luxrelay.archive.decode`, which reads the columns.

Needs pyarrow (``luxrelay[archive]``); no other module of this room imports this one.

Rules
-----
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

Source: LP-6411 §1.2, §3.1; decisions H3, J11, H1, H10.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from luxrelay.bus import constants as c
from luxrelay.bus.schemes import SCHEMES, SIGNATURE_FLAGS
from luxrelay.bus.structure import FIXED_RULES, KEY_START, SPAN_RULES
from luxrelay.bus.verdict import Code
from luxrelay.errors import BusArgumentError

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


BUFFER_BYTES_MAX: Final = 2**31 - 1
"""Longest buffer, bytes: the offsets of an Arrow binary column are 32-bit."""
BLOCK_ROWS: Final = 8192
"""Headers worked on at a time; what is computed for a block of them fits a cache of 4 MiB."""
LENGTHS_MAX: Final = 16
"""Most lengths of one field in a block that are copied length by length; beyond, byte by byte."""
HASHES: Final = ("header_hash", "digest", "message_id", "content_id")
"""What ``hashes`` may name; each costs about a microsecond a header."""

_HASH: Final = pa.binary(c.HASH_BYTES)
SCHEMA: Final = pa.schema(
    {
        "code": pa.uint16(),
        "version": pa.uint8(),
        "flags": pa.uint8(),
        "namespace_id": pa.binary(c.NAMESPACE_BYTES),
        "seq": pa.uint64(),
        "timestamp": pa.uint64(),
        "blob_commitment": _HASH,
        "blob_len": pa.uint32(),
        "policy_hash": _HASH,
        "sender_pub_key": pa.binary(),
        "signature": pa.binary(),
        "fee_proof": pa.binary(),
        "sidecar_commitment": _HASH,
        "sidecar_epoch": pa.uint64(),
    }
)
"""The columns without hashes. Every field but ``code`` is null where ``code`` is not 0."""


def decode_columns(headers: pa.Array, *, hashes: Collection[str] = ()) -> pa.RecordBatch:
    """Return one row a header, in order; no row raises, whatever its bytes.

    Args:
        headers: A binary or large binary array.
        hashes: Which columns of `HASHES` to add.

    Returns:
        `SCHEMA`, then the chosen hashes in the order of `HASHES`. ``code`` is 0 or that of
        `validate_structure`, and null where ``headers`` is null. The other columns are null
        where it is not 0, but ``digest`` is that of the bytes, broken or not.

    Raises:
        BusArgumentError: another type, an unknown hash, more than `BUFFER_BYTES_MAX` bytes, or
            an array whose offsets descend or leave its buffer.

    Source: LP-6411 §1.2, §3.1.

    """
    width = {pa.binary(): np.int32, pa.large_binary(): np.int64}.get(headers.type)
    if width is None:
        raise BusArgumentError(f"expected a binary array, found {headers.type}", where="headers")
    places = np.zeros(len(headers) + 1, np.int64)
    data, present = np.zeros(0, np.uint8), None
    if len(headers):
        _, offsets, body = headers.buffers()
        places[:] = np.frombuffer(offsets, width)[headers.offset :][: len(places)]
        data = np.frombuffer(body, np.uint8) if body is not None else data
        if headers.null_count:
            present = headers.is_valid().to_numpy(zero_copy_only=False)
    return _decode(data, places, present, hashes)


def decode_buffer(
    data: bytes | bytearray | memoryview, offsets: Numbers, *, hashes: Collection[str] = ()
) -> pa.RecordBatch:
    """Return one row for each header of a buffer, like `decode_columns`.

    Args:
        data: Headers one after the other.
        offsets: Where each begins, and at last where the last one ends; ascending.
        hashes: Which columns of `HASHES` to add.

    Raises:
        BusArgumentError: offsets that descend or leave the buffer, an unknown hash, or more than
            `BUFFER_BYTES_MAX` bytes.

    """
    return _decode(np.frombuffer(data, np.uint8), np.asarray(offsets, np.int64), None, hashes)


def _decode(
    data: Bytes, places: Numbers, present: Mask | None, hashes: Collection[str]
) -> pa.RecordBatch:
    unknown = sorted(set(hashes) - set(HASHES))
    if unknown:
        raise BusArgumentError(
            f"no hash is called {unknown[0]!r}", where="hashes", hint=f"choose of {HASHES}"
        )
    starts, ends = places[:-1], places[1:]
    # pyarrow looks at the first and the last offset only, and at none of what arrives by IPC;
    # compared, not subtracted, because a difference of 64 bits may wrap
    if not len(places) or places[0] < 0 or places[-1] > len(data) or (ends < starts).any():
        raise BusArgumentError(
            "offsets must ascend, from 0 or more to the buffer's length at most", where="offsets"
        )
    held = int(places[-1] - places[0])
    if held > BUFFER_BYTES_MAX:
        raise BusArgumentError(
            f"{held} bytes of headers, above {BUFFER_BYTES_MAX}", where="headers", hint="split them"
        )
    if len(data) < c.FIXED_BYTES:  # `read_block` reads that much somewhere
        data = np.concatenate([data, np.zeros(c.FIXED_BYTES, np.uint8)])
    sizes = ends - starts
    if present is not None:
        sizes[~present] = 0
    columns = _Columns(data, len(starts), held)
    for first in range(0, len(starts), BLOCK_ROWS):
        place = slice(first, first + BLOCK_ROWS)
        columns.fill(place, starts[place], sizes[place])
    there = np.ones(len(starts), np.bool_) if present is None else present
    made = dict(columns.arrays(there))
    if hashes:
        made |= dict(_hash_arrays(columns, starts, sizes, there, hashes))
    fields = [*SCHEMA, *(pa.field(name, _HASH) for name in HASHES if name in hashes)]
    return pa.RecordBatch.from_arrays(
        [made[field.name] for field in fields], schema=pa.schema(fields)
    )


class _Variable:
    """A column of bytes that grows by blocks."""

    def __init__(self, count: int, held: int) -> None:
        self.offsets = np.zeros(count + 1, np.int32)
        self.body = np.empty(held, np.uint8)  # pages never written to are never taken
        self.used = 0

    def append(self, first: int, data: Bytes, starts: Numbers, lengths: Numbers) -> None:
        """Copy ``lengths`` bytes from each of ``starts``; a length of 0 copies nothing."""
        count, shortest, longest = len(lengths), int(lengths.min()), int(lengths.max())
        if shortest == longest:
            total = count * longest
            self.offsets[first + 1 : first + 1 + count] = np.arange(1, count + 1) * longest
            if longest:
                out = self.body[self.used : self.used + total].view(f"V{longest}")
                out[:] = pieces(data, longest, starts)
        else:
            ends = np.cumsum(lengths)
            total = int(ends[-1])
            self.offsets[first + 1 : first + 1 + count] = ends
            out = self.body[self.used : self.used + total]
            _copy_pieces(data, starts, lengths, out, ends - lengths)
        self.offsets[first + 1 : first + 1 + count] += self.used
        self.used += total


def _copy_pieces(
    data: Bytes, starts: Numbers, lengths: Numbers, out: Bytes, places: Numbers
) -> None:
    """Copy pieces of several lengths, those of one length together."""
    distinct = np.unique(lengths)
    if len(distinct) > LENGTHS_MAX:
        shift = np.repeat(starts - places, lengths)
        out[:] = data[shift + np.arange(len(out))]
        return
    for length in distinct[distinct > 0].tolist():
        rows = np.flatnonzero(lengths == length)
        window(out, length)[places[rows]] = window(data, length)[starts[rows]]


class _Columns:
    """The columns of a buffer, filled block by block."""

    def __init__(self, data: Bytes, count: int, held: int) -> None:
        self.data = data
        self.code = np.zeros(count, np.uint16)
        self._fixed = {
            name: np.empty(count, np.dtype(kind).newbyteorder("="))
            for name, (kind, _) in FIXED_FIELDS.items()
        }
        self.key, self._signature, self._fee = (_Variable(count, held) for _ in range(3))
        self._commitment = np.zeros(count, f"V{c.HASH_BYTES}")
        self._epoch = np.zeros(count, np.uint64)
        self._flagged = np.zeros(count, np.bool_)

    def fill(self, place: slice, starts: Numbers, sizes: Numbers) -> None:
        """Check the headers of a block and write their fields."""
        block = read_block(self.data, starts, sizes)
        code = first_broken_rules(block)
        good = code == 0
        self.code[place] = code
        for name, column in self._fixed.items():
            column[place] = block.rows[name]
        for variable, start, end in (
            (self.key, KEY_START, block.key_end),
            (self._signature, block.signature_start, block.signature_end),
            (self._fee, block.fee_start, block.fee_end),
        ):
            variable.append(place.start, self.data, starts + start, (end - start) * good)
        self._fill_sidecars(place, starts, block, good)

    def _fill_sidecars(self, place: slice, starts: Numbers, block: Block, good: Mask) -> None:
        flagged = good & (block.rows["flags"] & c.FLAG_TFHE_SIDECAR != 0)
        rows = np.flatnonzero(flagged)
        if not len(rows):
            return
        references = (starts + block.fee_end)[rows]
        self._flagged[place] = flagged
        self._commitment[place][rows] = window(self.data, c.HASH_BYTES)[references]
        epochs = window(self.data, 8)[references + c.HASH_BYTES]
        self._epoch[place][rows] = epochs.view(">u8")

    def arrays(self, there: Mask) -> Iterator[tuple[str, pa.Array]]:
        """Yield every column of `SCHEMA` by its name."""
        good = _bitmap(self.code == 0)
        yield "code", _fixed_array(SCHEMA.field("code").type, self.code, _bitmap(there))
        for name, column in self._fixed.items():
            yield name, _fixed_array(SCHEMA.field(name).type, column, good)
        for name, variable in (
            ("sender_pub_key", self.key),
            ("signature", self._signature),
            ("fee_proof", self._fee),
        ):
            buffers = [
                good,
                pa.py_buffer(variable.offsets),
                pa.py_buffer(variable.body[: variable.used]),
            ]
            yield name, pa.Array.from_buffers(pa.binary(), len(self.code), buffers)
        flagged = _bitmap(self._flagged)
        yield "sidecar_commitment", _fixed_array(_HASH, self._commitment, flagged)
        yield "sidecar_epoch", _fixed_array(pa.uint64(), self._epoch, flagged)


def _bitmap(valid: Mask) -> pa.Buffer | None:
    if valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _fixed_array(kind: pa.DataType, values: npt.NDArray[np.generic], valid: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values.view(np.uint8))])


def _hash_arrays(
    columns: _Columns, starts: Numbers, sizes: Numbers, there: Mask, chosen: Collection[str]
) -> Iterator[tuple[str, pa.Array]]:
    """Yield the chosen hashes by their names; only here Python looks at each header."""
    data, good = columns.data, columns.code == 0
    begins = starts[good]
    if "digest" in chosen:
        yield "digest", _hash_array(_digests(data, starts[there], sizes[there]), there)
    if "message_id" in chosen:  # namespaceId and seq lie together
        slots = np.full(len(begins), c.OFFSET_TIMESTAMP - c.OFFSET_NAMESPACE)
        yield "message_id", _hash_array(_digests(data, begins + c.OFFSET_NAMESPACE, slots), good)
    if "header_hash" in chosen or "content_id" in chosen:
        signed = _digests(data, begins, np.full(len(begins), c.PREIMAGE_BYTES))
        yield "header_hash", _hash_array(signed, good)
        if "content_id" in chosen:
            lengths = np.diff(columns.key.offsets)[good].astype(np.int64)
            contents = _digests(data, begins + KEY_START, lengths, signed)
            yield "content_id", _hash_array(contents, good)


def _digests(
    data: Bytes, starts: Numbers, lengths: Numbers, heads: Sequence[bytes] = ()
) -> list[bytes]:
    """Return SHA3-256 of each piece, behind its head when there are heads."""
    sha3, made = hashlib.sha3_256, list[bytes]()
    for first in range(0, len(starts), BLOCK_ROWS):
        place = slice(first, first + BLOCK_ROWS)
        cut = _cut(data, starts[place], lengths[place])
        if heads:
            cut = map(operator.add, heads[place], cut)
        made += [sha3(piece).digest() for piece in cut]
    return made


def _cut(data: Bytes, starts: Numbers, lengths: Numbers) -> Iterable[bytes]:
    """Return pieces as bytes, those of one length together: numpy cuts them three times faster."""
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest == longest and longest:
        return cast("list[bytes]", pieces(data, longest, starts).tolist())
    distinct = np.unique(lengths).tolist()
    if len(distinct) > LENGTHS_MAX:
        view = data.data
        ends = (starts + lengths).tolist()
        return [view[a:b].tobytes() for a, b in zip(starts.tolist(), ends, strict=True)]
    cut = np.full(len(starts), b"", np.object_)
    for length in distinct:
        rows = np.flatnonzero(lengths == length)
        if length:
            cut[rows] = pieces(data, length, starts[rows]).tolist()
    return cast("list[bytes]", cut.tolist())


def _hash_array(hashes: list[bytes], valid: Mask) -> pa.Array:
    values = np.zeros(len(valid), f"V{c.HASH_BYTES}")
    if hashes:
        values[valid] = np.frombuffer(b"".join(hashes), f"V{c.HASH_BYTES}")
    return _fixed_array(_HASH, values, _bitmap(valid))
