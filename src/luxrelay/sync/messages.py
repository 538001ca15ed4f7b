"""Messages, pages and receipts between relays as values, free of protobuf.

Source: LP-6421 §2.2; decisions P23, P35, P36, P37.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from luxrelay.bus import constants as c
from luxrelay.bus.header import NamespaceId
from luxrelay.sync.heads import SeqRange

HEADER_PEEK_BYTES: Final = c.MIN_HEADER_BYTES
"""A header shorter than this has no readable namespace and sequence."""

SLOT: Final = Struct(">20sQ")
"""Namespace and sequence as they follow each other in a header (LP-6411 §1.2)."""


def peek(header: bytes) -> tuple[bytes, int]:
    """Return the namespace and sequence a header of `HEADER_PEEK_BYTES` or more names."""
    namespace_id, seq = SLOT.unpack_from(header, c.OFFSET_NAMESPACE)
    return namespace_id, seq


@dataclass(frozen=True, slots=True)
class BlobAnswer:
    """A blob that a relay has begun to send, or puts off; nothing of it has been verified."""

    total: int
    """Bytes of the whole blob, as the relay says."""
    parts: Generator[bytes, None, None]
    """What was asked for, as it comes; close it to end the call before its end."""
    later_s: float = 0.0
    """When it may be asked for again, seconds: it is being sent to another, and nothing comes now;
    0 for an answer."""


@dataclass(slots=True, unsafe_hash=True)
class WireMessage:
    """One stored message as a relay sent it; nothing of it has been verified.

    A value: nobody changes one. Not frozen, because a page makes thousands and freezing costs three
    times as much.
    """

    header: bytes
    """LP-6411 header, the bytes that arrived at the relay."""
    blob: bytes
    """Payload; empty when the header commits to none or the relay does not hold it."""
    received_at: int = 0
    """When the relay received it, Unix milliseconds."""
    expires_at: int = 0
    """When the relay forgets it, Unix milliseconds."""
    finality: int = 0
    """Finality state the relay knows; 0 is pending."""
    sidecar_len: int = 0
    """Bytes of its TFHE sidecar that the relay has; 0 when it has none."""
    sidecar: bytes = b""
    """The TFHE sidecar when it was fetched; relays give it by its commitment, as a blob."""

    @property
    def namespace_id(self) -> NamespaceId:
        """The namespace the header names, without decoding the rest (LP-6411 §1.2)."""
        return NamespaceId(peek(self.header)[0])

    @property
    def seq(self) -> int:
        """The sequence number the header names, without decoding the rest (LP-6411 §1.2)."""
        return peek(self.header)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStatus:
    """How a page ended: the difference between *complete*, *cut off* and *too old* (P23)."""

    complete: bool = False
    """Nothing in the asked range is missing from this answer: no more, no gap, nothing expired."""
    last_seq: int = 0
    """Sequence of the last message sent; 0 when none was."""
    has_more: bool = False
    """Ask again with `next_cursor`."""
    earliest_seq: int = 0
    """Lowest sequence the relay holds; 0 when it holds nothing."""
    gaps: tuple[SeqRange, ...] = ()
    """Sequences in the covered range that the relay does not hold, ascending."""
    next_cursor: bytes = b""
    """Opaque; empty when `has_more` is False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPage:
    """One answer to SyncNamespace: messages ascending by sequence, and how it ended."""

    messages: list[WireMessage]
    """Messages of the asked namespace and range; a slot may bring several candidates (J11)."""
    status: SyncStatus
    """The final status frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFlow:
    """How a page comes over a link that may be slow (P46).

    A page that is cut is what came of it; its status says ``has_more`` and gives no cursor.
    """

    silence_s: float
    """The page is over when no frame comes for so long, seconds."""
    page_bytes: int = 0
    """Bytes of an answer at most, its first message apart; 0 for what the relay likes."""
    frame_bytes: int = 0
    """Bytes of a frame of several messages at most; 0 for what the relay likes."""
    blob_bytes: int = 0
    """Larger blobs are left out; 0 for none."""
    took: Callable[[int], object] = bool
    """Told the bytes of each frame as it comes, in the calling thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRange:
    """Which sequences of one namespace are asked for, in a call for several."""

    namespace_id: NamespaceId
    """The namespace, 20 bytes."""
    from_seq: int = 0
    """Exclusive."""
    to_seq: int = 0
    """Inclusive; 0 for the relay's latest."""
    cursor: bytes = b""
    """``next_cursor`` of the page before of the same range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePage(SyncPage):
    """What one answer brought of one of several namespaces."""

    namespace_id: NamespaceId
    """Which one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """How far an archive has read one namespace at a relay (J8)."""

    namespace_id: NamespaceId
    """The namespace, 20 bytes."""
    parent_id: NamespaceId
    """Its parent when it is a lane, else the namespace itself (J6)."""
    seq: int | None
    """Highest sequence read; None when no archive reads the namespace, or is to any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishItem:
    """A signed message handed to a node."""

    header: bytes
    """LP-6411 header with its signature."""
    blob: bytes = b""
    """Payload the header commits to."""
    parent_id: bytes = b""
    """Parent namespace of a lane, 20 bytes; empty when the header's namespace is no lane (J6)."""
    sidecar: bytes = b""
    """The TFHE sidecar that the header refers to; empty when it refers to none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReceipt:
    """What became of one published message."""

    verdict: int
    """0 accept, 1 ignore, 2 reject (`luxrelay.bus.VerdictKind`)."""
    code: int = 0
    """Why (`luxrelay.bus.Code`); 0 for an accepted message."""
    reason: str = ""
    """For people: what was wrong."""
    stored: bool = False
    """The message is durable on the node."""
    peers_sent: int = 0
    """Peers it was sent to at once."""
    message_id: bytes = b""
    """SHA3-256(namespaceId ‖ seq), 32 bytes; empty when the header is malformed."""
    expected_seq: int = 0
    """Sequence to sign next, when another message holds the slot (H17); else 0."""
    digest: bytes = b""
    """SHA3-256 of the header as published, 32 bytes: what `get_receipts` asks by."""
    seen_back: int = 0
    """Peers that have announced the message to the node since."""
    retry_after_ms: int = 0
    """Milliseconds after which the same message may be taken; 0 when time alone changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """What a node has counted of a prepaid quota (S7); zeros for one that it never charged."""

    account: bytes
    """The quota's hash, 32 bytes."""
    messages_limit: int = 0
    """How many messages it pays."""
    bytes_limit: int = 0
    """How many blob bytes it pays."""
    messages_used: int = 0
    """How many it has paid here."""
    bytes_used: int = 0
    """How many blob bytes it has paid here."""
    expires_ms: int = 0
    """When it ends, Unix milliseconds."""

    @property
    def charged(self) -> bool:
        """Whether this node has ever charged it."""
        return self.messages_limit > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPage:
    """A page of a search by time or by sender, unverified."""

    messages: list[WireMessage]
    """In the order of the index."""
    next_cursor: bytes
    """Where the next page begins; empty when nothing follows."""
    partial: bool = False
    """Older ones may be missing: the archive behind the node was silent."""
