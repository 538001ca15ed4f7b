"""Which contents the store holds in a span of time, without reading the messages.

For reconciliation between relays: one index row an id, so a million ids take a second or two.

Source: decisions J5, J11.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from luxrelay.bus import NamespaceId
from luxrelay.bus import constants as c
from luxrelay.store import layout

KEY_BYTES: Final = 8 + layout.MESSAGE_KEY_BYTES
"""Timestamp and message key: what a row of the time index is."""
_CHUNK: Final = 10_000

Stamps = tuple[NDArray[np.uint64], NDArray[np.uint8]]
"""Timestamps in milliseconds, ascending, and as many content ids, rows of 32 bytes."""


def gather(keys: Iterable[bytes], namespaces: frozenset[NamespaceId] | None, limit: int) -> Stamps:
    """Return timestamps and content ids of some rows of the time index.

    Args:
        keys: The rows.
        namespaces: Only these; None for every one.
        limit: Ids at most; the first ones are kept.

    """
    rows = iter(keys)
    stamps: list[NDArray[np.uint64]] = []
    ids: list[NDArray[np.uint8]] = []
    count = 0
    while count < limit and (chunk := list(islice(rows, _CHUNK))):
        table = np.frombuffer(b"".join(chunk), np.uint8).reshape(-1, KEY_BYTES)
        if namespaces is not None:
            wanted = [key[8 : 8 + c.NAMESPACE_BYTES] in namespaces for key in chunk]
            table = table[np.array(wanted, np.bool_)]
        table = table[: limit - count]
        count += len(table)
        stamps.append(np.ascontiguousarray(table[:, :8]).view(">u8").reshape(-1).astype(np.uint64))
        ids.append(np.ascontiguousarray(table[:, -c.HASH_BYTES :]))
    if not ids:
        return np.zeros(0, np.uint64), np.zeros((0, c.HASH_BYTES), np.uint8)
    return np.concatenate(stamps), np.concatenate(ids)
