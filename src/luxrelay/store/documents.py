"""`Documents`: small values that other rooms keep beside the messages, such as signed policies.

A mapping of bytes to bytes in the database's own family, so that it needs no file of its own, is
durable when an assignment returns, and comes back with the store. Nothing in it expires.

Source: decisions H19, H20 (policy documents); architecture, rule 4.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, MutableMapping
from typing import Final

from luxrelay.errors import StoreArgumentError, StoreError
from luxrelay.store import layout
from luxrelay.store.gate import Gate
from luxrelay.store.rocks import Database

KEY_BYTES_MAX: Final = 128
"""Longest key."""
VALUE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Longest value: 64 policies of the largest size fit."""
DOCUMENTS_MAX: Final = 65_536
"""Most documents in one store."""
_PREFIX: Final = b"document/"


class Documents(MutableMapping[bytes, bytes]):
    """Documents by key; any thread may read and write."""

    def __init__(self, database: Database, gate: Gate) -> None:
        """Serve the documents of an open database."""
        self._database = database
        self._gate = gate
        self._lock = threading.Lock()
        self._count = sum(1 for _ in self)

    def __getitem__(self, key: bytes) -> bytes:
        """Return a document.

        Raises:
            KeyError: there is none.
            StoreError: the disk refused the read.

        """
        with self._gate.passage():
            value = self._database.get(layout.META, _PREFIX + key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: bytes, value: bytes) -> None:
        """Keep a document; durable when it returns.

        Raises:
            StoreArgumentError: the key or the value is too long.
            StoreError: ``store.full`` beyond `DOCUMENTS_MAX`, or the disk refused the write.

        """
        if not 0 < len(key) <= KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX:
            raise StoreArgumentError(
                f"a key has 1 to {KEY_BYTES_MAX} bytes, a value {VALUE_BYTES_MAX} at most",
                where="Documents",
            )
        with self._lock:
            new = key not in self
            if new and self._count >= DOCUMENTS_MAX:
                raise StoreError(
                    f"the store holds {DOCUMENTS_MAX} documents",
                    where="documents",
                    code="store.full",
                )
            with self._gate.passage():
                batch = self._database.batch()
                batch.put(layout.META, _PREFIX + key, value)
                self._database.write(batch)
                self._database.sync()
            self._count += new

    def __delitem__(self, key: bytes) -> None:
        """Forget a document; durable when it returns.

        Raises:
            KeyError: there is none.
            StoreError: the disk refused the write.

        """
        with self._lock:
            if key not in self:
                raise KeyError(key)
            with self._gate.passage():
                batch = self._database.batch()
                batch.delete(layout.META, _PREFIX + key)
                self._database.write(batch)
                self._database.sync()
            self._count -= 1

    def __iter__(self) -> Iterator[bytes]:
        """Yield the keys in order."""
        with self._gate.passage():
            found = list(self._database.keys(layout.META, _PREFIX, layout.after(_PREFIX)))
        for key in found:
            yield key[len(_PREFIX) :]

    def __len__(self) -> int:
        """Return how many documents there are."""
        return self._count
