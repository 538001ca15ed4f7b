"""How messages, heads and receipts look to HTTP clients: as JSON and as bytes.

JSON writes bytes as lower-case 0x hex and blobs as base64; a header has the form of LP-6411 §4.2.
The layouts as bytes are big-endian:

    publish   parent 20 (zeros: the header's own namespace) ‖ headerLen u16 ‖ blobLen u32
              ‖ header ‖ blob, one or more
    message   flags u8 (1 the blob is held, 2 late) ‖ parent 20 ‖ receivedAt u64 ‖ expiresAt u64
              ‖ headerLen u16 ‖ blobLen u32 ‖ header ‖ blob

Source: LP-6411 §4.2; decisions H34, P22, P35, P40.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from luxrelay.bus import Code, MsgHeader, NamespaceId, VerdictKind, message_id
from luxrelay.bus import constants as c
from luxrelay.bus.finality import FinalityState
from luxrelay.errors import GatewayError, HeaderError
from luxrelay.store import NamespaceHead, StoredMessage
from luxrelay.sync import PublishItem, PublishReceipt
from luxrelay.wire import from_hex

_ITEM: Final = struct.Struct(">20sHI")
_RECORD: Final = struct.Struct(">B20sQQHI")
HELD: Final = 1
LATE: Final = 2


def hex_text(value: bytes) -> str:
    """Return 0x and lower-case hex digits."""
    return "0x" + value.hex()


def message_json(
    message: StoredMessage, parent: NamespaceId, *, late: bool = False
) -> dict[str, Any]:
    """Return a stored message as JSON."""
    header = message.header
    shown: dict[str, Any] = {
        "header": header.to_json(),
        "parentId": hex_text(parent),
        "messageId": hex_text(message_id(header.namespace_id, header.seq)),
        "contentId": hex_text(header.content_id),
        "sender": hex_text(header.sender_address),
        "blob": None if message.blob is None else b64encode(message.blob).decode(),
        "receivedAt": message.received_at,
        "expiresAt": message.expires_at,
        "finality": FinalityState(message.finality).name.lower(),
    }
    if late:
        shown["late"] = True
    return shown


def message_bytes(message: StoredMessage, parent: NamespaceId, *, late: bool = False) -> bytes:
    """Return a stored message as bytes."""
    blob = message.blob
    flags = (0 if blob is None else HELD) | (LATE if late else 0)
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
        middle, position = begin + header_len, begin + header_len + blob_len
        if position > len(body):
            raise GatewayError("the body ends inside a message", where=f"byte {begin}")
        items.append(
            PublishItem(
                header=body[begin:middle],
                blob=body[middle:position],
                parent_id=parent if any(parent) else b"",
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
    }:
        raise GatewayError("expected an object with header, blob and parentId", where=where)
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
