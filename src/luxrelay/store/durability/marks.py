"""Files beside the database: high-water marks, which show a loss, and kept Merkle trees.

Theory of operation
-------------------
*Decides* whether an opened database holds less than was there.
*Why*: RocksDB opens without an error after its log or manifest was damaged or cut, with the newest
rows missing. And with durability ``os`` a power cut loses what the system had not written yet.
*The mark* is a small file beside the database, written anew and synced: the sequence number of the
last row, the number of messages, and how far the namespaces written last went.
*Machine*: a thread marks at most every mark_interval_ms while something was written, *first* the
mark, *then* the log is synced: a mark may promise more than is on the disk, never less. So with
``os`` a crash loses what came after the last mark, at most an interval, and whatever the mark
promised is named with its namespaces. Closing marks the end.
*Threads*: one for each store that writes.
*Bounds*: HEADS_MAX namespaces a mark; of others only the number is kept. One sync an interval.
*What else to change when you change this*: docs/explanation/store.md, tests/chaos.

The Merkle trees of a store that was closed, kept beside its database for the next opening.

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

Source: ADR 0006 §4; decisions P3, P43, J4.
"""

from __future__ import annotations

import errno
import json
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zlib import crc32

from luxrelay.bus import NamespaceId
from luxrelay.errors import StoreError
from luxrelay.files import read_bounded, sync_folder, write_whole
from luxrelay.store.ledger import Ledger
from luxrelay.store.merkle import TABLE_BYTES, MerkleTree
from luxrelay.store.rocks import Database
from luxrelay.wire import from_hex

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


MARK: Final = "luxrelay-mark"
HEADS_MAX: Final = 1_000
"""Namespaces named in a mark, those written last."""
MARK_BYTES_MAX: Final = 256 * 1024
NAMED_MAX: Final = 20
"""Namespaces named in a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What was in the database at one moment."""

    sequence: int
    """RocksDB's number of the last row written."""
    messages: int
    """Messages held."""
    heads: Mapping[NamespaceId, int] = field(default_factory=dict)
    """Latest sequence of the namespaces written last."""
    others: int = 0
    """Namespaces that are not named."""
    clean: bool = False
    """True for the mark of a store that was closed."""

    def encode(self) -> bytes:
        """Return the mark as bytes with a checksum."""
        text = json.dumps(
            {
                "sequence": self.sequence,
                "messages": self.messages,
                "heads": {name.hex(): latest for name, latest in self.heads.items()},
                "others": self.others,
                "clean": self.clean,
            }
        ).encode()
        return b"luxrelay mark 1 %08x\n" % crc32(text) + text

    @classmethod
    def decode(cls, data: bytes) -> Mark:
        """Return the mark that ``data`` encodes.

        Raises:
            StoreError: ``store.corrupt``; nothing else, whatever the bytes.

        """
        head, _, text = data.partition(b"\n")
        if head != b"luxrelay mark 1 %08x" % crc32(text):
            raise StoreError("the mark of what was held cannot be read", code="store.corrupt")
        try:
            value = json.loads(text)
            heads = {NamespaceId(from_hex(k)): int(v) for k, v in value["heads"].items()}
            return cls(
                sequence=int(value["sequence"]),
                messages=int(value["messages"]),
                heads=heads,
                others=int(value["others"]),
                clean=bool(value["clean"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(
                "the mark of what was held cannot be read", code="store.corrupt"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a store was found to have lost when it was opened."""

    rows: int
    """Rows, of whatever kind, that were written and are gone."""
    messages: int
    """Messages fewer than there were, as far as is known."""
    namespaces: Mapping[NamespaceId, tuple[int, int]]
    """Latest sequence now and as it was, of namespaces that are known to have lost messages."""
    others: int
    """Namespaces that may have lost some as well."""
    unreadable: bool = False
    """True when the mark itself is damaged: nothing is known."""

    def lines(self) -> list[str]:
        """Return what an operator has to know."""
        if self.unreadable:
            return ["the mark of what the store held is damaged: losses would not be noticed"]
        first = f"the store has lost {self.rows} rows, at least {self.messages} messages"
        found = [first + "; catching up brings what peers still have"]
        for name, (latest, was) in list(self.namespaces.items())[:NAMED_MAX]:
            found.append(f"namespace {name.hex()} reached sequence {was}, now {latest}")
        unnamed = self.others + max(0, len(self.namespaces) - NAMED_MAX)
        if unnamed:
            found.append(f"{unnamed} more namespaces may have lost messages")
        return found


def read(folder: Path) -> Mark | Loss | None:
    """Return the mark in ``folder``, None without one; a damaged one is a loss itself.

    Read it before the database is opened: a node may write both meanwhile.

    Raises:
        StoreError: ``store.io``.

    """
    try:
        return Mark.decode(read_bounded(folder / MARK, MARK_BYTES_MAX))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise _refused(error, folder) from error
        return Loss(rows=0, messages=0, namespaces={}, others=0, unreadable=True)
    except StoreError:
        return Loss(rows=0, messages=0, namespaces={}, others=0, unreadable=True)


def compare(mark: Mark | Loss | None, sequence: int, ledger: Ledger) -> Loss | None:
    """Return what is missing by a mark; None when nothing is, or there is no mark."""
    if not isinstance(mark, Mark):
        return mark
    if sequence >= mark.sequence:
        return None
    latest = {name: ledger.head(name).latest_seq for name in mark.heads}
    return Loss(
        rows=mark.sequence - sequence,
        messages=max(0, mark.messages - ledger.messages),
        namespaces={
            name: (latest[name], was) for name, was in mark.heads.items() if latest[name] < was
        },
        others=mark.others,
    )


def write(folder: Path, mark: Mark) -> None:
    """The mark is on the disk, or the one before still is.

    Raises:
        StoreError: ``store.io``.

    """
    try:
        write_whole(folder / MARK, mark.encode())
    except OSError as error:
        raise _refused(error, folder) from error


class MarkWriter:
    """Marks at most every interval, while something was written."""

    def __init__(self, folder: Path, interval_s: float, take: Callable[[], Mark]) -> None:
        """Write what ``take`` gives; it may raise StoreError, which ends nothing."""
        self._folder = folder
        self._interval_s = interval_s
        self._take = take
        self._work = threading.Event()
        self.touch: Callable[[], None] = self._work.set
        """Tells that something was written; called for each batch."""
        self._stop = threading.Event()
        self.after: Callable[[], None] = lambda: None
        """Called after each mark, in the marker's thread."""
        self.marks = 0
        """Marks written."""
        self._thread = threading.Thread(target=self._run, name="store-mark", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The thread has ended."""
        self._stop.set()
        self._work.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._work.wait()
            if self._stop.is_set():
                return
            self._work.clear()
            try:
                write(self._folder, self._take())
                self.marks += 1
                self.after()
            except StoreError:
                pass  # the next put meets the same disk, and says so
            self._stop.wait(self._interval_s)


def _refused(error: OSError, folder: Path) -> StoreError:
    return StoreError(f"the mark cannot be kept: {error.strerror}", where=str(folder / MARK))
