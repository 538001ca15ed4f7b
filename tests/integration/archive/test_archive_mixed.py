"""Segment files first and relays afterwards, from a relay whose clock says what it likes."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from luxrelay.archive import ArchiveSession, ingest
from luxrelay.archive.pipeline import ingest_segments
from luxrelay.archive.schema import MAX_I64, RAW
from luxrelay.archive.segment_files import write_segments
from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, sha3_commitment
from luxrelay.store import IncomingMessage, RelayStore
from luxrelay.sync import RelaySyncServer, SyncServerConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]
NS = NamespaceId(b"\x0a" * 20)
KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"\x21" * 32)


def _header(now: int, seq: int) -> MsgHeader:
    return KEY.sign_header(
        MsgHeader(
            namespace_id=NS,
            seq=seq,
            timestamp=now + seq,
            blob_commitment=sha3_commitment(b"hello"),
            blob_len=5,
            policy_hash=b"p" * 32,
        )
    )


def test_relays_after_segments_double_nothing_and_no_clock_is_believed_blindly(
    spark: ArchiveSession, tmp_path: Path
) -> None:
    """Both ways bring the same messages once, and days are those of UTC wherever Spark runs.

    A segment's relay says that it received them at the end of time: that has no day, and would keep
    them for ever.
    """
    now = int(time.time() * 1000)
    rows = [
        {"relay": "f:1", "namespace": NS, "seq": seq, "header": _header(now, seq).encode(),
         "blob": b"hello", "received_at": MAX_I64, "expires_at": MAX_I64}
        for seq in (1, 2)
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema=RAW.arrow())
    write_segments(tmp_path / "segments", [batch], prefix="1")
    write_segments(tmp_path / "segments", [batch], prefix="11")
    out, zone = tmp_path / "archive", "spark.sql.session.timeZone"
    before = spark.spark.conf.get(zone)
    spark.spark.conf.set(zone, "Pacific/Kiritimati")
    try:
        ingest_segments(spark, segments=tmp_path / "segments", out=out)
        write_segments(tmp_path / "segments", [batch], prefix="2")
        assert ingest_segments(spark, segments=tmp_path / "segments", out=out).rows == 2
        with RelayStore.open(tmp_path / "store", now_ms=now) as store:
            messages = [
                IncomingMessage(header=_header(now, seq), blob=b"hello", parent=NS, received_at=now)
                for seq in (1, 2, 3)
            ]
            store.put_many(messages, now)
            server = RelaySyncServer(store, SyncServerConfig(port=0), clock_ms=lambda: now)
            relay = f"127.0.0.1:{server.start()}"
            done = ingest(spark, relays=[relay], out=out)
            server.stop(0)
    finally:
        spark.spark.conf.set(zone, before or "UTC")

    assert done.messages == 3
    found = DeltaTable(str(out / "messages")).to_pyarrow_table().to_pylist()
    assert sorted((row["seq"], row["copies"]) for row in found) == [(1, 2), (2, 2), (3, 1)]
    assert {row["received_at"] for row in found} == {now}
    raw = DeltaTable(str(out / "raw")).to_pyarrow_table().to_pylist()
    assert len(raw) == 5
    assert max(row["received_at"] for row in raw) < now + 400 * 86_400_000
    for row in raw:
        assert row["date"] == datetime.fromtimestamp(row["ingested_at"] / 1000, UTC).date()
    assert DeltaTable(str(out / "minutes")).to_pyarrow_table().num_rows == 1
