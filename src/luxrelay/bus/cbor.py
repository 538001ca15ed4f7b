"""Deterministic CBOR for policy parameters: one value, one encoding.

The profile: integers from -2^64 to 2^64-1, byte strings, text, arrays, maps with text keys,
false, true and null. Lengths and integers take their shortest form, lengths are definite, map keys
stand in the bytewise order of their encodings and once each. No floats and no tags: a policy hash
must not depend on how a library rounds, or on a type it invents.

*Deviation*: libraries that sort keys by length first (RFC 8949 §4.2.3) differ from this order
(§4.2.1) only for maps that mix key types; with text keys both orders are the same.

Source: RFC 8949 §3, §4.2.1; LP-6410 §3, S21.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from luxrelay.errors import BusArgumentError, PolicyError
from luxrelay.wire import ByteReader

CborValue: TypeAlias = (
    "int | bytes | str | bool | Sequence[CborValue] | Mapping[str, CborValue] | None"
)
"""What the profile can say; decoding gives lists and dicts."""

DEPTH_MAX: Final = 8
"""Deepest nesting of arrays and maps."""
ITEMS_MAX: Final = 1024
"""Most data items in one encoding."""

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _SIMPLE = 0, 1, 2, 3, 4, 5, 7
_CONSTANTS: Final[dict[int, bool | None]] = {20: False, 21: True, 22: None}


def encode_cbor(value: CborValue) -> bytes:
    """Return the one encoding of ``value``.

    Raises:
        BusArgumentError: the value is outside the profile, too deep, or has too many items.

    """
    out = bytearray()
    _write(value, out, DEPTH_MAX, [ITEMS_MAX])
    return bytes(out)


def decode_cbor(data: bytes) -> CborValue:
    """Return the value whose one encoding ``data`` is.

    Raises:
        PolicyError: the bytes are not in the profile or not in their shortest, sorted form.

    """
    reader = ByteReader(bytes(data), PolicyError, "CBOR")
    value = _read(reader, DEPTH_MAX, [ITEMS_MAX])
    reader.end()
    return value


def _head(major: int, argument: int) -> bytes:
    if argument < 24:
        return bytes([major << 5 | argument])
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 1 << (8 * size):
            return bytes([major << 5 | code]) + argument.to_bytes(size, "big")
    raise BusArgumentError("an integer is outside 64 bits", where="CBOR")


def _write(value: CborValue, out: bytearray, depth: int, items: list[int]) -> None:
    items[0] -= 1
    if items[0] < 0:
        raise BusArgumentError(f"more than {ITEMS_MAX} items", where="CBOR")
    if value is None or isinstance(value, bool):
        out += _head(_SIMPLE, {False: 20, True: 21, None: 22}[value])
    elif isinstance(value, int):
        out += _head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value)
    elif isinstance(value, bytes):
        out += _head(_BYTES, len(value)) + value
    elif isinstance(value, str):
        out += _text(value)
    elif isinstance(value, Mapping | Sequence):
        if depth == 0:
            raise BusArgumentError(f"deeper than {DEPTH_MAX} levels", where="CBOR")
        _write_group(value, out, depth - 1, items)
    else:
        raise BusArgumentError(f"a {type(value).__name__} has no place here", where="CBOR")


def _write_group(
    value: Sequence[CborValue] | Mapping[str, CborValue],
    out: bytearray,
    depth: int,
    items: list[int],
) -> None:
    if isinstance(value, Mapping):
        out += _head(_MAP, len(value))
        for key, inner in sorted((_key(key), inner) for key, inner in value.items()):
            out += key
            _write(inner, out, depth, items)
    else:
        out += _head(_ARRAY, len(value))
        for inner in value:
            _write(inner, out, depth, items)


def _key(key: object) -> bytes:
    if not isinstance(key, str):
        raise BusArgumentError("map keys are text", where="CBOR")
    return _text(key)


def _text(value: str) -> bytes:
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise BusArgumentError("text with lone surrogates", where="CBOR") from error
    return _head(_TEXT, len(encoded)) + encoded


def _read(reader: ByteReader, depth: int, items: list[int]) -> CborValue:
    items[0] -= 1
    if items[0] < 0:
        raise reader.fail(f"more than {ITEMS_MAX} items")
    initial = reader.u8()
    major, info = initial >> 5, initial & 0x1F
    if major == _SIMPLE:
        if info not in _CONSTANTS:
            raise reader.fail("neither false, true nor null")
        return _CONSTANTS[info]
    argument = _argument(reader, info)
    if major in {_UNSIGNED, _NEGATIVE}:
        return argument if major == _UNSIGNED else -1 - argument
    if major in {_BYTES, _TEXT}:
        return reader.take(argument) if major == _BYTES else _read_text(reader, argument)
    if major not in {_ARRAY, _MAP}:
        raise reader.fail("tags have no place here")
    if depth == 0:
        raise reader.fail(f"deeper than {DEPTH_MAX} levels")
    if major == _ARRAY:
        # Each item takes a byte or more, so a length beyond the data ends at the reader.
        return [_read(reader, depth - 1, items) for _ in range(argument)]
    return _read_map(reader, argument, depth - 1, items)


def _argument(reader: ByteReader, info: int) -> int:
    if info < 24:
        return info
    if info > 27:
        raise reader.fail("a length without an end, or a reserved one")
    size = 1 << (info - 24)
    argument = int.from_bytes(reader.take(size), "big")
    if argument < 24 or (size > 1 and argument < 1 << (4 * size)):
        raise reader.fail("not the shortest form")
    return argument


def _read_text(reader: ByteReader, length: int) -> str:
    try:
        return reader.take(length).decode()
    except UnicodeDecodeError as error:
        raise reader.fail("text that is not UTF-8") from error


def _read_map(
    reader: ByteReader, length: int, depth: int, items: list[int]
) -> dict[str, CborValue]:
    result: dict[str, CborValue] = {}
    last = b""
    for _ in range(length):
        start = reader.offset
        initial = reader.u8()
        if initial >> 5 != _TEXT:
            raise reader.fail("map keys are text")
        key = _read_text(reader, _argument(reader, initial & 0x1F))
        encoded = reader.data[start : reader.offset]
        if encoded <= last:
            raise reader.fail("map keys are not sorted, or stand twice")
        last = encoded
        result[key] = _read(reader, depth, items)
    return result
