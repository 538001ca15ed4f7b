"""The store's door: heads, holes, floors, statistics, opening and closing."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import ContentId, NamespaceId
from luxrelay.errors import StoreArgumentError, StoreError
from luxrelay.store import NamespaceQuery, PutOutcome, RelayStore, RelayStoreConfig
from luxrelay.store.blobs import blob_of
from luxrelay.store.rocks import Database

Opener = Callable[..., RelayStore]


def test_skipping_moves_the_head_for_good(forge: Any, open_store: Opener, now: int) -> None:
    """What is gone everywhere is no hole any more, also after a restart (P25)."""
    store = open_store()
    store.put_many([forge.message(seq) for seq in (5, 6, 9)], now)
    namespace = forge.message(1).parent
    assert store.gaps(namespace) == [(1, 4), (7, 8)]
    store.skip_to(namespace, namespace, 4)
    store.close()
    again = open_store()

    assert again.gaps(namespace) == [(7, 8)]
    assert again.head(namespace).contiguous_seq == 6
    assert again.gaps(namespace, limit=1) == [(7, 8)]


def test_skip_in_an_unknown_namespace(open_store: Opener, parent: Any) -> None:
    """A namespace may begin with a floor; a lower floor changes nothing."""
    store = open_store()
    store.skip_to(NamespaceId(b"n" * 20), parent, 7)
    store.skip_to(NamespaceId(b"n" * 20), parent, 3)
    (head,), _ = store.heads(parent, b"", 10)

    assert (head.namespace_id, head.floor, head.contiguous_seq) == (b"n" * 20, 7, 7)
    assert store.gaps(NamespaceId(b"n" * 20)) == []
    assert store.verify() == []


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.heads(None, b"odd", 1),
        lambda store: store.heads(None, b"", -1),
        lambda store: store.heads(NamespaceId(b"short"), b"", 1),
        lambda store: store.gaps(NamespaceId(b"n" * 20), -1),
        lambda store: store.skip_to(NamespaceId(b"n" * 20), NamespaceId(b"n"), 1),
        lambda store: store.skip_to(NamespaceId(b"n" * 20), NamespaceId(b"n" * 20), 0),
        lambda store: store.skip_to(NamespaceId(b"n" * 20), NamespaceId(b"n" * 20), 2**64),
        lambda store: store.get_blob(b"short"),
        lambda store: store.put_many([], 1_764_000_000),
        lambda store: store.expire(1_764_000_000),
        lambda store: store.get_messages([], 1_764_000_000),
        lambda store: store.query(NamespaceQuery(namespace_id=NamespaceId(b"n" * 20)), 5),
    ],
)
def test_refuse_calls_that_mean_nothing(open_store: Opener, call: Callable[..., Any]) -> None:
    """Wrong lengths, ranges and seconds are the caller's fault (21-54)."""
    with pytest.raises(StoreArgumentError):
        call(open_store())


def test_open_refuses_seconds(tmp_path: Path) -> None:
    """A clock in seconds is refused before anything is made."""
    with pytest.raises(StoreArgumentError):
        RelayStore.open(tmp_path / "store", now_ms=1_764_000_000)
    assert not (tmp_path / "store").exists()


def test_statistics_are_true(forge: Any, open_store: Opener, now: int) -> None:
    """Counts, sizes and the window's begin are those of the rows (21-46, 21-55)."""
    store = open_store()
    store.put_many([forge.message(seq, at=now + seq) for seq in (1, 2, 2)], now)
    store.put_many([forge.message(3)], now + 600_000)
    stats = store.stats()

    assert (stats.messages, stats.namespaces, stats.batches) == (2, 1, 1)
    assert stats.outcomes[PutOutcome.STORED] == 2
    assert stats.outcomes[PutOutcome.DUPLICATE] == 1
    assert stats.outcomes[PutOutcome.EXPIRED] == 1
    assert (stats.oldest_timestamp, stats.opened_at) == (now + 1, now)
    assert stats.max_storage_bytes == RelayStoreConfig.small().max_storage_bytes
    store.expire(now + 700_000)
    assert (store.stats().removed, store.stats().oldest_timestamp) == (2, 0)
    assert store.stats().size_bytes == 0


def test_a_closed_store_says_so(forge: Any, open_store: Opener, now: int) -> None:
    """Every call after `close` raises ``store.closed``; closing again does nothing."""
    store = open_store()
    store.close()
    store.close()
    namespace = NamespaceId(b"n" * 20)

    for call in (
        lambda: store.put_many([forge.message(1)], now),
        lambda: store.query(NamespaceQuery(namespace_id=namespace), now),
        lambda: store.get_messages([], now),
        lambda: store.get_blob(bytes(32)),
        lambda: store.has(ContentId(bytes(32))),
        lambda: store.head(namespace),
        lambda: store.heads(None, b"", 1),
        lambda: store.gaps(namespace),
        lambda: store.skip_to(namespace, namespace, 1),
        lambda: store.expire(now),
        store.verify,
        store.stats,
    ):
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.code == "store.closed"


def test_leaving_the_context_closes(tmp_path: Path, now: int) -> None:
    """A store is a context manager."""
    with RelayStore.open(tmp_path / "store", RelayStoreConfig.small(), now_ms=now) as store:
        assert store.stats().messages == 0
    with pytest.raises(StoreError):
        store.stats()


def test_closing_waits_for_calls_inside(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` returns after running calls have ended, so the folder is really free."""
    store = open_store()
    inside, go_on = threading.Event(), threading.Event()
    real = Database.write

    def slow(database: Database, batch: Any) -> None:
        inside.set()
        go_on.wait(30)
        real(database, batch)

    monkeypatch.setattr(Database, "write", slow)
    writer = threading.Thread(target=store.put_many, args=([forge.message(1)], now))
    writer.start()
    assert inside.wait(30)
    closer = threading.Thread(target=store.close)
    closer.start()
    while store._gate._open:
        threading.Event().wait(0.001)
    assert closer.is_alive()
    go_on.set()
    writer.join()
    closer.join()

    monkeypatch.undo()
    assert open_store().stats().messages == 1


def test_a_message_deleted_under_a_reader_is_passed_over(
    forge: Any, open_store: Opener, parent: Any, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large blob that goes between two reads takes its message out of the page."""
    store = open_store()
    messages = [forge.message(seq, blob=bytes([seq]) * 5000) for seq in (1, 2)]
    store.put_many(messages, now)

    def expire_then_read(database: Database, row: Any) -> bytes | None:
        store.expire(now + 600_000)
        return blob_of(database, row)

    monkeypatch.setattr("luxrelay.store.blobs.blob_of", expire_then_read)
    page = store.query(NamespaceQuery(namespace_id=parent), now)
    by_id = store.get_messages([message.header.message_id for message in messages], now)

    assert page.messages == []
    assert by_id[0] == []
