"""A folder written by an older layout opens, has everything, and is of the present layout then."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxrelay.errors import StoreError
from luxrelay.store import NamespaceQuery, RelayStore, RelayStoreConfig, layout
from luxrelay.store.durability.folder import MARKER
from luxrelay.store.maintenance import upgrade
from luxrelay.store.rocks import Database

DATA = Path(__file__).with_name("data")
"""Written by the code of the layouts. Layout 1: 16 messages put, 4 expired, a contended slot, a
large shared blob, a message without its blob, a floor without messages. Layout 2: that store, in a
lane two messages past their time that an archive has not read, one with a large blob, a document.
"""


@pytest.fixture(params=[1, 2])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of an older layout where `open_store` looks for it."""
    folder = tmp_path / "store"
    archived = (DATA / f"layout-{request.param}.tar.gz").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(archived)) as archive:
        archive.extractall(folder, filter="data")
    assert (folder / MARKER).read_text() == f"luxrelay store, layout {request.param}\n"
    return folder


def waiting(store: RelayStore, forge: Any) -> list[Any]:
    """Return what waits for the archive in the lane that only layout 2 has."""
    return store.query(NamespaceQuery(namespace_id=forge.lane(4), held=True), 10**13).messages


def check(store: RelayStore, forge: Any, parent: Any, now: int) -> None:
    """Everything that the old store held is there."""
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
    held = waiting(store, forge)
    assert [message.seq for message in held] == [2, 3][: len(held)]
    assert store.stats().held == len(held)
    assert store.stats().messages == 12 + len(held)
    if held:
        assert held[1].blob == b"large " * 1000
        assert store.watermark(forge.lane(4)) == 1
        assert store.documents[b"a policy"] == b"its bytes"


def test_open_a_store_of_an_older_layout(
    old: Path, forge: Any, open_store: Callable[..., RelayStore], parent: Any, now: int
) -> None:
    """Messages, blobs, heads, floors and sums are kept; the folder is marked anew (21-49)."""
    store = open_store()
    check(store, forge, parent, now)
    assert store.watermark(parent) is None
    assert (old / MARKER).read_text() == "luxrelay store, layout 3\n"
    store.close()

    again = open_store()
    check(again, forge, parent, now)
    assert again.expire(now + 601_000).removed_count == 12
    assert again.stats().messages == len(waiting(again, forge))
    assert again.verify() == []


def test_nothing_is_deleted_for_missing_times(
    old: Path, open_store: Callable[..., RelayStore], now: int
) -> None:
    """Rows without times are dated by their messages, not by zero (ADR 0006 §6)."""
    assert old.exists()
    store = open_store()

    assert store.expire(now + 100).removed_count == 0
    assert len(store.tree_nodes()) == 256
    assert store.stats().messages in {12, 14}


@pytest.mark.parametrize("writes", [0, 1, 2, 3, 4, 5])
def test_an_upgrade_that_was_cut_off_goes_on(
    old: Path,
    forge: Any,
    open_store: Callable[..., RelayStore],
    monkeypatch: pytest.MonkeyPatch,
    writes: int,
) -> None:
    """After a crash between any two batches the next opening finishes the work."""
    monkeypatch.setattr(upgrade, "MESSAGES_PER_BATCH", 5)
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
    assert (old / MARKER).read_text() == "luxrelay store, layout 3\n"

    message = forge.message(1)
    check(open_store(), forge, message.parent, message.received_at)


def test_a_missing_blob_stops_the_upgrade(old: Path, open_store: Callable[..., RelayStore]) -> None:
    """A damaged store is reported, not half upgraded in silence."""
    database = Database.open(
        old / "db", layout.FAMILIES, write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20
    )
    batch = database.batch()
    for commitment in database.keys("blobs", b"", b""):
        batch.delete("blobs", commitment)
    database.write(batch)
    database.close()

    with pytest.raises(StoreError) as caught:
        open_store()
    assert caught.value.code == "store.corrupt"


def test_the_old_tables_are_gone(old: Path, open_store: Callable[..., RelayStore]) -> None:
    """Their space is given back, also when a crash kept it from being so at once."""
    open_store().close()
    database = Database.open(
        old / "db",
        [*layout.FAMILIES, "headers"],
        write_buffer_bytes=1 << 20,
        block_cache_bytes=1 << 20,
    )
    assert "times" not in database.names
    database.close()

    store = open_store()

    left = [name for name in store._database.names if not name.startswith("slice-")]
    assert sorted(left) == sorted(layout.FAMILIES)


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
