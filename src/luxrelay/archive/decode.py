"""An Arrow batch of raw rows into checked rows, on executors. Pure; no Spark.

Theory of operation
-------------------
*Decides* for each raw row whether it is a message, and which rule it breaks first: structure of
the header, what a table can hold, the signature, the namespace it was served under, the payload.
*Does not know* relays, Spark, tables.
The copies of one header that several relays serve stand close together in a batch, and signatures
cost most, so a batch is first reduced to its distinct headers; each of them is checked once and
its columns are then spread over the rows. Fixed fields are cut out of one byte matrix by numpy;
variable fields and hashes are made one by one.
*Bounds*: a batch in, a batch out; memory is a few times the batch.
*Deviations from the specification*: sequence numbers above 2⁶³−1 and timestamps after the year
9999 are valid on the wire and are rejected here, because no BIGINT or DATE holds them.
*What else to change when you change this*: `luxrelay.archive.schema`.

Source: LP-6411 §1.2, §2.4, §2.8, §3.1; decisions H3, H11, J11, P39.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from luxrelay.archive.schema import (
    CHECKED,
    CODE_UNREAD,
    MAX_I64,
    MAX_TIMESTAMP_MS,
    MS_PER_DAY,
)
from luxrelay.bus import Code, VerifyKey, sender_address
from luxrelay.bus import constants as c
from luxrelay.bus.keys import SIGNING_SCHEMES
from luxrelay.bus.structure import KEY_START, Spans, check_structure, structure_verdict
from luxrelay.errors import BusArgumentError

_CHECKED_SCHEMA: Final = CHECKED.arrow()
_U8: Final = np.dtype(np.uint8)

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]


class Outcome(NamedTuple):
    """What a row is: code 0 for a message, else why it is none."""

    code: int
    reason: str


_GOOD: Final = Outcome(0, "")
_UNREAD: Final = Outcome(CODE_UNREAD, "the relay could not be read")


class _Checked(NamedTuple):
    """A distinct header after its own checks; the fields after ``outcome`` only when good."""

    data: bytes
    outcome: Outcome
    digest: bytes
    spans: Spans | None = None
    header_hash: bytes = b""
    message_id: bytes = b""
    content_id: bytes = b""
    address: bytes | None = None


def check_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the checked rows of each raw batch; the function that executors run."""
    for batch in batches:
        yield check_batch(batch)


def check_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return one checked row for each raw row, in order; no row raises, whatever its bytes.

    Args:
        batch: Rows of ``schema.RAW``.

    Returns:
        Rows of ``schema.CHECKED``. A good row has code 0 and all fields; a bad one has a code, a
        reason, its bytes, its digest and the namespace it was served under; the row that stands
        for an unread relay has ``CODE_UNREAD``.

    """
    raw = {name: batch.column(name).to_pylist() for name in ("namespace", "header", "blob")}
    headers, index = _distinct_headers(raw["header"])
    outcomes, blobs = _check_rows(raw, headers, index)
    columns = _spread(headers, index)
    columns |= {
        "relay": batch.column("relay"),
        "code": pa.array([outcome.code for outcome in outcomes], pa.int32()),
        "reason": pa.array([outcome.reason for outcome in outcomes], pa.string()),
        "header": batch.column("header"),
        "blob": pa.array(blobs, pa.binary()),
        "received_at": batch.column("received_at"),
        "expires_at": batch.column("expires_at"),
    }
    columns["namespace_id"] = pc.if_else(
        pc.equal(columns["code"], 0), columns["namespace_id"], batch.column("namespace")
    )
    return pa.RecordBatch.from_arrays(
        [columns[field.name] for field in _CHECKED_SCHEMA], schema=_CHECKED_SCHEMA
    )


def _distinct_headers(values: Sequence[bytes | None]) -> tuple[list[_Checked], list[int]]:
    """Check each distinct header once; the index of a row without a header is -1."""
    places: dict[bytes, int] = {}
    index = [-1 if data is None else places.setdefault(data, len(places)) for data in values]
    keys: dict[bytes, VerifyKey] = {}
    return [_check_header(data, keys) for data in places], index


def _check_header(data: bytes, keys: dict[bytes, VerifyKey]) -> _Checked:
    digest = hashlib.sha3_256(data).digest()
    spans = check_structure(data)
    if isinstance(spans, Code):
        verdict = structure_verdict(spans)
        return _Checked(data, Outcome(int(verdict.code), verdict.reason), digest)
    outcome = _check_range(data)
    key_field = data[KEY_START : spans.key_end]
    header_hash = hashlib.sha3_256(data[: c.PREIMAGE_BYTES]).digest()
    if outcome is _GOOD:
        key = keys.get(key_field)
        if key is None:
            key = keys[key_field] = VerifyKey.from_field(key_field)
        outcome = _check_signature(
            key, header_hash, data[spans.signature_start : spans.signature_end]
        )
    if outcome is not _GOOD:
        return _Checked(data, outcome, digest)
    slot = data[c.OFFSET_NAMESPACE : c.OFFSET_TIMESTAMP]  # namespaceId and seq lie together
    return _Checked(
        data,
        outcome,
        digest,
        spans,
        header_hash,
        hashlib.sha3_256(slot).digest(),
        hashlib.sha3_256(header_hash + key_field).digest(),
        _address(key_field),
    )


def _check_range(data: bytes) -> Outcome:
    if int.from_bytes(data[c.OFFSET_SEQ : c.OFFSET_TIMESTAMP], "big") > MAX_I64:
        return Outcome(int(Code.LOCAL_FAULT), "seq is above 2^63-1, which no table column holds")
    timestamp = int.from_bytes(data[c.OFFSET_TIMESTAMP : c.OFFSET_COMMITMENT], "big")
    if timestamp > MAX_TIMESTAMP_MS:
        return Outcome(int(Code.TIMESTAMP_INVALID), "timestamp lies after the year 9999 (P8)")
    return _GOOD


def _check_signature(key: VerifyKey, header_hash: bytes, signature: bytes) -> Outcome:
    if key.scheme not in SIGNING_SCHEMES:
        return Outcome(
            int(Code.UNSUPPORTED_SCHEME), f"{key.scheme.name} cannot be verified here (H5)"
        )
    if not key.verify(header_hash, signature):
        return Outcome(int(Code.INVALID_SIGNATURE), "the signature does not hold (LP-6411 §2.8)")
    return _GOOD


def _address(key_field: bytes) -> bytes | None:
    try:
        return sender_address(key_field)
    except BusArgumentError:
        return None  # a scheme without an address rule (H27)


def _check_rows(
    raw: Mapping[str, Sequence[bytes | None]], headers: Sequence[_Checked], index: Sequence[int]
) -> tuple[list[Outcome], list[bytes | None]]:
    """Return each row's outcome and its payload as the table keeps it."""
    outcomes: list[Outcome] = []
    blobs: list[bytes | None] = []
    verified: dict[int, bytes] = {}
    for place, namespace, blob in zip(index, raw["namespace"], raw["blob"], strict=True):
        if place < 0:
            outcomes.append(_UNREAD)
            blobs.append(None)
            continue
        header = headers[place]
        outcome, kept = header.outcome, blob
        if outcome is _GOOD:
            outcome = _check_namespace(header.data, namespace)
        if outcome is _GOOD:
            outcome, kept = _check_blob(header.data, blob, verified.get(place))
            if outcome is _GOOD and kept:
                verified[place] = kept
        outcomes.append(outcome)
        blobs.append(kept)
    return outcomes, blobs


def _check_namespace(data: bytes, asked: bytes | None) -> Outcome:
    if asked is not None and data[c.OFFSET_NAMESPACE : c.OFFSET_SEQ] != asked:
        return Outcome(
            int(Code.INVALID_NAMESPACE), "the relay served it under another namespace (P39)"
        )
    return _GOOD


def _check_blob(
    data: bytes, blob: bytes | None, verified: bytes | None
) -> tuple[Outcome, bytes | None]:
    """Return the outcome and the payload to keep: None when the relay does not hold it.

    Source: LP-6411 §2.4, §2.5; H2, H11.
    """
    length = int.from_bytes(data[c.OFFSET_BLOB_LEN : c.OFFSET_POLICY_HASH], "big")
    if not blob:
        return _GOOD, None if length else b""
    if data[c.OFFSET_FLAGS] & c.FLAG_KZG_COMMITMENT:
        reason = "KZG commitments need luxrelay[kzg] (LP-6411 §2.4, H2)"
        return Outcome(int(Code.UNSUPPORTED_COMMITMENT), reason), blob
    if blob == verified:
        return _GOOD, blob
    if len(blob) != length:
        reason = f"blob has {len(blob)} bytes, the header says {length} (LP-6411 §2.5)"
        return Outcome(int(Code.BLOB_MISMATCH), reason), blob
    if hashlib.sha3_256(blob).digest() != data[c.OFFSET_COMMITMENT : c.OFFSET_BLOB_LEN]:
        reason = "blob does not match blobCommitment (LP-6411 §2.4)"
        return Outcome(int(Code.BLOB_MISMATCH), reason), blob
    return _GOOD, blob


def _spread(headers: Sequence[_Checked], index: Sequence[int]) -> dict[str, pa.Array]:
    """Return the header columns of every row; null where the header is not good."""
    good = [place for place, header in enumerate(headers) if header.outcome is _GOOD]
    target = np.full(len(headers) + 1, -1, dtype=np.int64)  # the last place serves index -1
    target[good] = np.arange(len(good))
    rows = target[np.asarray(index, dtype=np.int64)]
    take = pa.array(rows, pa.int64(), mask=rows < 0)
    columns = {
        name: array.take(take) for name, array in _columns([headers[place] for place in good])
    }
    digests = pa.array([header.digest for header in headers], pa.binary())
    places = np.asarray(index, dtype=np.int64)
    columns["digest"] = digests.take(pa.array(places, pa.int64(), mask=places < 0))
    return columns


def _columns(headers: Sequence[_Checked]) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns of good headers, one value each."""
    count = len(headers)
    joined = b"".join(header.data[: c.PREIMAGE_BYTES] for header in headers)
    matrix = np.frombuffer(joined, _U8).reshape(count, c.PREIMAGE_BYTES)
    timestamps = _unsigned(matrix, c.OFFSET_TIMESTAMP, c.OFFSET_COMMITMENT).astype(np.int64)
    yield (
        "date",
        pa.array((timestamps // MS_PER_DAY).astype(np.int32), pa.int32()).cast(pa.date32()),
    )
    yield "timestamp", pa.array(timestamps)
    yield (
        "seq",
        pa.array(_unsigned(matrix, c.OFFSET_SEQ, c.OFFSET_TIMESTAMP).astype(np.int64), pa.int64()),
    )
    yield (
        "blob_len",
        pa.array(
            _unsigned(matrix, c.OFFSET_BLOB_LEN, c.OFFSET_POLICY_HASH).astype(np.int64), pa.int64()
        ),
    )
    yield "version", pa.array(matrix[:, c.OFFSET_VERSION].astype(np.int32), pa.int32())
    yield "flags", pa.array(matrix[:, c.OFFSET_FLAGS].astype(np.int32), pa.int32())
    yield "namespace_id", _cut(matrix, c.OFFSET_NAMESPACE, c.OFFSET_SEQ)
    yield "blob_commitment", _cut(matrix, c.OFFSET_COMMITMENT, c.OFFSET_BLOB_LEN)
    yield "policy_hash", _cut(matrix, c.OFFSET_POLICY_HASH, c.OFFSET_KEY_LEN)
    yield from _variable_columns(headers)


def _variable_columns(headers: Sequence[_Checked]) -> Iterator[tuple[str, pa.Array]]:
    pairs = [(header.data, header.spans) for header in headers if header.spans is not None]
    keys = [data[KEY_START : spans.key_end] for data, spans in pairs]
    signatures = [data[spans.signature_start : spans.signature_end] for data, spans in pairs]
    fees = [data[spans.fee_start : spans.fee_end] for data, spans in pairs]
    sidecars = [data[spans.fee_end : spans.end] or None for data, spans in pairs]
    references = [None if part is None else part[: c.HASH_BYTES] for part in sidecars]
    epochs = [None if part is None else int.from_bytes(part[c.HASH_BYTES :]) for part in sidecars]
    yield "sender_pub_key", pa.array(keys, pa.binary())
    yield "signature", pa.array(signatures, pa.binary())
    yield "fee_proof", pa.array(fees, pa.binary())
    yield "sidecar_commitment", pa.array(references, pa.binary())
    yield "sidecar_epoch", pa.array(epochs, pa.decimal128(20, 0))
    yield "sender_address", pa.array([header.address for header in headers], pa.binary())
    yield "header_hash", pa.array([header.header_hash for header in headers], pa.binary())
    yield "message_id", pa.array([header.message_id for header in headers], pa.binary())
    yield "content_id", pa.array([header.content_id for header in headers], pa.binary())


def _unsigned(matrix: Bytes, start: int, end: int) -> npt.NDArray[np.uint64]:
    """Return a big-endian field of every row as numbers."""
    cut = np.ascontiguousarray(matrix[:, start:end])
    return cut.view(f">u{end - start}").ravel().astype(np.uint64)


def _cut(matrix: Bytes, start: int, end: int) -> pa.Array:
    """Return a fixed field of every row as an Arrow binary column, without a Python object."""
    cut = np.ascontiguousarray(matrix[:, start:end])
    size = end - start
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(size), len(cut), [None, pa.py_buffer(cut.tobytes())]
    )
    return fixed.cast(pa.binary())
