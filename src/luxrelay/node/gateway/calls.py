"""A request, its caller and its answer as values, and the routes that describe them.

A `Route` says once what a path takes and gives; requests are checked against it and the OpenAPI
document is made from it, so the two cannot differ.

How messages, heads and receipts look to HTTP clients: as JSON and as bytes.

JSON writes bytes as lower-case 0x hex and blobs as base64; a header has the form of LP-6411 §4.2.
The layouts as bytes are big-endian:

    publish   parent 20 (zeros: the header's own namespace) ‖ headerLen u16 ‖ blobLen u32
              ‖ header ‖ blob, one or more; with 2^31 added to blobLen ‖ sidecarLen u32 ‖ sidecar
    message   flags u8 (1 the blob is held, 2 late, 16 the sidecar is held) ‖ parent 20
              ‖ receivedAt u64 ‖ expiresAt u64 ‖ headerLen u16 ‖ blobLen u32 ‖ header ‖ blob

Source: docs/reference/http.md; user-02; LP-6411 §4.2; decisions H34, P22, P35, P40.
"""

from __future__ import annotations

import json
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

import trio

from luxrelay.bus import Code, MsgHeader, NamespaceId, VerdictKind, message_id
from luxrelay.bus import constants as c
from luxrelay.bus.finality import FinalityState
from luxrelay.errors import GatewayError, HeaderError
from luxrelay.store import NamespaceHead, StoredMessage
from luxrelay.sync import PublishItem, PublishReceipt, QuotaUse
from luxrelay.text import parse_json
from luxrelay.wire import from_hex

_ITEM: Final = struct.Struct(">20sHI")
_RECORD: Final = struct.Struct(">B20sQQHI")
HELD: Final = 1
LATE: Final = 2
REGRESSED: Final = 4
COMPLETES: Final = 8
SIDECAR_HELD: Final = 16
_WITH_SIDECAR: Final = 1 << 31
"""Added to the length of a blob, 2 MiB at most, that a sidecar follows."""
_U32: Final = struct.Struct(">I")


def hex_text(value: bytes) -> str:
    """Return 0x and lower-case hex digits."""
    return "0x" + value.hex()


def message_json(
    message: StoredMessage, parent: NamespaceId, *, late: bool = False, completes: bool = False
) -> dict[str, Any]:
    """Return a stored message as JSON."""
    header = message.header
    shown: dict[str, Any] = {
        "header": header.to_json(),
        "parentId": hex_text(parent),
        "messageId": hex_text(message_id(header.namespace_id, header.seq)),
        "contentId": hex_text(header.content_id),
        "sender": hex_text(header.sender_address),
        "epoch": header.epoch,
        "blob": None if message.blob is None else b64encode(message.blob).decode(),
        "receivedAt": message.received_at,
        "expiresAt": message.expires_at,
        "finality": FinalityState(message.finality).name.lower(),
    }
    if header.tfhe_sidecar is not None:
        shown["sidecarHeld"] = message.sidecar_len > 0
    if message.regressed:
        shown["regressed"] = True
    if late:
        shown["late"] = True
    if completes:
        shown["completes"] = True
    return shown


def message_bytes(
    message: StoredMessage, parent: NamespaceId, *, late: bool = False, completes: bool = False
) -> bytes:
    """Return a stored message as bytes."""
    blob = message.blob
    flags = (
        (0 if blob is None else HELD)
        | (LATE if late else 0)
        | (REGRESSED if message.regressed else 0)
        | (COMPLETES if completes else 0)
        | (SIDECAR_HELD if message.sidecar_len else 0)
    )
    head = _RECORD.pack(
        flags,
        parent,
        message.received_at,
        message.expires_at,
        len(message.header_bytes),
        len(blob or b""),
    )
    return b"".join((head, message.header_bytes, blob or b""))


def head_json(head: NamespaceHead) -> dict[str, Any]:
    """Return a head as JSON."""
    return {
        "namespaceId": hex_text(head.namespace_id),
        "parentId": hex_text(head.parent),
        "earliestSeq": head.earliest_seq,
        "contiguousSeq": head.contiguous_seq,
        "latestSeq": head.latest_seq,
        "finalizedSeq": head.finalized_seq,
        "latestHeaderHash": hex_text(head.latest_header_hash),
        "latestTimestamp": head.latest_timestamp,
        "messages": head.messages,
        "sizeBytes": head.size_bytes,
        "floorSeq": head.floor,
    }


def receipt_json(receipt: PublishReceipt) -> dict[str, Any]:
    """Return a receipt as JSON."""
    return {
        "verdict": VerdictKind(receipt.verdict).name.lower(),
        "code": int(receipt.code),
        "codeName": Code(receipt.code).name.lower(),
        "reason": receipt.reason,
        "stored": receipt.stored,
        "peersSent": receipt.peers_sent,
        "messageId": hex_text(receipt.message_id) if receipt.message_id else None,
        "expectedSeq": receipt.expected_seq,
        "digest": hex_text(receipt.digest) if receipt.digest else None,
        "seenBack": receipt.seen_back,
        "retryAfterMs": receipt.retry_after_ms,
    }


def quota_json(use: QuotaUse) -> dict[str, Any]:
    """Return what was counted of a quota as JSON."""
    return {
        "account": hex_text(use.account),
        "charged": use.charged,
        "messagesLimit": use.messages_limit,
        "bytesLimit": use.bytes_limit,
        "messagesUsed": use.messages_used,
        "bytesUsed": use.bytes_used,
        "expiresMs": use.expires_ms,
    }


def items_of_bytes(body: bytes, items_max: int) -> list[PublishItem]:
    """Return the messages of a publish body.

    Raises:
        GatewayError: it is cut off, empty or holds too many.

    """
    items: list[PublishItem] = []
    position = 0
    while position < len(body):
        if len(items) == items_max:
            raise _too_many(items_max)
        if len(body) - position < _ITEM.size:
            raise GatewayError("the body ends inside a message", where=f"byte {position}")
        parent, header_len, blob_len = _ITEM.unpack_from(body, position)
        begin = position + _ITEM.size
        middle = begin + header_len
        end = position = middle + (blob_len & ~_WITH_SIDECAR)
        sidecar = b""
        if blob_len & _WITH_SIDECAR:
            start = end + _U32.size
            position = start + int.from_bytes(body[end:start], "big")
            sidecar = body[start:position]
        if position > len(body):
            raise GatewayError("the body ends inside a message", where=f"byte {begin}")
        items.append(
            PublishItem(
                header=body[begin:middle],
                blob=body[middle:end],
                parent_id=parent if any(parent) else b"",
                sidecar=sidecar,
            )
        )
    if not items:
        raise GatewayError("there is no message", where="body")
    return items


def items_of_json(value: Any, items_max: int) -> list[PublishItem]:
    """Return the messages of a publish body.

    A header is LP-6411's JSON object, or its bytes as hex.

    Raises:
        GatewayError: it has another form; ``where`` names the message.

    """
    if not isinstance(value, dict) or set(value) != {"messages"}:
        raise GatewayError('expected an object with "messages"', where="body")
    entries = value["messages"]
    if not isinstance(entries, list) or not entries:
        raise GatewayError("expected a list of one message at least", where="messages")
    if len(entries) > items_max:
        raise _too_many(items_max)
    return [_item(entry, f"messages[{index}]") for index, entry in enumerate(entries)]


def _item(entry: Any, where: str) -> PublishItem:
    if not isinstance(entry, dict) or not {"header"} <= set(entry) <= {
        "header",
        "blob",
        "parentId",
        "sidecar",
    }:
        raise GatewayError("expected an object with header, blob, parentId, sidecar", where=where)
    header = entry["header"]
    if isinstance(header, str):
        encoded = hex_bytes(header, f"{where}.header")
    else:
        try:
            encoded = MsgHeader.from_json(header).encode()
        except HeaderError as error:
            raise GatewayError(error.what, where=f"{where}.header {error.where}".strip()) from error
    return PublishItem(
        header=encoded,
        blob=_base64(entry.get("blob", ""), f"{where}.blob"),
        parent_id=_parent(entry.get("parentId"), f"{where}.parentId"),
        sidecar=_base64(entry.get("sidecar", ""), f"{where}.sidecar"),
    )


def _parent(value: Any, where: str) -> bytes:
    if value is None:
        return b""
    parent = hex_bytes(value, where)
    if len(parent) != c.NAMESPACE_BYTES:
        raise GatewayError(f"expected {2 * c.NAMESPACE_BYTES} hex digits", where=where)
    return parent


def hex_bytes(value: Any, where: str) -> bytes:
    """Return the bytes of hex digits, with or without 0x.

    Raises:
        GatewayError: they are none.

    """
    try:
        return from_hex(value if isinstance(value, str) else "?")
    except ValueError as error:
        raise GatewayError(str(error), where=where) from None


def _base64(value: Any, where: str) -> bytes:
    if isinstance(value, str):
        with suppress(ValueError):
            return b64decode(value, validate=True)
    raise GatewayError("expected base64", where=where)


def _too_many(items_max: int) -> GatewayError:
    return GatewayError(f"more than {items_max} messages", where="messages", code="gateway.size")


def records(messages: Sequence[tuple[StoredMessage, NamespaceId]]) -> bytes:
    """Return messages as bytes, one after the other."""
    return b"".join(message_bytes(message, parent) for message, parent in messages)


JSON_TYPE: Final = "application/json"
MESSAGES_TYPE: Final = "application/vnd.luxrelay.messages"
"""Messages as bytes; docs/reference/http.md gives the layout."""
BYTES_TYPE: Final = "application/octet-stream"


class Scope(Enum):
    """What a caller may do."""

    NOTHING = ""
    """For calls that everybody may make."""
    READ = "read"
    PUBLISH = "publish"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class HttpCaller:
    """Who sends a request."""

    key: bytes
    """What its rates are counted under: a token's id or an address."""
    scopes: frozenset[Scope]
    """What it may do."""
    name: str = ""
    """The token's name; empty for an anonymous caller."""
    requests_per_s: int = 0
    """Its own rate; 0 for the gateway's."""
    publish_bytes_per_s: int = 0
    """Its own rate; 0 for the gateway's."""
    holds: Callable[[], bool] = field(default=lambda: True, compare=False)
    """Whether it is still who it was: its token is neither revoked nor expired."""


@dataclass(frozen=True, slots=True)
class ParameterForm:
    """A form of text in a path or query."""

    schema: Mapping[str, Any]
    """As JSON Schema."""
    parse: Callable[[str], Any]
    """Text to value; raises ValueError with what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """A parameter of a route."""

    name: str
    place: str = "query"
    """``query``, ``path`` or ``header``."""
    kind: ParameterForm
    sentence: str
    default: Any = None
    """Value when it is not given."""
    required: bool = False


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One status that a route may give."""

    sentence: str
    content: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Content type to JSON Schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request whose parameters fit its route."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Lower-case names; of a repeated one the last."""
    values: Mapping[str, Any]
    """Parameters, parsed, with defaults."""
    body: bytes
    content_type: str
    """Without parameters, lower case; empty without a body."""
    caller: HttpCaller

    def accepts(self, content_type: str) -> bool:
        """Return True when the client asks for this type by name."""
        return content_type in self.headers.get("accept", "")


@dataclass(slots=True, kw_only=True)
class Response:
    """An answer, whole in memory; its bytes are bounded by what the routes may give."""

    status: int = 200
    content_type: str = JSON_TYPE
    body: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)


Handler = Callable[[Request], Awaitable[Response]]
Stream = trio.abc.Stream


class Takeover(Protocol):
    """Serves WebSockets."""

    def check_room(self, caller: HttpCaller) -> None:
        """Return when one more has room; raises our error otherwise."""

    async def take_over(self, request: Request, stream: Stream, received: bytes) -> None:
        """Serve one after its handshake; ``received`` came behind the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One call of the API."""

    method: str
    path: str
    """With names in braces, such as ``/v1/blobs/{commitment}``."""
    scope: Scope
    summary: str
    sentence: str = ""
    params: tuple[Param, ...] = ()
    bodies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Content types that the body may have, with their JSON Schema."""
    answers: Mapping[int, HttpAnswer]
    handler: Handler | None = None
    takeover: Takeover | None = None
    """Speaks WebSocket; None for a plain call. One of the two is given."""

    @property
    def pattern(self) -> re.Pattern[str]:
        """What its paths look like."""
        return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path))


class MethodError(GatewayError):
    """A path that does not take the method; ``allowed`` are those that it takes."""

    default_code = "gateway.method"
    allowed: tuple[str, ...] = ()


def as_json(value: Any, status: int = 200, **headers: str) -> Response:
    """Return a JSON answer."""
    return Response(
        status=status,
        body=json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n",
        headers=[(name.replace("_", "-"), text) for name, text in headers.items()],
    )


def whole(minimum: int, maximum: int) -> ParameterForm:
    """Return the form of a whole number."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,20}", text, re.ASCII) or not minimum <= int(text) <= maximum:
            raise ValueError(f"a whole number from {minimum} to {maximum}")
        return int(text)

    return ParameterForm({"type": "integer", "minimum": minimum, "maximum": maximum}, parse)


def hex_of(length: int) -> ParameterForm:
    """Return the form of so many bytes in hex digits, with or without 0x."""
    pattern = f"(0x)?[0-9a-fA-F]{{{2 * length}}}"

    def parse(text: str) -> bytes:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(f"{2 * length} hex digits")
        return from_hex(text)

    return ParameterForm({"type": "string", "pattern": f"^{pattern}$"}, parse)


def cursor_of(maximum: int) -> ParameterForm:
    """Return the form of a cursor: what an answer gave, in hex digits."""

    def parse(text: str) -> bytes:
        if not re.fullmatch(rf"([0-9a-f]{{2}}){{0,{maximum}}}", text, re.ASCII):
            raise ValueError("a cursor that an answer gave")
        return bytes.fromhex(text)

    return ParameterForm({"type": "string", "pattern": f"^([0-9a-f]{{2}}){{0,{maximum}}}$"}, parse)


def text_of(minimum: int, maximum: int) -> ParameterForm:
    """Return the form of free text."""

    def parse(text: str) -> str:
        if not minimum <= len(text) <= maximum or "\0" in text:
            raise ValueError(f"{minimum} to {maximum} characters")
        return text

    schema = {
        "type": "string",
        "minLength": minimum,
        "maxLength": maximum,
        "pattern": "^[^\\x00]*$",
    }
    return ParameterForm(schema, parse)


def one_of(*words: str) -> ParameterForm:
    """Return the form of one of some words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError("one of " + ", ".join(words))
        return text

    return ParameterForm({"type": "string", "enum": list(words)}, parse)


def _flag(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError("true or false")
    return text == "true"


FLAG: Final = ParameterForm({"type": "boolean"}, _flag)


def parsed(params: tuple[Param, ...], found: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return the values of a route's parameters.

    Args:
        params: What the route takes.
        found: Place to names and texts.

    Raises:
        GatewayError: one is missing, unknown or of another form.

    """
    values: dict[str, Any] = {}
    for param in params:
        text = found[param.place].get(param.name)
        if text is None:
            if param.required or param.place == "path":
                raise GatewayError("a parameter is missing", where=f"{param.place} {param.name}")
            values[param.name] = param.default
            continue
        try:
            values[param.name] = param.kind.parse(text)
        except ValueError as error:
            raise GatewayError(f"expected {error}", where=f"{param.place} {param.name}") from error
    known = {param.name for param in params if param.place == "query"}
    for name in found["query"]:
        if name not in known:
            raise GatewayError(
                "a parameter that this call does not have", where=f"query {name[:40]!r}"
            )
    return values


def parsed_json(body: bytes) -> Any:
    """Return the JSON value of a body; see `luxrelay.text.parse_json`.

    Raises:
        GatewayError: it is not JSON that every reader takes alike, or nested too deeply.

    """
    try:
        return parse_json(body)
    except ValueError as error:
        raise GatewayError(f"the body is not JSON: {error}"[:200], where="body") from error
