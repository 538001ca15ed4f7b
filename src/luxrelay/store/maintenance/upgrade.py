"""Opening a data folder, and its upgrade from an older layout in place.

Theory of operation
-------------------
*Decides* which rows are written anew, and when the folder counts as upgraded.
*Machine*: the folder's marker is set first, so that an older version refuses the folder from then
on. Messages move in batches: a batch puts all rows of some messages into their slices, with the
sums, and removes their old header rows; a crash between two batches loses nothing, and the next
opening goes on with the header rows that are left. The version row comes last; then the old tables
are dropped, by the next opening if need be.
*Times are computed from the messages themselves*: nothing is dated zero and deleted for that.
*Cost*: one pass over the messages, each read and written once; half the disk again while it runs.
*Bounds*: MESSAGES_PER_BATCH messages in memory.
*What else to change when you change this*: `layout.LAYOUT_VERSION`, the fixtures of the old layouts
in tests/unit/store/maintenance/data.

Layout 1 to 2: a namespace row also has the archive's watermark. Layout 2 to 3: messages stand in
slices instead of one table for each kind of row, and are charged other bytes for their rows.

Opening a data folder: for its one writer, or for a reader beside it.

Source: retention document, "Backward-compatibility"; ADR 0006 §1, §6; store rows of the error
catalogue; decisions J4, J8, P43.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Final

from luxrelay.bus import ContentId
from luxrelay.errors import StoreError
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.durability.folder import Folder
from luxrelay.store.ledger import Ledger
from luxrelay.store.rocks import Database
from luxrelay.store.writing.rows import Rows

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


MESSAGES_PER_BATCH: Final = 1_000

_STATE_TAIL_BYTES: Final = 9
"""What layout 2 adds to a namespace row."""
_HEADERS: Final = "headers"
_BLOBS: Final = "blobs"
_HELD: Final = "held"
_OLD_TABLES: Final = (
    _HEADERS,
    "times",
    "expiries",
    "senders",
    "slots",
    "contents",
    _HELD,
    "references",
    _BLOBS,
)
"""The tables of layouts 1 and 2 that layout 3 has no more."""


def bring_up_to_date(folder: Folder, database: Database, config: RelayStoreConfig) -> None:
    """The database has the present layout, made so or new.

    Raises:
        StoreError: ``store.version`` for a newer one; ``store.corrupt`` when the version row or a
            blob is missing; ``store.io``.

    """
    value = database.get(layout.META, layout.VERSION_KEY)
    if value is None:
        if next(database.keys(layout.NAMESPACES, b"", b""), None) is not None:
            raise StoreError("the version row is missing", code="store.corrupt")
        _finish(database)
        return
    version = layout.decode_version(value)
    if version > layout.LAYOUT_VERSION:
        raise StoreError(
            f"the store has layout {version}, this version knows {layout.LAYOUT_VERSION}",
            code="store.version",
        )
    if version < layout.LAYOUT_VERSION:
        folder.mark(layout.LAYOUT_VERSION)
        _widen_states(database)
        _move_messages(database, config)
        _finish(database)
    for name in _OLD_TABLES:
        if name in database.names:
            database.drop(name)


def _finish(database: Database) -> None:
    batch = database.batch()
    batch.put(layout.META, layout.VERSION_KEY, layout.encode_version())
    database.write(batch)
    database.sync()


def _widen_states(database: Database) -> None:
    """Every namespace row has a place for the watermark."""
    batch = database.batch()
    for namespace, value in database.scan(layout.NAMESPACES, b"", b""):
        if len(value) == layout.STATE_BYTES - _STATE_TAIL_BYTES:
            batch.put(layout.NAMESPACES, namespace, value + bytes(_STATE_TAIL_BYTES))
    database.write(batch)


def _move_messages(database: Database, config: RelayStoreConfig) -> None:
    ledger = Ledger.load(database, config)
    left = database.scan(_HEADERS, b"", b"")
    while some := list(islice(left, MESSAGES_PER_BATCH)):
        batch = database.batch()
        rows = Rows(ledger.slices, batch)
        slots: dict[bytes, dict[ContentId, bytes]] = {}
        for key, value in some:
            slots.setdefault(key[: layout.SLOT_BYTES], {})
            _move(database, ledger, rows, key, value)
            batch.delete(_HEADERS, key)
        rows.finish(slots)
        database.write(batch)
        rows.publish(ledger.tree)
    batch = database.batch()
    for namespace, state in ledger.states.items():
        state.size_bytes = sum(share.size_bytes for _, share in ledger.slices.share(namespace))
        batch.put(layout.NAMESPACES, namespace, layout.encode_state(state))
    database.write(batch)


def _move(database: Database, ledger: Ledger, rows: Rows, key: bytes, value: bytes) -> None:
    row = layout.decode_row(value)
    where = ledger.slices.take(row.expires_at)
    slot, content = key[: layout.SLOT_BYTES], ContentId(key[layout.SLOT_BYTES :])
    part = rows.part(where, slot)
    part.count(layout.split_slot(slot)[1], layout.charge_bytes(row), row.expires_at, row.sender)
    rows.add(part, slot, content, row, value)
    if row.place is layout.BlobPlace.APART:
        blob = database.get(_BLOBS, row.commitment)
        if blob is None:
            raise StoreError("a blob is missing", where=key.hex(), code="store.corrupt")
        rows.add_blob(where, key, row.commitment, blob)
    if _HELD in database.names and database.get(_HELD, key) is not None:
        rows.hold(where, key)
