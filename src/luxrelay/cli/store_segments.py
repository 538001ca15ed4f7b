"""store export --format arrow or parquet: a relay's messages as segment files for the archive."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from luxrelay.bus import NamespaceId
from luxrelay.cli.store import heads_of, look, messages_of
from luxrelay.errors import UsageError
from luxrelay.store import NamespaceHead, RelayStore

if TYPE_CHECKING:
    import pyarrow as pa


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
                }
            )
            size += len(message.header_bytes) + len(message.blob or b"")
            if len(rows) >= SEGMENT_ROWS or size >= SEGMENT_BYTES:
                yield pa.RecordBatch.from_pylist(rows, schema=RAW.arrow())
                rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=RAW.arrow())
