"""A store notices at its opening that it holds less than it did."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import NamespaceId
from luxrelay.errors import StoreError
from luxrelay.store import RelayStore, RelayStoreConfig
from luxrelay.store.durability import marks
from luxrelay.store.durability.marks import (
    HEADS_MAX,
    MARK,
    NAMED_MAX,
    Loss,
    Mark,
    MarkWriter,
)
from luxrelay.store.ledger import Ledger
from luxrelay.store.namespaces import NamespaceState
from luxrelay.store.rocks import Database
from luxrelay.store.writing.writer import Recent

Opener = Callable[..., RelayStore]
NAMES = st.binary(min_size=20, max_size=20).map(NamespaceId)


@given(
    sequence=st.integers(0, 2**64),
    heads=st.dictionaries(NAMES, st.integers(0, 2**64 - 1), max_size=5),
    clean=st.booleans(),
)
def test_a_mark_comes_back(sequence: int, heads: dict[NamespaceId, int], clean: bool) -> None:
    """decode(encode(mark)) is the mark."""
    mark = Mark(sequence=sequence, messages=3, heads=heads, others=1, clean=clean)

    assert Mark.decode(mark.encode()) == mark


@given(st.binary(max_size=200), st.integers(0, 300), st.integers(1, 255))
def test_a_damaged_mark_is_refused(rubbish: bytes, position: int, flip: int) -> None:
    """Any byte changed, or any other bytes, give our error and nothing else."""
    data = bytearray(Mark(sequence=7, messages=3, heads={NamespaceId(b"n" * 20): 4}).encode())
    data[position % len(data)] ^= flip
    with pytest.raises(StoreError):
        Mark.decode(bytes(data))
    with suppress(StoreError):
        Mark.decode(rubbish)


def test_the_largest_mark_is_read(tmp_path: Path) -> None:
    """A mark with as many names as it may have fits into what is read (HEADS_MAX)."""
    heads = {NamespaceId(n.to_bytes(20, "big")): 2**64 - 1 for n in range(HEADS_MAX)}
    mark = Mark(sequence=2**64, messages=2**40, heads=heads)
    marks.write(tmp_path, mark)

    assert marks.read(tmp_path) == mark


def test_more_names_are_counted(database: Database) -> None:
    """A mark names the namespaces written last; of the others it has the number."""
    names = [NamespaceId(n.to_bytes(20, "big")) for n in range(HEADS_MAX + 3)]
    ledger, recent = Ledger.load(database), Recent()
    states = [NamespaceState(namespace_id=name, parent=name, latest=4) for name in names]
    ledger.publish(states, 0, 0)
    recent.wrote(names)
    recent.wrote(names[3:5])

    mark = recent.mark(9, ledger)

    assert dict(mark.heads) == dict.fromkeys(names[3:], 4)
    assert mark.others == 3


def wait_for_mark(store: RelayStore) -> None:
    """Return when what was written before is marked: a mark that was under way may not know it."""
    marked = threading.Semaphore(0)
    marker = store._marker
    assert marker is not None
    after = marker.after

    def then() -> None:
        after()
        marked.release()

    marker.after = then
    for _ in range(2):
        marker.touch()
        assert marked.acquire(timeout=30)
    marker.after = after


@pytest.mark.parametrize("durability", ["fsync", "group", "os"])
def test_what_the_log_lost_is_named(
    forge: Any, tmp_path: Path, parent: Any, now: int, durability: str
) -> None:
    """A log cut by a crash: how many rows, messages, and which sequences (ADR 0006 §4)."""
    config = RelayStoreConfig(
        durability=durability,  # type: ignore[arg-type]  # as a file gives it
        mark_interval_ms=1,
    )
    with RelayStore.open(tmp_path / "store", config, now_ms=now) as store:
        store.put_many([forge.message(seq) for seq in (1, 2)], now)
        wait_for_mark(store)
        shutil.copytree(tmp_path / "store" / "db", tmp_path / "early")
        store.put_many([forge.message(seq) for seq in (3, 4, 5)], now)
        wait_for_mark(store)
        mark = (tmp_path / "store" / MARK).read_bytes()
    shutil.rmtree(tmp_path / "store" / "db")
    (tmp_path / "early").rename(tmp_path / "store" / "db")
    (tmp_path / "store" / MARK).write_bytes(mark)

    for open_again in (RelayStore.open_read_only, RelayStore.open):
        with open_again(tmp_path / "store", config, now_ms=now) as store:
            assert store.loss is not None
            assert store.loss.rows > 3
            assert store.loss.messages == 3
            assert dict(store.loss.namespaces) == {parent: (2, 5)}
            assert any("reached sequence 5, now 2" in line for line in store.loss.lines())
    with RelayStore.open(tmp_path / "store", config, now_ms=now) as store:
        assert store.loss is None  # it was said once, and is caught up with


def test_nothing_is_missing_after_a_close(forge: Any, open_store: Opener, now: int) -> None:
    """A closed store has lost nothing, and says so."""
    store = open_store()
    assert store.loss is None
    store.put_many([forge.message(1)], now)
    store.close()

    assert open_store().loss is None


def test_a_damaged_mark_is_said(forge: Any, open_store: Opener, tmp_path: Path, now: int) -> None:
    """A mark that cannot be read does not stop the store, and does not go unnoticed."""
    store = open_store()
    store.put_many([forge.message(1)], now)
    store.close()
    (tmp_path / "store" / MARK).write_bytes(b"rubbish")
    store = open_store()

    assert store.loss is not None
    assert store.loss.unreadable
    assert "mark" in store.loss.lines()[0]
    assert store.stats().messages == 1


def test_a_report_is_bounded() -> None:
    """No more than NAMED_MAX namespaces are named."""
    names = {NamespaceId(n.to_bytes(20, "big")): (1, 2) for n in range(NAMED_MAX + 2)}
    lines = Loss(rows=9, messages=1, namespaces=names, others=3).lines()

    assert len(lines) == NAMED_MAX + 2
    assert lines[-1].startswith("5 more namespaces")


def test_a_disk_that_refuses_the_mark_ends_nothing(tmp_path: Path) -> None:
    """The marker tries again at the next write."""
    folder = tmp_path / "later"
    failed = threading.Event()

    def take() -> Mark:
        failed.set()
        return Mark(sequence=1, messages=0)

    marker = MarkWriter(folder, 0.0, take)
    marker.touch()
    assert failed.wait(30)
    folder.mkdir()
    done = threading.Event()
    marker.after = done.set
    while not done.wait(0.01):
        marker.touch()
    marker.close()

    assert marks.read(folder) == Mark(sequence=1, messages=0)
