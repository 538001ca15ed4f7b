"""Forgetting: how fast what is past its time goes, and what a put waits for beside it.

Deletion is measured twice: slices that are past as a whole, which are dropped, and half of a slice,
which is swept message by message. Puts of one message are measured alone and beside each of both.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from messages import NOW, Arrival, arrivals, checked, percentile, result

from luxrelay.store import Durability, IncomingMessage, RelayStore, RelayStoreConfig

AGED = int(os.environ.get("LUXRELAY_BENCH_AGED", "300000"))
"""Messages of the deletion figure; 1,000,000 in a long run."""
BATCH = 256
BLOB_BYTES = 200
SWEPT = 20_000
"""Messages that a sweep removes."""
SPANS = 10
"""Slices of the deletion figure, a minute each; all but one are past."""
TTL_MS = 600_000
MINUTE_MS = 60_000
LARGE = RelayStoreConfig(
    durability=Durability.OS,
    gc_batch_limit=10_000_000,
    namespace_quota_bytes=2**40,
    max_storage_bytes=2**40,
)


def disk_bytes(folder: Path) -> int:
    """Return the bytes of all table files."""
    return sum(path.stat().st_size for path in folder.rglob("*.sst"))


def batches(messages: Iterator[Arrival]) -> Iterator[list[Arrival]]:
    """Yield them as lists of `BATCH`."""
    while each := list(islice(messages, BATCH)):
        yield each


def fill(store: RelayStore, count: int) -> int:
    """Put messages of one lane in ten spans of a minute; return the bytes of one."""
    apart_ms = SPANS * MINUTE_MS / count
    arrived = arrivals(count, 1, BLOB_BYTES, apart_ms=apart_ms)
    for each in batches(arrived):
        store.put_many(checked(each), NOW)
    return len(next(arrivals(1, 1, BLOB_BYTES)).header) + BLOB_BYTES


def puts(store: RelayStore, messages: Iterator[IncomingMessage], now_ms: int) -> Iterator[float]:
    """Yield what `put_many` of one message takes, seconds."""
    for message in messages:
        began = time.perf_counter()
        store.put_many([message], now_ms)
        yield time.perf_counter() - began


def beside(
    store: RelayStore, now_ms: int, messages: list[IncomingMessage]
) -> tuple[list[float], list[float], float]:
    """Return latencies of puts alone and beside a cycle, and messages that it removed a second."""
    coming = iter(messages)
    alone = list(puts(store, islice(coming, 2_000), now_ms))
    rates: list[float] = []

    def cycle() -> None:
        began = time.perf_counter()
        removed = store.expire(now_ms).removed_count
        rates.append(removed / (time.perf_counter() - began))

    running = threading.Thread(target=cycle)
    taken = []
    running.start()
    for spent in puts(store, coming, now_ms):
        taken.append(spent)
        if not running.is_alive():
            break
    running.join()
    return alone, taken, rates[0]


def fresh(now_ms: int, count: int) -> list[IncomingMessage]:
    """Return messages of other lanes that arrive one by one at ``now_ms``."""
    return [
        IncomingMessage(header=each.header, blob=each.blob, parent=each.parent, received_at=now_ms)
        for each in checked(
            arrivals(count, 2, BLOB_BYTES, apart_ms=0, later_ms=now_ms - NOW, keys_from=100)
        )
    ]


def latencies(
    name: str, figures: tuple[list[float], list[float], float]
) -> Iterator[dict[str, Any]]:
    """Yield the median and the 99th percentile of puts beside something."""
    alone, taken, _ = figures
    for share, word in ((0.5, "p50"), (0.99, "p99")):
        ours, theirs = percentile(taken, share), percentile(alone, share)
        yield result(
            f"put of one message beside {name}, {word}",
            1 / ours,
            f"alone, {word} {theirs * 1e6:,.0f} us",
            1 / theirs,
            0.0,
            unit="puts/s",
        )


def dropping(folder: Path) -> Iterator[dict[str, Any]]:
    """Measure slices that go whole, with nobody beside and with puts beside."""
    with RelayStore.open(folder / "alone", LARGE, now_ms=NOW) as store:
        size = fill(store, AGED)
    past = NOW + TTL_MS + (SPANS - 1) * MINUTE_MS
    with RelayStore.open(folder / "alone", LARGE, now_ms=NOW) as store:  # all is in table files
        before = disk_bytes(folder)
        began = time.perf_counter()
        removed = store.expire(past).removed_count
        spent = time.perf_counter() - began
        left = disk_bytes(folder)
    name = f"delete {removed:,} aged of {AGED:,} messages"
    yield result(name, removed / spent, "450,000 a second", 450_000, 1.0)
    given = (before - left) / before
    yield result("disk given back by it", given, "nine tenths", 0.9, 0.95, unit="share")
    yield result("disk a message", before / AGED, "its own bytes", size, 0.0, unit="bytes")
    with RelayStore.open(folder / "beside", LARGE, now_ms=NOW) as store:
        fill(store, AGED // 3)
        figures = beside(store, past, fresh(past, 20_000))
    yield from latencies("a cycle that drops nine slices", figures)


def sweeping(folder: Path) -> Iterator[dict[str, Any]]:
    """Measure a slice of which half is past, with nobody beside and with puts beside."""
    half = NOW + TTL_MS + MINUTE_MS // 2
    rates, figures = [], None
    for name in ("alone", "beside"):
        with RelayStore.open(folder / name, LARGE, now_ms=NOW) as store:
            arrived = arrivals(2 * SWEPT, 8, BLOB_BYTES, apart_ms=MINUTE_MS / (2 * SWEPT + 1))
            for each in batches(arrived):
                store.put_many(checked(each), NOW)
            if name == "alone":
                began = time.perf_counter()
                removed = store.expire(half).removed_count
                rates.append(removed / (time.perf_counter() - began))
            else:
                figures = beside(store, half, fresh(half, 20_000))
    against = "450,000 a second"
    yield result("deletion cycle, half of one slice", rates[0], against, 450_000, 0.0)
    assert figures is not None
    yield from latencies("a cycle that sweeps half a slice", figures)


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp(prefix="luxrelay-bench-"))
    try:
        for measure in (dropping, sweeping):
            for row in measure(place / measure.__name__):
                print(json.dumps(row), flush=True)
            shutil.rmtree(place / measure.__name__, ignore_errors=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
