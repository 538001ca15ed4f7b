"""A relay that dies, and one that forgets, while a run reads them: what is lost stands in gaps."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from deltalake import DeltaTable

from luxrelay.archive import ArchiveSession, ingest
from luxrelay.archive.batches import BatchReport
from luxrelay.archive.refetching import refetch
from luxrelay.errors import ArchiveError
from luxrelay.sync import RelaySyncServer, SyncServerConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]


def _load_oracle() -> ModuleType:
    path = Path(__file__).parents[2] / "oracle" / "archive.py"
    spec = spec_from_file_location("archive_oracle", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["archive_oracle"] = module
    spec.loader.exec_module(module)
    return module


class Relays:
    """Three relays with a corpus."""

    def __init__(self) -> None:
        self.oracle = _load_oracle()
        self.corpus = self.oracle.Corpus(
            600, [b"what relays say"], namespaces=6, holes=4, contended=4
        )
        self._servers: list[RelaySyncServer] = []
        self.addresses: list[str] = []
        for store in self.corpus.stores:
            self._servers.append(self._server(store, 0))
            self.addresses.append(f"127.0.0.1:{self._servers[-1].start()}")

    def _server(self, store: Any, port: int) -> RelaySyncServer:
        return RelaySyncServer(
            store, SyncServerConfig(port=port), clock_ms=lambda: self.corpus.NOW_MS
        )

    def kill(self, number: int) -> None:
        """Let one go away in the middle of whatever it does."""
        self._servers[number].stop(0)

    def revive(self, number: int) -> None:
        """Let it come back where it was."""
        port = int(self.addresses[number].rpartition(":")[2])
        self._servers[number] = self._server(self.corpus.stores[number], port)
        self._servers[number].start()

    def forget(self, namespace: bytes, up_to: int) -> None:
        """Let all of them forget the beginning of a namespace."""
        for store in self.corpus.stores:
            rows = store.rows[namespace]
            rows[:] = [row for row in rows if row.seq > up_to]
            store.close()

    def stop(self) -> None:
        """End all."""
        for server in self._servers:
            server.stop(0)


@pytest.fixture
def relays(spark: ArchiveSession) -> Iterator[Relays]:
    """Relays that end with the test; Spark comes first, because starting it forks."""
    del spark
    with ExitStack() as stack:
        served = Relays()
        stack.callback(served.stop)
        yield served


def _rows(out: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    read = DeltaTable(str(out / table)).to_pyarrow_table(columns=list(columns))
    return list(zip(*(read.column(name).to_pylist() for name in columns), strict=True))


def _archived(out: Path) -> set[tuple[bytes, int, bytes]]:
    rows = _rows(out, "messages", "namespace_id", "seq", "content_id")
    assert len(rows) == len(set(rows)), "a message stands twice"
    return set(rows)


def _missing(out: Path) -> set[tuple[bytes, int]]:
    gaps = _rows(out, "gaps", "namespace_id", "first", "last", "filled_at")
    return {
        (name, seq)
        for name, first, last, filled in gaps
        if filled is None
        for seq in range(first, last + 1)
    }


def _after_the_first(batch: BatchReport, call: Callable[[], None]) -> None:
    if batch.batch == 0:
        call()


def test_a_relay_killed_in_mid_run_loses_nothing_for_good(
    spark: ArchiveSession, relays: Relays, tmp_path: Path
) -> None:
    """What it alone held stands in gaps, and is read when it has come back (P26, J8)."""
    out, expected = tmp_path / "archive", set(relays.corpus.expected.messages)

    run = ingest(
        spark, relays=relays.addresses, out=out, heads="latest", rows_per_batch=300,
        progress=lambda batch: _after_the_first(batch, lambda: relays.kill(1)),
    )  # fmt: skip
    archived = _archived(out)
    lost = {key[:2] for key in expected - archived}
    assert set(run.unread) == {relays.addresses[1]}
    assert archived < expected
    assert _missing(out) == lost | relays.corpus.expected.holes

    relays.revive(1)
    refetch(spark, out=out, relays=relays.addresses)

    assert _archived(out) == expected
    assert _missing(out) == relays.corpus.expected.holes


def test_what_relays_forget_in_mid_run_stands_in_gaps(
    spark: ArchiveSession, relays: Relays, tmp_path: Path
) -> None:
    """The window passes what was not read: the run stops, and on request goes on around it (J8)."""
    out, expected = tmp_path / "archive", relays.corpus.expected
    ((hot, _),) = Counter(key[0] for key in expected.messages).most_common(1)
    known = set(expected.messages)

    with pytest.raises(ArchiveError, match="were forgotten") as caught:
        ingest(
            spark, relays=relays.addresses, out=out, heads="latest", rows_per_batch=300,
            progress=lambda batch: _after_the_first(batch, lambda: relays.forget(hot, 150)),
        )  # fmt: skip
    assert caught.value.code == "archive.data_loss"
    ingest(spark, relays=relays.addresses, out=out, heads="latest", fail_on_data_loss=False)

    archived = _archived(out)
    lost = {key[:2] for key in known - archived}
    assert archived <= known
    assert lost
    assert all(name == hot and seq <= 150 for name, seq in lost)
    assert _missing(out) == lost | expected.holes
