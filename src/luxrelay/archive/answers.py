"""Values of the archive's answers: places, messages, pages, reach of a namespace. Pure.

Source: LP-6440; decisions P20, S16.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from struct import Struct
from typing import Final, NamedTuple

from luxrelay.bus import MsgHeader
from luxrelay.errors import ArchiveArgumentError
from luxrelay.sync.messages import WireMessage

_PLACE: Final = Struct(">Q20sQ32s")


class AnswerPlace(NamedTuple):
    """Where a message stands in the order of the archive."""

    timestamp: int
    namespace_id: bytes
    seq: int
    content_id: bytes

    def encode(self) -> bytes:
        """Return the place as a cursor."""
        return _PLACE.pack(*self)

    @classmethod
    def decode(cls, cursor: bytes) -> AnswerPlace:
        """Return the place of a cursor.

        Raises:
            ArchiveArgumentError: it is none.

        """
        if len(cursor) != _PLACE.size:
            raise ArchiveArgumentError("this is no cursor that a page gave", where="cursor")
        return cls(*_PLACE.unpack(cursor))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedMessage:
    """One message of the archive."""

    place: AnswerPlace
    """Timestamp, namespace, sequence and content id."""
    date: date
    """The day whose root proves it."""
    header: bytes
    """The bytes that arrived."""
    blob: bytes | None
    """The payload; None when no relay had it."""
    received_at: int
    """When the first relay received it, ms."""
    expires_at: int
    """When the last relay forgot it, ms."""
    finality: int
    """Finality state, 0 is pending."""
    copies: int
    """How many relays served it."""
    sender_address: bytes | None
    """The sender's address, 20 bytes, for keys that have one."""
    parent_id: bytes | None
    """The namespace it is a lane of, or its own; None when no relay said it."""
    sidecar: bytes | None = None
    """The TFHE sidecar; None without one or when no relay had it."""

    def payload(self, commitment: bytes) -> bytes | None:
        """Return the blob or the sidecar, whichever is committed to; None when it is not here."""
        reference = MsgHeader.decode(self.header).tfhe_sidecar
        named = reference is not None and reference.commitment == commitment
        return self.sidecar if named else self.blob

    def wire(self) -> WireMessage:
        """Return it as a relay would send it."""
        return WireMessage(
            header=self.header,
            blob=self.blob or b"",
            received_at=self.received_at,
            expires_at=self.expires_at,
            finality=self.finality,
            sidecar_len=len(self.sidecar or b""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePage:
    """Messages in order of timestamp, namespace, sequence and content id, and how to go on."""

    messages: tuple[ArchivedMessage, ...]
    """The page."""
    next_cursor: bytes = b""
    """Where the next page begins; empty when there is none."""
    files: int = 0
    """Files that the question had to look into."""
    files_in_all: int = 0
    """Files of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceReach:
    """What is archived of one namespace."""

    namespace_id: bytes
    """20 bytes."""
    parent_id: bytes | None
    """The namespace it is a lane of, or its own; None when no relay said it."""
    first_seq: int
    """Lowest sequence."""
    contiguous_seq: int
    """Highest sequence without a hole between it and the first."""
    last_seq: int
    """Highest sequence."""
    last_timestamp: int
    """Timestamp of a message there, ms."""
    last_header_hash: bytes
    """Its header hash."""
    messages: int
    """Messages."""
