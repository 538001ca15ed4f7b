"""An Arrow batch of raw rows into checked rows, on executors. Pure; no Spark.

Theory of operation
-------------------
*Decides* for each raw row whether it is a message, and which rule it breaks first: structure of
the header, what a table can hold, the signature, the policy in force (`rules`), the namespace it
was served under, the payload.
*Does not know* relays, Spark, tables.
The copies of one header that several relays serve stand close together in a batch, and signatures
cost most, so a batch is first reduced to its distinct headers. `luxrelay.bus.structure_batch` takes
those apart and says which structural rule each breaks; what it does not know is checked here, once
a header, and the columns are then spread over the rows. Ranges, namespaces and lengths are compared
for all rows at once. Python looks at a row for its hashes, its signature and what is wrong with
it, and where a policy other than the open one decides; at a key, a lane or a pair of namespace
and policy once a batch.
*Bounds*: a batch in, a batch out; memory is a few times the batch. Parsed keys, addresses and
lanes are kept for the next batches, ``KEPT_MAX`` of each.
*Deviations from the specification*: sequence numbers above 2⁶³−1 and timestamps after the year
9999 are valid on the wire and are rejected here, because no BIGINT or DATE holds them.
*What else to change when you change this*: `luxrelay.archive.schema`,
`luxrelay.bus.structure_batch`;
tests/property/test_archive_decode.py states the rules row by row and holds this to them.

Source: LP-6411 §1.2, §2.4, §2.8, §3.1; decisions H3, H11, J11, P39.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from luxrelay.archive.rules import GOOD as _GOOD
from luxrelay.archive.rules import UNKNOWN, ArchiveRules, Judgement, RuleOutcome, lane_of
from luxrelay.archive.schema import (
    CHECKED,
    CODE_UNREAD,
    MAX_I64,
    MAX_TIMESTAMP_MS,
    MS_PER_DAY,
    prune_key,
)
from luxrelay.bus import Code, MsgHeader, VerifyKey, check_sidecar, sender_address
from luxrelay.bus import constants as c
from luxrelay.bus.keys import SIGNING_SCHEMES
from luxrelay.bus.structure import structure_verdict
from luxrelay.bus.structure_batch import HASHES, decode_columns
from luxrelay.errors import BusArgumentError, KeyFormatError

KEPT_MAX: Final = 4096
"""Keys, addresses and lanes remembered from batch to batch; a key has 2,593 bytes at most."""

_HASH_WORDS: Final = c.HASH_BYTES // 8
_CHECKED_SCHEMA: Final = CHECKED.arrow()
_UNREAD: Final = RuleOutcome(CODE_UNREAD, "the relay could not be read")

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
Outcomes = dict[int, RuleOutcome]
"""What is wrong, by the place of a header or a row; the others are good."""


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
    heads = _distinct(batch.column("header"))
    bad, judged = _check_headers(heads, batch.column("parent"), rules or ArchiveRules())
    columns = _spread(heads, bad, judged)
    outcomes, columns["blob"] = _check_rows(batch, heads, bad, columns)
    code, reason = np.zeros(len(batch), np.int32), [""] * len(batch)
    columns["sidecar"] = _check_sidecars(batch, outcomes)
    for row, outcome in outcomes.items():
        code[row], reason[row] = outcome
    columns["parent_id"] = _parents(batch.column("parent"), columns)
    columns |= {name: batch.column(name) for name in _KEPT_AS_READ}
    columns |= {"code": pa.array(code), "reason": pa.array(reason, pa.string())}
    columns["served_seq"] = batch.column("seq")
    columns["namespace_id"] = _if_any(
        code != 0, batch.column("namespace"), columns["namespace_id"].cast(pa.binary())
    )
    return pa.RecordBatch.from_arrays(
        [_as(columns[field.name], field.type) for field in _CHECKED_SCHEMA],
        schema=_CHECKED_SCHEMA,
    )


_KEPT_AS_READ: Final = ("relay", "header", "received_at", "expires_at", "finality")


class _Heads(NamedTuple):
    """The distinct headers of a batch, and which rows have them."""

    headers: pa.Array
    """Their bytes; none is null."""
    decoded: pa.RecordBatch
    """Their fields by `decode_columns`."""
    places: Places
    """Of each row, the place of its header; -1 where it has none."""
    firsts: Places
    """Of each header, the first row that has it."""
    alone: bool
    """True when every row has a header and no two have one: places are rows."""


def _distinct(column: pa.Array) -> _Heads:
    encoded, count = column.dictionary_encode(), len(column)
    headers = encoded.dictionary
    if len(headers) == count:
        rows = np.arange(count)
        return _Heads(column, decode_columns(column, hashes=HASHES), rows, rows, alone=True)
    places = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
    firsts = _first_rows(places, len(headers) + 1)[:-1]  # the last is of rows without a header
    return _Heads(headers, decode_columns(headers, hashes=HASHES), places, firsts, alone=False)


def _check_headers(
    heads: _Heads, parents: pa.Array, rules: ArchiveRules
) -> tuple[Outcomes, _Judged]:
    """Return what is wrong with each header: structure, range, signature, policy.

    ``parents`` are of rows: what is said of a header's parent is what its first row says.
    """
    decoded, bad = heads.decoded, Outcomes()
    code = _numbers(decoded.column("code"), np.uint16)
    for place in np.flatnonzero(code).tolist():
        verdict = structure_verdict(Code(int(code[place])))
        bad[place] = RuleOutcome(int(verdict.code), verdict.reason)
    seq = _numbers(decoded.column("seq"), np.uint64)
    timestamp = _numbers(decoded.column("timestamp"), np.uint64)
    beyond = (code == 0) & ((seq > MAX_I64) | (timestamp > MAX_TIMESTAMP_MS))
    for place in np.flatnonzero(beyond).tolist():
        bad[place] = _beyond(int(seq[place]))
    bad |= _check_signatures(heads, np.flatnonzero(~_mask(bad, len(code))), rules)
    judged = _judge(
        heads, np.flatnonzero(~_mask(bad, len(code))), _at(parents, heads.firsts), rules
    )
    for place in np.flatnonzero(judged.refused[judged.which]).tolist():
        bad[place] = judged.kinds[judged.which[place]].outcome
    return bad, judged


def _beyond(seq: int) -> RuleOutcome:
    if seq > MAX_I64:
        return RuleOutcome(
            int(Code.LOCAL_FAULT), "seq is above 2^63-1, which no table column holds"
        )
    return RuleOutcome(int(Code.TIMESTAMP_INVALID), "timestamp lies after the year 9999 (P8)")


def _check_signatures(heads: _Heads, good: Places, rules: ArchiveRules) -> Outcomes:
    """Return the headers among ``good`` whose signature does not hold."""
    names = ("sender_pub_key", "header_hash", "signature")
    fields = [_at(heads.decoded.column(name), good) for name in names]
    firsts, groups = _groups(fields[0])
    distinct = [_verify_key(field) for field in _values(_at(fields[0], firsts))]
    keys = [distinct[group] for group in groups.tolist()]
    if rules.network is None:
        found = list(map(_check_signature, keys, _values(fields[1]), _values(fields[2])))
    else:
        headers = _values(_at(heads.headers, good))
        found = [
            _check_bound(key, header, rules) for key, header in zip(keys, headers, strict=True)
        ]
    places = good.tolist()
    return {place: each for place, each in zip(places, found, strict=True) if each is not _GOOD}


@lru_cache(maxsize=KEPT_MAX)
def _verify_key(key_field: bytes) -> VerifyKey | None:
    try:
        return VerifyKey.from_field(key_field)
    except KeyFormatError:
        return None  # the right length and no point of the curve: nothing is signed by it


def _check_signature(key: VerifyKey | None, header_hash: bytes, signature: bytes) -> RuleOutcome:
    if key is not None and key.scheme not in SIGNING_SCHEMES:
        return RuleOutcome(
            int(Code.UNSUPPORTED_SCHEME), f"{key.scheme.name} cannot be verified here (H5)"
        )
    if key is None or not key.verify(header_hash, signature):
        return RuleOutcome(
            int(Code.INVALID_SIGNATURE), "the signature does not hold (LP-6411 §2.8)"
        )
    return _GOOD


def _check_bound(key: VerifyKey | None, header: bytes, rules: ArchiveRules) -> RuleOutcome:
    if key is not None and key.scheme not in SIGNING_SCHEMES:
        return _check_signature(key, b"", b"")
    if key is None or not rules.signature_holds(header):
        return RuleOutcome(int(Code.INVALID_SIGNATURE), "the bound signature does not hold (H3)")
    return _GOOD


class _Judged(NamedTuple):
    """What the policies say of the distinct headers."""

    kinds: list[Judgement]
    """The different answers."""
    which: Places
    """Of each header, its answer."""
    refused: Mask
    """Of each answer, whether it is a refusal."""


def _judge(heads: _Heads, good: Places, parents: pa.Array, rules: ArchiveRules) -> _Judged:
    """Return what the policies say of the headers at ``good``; of the others nothing."""
    decoded, firsts, groups = heads.decoded, good, np.arange(len(good))
    if rules.has_no_history:
        names = ("namespace_id", "policy_hash", "sender_pub_key")
        namespace, policy, key = (_at(decoded.column(name), good) for name in names)
        said = _at(parents, good)
        lanes = (said, key) if _differ(said, namespace).any() else ()
        firsts, groups = _groups(namespace, policy, *lanes)
        firsts = good[firsts]
    fields = ("namespace_id", "seq", "timestamp", "sender_pub_key", "policy_hash")
    columns = [heads.headers, *(decoded.column(name) for name in fields), parents]
    kinds = [UNKNOWN]
    numbers: dict[Judgement, int] = {UNKNOWN: 0}
    answers = []
    for row in zip(*(_values(_at(column, firsts)) for column in columns), strict=True):
        judgement = rules.judge(*row)
        if judgement not in numbers:
            numbers[judgement] = len(kinds)
            kinds.append(judgement)
        answers.append(numbers[judgement])
    which = np.zeros(len(heads.headers), np.int64)
    which[good] = np.array(answers, np.int64)[groups]
    refused = np.array([kind.outcome is not _GOOD for kind in kinds])
    return _Judged(kinds, which, refused)


def _spread(heads: _Heads, bad: Outcomes, judged: _Judged) -> dict[str, pa.Array]:
    """Return the header columns of every row; null where the header is not good."""
    decoded, kinds = heads.decoded, judged.kinds
    columns = {name: decoded.column(name) for name in decoded.schema.names}
    days = _numbers(columns["timestamp"], np.uint64) // np.uint64(MS_PER_DAY)
    columns["date"] = pa.array(days.astype(np.int32)).cast(pa.date32())
    columns["namespace_key"] = _prune_keys(columns["namespace_id"])
    firsts, groups = _groups(columns["sender_pub_key"])
    keys = _values(_at(columns["sender_pub_key"], firsts))
    addresses = [None if key is None else _address(key) for key in keys]
    for name, values in (
        ("sender_address", pa.array(addresses, pa.binary())),
        ("sender_key", pa.array([prune_key(address) for address in addresses], pa.int64())),
    ):
        columns[name] = values.take(pa.array(groups))
    for name, values in (
        ("verdict", [kind.verdict for kind in kinds]),
        ("policy_version", [kind.version for kind in kinds]),
        ("retention", [kind.retention for kind in kinds]),
    ):
        columns[name] = pa.array(values, pa.int32()).take(pa.array(judged.which))
    if heads.alone and not bad:
        return columns
    without = heads.places < 0
    digests = columns["digest"].take(pa.array(heads.places, mask=without))
    without |= _mask(bad, len(heads.headers) + 1)[heads.places]
    rows = pa.array(heads.places, mask=without)
    return {name: column.take(rows) for name, column in columns.items()} | {"digest": digests}


@lru_cache(maxsize=KEPT_MAX)
def _address(key_field: bytes) -> bytes | None:
    try:
        return sender_address(key_field)
    except BusArgumentError:
        return None  # a key without an address rule (H27)


def _check_rows(
    batch: pa.RecordBatch, heads: _Heads, bad: Outcomes, columns: Mapping[str, pa.Array]
) -> tuple[Outcomes, pa.Array]:
    """Return what is wrong with each row, and its payload as the table keeps it."""
    outcomes = Outcomes()
    places, blobs = heads.places, batch.column("blob")
    unread, broken = places < 0, _mask(bad, len(heads.headers) + 1)[places]
    elsewhere = _differ(batch.column("namespace"), columns["namespace_id"])
    for row in np.flatnonzero(unread).tolist():
        outcomes[row] = _UNREAD
    for row in np.flatnonzero(broken & ~unread).tolist():
        outcomes[row] = bad[int(places[row])]
    for row in np.flatnonzero(elsewhere & ~unread & ~broken).tolist():
        outcomes[row] = RuleOutcome(
            int(Code.INVALID_NAMESPACE), "the relay served it under another namespace (P39)"
        )
    left = ~(unread | broken | elsewhere)
    sizes = pc.binary_length(blobs).fill_null(0).to_numpy().astype(np.int64)
    outcomes |= _check_blobs(blobs, sizes, heads, np.flatnonzero(left & (sizes > 0)))
    stated = _of_rows(heads, "blob_len", np.uint32)
    absent = left & (sizes == 0)
    kept = _if_any(unread | (absent & (stated > 0)), pa.scalar(None, pa.binary()), blobs)
    return outcomes, _if_any(absent & (stated == 0), pa.scalar(b"", pa.binary()), kept)


def _check_sidecars(batch: pa.RecordBatch, outcomes: Outcomes) -> pa.Array:
    """Return the sidecars of a batch after noting in ``outcomes`` those that are not the header's.

    Source: LP-6411 §2.10; 11-35, 11-36.
    """
    sidecars = batch.column("sidecar")
    if sidecars.null_count == len(sidecars):
        return sidecars
    headers = batch.column("header")
    for row in np.flatnonzero(_bools(pc.is_valid(sidecars))).tolist():
        if row not in outcomes:
            header = MsgHeader.decode(headers[row].as_py())
            verdict = check_sidecar(header, sidecars[row].as_py())
            if not verdict.accepted:
                outcomes[row] = RuleOutcome(int(verdict.code), verdict.reason)
    return sidecars


def _check_blobs(blobs: pa.Array, sizes: Places, heads: _Heads, rows: Places) -> Outcomes:
    """Return the rows among ``rows`` whose payload is not that of their header.

    Source: LP-6411 §2.4, §2.5; H2, H11.
    """
    outcomes = Outcomes()
    kzg = _of_rows(heads, "flags", np.uint8)[rows] & c.FLAG_KZG_COMMITMENT != 0
    for row in rows[kzg].tolist():
        reason = "KZG commitments need luxrelay[kzg] (LP-6411 §2.4, H2)"
        outcomes[row] = RuleOutcome(int(Code.UNSUPPORTED_COMMITMENT), reason)
    rows = rows[~kzg]
    stated = _of_rows(heads, "blob_len", np.uint32)
    wrong = sizes[rows] != stated[rows]
    for row in rows[wrong].tolist():
        reason = f"blob has {sizes[row]} bytes, the header says {stated[row]} (LP-6411 §2.5)"
        outcomes[row] = RuleOutcome(int(Code.BLOB_MISMATCH), reason)
    rows = rows[~wrong]
    for row in rows[_hash_to_another(blobs, heads, rows)].tolist():
        reason = "blob does not match blobCommitment (LP-6411 §2.4)"
        outcomes[row] = RuleOutcome(int(Code.BLOB_MISMATCH), reason)
    return outcomes


def _hash_to_another(blobs: pa.Array, heads: _Heads, rows: Places) -> Mask:
    """Return which payloads do not match; equal ones of one header are hashed once."""
    places, own = heads.places[rows], np.arange(len(rows))
    hashed = own.copy()
    if not heads.alone:
        _, first, again = np.unique(places, return_index=True, return_inverse=True)
        copies = np.flatnonzero(first[again] != own)
        before = first[again][copies]
        same = pc.equal(_at(blobs, rows[copies]), _at(blobs, rows[before]))
        hashed[copies] = np.where(_bools(same), before, copies)
    needed = np.flatnonzero(hashed == own)
    sha3 = hashlib.sha3_256
    made = [sha3(blob).digest() for blob in _values(_at(blobs, rows[needed]))]
    found = np.frombuffer(b"".join(made), np.uint64).reshape(-1, _HASH_WORDS)
    stated = _numbers(heads.decoded.column("blob_commitment"), np.uint64, _HASH_WORDS)
    other = np.zeros(len(rows), np.bool_)
    other[needed] = (found != stated[places[needed]]).any(axis=1)
    return other[hashed]


def _parents(parents: pa.Array, columns: Mapping[str, pa.Array]) -> pa.Array:
    """Return the parent that a relay named, where it is true: a lane is derived from it (J6)."""
    namespaces, keys = columns["namespace_id"], columns["sender_pub_key"]
    untrue = _differ(parents, namespaces)
    rows = np.flatnonzero(untrue)
    if len(rows):
        asked = [_at(column, rows) for column in (parents, keys, namespaces)]
        firsts, groups = _groups(*asked)
        distinct = zip(*(_values(_at(column, firsts)) for column in asked), strict=True)
        true = [lane_of(parent, key) == namespace for parent, key, namespace in distinct]
        untrue[rows] = ~np.array(true)[groups]
    return _if_any(untrue | _bools(namespaces.is_null()), pa.scalar(None, pa.binary()), parents)


def _groups(*columns: pa.Array) -> tuple[Places, Places]:
    """Return the first row of each different combination of values, and each row's combination.

    When no two rows have the same one, they stand in the order of the rows.
    """
    rows = len(columns[0])
    groups, kinds = np.zeros(rows, np.int64), min(rows, 1)
    for column in columns:
        encoded = column.dictionary_encode()
        nulls = int(encoded.null_count > 0)
        count = len(encoded.dictionary) + nulls
        codes = encoded.indices.fill_null(count - 1) if nulls else encoded.indices
        if kinds == 1:
            groups, kinds = codes.to_numpy().astype(np.int64), count
        elif count > 1:
            distinct, groups = np.unique(groups * count + codes.to_numpy(), return_inverse=True)
            kinds = len(distinct)
    if kinds == rows:
        groups = np.arange(rows)
    return _first_rows(groups, kinds), groups


def _first_rows(groups: Places, kinds: int) -> Places:
    firsts = np.zeros(kinds, np.int64)
    firsts[groups[::-1]] = np.arange(len(groups))[::-1]  # of equal places the last one stays
    return firsts


def _at(column: pa.Array, places: Places) -> pa.Array:
    """Return the values at ``places``, in which all that there are stand in order."""
    return column if len(places) == len(column) else column.take(pa.array(places))


def _values(column: pa.Array) -> list[Any]:
    """Return the values; of a column of fixed width many times faster as one of free width."""
    fixed = pa.types.is_fixed_size_binary(column.type)
    values: list[Any] = (column.cast(pa.binary()) if fixed else column).to_pylist()
    return values


def _differ(some: pa.Array, others: pa.Array) -> Mask:
    """Return where two columns of bytes have values that are not the same."""
    return _bools(pc.not_equal(some, others.cast(pa.binary())).fill_null(False))


def _bools(array: pa.Array) -> Mask:
    mask: Mask = array.to_numpy(zero_copy_only=False)
    return mask


def _mask(places: Iterable[int], count: int) -> Mask:
    mask = np.zeros(count, np.bool_)
    mask[list(places)] = True
    return mask


def _numbers(column: pa.Array, kind: npt.DTypeLike, width: int = 1) -> npt.NDArray[Any]:
    """Return a column of `decode_columns` without a copy; anything where it is null."""
    values = np.frombuffer(column.buffers()[1], kind)
    return values if width == 1 else values.reshape(-1, width)


def _of_rows(heads: _Heads, name: str, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a number of each row's header; 0 for a row without one."""
    values = _numbers(heads.decoded.column(name), kind)
    return values if heads.alone else np.append(values, values.dtype.type(0))[heads.places]


def _prune_keys(names: pa.Array) -> pa.Array:
    words = np.frombuffer(
        names.buffers()[1],
        np.dtype({"names": ["key"], "formats": [">i8"], "itemsize": c.NAMESPACE_BYTES}),
    )
    return pa.array(words["key"].astype(np.int64))


def _if_any(mask: Mask, then: pa.Array | pa.Scalar, otherwise: pa.Array) -> pa.Array:
    return pc.if_else(pa.array(mask), then, otherwise) if mask.any() else otherwise


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)
