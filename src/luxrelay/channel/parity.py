"""Parity of equally long shards, bit for bit as the Leopard library computes it.

A shard's length is a multiple of 64. One data shard makes copies, one parity shard is the XOR of
all. Else, with ``M`` the power of two at or above the number of parity shards and ``M`` + data
shards at most 256, a byte is an element of GF(2^8) in Cantor's basis: byte ``v`` stands for the sum
of the basis elements at the bits of ``v``, and the field's polynomial is 0x11D. Data shard
``c*M + i`` lies at the point ``b ^ i`` with ``b = M * (c + 1)``, parity shard ``j`` at the point
``j``, and the weight of the former in the latter is Lagrange's: the product over all ``t`` below
``M`` other than ``i`` of ``(j ^ b ^ t) / (i ^ t)``.

Any parity shards, as many as data shards are missing, give the missing ones back: a linear system
is solved. Multiplying a shard is `bytes.translate` with a table of 256, adding is XOR of large
integers, so no other library is needed. Cost: data x parity passes over a shard.

Source: segmentation specification (Reed-Solomon); decision C4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from luxrelay.errors import ChannelArgumentError

SHARDS_MAX: Final = 256
"""Data shards and the power of two at or above the parity shards, together."""
_POLYNOMIAL: Final = 0x11D
_BASIS: Final = (1, 214, 152, 146, 86, 200, 88, 230)


def _tables() -> tuple[list[int], list[int]]:
    """Return logarithms and powers over bytes in Cantor's basis."""
    element = [0] * 256
    for value in range(256):
        for bit, base in enumerate(_BASIS):
            if value >> bit & 1:
                element[value] ^= base
    value_of = {element[value]: value for value in range(256)}
    logs, powers = [0] * 256, [0] * 510
    current = 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value_of[current]
        logs[value_of[current]] = exponent
        current <<= 1
        if current & 256:
            current ^= _POLYNOMIAL
    return logs, powers


_LOGS, _POWERS = _tables()


def _multiply(a: int, b: int) -> int:
    return _POWERS[_LOGS[a] + _LOGS[b]] if a and b else 0


def _inverse(a: int) -> int:
    return _POWERS[255 - _LOGS[a]]


@lru_cache(maxsize=256)
def _table(factor: int) -> bytes:
    """Return the translation that multiplies every byte by ``factor``."""
    return bytes(_multiply(factor, value) for value in range(256))


def span(parity_shards: int) -> int:
    """Return the power of two at or above a number of parity shards."""
    return 1 << (parity_shards - 1).bit_length()


def fits(data_shards: int, parity_shards: int) -> bool:
    """Return whether parity can be made for such a number of shards."""
    return (
        0 < parity_shards <= data_shards and span(parity_shards) + data_shards <= SHARDS_MAX
    ) or (data_shards == 1 and parity_shards == 1)


def make_parity(shards: Sequence[bytes], parity_shards: int) -> list[bytes]:
    """Return parity shards for data shards.

    Args:
        shards: Data shards, all of one length, a multiple of 64.
        parity_shards: How many to make, at most as many as data shards.

    Raises:
        ChannelArgumentError: lengths or numbers do not fit.

    """
    length = _shard_length(shards)
    if not fits(len(shards), parity_shards):
        raise ChannelArgumentError(
            f"{len(shards)} data and {parity_shards} parity shards do not fit", where="make_parity"
        )
    rows = _weights(len(shards), parity_shards)
    return [_combine(rows[row], shards, length) for row in range(parity_shards)]


def recover(
    data: Mapping[int, bytes], parity: Mapping[int, bytes], data_shards: int, parity_shards: int
) -> list[bytes]:
    """Return all data shards from any ``data_shards`` of both kinds.

    Args:
        data: Data shards by index.
        parity: Parity shards by index.
        data_shards: How many data shards there are.
        parity_shards: How many parity shards there are.

    Raises:
        ChannelArgumentError: too few, or lengths and numbers do not fit.

    """
    missing = [index for index in range(data_shards) if index not in data]
    if not missing:
        return [data[index] for index in range(data_shards)]
    length = _shard_length([*data.values(), *parity.values()])
    if not fits(data_shards, parity_shards) or len(parity) < len(missing):
        raise ChannelArgumentError("too few shards, or their numbers do not fit", where="recover")
    chosen = sorted(parity)[: len(missing)]
    weights = _weights(data_shards, parity_shards)
    known = [data.get(index, b"") for index in range(data_shards)]
    right = []
    for row in chosen:
        have = [weight if index in data else 0 for index, weight in enumerate(weights[row])]
        right.append(_xor([parity[row], _combine(have, known, length)], length))
    solution = _invert([[weights[row][index] for index in missing] for row in chosen])
    for position, index in enumerate(missing):
        known[index] = _combine(solution[position], right, length)
    return known


def _shard_length(shards: Sequence[bytes]) -> int:
    """Return the common length of shards, checked."""
    lengths = {len(shard) for shard in shards}
    if len(lengths) != 1 or (length := lengths.pop()) % 64 or not length:
        raise ChannelArgumentError("shards are not of one length that is a multiple of 64")
    return length


@lru_cache(maxsize=16)
def _weights(data_shards: int, parity_shards: int) -> list[list[int]]:
    """Return the weight of each data shard (column) in each parity shard (row)."""
    if data_shards == 1 or parity_shards == 1:
        return [[1] * data_shards for _ in range(parity_shards)]
    size = span(parity_shards)
    scale = 1  # one over the product of all (i ^ t): over all t other than i, whatever i is
    for other in range(1, size):
        scale = _multiply(scale, _inverse(other))
    blocks = []
    for column in range(0, data_shards, size):
        product = scale  # times the product of all (j ^ b ^ t), which no j below M changes
        for other in range(size):
            product = _multiply(product, column + size ^ other)
        blocks.append(product)
    return [
        [
            _multiply(blocks[column // size], _inverse(row ^ column + size))
            for column in range(data_shards)
        ]
        for row in range(parity_shards)
    ]


def _combine(weights: Sequence[int], shards: Sequence[bytes], length: int) -> bytes:
    """Return the weighted sum of shards."""
    total = 0
    for weight, shard in zip(weights, shards, strict=True):
        if weight:
            product = shard if weight == 1 else shard.translate(_table(weight))
            total ^= int.from_bytes(product, "little")
    return total.to_bytes(length, "little")


def _xor(shards: Sequence[bytes], length: int) -> bytes:
    return _combine([1] * len(shards), shards, length)


def _invert(matrix: list[list[int]]) -> list[list[int]]:
    """Return the inverse of a matrix; any such part of the weights has one."""
    size = len(matrix)
    rows = [[*row, *(int(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(index for index in range(column, size) if rows[index][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        scale = _table(_inverse(rows[column][column]))
        rows[column] = [scale[value] for value in rows[column]]
        for index in range(size):
            factor = rows[index][column]
            if index != column and factor:
                table = _table(factor)
                rows[index] = [
                    mine ^ table[theirs]
                    for mine, theirs in zip(rows[index], rows[column], strict=True)
                ]
    return [row[size:] for row in rows]
