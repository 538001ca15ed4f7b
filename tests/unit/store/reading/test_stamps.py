"""Timestamps and content ids out of the time index."""

from __future__ import annotations

import pytest

from luxrelay.bus import NamespaceId
from luxrelay.store.reading.indexes import gather


def key(stamp: int, namespace: int, content: int) -> bytes:
    """Return a row of the time index."""
    return stamp.to_bytes(8, "big") + bytes([namespace]) * 20 + bytes(8) + bytes([content]) * 32


KEYS = [key(stamp, stamp % 2, stamp) for stamp in range(1, 9)]


@pytest.mark.parametrize(
    ("namespaces", "limit", "expected"),
    [
        (None, 100, list(range(1, 9))),
        (frozenset({NamespaceId(b"\x01" * 20)}), 100, [1, 3, 5, 7]),
        (frozenset({NamespaceId(b"\x01" * 20)}), 3, [1, 3, 5]),
        (frozenset({NamespaceId(b"\x09" * 20)}), 3, []),
        (None, 0, []),
    ],
)
def test_gather(namespaces: frozenset[NamespaceId] | None, limit: int, expected: list[int]) -> None:
    """Rows of the namespaces asked for come in order, the first ``limit`` of them."""
    stamps, ids = gather(KEYS, namespaces, limit)

    assert stamps.tolist() == expected
    assert [row.tobytes() for row in ids] == [bytes([each]) * 32 for each in expected]
    assert ids.shape == (len(expected), 32)
