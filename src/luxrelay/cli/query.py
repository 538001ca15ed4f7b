"""query and head: stored messages and heads of a relay."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from luxrelay.bus import MsgHeader, check_sidecar
from luxrelay.cli.arguments import (
    SubParsers,
    add_command,
    add_namespace,
    add_relay,
    chosen_namespace,
    open_relay,
    whole_number,
)
from luxrelay.cli.output import print_json, printable, table
from luxrelay.errors import HeaderError, SyncRemoteError
from luxrelay.sync import PeerHead, RelaySyncClient, WireMessage

_U64 = 2**64 - 1


def register(commands: SubParsers) -> None:
    """Add both commands."""
    query = add_command(
        commands,
        "query",
        "list messages of one namespace, ascending by sequence",
        "luxrelay query --namespace 9a37ec99238e5e156f7cdaca9ab0ed137bdc5fae --limit 20",
        _query,
    )
    add_relay(query)
    add_namespace(query)
    _add_bounds(query)
    query.add_argument(
        "--sidecars",
        action="store_true",
        help="fetch the TFHE sidecars that the relay holds, check them, and print them in the JSON",
    )
    query.add_argument("--json", action="store_true", help="print JSON")

    head = add_command(
        commands,
        "head",
        "show how far a relay has come in a namespace and its lanes",
        "luxrelay head --topic /chat/1/room",
        _head,
    )
    add_relay(head)
    add_namespace(head)
    head.add_argument("--json", action="store_true", help="print JSON")


def _add_bounds(query: argparse.ArgumentParser) -> None:
    query.add_argument(
        "--lanes", action="store_true", help="the lanes of the namespace instead of itself"
    )
    query.add_argument(
        "--from-seq", type=whole_number(0, _U64), default=0, metavar="N", help="after this sequence"
    )
    query.add_argument(
        "--to-seq", type=whole_number(0, _U64), default=0, metavar="N", help="up to it; 0 = latest"
    )
    query.add_argument(
        "--from-ms",
        type=whole_number(0, _U64),
        default=0,
        metavar="MS",
        help="timestamps from here on, Unix milliseconds",
    )
    query.add_argument(
        "--to-ms",
        type=whole_number(0, _U64),
        default=0,
        metavar="MS",
        help="up to here, inclusive; 0 = no bound",
    )
    query.add_argument(
        "--limit",
        type=whole_number(1, 10_000),
        default=100,
        metavar="N",
        help="messages of each namespace (default %(default)s)",
    )


def _query(arguments: argparse.Namespace) -> int:
    namespace = chosen_namespace(arguments)
    shown: list[tuple[MsgHeader, WireMessage]] = []
    more = False
    with open_relay(arguments) as relay:
        heads = list(relay.list_heads(namespace)) if arguments.lanes else []
        chosen = [h.namespace_id for h in heads if h.messages] if arguments.lanes else [namespace]
        for each in chosen:
            page = relay.sync_page(
                each,
                arguments.from_seq,
                arguments.to_seq,
                arguments.limit,
                from_time=arguments.from_ms,
                to_time=arguments.to_ms,
            )
            more |= page.status.has_more
            shown += [(_decode(message, relay.address), message) for message in page.messages]
        if arguments.sidecars:
            shown = [(h, replace(m, sidecar=_sidecar(relay, h, m))) for h, m in shown]
    if arguments.json:
        print_json({"messages": [_as_json(h, m) for h, m in shown], "hasMore": more})
        return 0
    rows = [
        (h.namespace_id.hex()[:12], h.seq, _moment(h.timestamp), h.blob_len, _payload(h, m))
        for h, m in shown
    ]
    print(table(("namespace", "seq", "timestamp", "bytes", "payload"), rows))
    if not rows:
        words = (
            "nothing here" if arguments.lanes else "nothing here; --lanes shows what senders wrote"
        )
        print(f"luxrelay: {words}", file=sys.stderr)
    if more:
        print("more messages follow: raise --limit or --from-seq")
    return 0


def _head(arguments: argparse.Namespace) -> int:
    namespace = chosen_namespace(arguments)
    with open_relay(arguments) as relay:
        heads = [head for head in relay.list_heads(namespace) if head.messages]
    if arguments.json:
        print_json([_head_json(head) for head in heads])
        return 0
    rows = [
        (
            head.namespace_id.hex(),
            "lane" if head.namespace_id != head.parent_id else "parent",
            head.earliest_seq,
            head.contiguous_seq,
            head.latest_seq,
            head.messages,
            head.size_bytes,
        )
        for head in heads
    ]
    names = ("namespace", "kind", "earliest", "contiguous", "latest", "messages", "bytes")
    print(table(names, rows))
    if not rows:
        print(
            "luxrelay: nothing here: the relay holds no message of it or its lanes", file=sys.stderr
        )
    return 0


def _decode(message: WireMessage, address: str) -> MsgHeader:
    try:
        return MsgHeader.decode(message.header)
    except HeaderError as error:
        raise SyncRemoteError(
            f"the relay sent a broken header: {error.what}", where=address
        ) from error


def _sidecar(relay: RelaySyncClient, header: MsgHeader, message: WireMessage) -> bytes:
    """Return the sidecar of a message, checked; empty when the relay has none.

    Raises:
        SyncRemoteError: it is not the one that the header refers to.

    """
    reference = header.tfhe_sidecar
    if reference is None or not message.sidecar_len:
        return b""
    found = relay.get_blob(reference.commitment)
    if found is None:
        return b""
    verdict = check_sidecar(header, found)
    if not verdict.accepted:
        raise SyncRemoteError(f"sequence {header.seq}: {verdict.reason}", where=relay.address)
    return found


def _as_json(header: MsgHeader, message: WireMessage) -> dict[str, Any]:
    held = bool(message.blob) or not header.blob_len
    shown = {
        "header": header.to_json(),
        "blob": "0x" + message.blob.hex() if held else None,
        "receivedAt": message.received_at,
        "expiresAt": message.expires_at,
    }
    if header.tfhe_sidecar is not None:
        shown["sidecarHeld"] = message.sidecar_len > 0
        if message.sidecar:
            shown["sidecar"] = "0x" + message.sidecar.hex()
    return shown


def _head_json(head: PeerHead) -> dict[str, Any]:
    return {
        "namespaceId": "0x" + head.namespace_id.hex(),
        "parentId": "0x" + head.parent_id.hex(),
        "earliestSeq": head.earliest_seq,
        "contiguousHead": head.contiguous_seq,
        "latestSeq": head.latest_seq,
        "finalizedSeq": head.finalized_seq,
        "latestTimestamp": head.latest_timestamp,
        "messages": head.messages,
        "sizeBytes": head.size_bytes,
    }


def _moment(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "milliseconds")[:23]
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"  # a header may carry any u64


def _payload(header: MsgHeader, message: WireMessage) -> str:
    if header.blob_len and not message.blob:
        return "(the relay holds the header only)"
    return _preview(message.blob)


def _preview(blob: bytes) -> str:
    text = blob[:120].decode(errors="replace")
    shown = printable(text)
    return shown[:60] + ("…" if len(shown) > 60 or len(blob) > 120 else "")
