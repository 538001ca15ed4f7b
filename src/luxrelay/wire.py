"""Bytes as they stand on wires, in files and in text: fields, protobuf's varints, hex digits.

*Fields*: a cursor takes them off the front and says where they ran out; every decoder uses it with
an error of its own, and nothing is sliced before its length is known to be there (H10).
*Varints*: groups of seven bits, lowest first, all but the last marked.
*Hex*: digits in pairs of either case, with 0x before them or without, and nothing between them;
each door wraps `ValueError` in its own error.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final

from luxrelay.errors import RemoteError

_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_HEX: Final = re.compile(r"(?:0x)?((?:[0-9a-fA-F]{2})*)", re.ASCII)
VARINT_BYTES_MAX: Final = 10
"""Bytes of the longest varint, one of 64 bits."""
_VARINTS: Final = tuple(
    bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7)) for n in range(16_384)
)


def from_hex(text: str, length: int | None = None) -> bytes:
    """Return the bytes of hex digits, with or without 0x.

    Args:
        text: What somebody wrote.
        length: Bytes expected; None for any number.

    Raises:
        ValueError: it is something else; the message says what is expected.

    """
    found = _HEX.fullmatch(text)
    if found is None:
        raise ValueError("expected hex digits in pairs")
    value = bytes.fromhex(found[1])
    if length is not None and len(value) != length:
        raise ValueError(f"expected {length} bytes ({2 * length} hex digits), found {len(value)}")
    return value


def to_hex(value: bytes) -> str:
    """Return 0x and lower-case digits, as every door of the product writes bytes."""
    return "0x" + value.hex()


def varint(value: int) -> bytes:
    """Return a number that is not negative as a varint."""
    if value < 16_384:
        return _VARINTS[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int, bytes_max: int = VARINT_BYTES_MAX) -> tuple[int, int]:
    """Return the varint that begins at ``at``, and where it ends.

    Raises:
        IndexError: it is cut, or longer than ``bytes_max`` bytes.

    """
    value = data[at]
    if value < 128:
        return value, at + 1
    value &= 127
    for place in range(1, bytes_max):
        byte = data[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise IndexError(at)


class ByteReader:
    """A cursor over bytes; every failure is an ``error`` that names the byte."""

    __slots__ = ("_error", "_name", "data", "offset")

    def __init__(self, data: bytes, error: type[RemoteError], name: str) -> None:
        """Stand at the first byte of ``data``, which messages call ``name``."""
        self.data = data
        self.offset = 0
        self._error = error
        self._name = name

    def fail(self, what: str) -> RemoteError:
        """Return the error that names where the reader stands."""
        return self._error(what, where=f"{self._name} byte {self.offset}")

    def take(self, count: int, name: str = "", low: int = 0, high: int | None = None) -> bytes:
        """Return the next ``count`` bytes.

        Args:
            count: How many.
            name: The field, for the error; empty for the whole.
            low: Fewest it may have, where ``high`` is given.
            high: Most it may have.

        """
        if high is not None:
            self.within(count, f"length of {name}", low, high)
        if self.offset + count > len(self.data):
            raise self.fail(f"{name or 'the ' + self._name} is cut off")
        self.offset += count
        return self.data[self.offset - count : self.offset]

    def within(self, value: int, name: str, low: int, high: int) -> int:
        """Return a value that is from ``low`` to ``high``."""
        if not low <= value <= high:
            raise self.fail(f"{name} is {value}, not {low} to {high}")
        return value

    def u8(self, name: str = "") -> int:
        """Return the next byte."""
        return self.take(1, name)[0]

    def u16(self, name: str = "") -> int:
        """Return the next two bytes, big-endian."""
        return int(_U16.unpack(self.take(2, name))[0])

    def u32(self, name: str = "") -> int:
        """Return the next four bytes, big-endian."""
        return int(_U32.unpack(self.take(4, name))[0])

    def u64(self, name: str = "") -> int:
        """Return the next eight bytes, big-endian."""
        return int(_U64.unpack(self.take(8, name))[0])

    def u256(self) -> int:
        """Return the next 32 bytes, big-endian."""
        return int.from_bytes(self.take(32), "big")

    def end(self) -> None:
        """Refuse bytes after the last field."""
        if self.offset != len(self.data):
            raise self.fail(
                f"the {self._name} has {len(self.data) - self.offset} bytes after its end"
            )
