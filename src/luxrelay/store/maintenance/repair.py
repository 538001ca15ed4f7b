"""`salvage`: readable, self-proving messages of a damaged database into a new one.

Theory of operation
-------------------
*Decides* which messages of a damaged database are whole.
*What proves itself*: a header row whose key is the namespace, sequence and content id of the header
in it, and whose blob has the length and the commitment that the header names. Checksums of blocks
stay on, so a row is what was written or cannot be read.
*Machine*: a copy of the files is opened for reading; when that fails, RocksDB rebuilds the copy's
manifest from its table files and logs first. Each slice's header rows are read in order; where a
block is damaged the reader goes on behind it, in steps that double until a row can be read. Every
message found is put into the fresh database as it was, by the rules of a put (J11), with a time to
live that gives the expiry it had. Heads never go back: floors, latest sequences and watermarks of
the old state rows are kept where these can be read, so that what is missing is a hole to catch up.
*The damaged folder is not changed*, and nothing is written but into the new one.
*Bounds*: ROWS_PER_BATCH messages in memory; the disk holds the data three times while it runs.
*What else to change when you change this*: `layout`, `luxrelay store repair`.

Source: docs/explanation/store.md; ADR 0006; decisions P9, J11.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from luxrelay.bus import MsgHeader, NamespaceId, check_sidecar, sha3_commitment
from luxrelay.bus import constants as c
from luxrelay.errors import HeaderError, StoreArgumentError, StoreError
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.durability.folder import Folder
from luxrelay.store.layout import BlobPlace, MessageRow
from luxrelay.store.ledger import Ledger
from luxrelay.store.maintenance.upgrade import bring_up_to_date
from luxrelay.store.messages import IncomingMessage
from luxrelay.store.namespaces import NamespaceState
from luxrelay.store.rocks import Database, RocksTable, rebuild
from luxrelay.store.writing.batch import Group

ROWS_PER_BATCH: Final = 1_000
_COPY: Final = "salvage"
"""Folder of the copy, in the new one."""


@dataclass(slots=True)
class Salvage:
    """What was found."""

    messages: int = 0
    """Messages in the new store."""
    refused: int = 0
    """Rows that could be read and did not prove themselves."""
    blobs_lost: int = 0
    """Blobs and sidecars that are missing or wrong: the header is kept, they are fetched again."""
    damaged: int = 0
    """Places at which reading had to go on behind damage."""
    expected: int = 0
    """Messages that the old state rows count, as far as these could be read."""
    rebuilt: bool = False
    """True when the manifest had to be rebuilt."""


def salvage(old: Path, new: Path, config: RelayStoreConfig) -> Salvage:
    """The messages of ``old`` that can be read and prove themselves are in a new store in ``new``.

    Args:
        old: A store's folder; no process has it open.
        new: A folder that is missing or empty.
        config: Blob and slice sizes of the new store; nothing is evicted for its bounds.

    Raises:
        StoreArgumentError: ``new`` is not empty.
        StoreError: ``store.foreign`` or ``store.locked`` for ``old``; ``store.io``.

    """
    if new.exists() and any(new.iterdir()):
        raise StoreArgumentError("the folder for the repaired store is not empty", where=str(new))
    source = Folder.claim(old, layout.LAYOUT_VERSION)
    try:
        target = Folder.claim(new, layout.LAYOUT_VERSION)
        copy = new / _COPY
        try:
            shutil.copytree(source.database, copy)
            return _salvage(copy, target, config)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
            target.release()
    except OSError as error:
        raise StoreError(f"the copy failed: {error.strerror}", where=str(new)) from error
    finally:
        source.release()


def _salvage(copy: Path, target: Folder, config: RelayStoreConfig) -> Salvage:
    result = Salvage()
    database = _open(copy, config, result)
    try:
        fresh = Database.open(
            target.database,
            layout.FAMILIES,
            write_buffer_bytes=config.write_buffer_bytes,
            block_cache_bytes=config.block_cache_bytes,
        )
        try:
            bring_up_to_date(target, fresh, config)
            _fill(database, fresh, config, result)
            fresh.sync()
        finally:
            fresh.close()
    finally:
        with suppress(StoreError):  # a copy that is thrown away; what it holds has been read
            database.close()
    return result


def _open(copy: Path, config: RelayStoreConfig, result: Salvage) -> Database:
    def attempt() -> Database:
        return Database.open(
            copy,
            layout.FAMILIES,
            write_buffer_bytes=config.write_buffer_bytes,
            block_cache_bytes=config.block_cache_bytes,
        )

    try:
        return attempt()
    except StoreError:
        result.rebuilt = True
        rebuild(copy)
        return attempt()


def _fill(database: Database, fresh: Database, config: RelayStoreConfig, result: Salvage) -> None:
    bounds = 2**62
    config = replace(
        config,
        max_storage_bytes=bounds,
        namespace_quota_bytes=bounds,
        namespace_quotas={},
        namespaces_max=bounds,
    )
    states = _states(database)
    result.expected = sum(state.messages for state in states.values())
    ledger = Ledger.load(fresh, config)
    waiting: list[tuple[IncomingMessage, int]] = []
    for name in sorted(name for name in database.names if name.startswith("slice-")):
        table = database.table(name)
        for key, value in _readable(table, result):
            found = _proven(table, key, value, states, result)
            if found is not None:
                waiting.append(found)
            if len(waiting) == ROWS_PER_BATCH:
                _put(fresh, ledger, config, waiting)
                waiting.clear()
    _put(fresh, ledger, config, waiting)
    _restore_heads(fresh, ledger, config, states)
    result.messages = ledger.messages
    _copy_documents(database, fresh)


def _states(database: Database) -> dict[NamespaceId, NamespaceState]:
    """Return the old state rows that can be read."""
    states: dict[NamespaceId, NamespaceState] = {}
    with suppress(StoreError):
        for key, value in database.scan(layout.NAMESPACES, b"", b""):
            with suppress(StoreError):
                states[NamespaceId(key)] = layout.decode_state(key, value)
    return states


def _readable(table: RocksTable, result: Salvage) -> Iterator[tuple[bytes, bytes]]:
    """Yield the header rows that can be read, in order."""
    position, step = b"", 1
    while True:
        last = b""
        try:
            for key, value in table.scan(position, b"", layout.HEADERS):
                last, step = key, 1
                yield key, value
        except StoreError:
            result.damaged += step == 1
        else:
            return
        behind = _behind(last or position, step)
        if not behind:
            return
        position, step = behind, step * 2


def _behind(key: bytes, step: int) -> bytes:
    """Return a position ``step`` places behind a key: slots, then whole ranges of namespaces."""
    width = layout.SLOT_BYTES
    number = int.from_bytes(key[:width].ljust(width, b"\x00"), "big") + step
    return number.to_bytes(width, "big") if number < 256**width else b""


def _proven(
    table: RocksTable,
    key: bytes,
    value: bytes,
    states: dict[NamespaceId, NamespaceState],
    result: Salvage,
) -> tuple[IncomingMessage, int] | None:
    """Return the message of a row with its expiry, None when the row does not prove itself."""
    try:
        row = layout.decode_row(value)
        header = MsgHeader.decode(row.header)
        if layout.slot_key(header.namespace_id, header.seq) + header.content_id != key:
            result.refused += 1
            return None
        blob = _blob(table, row, header)
        result.blobs_lost += blob is None and row.place is not BlobPlace.ABSENT
        sidecar = _sidecar(table, key, header) if row.sidecar_len else None
        result.blobs_lost += sidecar is None and row.sidecar_len > 0
        state = states.get(header.namespace_id)
        message = IncomingMessage(
            header=header,
            blob=blob,
            parent=state.parent if state is not None else header.namespace_id,
            received_at=row.received_at,
            source=row.source,
            sidecar=sidecar,
        )
    except (StoreError, StoreArgumentError, HeaderError):
        result.refused += 1
        return None
    return message, row.expires_at


def _sidecar(table: RocksTable, key: bytes, header: MsgHeader) -> bytes | None:
    try:
        sidecar = table.get(layout.SIDECARS + key)
    except StoreError:
        return None
    return sidecar if sidecar and check_sidecar(header, sidecar).accepted else None


def _blob(table: RocksTable, row: MessageRow, header: MsgHeader) -> bytes | None:
    blob: bytes | None = row.inline_blob
    if row.place is BlobPlace.APART:
        try:
            blob = table.get(layout.BLOBS + row.commitment)
        except StoreError:
            return None
    if not blob or len(blob) != header.blob_len:
        return None
    if header.flags & c.FLAG_KZG_COMMITMENT:
        return blob  # its commitment is of another kind; the length is all that is checked
    return blob if sha3_commitment(blob) == header.blob_commitment else None


def _put(
    fresh: Database,
    ledger: Ledger,
    config: RelayStoreConfig,
    messages: list[tuple[IncomingMessage, int]],
) -> None:
    """The messages stand in the new database with the expiry that they had."""
    by_stay: dict[int, list[IncomingMessage]] = {}
    for message, expires_at in messages:
        begins = min(message.received_at, message.header.timestamp)
        by_stay.setdefault(expires_at - begins, []).append(message)
    for stay_ms, some in by_stay.items():
        if stay_ms <= 0:
            continue
        lasting = replace(config, cold_store_ttl_ms=stay_ms, retention_window_ms=2**62)
        group = Group(fresh, ledger, lasting)
        for message in some:
            group.place(message, 0)
        group.commit()


def _restore_heads(
    fresh: Database,
    ledger: Ledger,
    config: RelayStoreConfig,
    states: dict[NamespaceId, NamespaceState],
) -> None:
    """No head is lower than it was, and what an archive has read stays read."""
    for namespace, old in states.items():
        group = Group(fresh, ledger, config)
        group.resume(namespace, old)
        group.commit()


def _copy_documents(database: Database, fresh: Database) -> None:
    batch = fresh.batch()
    with suppress(StoreError):
        for key, value in database.scan(layout.META, b"document/", b"document0"):
            batch.put(layout.META, key, value)
    fresh.write(batch)
