"""Sorted ids: order, sums and bounds agree with the obvious way."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import SyncArgumentError
from luxrelay.sync.idset import SortedIds
from luxrelay.sync.negentropy import varint

ITEMS = st.lists(
    st.tuples(st.integers(0, 4), st.binary(min_size=32, max_size=32)), max_size=40, unique=True
)


def obvious(ids: list[bytes]) -> bytes:
    """Return the fingerprint as the protocol's text has it."""
    total = sum(int.from_bytes(each, "little") for each in ids) % 2**256
    return hashlib.sha256(total.to_bytes(32, "little") + varint(len(ids))).digest()[:16]


@given(ITEMS)
def test_order_is_by_time_and_id(items: list[tuple[int, bytes]]) -> None:
    """Items come out in the order of (timestamp, id), each once."""
    held = SortedIds.of([*items, *items[:3]])

    assert [held.item(at) for at in range(len(held))] == sorted(items)
    assert held.ids(0, len(held)) == [each for _, each in sorted(items)]


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 511, 512, 1000])
def test_fingerprints_are_the_protocols(count: int) -> None:
    """Any range has the sum of its ids, whether or not it covers whole blocks."""
    rng = random.Random(count)
    held = SortedIds.of([(at, rng.randbytes(32)) for at in range(count)])
    ids = held.ids(0, count)
    cuts = sorted({0, count, *(rng.randrange(count + 1) for _ in range(12))})

    for lower in cuts:
        for upper in cuts:
            if lower <= upper:
                assert held.fingerprint(lower, upper) == obvious(ids[lower:upper])


def test_sums_carry_over_the_highest_word() -> None:
    """Sums are modulo 2^256."""
    ids = [b"\xff" * 32, b"\xfe" * 32, b"\x01" + bytes(31)]
    held = SortedIds.of([(1, each) for each in ids])

    assert held.fingerprint(0, 3) == obvious(ids)


@given(ITEMS, st.integers(0, 5), st.binary(max_size=32))
def test_lower_bound_agrees_with_a_scan(
    items: list[tuple[int, bytes]], stamp: int, prefix: bytes
) -> None:
    """A bound is the first item at or above (timestamp, prefix filled up with zeros)."""
    held = SortedIds.of(items)
    bound = (stamp, prefix.ljust(32, b"\0"))
    expected = sum(item < bound for item in sorted(items))

    assert held.lower_bound(0, len(held), stamp, prefix) == expected
    assert held.lower_bound(0, len(held), 1 << 64, b"") == len(held)


def test_refuse_arrays_that_do_not_fit() -> None:
    """There is one id of 32 bytes for each timestamp."""
    with pytest.raises(SyncArgumentError):
        SortedIds(np.zeros(2, np.uint64), np.zeros((1, 32), np.uint8))
