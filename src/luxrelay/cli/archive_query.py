"""archive query: answers from Delta without Java, as tables or JSON."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any

from luxrelay.cli.arguments import hex_bytes
from luxrelay.cli.output import print_json, printable, table
from luxrelay.errors import UsageError

if TYPE_CHECKING:
    from luxrelay.archive.answers import ArchivedMessage, ArchivePage
    from luxrelay.archive.query import ArchiveReader

_TEXT_SHOWN = 60
_YEAR_10000_MS = 253_402_300_799_999


def run_query(arguments: argparse.Namespace) -> int:
    """Answer one question and return the exit code."""
    from luxrelay.archive.query import ArchiveReader  # noqa: PLC0415  with the extra only

    reader = ArchiveReader(arguments.out)
    if arguments.sql is not None:
        rows = reader.sql(arguments.sql)
        if arguments.json:
            print_json([_plain(row) for row in rows.to_pylist()])
        else:
            cells = [list(map(_shown, row.values())) for row in rows.to_pylist()]
            print(table(rows.column_names, cells))
        return 0
    page = _page(reader, arguments)
    if arguments.json:
        from luxrelay.archive.store_query import message_json  # noqa: PLC0415  as above

        messages = [message_json(reader, each, proof=arguments.proof) for each in page.messages]
        print_json({"messages": messages, "nextCursor": page.next_cursor.hex()})
        return 0
    head = ("time", "namespace", "seq", "sender", "copies", "payload", "proof")
    print(table(head, [_as_row(reader, each, proof=arguments.proof) for each in page.messages]))
    if page.next_cursor:
        print(f"more: --cursor {page.next_cursor.hex()}")
    return 0


def _page(reader: ArchiveReader, arguments: argparse.Namespace) -> ArchivePage:
    limit, cursor = arguments.limit, hex_bytes(arguments.cursor, None, "--cursor")
    named = {
        name: hex_bytes(getattr(arguments, name), size, f"--{name}")
        for name, size in (("namespace", 20), ("sender", 20), ("blob", 32))
        if getattr(arguments, name) is not None
    }
    timed = arguments.from_ms is not None or arguments.to_ms is not None
    from_ms: int = arguments.from_ms or 0
    to_ms: int = _YEAR_10000_MS if arguments.to_ms is None else arguments.to_ms
    if set(named) == {"namespace"} and not timed:
        return reader.by_namespace(
            named["namespace"],
            from_seq=arguments.from_seq,
            to_seq=arguments.to_seq,
            limit=limit,
            cursor=cursor,
        )
    if set(named) == {"sender"}:
        return reader.by_sender(
            named["sender"], from_ms=from_ms, to_ms=to_ms, limit=limit, cursor=cursor
        )
    if set(named) == {"blob"} and not timed:
        return reader.by_blob(named["blob"], limit=limit, cursor=cursor)
    if timed and not set(named) - {"namespace"}:
        return reader.by_time(
            from_ms, to_ms, namespace_id=named.get("namespace"), limit=limit, cursor=cursor
        )
    raise UsageError(
        "one question at a time",
        where="archive query",
        hint="give --sql, --namespace, --sender, --blob, or times with or without --namespace",
    )


def _as_row(reader: ArchiveReader, message: ArchivedMessage, *, proof: bool) -> tuple[Any, ...]:
    stamp = datetime.fromtimestamp(message.place.timestamp / 1000, UTC)
    found = reader.prove(message) if proof else None
    return (
        stamp.isoformat(sep=" ", timespec="milliseconds"),
        message.place.namespace_id.hex(),
        message.place.seq,
        message.sender_address.hex() if message.sender_address else "–",
        message.copies,
        printable((message.blob or b"").decode(errors="replace"))[:_TEXT_SHOWN],
        found[1].hex() if found else "–",
    )


def _plain(value: object) -> Any:
    """Return a value of an answer as JSON has it: bytes as hex, what it has no form for as text."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (bytes, bytearray)):
        return "0x" + value.hex()
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and not isfinite(value):
        return None  # JSON has no number for it
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _shown(value: object) -> Any:
    """Return a value of an answer as a cell shows it."""
    plain = _plain(value)
    if plain is None:
        return "–"
    return json.dumps(plain) if isinstance(plain, (dict, list)) else plain
