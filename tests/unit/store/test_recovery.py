"""A store whose disk refused a write takes writes again by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from luxrelay.errors import StoreError
from luxrelay.store import NamespaceQuery, PutOutcome, RelayStore
from luxrelay.store import relay_store as recovery
from luxrelay.store.rocks import Batch, Database

Opener = Callable[..., RelayStore]


def refuse(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the database refuse a write or sync, as RocksDB does from then on."""

    def fail(database: Database, *_: Batch) -> None:
        database.failed = True
        raise StoreError("RocksDB reports: No space left on device")

    monkeypatch.setattr(Database, name, fail)


@pytest.mark.parametrize("fault", list(product(("fsync", "group", "os"), ("write", "sync"))))
def test_write_again_after_a_fault(
    forge: Any,
    open_store: Opener,
    now: int,
    monkeypatch: pytest.MonkeyPatch,
    fault: tuple[str, str],
) -> None:
    """What was acknowledged stays, what failed can be put again, counters go on (P3)."""
    monkeypatch.setattr(recovery, "RETRY_S", 0.0)
    durability, call = fault
    store = open_store(durability=durability)
    first = forge.message(1)
    store.put_many([first], now)
    with monkeypatch.context() as patch:
        refuse(patch, call)
        if fault == ("os", "sync"):
            with pytest.raises(StoreError):
                store.documents[b"name"] = b"value"
        else:
            with pytest.raises(StoreError):
                store.put_many([forge.message(2)], now)
        query = NamespaceQuery(namespace_id=first.header.namespace_id)
        assert store.query(query, now).messages[0].header == first.header

    outcomes = store.put_many([forge.message(2), forge.message(3)], now)

    assert set(outcomes) <= {PutOutcome.STORED, PutOutcome.DUPLICATE}
    stats = store.stats()
    assert (stats.messages, stats.recovered, store._database.failed) == (3, 1, False)
    assert stats.outcomes[PutOutcome.STORED] >= 2
    assert store.expire(now + 600_000).removed_count == 3
    assert store.verify() == []


def test_a_receipt_from_before_is_not_durable(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that the fault overtook is acknowledged later (ADR 0006 §7)."""
    monkeypatch.setattr(recovery, "RETRY_S", 0.0)
    store = open_store(durability="fsync")
    store.put_many([forge.message(1)], now)
    receipt = store.put([forge.message(2)], now)
    with monkeypatch.context() as patch:
        refuse(patch, "write")
        with pytest.raises(StoreError):
            store.put([forge.message(3)], now)
    store.put([forge.message(4)], now)

    assert not receipt.durable
    with pytest.raises(StoreError):
        receipt.wait(1)


def test_wait_for_room(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room the database is not opened again, because that might fail and stop readers."""
    monkeypatch.setattr(recovery, "RETRY_S", 0.0)
    store = open_store()
    refuse(monkeypatch, "write")
    monkeypatch.setattr(recovery, "ROOM_BYTES_MIN", 2**62)

    for _ in range(2):
        with pytest.raises(StoreError, match="No space"):
            store.put_many([forge.message(1)], now)
    assert store.stats().recovered == 0


def test_attempts_are_spaced(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that stays broken is not opened again at every put (RETRY_S)."""
    store = open_store()
    refuse(monkeypatch, "write")

    for seq in range(1, 6):
        with pytest.raises(StoreError):
            store.put_many([forge.message(seq)], now)
    assert store.stats().recovered == 1


def test_reading_goes_on_when_it_cannot_be_opened(
    forge: Any, open_store: Opener, parent: Any, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that opens only for reading is read, and writing fails."""
    monkeypatch.setattr(recovery, "RETRY_S", 0.0)
    store = open_store()
    store.put_many([forge.message(1)], now)
    real = Database._open

    def reading_only(database: Database, *, read_only: bool) -> Any:
        if not read_only:
            raise StoreError("No space left on device")
        return real(database, read_only=True)

    with monkeypatch.context() as patch:
        refuse(patch, "write")
        patch.setattr(Database, "_open", reading_only)
        with pytest.raises(StoreError):
            store.put_many([forge.message(2)], now)
        with pytest.raises(StoreError):
            store.put_many([forge.message(2)], now)
        page = store.query(NamespaceQuery(namespace_id=parent), now)
        assert [message.seq for message in page.messages] == [1]

    assert store.put_many([forge.message(2)], now) == [PutOutcome.STORED]
    assert store.verify() == []


def test_readers_wait_and_do_not_fail(
    forge: Any, open_store: Opener, parent: Any, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries that run while the database is opened again see it before or after."""
    monkeypatch.setattr(recovery, "RETRY_S", 0.0)
    store = open_store()
    store.put_many([forge.message(1)], now)
    faults: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                page = store.query(NamespaceQuery(namespace_id=parent), now)
                assert page.messages[0].seq == 1
                assert len(store.documents) == 0
        except BaseException as error:  # noqa: BLE001  # shown by the test
            faults.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for seq in range(2, 6):
        store._database.failed = True
        assert store.put_many([forge.message(seq)], now) == [PutOutcome.STORED]
    stop.set()
    for reader in readers:
        reader.join()

    assert faults == []
    assert store.stats().recovered == 4
