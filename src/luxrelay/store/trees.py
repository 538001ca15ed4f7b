"""The Merkle trees of a store that was closed, kept beside its database for the next opening.

Theory of operation
-------------------
*Decides* whether a kept tree is still that of its slice. Finding a tree again from the rows takes
seconds for a million messages; reading one takes milliseconds.
*When it counts*: the file names the database (RocksDB's IDENTITY) and the sequence number of its
last row. A row written since, by whatever version of this program, a database that was repaired,
or one that has lost rows has another number or name, and the trees are found from the rows.
*Machine*: closing writes the file, whole or not at all; opening for writing takes it away before
anything is written. So a crash leaves none. A disk that does not take or give the file costs the
time to read the rows and nothing else.
*Bounds*: slices of at least `IDS_MIN` messages, the `SLICES_MAX` largest, 2.5 MiB each.
*What else to change when you change this*: `merkle`, `slices`, docs/explanation/store.md.

Source: ADR 0006 §4; decisions J4.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

from luxrelay.errors import StoreError
from luxrelay.files import read_bounded, sync_folder, write_whole
from luxrelay.store.merkle import TABLE_BYTES, MerkleTree
from luxrelay.store.rocks import Database

TREES: Final = "luxrelay-trees"
IDS_MIN: Final = 10_000
"""Messages from which on a slice's tree is kept; a smaller one is found from the rows at once."""
SLICES_MAX: Final = 32
"""Trees kept; more would make closing slow."""
_MAGIC: Final = b"LXTREES" + sys.byteorder[:1].encode()
_HEAD: Final = struct.Struct(">8s64sQI")
_ENTRY: Final = struct.Struct(">QQ")
_BYTES_MAX: Final = _HEAD.size + SLICES_MAX * (_ENTRY.size + TABLE_BYTES) + 4


def keep(folder: Path, database: Database, trees: Iterable[tuple[int, MerkleTree]]) -> bool:
    """The trees are on the disk, or none are: False when the disk does not take them.

    Args:
        folder: The store's.
        database: As it stands; nothing is written to it any more.
        trees: Number of a slice, and its tree.

    """
    large = [(number, tree) for number, tree in trees if len(tree) >= IDS_MIN]
    large.sort(key=lambda each: -len(each[1]))
    identity = database.identity()
    if not large or not identity:
        return False
    head = _HEAD.pack(_MAGIC, identity, database.sequence(), len(large[:SLICES_MAX]))
    parts = [head]
    for number, tree in large[:SLICES_MAX]:
        parts += [_ENTRY.pack(number, len(tree)), tree.dump()]
    check = 0
    for part in parts:
        check = crc32(part, check)
    try:
        write_whole(folder / TREES, [*parts, check.to_bytes(4, "big")])
    except OSError:
        return False
    return True


def kept(folder: Path, database: Database) -> Mapping[int, MerkleTree]:
    """Return the trees by number of their slice; none when they are not those of the rows."""
    try:
        data = read_bounded(folder / TREES, _BYTES_MAX)
    except OSError:
        return {}
    if len(data) < _HEAD.size + 4:
        return {}
    body = memoryview(data)[:-4]
    magic, identity, sequence, count = _HEAD.unpack_from(data)
    whole = len(body) == _HEAD.size + count * (_ENTRY.size + TABLE_BYTES)
    named = (magic, identity.rstrip(b"\0"), sequence)
    if named != (_MAGIC, database.identity(), database.sequence()) or not named[1]:
        return {}
    if not whole or crc32(body) != int.from_bytes(data[-4:], "big"):
        return {}
    found, place = {}, _HEAD.size
    for _ in range(count):
        number, ids = _ENTRY.unpack_from(body, place)
        place += _ENTRY.size
        tree = MerkleTree.of_dump(body[place : place + TABLE_BYTES])
        place += TABLE_BYTES
        if len(tree) == ids:
            found[number] = tree
    return found


def forget(folder: Path) -> None:
    """Nothing is kept any more, not even after a power cut.

    Raises:
        StoreError: ``store.io``: the file stays, and would be wrong after the next row.

    """
    with suppress(OSError):
        (folder / (TREES + ".new")).unlink()
    try:
        (folder / TREES).unlink()
        sync_folder(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(
            f"the kept trees cannot be taken away: {error.strerror}",
            where=str(folder / TREES),
            code="store.io",
            hint="remove it by hand; they are found again from the rows",
        ) from error
