"""A folder written by layout 1 opens, has everything, and is then of the present layout."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxrelay.errors import StoreError
from luxrelay.store import NamespaceQuery, RelayStore, RelayStoreConfig, layout, upgrade
from luxrelay.store.folder import MARKER
from luxrelay.store.rocks import Database

OLD = Path(__file__).with_name("data") / "layout-1.tar.gz"
"""Written by the code of layout 1: 16 messages put, 4 expired, a contended slot, a large shared
blob, a message without its blob, a floor without messages."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder of layout 1 where `open_store` looks for it."""
    folder = tmp_path / "store"
    with tarfile.open(fileobj=io.BytesIO(OLD.read_bytes())) as archive:
        archive.extractall(folder, filter="data")
    assert (folder / MARKER).read_text() == "luxrelay store, layout 1\n"
    return folder


def check(store: RelayStore, forge: Any, parent: Any, now: int) -> None:
    """Everything that layout 1 held is there."""
    assert store.verify() == []
    page = store.query(NamespaceQuery(namespace_id=parent), now + 10)
    assert [message.seq for message in page.messages] == [2, 3, 5, 5, 6]
    assert store.head(parent).floor == 1
    for sender in (1, 2, 3):
        page = store.query(NamespaceQuery(namespace_id=forge.lane(sender)), now + 10)
        blobs = [message.blob for message in page.messages]
        assert blobs == [b"large " * 1000, b"lane", None][: len(blobs)]
        assert len(blobs) == (3 if sender == 1 else 2)
    assert store.head(forge.lane(9)).floor == 7
    assert store.stats().messages == 12
    assert store.stats().size_bytes == 26_632 + 16 * 12


def test_open_a_store_of_layout_1(
    old: Path, forge: Any, open_store: Callable[..., RelayStore], parent: Any, now: int
) -> None:
    """Messages, blobs, heads, floors and sums are kept; the folder is marked anew (21-49)."""
    store = open_store()
    check(store, forge, parent, now)
    assert store.watermark(parent) is None
    assert (old / MARKER).read_text() == "luxrelay store, layout 2\n"
    store.close()

    again = open_store()
    check(again, forge, parent, now)
    assert again.expire(now + 601_000).removed_count == 12
    assert again.verify() == []


def test_nothing_is_deleted_for_missing_times(
    old: Path, open_store: Callable[..., RelayStore], now: int
) -> None:
    """Rows without times are dated by their messages, not by zero (store-notes 6)."""
    assert old.exists()
    store = open_store()

    assert store.expire(now + 100).removed_count == 0
    assert len(store.tree_nodes()) == 256
    assert store.stats().messages == 12


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_an_upgrade_that_was_cut_off_goes_on(
    old: Path,
    forge: Any,
    open_store: Callable[..., RelayStore],
    monkeypatch: pytest.MonkeyPatch,
    writes: int,
) -> None:
    """After a crash between any two batches the next opening finishes the work."""
    monkeypatch.setattr(upgrade, "ROWS_PER_BATCH", 5)
    real, left = Database.write, [writes]

    def fail_later(database: Database, batch: Any) -> None:
        if not left[0]:
            raise StoreError("no space left")
        left[0] -= 1
        real(database, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", fail_later)
        with pytest.raises(StoreError):
            open_store()
    assert (old / MARKER).read_text() == "luxrelay store, layout 2\n"

    message = forge.message(1)
    check(open_store(), forge, message.parent, message.received_at)


def test_an_id_row_without_message_stops_the_upgrade(
    old: Path, open_store: Callable[..., RelayStore]
) -> None:
    """A damaged store is reported, not half upgraded in silence."""
    database = Database.open(
        old / "db", layout.FAMILIES, write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20
    )
    batch = database.batch()
    batch.put(layout.CONTENTS, bytes(32), bytes(28))
    database.write(batch)
    database.close()

    with pytest.raises(StoreError) as caught:
        open_store()
    assert caught.value.code == "store.corrupt"


def test_a_newer_database_is_refused(tmp_path: Path, now: int) -> None:
    """A version row above ours is refused even when the marker was lost."""
    RelayStore.open(tmp_path / "store", RelayStoreConfig.small(), now_ms=now).close()
    database = Database.open(
        tmp_path / "store" / "db",
        layout.FAMILIES,
        write_buffer_bytes=1 << 20,
        block_cache_bytes=1 << 20,
    )
    batch = database.batch()
    batch.put(layout.META, layout.VERSION_KEY, layout.encode_version(layout.LAYOUT_VERSION + 1))
    database.write(batch)
    database.close()

    with pytest.raises(StoreError) as caught:
        RelayStore.open(tmp_path / "store", RelayStoreConfig.small(), now_ms=now)
    assert caught.value.code == "store.version"
