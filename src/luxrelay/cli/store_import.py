"""store import: files of `store export` into a relay's store.

Nothing in the file is believed: each line proves itself by its header's signature, its blob by the
commitment, a lane by its derivation. A line that does not is named and left out; the others are
stored.

Source: LP-6411 §4; decisions J6, J11.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    VerdictKind,
    check_blob,
    check_sidecar,
    lane,
    verify_header,
)
from luxrelay.bus import constants as c
from luxrelay.bus.bound import verify_header_bound
from luxrelay.cli.arguments import SubParsers, add_command, whole_number
from luxrelay.cli.output import Progress, print_json, printable
from luxrelay.errors import InputError, LuxRelayError
from luxrelay.store import IncomingMessage, PutOutcome, RelayStore, RelayStoreConfig
from luxrelay.text import parse_json
from luxrelay.wire import from_hex

LINE_BYTES_MAX: Final = 2 * (2 * c.MAX_BLOB_BYTES + 64 * 1024)
"""Longest line that is read; the largest message in hex, and room for its other fields."""
BATCH: Final = 256
"""Messages stored at a time."""
_NAMED_MAX: Final = 10
"""Lines that are named; all are counted."""
_BOUNDLESS: Final = 2**62
_MS_PER_HOUR: Final = 3_600_000
_AHEAD_MS: Final = 30_000
"""How far a clock may be ahead of ours (LP-6411)."""


def register_import(actions: SubParsers) -> None:
    """Add the subcommand."""
    add = add_command(
        actions,
        "import",
        "store again what export wrote as JSON lines; the node must be stopped",
        "luxrelay store import relay-data messages.jsonl --ttl-hours 24",
        _import,
    )
    add.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a node's data folder; made when absent"
    )
    add.add_argument(
        "file", type=Path, metavar="FILE", help="JSON lines of store export; - for standard input"
    )
    add.add_argument(
        "--ttl-hours",
        type=whole_number(1, 876_000),
        default=1,
        metavar="N",
        help="how long messages stay, counted from their arrival at the first relay: the node's "
        "ttl_ms (default %(default)s); older ones are left out",
    )
    add.add_argument(
        "--bound",
        metavar="NETWORK",
        default="",
        help="the network is one of bound signatures, and this is its name",
    )
    add.add_argument("--json", action="store_true", help="print JSON")


def _import(arguments: argparse.Namespace) -> int:
    span, now_ms = arguments.ttl_hours * _MS_PER_HOUR, time.time_ns() // 1_000_000
    config = RelayStoreConfig(
        max_storage_bytes=_BOUNDLESS,
        namespace_quota_bytes=_BOUNDLESS,
        cold_store_ttl_ms=span,
        retention_window_ms=span,
    )
    source = str(arguments.file)
    refused = Refusals()
    outcomes: Counter[PutOutcome] = Counter()
    why = ""
    progress = Progress()
    with (
        _opened(arguments.file) as lines,
        RelayStore.open(arguments.folder / "store", config, now_ms=now_ms) as store,
    ):
        for batch in _batches(proven(lines, source, refused, now_ms, arguments.bound)):
            told = store.put_many(batch, now_ms)
            outcomes.update(told)
            if not why and PutOutcome.FULL in told:
                why = store.why_full(batch[told.index(PutOutcome.FULL)])
            progress.update(f"{outcomes.total():,} messages read")
    progress.close()
    for line in refused.named:
        print(printable(line), file=sys.stderr)
    if refused.count > len(refused.named):
        print(f"and {refused.count - len(refused.named):,} lines more", file=sys.stderr)
    full = outcomes[PutOutcome.FULL]
    if arguments.json:
        print_json(
            {
                "stored": outcomes[PutOutcome.STORED],
                "held": outcomes[PutOutcome.DUPLICATE],
                "tooOld": outcomes[PutOutcome.EXPIRED],
                "fullSlots": outcomes[PutOutcome.LOST_SLOT],
                "refused": refused.count,
                "noRoom": full,
            }
        )
    else:
        print(
            f"{outcomes[PutOutcome.STORED]:,} messages stored, "
            f"{outcomes[PutOutcome.DUPLICATE]:,} held already, "
            f"{outcomes[PutOutcome.EXPIRED]:,} too old, "
            f"{outcomes[PutOutcome.LOST_SLOT]:,} from full slots, {refused.count:,} refused"
        )
    if full:
        print(f"{full:,} found no room; of the first: {why}", file=sys.stderr)
    return 1 if refused.count or full else 0


def _opened(file: Path) -> BinaryIO:
    if str(file) == "-":
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", where=str(file)) from error


@dataclass(slots=True)
class Refusals:
    """Lines that were no messages: how many, and what was wrong with the first of them."""

    count: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Count one."""
        self.count += 1
        if len(self.named) < _NAMED_MAX:
            self.named.append(line)


def proven(
    lines: BinaryIO, source: str, refused: Refusals, now_ms: int, bound: str = ""
) -> Iterator[IncomingMessage]:
    """Yield the messages of lines that prove themselves; what is wrong with others is listed.

    Args:
        lines: JSON lines.
        source: What the file is called.
        refused: Takes ``source:line: what is wrong`` for each line that is no message.
        now_ms: Unix milliseconds; nothing comes from beyond it.
        bound: Name of a network with bound signatures; empty for LP-6411's own (H3).

    """
    number = 0
    while line := lines.readline(LINE_BYTES_MAX):
        number += 1
        if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = lines.readline(LINE_BYTES_MAX)
            refused.add(f"{source}:{number}: a line of more than {LINE_BYTES_MAX:,} bytes")
            continue
        if not line.strip():
            continue
        try:
            yield _message(parse_json(line), now_ms, bound)
        except (LuxRelayError, ValueError) as error:
            refused.add(f"{source}:{number}: {error}")


def _message(value: Any, now_ms: int, bound: str) -> IncomingMessage:
    if not isinstance(value, dict):
        raise InputError("expected a JSON object")
    data = _bytes(value, "header")
    header = MsgHeader.decode(data)
    signed = verify_header_bound(header, bound) if bound else verify_header(header)
    if not signed:
        raise InputError("the header's signature is wrong")
    parent = _parent(value, header)
    blob = _bytes(value, "blob") if value.get("blob") is not None else None
    if blob is not None:
        verdict = check_blob(header, blob)
        if verdict.kind is VerdictKind.REJECT:
            raise InputError("the blob does not fit the header's commitment", where=verdict.reason)
        if not verdict.accepted:
            blob = None  # of a kind that this installation cannot check; the header proves itself
    sidecar = _bytes(value, "sidecar") if value.get("sidecar") is not None else None
    if sidecar is not None:
        verdict = check_sidecar(header, sidecar)
        if not verdict.accepted:
            raise InputError("the sidecar is not the header's", where=verdict.reason)
    received = value.get("receivedAt")
    if not isinstance(received, int) or isinstance(received, bool):
        raise InputError("expected Unix milliseconds", where="receivedAt")
    if max(header.timestamp, received) > now_ms + _AHEAD_MS:
        raise InputError("it comes from the future", where="timestamp or receivedAt")
    return IncomingMessage(
        header=header, blob=blob, parent=parent, received_at=received, sidecar=sidecar
    )


def _parent(value: dict[str, Any], header: MsgHeader) -> NamespaceId:
    if value.get("parentId") is None:
        return header.namespace_id
    parent = NamespaceId(_bytes(value, "parentId"))
    if len(parent) != c.NAMESPACE_BYTES:
        raise InputError(f"expected {c.NAMESPACE_BYTES} bytes", where="parentId")
    if header.namespace_id not in {parent, lane(parent, header.sender_pub_key)}:
        raise InputError("the namespace is no lane of its parentId")
    return parent


def _bytes(value: dict[str, Any], name: str) -> bytes:
    text = value.get(name)
    try:
        return from_hex(text if isinstance(text, str) else "?")
    except ValueError as error:
        raise InputError(str(error), where=name) from None


def _batches(messages: Iterable[IncomingMessage]) -> Iterator[list[IncomingMessage]]:
    batch: list[IncomingMessage] = []
    for message in messages:
        batch.append(message)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
