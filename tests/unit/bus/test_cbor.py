"""Deterministic CBOR: one value, one encoding."""

import cbor2
import pytest

from luxrelay.bus.cbor import DEPTH_MAX, ITEMS_MAX, CborValue, decode_cbor, encode_cbor
from luxrelay.errors import BusArgumentError, PolicyError

VALUES: list[CborValue] = [
    0,
    23,
    24,
    255,
    256,
    65_536,
    2**32,
    2**64 - 1,
    -1,
    -(2**64),
    b"",
    b"bytes",
    "",
    "Grüße",
    True,
    False,
    None,
    [1, ["a"], b""],
    {"b": 1, "a": [2, {"z": None}], "aa": b"\x00"},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_agrees_with_another_library(value: CborValue) -> None:
    """What we write is what an independent canonical encoder writes, and it comes back."""
    data = encode_cbor(value)

    assert data == cbor2.dumps(value, canonical=True)
    assert decode_cbor(data) == value


@pytest.mark.parametrize(
    "text",
    [
        "1817",  # 23 in two bytes
        "190018",  # 24 in three
        "1a0000ffff",
        "1b00000000ffffffff",
        "5800",  # empty bytes with a long length
        "a2616201616101",  # keys b, a
        "a2616101616102",  # key a twice
        "a10102",  # a key that is no text
        "9fff",  # no definite length
        "bfff",
        "5fff",
        "f90000",  # a float
        "f7",  # undefined
        "c000",  # a tag
        "61ff",  # no UTF-8
        "1c",  # reserved
        "82",  # cut
        "0000",  # bytes after the end
        "",
        "9bffffffffffffffff",  # more items than bytes
    ],
)
def test_reject_other_encodings(text: str) -> None:
    """Long forms, unsorted or repeated keys, floats, tags and cuts are refused."""
    with pytest.raises(PolicyError):
        decode_cbor(bytes.fromhex(text))


def test_bounds_hold_both_ways() -> None:
    """Nesting and the number of items are bounded in the encoder and the decoder."""
    deep: CborValue = 0
    for _ in range(DEPTH_MAX + 1):
        deep = [deep]
    with pytest.raises(BusArgumentError):
        encode_cbor(deep)
    with pytest.raises(PolicyError):
        decode_cbor(b"\x81" * (DEPTH_MAX + 1) + b"\x00")
    with pytest.raises(BusArgumentError):
        encode_cbor([0] * ITEMS_MAX)
    with pytest.raises(PolicyError):
        decode_cbor(b"\x99" + ITEMS_MAX.to_bytes(2, "big") + bytes(ITEMS_MAX))


@pytest.mark.parametrize("value", [1.5, 2**64, {1: 2}, object(), "\ud800", {"a": 1.5}])
def test_reject_values_outside_the_profile(value: object) -> None:
    """What has no place in the profile is the caller's error."""
    with pytest.raises(BusArgumentError):
        encode_cbor(value)  # type: ignore[arg-type]
