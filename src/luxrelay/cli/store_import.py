"""store import: what `store export` wrote, into a relay's store again.

Nothing in the file is believed: each line proves itself by its header's signature, its blob by the
commitment, a lane by its derivation. A line that does not is named and left out; the others are
stored.

Source: LP-6411 §4; decisions J6, J11.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from luxrelay.bus import MsgHeader, NamespaceId, lane, sha3_commitment, verify_header
from luxrelay.bus import constants as c
from luxrelay.cli.arguments import SubParsers, add_command, whole_number
from luxrelay.cli.output import Progress
from luxrelay.errors import InputError, LuxRelayError
from luxrelay.store import IncomingMessage, PutOutcome, RelayStore, RelayStoreConfig

LINE_BYTES_MAX: Final = 2 * (c.MAX_BLOB_BYTES + 64 * 1024)
"""Longest line that is read; the largest message in hex, and room for its other fields."""
BATCH: Final = 256
"""Messages stored at a time."""
_NAMED_MAX: Final = 10
"""Lines that are named; all are counted."""
_BOUNDLESS: Final = 2**62
_MS_PER_DAY: Final = 86_400_000


def register_import(actions: SubParsers) -> None:
    """Add the subcommand."""
    add = add_command(
        actions,
        "import",
        "store again what export wrote as JSON lines; the node must be stopped",
        "luxrelay store import relay-data messages.jsonl --days 30",
        _import,
    )
    add.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a node's data folder; made when absent"
    )
    add.add_argument(
        "file", type=Path, metavar="FILE", help="JSON lines of store export; - for standard input"
    )
    add.add_argument(
        "--days",
        type=whole_number(1, 36_500),
        default=30,
        metavar="N",
        help="messages older than this are left out (default %(default)s); a node deletes by its "
        "own ttl_ms when it runs",
    )


def _import(arguments: argparse.Namespace) -> int:
    span, now_ms = arguments.days * _MS_PER_DAY, time.time_ns() // 1_000_000
    config = RelayStoreConfig(
        max_storage_bytes=_BOUNDLESS,
        namespace_quota_bytes=_BOUNDLESS,
        cold_store_ttl_ms=span,
        retention_window_ms=span,
    )
    source = str(arguments.file)
    refused: list[str] = []
    outcomes: Counter[PutOutcome] = Counter()
    progress = Progress()
    with (
        _opened(arguments.file) as lines,
        RelayStore.open(arguments.folder / "store", config, now_ms=now_ms) as store,
    ):
        for batch in _batches(proven(lines, source, refused)):
            outcomes.update(store.put_many(batch, now_ms))
            progress.update(f"{outcomes.total():,} messages read")
    progress.close()
    for line in refused[:_NAMED_MAX]:
        print(line, file=sys.stderr)
    if len(refused) > _NAMED_MAX:
        print(f"and {len(refused) - _NAMED_MAX:,} lines more", file=sys.stderr)
    print(
        f"{outcomes[PutOutcome.STORED]:,} messages stored, "
        f"{outcomes[PutOutcome.DUPLICATE]:,} held already, "
        f"{outcomes[PutOutcome.EXPIRED]:,} too old, "
        f"{outcomes[PutOutcome.LOST_SLOT]:,} from full slots, {len(refused):,} refused"
    )
    full = outcomes[PutOutcome.FULL]
    if full:
        print(f"{full:,} found no room: too many namespaces", file=sys.stderr)
    return 1 if refused or full else 0


def _opened(file: Path) -> BinaryIO:
    if str(file) == "-":
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", where=str(file)) from error


def proven(lines: BinaryIO, source: str, refused: list[str]) -> Iterator[IncomingMessage]:
    """Yield the messages of lines that prove themselves; what is wrong with others is listed.

    Args:
        lines: JSON lines.
        source: What the file is called.
        refused: Takes ``source:line: what is wrong`` for each line that is no message.

    """
    number = 0
    while line := lines.readline(LINE_BYTES_MAX):
        number += 1
        if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = lines.readline(LINE_BYTES_MAX)
            refused.append(f"{source}:{number}: a line of more than {LINE_BYTES_MAX:,} bytes")
            continue
        if not line.strip():
            continue
        try:
            yield _message(json.loads(line))
        except (LuxRelayError, ValueError, RecursionError) as error:
            refused.append(f"{source}:{number}: {error}")


def _message(value: Any) -> IncomingMessage:
    if not isinstance(value, dict):
        raise InputError("expected a JSON object")
    data = _bytes(value, "header")
    header = MsgHeader.decode(data)
    if not verify_header(header):
        raise InputError("the header's signature is wrong")
    parent = header.namespace_id
    if value.get("parentId") is not None:
        parent = NamespaceId(_bytes(value, "parentId"))
        if len(parent) != c.NAMESPACE_BYTES:
            raise InputError(f"expected {c.NAMESPACE_BYTES} bytes", where="parentId")
        if parent != header.namespace_id and lane(parent, header.sender_pub_key) != (
            header.namespace_id
        ):
            raise InputError("the namespace is no lane of its parentId")
    blob = _bytes(value, "blob") if value.get("blob") is not None else None
    hashed = not header.flags & c.FLAG_KZG_COMMITMENT
    if blob and hashed and sha3_commitment(blob) != header.blob_commitment:
        raise InputError("the blob does not fit the header's commitment")
    received = value.get("receivedAt")
    if not isinstance(received, int) or isinstance(received, bool):
        raise InputError("expected Unix milliseconds", where="receivedAt")
    return IncomingMessage(header=header, blob=blob, parent=parent, received_at=received)


def _bytes(value: dict[str, Any], name: str) -> bytes:
    text = value.get(name)
    if not isinstance(text, str) or not text.startswith("0x"):
        raise InputError("expected 0x and hex digits", where=name)
    try:
        return bytes.fromhex(text[2:])
    except ValueError:
        raise InputError("expected 0x and hex digits", where=name) from None


def _batches(messages: Iterable[IncomingMessage]) -> Iterator[list[IncomingMessage]]:
    batch: list[IncomingMessage] = []
    for message in messages:
        batch.append(message)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
