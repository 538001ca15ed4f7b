"""Checks by columns say of each row what the rules, stated row by row, say of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from functools import cache
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.archive.decode import check_batch
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.schema import CHECKED, RAW
from luxrelay.bus import (
    Code,
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    TFHESidecarRef,
    lane,
    validate_structure,
    verify_header,
)
from luxrelay.bus.authorization import key_address
from luxrelay.bus.bound import sign_header_bound, verify_header_bound
from luxrelay.bus.constants import EMPTY_SHA3_256, FLAG_KZG_COMMITMENT, FLAG_TFHE_SIDECAR, ZERO_HASH
from luxrelay.bus.policy import (
    Identity,
    IdentityType,
    NamespacePolicy,
    RetentionClass,
    WritersMode,
    default_policy,
)
from luxrelay.bus.signed_policy import SignedPolicy
from luxrelay.testing import breakages
from luxrelay.testing.strategies import mutated

T0 = 1_704_067_200_000
LAST_MS = 253_402_300_799_999
TOPIC, OWNED, OTHER = (NamespaceId(bytes([number]) * 20) for number in (0x91, 0x92, 0x93))
KEYS = [
    SigningKey.from_seed(scheme, bytes([number]) * 32)
    for number, scheme in enumerate(
        (SignatureScheme.ED25519, SignatureScheme.ED25519, SignatureScheme.SECP256K1), start=1
    )
]
POST_QUANTUM = SigningKey.from_seed(SignatureScheme.ML_DSA_65, b"\x05" * 32)
OWNER = Identity(IdentityType.RAW_KEY, KEYS[0].public_field)
FIRST = NamespacePolicy(owner=OWNER, writers_mode=WritersMode.OWNER_ONLY)
SECOND = replace(
    FIRST, version=2, writers_mode=WritersMode.OPEN, retention_class=RetentionClass.EPHEMERAL
)
NETWORK = "closed"
BLOBS = (b"hello", b"hello of the same length", b"x" * 400)


def _plain(row: dict[str, Any], said: bytes | None, rules: ArchiveRules) -> dict[str, Any]:
    """Return the checked row; ``said`` is the parent that the first row of its header named."""
    data, blob = row["header"], row["blob"]
    out: dict[str, Any] = dict.fromkeys(CHECKED.names)
    out |= {name: row[name] for name in ("relay", "received_at", "expires_at", "finality")}
    out |= {"served_seq": row["seq"], "namespace_id": row["namespace"], "header": data}
    if data is None:
        return out | {"code": -1, "reason": "the relay could not be read"}
    out |= {"digest": hashlib.sha3_256(data).digest(), "blob": blob}
    verdict = validate_structure(data)
    if verdict.code:
        return out | {"code": verdict.code, "reason": verdict.reason}
    header = MsgHeader.decode(data)
    code, reason = _plain_header(header, rules)
    if code:
        return out | {"code": code, "reason": reason}
    judgement = rules.judge(
        data, header.namespace_id, header.seq, header.timestamp, header.sender_pub_key,
        header.policy_hash, said,
    )  # fmt: skip
    if judgement.outcome.code:
        return out | judgement.outcome._asdict()
    out |= _fields(header, row["parent"])
    out |= {
        "verdict": judgement.verdict,
        "policy_version": judgement.version,
        "retention": judgement.retention,
    }
    if row["namespace"] not in {None, header.namespace_id}:
        reason = "the relay served it under another namespace (P39)"
        return out | {
            "code": Code.INVALID_NAMESPACE, "reason": reason, "namespace_id": row["namespace"],
        }  # fmt: skip
    code, reason = _plain_blob(header, blob)
    if code:
        return out | {"code": code, "reason": reason, "namespace_id": row["namespace"]}
    kept = blob or (None if header.blob_len else b"")
    return out | {"code": 0, "reason": "", "blob": kept}


def _plain_header(header: MsgHeader, rules: ArchiveRules) -> tuple[int, str]:
    if header.seq > 2**63 - 1:
        return Code.LOCAL_FAULT, "seq is above 2^63-1, which no table column holds"
    if header.timestamp > LAST_MS:
        return Code.TIMESTAMP_INVALID, "timestamp lies after the year 9999 (P8)"
    if rules.network is None:
        holds, reason = verify_header(header), "the signature does not hold (LP-6411 §2.8)"
    else:
        holds = verify_header_bound(header, rules.network)
        reason = "the bound signature does not hold (H3)"
    return (0, "") if holds else (Code.INVALID_SIGNATURE, reason)


def _plain_blob(header: MsgHeader, blob: bytes | None) -> tuple[int, str]:
    if not blob:
        return 0, ""
    if header.flags & FLAG_KZG_COMMITMENT:
        return Code.UNSUPPORTED_COMMITMENT, "KZG commitments need luxrelay[kzg] (LP-6411 §2.4, H2)"
    if len(blob) != header.blob_len:
        return (
            Code.BLOB_MISMATCH,
            f"blob has {len(blob)} bytes, the header says {header.blob_len} (LP-6411 §2.5)",
        )
    if hashlib.sha3_256(blob).digest() != header.blob_commitment:
        return Code.BLOB_MISMATCH, "blob does not match blobCommitment (LP-6411 §2.4)"
    return 0, ""


def _fields(header: MsgHeader, parent: bytes | None) -> dict[str, Any]:
    names = (
        "namespace_id", "seq", "timestamp", "version", "flags", "blob_commitment", "blob_len",
        "policy_hash", "sender_pub_key", "signature", "fee_proof", "header_hash", "message_id",
        "content_id",
    )  # fmt: skip
    address, sidecar, true = key_address(header.sender_pub_key), header.tfhe_sidecar, False
    if parent is not None and len(parent) == 20:
        own = lane(NamespaceId(parent), header.sender_pub_key)
        true = header.namespace_id in {parent, own}
    return {name: getattr(header, name) for name in names} | {
        "date": date(1970, 1, 1) + timedelta(days=header.timestamp // 86_400_000),
        "sidecar_commitment": sidecar and sidecar.commitment,
        "sidecar_epoch": sidecar and sidecar.epoch,
        "sender_address": address,
        "namespace_key": int.from_bytes(header.namespace_id[:8], "big", signed=True),
        "sender_key": address and int.from_bytes(address[:8], "big", signed=True),
        "parent_id": parent if true else None,
    }


def _headers() -> Iterator[MsgHeader]:
    """Yield a header of every kind that the rules tell apart, unsigned."""
    for number, blob in enumerate(BLOBS):
        for namespace in (TOPIC, OWNED, OTHER):
            for policy in (default_policy(namespace), FIRST, SECOND):
                yield MsgHeader(
                    namespace_id=namespace,
                    seq=number + 1,
                    timestamp=T0 + number,
                    blob_commitment=hashlib.sha3_256(blob).digest(),
                    blob_len=len(blob),
                    policy_hash=policy.policy_hash,
                )


def _messages() -> Iterator[bytes]:
    """Yield signed headers, and some that hold in all but one thing."""
    for number, header in enumerate(_headers()):
        key = KEYS[number % len(KEYS)]
        yield key.sign_header(header).encode()
        yield sign_header_bound(key, header, NETWORK).encode()
        yield replace(key.sign_header(header), timestamp=T0 + 9).encode()
    sidecar = TFHESidecarRef(commitment=b"s" * 32, epoch=2**64 - 1)
    plain = next(_headers())
    open_hash = default_policy(TOPIC).policy_hash
    changes: list[dict[str, Any]] = [
        {"seq": 2**63 - 1},
        {"seq": 2**63},
        {"timestamp": LAST_MS},
        {"timestamp": LAST_MS + 1},
        {"timestamp": 2**64 - 1, "seq": 2**64 - 1},
        {"blob_len": 0, "blob_commitment": ZERO_HASH},
        {"blob_len": 0, "blob_commitment": EMPTY_SHA3_256},
        {"flags": FLAG_KZG_COMMITMENT},
        {"flags": FLAG_TFHE_SIDECAR, "tfhe_sidecar": sidecar},
        {"fee_proof": b"\x01" + b"f" * 40},
        *(  # several of each lane, also by those whose it is not
            {"namespace_id": lane(parent, key.public_field), "policy_hash": policy, "seq": seq}
            for parent, policy in ((TOPIC, open_hash), (OWNED, FIRST.policy_hash))
            for key in KEYS
            for seq in range(1, 5)
        ),
    ]
    for change in changes:
        for key in KEYS:
            yield key.sign_header(replace(plain, **change)).encode()
    yield POST_QUANTUM.sign_header(plain).encode()
    yield replace(  # a key of the right length that is no point
        KEYS[2].sign_header(plain), sender_pub_key=b"\x02\x02" + b"\xff" * 32
    ).encode()


@cache
def _pool() -> list[bytes]:
    return [*_messages(), *(breakage.data for breakage in breakages())]


def _rules() -> Sequence[ArchiveRules]:
    documents = [
        SignedPolicy(
            network="devnet", namespace_id=OWNED, policy=policy, activation_ms=activation
        ).signed_by(KEYS[0])
        for policy, activation in ((FIRST, 0), (SECOND, T0))
    ]
    return (
        ArchiveRules(),
        ArchiveRules.of([], network=NETWORK, bound=True),
        ArchiveRules.of(documents),
    )


_header_bytes = st.deferred(lambda: st.sampled_from(_pool()))
_rows = st.fixed_dictionaries(
    {
        "relay": st.sampled_from(["a:1", "b:1", None]),
        "namespace": st.sampled_from([None, None, TOPIC, OWNED, OTHER, b"short"]),
        "parent": st.sampled_from([None, TOPIC, OWNED, OTHER, b"short", b""]),
        "seq": st.none() | st.integers(-5, 5),
        "header": st.none() | _header_bytes | _header_bytes | _header_bytes.flatmap(mutated),
        "blob": st.none() | st.sampled_from([b"", *BLOBS, b"hellO", b"x" * 399 + b"y"]),
        "received_at": st.none() | st.integers(0, 2**62),
        "expires_at": st.none() | st.integers(0, 2**62),
        "finality": st.none() | st.integers(0, 5),
    }
)


@given(st.lists(_rows, max_size=30), st.lists(st.integers(0, 29), max_size=12), st.data())
def test_columns_say_what_the_rules_say(
    rows: list[dict[str, Any]], again: list[int], data: st.DataObject
) -> None:
    """Copies, lanes, policies, bound networks, nulls, broken bytes and slices, row by row."""
    for number in again:  # another relay serves a header that stands already
        if rows:
            copied = data.draw(_rows) | {"header": rows[number % len(rows)]["header"]}
            rows.insert(data.draw(st.integers(0, len(rows))), copied)
    skipped = data.draw(st.integers(0, min(3, len(rows))))
    batch = pa.RecordBatch.from_pylist(rows, schema=RAW.arrow()).slice(skipped)

    for rules, plain in zip(_rules(), _rules(), strict=True):
        _assert_same(batch, rows[skipped:], rules, plain)


def _assert_same(
    batch: pa.RecordBatch, rows: list[dict[str, Any]], rules: ArchiveRules, plain: ArchiveRules
) -> None:
    said: dict[bytes | None, bytes | None] = {}
    for row in rows:
        said.setdefault(row["header"], row["parent"])

    checked = check_batch(batch, rules)

    checked.validate(full=True)
    assert checked.schema.equals(CHECKED.arrow())
    for row, found in zip(rows, checked.to_pylist(), strict=True):
        assert found == _plain(row, said[row["header"]], plain)


def test_every_kind_of_header_is_checked_as_stated() -> None:
    """Once alone and once with copies, under each of the rules; nothing is left to chance."""
    for copies in (1, 3):
        rows = [
            {
                "relay": f"{copy}:1",
                "namespace": None,
                "parent": (TOPIC, OWNED, OTHER, None)[number % 4],
                "seq": 1,
                "header": data,
                "blob": (*BLOBS, None, b"")[(number + copy // 2) % 5],
                "received_at": T0,
                "expires_at": T0,
                "finality": 0,
            }
            for number, data in enumerate(dict.fromkeys(_pool()))
            for copy in range(copies)
        ]
        batch = pa.RecordBatch.from_pylist(rows, schema=RAW.arrow())
        for rules, plain in zip(_rules(), _rules(), strict=True):
            _assert_same(batch, rows, rules, plain)
