"""Many headers at once: a buffer of them into Arrow columns, with a code for each broken one.

Theory of operation
-------------------
*Decides* nothing: `luxrelay.bus.twins` says which rule a header breaks; here the fields of those
that break none become columns. *Does not know* what a field means, signatures, tables or Spark.
No Python object is made for a header, except where hashes are asked for. Rows are worked on in
blocks, so that what is computed in between stays in the processor's cache; each block writes into
columns that were made for the whole buffer. Variable fields are copied by length: as there are
five schemes, keys and signatures of a buffer have five lengths at most.
*Bounds*: a buffer has at most `BUFFER_BYTES_MAX` bytes; memory is about twice the buffer.
*What else to change when you change this*: `luxrelay.archive.decode`, which reads the columns.

Needs pyarrow (``luxrelay[archive]``); no other module of this room imports this one.

Source: LP-6411 §1.2, §3.1; decisions H3, J11.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from luxrelay.bus import constants as c
from luxrelay.bus.structure import KEY_START
from luxrelay.bus.twins import (
    FIXED_FIELDS,
    Block,
    Bytes,
    Mask,
    Numbers,
    first_broken_rules,
    pieces,
    read_block,
    window,
)
from luxrelay.errors import BusArgumentError

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
