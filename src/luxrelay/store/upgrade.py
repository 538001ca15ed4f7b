"""From an older layout to the present one, in place.

Theory of operation
-------------------
*Decides* which rows are written anew, and when the folder counts as upgraded.
*Machine*: the folder's marker is set first, so that an older version refuses the folder from then
on; rows follow in batches; the version row comes last. A crash in between leaves the old version
row, and the next opening begins again: a row that has its new form is known by its length.
*Times are computed from the messages themselves*: nothing is dated zero and deleted for that.
*Cost*: one pass over the id rows, one read of a message each.
*Bounds*: ROWS_PER_BATCH rows in memory.
*What else to change when you change this*: `layout.LAYOUT_VERSION`, the fixture of the old layout
in tests/unit/store/data.

Layout 1 to 2: an id row also has timestamp and expiry; a namespace row also has the archive's
watermark; a message is charged 16 bytes more.

Source: retention document, "Backward-compatibility"; store-notes 6; decisions J4, J8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from luxrelay.errors import StoreError
from luxrelay.store import layout
from luxrelay.store.folder import Folder
from luxrelay.store.rocks import Database

ROWS_PER_BATCH: Final = 1_000

_STATE_TAIL_BYTES: Final = 9
"""What layout 2 adds to a namespace row."""
_CHARGE_GROWTH: Final = 16
_Row = tuple[str, bytes, bytes]


def bring_up_to_date(folder: Folder, database: Database) -> None:
    """The database has the present layout, made so or new.

    Raises:
        StoreError: ``store.version`` for a newer one; ``store.corrupt`` when the version row is
            missing or a message is; ``store.io``.

    """
    value = database.get(layout.META, layout.VERSION_KEY)
    if value is None:
        if next(database.keys(layout.NAMESPACES, b"", b""), None) is not None:
            raise StoreError("the version row is missing", code="store.corrupt")
    elif (version := layout.decode_version(value)) > layout.LAYOUT_VERSION:
        raise StoreError(
            f"the store has layout {version}, this version knows {layout.LAYOUT_VERSION}",
            code="store.version",
        )
    elif version == layout.LAYOUT_VERSION:
        return
    else:
        folder.mark(layout.LAYOUT_VERSION)
        _write(database, _from_1_to_2(database))
    batch = database.batch()
    batch.put(layout.META, layout.VERSION_KEY, layout.encode_version())
    database.write(batch)
    database.sync()


def _from_1_to_2(database: Database) -> Iterator[_Row]:
    for content, slot in database.scan(layout.CONTENTS, b"", b""):
        if len(slot) == layout.CONTENT_VALUE_BYTES:
            continue
        stored = database.get(layout.HEADERS, slot + content)
        if stored is None:
            raise StoreError("an id row has no message", where=content.hex(), code="store.corrupt")
        row = layout.decode_row(stored)
        times = layout.u64(row.timestamp) + layout.u64(row.expires_at)
        yield layout.CONTENTS, content, slot + times
    for namespace, value in database.scan(layout.NAMESPACES, b"", b""):
        if len(value) == layout.STATE_BYTES - _STATE_TAIL_BYTES:
            state = layout.decode_state(namespace, value + bytes(_STATE_TAIL_BYTES))
            state.size_bytes += _CHARGE_GROWTH * state.messages
            yield layout.NAMESPACES, namespace, layout.encode_state(state)


def _write(database: Database, rows: Iterator[_Row]) -> None:
    batch = database.batch()
    for family, key, value in rows:
        batch.put(family, key, value)
        if len(batch) == ROWS_PER_BATCH:
            database.write(batch)
            batch = database.batch()
    database.write(batch)
