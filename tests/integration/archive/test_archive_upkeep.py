"""The life of an archive after its first run: an older layout, late messages, age, the law.

One archive goes through everything, because each step costs Spark's time; what its tables hold is
noted after each step, and the tests look at these notes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from luxrelay.archive import ArchiveSession, audit, compact, ingest, retain
from luxrelay.archive.decode import check_batch
from luxrelay.archive.folder import MARKER, open_folder
from luxrelay.archive.pipeline import ingest_segments
from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.refetching import refetch
from luxrelay.archive.schema import MESSAGES, MS_PER_DAY, RAW
from luxrelay.archive.segment_files import write_segments
from luxrelay.archive.tables import file_counts, retired
from luxrelay.archive.upkeep import erase
from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, sha3_commitment
from luxrelay.sync import RelaySyncServer, SyncServerConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]
NOW = 1_785_974_400_000
OLD, YOUNG = NOW - 40 * MS_PER_DAY, NOW - 10 * MS_PER_DAY
A, B = NamespaceId(b"\x0a" * 20), NamespaceId(b"\x0b" * 20)
KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"\x21" * 32)
ADDED = {
    "finality",
    "parent_id",
    "namespace_key",
    "sender_key",
    "verdict",
    "policy_version",
    "retention",
}
"""Columns that the first version of the table had not."""


def _load_oracle() -> ModuleType:
    path = Path(__file__).parents[2] / "oracle" / "archive.py"
    spec = spec_from_file_location("archive_oracle", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["archive_oracle"] = module
    spec.loader.exec_module(module)
    return module


ORACLE = _load_oracle()


def _row(namespace: NamespaceId, seq: int, stamp: int) -> Any:
    blob = b"%d" % seq
    header = KEY.sign_header(
        MsgHeader(
            namespace_id=namespace,
            seq=seq,
            timestamp=stamp,
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=b"p" * 32,
        )
    )
    return ORACLE.Row(seq, header.encode(), blob, stamp + 9, stamp + 600_000, namespace)


def _older_archive(path: Path, rows: list[Any]) -> None:
    """Write an archive as the first version did: fewer columns, and a file for each message."""
    path.mkdir()
    (path / "checkpoints" / "gone").mkdir(parents=True)
    marker = {"format": "luxrelay-archive", "version": 1, "checkpoint": "gone", "checkpoints": 1}
    (path / MARKER).write_text(json.dumps(marker))
    names = [name for name in MESSAGES.names if name not in ADDED]
    for row in rows:
        raw = {
            "relay": "a:1", "namespace": row.namespace_id, "seq": row.seq, "blob": row.blob,
            "header": row.header_bytes, "received_at": row.received_at,
            "expires_at": row.expires_at,
        }  # fmt: skip
        (checked,) = check_batch(pa.RecordBatch.from_pylist([raw], schema=RAW.arrow())).to_pylist()
        made = checked | {"latency_ms": 9, "copies": 1, "relays": ["a:1"], "ingested_at": OLD}
        table = pa.Table.from_pylist([made], schema=MESSAGES.arrow()).select(names)
        write_deltalake(
            str(path / "messages"), table, mode="append", partition_by=list(MESSAGES.partition_by)
        )


@dataclass
class Life:
    """What was seen after each step."""

    slots: dict[str, list[tuple[bytes, int]]] = field(default_factory=dict)
    gaps: dict[str, list[tuple[bytes, int, int, bool]]] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)

    def note(self, step: str, out: Path, said: Any = None) -> None:
        """Look at the tables."""
        messages = DeltaTable(str(out / "messages")).to_pyarrow_table(
            columns=["namespace_id", "seq"]
        )
        self.slots[step] = sorted((row["namespace_id"], row["seq"]) for row in messages.to_pylist())
        gaps = DeltaTable(str(out / "gaps")).to_pyarrow_table().to_pylist()
        self.gaps[step] = sorted(
            (row["namespace_id"], row["first"], row["last"], row["filled_at"] is None)
            for row in gaps
        )
        self.said[step] = said


def _on_disk(out: Path, namespace: bytes) -> set[str]:
    """Return the tables of which a file, of whatever version, names a namespace."""
    found = set()
    for file in out.rglob("*.parquet"):
        table = file.relative_to(out).parts[0]
        rows = pq.ParquetFile(file).read()
        for name in {"namespace_id", "namespace"} & set(rows.column_names):
            if namespace in rows.column(name).to_pylist():
                found.add(table)
    return found


@pytest.fixture(scope="module")
def life(spark: ArchiveSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """Take one archive through its life."""
    path = tmp_path_factory.mktemp("life")
    out, seen = path / "archive", Life()
    _older_archive(out, [_row(A, seq, OLD + seq) for seq in (1, 2, 3, 4)])
    store = ORACLE.ListStore()
    for seq in (5, 6, 8):
        store.add(_row(A, seq, YOUNG + seq))
    for seq in (1, 2):
        store.add(_row(B, seq, YOUNG + seq))
    store.close()
    with ExitStack() as stack:
        server = RelaySyncServer(
            store, SyncServerConfig(port=0), clock_ms=lambda: NOW, handoff=store
        )
        relay = f"127.0.0.1:{server.start()}"
        stack.callback(server.stop, 0)
        # The hole at 7 has been there for days, so it is given up although heads are contiguous.
        seen.note("ingest", out, ingest(spark, relays=[relay], out=out, handoff=True))
        seen.said["watermarks"] = dict(store.watermarks)
        seen.said["columns"] = DeltaTable(str(out / "messages")).to_pyarrow_table().to_pylist()
        before = file_counts(open_folder(out), MESSAGES)
        seen.note("compact", out, compact(spark, out=out))
        seen.said["files"] = (before, file_counts(open_folder(out), MESSAGES))
        store.add(_row(A, 7, YOUNG + 7))
        store.close()
        seen.note("refetch", out, refetch(spark, out=out, relays=[relay]))
        seen.note("retain", out, retain(spark, out=out, now_ms=NOW))
        seen.said["retired"] = retired(open_folder(out))
        seen.said["on disk before"] = _on_disk(out, B)
        seen.note("erase", out, erase(spark, out=out, namespace_id=B, now_ms=NOW))
        seen.said["on disk"] = _on_disk(out, B)
        raw = [
            {"relay": "f:1", "namespace": row.namespace_id, "seq": row.seq, "blob": row.blob,
             "header": row.header_bytes, "received_at": row.received_at,
             "expires_at": row.expires_at}
            for row in (_row(A, 8, YOUNG + 8), _row(A, 9, YOUNG + 9), _row(B, 3, YOUNG + 3))
        ]  # fmt: skip
        batch = pa.RecordBatch.from_pylist(raw, schema=RAW.arrow())
        write_segments(path / "segments", [batch], prefix="1")
        seen.note("segments", out, ingest_segments(spark, segments=path / "segments", out=out))
        seen.said["audit"] = audit(spark, out=out, relays=[relay])
        seen.said["proof"] = [
            reader.prove(message)
            for reader in [ArchiveReader(out)]
            for message in reader.by_namespace(A).messages
        ]
        yield seen


def _all_of(namespace: bytes, *seqs: int) -> list[tuple[bytes, int]]:
    return [(bytes(namespace), seq) for seq in seqs]


def test_an_older_archive_gets_the_new_columns(life: Life) -> None:
    """Its rows stay, with null in what was not known then; new rows have everything."""
    rows = {(row["namespace_id"], row["seq"]): row for row in life.said["columns"]}

    assert set(rows) == set(_all_of(A, 1, 2, 3, 4, 5, 6, 8) + _all_of(B, 1, 2))
    assert all(rows[bytes(A), 1][name] is None for name in ADDED)
    assert rows[bytes(A), 5]["verdict"] == 1214
    assert rows[bytes(A), 5]["parent_id"] == A


def test_a_hole_does_not_hold_the_archive_up_and_is_filled_later(life: Life) -> None:
    """What lies behind it is read, it stands in gaps, and refetching closes it (H16, J8)."""
    assert (bytes(A), 7, 7, True) in life.gaps["ingest"]
    assert life.said["refetch"].messages == 1
    assert (life.said["refetch"].asked, life.said["refetch"].missing) == (1, 0)
    assert (bytes(A), 7, 7, False) in life.gaps["refetch"]
    assert (bytes(A), 7) in life.slots["refetch"]


def test_relays_are_told_how_far_the_archive_is(life: Life) -> None:
    """Watermarks stand where the checkpoint does (J8, 21-51)."""
    assert life.said["ingest"].handoff.refused == {}
    assert life.said["watermarks"] == {A: 8, B: 2}


def test_compaction_changes_no_row(life: Life) -> None:
    """Fewer files for the day that had many, the others as they were."""
    before, after = life.said["files"]

    assert life.slots["compact"] == life.slots["ingest"]
    assert max(before.values()) == 4
    assert set(after.values()) <= {1, 2}
    assert life.said["compact"].compacted >= 1


def test_retention_takes_what_is_past_its_class_and_nothing_younger(life: Life) -> None:
    """What it took is retired and no gap (J2)."""
    assert life.said["retain"].messages == 4
    assert life.slots["retain"] == _all_of(A, 5, 6, 7, 8) + _all_of(B, 1, 2)
    assert life.said["retired"] == {bytes(A): 4}
    assert [gap for gap in life.gaps["retain"] if gap[3]] == []


def test_what_is_erased_is_gone_from_the_disk_and_never_comes_back(life: Life) -> None:
    """No table holds it, no file does, and another source cannot bring it (legal deletion)."""
    assert life.said["erase"].messages == 2
    assert life.slots["erase"] == _all_of(A, 5, 6, 7, 8)
    assert {"messages", "raw", "namespaces", "roots"} <= life.said["on disk before"]
    assert life.said["on disk"] == {"retired"}
    assert life.slots["segments"] == _all_of(A, 5, 6, 7, 8, 9)


def test_segments_bring_what_is_new_once(life: Life) -> None:
    """A message that a relay served is not doubled by a file (21-52)."""
    assert life.said["segments"].messages == 2
    assert life.said["audit"].duplicates == 0
    assert life.said["audit"].missing == 0


def test_every_message_is_proven_in_the_end(life: Life) -> None:
    """Roots follow each change of a day."""
    assert len(life.said["proof"]) == 5
    assert all(life.said["proof"])
