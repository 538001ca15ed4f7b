"""Signed statements meet the messages of an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from luxrelay.archive import ArchiveSession
from luxrelay.archive.pipeline import ingest_segments
from luxrelay.archive.schema import RAW
from luxrelay.archive.segment_files import write_segments
from luxrelay.archive.statements import FinalityReport, Statements, apply_finality
from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, sha3_commitment
from luxrelay.bus.finality import FinalityRow, FinalityState, FinalityStatement

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]
NOW = 1_785_974_400_000
A, C = NamespaceId(b"\x0a" * 20), NamespaceId(b"\x0c" * 20)
KEY, RIVAL, CONSENSUS = (
    SigningKey.from_seed(SignatureScheme.ED25519, bytes([number]) * 32) for number in (33, 34, 35)
)


def _header(namespace: NamespaceId, seq: int, key: SigningKey = KEY) -> MsgHeader:
    return key.sign_header(
        MsgHeader(
            namespace_id=namespace,
            seq=seq,
            timestamp=NOW + seq,
            blob_commitment=sha3_commitment(b"hello"),
            blob_len=5,
            policy_hash=b"p" * 32,
        )
    )


def _segment(folder: Path, claims: dict[bytes, int] | None = None, relay: str = "1") -> Path:
    """Write three messages in a row, and two senders' messages of one slot.

    Args:
        folder: Where to.
        claims: Finality that the relay claims of a content id, 0 of the others.
        relay: Its name, and the file's.

    """
    headers = [_header(A, seq) for seq in (1, 2, 3)] + [_header(C, 1), _header(C, 1, RIVAL)]
    rows = [
        {"relay": f"f:{relay}", "namespace": header.namespace_id, "seq": header.seq,
         "header": header.encode(), "blob": b"hello", "received_at": NOW + 9,
         "expires_at": NOW + 900, "finality": (claims or {}).get(header.content_id, 0)}
        for header in headers
    ]  # fmt: skip
    write_segments(folder, [pa.RecordBatch.from_pylist(rows, schema=RAW.arrow())], prefix=relay)
    return folder


def _statements(path: Path) -> Statements:
    """Write what consensus says of three messages, and what a stranger says."""
    said = (
        FinalityRow(A, 1, _header(A, 1).header_hash, FinalityState.FINALIZED),
        FinalityRow(A, 2, _header(A, 2).header_hash, FinalityState.REJECTED),
        FinalityRow(A, 99, b"h" * 32, FinalityState.FINALIZED),
        FinalityRow(C, 1, _header(C, 1, RIVAL).header_hash, FinalityState.FINALIZED),
    )
    statement = FinalityStatement(network="main", number=1, issued_ms=NOW, rows=said)
    lines = [statement.signed_by(key).encode().hex() for key in (CONSENSUS, KEY)]
    path.write_text("\n".join(lines) + "\n")
    return Statements(path=path, network="main", signers=(CONSENSUS.public_field,))


def _rows(out: Path, table: str, *names: str) -> list[tuple[Any, ...]]:
    read = DeltaTable(str(out / table)).to_pyarrow_table(columns=list(names)).to_pylist()
    return [tuple(row[name] for name in names) for row in read]


def test_statements_give_archived_messages_their_state(
    spark: ArchiveSession, tmp_path: Path
) -> None:
    """One of two contents of a slot is final, and alone is kept (J9, P40).

    Senders of equal headers share a hash: the lower content id counts, as in a relay's store.
    """
    winner, loser = sorted((_header(C, 1), _header(C, 1, RIVAL)), key=lambda each: each.content_id)
    out, statements = tmp_path / "archive", _statements(tmp_path / "statements")
    ingest_segments(spark, segments=_segment(tmp_path / "segments"), out=out)
    before = dict(_rows(out, "contention", "sender_pub_key", "kept"))

    done = apply_finality(spark, out=out, statements=statements)

    assert done == FinalityReport(applied=1, refused=1, messages=3)
    rows = _rows(out, "messages", "namespace_id", "seq", "sender_pub_key", "finality")
    assert sorted(rows) == [
        (A, 1, KEY.public_field, FinalityState.FINALIZED),
        (A, 2, KEY.public_field, FinalityState.REJECTED),
        (A, 3, KEY.public_field, FinalityState.PENDING),
        *sorted(
            [
                (C, 1, loser.sender_pub_key, FinalityState.PENDING),
                (C, 1, winner.sender_pub_key, FinalityState.FINALIZED),
            ]
        ),
    ]
    assert before == {KEY.public_field: True, RIVAL.public_field: True}
    assert dict(_rows(out, "contention", "sender_pub_key", "kept")) == {
        loser.sender_pub_key: False,
        winner.sender_pub_key: True,
    }
    version = DeltaTable(str(out / "messages")).version()
    again = apply_finality(spark, out=out, statements=statements)
    assert again == FinalityReport(applied=1, refused=1, messages=0)
    assert DeltaTable(str(out / "messages")).version() == version


def test_segments_are_joined_in_the_run_that_reads_them(
    spark: ArchiveSession, tmp_path: Path
) -> None:
    """Who archives files gives the statements with them, as who reads relays does (J9)."""
    out, statements = tmp_path / "archive", _statements(tmp_path / "statements")

    ingest_segments(spark, segments=_segment(tmp_path / "segments"), out=out, statements=statements)

    states = dict(_rows(out, "messages", "content_id", "finality"))
    winner = min(_header(C, 1).content_id, _header(C, 1, RIVAL).content_id)
    assert {name for name, state in states.items() if state == FinalityState.FINALIZED} == {
        _header(A, 1).content_id,
        winner,
    }
    assert states[_header(A, 2).content_id] == FinalityState.REJECTED


def test_what_a_relay_claims_decides_nothing(spark: ArchiveSession, tmp_path: Path) -> None:
    """Only signed statements move a state and what is kept; a claim stands in raw alone (J9)."""
    winner, loser = sorted((_header(C, 1), _header(C, 1, RIVAL)), key=lambda each: each.content_id)
    out, segments = tmp_path / "archive", tmp_path / "segments"
    claims = {loser.content_id: int(FinalityState.FINALIZED)}
    ingest_segments(spark, segments=_segment(segments, claims), out=out)

    before = _rows(out, "messages", "finality"), _rows(out, "contention", "kept")
    apply_finality(spark, out=out, statements=_statements(tmp_path / "statements"))
    claims[winner.content_id] = 255  # a second relay, after the statement was applied
    ingest_segments(spark, segments=_segment(segments, claims, relay="2"), out=out)

    assert before == ([(FinalityState.PENDING,)] * 5, [(True,)] * 2)
    rows = _rows(out, "messages", "content_id", "copies", "finality")
    assert {row[0]: row[1:] for row in rows if row[0] in claims} == {
        loser.content_id: (2, FinalityState.PENDING),
        winner.content_id: (2, FinalityState.FINALIZED),
    }
    assert dict(_rows(out, "contention", "content_id", "kept")) == {
        loser.content_id: False,
        winner.content_id: True,
    }
    assert sorted(row for row in _rows(out, "raw", "relay", "finality") if row[1]) == [
        ("f:1", 3),
        ("f:2", 3),
        ("f:2", 255),
    ]
