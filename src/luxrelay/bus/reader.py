"""Takes fields from the front of bytes and says where they ran out.

Every decoder of the room uses it, each with its own error; nothing is sliced before its length is
known to be there (H10).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from luxrelay.errors import RemoteError

_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")


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

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        if self.offset + count > len(self.data):
            raise self.fail(f"the {self._name} is cut")
        self.offset += count
        return self.data[self.offset - count : self.offset]

    def u8(self) -> int:
        """Return the next byte."""
        return self.take(1)[0]

    def u16(self) -> int:
        """Return the next two bytes, big-endian."""
        return int(_U16.unpack(self.take(2))[0])

    def u32(self) -> int:
        """Return the next four bytes, big-endian."""
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        """Return the next eight bytes, big-endian."""
        return int(_U64.unpack(self.take(8))[0])

    def u256(self) -> int:
        """Return the next 32 bytes, big-endian."""
        return int.from_bytes(self.take(32), "big")

    def end(self) -> None:
        """Refuse bytes after the last field."""
        if self.offset != len(self.data):
            raise self.fail(f"the {self._name} has bytes after its end")
