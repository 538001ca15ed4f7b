"""The messages of scalable data sync as bytes: protobuf with the specification's field numbers.

    Message       1 sender_id  2 message_id  3 channel_id  10 lamport_timestamp
                  11 causal_history*  12 bloom_filter  13 repair_request*  20 content
    HistoryEntry  1 message_id  2 retrieval_hint  3 sender_id

Written as the public JavaScript implementation writes: fields ascending, empty text omitted, what
may be absent written also when it is zero or empty. Read as protobuf wants: any order, unknown
fields skipped, the last of a repeated scalar counts. Stricter than it: text must be UTF-8
without zero characters, and every length has a limit.

What a message is follows from two fields: a clock and content make a *content* message, a clock
alone a *sync* message, content alone an *ephemeral* one; empty content is none.

Source: SDS (message format); decision C5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from Crypto.Hash import keccak

from luxrelay.errors import ChannelArgumentError, ChannelWireError, RemoteError
from luxrelay.wire import read_varint, varint

MESSAGE_BYTES_MAX: Final = 256 * 1024
"""Longest encoded message; above the 150 KiB of the layer below, so that it never binds there."""
ID_BYTES_MAX: Final = 256
"""Longest sender, message or channel id in UTF-8."""
HINT_BYTES_MAX: Final = 64
"""Longest retrieval hint."""
HISTORY_MAX: Final = 256
"""Most entries of a causal history; the JavaScript implementation sends up to 200."""
REPAIR_REQUESTS_MAX: Final = 64
"""Most repair requests of a message; senders attach three."""
LAMPORT_MAX: Final = (1 << 64) - 1

_WHERE: Final = "SDS message"


class MessageKind(Enum):
    """What a message is, told by its clock and content."""

    CONTENT = 0
    SYNC = 1
    EPHEMERAL = 2


@dataclass(slots=True)
class HistoryEntry:
    """A message named by another: a dependency, or one that is asked for. Not changed once made."""

    message_id: str
    """Its id."""
    retrieval_hint: bytes | None = None
    """The name under which a store has it."""
    sender_id: str | None = None
    """Who sent it; repair needs it."""

    def encode(self) -> bytes:
        """Return the bytes of the entry alone.

        Raises:
            ChannelArgumentError: an id or the hint is out of its limit.

        """
        parts: list[bytes] = []
        _put_text(parts, b"\x0a", self.message_id)
        if self.retrieval_hint is not None:
            if len(self.retrieval_hint) > HINT_BYTES_MAX:
                raise ChannelArgumentError("a retrieval hint is too long", where=_WHERE)
            _put_bytes(parts, b"\x12", self.retrieval_hint)
        if self.sender_id is not None:
            sender = self.sender_id.encode()
            if len(sender) > ID_BYTES_MAX:
                raise ChannelArgumentError(f"an id has {len(sender)} bytes", where=_WHERE)
            _put_bytes(parts, b"\x1a", sender)
        return b"".join(parts)


@dataclass(slots=True, kw_only=True)
class SdsMessage:
    """One message. Values are not changed after they are made."""

    sender_id: str
    """The participant who made it."""
    message_id: str
    """Unique in the channel; of a sync message not even that."""
    channel_id: str
    """The channel."""
    lamport_timestamp: int | None = None
    """Logical clock, about Unix milliseconds; None makes it ephemeral."""
    causal_history: tuple[HistoryEntry, ...] = ()
    """What its sender had delivered; oldest first."""
    bloom_filter: bytes | None = None
    """What its sender had received."""
    repair_request: tuple[HistoryEntry, ...] = ()
    """What its sender misses."""
    content: bytes | None = None
    """The segment."""

    @property
    def kind(self) -> MessageKind:
        """What the message is; one with neither clock nor content cannot be made by `decode`."""
        if self.lamport_timestamp is None:
            return MessageKind.EPHEMERAL
        return MessageKind.CONTENT if self.content else MessageKind.SYNC

    def encode(self, history: Iterable[bytes] | None = None) -> bytes:
        """Return the bytes.

        Args:
            history: The entries of the causal history as bytes, when somebody has them; they then
                stand in place of ``causal_history``.

        Raises:
            ChannelArgumentError: an id, a hint, the clock or the whole is out of its limit.

        """
        parts: list[bytes] = []
        _put_text(parts, b"\x0a", self.sender_id)
        _put_text(parts, b"\x12", self.message_id)
        _put_text(parts, b"\x1a", self.channel_id)
        if self.lamport_timestamp is not None:
            if not 0 <= self.lamport_timestamp <= LAMPORT_MAX:
                raise ChannelArgumentError("the clock is no u64", where=_WHERE)
            parts += (b"\x50", varint(self.lamport_timestamp))
        if history is None:
            history = [entry.encode() for entry in self.causal_history]
        for data in history:
            parts += (b"\x5a", varint(len(data)), data)
        if self.bloom_filter is not None:
            _put_bytes(parts, b"\x62", self.bloom_filter)
        for entry in self.repair_request:
            _put_bytes(parts, b"\x6a", entry.encode())
        if self.content is not None:
            _put_bytes(parts, b"\xa2\x01", self.content)
        whole = b"".join(parts)
        if len(whole) > MESSAGE_BYTES_MAX:
            raise ChannelArgumentError(f"{len(whole)} bytes are too many", where=_WHERE)
        return whole

    @classmethod
    def decode(cls, data: bytes) -> SdsMessage:  # noqa: C901 - one branch a field
        """Return the message of ``data``.

        Raises:
            ChannelWireError: the bytes are no message, or a limit is exceeded.

        """
        if len(data) > MESSAGE_BYTES_MAX:
            raise ChannelWireError(f"{len(data)} bytes are too many", where=_WHERE)
        sender = message = channel = ""
        lamport: int | None = None
        history: list[HistoryEntry] = []
        requests: list[HistoryEntry] = []
        bloom: bytes | None = None
        content: bytes | None = None
        for number, value in fields_of(data, _WIRE_TYPES, _WHERE):
            if number == 11:
                history.append(_decode_entry(value))  # type: ignore[arg-type]
            elif number == 12:
                bloom = value  # type: ignore[assignment]
            elif number == 20:
                content = value  # type: ignore[assignment]
            elif number == 10:
                lamport = value  # type: ignore[assignment]
            elif number == 1:
                sender = _text(value)  # type: ignore[arg-type]
            elif number == 2:
                message = _text(value)  # type: ignore[arg-type]
            elif number == 3:
                channel = _text(value)  # type: ignore[arg-type]
            else:
                requests.append(_decode_entry(value))  # type: ignore[arg-type]
        if len(history) > HISTORY_MAX or len(requests) > REPAIR_REQUESTS_MAX:
            raise ChannelWireError("too many history entries or repair requests", where=_WHERE)
        if lamport is None and not content:
            raise ChannelWireError("neither clock nor content", where=_WHERE)
        return cls(
            sender_id=sender,
            message_id=message,
            channel_id=channel,
            lamport_timestamp=lamport,
            causal_history=tuple(history),
            bloom_filter=bloom,
            repair_request=tuple(requests),
            content=content,
        )


def content_id(sender_id: str, salt_ns: int, content: bytes) -> str:
    """Return the id of a content message: unique while salts are, also for equal contents (C5)."""
    text = f"{sender_id}{salt_ns}".encode()
    return keccak.new(data=text + content, digest_bytes=32).hexdigest()


_WIRE_TYPES: Final = {1: 2, 2: 2, 3: 2, 10: 0, 11: 2, 12: 2, 13: 2, 20: 2}
"""Known field numbers of a message and their wire types."""
_ENTRY_TYPES: Final = {1: 2, 2: 2, 3: 2}


def fields_of(  # noqa: C901 - one branch a wire type
    data: bytes,
    known: dict[int, int],
    where: str,
    error: type[RemoteError] = ChannelWireError,
) -> list[tuple[int, int | bytes]]:
    """Return the known fields of a protobuf message in order; skip the others.

    Args:
        data: The message.
        known: Field number to wire type: 0 for a varint, 2 for bytes.
        where: Names the message in errors.
        error: What to raise.

    Raises:
        ChannelWireError: or ``error``: not protobuf, or a known field of another wire type.

    """
    out: list[tuple[int, int | bytes]] = []
    position, end = 0, len(data)
    while position < end:
        tag = data[position]
        position += 1
        if tag > 127:
            tag, position = _read_varint(data, position - 1, where, error)
        number, kind = tag >> 3, tag & 7
        if kind == 2:
            if position < end and data[position] < 128:
                length = data[position]
                position += 1
            else:
                length, position = _read_varint(data, position, where, error)
            if length > end - position:
                raise error(f"field {number} is cut off", where=where)
            value: int | bytes = data[position : position + length]
            position += length
        elif kind == 0:
            value, position = _read_varint(data, position, where, error)
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
            value = b""
            if position > end:
                raise error(f"field {number} is cut off", where=where)
        else:
            raise error(f"wire type {kind} is not supported", where=where)
        wanted = known.get(number)
        if wanted == kind:
            out.append((number, value))
        elif wanted is not None or not 0 < number < 1 << 29:
            raise error(f"field {number} has wire type {kind}", where=where)
    return out


def _read_varint(
    data: bytes, position: int, where: str, error: type[RemoteError]
) -> tuple[int, int]:
    """Return a varint, cut to 64 bits, and the position after it."""
    try:
        value, position = read_varint(data, position)
    except IndexError:
        raise error("a number is cut off or too long", where=where) from None
    return value & LAMPORT_MAX, position


def _text(value: bytes) -> str:
    """Return an id, checked."""
    if len(value) > ID_BYTES_MAX:
        raise ChannelWireError(f"an id has {len(value)} bytes", where=_WHERE)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise ChannelWireError("an id is not UTF-8", where=_WHERE) from None
    if "\0" in text:
        raise ChannelWireError("an id with a zero character", where=_WHERE)
    return text


def _put_text(parts: list[bytes], tag: bytes, text: str) -> None:
    """Append a text field unless it is empty."""
    if text:
        data = text.encode()
        if len(data) > ID_BYTES_MAX or 0 in data:
            raise ChannelArgumentError(f"an id of {len(data)} bytes", where=_WHERE)
        parts += (tag, varint(len(data)), data)


def _put_bytes(parts: list[bytes], tag: bytes, data: bytes) -> None:
    """Append a field of bytes."""
    parts += (tag, varint(len(data)), data)


def _decode_entry(data: bytes) -> HistoryEntry:
    """Return a history entry, checked."""
    quick = _quick_entry(data)
    if quick is not None:
        return quick
    message = ""
    hint: bytes | None = None
    sender: str | None = None
    for number, value in fields_of(data, _ENTRY_TYPES, "SDS history entry"):
        assert isinstance(value, bytes)
        if number == 1:
            message = _text(value)
        elif number == 2:
            hint = value
        else:
            sender = _text(value)
    if not message:
        raise ChannelWireError("a history entry names no message", where=_WHERE)
    if hint is not None and len(hint) > HINT_BYTES_MAX:
        raise ChannelWireError("a retrieval hint is too long", where=_WHERE)
    return HistoryEntry(message, hint, sender)


def _quick_entry(data: bytes) -> HistoryEntry | None:
    """Return an entry as everybody writes it, checked; None sends anything else the long way."""
    end = len(data)
    if end < 3 or data[0] != 0x0A or not 0 < data[1] < 128:
        return None
    position = 2 + data[1]
    message, hint, sender = data[2:position], None, None
    if position + 1 < end and data[position] == 0x12 and data[position + 1] <= HINT_BYTES_MAX:
        start = position + 2
        position = start + data[position + 1]
        hint = data[start:position]
    if position + 1 < end and data[position] == 0x1A and data[position + 1] < 128:
        start = position + 2
        position = start + data[position + 1]
        sender = data[start:position]
    if position != end or 0 in message or (sender is not None and 0 in sender):
        return None
    try:
        return HistoryEntry(message.decode(), hint, None if sender is None else sender.decode())
    except UnicodeDecodeError:
        return None
