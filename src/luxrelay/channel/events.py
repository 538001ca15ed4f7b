"""Events for an application, and the promise of each.

Every event has a *position*, a number that rises by one and survives restarts. An event that the
application has not taken is told again after a restart, with the same position; so an application
that keeps the last position beside what it did with the event sees each exactly once.

| event | promises | does not promise |
|---|---|---|
| received | the bytes are whole; what the sender had received before is received too, or reported lost | who sent them (encryption or the layer below may) |
| dispatched | the layer below has taken every segment | that anybody received one |
| sent (seed) | another participant has delivered every segment | that all participants have; that its application has seen it |
| send-error (seed) | a segment was refused, or nobody acknowledged it in time | that nobody received it |
| sent (current) | the layer below has taken every segment | that anybody received one |
| delivered (current) | as sent (seed) | as sent (seed) |
| send-error (current) | the layer below did not take a segment | |
| delivery-error (current) | as send-error (seed), after every segment was taken | that nobody received it |
| lost | a message somebody sent will not be received, and what depends on it was delivered without it | that it can never arrive late |

Exactly one of the last events of its profile ends each request: `sent` or `send-error` (seed),
`delivered`, `delivery-error` or `send-error` (current).

Source: reliable-channel-api (MessageEvents); decision C2.
"""  # noqa: E501 - a table

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Final, NewType

ReliableSendId = NewType("ReliableSendId", str)
"""Names one call of `send`; 32 hex digits."""

RequestId = NewType("RequestId", str)
"""Names one segment of it, over all its transmissions: the id of its message, 64 hex digits."""


@dataclass(frozen=True, slots=True)
class ChannelEvent:
    """What all events have."""

    name: ClassVar[str] = ""
    """As the specification names it."""
    position: int
    """Rises by one with each event of the participant in the channel."""


@dataclass(frozen=True, slots=True)
class MessageReceived(ChannelEvent):
    """A payload is whole."""

    name = "reliable:message:received"
    message: bytes
    """The payload."""
    sender_id: str
    """Who says to have sent it."""
    ephemeral: bool = False
    """It was sent with `send_ephemeral`."""


@dataclass(frozen=True, slots=True)
class MessageDispatched(ChannelEvent):
    """The layer below has taken every segment once. An addition of ours."""

    name = "reliable:message:dispatched"
    request_id: ReliableSendId
    """The call of `send`."""


@dataclass(frozen=True, slots=True)
class MessageSent(ChannelEvent):
    """Profile seed: every segment is acknowledged. Profile current: every segment is dispatched."""

    name = "reliable:message:sent"
    request_id: ReliableSendId
    """The call of `send`."""


@dataclass(frozen=True, slots=True)
class MessageDelivered(ChannelEvent):
    """Profile current: every segment is acknowledged."""

    name = "reliable:message:delivered"
    request_id: ReliableSendId
    """The call of `send`."""


@dataclass(frozen=True, slots=True)
class MessageSendError(ChannelEvent):
    """Profile seed: not every segment is acknowledged. Profile current: or even dispatched."""

    name = "reliable:message:send-error"
    request_id: ReliableSendId
    """The call of `send`."""
    error: str
    """What went wrong."""


@dataclass(frozen=True, slots=True)
class MessageDeliveryError(ChannelEvent):
    """Profile current: dispatched, but not acknowledged after all retransmissions."""

    name = "reliable:message:delivery-error"
    request_id: ReliableSendId
    """The call of `send`."""
    error: str
    """What went wrong."""


@dataclass(frozen=True, slots=True)
class MessageLost(ChannelEvent):
    """Something of another participant will not be received. An addition of ours."""

    name = "reliable:message:lost"
    sender_id: str
    """Whose it was, or empty when nobody said."""
    reference: str
    """The id of the segment, or the hash of the payload, hex."""
    reason: str
    """Why."""


_KINDS: Final[tuple[type[ChannelEvent], ...]] = (
    MessageReceived,
    MessageDispatched,
    MessageSent,
    MessageDelivered,
    MessageSendError,
    MessageDeliveryError,
    MessageLost,
)
"""Their places are on disk and do not change."""

EVENT_NAMES: Final = tuple(kind.name for kind in _KINDS)
"""What callbacks may be registered for."""


def encode_event(event: ChannelEvent) -> bytes:
    """Return the row of an event: its kind, then its fields, each behind its length."""
    parts = [bytes((_KINDS.index(type(event)),))]
    for each in fields(event)[1:]:
        value = getattr(event, each.name)
        if isinstance(value, bool):
            data = bytes((value,))
        else:
            data = value if isinstance(value, bytes) else value.encode()
        parts += (len(data).to_bytes(4, "big"), data)
    return b"".join(parts)


def decode_event(position: int, row: bytes) -> ChannelEvent:
    """Return the event of a row that `encode_event` has made."""
    kind = _KINDS[row[0]]
    values: list[object] = []
    at = 1
    for each in fields(kind)[1:]:
        end = at + 4 + int.from_bytes(row[at : at + 4], "big")
        data = row[at + 4 : end]
        at = end
        if each.type == "bytes":
            values.append(data)
        elif each.type == "bool":
            values.append(data == b"\x01")
        else:
            values.append(data.decode())
    return kind(position, *values)
