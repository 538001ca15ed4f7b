"""Every table is exactly right, by count and by key, for a corpus in which everything goes wrong.

LUXRELAY_ARCHIVE_MESSAGES sets its size, up to 1,000,000; 20,000 when it is not given.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from importlib.util import module_from_spec, spec_from_file_location
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest

from luxrelay.archive import ArchiveSession, ingest
from luxrelay.archive.folder import ArchiveFolder, open_folder
from luxrelay.archive.pipeline import IngestReport
from luxrelay.archive.proofs import day_root
from luxrelay.archive.schema import (
    CONTENTION,
    GAPS,
    MESSAGES,
    MINUTES,
    NAMESPACES,
    REJECTS,
    ROOTS,
    SENDERS,
    SERVED,
    TABLES,
    Table,
)
from luxrelay.archive.tables import open_table, version_of
from luxrelay.sim import generate_chat
from luxrelay.sync import RelaySyncServer, SyncServerConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]
COUNT = int(os.environ.get("LUXRELAY_ARCHIVE_MESSAGES", "20000"))
TEXTS = Path(__file__).resolve().parents[4] / "shared" / "data" / "ubuntu-irc.jsonl.gz"
EPOCH = date(1970, 1, 1)


def _load_oracle() -> ModuleType:
    path = Path(__file__).parents[2] / "oracle" / "archive.py"
    spec = spec_from_file_location("archive_oracle", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["archive_oracle"] = module
    spec.loader.exec_module(module)
    return module


def _texts() -> list[bytes]:
    """Real chat where it lies beside the checkout, else generated."""
    if not TEXTS.exists():
        return [message.payload() for message in generate_chat(5_000, random.Random(8))]
    with gzip.open(TEXTS, "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"].encode() for line in islice(file, COUNT)]


@dataclass
class Whole:
    """The corpus, its archive and what the two runs said."""

    corpus: Any
    folder: ArchiveFolder
    relays: list[str]
    first: IngestReport
    again: IngestReport
    versions: dict[str, int]

    def rows(self, table: Table, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a table, read by delta-rs."""
        read = open_table(self.folder, table).to_pyarrow_table(columns=list(columns))
        return list(zip(*(read.column(name).to_pylist() for name in columns), strict=True))


@pytest.fixture(scope="module")
def whole(spark: ArchiveSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """Archive the corpus, twice."""
    corpus = _load_oracle().Corpus(COUNT, _texts(), namespaces=max(40, COUNT // 500))
    out = tmp_path_factory.mktemp("whole") / "archive"
    with ExitStack() as stack:
        relays = []
        for store in corpus.stores:
            server = RelaySyncServer(
                store, SyncServerConfig(port=0), clock_ms=lambda: corpus.NOW_MS
            )
            relays.append(f"127.0.0.1:{server.start()}")
            stack.callback(server.stop, 0)

        def run() -> IngestReport:
            done = ingest(
                spark,
                relays=relays,
                out=out,
                heads="latest",
                rows_per_batch=max(100_000, COUNT * 6 // 5),  # a batch costs a second and its rows
                progress=print,
            )
            print(f"{done.rows} rows, {done.messages} messages in {done.seconds:.0f} s")
            return done

        first = run()
        folder = open_folder(out)
        versions = {table.name: version_of(folder, table) for table in TABLES}
        yield Whole(corpus, folder, relays, first, run(), versions)


def test_messages_and_copies(whole: Whole) -> None:
    """Each valid content of a slot stands once, with the relays that served it (21-52)."""
    names = ("namespace_id", "seq", "content_id", "relays", "copies")
    rows = whole.rows(MESSAGES, *names)

    found = {row[:3]: {whole.relays.index(relay) for relay in row[3]} for row in rows}
    assert len(rows) == len(found)
    assert found == whole.corpus.expected.messages
    assert all(row[4] == len(row[3]) for row in rows)


def test_rejects_and_raw(whole: Whole) -> None:
    """Each broken row stands in rejects with its code, and every served row stands in raw."""
    expected = whole.corpus.expected

    rejects = Counter(
        (whole.relays.index(relay), code, header)
        for relay, code, header in whole.rows(REJECTS, "relay", "code", "header")
    )
    served = whole.rows(SERVED, "relay", "code", "header")

    assert rejects == expected.rejects
    assert len(served) == expected.rows
    assert (
        Counter((whole.relays.index(relay), code, header) for relay, code, header in served if code)
        == rejects
    )


def test_contention_and_gaps(whole: Whole) -> None:
    """Contended slots with their candidates, and the holes as ranges, nothing else (H17, P25)."""
    expected = whole.corpus.expected

    rivals = whole.rows(CONTENTION, "namespace_id", "seq", "content_id", "kept", "equivocates")
    gaps = whole.rows(GAPS, "namespace_id", "first", "last", "filled_at")

    assert {row[:3] for row in rivals} == expected.contested()
    assert len(rivals) == 100
    slots = defaultdict(list)
    for namespace, seq, _, kept, equivocates in rivals:
        slots[namespace, seq].append((kept, equivocates))
    # Of two contents of one sender a relay keeps one; of two senders it keeps both (J11).
    assert {tuple(sorted(each)) for each in slots.values()} == {
        ((False, True), (True, True)),
        ((True, False), (True, False)),
    }
    assert {row[:3] for row in gaps} == expected.gaps()
    assert {row[3] for row in gaps} == {None}
    assert whole.first.derived is not None
    assert whole.first.derived.missing == len(expected.holes) == 20


def test_sums_by_day(whole: Whole) -> None:
    """Namespaces, senders, minutes and roots are what plain Python makes of the messages."""
    columns = ("date", "namespace_id", "seq", "content_id", "sender_pub_key", "received_at")
    spaces: dict[Any, list[Any]] = defaultdict(list)
    keys: Counter[Any] = Counter()
    minutes: Counter[int] = Counter()
    for day, namespace, seq, content, key, received in whole.rows(MESSAGES, *columns):
        spaces[day, namespace].append((seq, content))
        keys[day, key] += 1
        minutes[received // 60_000 * 60_000] += 1

    totals = whole.rows(NAMESPACES, "date", "namespace_id", "messages", "slots", "last_seq")
    assert {row[:2]: row[2:] for row in totals} == {
        place: (len(rows), len({seq for seq, _ in rows}), max(rows)[0])
        for place, rows in spaces.items()
    }
    assert dict(keys) == {
        row[:2]: row[2] for row in whole.rows(SENDERS, "date", "sender_pub_key", "messages")
    }
    found = {row[0]: row[1] for row in whole.rows(MINUTES, "minute", "messages") if row[1]}
    assert found == dict(minutes)
    assert sum(row[0] for row in whole.rows(MINUTES, "rejected")) == whole.first.rejected
    roots = whole.rows(ROOTS, "date", "namespace_id", "messages", "root")
    assert {row[:2]: row[2:] for row in roots} == {
        (day, namespace): (len(rows), day_root(namespace, (day - EPOCH).days, rows))
        for (day, namespace), rows in spaces.items()
    }


def test_a_second_run_adds_nothing(whole: Whole) -> None:
    """No table has a new version after it (21-52)."""
    assert whole.again.batches == ()
    assert {table.name: version_of(whole.folder, table) for table in TABLES} == whole.versions


def test_another_engine_counts_the_same(whole: Whole) -> None:
    """DuckDB opens the tables as delta-rs gives them, and agrees with Spark's own numbers."""
    database = duckdb.connect()
    for table in (MESSAGES, REJECTS, SERVED):
        database.register(table.name, open_table(whole.folder, table).to_pyarrow_dataset())

    counts = [
        database.sql(f"SELECT count(*) FROM {table.name}").fetchall()[0][0]  # noqa: S608
        for table in (MESSAGES, REJECTS, SERVED)
    ]
    hot = database.sql(
        "SELECT max(n) FROM (SELECT count(*) AS n FROM messages GROUP BY namespace_id)"
    ).fetchall()

    assert counts == [whole.first.messages, whole.first.rejected, whole.first.rows]
    assert counts[0] == len(whole.corpus.expected.messages)
    assert abs(hot[0][0] - COUNT * 3 // 10) <= 70
