"""An Arrow batch of raw rows into checked rows, on executors. Pure; no Spark.

Theory of operation
-------------------
*Decides* for each raw row whether it is a message, and which rule it breaks first: structure of
the header, what a table can hold, the signature, the policy in force (`rules`), the namespace it
was served under, the payload.
*Does not know* relays, Spark, tables.
The copies of one header that several relays serve stand close together in a batch, and signatures
cost most, so a batch is first reduced to its distinct headers. `luxrelay.bus.columns` takes those
apart and says which structural rule each breaks; what it does not know is checked here, once a
header, and the columns are then spread over the rows.
*Bounds*: a batch in, a batch out; memory is a few times the batch.
*Deviations from the specification*: sequence numbers above 2⁶³−1 and timestamps after the year
9999 are valid on the wire and are rejected here, because no BIGINT or DATE holds them.
*What else to change when you change this*: `luxrelay.archive.schema`, `luxrelay.bus.columns`.

Source: LP-6411 §1.2, §2.4, §2.8, §3.1; decisions H3, H11, J11, P39.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from luxrelay.archive.rules import GOOD as _GOOD
from luxrelay.archive.rules import UNKNOWN, ArchiveRules, Judgement, Outcome
from luxrelay.archive.schema import (
    CHECKED,
    CODE_UNREAD,
    MAX_I64,
    MAX_TIMESTAMP_MS,
    MS_PER_DAY,
    prune_key,
)
from luxrelay.bus import Code, NamespaceId, VerifyKey, lane, sender_address
from luxrelay.bus import constants as c
from luxrelay.bus.columns import HASHES, decode_columns
from luxrelay.bus.keys import SIGNING_SCHEMES
from luxrelay.bus.structure import structure_verdict
from luxrelay.errors import BusArgumentError, KeyFormatError

_CHECKED_SCHEMA: Final = CHECKED.arrow()
_UNREAD: Final = Outcome(CODE_UNREAD, "the relay could not be read")


def checker(rules: ArchiveRules) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that executors run: raw batches in, checked batches out."""

    def check_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield check_batch(batch, rules)

    return check_batches


def check_batch(batch: pa.RecordBatch, rules: ArchiveRules | None = None) -> pa.RecordBatch:
    """Return one checked row for each raw row, in order; no row raises, whatever its bytes.

    Args:
        batch: Rows of ``schema.RAW``.
        rules: Signing mode and policies; LP-6411's own signatures and no policy when not given.

    Returns:
        Rows of ``schema.CHECKED``. A good row has code 0 and all fields; a bad one has a code, a
        reason, its bytes, its digest and the namespace it was served under; the row that stands
        for an unread relay has ``CODE_UNREAD``.

    """
    encoded = batch.column("header").dictionary_encode()
    headers, places = encoded.dictionary, encoded.indices
    decoded = decode_columns(headers, hashes=HASHES)
    data = headers.to_pylist()
    said: dict[int | None, bytes | None] = {}
    for place, parent in zip(places.to_pylist(), batch.column("parent").to_pylist(), strict=True):
        said.setdefault(place, parent)
    parents = [said.get(place) for place in range(len(data))]
    judged = _check_headers(decoded, data, parents, rules or ArchiveRules())
    checked = [judgement.outcome for judgement in judged]
    outcomes, blobs = _check_rows(batch, data, checked, places.to_pylist())
    columns = _spread(decoded, judged, places)
    columns["parent_id"] = _parents(batch, columns)
    columns |= {
        "relay": batch.column("relay"),
        "code": pa.array([outcome.code for outcome in outcomes], pa.int32()),
        "reason": pa.array([outcome.reason for outcome in outcomes], pa.string()),
        "header": batch.column("header"),
        "blob": pa.array(blobs, pa.binary()),
        "received_at": batch.column("received_at"),
        "expires_at": batch.column("expires_at"),
        "finality": batch.column("finality"),
        "served_seq": batch.column("seq"),
    }
    columns["namespace_id"] = pc.if_else(
        pc.equal(columns["code"], 0), columns["namespace_id"], batch.column("namespace")
    )
    return pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in _CHECKED_SCHEMA],
        schema=_CHECKED_SCHEMA,
    )


def _check_headers(
    decoded: pa.RecordBatch,
    data: Sequence[bytes],
    parents: Sequence[bytes | None],
    rules: ArchiveRules,
) -> list[Judgement]:
    """Return what each distinct header is: structure, range, signature, then its policy."""
    names = (
        "code", "seq", "timestamp", "sender_pub_key", "header_hash", "signature", "namespace_id",
        "policy_hash",
    )  # fmt: skip
    fields = (decoded.column(name).to_pylist() for name in names)
    keys: dict[bytes, VerifyKey | None] = {}
    judged = []
    for header, parent, *rest in zip(data, parents, *fields, strict=True):
        code, seq, timestamp, key_field, header_hash, signature, namespace, policy = rest
        if code:
            verdict = structure_verdict(Code(code))
            outcome = Outcome(int(verdict.code), verdict.reason)
        else:
            outcome = _check_range(seq, timestamp)
        if outcome is _GOOD:
            if key_field not in keys:
                keys[key_field] = _verify_key(key_field)
            if rules.network is None:
                outcome = _check_signature(keys[key_field], header_hash, signature)
            else:
                outcome = _check_bound(keys[key_field], header, rules)
        if outcome is _GOOD:
            judged.append(rules.judge(header, namespace, seq, timestamp, key_field, policy, parent))
        else:
            judged.append(UNKNOWN._replace(outcome=outcome))
    return judged


def _check_range(seq: int, timestamp: int) -> Outcome:
    if seq > MAX_I64:
        return Outcome(int(Code.LOCAL_FAULT), "seq is above 2^63-1, which no table column holds")
    if timestamp > MAX_TIMESTAMP_MS:
        return Outcome(int(Code.TIMESTAMP_INVALID), "timestamp lies after the year 9999 (P8)")
    return _GOOD


def _verify_key(key_field: bytes) -> VerifyKey | None:
    try:
        return VerifyKey.from_field(key_field)
    except KeyFormatError:
        return None  # the right length and no point of the curve: nothing is signed by it


def _check_signature(key: VerifyKey | None, header_hash: bytes, signature: bytes) -> Outcome:
    if key is not None and key.scheme not in SIGNING_SCHEMES:
        return Outcome(
            int(Code.UNSUPPORTED_SCHEME), f"{key.scheme.name} cannot be verified here (H5)"
        )
    if key is None or not key.verify(header_hash, signature):
        return Outcome(int(Code.INVALID_SIGNATURE), "the signature does not hold (LP-6411 §2.8)")
    return _GOOD


def _check_bound(key: VerifyKey | None, header: bytes, rules: ArchiveRules) -> Outcome:
    if key is not None and key.scheme not in SIGNING_SCHEMES:
        return _check_signature(key, b"", b"")
    if key is None or not rules.signature_holds(header):
        return Outcome(int(Code.INVALID_SIGNATURE), "the bound signature does not hold (H3)")
    return _GOOD


def _check_rows(
    batch: pa.RecordBatch,
    headers: Sequence[bytes],
    checked: Sequence[Outcome],
    places: Sequence[int | None],
) -> tuple[list[Outcome], list[bytes | None]]:
    """Return each row's outcome and its payload as the table keeps it."""
    outcomes: list[Outcome] = []
    blobs: list[bytes | None] = []
    verified: dict[int, bytes] = {}
    beside = (batch.column(name).to_pylist() for name in ("namespace", "blob"))
    for place, namespace, blob in zip(places, *beside, strict=True):
        if place is None:
            outcomes.append(_UNREAD)
            blobs.append(None)
            continue
        data, outcome, kept = headers[place], checked[place], blob
        if outcome is _GOOD:
            outcome = _check_namespace(data, namespace)
        if outcome is _GOOD:
            outcome, kept = _check_blob(data, blob, verified.get(place))
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


def _spread(
    decoded: pa.RecordBatch, judged: Sequence[Judgement], places: pa.Array
) -> dict[str, pa.Array]:
    """Return the header columns of every row; null where the header is not good."""
    good = pa.array([judgement.outcome is _GOOD for judgement in judged], pa.bool_())
    rows = pc.if_else(good.take(places), places, pa.scalar(None, places.type))
    columns = {name: decoded.column(name).take(rows) for name in decoded.schema.names}
    columns["digest"] = decoded.column("digest").take(places)
    days = pc.divide(columns["timestamp"], pa.scalar(MS_PER_DAY, pa.uint64()))
    columns["date"] = days.cast(pa.int32()).cast(pa.date32())
    derived = _derived(decoded, judged)
    return columns | {name: array.take(rows) for name, array in derived.items()}


def _derived(decoded: pa.RecordBatch, judged: Sequence[Judgement]) -> dict[str, pa.Array]:
    """Return what is made of each distinct header beside its own fields."""
    known: dict[bytes | None, bytes | None] = {None: None}
    addresses = []
    for key in decoded.column("sender_pub_key").to_pylist():
        if key not in known:
            known[key] = _address(key)
        addresses.append(known[key])
    namespaces = decoded.column("namespace_id").to_pylist()
    return {
        "sender_address": pa.array(addresses, pa.binary()),
        "sender_key": pa.array([prune_key(address) for address in addresses], pa.int64()),
        "namespace_key": pa.array([prune_key(name) for name in namespaces], pa.int64()),
        "verdict": pa.array([judgement.verdict for judgement in judged], pa.int32()),
        "policy_version": pa.array([judgement.version for judgement in judged], pa.int32()),
        "retention": pa.array([judgement.retention for judgement in judged], pa.int32()),
    }


def _parents(batch: pa.RecordBatch, columns: dict[str, pa.Array]) -> pa.Array:
    """Return the parent that a relay named, where it is true: a lane is derived from it (J6)."""
    known: dict[tuple[bytes, bytes, bytes], bytes | None] = {}
    parents = []
    for parent, namespace, key in zip(
        batch.column("parent").to_pylist(),
        columns["namespace_id"].to_pylist(),
        columns["sender_pub_key"].to_pylist(),
        strict=True,
    ):
        if parent is None or namespace is None or parent == namespace:
            parents.append(None if parent is None else namespace)
            continue
        row = (parent, namespace, key)
        if row not in known:
            derived = len(parent) == c.NAMESPACE_BYTES and lane(NamespaceId(parent), key)
            known[row] = parent if derived == namespace else None
        parents.append(known[row])
    return pa.array(parents, pa.binary())


def _address(key_field: bytes) -> bytes | None:
    try:
        return sender_address(key_field)
    except BusArgumentError:
        return None  # a key without an address rule (H27)
