"""A folder that is not ours, not free or not for this version is refused and left as it was."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxrelay.errors import StoreError
from luxrelay.store import RelayStore, RelayStoreConfig, layout
from luxrelay.store.durability.folder import MARKER
from luxrelay.store.durability.marks import MARK
from luxrelay.store.rocks import Database

SMALL = RelayStoreConfig.small()

TRY_TO_OPEN = """
import sys
from pathlib import Path
from luxrelay.errors import StoreError
from luxrelay.store import RelayStore
try:
    RelayStore.open(Path(sys.argv[1]), now_ms=1_764_000_000_000).close()
    print("opened")
except StoreError as error:
    print(error.code)
"""
HOLD_OPEN = """
import sys
from pathlib import Path
from luxrelay.store import RelayStore
store = RelayStore.open(Path(sys.argv[1]), now_ms=1_764_000_000_000)
print("open", flush=True)
sys.stdin.read()
store.close()
"""
AS_NOBODY = """
import os
import sys
from pathlib import Path
from luxrelay.errors import StoreError
from luxrelay.store import RelayStore
os.chdir(sys.argv[1])  # relative from here: the folders above need not be open to everybody
if os.geteuid() == 0:
    os.setuid(65534)
try:
    RelayStore.open(Path(sys.argv[2]), now_ms=1_764_000_000_000)
except StoreError as error:
    print(error.code, error.where)
"""


def picture(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file below ``path`` with its modification time and bytes.

    The mark and its draft are left out: an open store writes it anew from a thread of its own.
    """
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in path.rglob("*")
        if not file.name.removeprefix(".").startswith(MARK) and file.is_file()
    }


def refusal(path: Path, now: int) -> StoreError:
    """Return the error of an open that must fail and must not change ``path``."""
    before = picture(path)
    with pytest.raises(StoreError) as caught:
        RelayStore.open(path, SMALL, now_ms=now)
    assert picture(path) == before
    assert str(path) in str(caught.value)
    return caught.value


def test_refuse_the_database_of_another_program(tmp_path: Path, now: int) -> None:
    """A RocksDB that is not ours is foreign, and not one of its files changes."""
    other = Database.open(
        tmp_path, ("default", "theirs"), write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20
    )
    other.close()

    assert refusal(tmp_path, now).code == "store.foreign"


def test_refuse_a_newer_layout(forge: Any, tmp_path: Path, now: int) -> None:
    """A store of a newer version is refused by its marker alone."""
    path = tmp_path / "store"
    with RelayStore.open(path, SMALL, now_ms=now) as store:
        store.put_many([forge.message(1)], now)
    (path / MARKER).write_text(f"luxrelay store, layout {layout.LAYOUT_VERSION + 1}\n")

    assert refusal(path, now).code == "store.version"


def test_refuse_a_newer_version_row(tmp_path: Path, now: int) -> None:
    """The version row is checked as well, and the folder is free afterwards."""
    path = tmp_path / "store"
    with RelayStore.open(path, SMALL, now_ms=now) as store:
        batch = store._database.batch()
        batch.put(layout.META, layout.VERSION_KEY, layout.encode_version(layout.LAYOUT_VERSION + 1))
        store._database.write(batch)

    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            RelayStore.open(path, SMALL, now_ms=now)
        assert caught.value.code == "store.version"


def test_refuse_rows_without_a_version(forge: Any, tmp_path: Path, now: int) -> None:
    """Messages whose layout nobody names are not touched (nats-server 7556)."""
    path = tmp_path / "store"
    with RelayStore.open(path, SMALL, now_ms=now) as store:
        store.put_many([forge.message(1)], now)
        batch = store._database.batch()
        batch.delete(layout.META, layout.VERSION_KEY)
        store._database.write(batch)

    with pytest.raises(StoreError) as caught:
        RelayStore.open(path, SMALL, now_ms=now)
    assert caught.value.code == "store.corrupt"


def test_refuse_a_second_open_in_this_process(forge: Any, tmp_path: Path, now: int) -> None:
    """The store that is open goes on, and none of its files changes."""
    path = tmp_path / "store"
    with RelayStore.open(path, SMALL, now_ms=now) as store:
        store.put_many([forge.message(1)], now)

        assert refusal(path, now).code == "store.locked"
        assert store.put_many([forge.message(2)], now) == [0]
    RelayStore.open(path, SMALL, now_ms=now).close()


@pytest.mark.slow
def test_refuse_what_another_process_has_open(
    tmp_path: Path, now: int, run_elsewhere: Callable[..., str]
) -> None:
    """Between processes as within one; when the other ends, the folder is free."""
    path = tmp_path / "store"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_OPEN, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        assert refusal(path, now).code == "store.locked"
        assert run_elsewhere(TRY_TO_OPEN, str(path)) == "store.locked"
        holder.communicate("", timeout=30)

    assert run_elsewhere(TRY_TO_OPEN, str(path)) == "opened"


@pytest.mark.slow
def test_refuse_a_folder_that_cannot_be_written(
    tmp_path: Path, run_elsewhere: Callable[..., str]
) -> None:
    """Without permission the answer is ``store.io`` with the path, and nothing is made."""
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)

    for path in (".", "deeper"):
        assert run_elsewhere(AS_NOBODY, str(closed), path) == f"store.io {path}"
    assert list(closed.iterdir()) == []
    closed.chmod(0o755)
