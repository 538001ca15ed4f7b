"""Where a blob is kept, how it is read, and when nobody refers to it any more.

Small blobs ride in their header's row: one read gives the whole message, and catching up is four
times faster than with a second read. A large blob has its own row under its commitment. Either way
each message that holds the blob has a reference row; a blob row stays while a reference row of its
slice says that it is needed. No counter is read and written back, so no counter can be wrong.

Source: LP-6421 §5; decisions P11, P29; 21-39.
"""

from __future__ import annotations

from collections.abc import Iterator

from luxrelay.bus import MsgHeader
from luxrelay.errors import HeaderError, StoreError
from luxrelay.store import layout
from luxrelay.store.layout import BlobPlace, MessageRow
from luxrelay.store.slices import Slice, Slices


def place_of(blob: bytes | None, inline_bytes_max: int) -> BlobPlace:
    """Return where ``blob`` goes."""
    if not blob:
        return BlobPlace.ABSENT
    return BlobPlace.INLINE if len(blob) <= inline_bytes_max else BlobPlace.APART


def blob_of(slices: Slices, row: MessageRow) -> bytes | None:
    """Return the blob of a message: None when it is not here, empty when the header has none.

    Raises:
        KeyError: the blob's own row is gone: the message was deleted since ``row`` was read.
        StoreError: ``store.io`` or ``store.corrupt``.

    """
    if row.place is BlobPlace.INLINE:
        return row.inline_blob
    if row.place is BlobPlace.ABSENT:
        return None if layout.blob_len_of(row.header) else b""
    where = slices.at(row.expires_at)
    blob = None if where is None else where.get(layout.BLOBS, row.commitment)
    if where is not None and blob is None and _is_bare(where, row):
        return None
    if blob is None:
        raise KeyError(row.commitment)
    if len(blob) != row.blob_len:
        raise StoreError(
            "a blob has another length than its header says",
            where=row.commitment.hex(),
            code="store.corrupt",
        )
    return blob


def _is_bare(where: Slice, row: MessageRow) -> bool:
    """Return True when a message is held still and has lost its blob since ``row`` was read."""
    try:
        header = MsgHeader.decode(row.header)
    except HeaderError:
        return False
    key = layout.slot_key(header.namespace_id, header.seq) + header.content_id
    value = where.get(layout.HEADERS, key)
    return value is not None and layout.decode_row(value).place is BlobPlace.ABSENT


def read_blob(slices: Slices, commitment: bytes, now_ms: int) -> bytes | None:
    """Return the blob or sidecar committed to, None without a message that holds it at ``now_ms``.

    Source: LP-6421 §5.2, LP-6411 §2.10; P14.
    """
    for key, row, sidecar in _referring(slices, commitment, now_ms):
        try:
            found = _sidecar_of(slices, key, row) if sidecar else blob_of(slices, row)
        except KeyError:
            continue
        if found is not None:
            return found
    return None


def _sidecar_of(slices: Slices, key: bytes, row: MessageRow) -> bytes | None:
    where = slices.at(row.expires_at)
    sidecar = None if where is None else where.get(layout.SIDECARS, key)
    if sidecar is not None and len(sidecar) != row.sidecar_len:
        raise StoreError(
            "a sidecar has another length than its message says",
            where=key.hex(),
            code="store.corrupt",
        )
    return sidecar


def holds_blob(slices: Slices, commitment: bytes, now_ms: int) -> bool:
    """Return True when a message holds the blob at ``now_ms``, by its row alone."""
    return any(
        not sidecar and row.place is not BlobPlace.ABSENT
        for _, row, sidecar in _referring(slices, commitment, now_ms)
    )


def holds_sidecar(slices: Slices, commitment: bytes, now_ms: int) -> bool:
    """Return True when a message holds the sidecar at ``now_ms``; equal bytes of a blob do not."""
    return any(sidecar for _, _, sidecar in _referring(slices, commitment, now_ms))


def _referring(
    slices: Slices, commitment: bytes, now_ms: int
) -> Iterator[tuple[bytes, MessageRow, bool]]:
    """Yield the messages that refer to a commitment: key, row, whether as to their sidecar."""
    for key, value in slices.scan(layout.REFERENCES, commitment, layout.after(commitment)):
        message, sidecar = key[len(commitment) :], value == layout.SIDECAR_REFERENCE
        stored = slices.get(layout.HEADERS, message)
        row = None if stored is None else layout.decode_row(stored)
        if row is not None and row.expires_at > now_ms and (row.sidecar_len or not sidecar):
            yield message, row, sidecar


class References:
    """Which references to large blobs of a slice a batch under construction adds and removes."""

    __slots__ = ("_added", "_removed")

    def __init__(self) -> None:
        self._added: dict[bytes, set[bytes]] = {}
        self._removed: dict[bytes, set[bytes]] = {}

    def add(self, key: bytes, commitment: bytes) -> None:
        """The message ``key`` refers to a blob."""
        self._added.setdefault(commitment, set()).add(key)
        self._removed.get(commitment, set()).discard(key)

    def remove(self, key: bytes, commitment: bytes) -> None:
        """The message ``key`` refers to it no longer."""
        self._removed.setdefault(commitment, set()).add(key)
        self._added.get(commitment, set()).discard(key)

    def unneeded(self, where: Slice) -> list[bytes]:
        """Return the commitments whose blob row nobody needs once the batch is written."""
        apart = bytes([BlobPlace.APART])
        found: list[bytes] = []
        for commitment, removed in self._removed.items():
            if not removed or self._added.get(commitment):
                continue
            rows = where.table.scan(commitment, layout.after(commitment), layout.REFERENCES)
            if all(key[len(commitment) :] in removed for key, value in rows if value == apart):
                found.append(commitment)
        return found
