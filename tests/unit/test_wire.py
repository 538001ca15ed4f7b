"""Fields, varints and hex digits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import FeeError, PolicyError
from luxrelay.sync.rpc.relay_sync_pb2 import SeqRange
from luxrelay.wire import ByteReader, from_hex, read_varint, to_hex, varint


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

    with pytest.raises(FeeError, match="the thing is cut off; thing byte 1"):
        reader.take(2)
    with pytest.raises(FeeError, match="after its end"):
        reader.end()


@pytest.mark.parametrize("text", ["", "0x", "00ff", "0x00FF", "Aa"])
def test_hex_is_read_in_one_dialect(text: str) -> None:
    """Digits in pairs of either case, with 0x or without."""
    assert from_hex(text) == bytes.fromhex(text.removeprefix("0x"))


@pytest.mark.parametrize(
    "text", ["0", "0x0", "00 ff", " 00", "00\n", "0X00", "0x0x00", "gg", "\u0660" * 2]
)
def test_what_is_no_hex_is_refused(text: str) -> None:
    """Blanks inside, an odd digit, digits of other alphabets, 0x twice."""
    with pytest.raises(ValueError, match="hex digits in pairs"):
        from_hex(text)


def test_hex_of_another_length_is_refused_with_both() -> None:
    """What was expected and what came."""
    with pytest.raises(ValueError, match=r"expected 20 bytes \(40 hex digits\), found 1"):
        from_hex("0xff", 20)
    assert from_hex(to_hex(bytes(20)), 20) == bytes(20)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=4))
def test_varints_are_protobuf_s(value: int, rest: bytes) -> None:
    """As the library writes them, and read back to where they end."""
    data = varint(value)
    assert data == (SeqRange(first=value).SerializeToString()[1:] or b"\x00")
    assert read_varint(data + rest, 0) == (value, len(data))


@pytest.mark.parametrize(
    ("data", "most"), [(b"", 10), (b"\x80", 10), (b"\x80" * 10 + b"\x01", 10), (b"\x80" * 3, 3)]
)
def test_a_varint_that_is_cut_or_too_long_is_an_index_error(data: bytes, most: int) -> None:
    """Each decoder makes its own error of it."""
    with pytest.raises(IndexError):
        read_varint(data, 0, most)
