"""A reader beside the writer sees the moment it opened, and changes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import NamespaceId
from luxrelay.errors import StoreArgumentError, StoreError
from luxrelay.store import NamespaceQuery, RelayStore, RelayStoreConfig, layout
from luxrelay.store.durability.folder import MARKER
from luxrelay.store.durability.marks import MARK
from luxrelay.store.maintenance.upgrade import LOOKS
from luxrelay.store.rocks import Database

Opener = Callable[..., RelayStore]
SMALL = RelayStoreConfig.small()


def look(path: Path, now: int) -> RelayStore:
    """Open for reading."""
    return RelayStore.open_read_only(path, SMALL, now_ms=now)


def picture(path: Path) -> dict[str, bytes]:
    """Return every file with its bytes, save the mark, which the writer makes by its clock."""
    files = [file for file in path.rglob("*") if file.is_file() and MARK not in file.name]
    return {str(file): file.read_bytes() for file in files}


def test_read_while_a_node_writes(
    forge: Any, open_store: Opener, tmp_path: Path, parent: Any, now: int
) -> None:
    """The reader has what was written when it opened, sound, and the writer goes on."""
    store = open_store()
    store.put_many([forge.message(seq) for seq in (1, 2, 3)], now)
    before = picture(tmp_path)
    with look(tmp_path / "store", now) as reader:
        assert picture(tmp_path) == before
        store.put_many([forge.message(4)], now)
        page = reader.query(NamespaceQuery(namespace_id=parent), now)

        assert [message.seq for message in page.messages] == [1, 2, 3]
        assert reader.verify() == []
        assert reader.stats().messages == 3
    store.put_many([forge.message(5)], now)
    with look(tmp_path / "store", now) as reader:
        assert reader.tree_root() == store.tree_root()
    assert store.verify() == []


@pytest.mark.parametrize(
    "change",
    [
        lambda store, message, now: store.put_many([message], now),
        lambda store, message, now: store.put([message], now),
        lambda store, _, now: store.expire(now),
        lambda store, _, __: store.skip_to(NamespaceId(bytes(20)), NamespaceId(bytes(20)), 1),
        lambda store, _, __: store.set_watermark(NamespaceId(bytes(20)), NamespaceId(bytes(20)), 1),
    ],
)
def test_a_reader_changes_nothing(
    forge: Any, open_store: Opener, tmp_path: Path, now: int, change: Callable[..., Any]
) -> None:
    """Every changing call is the caller's fault, and the folder stays as it was."""
    open_store().close()
    before = picture(tmp_path)
    with look(tmp_path / "store", now) as reader, pytest.raises(StoreArgumentError):
        change(reader, forge.message(1), now)

    assert picture(tmp_path) == before


@pytest.mark.parametrize("version", [layout.LAYOUT_VERSION - 1, layout.LAYOUT_VERSION + 1])
def test_refuse_to_read_another_layout(
    open_store: Opener, tmp_path: Path, now: int, version: int
) -> None:
    """An older layout is upgraded by a writer first; a newer one is not understood."""
    open_store().close()
    (tmp_path / "store" / MARKER).write_text(f"luxrelay store, layout {version}\n")

    with pytest.raises(StoreError) as caught:
        look(tmp_path / "store", now)
    assert caught.value.code == "store.version"


@pytest.mark.parametrize("make", [lambda _: None, Path.mkdir, Path.touch])
def test_refuse_to_read_what_is_no_store(
    tmp_path: Path, now: int, make: Callable[[Path], None]
) -> None:
    """Nothing, an empty folder and a file are foreign, and nothing is made."""
    make(tmp_path / "store")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError) as caught:
        look(tmp_path / "store", now)

    assert caught.value.code == "store.foreign"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_marker_that_says_nothing_is_foreign(
    open_store: Opener, tmp_path: Path, now: int
) -> None:
    """A reader does not guess."""
    open_store().close()
    (tmp_path / "store" / MARKER).write_text("somebody's")

    with pytest.raises(StoreError) as caught:
        look(tmp_path / "store", now)
    assert caught.value.code == "store.foreign"


@pytest.mark.parametrize("failures", [LOOKS - 1, LOOKS])
def test_look_again_when_a_file_went(
    open_store: Opener, tmp_path: Path, now: int, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """A file that a compaction took away is no fault, unless it goes on and on."""
    open_store().close()
    left, real = [failures], Database.open

    def flaky(*arguments: Any, **fields: Any) -> Database:
        if left[0]:
            left[0] -= 1
            raise StoreError("no such file")
        return real(*arguments, **fields)

    monkeypatch.setattr(Database, "open", flaky)
    if failures < LOOKS:
        look(tmp_path / "store", now).close()
    else:
        with pytest.raises(StoreError):
            look(tmp_path / "store", now)
    assert left == [0]
