"""What can be read and proves itself is carried from a damaged store into a new one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxrelay.errors import StoreArgumentError, StoreError
from luxrelay.store import NamespaceQuery, RelayStore, RelayStoreConfig, layout
from luxrelay.store.maintenance.repair import salvage
from luxrelay.store.rocks import Database

Opener = Callable[..., RelayStore]
LARGE = b"x" * 5000
CONFIG = RelayStoreConfig.small()


@pytest.fixture
def store(forge: Any, open_store: Opener, parent: Any, now: int) -> RelayStore:
    """A store with lanes, a contended slot, a hole, blobs of both kinds, a floor, a watermark."""
    opened = open_store(slice_ms=60_000)
    messages = [forge.in_lane(seq, 1, at=now + 90_000 * seq) for seq in (1, 2, 4)]
    messages += [forge.message(1, sender=sender) for sender in (1, 2)]
    messages += [forge.message(2, blob=LARGE), forge.message(3, blob=LARGE, with_blob=False)]
    messages[3] = forge.message(1, sender=1, ciphertext=LARGE)
    opened.put_many(messages, now)
    opened.set_watermark(parent, parent, 2)
    opened.skip_to(forge.lane(7), parent, 9)
    opened.documents[b"policy"] = b"bytes"
    return opened


def contents(store: RelayStore, now: int) -> list[Any]:
    """Return everything served, in order."""
    found = []
    for head in store.heads(None, b"", 0)[0]:
        page = store.query(NamespaceQuery(namespace_id=head.namespace_id, held=True), now)
        for m in page.messages:
            reference = m.header.tfhe_sidecar
            sidecar = reference and store.get_blob(reference.commitment)
            found.append((m.header_bytes, m.blob, sidecar, m.received_at, m.expires_at))
    return found


def damage(path: Path, kind: bytes, change: Callable[[bytes], bytes | None]) -> None:
    """Change every row of one kind behind the store's back."""
    database = Database.open(
        path / "db", layout.FAMILIES, write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20
    )
    batch = database.batch()
    for name in database.names:
        if name.startswith("slice-"):
            table = database.table(name)
            for key, value in list(table.scan(b"", b"", kind)):
                changed = change(value)
                if changed is None:
                    batch.delete_rows(table, [kind + key])
                else:
                    batch.put_rows(table, [(kind + key, changed)])
    database.write(batch)
    database.close()


def test_a_sound_store_is_copied_whole(
    store: RelayStore, tmp_path: Path, parent: Any, forge: Any, now: int
) -> None:
    """Messages with their times, heads, floors, watermarks, lanes and documents are the same."""
    before = contents(store, now)
    heads = store.heads(None, b"", 0)
    root = store.tree_root()
    store.close()

    found = salvage(tmp_path / "store", tmp_path / "new", CONFIG)

    assert (found.messages, found.expected, found.refused, found.damaged) == (7, 7, 0, 0)
    assert not (tmp_path / "new" / "salvage").exists()
    with RelayStore.open(tmp_path / "new", CONFIG, now_ms=now) as fresh:
        assert fresh.verify() == []
        assert contents(fresh, now) == before
        assert fresh.heads(None, b"", 0) == heads
        assert fresh.tree_root() == root
        assert fresh.watermark(parent) == 2
        assert fresh.head(forge.lane(7)).floor == 9
        assert fresh.documents[b"policy"] == b"bytes"


def test_index_rows_are_not_needed(store: RelayStore, tmp_path: Path, now: int) -> None:
    """Whatever index rows are gone, the messages make them anew."""
    before = contents(store, now)
    store.close()
    for kind in (layout.TIMES, layout.CONTENTS, layout.SLOTS, layout.SHARES, layout.SENDERS):
        damage(tmp_path / "store", kind, lambda _: None)

    salvage(tmp_path / "store", tmp_path / "new", CONFIG)

    with RelayStore.open(tmp_path / "new", CONFIG, now_ms=now) as fresh:
        assert fresh.verify() == []
        assert contents(fresh, now) == before


def test_a_row_that_does_not_prove_itself_is_refused(
    store: RelayStore, tmp_path: Path, parent: Any, now: int
) -> None:
    """A header under another key, or no header, never becomes a message; the head stays."""
    store.close()
    damage(tmp_path / "store", layout.HEADERS, lambda value: value[:40] + b"!" + value[41:])

    found = salvage(tmp_path / "store", tmp_path / "new", CONFIG)

    assert (found.messages, found.refused, found.expected) == (0, 7, 7)
    with RelayStore.open(tmp_path / "new", CONFIG, now_ms=now) as fresh:
        assert fresh.verify() == []
        assert fresh.head(parent).latest_seq == 3
        assert fresh.gaps(parent) == [(1, 3)]


def test_a_wrong_blob_is_dropped_and_its_header_kept(
    store: RelayStore, tmp_path: Path, parent: Any, now: int
) -> None:
    """A blob that is not what its header commits to is fetched again, not served."""
    store.close()
    damage(tmp_path / "store", layout.BLOBS, lambda value: b"y" + value[1:])

    found = salvage(tmp_path / "store", tmp_path / "new", CONFIG)

    assert (found.messages, found.blobs_lost) == (7, 1)
    with RelayStore.open(tmp_path / "new", CONFIG, now_ms=now) as fresh:
        page = fresh.query(NamespaceQuery(namespace_id=parent), now)
        assert [message.blob for message in page.messages] == [b"hello", b"hello", None, None]


@pytest.mark.parametrize("gone", ["MANIFEST-*", "*.sst", "CURRENT"])
def test_a_file_that_is_gone_is_damage(
    store: RelayStore, tmp_path: Path, now: int, gone: str
) -> None:
    """The error names the command that carries the rest, not the disk."""
    store.close()
    files = list((tmp_path / "store" / "db").glob(gone))
    assert files
    for each in files:
        each.unlink()

    with pytest.raises(StoreError, match="luxrelay store repair") as caught:
        RelayStore.open(tmp_path / "store", CONFIG, now_ms=now)

    assert caught.value.code == "store.corrupt"


def test_a_missing_manifest_is_rebuilt(store: RelayStore, tmp_path: Path, now: int) -> None:
    """A database that cannot be opened at all is put together from its table files."""
    before = contents(store, now)
    store.close()
    for manifest in (tmp_path / "store" / "db").glob("MANIFEST-*"):
        manifest.write_bytes(b"")
    with pytest.raises(StoreError):
        RelayStore.open(tmp_path / "store", CONFIG, now_ms=now)

    found = salvage(tmp_path / "store", tmp_path / "new", CONFIG)

    assert found.rebuilt
    with RelayStore.open(tmp_path / "new", CONFIG, now_ms=now) as fresh:
        assert fresh.verify() == []
        assert set(contents(fresh, now)) <= set(before)
        assert len(contents(fresh, now)) == found.messages


def test_reading_goes_on_behind_a_damaged_block(
    forge: Any, open_store: Opener, tmp_path: Path, parent: Any, now: int
) -> None:
    """One damaged block costs its own messages, not those behind it."""
    store = open_store()
    messages = [forge.message(seq, blob=bytes([seq]) * 100) for seq in range(1, 201)]
    store.put_many(messages, now)
    store.close()
    largest = max((tmp_path / "store" / "db").glob("*.sst"), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    largest.write_bytes(data)

    found = salvage(tmp_path / "store", tmp_path / "new", CONFIG)

    assert 100 < found.messages < 200 or (found.messages, found.damaged) == (200, 0)
    with RelayStore.open(tmp_path / "new", CONFIG, now_ms=now) as fresh:
        assert fresh.verify() == []
        assert fresh.head(parent).latest_seq == 200


def test_refuse_a_folder_that_is_in_use(store: RelayStore, tmp_path: Path) -> None:
    """Neither the node's folder nor a folder with something in it is written to."""
    with pytest.raises(StoreError) as caught:
        salvage(tmp_path / "store", tmp_path / "new", CONFIG)
    assert caught.value.code == "store.locked"
    store.close()
    (tmp_path / "new").mkdir(exist_ok=True)
    (tmp_path / "new" / "file").write_bytes(b"mine")
    with pytest.raises(StoreArgumentError):
        salvage(tmp_path / "store", tmp_path / "new", CONFIG)
