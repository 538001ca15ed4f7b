"""Kept trees: read back when nothing has changed since, and never otherwise."""

from __future__ import annotations

import random
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from luxrelay.errors import StoreError
from luxrelay.store import RelayStore, RelayStoreConfig
from luxrelay.store.durability import marks as trees
from luxrelay.store.durability.marks import TREES

Opener = Callable[..., RelayStore]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees of a few ids are kept too."""
    monkeypatch.setattr(trees, "IDS_MIN", 2)


@pytest.fixture
def folder(forge: Any, open_store: Opener, now: int, tmp_path: Path) -> Path:
    """A closed store of five messages."""
    store = open_store()
    store.put_many([forge.message(seq) for seq in range(1, 6)], now)
    store.close()
    return tmp_path / "store"


def resealed(data: bytes) -> bytes:
    """Return the file with a checksum that fits."""
    return data[:-4] + crc32(data[:-4]).to_bytes(4, "big")


def test_a_closed_store_keeps_its_tree(folder: Path, open_store: Opener) -> None:
    """The next opening has the same tree without the rows, and takes the file away first."""
    kept = (folder / TREES).read_bytes()

    again = open_store()

    assert not (folder / TREES).exists()
    assert again.verify() == []
    again.close()
    assert (folder / TREES).read_bytes() == kept


def test_a_kept_tree_is_taken_for_what_it_is(folder: Path, open_store: Opener) -> None:
    """A tree of other ids with the right seals is found by verify only: the rows were not read."""
    data = bytearray((folder / TREES).read_bytes())
    bucket = next(at for at in range(100, len(data) - 40, 40) if any(data[at : at + 32]))
    data[bucket] ^= 1
    (folder / TREES).write_bytes(resealed(bytes(data)))

    assert open_store().verify() != []


def test_rows_written_since_make_it_worthless(
    folder: Path, forge: Any, open_store: Opener, now: int
) -> None:
    """Whoever puts an older file back gets the tree of the rows."""
    old = (folder / TREES).read_bytes()
    store = open_store()
    store.put_many([forge.message(6)], now)
    store.close()
    (folder / TREES).write_bytes(old)

    assert open_store().verify() == []


def test_another_database_makes_it_worthless(
    folder: Path, forge: Any, open_store: Opener, now: int, tmp_path: Path
) -> None:
    """A file of another store with as many rows and messages is not taken."""
    other = open_store("other")
    other.put_many([forge.message(seq) for seq in range(11, 16)], now)
    other.close()
    shutil.copy(tmp_path / "other" / TREES, folder / TREES)

    assert open_store().verify() == []


def test_damage_makes_it_worthless(folder: Path, open_store: Opener) -> None:
    """A changed, cut or grown file is passed over, wherever it was changed."""
    whole = (folder / TREES).read_bytes()
    rng = random.Random(20_261_128)
    for _ in range(6):
        place = rng.choice([rng.randrange(100), rng.randrange(len(whole))])
        damaged = rng.choice(
            [
                whole[:place],
                whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :],
                whole + b"x",
                b"",
            ]
        )
        (folder / TREES).write_bytes(damaged)

        store = open_store()
        assert store.verify() == []
        store.close()


def test_a_reader_leaves_it(folder: Path, now: int) -> None:
    """Looking into a closed store changes nothing in its folder."""
    kept = (folder / TREES).read_bytes()

    with RelayStore.open_read_only(folder, RelayStoreConfig.small(), now_ms=now) as store:
        assert store.stats().messages == 5

    assert (folder / TREES).read_bytes() == kept


def test_few_messages_are_not_worth_a_file(
    folder: Path, open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below IDS_MIN the rows are quick to read, and nothing is kept."""
    monkeypatch.setattr(trees, "IDS_MIN", 6)
    open_store().close()

    assert not (folder / TREES).exists()


def test_the_largest_are_kept(
    folder: Path, forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above SLICES_MAX trees the small ones are found from the rows."""
    store = open_store()
    later = store.config.slice_width_ms() * 2
    store.put_many([forge.message(seq, at=now + later) for seq in (6, 7)], now + later)
    store.close()
    one = len((folder / TREES).read_bytes())
    monkeypatch.setattr(trees, "SLICES_MAX", 1)
    store = open_store()
    store.close()

    assert 0 < len((folder / TREES).read_bytes()) < one
    assert open_store().verify() == []


def test_a_full_disk_does_not_keep_a_store_from_closing(
    forge: Any, open_store: Opener, now: int, tmp_path: Path
) -> None:
    """The trees are left out, half a file is taken away, and the next opening reads the rows."""
    folder = tmp_path / "store"
    store = open_store()
    store.put_many([forge.message(seq) for seq in range(1, 6)], now)
    root = store.tree_root()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        store.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)

    assert not [each.name for each in folder.iterdir() if each.name.startswith(TREES)]
    again = open_store()
    assert (again.tree_root(), again.verify()) == (root, [])


def test_half_a_file_goes_when_the_store_opens(folder: Path, open_store: Opener) -> None:
    """What a crash while closing left is taken away."""
    (folder / (TREES + ".new")).write_bytes(b"half")

    assert open_store().verify() == []
    assert not (folder / (TREES + ".new")).exists()


def test_what_cannot_be_taken_away_is_named(folder: Path, open_store: Opener) -> None:
    """A folder in the file's place: a reader opens, a writer says which and what to do."""
    (folder / TREES).unlink()
    (folder / TREES).mkdir()

    with RelayStore.open_read_only(folder, RelayStoreConfig.small(), now_ms=1_764_000_000_000):
        pass
    with pytest.raises(StoreError, match="by hand") as caught:
        open_store()
    assert caught.value.where == str(folder / TREES)
    (folder / TREES).rmdir()
    assert open_store().verify() == []
