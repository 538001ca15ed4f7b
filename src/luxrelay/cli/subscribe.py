"""subscribe: follow a namespace and its lanes through a node's gateway, replay first, then live."""

from __future__ import annotations

import argparse
import json
import sys
from base64 import b64encode
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from luxrelay.bus import NamespaceId
from luxrelay.cli.arguments import (
    SubParsers,
    add_command,
    add_namespace,
    chosen_namespace,
    hex_bytes,
    whole_number,
)
from luxrelay.cli.gateway import add_first_contact, add_gateway, chosen_token
from luxrelay.cli.output import printable
from luxrelay.client import (
    LATEST,
    Beyond,
    Checks,
    Dropped,
    Event,
    Gap,
    Live,
    Message,
    Place,
    Reconnected,
    Refused,
    RelayClient,
    Retry,
    Subscribe,
    Waiting,
    subscribe,
)
from luxrelay.errors import ClientRefusedError, ClientUnreachableError, InputError
from luxrelay.files import read_bounded, write_whole
from luxrelay.text import parse_json
from luxrelay.wire import from_hex

_U64: Final = 2**64 - 1
_PLACE_BYTES_MAX: Final = 16 * 1024 * 1024


def register(commands: SubParsers) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "subscribe",
        "follow a namespace live, from any sequence on",
        "luxrelay subscribe --topic /chat/1/room --after latest",
        _run,
    )
    add_gateway(parser)
    add_first_contact(parser)
    add_namespace(parser)
    parser.add_argument(
        "--after",
        type=_sequence,
        default=0,
        metavar="N",
        help='begin behind this sequence in every lane, or "latest" (default: everything held)',
    )
    parser.add_argument("--no-lanes", action="store_true", help="the namespace without its lanes")
    parser.add_argument(
        "--ordered",
        action="store_true",
        help="as a validator reads: exactly the next sequence, or nothing; what does not pass and "
        "what is waited for is told",
    )
    parser.add_argument(
        "--sender",
        action="append",
        default=[],
        metavar="HEX",
        help="only messages of this address or key field; may be given several times",
    )
    parser.add_argument(
        "--max-rate",
        type=whole_number(1, 1_000_000),
        default=0,
        metavar="N",
        help="N messages a second; what is more comes later",
    )
    parser.add_argument(
        "--blobs",
        choices=("held", "later", "none"),
        default="held",
        help="payloads that are there, also those that come later, or none (default held)",
    )
    parser.add_argument(
        "--count", type=whole_number(1, _U64), default=0, metavar="N", help="end after N messages"
    )
    parser.add_argument(
        "--place",
        type=Path,
        metavar="FILE",
        help="keep the positions in FILE and go on from there the next time",
    )
    parser.add_argument(
        "--bound",
        metavar="NETWORK",
        help='check signatures of a network with signing = "bound", by its name',
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def _run(arguments: argparse.Namespace) -> int:
    wanted = Subscribe(
        namespaces=[chosen_namespace(arguments)],
        after=arguments.after,
        lanes=not arguments.no_lanes,
        ordered=arguments.ordered,
        senders=[hex_bytes(each, None, "--sender") for each in arguments.sender],
        max_rate=arguments.max_rate,
        blobs=arguments.blobs,
    )
    place = _read_place(arguments.place)
    checks = Checks(bound_network=arguments.bound or "")
    count = 0
    told: set[str] = set()
    retry = Retry(first_contact_s=arguments.connect_s)
    with RelayClient(
        arguments.gateway,
        token=chosen_token(arguments),
        checks=checks,
        timeout_s=arguments.timeout_s,
        token_in_clear=arguments.token_in_clear,
    ) as client:
        for event in subscribe(client, wanted, place=place, retry=retry, lost=partial(_lost, told)):
            told.clear()
            _show(event, as_json=arguments.json)
            if isinstance(event, Message | Gap | Live):
                _keep_place(arguments.place, place)
            count += isinstance(event, Message)
            if arguments.count and count == arguments.count:
                return 0
    return 0


def _lost(told: set[str], error: ClientUnreachableError | ClientRefusedError) -> None:
    """Say once what keeps us waiting; the rest of the outage is silent."""
    words = printable(str(error))
    if words not in told:
        told.add(words)
        print(f"luxrelay: {words}; trying again", file=sys.stderr)


def _show(event: Event, *, as_json: bool) -> None:
    if isinstance(event, Message):
        print(json.dumps(_as_json(event)) if as_json else _line(event), flush=True)
        return
    if as_json and (shown := _beside(event)):
        print(json.dumps(shown), flush=True)
        return
    match event:
        case Gap():
            lane = event.namespace_id.hex()[:12]
            words = f"gap in {lane}: {event.first} to {event.last}, {event.reason}"
        case Live():
            lines = [
                f"the node does not carry {n.hex()}: nothing of it may ever come"
                for n in sorted(event.not_carried)
            ]
            words = "\n".join(("live: what follows is new", *lines))
        case Dropped():
            words = (
                f"the node left out {event.lanes} lanes, {event.late} late messages and "
                f"{event.blobs} blobs that came later"
            )
        case Beyond():
            lane = event.namespace_id.hex()[:12]
            words = (
                f"this node holds up to {event.held} of {lane}, you are at {event.position}: what "
                f"comes up to {event.position} is not shown; for all of it begin without the place"
            )
        case Refused():
            lane = event.namespace_id.hex()[:12]
            words = f"refused {event.seq} of {lane}: {printable(event.reason)} ({event.code})"
        case Waiting():
            lane = event.namespace_id.hex()[:12]
            words = f"waiting for {event.first} to {event.last} of {lane}"
        case Reconnected():
            words = f"connected again after {event.attempts} tries"
    print(f"luxrelay: {words}", file=sys.stderr)


def _beside(event: Event) -> dict[str, Any]:
    """Return what stands among the messages as JSON; nothing for what goes to standard error."""
    match event:
        case Gap(name, first, last, reason):
            return {"gap": "0x" + name.hex(), "first": first, "last": last, "reason": reason}
        case Refused(name, seq, content, code, reason):
            shown = {"refused": "0x" + name.hex(), "seq": seq, "contentId": "0x" + content.hex()}
            return {**shown, "code": code, "reason": reason}
        case Waiting(name, first, last):
            return {"waiting": "0x" + name.hex(), "first": first, "last": last}
    return {}


def _line(message: Message) -> str:
    header, blob = message.header, message.blob
    moment = datetime.fromtimestamp(min(header.timestamp, 2**47) / 1000, UTC)
    text = "(not here yet)" if blob is None else printable(blob[:500].decode(errors="replace"))
    late = " late" * message.late + " regressed" * message.regressed
    return f"{moment:%H:%M:%S} {header.namespace_id.hex()[:12]} {header.seq}{late}  {text}"


def _as_json(message: Message) -> dict[str, Any]:
    sidecar = {"sidecarHeld": message.sidecar_held} if message.header.tfhe_sidecar else {}
    return {
        "header": message.header.to_json(),
        "parentId": "0x" + message.parent.hex(),
        "blob": None if message.blob is None else b64encode(message.blob).decode(),
        "receivedAt": message.received_at,
        "late": message.late,
        "regressed": message.regressed,
        "completes": message.completes,
        **sidecar,
    }


def _sequence(text: str) -> int | str:
    if text == LATEST:
        return LATEST
    try:
        return whole_number(0, _U64)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f'{error}, and not "{LATEST}"') from None


def _read_place(path: Path | None) -> Place:
    if path is None or not path.exists():
        return Place()
    try:
        loaded = parse_json(read_bounded(path, _PLACE_BYTES_MAX))
        return Place({NamespaceId(from_hex(lane)): int(seq) for lane, seq in loaded.items()})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError("the file holds no positions", where=str(path)) from error


def _keep_place(path: Path | None, place: Place) -> None:
    if path is None:
        return
    text = json.dumps({lane.hex(): seq for lane, seq in place.positions.items()})
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise InputError(
            f"the positions cannot be kept: {error.strerror}", where=str(path)
        ) from error
