"""Requests and answers of a gateway, as values.

The layouts as bytes are those of docs/reference/http.md, big-endian.

Source: LP-6411 §4; decisions P22, P23, J6.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from luxrelay.bus import (
    ContentId,
    MsgHeader,
    NamespaceId,
    check_blob,
    check_sidecar,
    verify_header,
)
from luxrelay.bus import constants as c
from luxrelay.bus.bound import verify_header_bound
from luxrelay.errors import ClientArgumentError, ClientRemoteError, HeaderError
from luxrelay.wire import from_hex

_ITEM: Final = struct.Struct(">20sHI")
_RECORD: Final = struct.Struct(">B20sQQHI")
_HELD: Final = 1
_LATE: Final = 2
_REGRESSED: Final = 4
_COMPLETES: Final = 8
_SIDECAR_HELD: Final = 16
_WITH_SIDECAR: Final = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A signed message to publish."""

    header: bytes
    """LP-6411 header with its signature."""
    blob: bytes = b""
    """What the header commits to."""
    parent: bytes = b""
    """Namespace that the header's is a lane of, 20 bytes; empty when it is none (J6)."""
    sidecar: bytes = b""
    """The TFHE sidecar that the header refers to; empty when it refers to none."""

    def __post_init__(self) -> None:
        """Refuse what no node can take."""
        for name, value, most in (
            ("header", self.header, c.MAX_HEADER_BYTES),
            ("blob", self.blob, c.MAX_BLOB_BYTES),
            ("sidecar", self.sidecar, c.MAX_BLOB_BYTES),
        ):
            if len(value) > most:
                raise ClientArgumentError(
                    f"a {name} of {len(value):,} bytes, {most:,} are the most",
                    where=f"Outgoing.{name}",
                )
        if len(self.parent) not in (0, c.NAMESPACE_BYTES):
            raise ClientArgumentError("a parent has 20 bytes or none", where="Outgoing.parent")

    def encode(self) -> bytes:
        """Return the message as a publish body holds it."""
        parent = self.parent or bytes(c.NAMESPACE_BYTES)
        follows = _WITH_SIDECAR if self.sidecar else 0
        head = _ITEM.pack(parent, len(self.header), len(self.blob) | follows)
        tail = len(self.sidecar).to_bytes(4, "big") + self.sidecar if follows else b""
        return head + self.header + self.blob + tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of a published message."""

    verdict: str
    """``accept``, ``ignore`` or ``reject``."""
    code: int
    """Why (`luxrelay.bus.Code`); 0 for an accepted message."""
    reason: str
    """For people: what was wrong."""
    stored: bool
    """The message is durable on the node."""
    peers_sent: int
    """Peers it was sent to at once."""
    expected_seq: int
    """Sequence to sign next, when another message holds the slot (H17); else 0."""
    digest: bytes
    """SHA3-256 of the header; empty when it is malformed."""
    seen_back: int = 0
    """Peers that have announced it to the node since."""
    retry_after_ms: int = 0
    """Milliseconds after which the same message may be taken; 0 when time alone changes nothing."""

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the same message may be taken; None when waiting changes nothing."""
        return self.retry_after_ms / 1000 if self.retry_after_ms else None

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Receipt:
        """Return the receipt of a JSON object; raises what a wrong form raises."""
        return cls(
            verdict=str(value["verdict"]),
            code=int(value["code"]),
            reason=str(value["reason"]),
            stored=value["stored"] is True,
            peers_sent=int(value["peersSent"]),
            expected_seq=int(value["expectedSeq"]),
            digest=from_hex(str(value["digest"] or "")),
            seen_back=int(value["seenBack"]),
            retry_after_ms=int(value.get("retryAfterMs", 0)),  # an older node does not say
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedQuota:
    """What a node has counted of a prepaid quota (S7)."""

    account: bytes
    """The quota's hash, 32 bytes."""
    charged: bool
    """Whether it has paid anything there; all numbers are 0 otherwise."""
    messages_limit: int
    """How many messages it pays."""
    bytes_limit: int
    """How many blob bytes it pays."""
    messages_used: int
    """How many it has paid there."""
    bytes_used: int
    """How many blob bytes it has paid there."""
    expires_ms: int
    """When it ends, Unix milliseconds."""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> CountedQuota:
        """Return the quota of a JSON object; raises what a wrong form raises."""
        return cls(
            account=from_hex(value["account"]),
            charged=value["charged"] is True,
            messages_limit=int(value["messagesLimit"]),
            bytes_limit=int(value["bytesLimit"]),
            messages_used=int(value["messagesUsed"]),
            bytes_used=int(value["bytesUsed"]),
            expires_ms=int(value["expiresMs"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that a node holds."""

    header: MsgHeader
    """Its header; the bytes are the sender's."""
    blob: bytes | None
    """The payload; None when the node holds the header only."""
    parent: NamespaceId
    """The namespace that the header's is a lane of, or the header's own."""
    received_at: int
    """When the node got it, Unix milliseconds."""
    expires_at: int
    """When the node forgets it, Unix milliseconds."""
    late: bool = False
    """It comes out of order: into a gap that was told, or as another candidate of a slot."""
    regressed: bool = False
    """Its timestamp is before that of the message before it; live that is refused, in history it is
    told (LP-6411 §2.3, H13)."""
    completes: bool = False
    """It was told before without its blob or sidecar, which has come (`Subscribe.blobs`)."""
    sidecar_held: bool = False
    """The node has its TFHE sidecar; ``blob`` of the sidecar's commitment returns it."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences that a subscription goes on without."""

    namespace_id: NamespaceId
    first: int
    last: int
    """Inclusive."""
    reason: str
    """``expired``: the node holds them no longer; ``unanswered``: the same, but the archive behind
    it, which may have them, did not answer; ``coming``: a catch-up of the node may bring them, and
    they are told out of order then; ``missing``: it has not got them."""


@dataclass(frozen=True, slots=True)
class Live:
    """Everything that the node held is told; what follows is new."""

    positions: Mapping[NamespaceId, int] = field(default_factory=dict)
    """Namespace or lane to the sequence up to which it was told."""
    not_carried: frozenset[NamespaceId] = frozenset()
    """Namespaces of which the node takes nothing, as far as it knows: of one of them no message may
    ever come. An id may be a lane without messages, which it cannot tell."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What the node did not tell because a bound was reached."""

    lanes: int
    """Lanes that are not followed."""
    late: int
    """Late messages that were not told."""
    blobs: int = 0
    """Messages told without their blobs that will not be told again with them."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """The position is above everything that the node holds; what comes up to it is not told.

    Another node gave it, or the node has lost its store.
    """

    namespace_id: NamespaceId
    held: int
    """The node's latest sequence; 0 for nothing."""
    position: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that an ordered view does not take; another one may have its sequence still."""

    namespace_id: NamespaceId
    seq: int
    content_id: ContentId
    """32 bytes (J11)."""
    code: int
    """Of the verdict."""
    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Sequences that an ordered view waits for; it goes no further without them."""

    namespace_id: NamespaceId
    first: int
    last: int
    """Inclusive."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The connection was lost, and the subscription goes on where it was."""

    attempts: int
    """Connections tried."""


Event = Message | Gap | Live | Dropped | Beyond | Refused | Waiting | Reconnected


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """How far a namespace reaches; zeros for one that the node does not know."""

    namespace_id: NamespaceId
    parent: NamespaceId
    earliest_seq: int
    contiguous_seq: int
    latest_seq: int
    finalized_seq: int
    latest_timestamp: int
    messages: int
    size_bytes: int

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Head:
        """Return the head of a JSON object; raises what a wrong form raises."""
        return cls(
            namespace_id=NamespaceId(from_hex(value["namespaceId"])),
            parent=NamespaceId(from_hex(value["parentId"])),
            earliest_seq=int(value["earliestSeq"]),
            contiguous_seq=int(value["contiguousSeq"]),
            latest_seq=int(value["latestSeq"]),
            finalized_seq=int(value["finalizedSeq"]),
            latest_timestamp=int(value["latestTimestamp"]),
            messages=int(value["messages"]),
            size_bytes=int(value["sizeBytes"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedNamespace:
    """A namespace that a node follows."""

    namespace_id: NamespaceId
    content_topic: str
    """What the id is derived from; empty when the node knows the id alone."""
    origin: str
    """``file``: of its configuration; ``call``: an operator's; ``demand``: an application's."""
    documents: int
    """Signed policies that came with it."""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> FollowedNamespace:
        """Return the entry of a JSON object; raises what a wrong form raises."""
        return cls(
            namespace_id=NamespaceId(from_hex(value["namespaceId"])),
            content_topic=str(value["contentTopic"]),
            origin=str(value["origin"]),
            documents=int(value["documents"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of messages, and what is known of the rest."""

    messages: Sequence[Message]
    """Ascending by sequence; candidates of a slot together."""
    complete: bool
    """Nothing in the asked range is missing from this page."""
    has_more: bool
    """The query goes on with ``next_cursor``."""
    next_cursor: str
    """Opaque; empty at the end."""
    earliest_seq: int = 0
    """Lowest sequence that the node serves."""
    gaps: Sequence[tuple[int, int]] = ()
    """Missing first and last sequences in the covered range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What a client checks of each message; a node could lie."""

    signatures: bool = True
    """Whether the header's signature must hold."""
    bound_network: str = ""
    """Network whose headers are signed bound to it; empty for LP-6411's own (H3)."""

    def check(self, header: MsgHeader, blob: bytes | None) -> None:
        """Return when the message is what its sender signed.

        Raises:
            ClientRemoteError: it is not.

        """
        if not self.signatures:
            return
        network = self.bound_network
        if not (verify_header_bound(header, network) if network else verify_header(header)):
            raise ClientRemoteError(
                "a signature does not hold",
                where=f"sequence {header.seq}",
                hint="The network may sign bound to its name (`signing` of /v1/limits): then give "
                "that name, --bound for a command; otherwise ask another node",
            )
        if blob is not None and not check_blob(header, blob).accepted:
            raise ClientRemoteError(
                "a blob is not what its header commits to", where=f"sequence {header.seq}"
            )


def sidecar_commitment(header: MsgHeader) -> bytes:
    """Return what a node gives the sidecar of a header by.

    Raises:
        ClientArgumentError: the header refers to none.

    """
    if header.tfhe_sidecar is None:
        raise ClientArgumentError("the header refers to no sidecar", where="sidecar")
    return header.tfhe_sidecar.commitment


def checked_sidecar(header: MsgHeader, data: bytes) -> bytes:
    """Return a sidecar that a node sent.

    Raises:
        ClientRemoteError: it is not the one that the header refers to.

    """
    verdict = check_sidecar(header, data)
    if not verdict.accepted:
        raise ClientRemoteError(verdict.reason, where=f"sequence {header.seq}")
    return data


def decode_records(data: bytes, checks: Checks) -> Iterator[Message]:
    """Yield the messages of an answer in bytes.

    Raises:
        ClientRemoteError: the bytes are cut off, no header, or not what the sender signed.

    """
    position = 0
    while position < len(data):
        if len(data) - position < _RECORD.size:
            raise ClientRemoteError("an answer ends inside a message", where=f"byte {position}")
        flags, parent, received, expires, header_len, blob_len = _RECORD.unpack_from(data, position)
        begin = position + _RECORD.size
        middle = begin + header_len
        position = middle + blob_len
        if position > len(data):
            raise ClientRemoteError("an answer ends inside a message", where=f"byte {begin}")
        try:
            header = MsgHeader.decode(data[begin:middle])
        except HeaderError as error:
            raise ClientRemoteError(f"a broken header: {error.what}", where=error.where) from error
        blob = data[middle:position] if flags & _HELD else None
        checks.check(header, blob)
        yield Message(
            header=header,
            blob=blob,
            parent=NamespaceId(parent),
            received_at=received,
            expires_at=expires,
            late=bool(flags & _LATE),
            regressed=bool(flags & _REGRESSED),
            completes=bool(flags & _COMPLETES),
            sidecar_held=bool(flags & _SIDECAR_HELD),
        )
