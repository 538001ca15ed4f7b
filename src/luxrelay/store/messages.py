"""Messages before and after the store, and the outcomes of a put.

Source: LP-6421 §1.2; decisions P11, P14, P27, J6, J11.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Final

from luxrelay.bus import MsgHeader, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import HeaderError, StoreArgumentError, StoreError

SOURCE_BYTES_MAX: Final = 64
"""A libp2p peer id of an Ed25519 key has 38 bytes; others hash to 34."""

_STAMPS: Final = Struct(">QQ")


def require_ms(name: str, value: int) -> None:
    """Return when ``value`` can be Unix milliseconds of today.

    Raises:
        StoreArgumentError: it is negative, above u64, or looks like seconds (P8).

    """
    if not c.SECONDS_LOOKALIKE_MAX <= value <= c.MAX_U64:
        raise StoreArgumentError(
            f"{name} is {value}, which is no time in milliseconds",
            where=name,
            hint="times are Unix milliseconds; a value below 10^11 looks like seconds",
        )


class PutOutcome(IntEnum):
    """What became of one message."""

    STORED = 0
    """It is in the store."""
    DUPLICATE = 1
    """Its content was there already; a blob that was missing has been added."""
    LOST_SLOT = 2
    """Its slot keeps other candidates (J11), or was thinned (J3)."""
    EXPIRED = 3
    """Its time is past (P14)."""
    FULL = 4
    """No room: the namespace's quota, `max_storage_bytes` or `namespaces_max` is reached, and
    nothing older makes room (P2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingMessage:
    """A validated message; the store checks forms and lengths, neither signature nor hash.

    Raises:
        StoreArgumentError: a field is out of range.

    """

    header: MsgHeader
    """The header; its encoded bytes are what is stored."""
    blob: bytes | None
    """The payload the header commits to; None when it has not arrived."""
    parent: NamespaceId
    """The namespace this one is a lane of, or the header's own (J6)."""
    received_at: int
    """Arrival, Unix milliseconds."""
    source: bytes = b""
    """Peer it came from; kept here, not sent on (P35)."""
    sidecar: bytes | None = None
    """The TFHE sidecar that the header refers to; None without one or when it has not arrived."""

    def __post_init__(self) -> None:
        """Refuse what could not be stored as it is."""
        require_ms("received_at", self.received_at)
        if not self.header.seq:
            raise StoreArgumentError("sequence numbers begin at 1", where="IncomingMessage.header")
        if self.blob is not None and len(self.blob) != self.header.blob_len:
            raise StoreArgumentError(
                f"blob has {len(self.blob)} bytes, its header says {self.header.blob_len}",
                where="IncomingMessage.blob",
            )
        if self.sidecar is not None and (
            self.header.tfhe_sidecar is None or not 0 < len(self.sidecar) <= c.MAX_BLOB_BYTES
        ):
            raise StoreArgumentError(
                f"a sidecar has 1 to {c.MAX_BLOB_BYTES} bytes, and its header refers to it",
                where="IncomingMessage.sidecar",
            )
        if len(self.parent) != c.NAMESPACE_BYTES:
            raise StoreArgumentError("a parent has 20 bytes", where="IncomingMessage.parent")
        if len(self.source) > SOURCE_BYTES_MAX:
            raise StoreArgumentError(
                f"a source has {SOURCE_BYTES_MAX} bytes at most", where="IncomingMessage.source"
            )


@dataclass(slots=True, unsafe_hash=True)
class StoredMessage:
    """A message as the store holds it; the bytes are those that arrived.

    A value: nobody changes one. Not frozen, because a page makes thousands and freezing costs as
    much as reading the row.
    """

    header_bytes: bytes
    """The encoded header."""
    blob: bytes | None
    """The payload; None when it is not here, empty when the header has none."""
    received_at: int
    """First arrival, Unix milliseconds; a later copy does not change it."""
    expires_at: int
    """When it goes, Unix milliseconds; never extended (P14)."""
    source: bytes = b""
    """Peer it came from first."""
    finality: int = 0
    """State of the finality oracle; 0 is PENDING (J9)."""
    regressed: bool = field(default=False, compare=False)
    """Its timestamp is before that of the message before it; as `RelayStore.mark_regressed` has
    found, for who reads it (LP-6411 §2.3, H13)."""
    sidecar_len: int = field(default=0, compare=False)
    """Bytes of its TFHE sidecar here, which `RelayStore.get_blob` returns; 0 without one."""

    _header: MsgHeader | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def header(self) -> MsgHeader:
        """The decoded header; decoded once, when first asked for.

        Raises:
            StoreError: the stored bytes are no header (``store.corrupt``).

        """
        if self._header is None:
            try:
                header = MsgHeader.decode(self.header_bytes)
            except HeaderError as error:
                raise StoreError(
                    "a stored header cannot be decoded", where=error.what, code="store.corrupt"
                ) from error
            self._header = header
        return self._header

    @property
    def namespace_id(self) -> NamespaceId:
        """The header's namespace, without decoding the rest."""
        return NamespaceId(self.header_bytes[c.OFFSET_NAMESPACE : c.OFFSET_SEQ])

    @property
    def seq(self) -> int:
        """The header's sequence number, without decoding the rest."""
        seq: int = _STAMPS.unpack_from(self.header_bytes, c.OFFSET_SEQ)[0]
        return seq

    @property
    def timestamp(self) -> int:
        """The header's timestamp in milliseconds, without decoding the rest."""
        timestamp: int = _STAMPS.unpack_from(self.header_bytes, c.OFFSET_SEQ)[1]
        return timestamp
