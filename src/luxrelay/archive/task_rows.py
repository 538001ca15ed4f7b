"""The checked rows of one task until they are written, and which of them carry the same message.

Rows beyond a bound of memory lie in a temporary file, mapped and without a name from its first
byte: it goes with the process, however that ends. A copy of a message has its slot, and a slot is
read by one task of one batch (`source`), so copies meet here and nowhere else.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from luxrelay.archive.schema import CHECKED, Table
from luxrelay.bus import constants as c

Words = npt.NDArray[np.uint64]

_CHECKED_NAMES: Final = {"namespace": "namespace_id", "seq": "served_seq"}
"""Columns of ``raw`` and ``rejects`` that checked rows have under another name."""


@dataclass(slots=True)
class Copy:
    """What is known of one message that several rows carry."""

    row: int
    """The row that is kept, counted over the task."""
    order: tuple[bool, bool, int, bytes]
    """The lowest is kept: one with its payload, one with its sidecar, then the first received."""
    received_at: int
    expires_at: int
    relays: set[str]

    def join(self, other: Copy) -> None:
        """Note what another row says of the message."""
        self.received_at = min(self.received_at, other.received_at)
        self.expires_at = max(self.expires_at, other.expires_at)
        self.relays |= other.relays


class Copies(NamedTuple):
    """What is known of all messages that several rows carry."""

    left_out: frozenset[int]
    """Rows that repeat a message of another row."""
    kept: Mapping[int, Copy]
    """By the row that is kept."""


_NO_DIGEST: Final = bytes(c.HASH_BYTES)
_NO_COPIES: Final = Copies(frozenset(), {})


@dataclass(slots=True)
class TaskRows:
    """The checked rows of a task, and what is known of them all."""

    held_bytes: int
    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    _mapped: list[pa.RecordBatch] = field(default_factory=list)
    _held: list[pa.RecordBatch] = field(default_factory=list)
    _bytes: int = 0
    good: int = 0
    """Rows that carry a message."""
    _beginnings: list[Words] = field(default_factory=list)

    def add(self, checked: pa.RecordBatch) -> None:
        """Take in checked rows."""
        if not checked.num_rows:
            return
        pairs = pa.table([checked.column("relay"), checked.column("code")], ["relay", "code"])
        for found in pairs.group_by(["relay", "code"]).aggregate([([], "count_all")]).to_pylist():
            self.counts[found["relay"], found["code"]] += found["count_all"]
        good = checked.column("content_id").filter(pc.equal(checked.column("code"), 0))
        self.good += len(good)
        self._beginnings.append(_beginnings(good))
        self._held.append(checked)
        self._bytes += checked.nbytes
        if self._bytes >= self.held_bytes:
            self._spill()

    def chunks(self, file_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows in order, in tables of bounded size."""
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in (*self._mapped, *self._held):
            waiting.append(batch)
            size += batch.nbytes
            if size >= file_bytes:
                yield pa.Table.from_batches(waiting)
                waiting, size = [], 0
        if waiting:
            yield pa.Table.from_batches(waiting)

    def copies(self) -> Copies:
        """Return what is known of messages that stand in several rows.

        Rows are looked at one by one only when two ids begin alike: they are the same then, or
        somebody has searched long for two that are not.
        """
        if not self.good or len(np.unique(np.concatenate(self._beginnings))) == self.good:
            return _NO_COPIES
        kept: dict[bytes, Copy] = {}
        left_out = set()
        first = 0
        for batch in (*self._mapped, *self._held):
            for content_id, found in _copies_in(batch, first):
                known = kept.setdefault(content_id, found)
                if known is found:
                    continue
                first_copy, other = sorted((known, found), key=lambda copy: copy.order)
                kept[content_id] = first_copy
                first_copy.join(other)
                left_out.add(other.row)
            first += batch.num_rows
        return Copies(frozenset(left_out), {each.row: each for each in kept.values()})

    def repeats(self, table: Table) -> frozenset[int]:
        """Return the rows, counted over the task, whose key in ``raw`` or ``rejects`` repeats.

        Keys are compared of rows whose digests begin as another one's does.
        """
        batches = (*self._mapped, *self._held)
        digests = [_beginnings(batch.column("digest").fill_null(_NO_DIGEST)) for batch in batches]
        if not digests:
            return frozenset()
        _, kinds, counts = np.unique(
            np.concatenate(digests), return_inverse=True, return_counts=True
        )
        alike = counts[kinds] > 1
        names = [_CHECKED_NAMES.get(name, name) for name in table.key]
        seen: set[tuple[object, ...]] = set()
        found = set()
        first = 0
        for batch in batches:
            rows = np.flatnonzero(alike[first : first + batch.num_rows])
            columns = (batch.column(name).take(pa.array(rows)).to_pylist() for name in names)
            for row, *key in zip(rows.tolist(), *columns, strict=True):
                if tuple(key) in seen:
                    found.add(first + row)
                seen.add(tuple(key))
            first += batch.num_rows
        return frozenset(found)

    def _spill(self) -> None:
        """Move the rows in memory to a file that is mapped and goes with this process."""
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
        with tempfile.TemporaryFile(dir=folder, prefix="luxrelay-rows-") as file:
            with pa.ipc.new_file(file, CHECKED.arrow()) as sink:
                for batch in self._held:
                    sink.write_batch(batch)
            file.flush()
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            mapped = pa.ipc.open_file(pa.py_buffer(whole))
            self._mapped += [mapped.get_batch(n) for n in range(mapped.num_record_batches)]
        self._held, self._bytes = [], 0


def _beginnings(content_ids: pa.Array) -> Words:
    """Return the first eight bytes of each."""
    if not len(content_ids):
        return np.zeros(0, np.uint64)
    fixed = content_ids.cast(pa.binary(c.HASH_BYTES))
    words = np.frombuffer(fixed.buffers()[1], np.uint64).reshape(-1, c.HASH_BYTES // 8)
    return words[fixed.offset : fixed.offset + len(fixed), 0].copy()  # not a view of all bytes


def _copies_in(batch: pa.RecordBatch, first: int) -> Iterator[tuple[bytes, Copy]]:
    """Yield content id and what is known of each good row; ``first`` is the batch's first row."""
    names = ("code", "content_id", "digest", "received_at", "expires_at", "relay")
    columns = [batch.column(name).to_pylist() for name in names]
    bare = [batch.column(name).is_null().to_pylist() for name in ("blob", "sidecar")]
    for row, (blob, sidecar, code, content_id, digest, received_at, expires_at, relay) in enumerate(
        zip(*bare, *columns, strict=True), start=first
    ):
        if code == 0:
            order = (blob, sidecar, received_at, digest)
            yield content_id, Copy(row, order, received_at, expires_at, {relay})
