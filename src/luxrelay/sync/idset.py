"""`SortedIds`: an ordered set of (timestamp, content id) with fast range fingerprints.

Kept as arrays: 40 bytes an id, and one running sum for each 256 of them, so that the fingerprint of
any range costs two lookups and at most 510 additions, whatever its length.

Source: Negentropy protocol version 1; decision J5.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from luxrelay.errors import SyncArgumentError

ID_BYTES: Final = 32
"""Bytes of an id."""
FINGERPRINT_BYTES: Final = 16
"""Bytes of a range's fingerprint."""
_BLOCK: Final = 256
_WORDS: Final = ID_BYTES // 4
_MODULUS_BYTES: Final = ID_BYTES

Stamps = tuple[NDArray[np.uint64], NDArray[np.uint8]]
"""Timestamps of n ids, and the ids as n rows of 32 bytes."""


class SortedIds:
    """Distinct (timestamp, id) pairs in ascending order; does not change.

    Args:
        timestamps: n timestamps, Unix milliseconds.
        ids: n rows of 32 bytes.

    Raises:
        SyncArgumentError: the two do not fit together.

    """

    __slots__ = ("_blocks", "_ids", "_order", "_stamps")

    def __init__(self, timestamps: NDArray[np.uint64], ids: NDArray[np.uint8]) -> None:
        if ids.shape != (len(timestamps), ID_BYTES):
            raise SyncArgumentError("one id of 32 bytes for each timestamp", where="SortedIds")
        rows = np.ascontiguousarray(ids)
        words = rows.view(">u8").reshape(-1, 4)
        order = np.lexsort((words[:, 3], words[:, 2], words[:, 1], words[:, 0], timestamps))
        stamps, rows = timestamps[order], rows[order]
        if len(stamps):
            fresh = np.ones(len(stamps), np.bool_)
            fresh[1:] = (stamps[1:] != stamps[:-1]) | (rows[1:] != rows[:-1]).any(axis=1)
            stamps, rows = stamps[fresh], rows[fresh]
        self._stamps: NDArray[np.uint64] = np.ascontiguousarray(stamps, np.uint64)
        self._order = self._stamps.data
        self._ids: NDArray[np.uint8] = np.ascontiguousarray(rows)
        # Sums up to each block: a fingerprint of any range costs two differences and two ends of a
        # block, however many ids it has, so that tiny messages cannot ask for large sums.
        whole = len(stamps) // _BLOCK
        sums = self._limbs()[: whole * _BLOCK].reshape(whole, _BLOCK, _WORDS)
        self._blocks: NDArray[np.uint64] = np.zeros((whole + 1, _WORDS), np.uint64)
        np.cumsum(sums.sum(axis=1, dtype=np.uint64), axis=0, out=self._blocks[1:])

    @classmethod
    def of(cls, items: Iterable[tuple[int, bytes]]) -> Self:
        """Return the set of some pairs."""
        pairs = list(items)
        return cls(
            np.array([stamp for stamp, _ in pairs], np.uint64),
            np.frombuffer(b"".join(each for _, each in pairs), np.uint8).reshape(-1, ID_BYTES),
        )

    def __len__(self) -> int:
        return len(self._stamps)

    def _limbs(self) -> NDArray[np.uint32]:
        """Return the ids as little-endian words, lowest first."""
        return self._ids.view("<u4").reshape(-1, _WORDS)

    def item(self, index: int) -> tuple[int, bytes]:
        """Return timestamp and id at a place."""
        return int(self._stamps[index]), self._ids[index].tobytes()

    def ids(self, lower: int, upper: int) -> list[bytes]:
        """Return the ids from place ``lower`` to below ``upper``."""
        data = self._ids[lower:upper].tobytes()
        return [data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)]

    def fingerprint(self, lower: int, upper: int) -> bytes:
        """Return what sums up the ids from place ``lower`` to below ``upper``; 16 bytes.

        Their sum as little-endian numbers modulo 2^256, and their number, hashed.
        """
        first, last = -(-lower // _BLOCK), upper // _BLOCK
        limbs = self._limbs()
        if first < last:
            total = self._blocks[last] - self._blocks[first]
            total = total + limbs[lower : first * _BLOCK].sum(axis=0, dtype=np.uint64)
            total = total + limbs[last * _BLOCK : upper].sum(axis=0, dtype=np.uint64)
        else:
            total = limbs[lower:upper].sum(axis=0, dtype=np.uint64)
        # Sums of 32-bit words in 64 bits do not overflow below 2^32 ids; the carries are made here.
        number = 0
        for index, limb in enumerate(total.tolist()):
            number += limb << (32 * index)
        data = (number % (1 << 256)).to_bytes(_MODULUS_BYTES, "little")
        count = upper - lower
        tail = bytearray([count & 127])
        while count := count >> 7:
            tail.insert(0, 128 | count & 127)
        return hashlib.sha256(data + bytes(tail)).digest()[:FINGERPRINT_BYTES]

    def lower_bound(self, begin: int, end: int, stamp: int, prefix: bytes) -> int:
        """Return the first place from ``begin`` to ``end`` that is not below a bound.

        Args:
            begin: Where to look from.
            end: Returned when everything is below.
            stamp: Timestamp of the bound; one above 64 bits is beyond everything.
            prefix: Beginning of the id of the bound, as if filled up with zeros.

        """
        if stamp > 0xFFFF_FFFF_FFFF_FFFF:
            return end
        # Not numpy's search: it lets the lock of the interpreter go for a microsecond, and a thread
        # that does so in a loop gets it back each time before anybody who waits has woken.
        low = bisect_left(self._order, stamp, begin, end)
        if not prefix:
            return low
        high = bisect_right(self._order, stamp, low, end)
        wanted = prefix.ljust(ID_BYTES, b"\0")
        ids = self._ids
        return low + bisect_left(range(low, high), wanted, key=lambda at: ids[at].tobytes())
