"""How the store's cost grows: the same figures at 10,000, 100,000 and 1,000,000 stored messages.

Messages of 200 bytes in eight lanes come over ten minutes, a minute a slice. At each size: ingest
is that of the last 10,000 messages before it; a point read is one `get_messages` of one id that is
not in the hot cache; the scan reads a lane to its end by pages of 1,000 (100,000 messages at most);
deletion drops the nine slices of ten that are past; disk is the table files after the store was
opened again, memory what the process grew by from the empty store to the full one. Each size has a
process of its own. Writes ``docs/explanation/store-growth.json`` when it is given as an argument.

The load average of the last quarter of an hour is written beside them.

Prints one JSON line a result, each against the figure at the smallest size; above 1 is better.
"""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from messages import NOW, arrivals, checked, percentile, result

from luxrelay.bus import MessageId, NamespaceId
from luxrelay.store import Durability, NamespaceQuery, RelayStore, RelayStoreConfig

SIZES = [
    int(text) for text in os.environ.get("LUXRELAY_BENCH_GROWTH", "10000,100000,1000000").split(",")
]
BATCH = 250
LANES = 8
BLOB_BYTES = 200
MEASURED = 10_000
"""Messages whose ingest is measured."""
READS = 5_000
SCANNED_MAX = 100_000
SPAN_MS = 600_000
"""Over which messages come: ten slices."""
TTL_MS = 600_000
LARGE = RelayStoreConfig(
    durability=Durability.OS,
    max_storage_bytes=2**40,
    namespace_quota_bytes=2**40,
    gc_batch_limit=10_000_000,
)
UNITS = {
    "ingest": "messages/s",
    "point read p50": "us",
    "point read p99": "us",
    "scan": "messages/s",
    "delete": "messages/s",
    "disk": "bytes/message",
    "memory": "bytes/message",
}
"""Every figure; what is a rate grows when it gets better, the others shrink."""


def resident_bytes() -> int:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def ingest(store: RelayStore, count: int) -> tuple[float, list[MessageId], NamespaceId]:
    """Return messages a second at the end, ids of some, and a lane."""
    arrived = arrivals(count, LANES, BLOB_BYTES, apart_ms=SPAN_MS / count)
    rng, spent, done = random.Random(1), 0.0, 0
    ids: list[MessageId] = []
    for some in iter(lambda: list(islice(arrived, BATCH)), []):
        messages = checked(some)
        ids += [m.header.message_id for m in messages if rng.random() < READS / count]
        began = time.perf_counter()
        store.put_many(messages, NOW)
        if done >= count - MEASURED:
            spent += time.perf_counter() - began
        done += len(messages)
    return min(MEASURED, count) / spent, ids, messages[-1].header.namespace_id


def reads(store: RelayStore, ids: list[MessageId], now_ms: int) -> dict[str, float]:
    """Return what a read takes, and what the slowest hundredth takes at least, microseconds."""
    taken = []
    for wanted in random.Random(2).choices(ids, k=READS):
        began = time.perf_counter()
        found, _ = store.get_messages([wanted], now_ms)
        taken.append(time.perf_counter() - began)
        assert found
    return {f"point read p{share}": percentile(taken, share / 100) * 1e6 for share in (50, 99)}


def scan(store: RelayStore, lane: NamespaceId, now_ms: int) -> float:
    """Return messages a second of a lane, page by page, with blobs."""
    began, count, cursor = time.perf_counter(), 0, b""
    while count < SCANNED_MAX:
        query = NamespaceQuery(namespace_id=lane, cursor=cursor, limit=1_000)
        page = store.query(query, now_ms)
        count += len(page.messages)
        cursor = page.next_cursor
        if not page.has_more:
            break
    return count / (time.perf_counter() - began)


def one(folder: Path, count: int) -> dict[str, float]:
    """Return every figure at one size."""
    figures = {}
    with RelayStore.open(folder, LARGE, now_ms=NOW) as store:
        before = resident_bytes()
        figures["ingest"], ids, lane = ingest(store, count)
        figures["memory"] = (resident_bytes() - before) / count
    later = NOW + SPAN_MS - 1
    with RelayStore.open(folder, LARGE, now_ms=NOW) as store:  # all rows are in table files
        files = [path.stat().st_size for path in folder.rglob("*.sst")]
        figures["disk"] = sum(files) / count
        figures |= reads(store, ids, NOW)
        figures["scan"] = scan(store, lane, NOW)
        began = time.perf_counter()
        removed = store.expire(later + TTL_MS - SPAN_MS // 10).removed_count
        figures["delete"] = removed / (time.perf_counter() - began)
        assert 0.85 * count < removed < 0.95 * count, removed
    return figures


def measured(count: int) -> dict[str, float]:
    """Return the figures of a process of its own."""
    with tempfile.TemporaryDirectory(prefix="luxrelay-bench-") as folder:
        call = [sys.executable, "-W", "ignore", __file__, "--one", str(count), folder]
        done = subprocess.run(call, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def rows(sizes: dict[int, dict[str, float]]) -> list[dict[str, Any]]:
    """Return one result a figure and size."""
    first = min(sizes)
    found = []
    for count, figures in sizes.items():
        for name, unit in UNITS.items():
            ours, theirs = figures[name], sizes[first][name]
            row = result(
                f"{name} at {count:,} stored", ours, f"at {first:,}", theirs, 0.0, unit=unit
            )
            if not unit.endswith("/s"):
                row["ratio"] = theirs / ours
            found.append(row)
    return found


def main() -> None:
    """Measure every size, or one of them for the process that asked."""
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(Path(sys.argv[3]) / "store", int(sys.argv[2]))))
        return
    sizes = {count: measured(count) for count in SIZES}
    for row in rows(sizes):
        print(json.dumps(row), flush=True)
    if sys.argv[1:]:
        python = platform.python_version()
        report = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {python}",
            "load": round(os.getloadavg()[2], 1),
            "units": UNITS,
            "sizes": sizes,
        }
        Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
