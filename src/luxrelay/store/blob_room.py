"""Which blobs are kept: the bounds of the blob cache, and how what is beyond them goes.

A message whose blob is not kept stays whole otherwise: its header is served, its blob is missing.
What is too large or too old is not taken in; above ``blob_cache_bytes`` the blobs of the oldest
messages go, by timestamp, until the rest fits; what has become too old goes with the deletion
cycle. A blob goes whether an archive has read it or not.

The bytes are those of each message's blob, as in its charge, also of a blob that several share.

Source: LP-6421 §5.1; decisions P11, P29; 21-36.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from luxrelay.bus import ContentId
from luxrelay.bus import constants as c
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.group import Group
from luxrelay.store.layout import BlobPlace
from luxrelay.store.ledger import Ledger
from luxrelay.store.messages import IncomingMessage


class BlobGroup(Group):
    """Takes blobs from messages; `commit` makes all of it true at once."""

    def strip(self, key: bytes) -> int:
        """The message ``key`` has no blob; return the bytes of the one that it had."""
        namespace, seq = layout.split_slot(key)
        slot, content = key[: layout.SLOT_BYTES], ContentId(key[layout.SLOT_BYTES :])
        state = self._known(namespace)
        rows = self._touched.read(state, slot, seq)
        row = layout.decode_row(rows[content]) if content in rows else None
        if row is None or row.place is BlobPlace.ABSENT:
            return 0
        bare = row._replace(place=BlobPlace.ABSENT, blob_len=0, inline_blob=b"")
        growth = layout.charge_bytes(bare) - layout.charge_bytes(row)
        rows[content] = layout.encode_row(bare)
        self._rows.strip(self._slices.of(row.expires_at), key, row, rows[content], growth)
        self._change(state)
        self._count(state, 0, growth)
        return row.blob_len


class BlobRoom:
    """The bounds, and what stands above them; all but `admit` under the writer's lock."""

    def __init__(self, ledger: Ledger, config: RelayStoreConfig) -> None:
        self._ledger = ledger
        self._config = config
        self._bound = config.blob_bound()

    def admit(self, messages: Sequence[IncomingMessage], now_ms: int) -> Sequence[IncomingMessage]:
        """Return the messages, those without their blob whose blob is not kept."""
        config = self._config
        largest = config.blob_bytes_max if config.blobs_enabled else 0
        if largest >= c.MAX_BLOB_BYTES and config.blob_ttl_ms is None:
            return messages
        cutoff_ms = self._cutoff_ms(now_ms)
        admitted = []
        for message in messages:
            blob = message.blob
            if blob and (len(blob) > largest or message.header.timestamp <= cutoff_ms):
                admitted.append(replace(message, blob=None))
            else:
                admitted.append(message)
        return admitted

    def excess(self) -> int:
        """Return the bytes above the bound; 0 without any."""
        if self._bound is None:
            return 0
        return max(0, sum(each.blob_bytes for each in self._ledger.slices.live) - self._bound)

    def is_due(self, now_ms: int | None) -> bool:
        """Return True when a blob waits to go; ``now_ms`` None asks about bytes only."""
        if self.excess():
            return True
        cutoff_ms = self._cutoff_ms(now_ms)
        oldest = next(self._keys(), None) if cutoff_ms else None
        return oldest is not None and layout.read_u64(oldest) <= cutoff_ms

    def trim(self, group: BlobGroup, now_ms: int | None, limit: int) -> tuple[int, bytes, bool]:
        """Blobs of the oldest messages go, ``limit`` messages looked at.

        Returns:
            Blobs taken; where to go on (`Ledger.blob_hint`) once the group is committed; whether
            nothing more is due.

        """
        excess, cutoff_ms = self.excess(), self._cutoff_ms(now_ms)
        position, taken = self._ledger.blob_hint, 0
        if not excess and not cutoff_ms:
            return 0, position, True
        keys = list(islice(self._keys(), limit))
        for index_key in keys:
            if excess <= 0 and layout.read_u64(index_key) > cutoff_ms:
                return taken, position, True
            freed = group.strip(index_key[8:])
            excess -= freed
            taken += freed > 0
            position = index_key + b"\x00"
        return taken, position, len(keys) < limit

    def _keys(self) -> Iterator[bytes]:
        return self._ledger.slices.keys(layout.TIMES, self._ledger.blob_hint, b"")

    def _cutoff_ms(self, now_ms: int | None) -> int:
        """Return the timestamp up to which blobs are too old; 0 for none."""
        ttl_ms = self._config.blob_ttl_ms
        return 0 if ttl_ms is None or now_ms is None else max(0, now_ms - ttl_ms)
