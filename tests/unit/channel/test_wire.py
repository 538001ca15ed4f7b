"""SDS messages as bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luxrelay.channel.wire import (
    HISTORY_MAX,
    ID_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    REPAIR_REQUESTS_MAX,
    HistoryEntry,
    MessageKind,
    SdsMessage,
    fields_of,
)
from luxrelay.errors import ChannelArgumentError, ChannelWireError
from luxrelay.wire import varint

VECTORS = json.loads((Path(__file__).parent / "data" / "sds.json").read_text())


def entries(items: list[dict[str, Any]]) -> tuple[HistoryEntry, ...]:
    """Return history entries of a vector."""
    return tuple(
        HistoryEntry(
            item["message_id"],
            None if item["retrieval_hint"] is None else bytes.fromhex(item["retrieval_hint"]),
            item["sender_id"],
        )
        for item in items
    )


def message_of(fields: dict[str, Any]) -> SdsMessage:
    """Return the message of a vector's fields."""

    def data(name: str) -> bytes | None:
        return None if fields[name] is None else bytes.fromhex(fields[name])

    clock = fields["lamport_timestamp"]
    return SdsMessage(
        sender_id=fields["sender_id"],
        message_id=fields["message_id"],
        channel_id=fields["channel_id"],
        lamport_timestamp=None if clock is None else int(clock),
        causal_history=entries(fields["causal_history"]),
        bloom_filter=data("bloom_filter"),
        repair_request=entries(fields["repair_request"]),
        content=data("content"),
    )


@pytest.mark.parametrize("vector", VECTORS["messages"], ids=lambda v: v["name"])
def test_published_implementation_agrees(vector: dict[str, Any]) -> None:
    """What the JavaScript implementation wrote is read, and written again byte for byte."""
    data = bytes.fromhex(vector["hex"])

    decoded = SdsMessage.decode(data)

    assert decoded == message_of(vector["fields"])
    assert decoded.encode() == data
    assert decoded.kind.name == vector["decoded_class"].removesuffix("Message").upper()


@pytest.mark.parametrize("vector", VECTORS["decode_behaviour"], ids=lambda v: v["name"])
def test_odd_bytes_are_read_as_published(vector: dict[str, Any]) -> None:
    """Order, unknown fields and repetition read as there; text that is not UTF-8 is refused."""
    data = bytes.fromhex(vector["hex"])
    if vector["result"] is None or vector["name"] == "invalid_utf8_sender":
        with pytest.raises(ChannelWireError):
            SdsMessage.decode(data)
        return

    decoded = SdsMessage.decode(data)

    assert decoded.sender_id == vector["result"]["sender_id"]
    assert decoded.message_id == vector["result"]["message_id"]
    assert str(decoded.lamport_timestamp) == vector["result"]["lamport_timestamp"]
    assert decoded.kind.name == vector["result"]["class"].removesuffix("Message").upper()


def content(**changes: Any) -> SdsMessage:
    """Return a small content message with changes."""
    values: dict[str, Any] = {
        "sender_id": "a", "message_id": "m", "channel_id": "c", "lamport_timestamp": 1,
        "content": b"x",
    }  # fmt: skip
    return SdsMessage(**{**values, **changes})


@pytest.mark.parametrize(
    "bad",
    [
        content(sender_id="a" * (ID_BYTES_MAX + 1)),
        content(message_id="a\0b"),
        content(lamport_timestamp=1 << 64),
        content(lamport_timestamp=-1),
        content(content=bytes(MESSAGE_BYTES_MAX)),
        content(causal_history=(HistoryEntry("m", bytes(65)),)),
        content(causal_history=(HistoryEntry("m", None, "s" * 257),)),
    ],
    ids=["id", "zero", "clock-high", "clock-low", "long", "hint", "history-sender"],
)
def test_encode_refuses_what_decode_would(bad: SdsMessage) -> None:
    """A value beyond a limit is the caller's fault and is said before anything is sent."""
    with pytest.raises(ChannelArgumentError):
        bad.encode()


LONG_ID = b"\x0a" + varint(257) + b"a" * 257


@pytest.mark.parametrize(
    "data",
    [
        b"\x50\x01" + b"\xa2\x01" + varint(MESSAGE_BYTES_MAX) + bytes(MESSAGE_BYTES_MAX),
        b"\x50\x01\x0a",
        b"\x50\x01\x0a\x05abc",
        b"\x50\x01" + LONG_ID,
        b"\x50\x01\x0a\x03a\x00b",
        b"\x50\x01\x5a\x05\x0a\x03a\x00b",
        b"\x50\x01\x5a\x04\x0a\x02\xc3\x28",
        b"\x50\x01\x5a\x05\x0a\x01m\x12\x05",
        b"\x50" + b"\xff" * 10 + b"\x01",
        b"\x50\x01\x08\x01",
        b"\x52\x01\x00",
        b"\x50\x01\x00\x01",
        b"\x50\x01\x7b",
        b"\x50\x01\x79\x01",
        b"\x50\x01\x7d\x01",
        content(causal_history=(HistoryEntry("m"),) * (HISTORY_MAX + 1)).encode(),
        content(repair_request=(HistoryEntry("m"),) * (REPAIR_REQUESTS_MAX + 1)).encode(),
        b"\x50\x01\x5a\x00",
        b"\x50\x01\x5a" + varint(len(LONG_ID)) + LONG_ID,
        b"\x50\x01\x5a" + varint(3 + 67) + b"\x0a\x01m" + b"\x12" + varint(65) + bytes(65),
    ],
    ids=[
        "too-long", "no-length", "cut", "id-too-long", "zero", "entry-zero", "entry-utf8",
        "entry-cut", "varint-too-long", "wrong-type",
        "clock-bytes",
        "field-0", "group", "fixed64-cut", "fixed32-cut", "history", "requests", "entry-empty",
        "entry-id", "entry-hint",
    ],
)  # fmt: skip
def test_decode_refuses(data: bytes) -> None:
    """Bytes beyond a limit or not protobuf raise the decoder's one error."""
    with pytest.raises(ChannelWireError):
        SdsMessage.decode(data)


def test_unknown_fixed_fields_are_skipped() -> None:
    """Fields of a later version, of either fixed width, do not hide the message."""
    decoded = SdsMessage.decode(content().encode() + b"\x79" + bytes(8) + b"\x7d" + bytes(4))

    assert decoded == content()


def test_kind_follows_from_clock_and_content() -> None:
    """A clock and content make a content message; without one of them it is something else."""
    assert content().kind is MessageKind.CONTENT
    assert content(content=b"").kind is MessageKind.SYNC
    assert content(content=None).kind is MessageKind.SYNC
    assert content(lamport_timestamp=None).kind is MessageKind.EPHEMERAL


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, (1 << 64) - 1])
def test_varint_round_trip(value: int) -> None:
    """A number comes back as it was, whatever its length."""
    assert fields_of(b"\x08" + varint(value), {1: 0}, "test") == [(1, value)]


@pytest.mark.parametrize(
    "entry",
    [
        HistoryEntry("m"),
        HistoryEntry("m" * 200, b"", ""),
        HistoryEntry("m", bytes(64), "s" * 256),
        HistoryEntry("ü", None, "s"),
        HistoryEntry("m", b"h"),
    ],
)
def test_entry_round_trip(entry: HistoryEntry) -> None:
    """Entries of every shape come back, also those that are not written the usual way."""
    data = content(causal_history=(entry,)).encode()

    assert SdsMessage.decode(data).causal_history == (entry,)
    extra = entry.encode() + b"\x20\x01"
    odd = b"\x50\x01\xa2\x01\x01x\x5a" + varint(len(extra)) + extra
    assert SdsMessage.decode(odd).causal_history == (entry,)
