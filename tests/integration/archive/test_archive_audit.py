"""What an audit says of sequences without a message, and what a comparison brings back.

One archive goes through it all in a session that belongs to somebody else, because each step costs
Spark's time; the tests look at what was noted after each step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from luxrelay.archive import ArchiveSession, audit
from luxrelay.archive.completeness import ArchiveGap
from luxrelay.archive.folder import open_folder
from luxrelay.archive.missing_reasons import passed_spans
from luxrelay.archive.offsets import Span
from luxrelay.archive.pipeline import ingest_segments
from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.refetching import refetch
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.schema import RAW
from luxrelay.archive.segment_files import write_segments
from luxrelay.archive.verification import verify
from luxrelay.bus import Code, MsgHeader, NamespaceId, SignatureScheme, SigningKey, sha3_commitment
from luxrelay.bus.policy import Identity, IdentityType, NamespacePolicy, RetentionClass
from luxrelay.bus.signed_policy import SignedPolicy
from luxrelay.store import IncomingMessage, RelayStore
from luxrelay.sync import RelaySyncServer, SyncServerConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow]
A, P = NamespaceId(b"\x0a" * 20), NamespaceId(b"\x0b" * 20)
KEY, OTHER = (
    SigningKey.from_seed(SignatureScheme.ED25519, bytes([number]) * 32) for number in (33, 34)
)
STANDARD = NamespacePolicy(owner=Identity(IdentityType.RAW_KEY, KEY.public_field))
EPHEMERAL = replace(STANDARD, version=2, retention_class=RetentionClass.EPHEMERAL)
AGAIN = replace(STANDARD, version=3)
FORGED = int(Code.INVALID_SIGNATURE)


def _rules() -> ArchiveRules:
    """Return the history of a namespace that was Ephemeral from sequence 3 to 5."""
    history = ((STANDARD, 0), (EPHEMERAL, 3), (AGAIN, 6))
    return ArchiveRules.of(
        [
            SignedPolicy(
                network="devnet", namespace_id=P, policy=policy, activation_seq=seq
            ).signed_by(KEY)
            for policy, seq in history
        ]
    )


def _header(now: int, namespace: NamespaceId, seq: int, key: SigningKey = KEY) -> MsgHeader:
    policy = STANDARD if seq < 3 else EPHEMERAL if seq < 6 else AGAIN
    return key.sign_header(
        MsgHeader(
            namespace_id=namespace,
            seq=seq,
            timestamp=now - 5_000 + seq,
            blob_commitment=sha3_commitment(b"hello"),
            blob_len=5,
            policy_hash=policy.policy_hash if namespace == P else b"p" * 32,
        )
    )


def _segment(path: Path, now: int) -> Path:
    """Write A with a hole, a forged middle and forged heads, and P with its Ephemeral part."""
    rows = []
    places = [(A, seq) for seq in (1, 2, 4, 5, 6, 7, 8)] + [(P, seq) for seq in range(1, 8)]
    for namespace, seq in places:
        header = _header(now, namespace, seq).encode()
        if namespace == A and seq in {5, 7, 8}:
            header = header[:-60] + bytes([header[-60] ^ 1]) + header[-59:]
        rows.append(
            {"relay": "f:1", "namespace": namespace, "seq": seq, "header": header, "blob": b"hello",
             "received_at": now, "expires_at": now + 600_000}
        )  # fmt: skip
    write_segments(path, [pa.RecordBatch.from_pylist(rows, schema=RAW.arrow())], prefix="1")
    return path


@dataclass
class Seen:
    """What was noted."""

    relay: str = ""
    gaps: dict[str, list[tuple[bytes, int, int, bool]]] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)

    def note(self, step: str, out: Path, said: Any) -> None:
        """Look at the table of gaps."""
        rows = DeltaTable(str(out / "gaps")).to_pyarrow_table().to_pylist()
        self.gaps[step] = sorted(
            (row["namespace_id"], row["first"], row["last"], row["filled_at"] is None)
            for row in rows
        )
        self.said[step] = said


@pytest.fixture(scope="module")
def seen(spark: ArchiveSession, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Take an archive from segments to a relay that knows better."""
    path, now = tmp_path_factory.mktemp("audited"), int(time.time() * 1000)
    out, seen, rules = path / "archive", Seen(), _rules()
    attached = ArchiveSession.attach(spark.spark, tasks=1)
    with RelayStore.open(path / "store", now_ms=now) as store:
        held = [_header(now, A, seq) for seq in range(1, 9)] + [_header(now, A, 2, OTHER)]
        held += [_header(now, P, seq) for seq in range(1, 8)]
        store.put_many(
            [
                IncomingMessage(
                    header=each, blob=b"hello", parent=each.namespace_id, received_at=now
                )
                for each in held
            ],
            now,
        )
        server = RelaySyncServer(store, SyncServerConfig(port=0), clock_ms=lambda: now)
        seen.relay = f"127.0.0.1:{server.start()}"

        def compared() -> Any:
            return verify(
                ArchiveReader(out), rng=Random(1), relays=[seen.relay], sample=9, rules=rules
            )

        done = ingest_segments(
            attached, segments=_segment(path / "segments", now), out=out, rules=rules
        )
        seen.note("ingest", out, done)
        seen.said["audit"] = audit(attached, out=out, relays=[seen.relay], rules=rules)
        seen.said["before"] = before = compared()
        again = refetch(
            attached, out=out, relays=[seen.relay], rules=rules, also=before.missing_here()
        )
        seen.note("refetch", out, again)
        seen.said["after"] = compared()
        seen.said["passed"] = passed_spans(open_folder(out))
        server.stop(0)
    attached.close()
    seen.said["owner"] = spark.spark.range(3).count()
    return seen


def test_an_attached_session_leaves_spark_to_its_owner(seen: Seen) -> None:
    """It ingests, audits and refetches on a Spark that goes on after it was closed."""
    assert seen.said["ingest"].messages == 8
    assert seen.said["owner"] == 3


def test_sequences_that_were_passed_over_are_no_gap(seen: Seen) -> None:
    """A namespace that was Ephemeral for a while and Standard before and after it (J2)."""
    assert seen.said["ingest"].ephemeral == 3
    assert [gap for gap in seen.gaps["ingest"] if gap[0] == P] == []
    assert all(each.namespace != P for each in seen.said["audit"].gaps)
    assert seen.said["passed"] == [Span(bytes(P), 3, 5)]


def test_what_was_rejected_is_missing_and_says_why(seen: Seen) -> None:
    """Below the last message and above it; nothing is called unread that was read."""
    found = seen.said["audit"]

    assert seen.gaps["ingest"] == [
        (bytes(A), 3, 3, True), (bytes(A), 5, 5, True), (bytes(A), 7, 8, True)
    ]  # fmt: skip
    relay = (seen.relay,)
    assert found.gaps == (
        ArchiveGap(namespace=bytes(A), first=3, last=3, held_by=relay),
        ArchiveGap(namespace=bytes(A), first=5, last=5, held_by=relay, rejected=(FORGED,)),
        ArchiveGap(namespace=bytes(A), first=7, last=8, held_by=relay, rejected=(FORGED,)),
    )
    assert (found.behind, found.complete) == ((), False)


def test_what_a_relay_has_more_of_is_named_and_read_again(seen: Seen) -> None:
    """A rival comes into its slot; in the end roots differ by what is never archived (J4)."""
    (before,), (after,) = seen.said["before"].relays, seen.said["after"].relays

    assert before.root == "differs"
    assert [(each.missing, each.seq) for each in before.differences] == [
        ("here", 2), ("here", 3), ("here", 5)
    ]  # fmt: skip
    assert before.missing_here() == [Span(A, 2, 3), Span(A, 5, 5)]
    assert (seen.said["refetch"].asked, seen.said["refetch"].missing) == (5, 0)
    assert (after.root, after.differences, after.kept_out) == ("differs", [], 3)


def test_a_gap_that_was_filled_says_when(seen: Seen) -> None:
    """Also one above the highest message."""
    filled = [(first, last, is_open) for _, first, last, is_open in seen.gaps["refetch"]]

    assert filled == [(3, 3, False), (5, 5, False), (7, 8, False)]
