"""`StreamSession`: one WebSocket of a gateway without I/O, and the place of a subscription.

Theory of operation
-------------------
*Decides* what bytes to send and what a received frame means. *Does not know* sockets, clocks or
chance; the masks of frames come from wsproto.
*Inputs*: `receive` takes bytes and gives events; `data` gives bytes to send.
*Positions*: `Place` keeps, for each lane, the sequence up to which everything came in order. A new
connection subscribes behind it, so nothing is lost or repeated. Of the slot at the position the
content ids are kept, for the node may cut off a page inside a slot and send it again.
*Bounds*: a message has ``MESSAGE_BYTES_MAX``, a place ``LANES_MAX`` lanes.

Source: docs/reference/http.md; RFC 6455; user-01.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from luxrelay.bus import ContentId, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.bus.seq_ranges import ToldGaps
from luxrelay.client.calls import Answer, refused
from luxrelay.client.values import (
    Beyond,
    Checks,
    Dropped,
    Event,
    Gap,
    Live,
    Message,
    Outgoing,
    Receipt,
    Refused,
    Waiting,
    decode_records,
)
from luxrelay.errors import ClientArgumentError, ClientRemoteError, ClientUnreachableError
from luxrelay.wire import from_hex

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest WebSocket message that is taken from a node."""
LANES_MAX: Final = 100_000
"""Lanes of one place."""
LATEST: Final = "latest"
"""Begin with what comes from now on."""


@dataclass(frozen=True, slots=True)
class Began:
    """The node has taken the subscription and begins behind these positions."""

    positions: Mapping[NamespaceId, int]


@dataclass(slots=True)
class Place:
    """Where a subscription stands; a copy of ``positions`` is all that resuming needs."""

    positions: dict[NamespaceId, int] = field(default_factory=dict)
    """Namespace or lane to the sequence up to which everything came."""
    gaps: ToldGaps = field(default_factory=ToldGaps)
    """Told gaps that may be filled still; `subscribe` reads them again after it was away."""
    _slot: dict[NamespaceId, tuple[int, list[ContentId]]] = field(default_factory=dict)

    def take(self, event: Event | Began) -> bool:
        """Move on; False for what the subscriber need not see."""
        if isinstance(event, Began):
            for namespace_id, seq in event.positions.items():
                self._move(namespace_id, seq)
            return False
        if isinstance(event, Gap):
            self._move(event.namespace_id, event.last)
            if event.reason in {"missing", "coming"}:
                self.gaps.tell(event.namespace_id, event.first, event.last)
        elif isinstance(event, Live):
            for namespace_id, seq in event.positions.items():
                self._move(namespace_id, seq)
        elif isinstance(event, Message) and event.late:
            self.gaps.fill(event.header.namespace_id, event.header.seq)
        elif isinstance(event, Message) and not event.completes:
            return self._message(event)
        return True

    def _message(self, message: Message) -> bool:
        header = message.header
        seq, known = self._slot.get(header.namespace_id, (0, []))
        if header.seq == seq:
            if header.content_id in known:
                return False
            known.append(header.content_id)
        else:
            self._slot[header.namespace_id] = (header.seq, [header.content_id])
        self._move(header.namespace_id, header.seq)
        return True

    def _move(self, namespace_id: NamespaceId, seq: int) -> None:
        if namespace_id not in self.positions and len(self.positions) >= LANES_MAX:
            raise ClientRemoteError(f"more than {LANES_MAX} lanes", where="subscription")
        self.positions[namespace_id] = max(seq, self.positions.get(namespace_id, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """What to follow."""

    namespaces: Sequence[NamespaceId]
    """Namespaces, 20 bytes each."""
    after: int | str = 0
    """Begin behind this sequence, in every lane; `LATEST` for what comes from now on."""
    lanes: bool = True
    """With the lanes of the namespaces (J6)."""
    gap_wait_ms: int | None = None
    """Milliseconds to wait for a missing message; the node's choice when None."""
    ordered: bool = False
    """As a validator reads: exactly the next sequence, not earlier in time, within the policy, one
    message a sequence; what does not pass comes as `Refused`, what is missing as `Waiting`."""
    senders: Sequence[bytes] = ()
    """Addresses of 20 bytes or key fields; only their messages come. Empty for all."""
    max_rate: int = 0
    """Messages a second, as many at once; what is more comes later. 0 for all."""
    blobs: str = "held"
    """``held``: payloads that are there when a message comes; ``later``: the message comes again
    when its payload does, with `Message.completes`; ``none``: headers alone."""

    def __post_init__(self) -> None:
        """Refuse what no node takes."""
        if not self.namespaces or any(len(n) != c.NAMESPACE_BYTES for n in self.namespaces):
            raise ClientArgumentError("give namespaces of 20 bytes each", where="namespaces")
        if self.after != LATEST and (
            not isinstance(self.after, int) or not 0 <= self.after <= c.MAX_U64
        ):
            raise ClientArgumentError('a sequence or "latest"', where="after")

    def wants(self, message: Message) -> bool:
        """Return True when a message is of the senders that are wanted."""
        header = message.header
        return not self.senders or any(
            each in {header.sender_address, header.sender_pub_key} for each in self.senders
        )

    def message(self, positions: Mapping[NamespaceId, int]) -> str:
        """Return the message that asks for it, behind ``positions`` where they are known."""
        value: dict[str, Any] = {
            "type": "subscribe",
            "namespaces": [each.hex() for each in self.namespaces],
            "after": self.after,
            "lanes": self.lanes,
            "format": "binary",
            "positions": {each.hex(): seq for each, seq in positions.items()},
        }
        if self.gap_wait_ms is not None:
            value["gapWaitMs"] = self.gap_wait_ms
        # An older node refuses what it does not know, so what is not asked for is not named.
        if self.ordered:
            value["ordered"] = True
        if self.senders:
            value["senders"] = [each.hex() for each in self.senders]
        if self.max_rate:
            value["maxRate"] = self.max_rate
        if self.blobs != "held":
            value["blobs"] = self.blobs
        return json.dumps(value)


@dataclass(frozen=True, slots=True)
class Receipts:
    """The answer to a publish message."""

    receipts: Sequence[Receipt]


Incoming = Event | Began | Receipts


class StreamSession:
    """One open WebSocket."""

    def __init__(self, received: bytes, checks: Checks, where: str = "WebSocket") -> None:
        """Begin after the handshake; ``received`` came behind it, errors name ``where``."""
        self._where = where
        self._frames = Connection(ConnectionType.CLIENT, trailing_data=received)
        self._checks = checks
        self._out = bytearray()
        self._parts: list[bytes] = []
        self._size = 0
        self._unanswered = 0
        self.progress = 0
        """Rises with whole messages, and with a sign of life while no answer is waited for."""

    def data(self) -> bytes:
        """Return what is to be sent, once."""
        data = bytes(self._out)
        self._out.clear()
        return data

    def subscribe(self, wanted: Subscribe, positions: Mapping[NamespaceId, int]) -> None:
        """Ask for a subscription."""
        self._unanswered += 1
        self._out += self._frames.send(TextMessage(data=wanted.message(positions)))

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Send messages; a `Receipts` follows, in the order of the calls."""
        self._unanswered += 1
        body = b"".join(each.encode() for each in messages)
        self._out += self._frames.send(BytesMessage(data=body))

    def close(self) -> None:
        """Say goodbye."""
        if self._frames.state is ConnectionState.OPEN:
            self._out += self._frames.send(CloseConnection(code=1000))

    def receive(self, data: bytes) -> list[Incoming]:
        """Return what the bytes bring.

        Args:
            data: What was received; empty bytes are the end of the connection, None is taken for
                what came behind the handshake.

        Raises:
            ClientUnreachableError: the connection is over; a new one may go on.
            ClientRefusedError: the node refused what was asked.
            ClientRemoteError: the bytes are no frames of a gateway.

        """
        if not data:
            raise ClientUnreachableError("the stream ended", where=self._where)
        self._frames.receive_data(data)
        return self.pending()

    def pending(self) -> list[Incoming]:
        """Return what has come already; errors are those of `receive`."""
        found: list[Incoming] = []
        try:
            for event in self._frames.events():
                if isinstance(event, TextMessage | BytesMessage):
                    found += self._collect(event)
                elif isinstance(event, Ping):
                    self.progress += not self._unanswered
                    self._out += self._frames.send(event.response())
                elif isinstance(event, CloseConnection):
                    raise ClientUnreachableError(
                        f"the node closed the stream ({event.code}): {event.reason or 'no reason'}",
                        where=self._where,
                    )
        except (RemoteProtocolError, LocalProtocolError) as error:
            raise ClientRemoteError(
                f"no WebSocket frames: {error}"[:200], where=self._where
            ) from error
        return found

    def _collect(self, event: TextMessage | BytesMessage) -> list[Incoming]:
        part = event.data.encode() if isinstance(event.data, str) else bytes(event.data)
        self._size += len(part)
        if self._size > MESSAGE_BYTES_MAX:
            raise ClientRemoteError(f"a message above {MESSAGE_BYTES_MAX} bytes", where=self._where)
        self._parts.append(part)
        if not event.message_finished:
            return []
        whole, self._parts, self._size = b"".join(self._parts), [], 0
        self.progress += 1
        if isinstance(event, BytesMessage):
            return list(decode_records(whole, self._checks))
        try:
            said = self._said(json.loads(whole))
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise ClientRemoteError(
                f"a message of another form: {error!r}"[:200], where=self._where
            ) from error
        return [] if said is None else [said]

    def _said(self, value: dict[str, Any]) -> Incoming | None:
        match value["type"]:
            case "gap":
                return Gap(
                    _namespace(value["namespaceId"]),
                    int(value["first"]),
                    int(value["last"]),
                    str(value["reason"]),
                )
            case "live" | "subscribed" as kind:
                positions = {_namespace(k): int(v) for k, v in value["positions"].items()}
                if kind == "live":
                    return Live(positions, frozenset(map(_namespace, value.get("notCarried", ()))))
                self._unanswered -= 1
                return Began(positions)
            case "dropped":
                return Dropped(int(value["lanes"]), int(value["late"]), int(value.get("blobs", 0)))
            case "beyond":
                namespace_id = _namespace(value["namespaceId"])
                return Beyond(namespace_id, int(value["held"]), int(value["position"]))
            case "refused":
                return Refused(
                    _namespace(value["namespaceId"]),
                    int(value["seq"]),
                    ContentId(from_hex(value["contentId"], c.HASH_BYTES)),
                    int(value["code"]),
                    str(value["reason"]),
                )
            case "waiting":
                namespace_id = _namespace(value["namespaceId"])
                return Waiting(namespace_id, int(value["first"]), int(value["last"]))
            case "receipts":
                self._unanswered -= 1
                return Receipts([Receipt.of(each) for each in value["receipts"]])
            case "error":
                problem = value["problem"]
                status = int(problem["status"])
                raise refused(Answer(status, {}, json.dumps(problem).encode()))
        return None  # a newer node may say more


def _namespace(text: str) -> NamespaceId:
    return NamespaceId(from_hex(text, c.NAMESPACE_BYTES))
