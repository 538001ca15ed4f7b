"""The rolling Bloom filter of a participant: which messages it has received.

A filter for ``n`` messages at error rate ``e`` has ``ceil(-ln e / (ln 2)^2)`` bits for each and
``round(ln 2 * bits)`` hashes; 10,000 at 0.001 make 18,752 bytes and ten hashes. On the wire the
64-bit words stand big-endian, one after another, without parameters: both sides must know them.

*Rolling*: a filter filled beyond its capacity would say yes to everything, so one that holds a
fifth more than that is made anew from the newest four fifths.

The hash is MurmurHash3 (x86, 32 bit, seed 0), signed and then made positive, of the id and of the
id followed by ``" b"``; position i is ``(first + i * second) mod bits``. The JavaScript
implementation feeds characters as bytes, so ids that both sides hash must be ASCII, as hex is.

Source: SDS (bloom filter); decision C5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import mmh3

_ROLL_ABOVE: Final = 1.2
"""Filled to this share of its capacity, a filter rolls over."""
_ROLL_KEEP: Final = 0.8
"""Share of the capacity that stays."""


class RollingBloom:
    """Ids received, newest last, and the filter over them.

    Args:
        capacity: Ids the filter is made for.
        error_rate: Share of false positives at that many.
        hashes: Positions of an id; None for the number that fits.
        bits_per_element: Bits for each id of the capacity; None for the number that fits.

    """

    def __init__(
        self,
        capacity: int,
        error_rate: float,
        *,
        hashes: int | None = None,
        bits_per_element: int | None = None,
    ) -> None:
        bits = bits_per_element or math.ceil(-math.log(error_rate) / math.log(2) ** 2)
        self.hashes = hashes or round(math.log(2) * bits)
        """Positions of an id."""
        self.bits = capacity * bits
        """Bits that positions fall into."""
        self.size_bytes = 8 * (1 + self.bits // 64)
        """Length on the wire, bytes."""
        self.capacity = capacity
        """Ids the filter is made for."""
        self._words = bytearray(self.size_bytes)
        self._ids: dict[str, None] = {}
        self.rolls = 0
        """Times it rolled over."""

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, message_id: str) -> None:
        """Have an id from now on; rolls over when it is one too many."""
        if message_id in self._ids:
            return
        self._ids[message_id] = None
        if len(self._ids) > self.capacity * _ROLL_ABOVE:
            self._roll()
            return
        words = self._words
        for byte, mask in self.marks(message_id):
            words[byte] |= mask

    def encode(self) -> bytes:
        """Return the filter as it goes on the wire."""
        return bytes(self._words)

    def marks(self, message_id: str) -> list[tuple[int, int]]:
        """Return where an id is marked: bytes of the encoded filter, and the bit in each."""
        return [
            ((position >> 6) * 8 + 7 - (position >> 3 & 7), 1 << (position & 7))
            for position in self.positions(message_id)
        ]

    def positions(self, message_id: str) -> list[int]:
        """Return the bits of an id, in order of the hashes."""
        bits = self.bits
        first = abs(mmh3.hash(message_id)) % bits
        second = abs(mmh3.hash(message_id + " b")) % bits
        return [(first + index * second) % bits for index in range(self.hashes)]

    def _roll(self) -> None:
        """Make the filter anew from the newest ids."""
        keep = list(self._ids)[-int(self.capacity * _ROLL_KEEP) :]
        self._ids = dict.fromkeys(keep)
        self._words = bytearray(self.size_bytes)
        self.rolls += 1
        for message_id in keep:
            for byte, mask in self.marks(message_id):
                self._words[byte] |= mask


def shows(filter_bytes: bytes, marks: Iterable[tuple[int, int]]) -> bool:
    """Return whether an encoded filter has an id, given the id's marks."""
    return all(filter_bytes[byte] & mask for byte, mask in marks)
