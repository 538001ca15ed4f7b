"""Opening a data folder: for its one writer, or for a reader beside it.

Source: decisions P43; store rows of the error catalogue.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from luxrelay.errors import StoreError
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.folder import Folder
from luxrelay.store.rocks import Database
from luxrelay.store.upgrade import bring_up_to_date

LOOKS: Final = 3
"""Times that a reader beside a running node tries to open its files."""


def open_for_writing(path: Path, config: RelayStoreConfig) -> tuple[Folder, Database]:
    """Return the claimed folder and its database, of the present layout.

    Raises:
        StoreError: ``store.foreign``, ``store.version``, ``store.locked``, ``store.corrupt`` or
            ``store.io``. A folder that is not ours, or not free, is as it was.

    """
    folder = Folder.claim(path, layout.LAYOUT_VERSION)
    try:
        database = _open(folder, config, read_only=False)
        try:
            bring_up_to_date(folder, database, config)
        except BaseException:
            database.close()
            raise
    except BaseException:
        folder.release()
        raise
    return folder, database


def open_for_reading(path: Path, config: RelayStoreConfig) -> tuple[Folder, Database]:
    """Return the folder, unclaimed, and its database as it is now.

    Raises:
        StoreError: ``store.foreign``, ``store.version``, ``store.corrupt`` or ``store.io``.

    """
    folder = Folder.look(path, layout.LAYOUT_VERSION)
    for _ in range(LOOKS - 1):
        try:
            return folder, _open(folder, config, read_only=True)
        except StoreError:
            continue  # a file may go between its naming and its opening while a node compacts
    return folder, _open(folder, config, read_only=True)


def _open(folder: Folder, config: RelayStoreConfig, *, read_only: bool) -> Database:
    return Database.open(
        folder.database,
        layout.FAMILIES,
        write_buffer_bytes=config.write_buffer_bytes,
        block_cache_bytes=config.block_cache_bytes,
        read_only=read_only,
    )
