"""An Arrow batch of raw rows into checked rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from luxrelay.archive import decode
from luxrelay.archive.decode import KEPT_MAX, check_batch, checker
from luxrelay.archive.rules import CODE_EPHEMERAL, ArchiveRules
from luxrelay.archive.schema import CHECKED, CODE_UNREAD, RAW
from luxrelay.bus import (
    CiphertextType,
    Code,
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    TFHECiphertext,
    TFHESidecarRef,
    attach_sidecar,
    message_id,
)
from luxrelay.bus.policy import (
    Identity,
    IdentityType,
    NamespacePolicy,
    RetentionClass,
    WritersMode,
    default_policy,
)
from luxrelay.bus.signed_policy import SignedPolicy
from luxrelay.sync import WireMessage

NS = b"n" * 20
OWNER = SigningKey.from_seed(SignatureScheme.ED25519, b"\x08" * 32)
KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"\x07" * 32)
Forge = Callable[..., WireMessage]


def _batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=RAW.arrow())


def _row(message: WireMessage, relay: str = "a:1", **changed: Any) -> dict[str, Any]:
    return {
        "relay": relay,
        "namespace": message.namespace_id,
        "seq": message.seq,
        "header": message.header,
        "blob": message.blob,
        "received_at": message.received_at,
        "expires_at": message.expires_at,
    } | changed


def _checked(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    batch = check_batch(_batch(*rows))
    batch.validate(full=True)
    assert batch.schema.equals(CHECKED.arrow())
    return batch.to_pylist()


def test_columns_equal_the_bus(forge: Forge) -> None:
    """Each column says what the slow and readable decoder says."""
    message = forge(seq=77, blob=b"x" * 300)
    header = MsgHeader.decode(message.header)

    (row,) = _checked(_row(message))

    assert (row["code"], row["reason"]) == (0, "")
    names = (
        "namespace_id seq timestamp version flags blob_commitment blob_len policy_hash"
        " sender_pub_key signature fee_proof header_hash digest content_id message_id"
        " sender_address"
    )
    for name in names.split():
        assert row[name] == getattr(header, name), name
    assert row["message_id"] == message_id(header.namespace_id, 77)
    assert (row["header"], row["blob"]) == (message.header, message.blob)
    assert row["date"].isoformat() == "2024-01-01"
    assert row["sidecar_commitment"] is row["sidecar_epoch"] is None


def test_sidecar_reference_becomes_columns(forge: Forge) -> None:
    """An epoch may take all of u64."""
    reference = TFHESidecarRef(commitment=b"s" * 32, epoch=2**64 - 1)

    (row,) = _checked(_row(forge(flags=1, tfhe_sidecar=reference)))

    assert row["code"] == 0
    assert row["sidecar_commitment"] == b"s" * 32
    assert int(row["sidecar_epoch"]) == 2**64 - 1


def test_a_sidecar_is_held_against_its_header(forge: Forge) -> None:
    """One that is not the header's makes the row a reject; a relay without it does not (11-36)."""
    secret = TFHECiphertext(type=CiphertextType.U8, data=b"opaque")
    header, sidecar = attach_sidecar(MsgHeader.decode(forge().header), secret)
    signed = KEY.sign_header(header).encode()

    rows = _checked(
        _row(forge(), header=signed, sidecar=sidecar),
        _row(forge(), header=signed, sidecar=sidecar[:-1] + b"\x01"),
        _row(forge(), header=signed),
        _row(forge(), sidecar=sidecar),
        _row(forge(), header=b"garbage", sidecar=sidecar),
    )

    good, wrong, without, unasked, garbage = rows
    assert [row["code"] for row in (good, without)] == [0, 0]
    assert (good["sidecar"], without["sidecar"]) == (sidecar, None)
    assert [row["code"] for row in (wrong, unasked)] == [Code.SIDECAR_INVALID] * 2
    assert "sidecar" in wrong["reason"]
    assert garbage["code"] not in {0, Code.SIDECAR_INVALID}


def test_copies_of_a_header_are_each_a_row(forge: Forge) -> None:
    """Rows keep their order and their relay; a bad copy does not harm a good one."""
    message = forge()

    rows = _checked(
        _row(message, "a:1"),
        _row(message, "b:1", blob=b"hellO"),
        _row(message, "c:1", received_at=5),
    )

    assert [row["relay"] for row in rows] == ["a:1", "b:1", "c:1"]
    assert [row["code"] for row in rows] == [0, Code.BLOB_MISMATCH, 0]
    assert rows[2]["received_at"] == 5


def test_reject_signature(forge: Forge) -> None:
    """A changed signed byte breaks the signature; the row keeps its bytes."""
    message = forge()
    broken = message.header[:80] + b"\xff" + message.header[81:]

    (row,) = _checked(_row(message, header=broken))

    assert row["code"] == Code.INVALID_SIGNATURE
    assert row["header"] == broken
    assert row["blob"] == message.blob
    assert row["digest"] is not None
    assert row["namespace_id"] == NS
    assert row["seq"] is row["content_id"] is None


def test_reject_key_that_is_no_point(forge: Forge) -> None:
    """A secp256k1 key of the right length that no curve has stops no batch (11-26)."""
    message = forge()
    header = MsgHeader.decode(message.header)
    no_point = replace(header, sender_pub_key=b"\x02\x02" + b"\xff" * 32).encode()

    rows = _checked(_row(message, header=no_point), _row(message))

    assert [row["code"] for row in rows] == [Code.INVALID_SIGNATURE, 0]


def test_reject_structure(forge: Forge) -> None:
    """The code and the reason are those of the structural rule."""
    message = forge()

    rows = _checked(
        _row(message, header=message.header + b"x"),
        _row(message, header=b""),
        _row(message, header=b"\x02" + message.header[1:]),
    )

    assert [row["code"] for row in rows] == [
        Code.TRAILING_BYTES, Code.HEADER_TOO_SHORT, Code.UNSUPPORTED_VERSION,
    ]  # fmt: skip
    assert all(row["reason"] for row in rows)


def test_reject_other_namespace(forge: Forge) -> None:
    """A relay cannot slip a message of one namespace into another."""
    (row,) = _checked(_row(forge(), namespace=b"m" * 20))

    assert row["code"] == Code.INVALID_NAMESPACE
    assert row["namespace_id"] == b"m" * 20


def test_reject_blob_length(forge: Forge) -> None:
    """The length is compared before the hash."""
    (row,) = _checked(_row(forge(), blob=b"hello!"))

    assert row["code"] == Code.BLOB_MISMATCH
    assert "6 bytes" in row["reason"]


def test_reject_kzg_as_unsupported(forge: Forge) -> None:
    """What cannot be checked is kept apart, not believed (H2)."""
    (row,) = _checked(_row(forge(flags=2)))

    assert row["code"] == Code.UNSUPPORTED_COMMITMENT


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"seq": 2**63}, Code.LOCAL_FAULT),
        ({"timestamp": 253_402_300_800_000}, Code.TIMESTAMP_INVALID),
    ],
)
def test_reject_what_no_column_holds(forge: Forge, fields: dict[str, int], code: Code) -> None:
    """Numbers beyond BIGINT and DATE are rejected, not wrapped."""
    message = forge(**fields)

    (row,) = _checked(_row(message, seq=1, received_at=1))

    assert row["code"] == code


def test_missing_payload_is_null_and_no_payload_is_empty(forge: Forge) -> None:
    """A relay may hold the header alone."""
    absent, none = forge(), forge(blob=b"")

    rows = _checked(_row(absent, blob=None), _row(absent, blob=b""), _row(none, blob=None))

    assert [row["code"] for row in rows] == [0, 0, 0]
    assert [row["blob"] for row in rows] == [None, None, b""]


def test_unread_relay_is_no_reject() -> None:
    """A row without a header stands for a relay that was not read."""
    (row,) = _checked({"relay": "a:1", "namespace": NS, "seq": 4})

    assert row["code"] == CODE_UNREAD
    assert row["relay"] == "a:1"
    assert row["digest"] is None


def test_empty_batch_stays_empty() -> None:
    """No rows in, no rows out, same schema."""
    assert check_batch(_batch()).num_rows == 0


def test_no_bytes_stop_a_batch(forge: Forge) -> None:
    """Whatever a relay serves, each row gets an outcome; the good ones among them stay good."""
    rng = random.Random(11)
    good = forge()
    rows = []
    for _ in range(300):
        data = bytearray(good.header)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = bytes(data[: rng.randrange(len(data) + 1)]) if rng.random() < 0.3 else bytes(data)
        rows.append(_row(good, header=cut, blob=rng.choice([None, b"", good.blob, b"\x00" * 99])))
    rows.append(_row(good))

    checked = _checked(*rows)

    assert len(checked) == 301
    assert checked[-1]["code"] == 0


def test_rows_that_share_nothing_keep_their_own(forge: Forge) -> None:
    """As many different keys, or namespaces and policies, as rows: each row has its own."""
    others = [SigningKey.from_seed(SignatureScheme.ED25519, bytes([n]) * 32) for n in (1, 2)]
    keyed = [key.sign_header(MsgHeader.decode(forge().header)) for key in others]
    rows = _checked(_row(forge(), header=b""), *(_row(forge(), header=h.encode()) for h in keyed))
    assert [row["sender_address"] for row in rows] == [None, *(h.sender_address for h in keyed)]

    opened = default_policy(NS).policy_hash
    messages = [
        forge(policy_hash=b"p" * 32), forge(b"m" * 20, policy_hash=b"p" * 32),
        forge(policy_hash=opened),
    ]  # fmt: skip
    rows = _checked(*(_row(message) for message in messages))
    assert [row["verdict"] for row in rows] == [Code.UNCHECKABLE, Code.UNCHECKABLE, 0]


def test_what_is_kept_of_keys_is_bounded() -> None:
    """KEPT_MAX keys and addresses, however many senders a relay makes up."""
    for number in range(KEPT_MAX + 10):
        decode._address(b"\x01" + number.to_bytes(32))
        decode._verify_key(b"\x01" + number.to_bytes(32))

    for kept in (decode._address, decode._verify_key):
        assert kept.cache_info().currsize == KEPT_MAX


def test_batches_are_checked_one_by_one(forge: Forge) -> None:
    """The executors' function keeps batches apart."""
    batches = [_batch(_row(forge(seq=seq))) for seq in (1, 2)]

    checked = list(checker(ArchiveRules())(batches))

    assert [batch.column("seq").to_pylist() for batch in checked] == [[1], [2]]


def test_policies_decide_after_the_signature(forge: Forge) -> None:
    """A violation is a reject with its bytes, an Ephemeral message is passed over (J2, P39)."""
    policy = NamespacePolicy(
        owner=Identity(IdentityType.RAW_KEY, OWNER.public_field),
        writers_mode=WritersMode.OWNER_ONLY,
    )
    fleeting = replace(
        policy,
        version=2,
        writers_mode=WritersMode.OPEN,
        retention_class=RetentionClass.EPHEMERAL,
    )
    documents = [
        SignedPolicy(
            network="devnet", namespace_id=NamespaceId(NS), policy=each, activation_ms=activation
        ).signed_by(OWNER)
        for each, activation in ((policy, 0), (fleeting, 1_704_067_200_000))
    ]
    rules = ArchiveRules.of(documents)
    stranger = forge(policy_hash=policy.policy_hash, timestamp=1)
    passed = forge(policy_hash=fleeting.policy_hash, seq=2)
    outside = forge(b"m" * 20)
    batch = _batch(*(_row(message) for message in (stranger, passed, outside)))

    rows = check_batch(batch, rules).to_pylist()

    assert [row["code"] for row in rows] == [Code.POLICY_VIOLATION, CODE_EPHEMERAL, 0]
    assert "sender" in rows[0]["reason"]
    assert rows[0]["header"] == stranger.header
    assert (rows[2]["verdict"], rows[2]["retention"]) == (Code.UNCHECKABLE, None)
