"""Raw rows into checked rows, against bare PyNaCl; questions to tables of growing size.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim. Signatures are the
bottleneck of the archive; the ratio says how much everything else costs beside them: structure,
four hashes, payload, Arrow columns. Copies that several relays serve are verified once, so their
rows go faster than signatures alone. The rest by itself stands beside the five hashes of a row, in
processor time. Ours and the limit take turns; the best round of each counts.

Questions are asked of tables of 10,000 to 1,000,000 rows over ten days, laid out as `compact` lays
them, LUXRELAY_BENCH_ROWS at most. The ratio is against a scan of the whole table for the same
rows, which needs every file; the name says how many files the question had to open.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake
from nacl import bindings
from numpy.typing import NDArray

from luxrelay.archive import decode
from luxrelay.archive.answers import ArchivePage
from luxrelay.archive.decode import check_batch
from luxrelay.archive.folder import MARKER, ArchiveFolder, Marker
from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.rules import GOOD
from luxrelay.archive.schema import MESSAGES, MS_PER_DAY, RAW, prune_key
from luxrelay.archive.tables import prepare_tables
from luxrelay.testing import message_line, signing_key

VERIFIED = 4_000
SLICE = 2_048
"""Rows of one batch, as Spark hands them out."""
SENDERS = 40
BLOB_BYTES = 400
COPIES = 3
ROUNDS = 5
NAMESPACES = 200
IDS = sorted(
    (hashlib.sha3_256(b"%d" % number).digest()[:20] for number in range(NAMESPACES)),
    key=lambda each: prune_key(each) or 0,
)
DAYS = 10
FILES_A_DAY = 4
BEGIN_MS = 1_785_974_400_000


def rows(copies: int) -> pa.RecordBatch:
    """Return a batch in which each message stands as often as relays served it."""
    values = []
    for sender in range(SENDERS):
        line = message_line(
            VERIFIED // SENDERS,
            key=signing_key(number=sender),
            blob=lambda seq: seq.to_bytes(4, "big") * (BLOB_BYTES // 4),
        )
        for message in line:
            header = message.header
            values += [
                {
                    "relay": f"127.0.0.1:{9641 + copy}",
                    "namespace": header.namespace_id,
                    "seq": header.seq,
                    "header": header.encode(),
                    "blob": message.blob,
                    "received_at": header.timestamp + 40,
                    "expires_at": header.timestamp + 600_000,
                }
                for copy in range(copies)
            ]
    return pa.RecordBatch.from_pylist(values, schema=RAW.arrow())


def signatures(batch: pa.RecordBatch) -> list[tuple[bytes, bytes]]:
    """Return what libsodium needs of each row: signature and message in one, and the key."""
    checked = check_batch(batch)
    assert set(checked.column("code").to_pylist()) == {0}
    names = ("signature", "header_hash", "sender_pub_key")
    fields = zip(*(checked.column(name).to_pylist() for name in names), strict=True)
    return [(signature + digest, key[1:]) for signature, digest, key in fields]


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(copies: int, aim: float) -> None:
    """Print the rate of one batch against its signatures alone, one for each row."""
    batch = rows(copies)
    signed = signatures(batch)

    def bare() -> None:
        for joined, key in signed:
            bindings.crypto_sign_open(joined, key)

    ours = limit = float("inf")
    for _ in range(ROUNDS):
        ours = min(ours, seconds(lambda: check_batch(batch)))
        limit = min(limit, seconds(bare))
    name = "decode and verify" + (f", {copies} copies" if copies > 1 else "")
    result = {
        "part": "archive",
        "name": name,
        "value": batch.num_rows / ours,
        "unit": "rows/s",
        "against": "PyNaCl verification of each row",
        "ratio": limit / ours,
        "aim": aim,
    }
    print(json.dumps(result), flush=True)


def processor_seconds(call: Callable[[], object]) -> float:
    """Return how much of a processor a call takes."""
    began = time.process_time()
    call()
    return time.process_time() - began


def measure_unsigned() -> None:
    """Print what everything but signatures costs, against the five hashes of a row alone."""
    batch = rows(1).slice(0, SLICE)
    checked = check_batch(batch)
    names = ("header", "blob", "header_hash", "sender_pub_key")
    columns = [checked.column(name).to_pylist() for name in names]
    pieces = [
        piece
        for header, blob, signed, key in zip(*columns, strict=True)
        for piece in (blob, header, header[:106], header[2:30], signed + key)
    ]
    sha3, kept, name = hashlib.sha3_256, decode._check_signature, "_check_signature"

    def bare() -> None:
        for piece in pieces:
            sha3(piece).digest()

    setattr(decode, name, lambda *_: GOOD)
    try:
        assert set(check_batch(batch).column("code").to_pylist()) == {0}
        ours = limit = float("inf")
        for _ in range(ROUNDS * 10):
            ours = min(ours, processor_seconds(lambda: check_batch(batch)))
            limit = min(limit, processor_seconds(bare))
    finally:
        setattr(decode, name, kept)
    result = {
        "part": "archive",
        "name": "decode, no signatures",
        "value": ours / SLICE * 1e6,
        "unit": "µs CPU/row",
        "against": f"its five SHA3-256 alone: {limit / SLICE * 1e6:.1f} µs",
        "ratio": limit / ours,
        "aim": None,
    }
    print(json.dumps(result), flush=True)


def fill(path: Path, count: int) -> None:
    """Write an archive of unsigned rows: 200 namespaces, ten days, files cut along namespaces."""
    folder = ArchiveFolder(path, Marker(checkpoint="bench", checkpoints=1))
    path.mkdir()
    (path / MARKER).write_text(json.dumps(asdict(folder.marker)))
    prepare_tables(folder)
    rng = np.random.default_rng(8)
    reached = np.zeros(NAMESPACES, np.int64)
    for day in range(DAYS):
        size = count // DAYS
        names = np.sort(rng.integers(0, NAMESPACES, size))
        seqs = reached[names] + np.arange(size) - np.searchsorted(names, names) + 1
        reached += np.bincount(names, minlength=NAMESPACES)
        for part in np.array_split(np.arange(size), FILES_A_DAY):
            rows = day_rows(day, names[part], seqs[part], part * (MS_PER_DAY // size))
            write_deltalake(str(folder.table(MESSAGES)), rows, mode="append")


def day_rows(
    day: int, names: NDArray[np.int64], seqs: NDArray[np.int64], offsets: NDArray[np.int64]
) -> pa.Table:
    """Return rows of one day."""
    count = len(names)
    ids = [IDS[name] for name in names]
    stamps = BEGIN_MS + day * MS_PER_DAY + offsets
    pairs = zip(names, seqs, strict=True)
    made: dict[str, object] = {
        "date": pa.array((stamps // MS_PER_DAY).astype(np.int32)).cast(pa.date32()),
        "namespace_id": ids,
        "namespace_key": [prune_key(each) for each in ids],
        "seq": seqs,
        "timestamp": stamps,
        "content_id": [hashlib.sha3_256(b"%d %d" % pair).digest() for pair in pairs],
        "header": [b"\x01" * 210] * count,
        "blob": [b"a line of chat" * 4] * count,
        "relays": [["a:1"]] * count,
        "finality": [0] * count,
    }
    empty = {pa.int32(): 0, pa.int64(): 0, pa.binary(): b"\x01" * 32}
    for field in MESSAGES.arrow():
        if field.name not in made:
            made[field.name] = [empty.get(field.type)] * count
    return pa.Table.from_pydict(made, schema=MESSAGES.arrow())


def measure_questions(count: int) -> None:
    """Print how long two questions take at one size of the table."""
    with tempfile.TemporaryDirectory(prefix="luxrelay-bench-") as name:
        path = Path(name) / "archive"
        fill(path, count)
        reader = ArchiveReader(path)
        namespace = IDS[NAMESPACES // 2]
        middle = BEGIN_MS + DAYS // 2 * MS_PER_DAY

        def by_namespace() -> ArchivePage:
            return reader.by_namespace(namespace, from_seq=count // NAMESPACES // 2, limit=100)

        def by_time() -> ArchivePage:
            return reader.by_time(middle, middle + 600_000, limit=100)

        def scan() -> object:
            rows = reader.rows(["namespace_id", "timestamp", "seq", "content_id"])
            return rows.filter(pc.equal(rows["namespace_id"], namespace))

        for kind, ask in (("by namespace", by_namespace), ("by time", by_time)):
            ours = limit = float("inf")
            for _ in range(ROUNDS):
                ours, limit = min(ours, seconds(ask)), min(limit, seconds(scan))
            page = ask()
            assert page.messages
            result = {
                "part": "archive",
                "name": f"{count:,} rows {kind}, {page.files} of {page.files_in_all} files",
                "value": ours * 1_000,
                "unit": "ms",
                "against": "a scan of four columns of every file",
                "ratio": limit / ours,
                "aim": None,
            }
            print(json.dumps(result), flush=True)


def main() -> None:
    """Measure rows that stand once, rows that three relays served, and questions."""
    measure(1, 0.75)
    measure(COPIES, 1.75)
    measure_unsigned()
    for count in (10_000, 100_000, 1_000_000):
        if count <= int(os.environ.get("LUXRELAY_BENCH_ROWS", "1000000")):
            measure_questions(count)


if __name__ == "__main__":
    main()
