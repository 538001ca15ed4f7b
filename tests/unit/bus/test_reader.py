"""The cursor that every decoder reads with."""

import pytest

from luxrelay.bus.reader import ByteReader
from luxrelay.errors import FeeError, PolicyError


def test_reads_big_endian_fields_in_order() -> None:
    """Fields come from the front, big-endian, and the end is where it says."""
    reader = ByteReader(bytes(range(1, 16)) + bytes(32), PolicyError, "thing")

    assert (reader.u8(), reader.u16(), reader.u32()) == (1, 0x0203, 0x04050607)
    assert reader.u64() == 0x08090A0B0C0D0E0F
    assert reader.u256() == 0
    reader.end()


def test_says_where_bytes_run_out() -> None:
    """A cut names its byte, in the caller's own error."""
    reader = ByteReader(b"\x01\x02", FeeError, "thing")
    reader.u8()

    with pytest.raises(FeeError, match="thing is cut; thing byte 1"):
        reader.take(2)
    with pytest.raises(FeeError, match="after its end"):
        reader.end()
