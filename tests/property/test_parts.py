"""Copies of messages become one row each: against a plain statement of the rule."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from luxrelay.archive.decode import check_batch
from luxrelay.archive.part_files import PartReport, PartWriter
from luxrelay.archive.schema import MESSAGES, RAW, REJECTS, SERVED, WRITTEN, Table
from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, sha3_commitment

T0 = 1_704_067_200_000
KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"\x07" * 32)


def _header(seq: int) -> bytes:
    header = MsgHeader(
        namespace_id=NamespaceId(b"n" * 20),
        seq=seq,
        timestamp=T0 + seq * 40_000_000,  # a day has two or three
        blob_commitment=sha3_commitment(b"%d" % seq),
        blob_len=1,
        policy_hash=b"p" * 32,
    )
    return KEY.sign_header(header).encode()


HEADERS = [_header(seq) for seq in range(1, 6)]


class Served(NamedTuple):
    """One row as a relay served it."""

    message: int
    relay: str
    payload: bool
    good: bool
    received_at: int
    expires_at: int

    def raw(self) -> dict[str, Any]:
        """Return it as a row of ``RAW``."""
        blob = b"%d" % (self.message + 1) if self.good else b"broken"
        return {
            "relay": self.relay,
            "namespace": b"n" * 20,
            "seq": self.message + 1,
            "header": HEADERS[self.message],
            "blob": blob if self.payload or not self.good else None,
            "received_at": T0 + self.received_at,
            "expires_at": T0 + self.expires_at,
            "finality": 0,
        }


ROWS = st.lists(
    st.builds(
        Served,
        message=st.integers(0, len(HEADERS) - 1),
        relay=st.sampled_from(["a:1", "b:1", "c:1"]),
        payload=st.booleans(),
        good=st.sampled_from([True, True, True, False]),
        received_at=st.integers(0, 3),
        expires_at=st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


def _check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield check_batch(batch)


def _rows(folder: Path, report: PartReport, table: Table) -> list[dict[str, Any]]:
    """Return what a table would hold after the commit, straight from its files."""
    found: list[dict[str, Any]] = []
    for file in report.files:
        if file.table == table.name:
            rows = pq.ParquetFile(folder / table.name / file.path).read().to_pylist()
            assert len(rows) == file.rows
            found += rows
    return found


@settings(max_examples=25, deadline=None)
@given(
    rows=ROWS,
    size=st.integers(2, 8),
    held_bytes=st.sampled_from([1, 3_000, 1 << 30]),
    file_bytes=st.sampled_from([1, 3_000, 1 << 30]),
)
def test_copies_become_one_row(
    rows: list[Served], size: int, held_bytes: int, file_bytes: int
) -> None:
    """However rows lie in batches, files and memory, and whatever else stands among them."""
    raw = pa.Table.from_pylist([row.raw() for row in rows], schema=RAW.arrow())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for table in WRITTEN:
            (folder / table.name).mkdir()
        write = PartWriter(
            folder=folder, check=_check, now_ms=T0, held_bytes=held_bytes, file_bytes=file_bytes
        )
        (part,) = write(raw.to_batches(max_chunksize=size))
        report = PartReport.decode(part.column("part")[0].as_py())
        served, messages, rejects = (
            _rows(folder, report, table) for table in (SERVED, MESSAGES, REJECTS)
        )

    copies: dict[int, list[Served]] = defaultdict(list)
    for row in rows:
        if row.good:
            copies[row.message].append(row)
    assert report.messages == len(copies)
    assert len(served) == len(rows)
    assert len(rejects) == sum(not row.good for row in rows)
    assert {row["header"]: row for row in messages}.keys() == {HEADERS[each] for each in copies}
    assert len(messages) == len(copies)
    for row in messages:
        known = copies[row["seq"] - 1]
        assert row["relays"] == sorted({each.relay for each in known})
        assert row["copies"] == len(row["relays"])
        assert row["received_at"] == T0 + min(each.received_at for each in known)
        assert row["expires_at"] == T0 + max(each.expires_at for each in known)
        assert row["latency_ms"] == row["received_at"] - row["timestamp"]
        held = any(each.payload for each in known)
        assert row["blob"] == (b"%d" % row["seq"] if held else None)
