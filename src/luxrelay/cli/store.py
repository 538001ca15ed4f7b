"""store: a relay's folder looked into, checked, cleaned and copied.

store export --format arrow or parquet: a relay's messages as segment files for the archive.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from luxrelay.bus import NamespaceId
from luxrelay.cli.arguments import SubParsers, add_command, hex_bytes, whole_number
from luxrelay.cli.output import Progress, print_json, table
from luxrelay.cli.store_import import register_import
from luxrelay.errors import InputError, UsageError
from luxrelay.files import write_whole
from luxrelay.store import (
    NamespaceHead,
    NamespaceQuery,
    RelayStore,
    RelayStoreConfig,
    StoredMessage,
    StoreStats,
)
from luxrelay.store.durability.folder import MARKER
from luxrelay.store.maintenance.repair import salvage

if TYPE_CHECKING:
    import pyarrow as pa

_BOUNDLESS: Final = 2**62
"""Bytes for a store whose node's limits this command does not know: nothing is evicted by it."""


def register(commands: SubParsers) -> None:
    """Add the command."""
    store = commands.add_parser("store", help="look into a relay's folder, check it, clean it")
    actions = store.add_subparsers(dest="action", metavar="ACTION", required=True)
    stats = add_command(
        actions,
        "stats",
        "say what a store holds; a node may run on it meanwhile",
        "luxrelay store stats relay-data --largest 10",
        _stats,
    )
    _add_folder(stats)
    stats.add_argument(
        "--largest",
        type=whole_number(0, 100_000),
        default=10,
        metavar="N",
        help="namespaces listed, largest first (default %(default)s)",
    )
    stats.add_argument("--json", action="store_true", help="print JSON")
    verify = add_command(
        actions,
        "verify",
        "check every row, sum and the Merkle tree; 1 when something is wrong",
        "luxrelay store verify relay-data",
        _verify,
    )
    _add_folder(verify)
    verify.add_argument("--json", action="store_true", help="print JSON")
    gc = add_command(
        actions,
        "gc",
        "delete what is past its time now; the node must be stopped",
        "luxrelay store gc relay-data",
        _gc,
    )
    _add_folder(gc)
    gc.add_argument("--json", action="store_true", help="print JSON")
    _register_export(actions)
    register_import(actions)


def _register_export(actions: SubParsers) -> None:
    export = add_command(
        actions,
        "export",
        "write messages as JSON lines or segment files; a node may run on the store meanwhile",
        "luxrelay store export relay-data --out messages.jsonl",
        _export,
    )
    _add_folder(export)
    export.add_argument(
        "--namespace", metavar="HEX", help="only this namespace, 40 hex digits (default all)"
    )
    export.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="file to write (default standard output); for segments a folder",
    )
    export.add_argument(
        "--format",
        choices=("json", "arrow", "parquet"),
        default="json",
        help="JSON lines, or segment files in one of two formats (default %(default)s)",
    )
    export.add_argument(
        "--relay",
        default="export:0",
        metavar="NAME",
        help="what the archive calls the relay in segments (default %(default)s)",
    )

    repair = add_command(
        actions,
        "repair",
        "salvage what can be read and proves itself into a new folder; the node must be stopped",
        "luxrelay store repair relay-data --out repaired",
        _repair,
    )
    _add_folder(repair)
    repair.add_argument(
        "--out", type=Path, metavar="NEW", required=True, help="folder for the new store"
    )
    repair.add_argument("--json", action="store_true", help="print JSON")


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a node's data folder, or the store in it"
    )


def _store_folder(given: Path) -> Path:
    inner = given / "store"
    return inner if (inner / MARKER).exists() else given


def _claimed_folder(given: Path) -> Path:
    """Return the folder of a store that is there: opening one to write would make it.

    Raises:
        InputError: there is none.

    """
    folder = _store_folder(given)
    if not (folder / MARKER).exists():
        raise InputError(
            "there is no store here",
            where=str(given),
            hint="give a node's data folder, or the store in it",
        )
    return folder


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def look(arguments: argparse.Namespace) -> RelayStore:
    """Open the store that the arguments name, to read only."""
    return RelayStore.open_read_only(_store_folder(arguments.folder), now_ms=_now_ms())


def _stats(arguments: argparse.Namespace) -> int:
    with look(arguments) as store:
        stats, root, now_ms = store.stats(), store.tree_root(), _now_ms()
        heads = sorted(heads_of(store), key=lambda head: (-head.size_bytes, head.namespace_id))
        watermarks = {head.namespace_id: store.watermark(head.namespace_id) for head in heads}
    shown = heads[: arguments.largest]
    summary = _summary(stats, root, now_ms)
    if arguments.json:
        rows = [_head_json(head, watermarks[head.namespace_id]) for head in shown]
        print_json({**summary, "largest": rows})
        return 0
    print(table(("what", "value"), [(name, value) for name, value in summary.items()]))
    if shown:
        print()
        names = ("namespace", "messages", "bytes", "earliest", "contiguous", "latest", "archived")
        print(table(names, [_head_row(head, watermarks[head.namespace_id]) for head in shown]))
    return 0


def _summary(stats: StoreStats, root: bytes, now_ms: int) -> dict[str, Any]:
    oldest = stats.oldest_timestamp
    return {
        "messages": stats.messages,
        "namespaces": stats.namespaces,
        "sizeBytes": stats.size_bytes,
        "windowSeconds": max(0, now_ms - oldest) // 1000 if oldest else 0,
        "heldForArchive": stats.held,
        "namespacesArchived": stats.handoffs,
        "merkleRoot": "0x" + root.hex(),
    }


def _head_row(head: NamespaceHead, watermark: int | None) -> tuple[object, ...]:
    return (
        head.namespace_id.hex(),
        head.messages,
        head.size_bytes,
        head.earliest_seq,
        head.contiguous_seq,
        head.latest_seq,
        "–" if watermark is None else f"{watermark:,}",
    )


def _head_json(head: NamespaceHead, watermark: int | None) -> dict[str, Any]:
    return {
        "namespaceId": "0x" + head.namespace_id.hex(),
        "parentId": "0x" + head.parent.hex(),
        "messages": head.messages,
        "sizeBytes": head.size_bytes,
        "floor": head.floor,
        "earliestSeq": head.earliest_seq,
        "contiguousHead": head.contiguous_seq,
        "latestSeq": head.latest_seq,
        "watermark": watermark,
    }


def _verify(arguments: argparse.Namespace) -> int:
    with look(arguments) as store:
        findings = store.verify()
        checked = store.stats().messages
        lost = [] if store.loss is None else store.loss.lines()
    findings = [*lost, *findings]
    if arguments.json:
        print_json({"messages": checked, "findings": findings})
        return 1 if findings else 0
    for finding in findings:
        print(finding)
    print(f"{checked:,} messages checked, {len(findings):,} findings", file=sys.stderr)
    return 1 if findings else 0


def _repair(arguments: argparse.Namespace) -> int:
    found = salvage(_claimed_folder(arguments.folder), arguments.out, RelayStoreConfig())
    if arguments.json:
        print_json(
            {
                "messages": found.messages,
                "fewer": max(0, found.expected - found.messages),
                "blobsLost": found.blobs_lost,
                "damaged": found.damaged,
                "refused": found.refused,
                "manifestRebuilt": bool(found.rebuilt),
            }
        )
        return 0
    print(
        f"{found.messages:,} messages salvaged, {max(0, found.expected - found.messages):,} fewer "
        f"than were counted, {found.blobs_lost:,} without their blob"
    )
    if found.damaged or found.refused or found.rebuilt:
        print(
            f"damage at {found.damaged:,} places, {found.refused:,} rows refused"
            + (", the manifest was rebuilt" if found.rebuilt else ""),
            file=sys.stderr,
        )
    return 0


def _gc(arguments: argparse.Namespace) -> int:
    config = RelayStoreConfig(max_storage_bytes=_BOUNDLESS, namespace_quota_bytes=_BOUNDLESS)
    removed, again = 0, True
    progress = Progress()
    with RelayStore.open(_claimed_folder(arguments.folder), config, now_ms=_now_ms()) as store:
        while again:
            cycle = store.expire(_now_ms())
            removed += cycle.removed_count
            again = cycle.hit_limit
            progress.update(f"{removed:,} messages removed")
        left = store.stats().messages
    progress.close()
    if arguments.json:
        print_json({"removed": removed, "left": left})
    else:
        print(f"{removed:,} messages removed, {left:,} left")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    chosen = None
    if arguments.namespace is not None:
        chosen = NamespaceId(hex_bytes(arguments.namespace, 20, "--namespace"))
    if arguments.format != "json":
        from luxrelay.cli.store import export_segments  # noqa: PLC0415  it imports us

        return export_segments(arguments, chosen)
    count = 0

    def lines(store: RelayStore) -> Iterator[bytes]:
        nonlocal count
        names = [chosen] if chosen else [head.namespace_id for head in heads_of(store)]
        for name in names:
            parent = store.head(name).parent
            for message in messages_of(store, name):
                shown = _message_json(message, parent)
                if sidecar := _sidecar_of(store, message):
                    shown["sidecar"] = "0x" + sidecar.hex()
                yield json.dumps(shown).encode() + b"\n"
                count += 1

    with look(arguments) as store:
        if arguments.out is None:
            for line in lines(store):
                sys.stdout.write(line.decode())
        else:
            _write_lines(arguments.out, lines(store))
    print(f"{count:,} messages exported", file=sys.stderr)
    return 0


def _write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file that is there whole or not at all; into a pipe or a device, as they come.

    Raises:
        InputError: it cannot be written.

    """
    try:
        target = path.resolve()  # behind a link, which stays
        if target.exists() and not target.is_file():
            with target.open("wb") as stream:
                stream.writelines(lines)
        else:
            write_whole(target, lines)
    except OSError as error:
        raise InputError(f"cannot write it: {error.strerror}", where=str(path)) from error


def heads_of(store: RelayStore) -> Iterator[NamespaceHead]:
    """Yield every head of a store."""
    cursor = b""
    while True:
        heads, cursor = store.heads(None, cursor, 0)
        yield from heads
        if not cursor:
            return


def messages_of(store: RelayStore, namespace: NamespaceId) -> Iterator[StoredMessage]:
    """Yield everything a namespace holds, the expired included: a copy leaves nothing out."""
    cursor = b""
    while True:
        query = NamespaceQuery(namespace_id=namespace, cursor=cursor, held=True)
        page = store.query(query, _now_ms())
        yield from page.messages
        if not page.has_more:
            return
        cursor = page.next_cursor


def _message_json(message: StoredMessage, parent: NamespaceId) -> dict[str, Any]:
    return {
        "namespaceId": "0x" + message.namespace_id.hex(),
        "parentId": "0x" + parent.hex() if any(parent) else None,
        "seq": message.seq,
        "timestamp": message.timestamp,
        "receivedAt": message.received_at,
        "expiresAt": message.expires_at,
        "header": "0x" + message.header_bytes.hex(),
        "blob": None if message.blob is None else "0x" + message.blob.hex(),
    }


def _sidecar_of(store: RelayStore, message: StoredMessage) -> bytes | None:
    """Return the TFHE sidecar of a message; None when it is not here."""
    reference = message.header.tfhe_sidecar if message.sidecar_len else None
    return None if reference is None else store.get_blob(reference.commitment)


def export_segments(arguments: argparse.Namespace, chosen: NamespaceId | None) -> int:
    """Write segments below ``--out`` and return the exit code."""
    from luxrelay.archive.segment_files import write_segments  # noqa: PLC0415  with the extra only

    if arguments.out is None:
        raise UsageError("segments need a folder", where="--out")
    with look(arguments) as store:
        heads = [head for head in heads_of(store) if chosen in {None, head.namespace_id}]
        paths = write_segments(
            arguments.out,
            _batches(store, heads, arguments.relay),
            prefix=f"{time.time_ns() // 1_000_000:014}",  # above the names of exports before
            kind=arguments.format,
        )
    print(f"{len(paths):,} segments in {arguments.out}", file=sys.stderr)
    return 0


def _batches(store: RelayStore, heads: list[NamespaceHead], relay: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415  with the extra only

    from luxrelay.archive.schema import RAW  # noqa: PLC0415  as above
    from luxrelay.archive.segment_files import SEGMENT_BYTES, SEGMENT_ROWS  # noqa: PLC0415

    rows: list[dict[str, object]] = []
    size = 0
    for head in heads:
        for message in messages_of(store, head.namespace_id):
            sidecar = _sidecar_of(store, message)
            rows.append(
                {
                    "relay": relay,
                    "namespace": message.namespace_id,
                    "seq": message.seq,
                    "header": message.header_bytes,
                    "blob": message.blob or None,
                    "received_at": message.received_at,
                    "expires_at": message.expires_at,
                    "finality": message.finality,
                    "parent": head.parent,
                    "sidecar": sidecar,
                }
            )
            size += len(message.header_bytes) + len(message.blob or b"") + len(sidecar or b"")
            if len(rows) >= SEGMENT_ROWS or size >= SEGMENT_BYTES:
                yield pa.RecordBatch.from_pylist(rows, schema=RAW.arrow())
                rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=RAW.arrow())
