"""Bytes on disk: tables, kinds of rows, keys, values, layout version. Pure.

A message is named by its *message key*: namespace (20) ‖ sequence (8) ‖ content id (32), numbers
big-endian, so that keys sort as the tuples do. An index row is a prefix followed by a message key.

A *slice* holds whole messages: every row of each message that expires within a span of time, in one
table of its own, so that forgetting them all is dropping the table (`luxrelay.store.slices`). There
the first byte of a key says which kind of row it is:

====  ============  ==================================  ============================================
kind                key                                 value
====  ============  ==================================  ============================================
h     headers       message key                         `MessageRow`
t     times         timestamp (8) ‖ message key         expires_at (8)
c     contents      content id (32)                     namespace ‖ sequence ‖ timestamp (8)
                                                        ‖ expires_at (8)
m     slots         message id (32)                     namespace ‖ sequence
r     references    blob commitment (32) ‖ message key  where the blob is: `BlobPlace`; 3 under a
                                                        sidecar's commitment
b     blobs         blob commitment (32)                the blob, when not in the header row
p     sidecars      message key                         the TFHE sidecar (LP-6411 §2.10)
a     held          message key                         empty; expired, and the archive has not read
                                                        it (J8)
x     thinned       namespace ‖ sequence                headerHash (32) of a message that went early
                                                        (J3)
s     senders       sender address (20) ‖ namespace     number of the sender's messages there
                    (20)
n     shares        namespace (20)                      `Share`: what of it is in this slice
====  ============  ==================================  ============================================

Beside the slices:

====================  =====================================  =================================
table                 key                                    value
====================  =====================================  =================================
namespaces            namespace (20)                         `NamespaceState` without its runs
lanes                 parent (20) ‖ namespace (20)           empty; a parent is its own first lane
forgotten             namespace (20)                         `NamespaceState` of one without
                                                             messages that made room for others
default               ``layout``                             version, u32
                      ``slice/`` ‖ number, u32               its first and end expiry (8 each)
====================  =====================================  =================================

*Deviations*: the message key carries the whole content id, where P5 has an 8-byte prefix of the
digest: two contents of one slot that share 8 bytes cost 2^32 hashes, and one would overwrite the
other. The ``contents`` value has the times, so that a bucket of the Merkle tree is filtered by
cut-off without a second lookup. A blob's reference count is its number of reference rows, so no row
is read to be changed; a large blob that messages of two slices share is in both. A sidecar is bound
to one header and shared by none, so it has its message's key. There is no expiry
index: the slices are one, and within a slice the ``times`` rows say when a message goes. A sender
has one row a namespace and slice, not one a message: whoever asks for a sender then reads those
namespaces.

*What else to change when you change this*: ``LAYOUT_VERSION``, `store.maintenance`: `upgrade`,
`audit` and `repair`.

Source: LP-6421 §1.2; decisions P5, P6, P9, P10, P11, P12, P38, J4, J6, J8; ADR 0006 §1.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import sha3_256
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from luxrelay.bus import MessageId, NamespaceId, sender_address
from luxrelay.bus import constants as c
from luxrelay.bus.structure import KEY_START
from luxrelay.errors import StoreError
from luxrelay.store.namespaces import NamespaceState

LAYOUT_VERSION: Final = 3

NAMESPACES: Final = "namespaces"
LANES: Final = "lanes"
META: Final = "default"
FORGOTTEN: Final = "forgotten"
FAMILIES: Final = (NAMESPACES, LANES, FORGOTTEN, META)
"""The tables beside the slices."""

HEADERS: Final = b"h"
TIMES: Final = b"t"
CONTENTS: Final = b"c"
SLOTS: Final = b"m"
REFERENCES: Final = b"r"
BLOBS: Final = b"b"
SIDECARS: Final = b"p"
HELD: Final = b"a"
SENDERS: Final = b"s"
THINNED: Final = b"x"
SHARES: Final = b"n"
KINDS: Final = (HEADERS, TIMES, CONTENTS, SLOTS, REFERENCES, BLOBS, SIDECARS, HELD, SENDERS, SHARES)
"""Kinds of rows that stand for messages which are here."""

VERSION_KEY: Final = b"layout"
SLICE_PREFIX: Final = b"slice/"

SLOT_BYTES: Final = c.NAMESPACE_BYTES + 8
MESSAGE_KEY_BYTES: Final = SLOT_BYTES + c.HASH_BYTES

_SLOT: Final = Struct(">20sQ")
_U64: Final = Struct(">Q")
_U32: Final = Struct(">I")
_U16: Final = Struct(">H")
_ROW: Final = Struct(">QQBBIBH")
_ROW_BYTES: Final = _ROW.size
_new: Final = tuple.__new__
_STATE: Final = Struct(">20sQQQQQ32sQQQBQ")
STATE_BYTES: Final = _STATE.size
_CONTENT: Final = Struct(">28sQQ")
_SHARE: Final = Struct(">QQQQB")
_SPAN: Final = Struct(">QQ")


class BlobPlace(IntEnum):
    """Where a message's blob is."""

    ABSENT = 0
    """Not here, or the header has none."""
    INLINE = 1
    """In the header's row."""
    APART = 2
    """In a row of its own, shared by every message that refers to it."""


_INLINE: Final = int(BlobPlace.INLINE)
_PLACES: Final = tuple(BlobPlace)
_REFERENCE_VALUES: Final = {place: bytes([place]) for place in BlobPlace}
SIDECAR_REFERENCE: Final = b"\x03"
"""Value of a ``references`` row that stands under a sidecar's commitment."""
_HAS_SIDECAR: Final = 0x10
"""Added to the place of a message whose sidecar is here; its length, u32, then ends the row."""


class MessageRow(NamedTuple):
    """The value of a ``headers`` row."""

    received_at: int
    expires_at: int
    finality: int
    place: BlobPlace
    blob_len: int
    """Length of the stored blob; 0 when it is absent."""
    source: bytes
    header: bytes
    inline_blob: bytes
    sidecar_len: int = 0
    """Length of the stored TFHE sidecar; 0 when it is absent."""

    @property
    def attached_bytes(self) -> int:
        """Bytes of blob and sidecar."""
        return self.blob_len + self.sidecar_len

    @property
    def timestamp(self) -> int:
        """The header's timestamp, milliseconds."""
        return timestamp_of(self.header)

    @property
    def sender(self) -> bytes:
        """The header's senderPubKey field."""
        return sender_of(self.header)

    @property
    def commitment(self) -> bytes:
        """The header's blob commitment."""
        return commitment_of(self.header)


RowParts = tuple[int, int, int, BlobPlace, int, bytes, bytes, bytes, int]
"""The fields of a `MessageRow`, in its order."""

IndexRow = tuple[bytes, bytes, bytes]
"""One row beside a ``headers`` row: kind, key, value."""


class Share(NamedTuple):
    """What a slice holds of a namespace."""

    messages: int = 0
    size_bytes: int = 0
    """Logical bytes."""
    first: int = 0
    """No message of the namespace in the slice has a lower sequence."""
    last: int = 0
    """None has a higher one."""
    exact: bool = True
    """Whether ``last`` is held still: a message may have gone since."""


def slot_key(namespace: bytes, seq: int) -> bytes:
    """Return the 28-byte prefix of every message key in a slot."""
    return _SLOT.pack(namespace, seq)


def split_slot(key: bytes) -> tuple[NamespaceId, int]:
    """Return namespace and sequence of a message key or slot."""
    try:
        namespace, seq = _SLOT.unpack_from(key)
    except struct_error as error:
        raise _corrupt("a message key", key) from error
    return NamespaceId(namespace), seq


def u64(value: int) -> bytes:
    """Return 8 bytes, big-endian: keys sort as numbers do (P6)."""
    return _U64.pack(value)


def read_u64(data: bytes) -> int:
    """Return the number in the first 8 bytes."""
    try:
        value: int = _U64.unpack_from(data)[0]
    except struct_error as error:
        raise _corrupt("a number", data) from error
    return value


def after(prefix: bytes) -> bytes:
    """Return the smallest key above every key that begins with ``prefix``; empty for none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b""


def timestamp_of(header: bytes) -> int:
    """Return the timestamp of encoded header bytes, milliseconds."""
    value: int = _U64.unpack_from(header, c.OFFSET_TIMESTAMP)[0]
    return value


def sender_of(header: bytes) -> bytes:
    """Return the senderPubKey field of encoded header bytes."""
    length: int = _U16.unpack_from(header, c.OFFSET_KEY_LEN)[0]
    return header[KEY_START : KEY_START + length]


def commitment_of(header: bytes) -> bytes:
    """Return the blob commitment of encoded header bytes."""
    return header[c.OFFSET_COMMITMENT : c.OFFSET_BLOB_LEN]


def blob_len_of(header: bytes) -> int:
    """Return the blob length that encoded header bytes declare."""
    value: int = _U32.unpack_from(header, c.OFFSET_BLOB_LEN)[0]
    return value


def sidecar_commitment_of(header: bytes) -> bytes:
    """Return the sidecar's commitment of encoded header bytes that have the flag."""
    return header[-c.SIDECAR_BYTES :][: c.HASH_BYTES]


def encode_row(row: MessageRow) -> bytes:
    """Return the value of a ``headers`` row."""
    fixed = _ROW.pack(
        row.received_at,
        row.expires_at,
        row.finality,
        row.place | (_HAS_SIDECAR if row.sidecar_len else 0),
        row.blob_len,
        len(row.source),
        len(row.header),
    )
    tail = _U32.pack(row.sidecar_len) if row.sidecar_len else b""
    return b"".join((fixed, row.source, row.header, row.inline_blob, tail))


pack_head: Final = _ROW.pack
"""Return what stands in a ``headers`` row before source, header and blob: received_at, expires_at,
finality, place, and the lengths of blob, source and header."""


def expires_at_of(value: bytes) -> int:
    """Return expires_at of an encoded ``headers`` row."""
    return read_u64(value[8:16])


def finality_of(value: bytes) -> int:
    """Return the finality state of an encoded ``headers`` row."""
    return value[16]


def blob_bytes_of(value: bytes) -> int:
    """Return the bytes of blob and sidecar stored with an encoded ``headers`` row."""
    sidecar = value[-_U32.size :] if value[17] & _HAS_SIDECAR else b""
    return int.from_bytes(value[18:22], "big") + int.from_bytes(sidecar, "big")


def decode_row(value: bytes) -> MessageRow:
    """Return the row that ``value`` encodes.

    Raises:
        StoreError: ``store.corrupt``; nothing else, whatever the bytes.

    """
    return _new(MessageRow, row_parts(value))  # half of what naming the fields costs


def row_parts(value: bytes) -> RowParts:
    """Return the fields of `decode_row` in their order; a page reads thousands and names none.

    Raises:
        StoreError: ``store.corrupt``; nothing else, whatever the bytes.

    """
    try:
        received, expires, finality, place, blob_len, source_len, header_len = _ROW.unpack_from(
            value
        )
        source_end = _ROW_BYTES + source_len
        header_end = source_end + header_len
        source = value[_ROW_BYTES:source_end] if source_len else b""
        header, blob, sidecar_len = value[source_end:header_end], value[header_end:], 0
        if place & _HAS_SIDECAR:
            place ^= _HAS_SIDECAR
            blob, (sidecar_len,) = blob[: -_U32.size], _U32.unpack(blob[-_U32.size :])
            if not 0 < sidecar_len <= c.MAX_BLOB_BYTES:
                raise _corrupt("a headers row", value)
        where = _PLACES[place]
    except (struct_error, IndexError) as error:
        raise _corrupt("a headers row", value) from error
    expected = blob_len if place == _INLINE else 0
    if len(blob) != expected or header_len < c.MIN_HEADER_BYTES:
        raise _corrupt("a headers row", value)
    return received, expires, finality, where, blob_len, source, header, blob, sidecar_len


def index_rows(key: bytes, row: MessageRow) -> list[IndexRow]:
    """Return every row that stands for the message ``key`` alone, save header row, blob, sidecar.

    Writing, deleting and the orphan scan all use this one list (P9). The slot's row and the
    sender's are shared with others.
    """
    header = row.header
    expires_at = _U64.pack(row.expires_at)
    timestamp = header[c.OFFSET_TIMESTAMP : c.OFFSET_COMMITMENT]
    rows: list[IndexRow] = [
        (TIMES, timestamp + key, expires_at),
        (CONTENTS, key[SLOT_BYTES:], key[:SLOT_BYTES] + timestamp + expires_at),
    ]
    if row.place:
        rows.append((REFERENCES, commitment_of(header) + key, _REFERENCE_VALUES[row.place]))
    if row.sidecar_len:
        rows.append((REFERENCES, sidecar_commitment_of(header) + key, SIDECAR_REFERENCE))
    return rows


def slot_name(slot: bytes) -> MessageId:
    """Return the message id of a slot: the key of its row."""
    return MessageId(sha3_256(slot).digest())


def sender_key(header: bytes) -> bytes:
    """Return the key of the row of a header's sender and namespace.

    Raises:
        BusArgumentError: the sender's key has no address rule.

    """
    return sender_address(sender_of(header)) + header[c.OFFSET_NAMESPACE : c.OFFSET_SEQ]


_INDEX_BYTES: Final = (
    (MESSAGE_KEY_BYTES + _ROW.size)
    + (8 + MESSAGE_KEY_BYTES + 8)
    + (c.HASH_BYTES + SLOT_BYTES + 16)
    + (c.HASH_BYTES + SLOT_BYTES)
    + 4
)
_REFERENCE_BYTES: Final = 1 + c.HASH_BYTES + MESSAGE_KEY_BYTES + 1
_SIDECAR_COST: Final = _REFERENCE_BYTES + 1 + MESSAGE_KEY_BYTES + _U32.size
"""What a message with a sidecar costs beyond the sidecar's bytes and all else."""
INDEX_COSTS: Final = (_INDEX_BYTES, _INDEX_BYTES + _REFERENCE_BYTES)
"""What a message without and one with a blob cost beyond header, source and blob."""
INDEX_BYTES: Final = _INDEX_BYTES + _REFERENCE_BYTES
"""What a message with a blob costs beyond its header, source and blob (P31)."""


def charge_bytes(row: MessageRow) -> int:
    """Return the logical bytes of a message: header, blob and all index rows (P1).

    A shared blob counts for each message that refers to it, so that the sum does not depend on
    the order of arrival and can be taken from the ``headers`` rows alone.
    """
    charge = charge_of(len(row.header), len(row.source), row.place, row.blob_len)
    return charge + _SIDECAR_COST + row.sidecar_len if row.sidecar_len else charge


def charge_of(header_len: int, source_len: int, place: int, blob_len: int) -> int:
    """Return the logical bytes of a message with parts of these lengths."""
    return INDEX_COSTS[place > 0] + header_len + source_len + blob_len


def decode_content(value: bytes) -> tuple[bytes, int, int]:
    """Return slot, timestamp and expiry of a ``contents`` row.

    Raises:
        StoreError: ``store.corrupt``; nothing else, whatever the bytes.

    """
    if len(value) != _CONTENT.size:
        raise _corrupt("a contents row", value)
    slot, timestamp, expires_at = _CONTENT.unpack(value)
    return slot, timestamp, expires_at


def encode_state(state: NamespaceState) -> bytes:
    """Return the value of a ``namespaces`` row; the runs are found again from the rows."""
    return _STATE.pack(
        state.parent,
        state.floor,
        state.contiguous,
        state.latest,
        state.earliest,
        state.finalized,
        state.latest_hash,
        state.latest_timestamp,
        state.messages,
        state.size_bytes,
        state.watermark is not None,
        state.watermark or 0,
    )


def decode_state(key: bytes, value: bytes) -> NamespaceState:
    """Return the state a ``namespaces`` row encodes, without runs.

    Raises:
        StoreError: ``store.corrupt``; nothing else, whatever the bytes.

    """
    if len(key) != c.NAMESPACE_BYTES or len(value) != _STATE.size:
        raise _corrupt("a namespaces row", value)
    (
        parent,
        floor,
        contiguous,
        latest,
        earliest,
        finalized,
        digest,
        stamp,
        messages,
        size,
        handed_off,
        watermark,
    ) = _STATE.unpack(value)
    return NamespaceState(
        namespace_id=NamespaceId(key),
        parent=NamespaceId(parent),
        floor=floor,
        contiguous=contiguous,
        latest=latest,
        earliest=earliest,
        finalized=finalized,
        latest_hash=digest,
        latest_timestamp=stamp,
        messages=messages,
        size_bytes=size,
        watermark=watermark if handed_off else None,
    )


def encode_share(share: Share) -> bytes:
    """Return the value of a ``shares`` row."""
    return _SHARE.pack(*share)


def decode_share(value: bytes) -> Share:
    """Return the share that ``value`` encodes.

    Raises:
        StoreError: ``store.corrupt``; nothing else, whatever the bytes.

    """
    if len(value) != _SHARE.size:
        raise _corrupt("a shares row", value)
    messages, size_bytes, first, last, exact = _SHARE.unpack(value)
    return Share(messages, size_bytes, first, last, bool(exact))


def slice_key(number: int) -> bytes:
    """Return the key of a slice's own row."""
    return SLICE_PREFIX + _U32.pack(number)


def encode_span(first_ms: int, end_ms: int) -> bytes:
    """Return the value of a slice's own row."""
    return _SPAN.pack(first_ms, end_ms)


def decode_span(key: bytes, value: bytes) -> tuple[int, int, int]:
    """Return number, first expiry and end expiry of a slice's own row.

    Raises:
        StoreError: ``store.corrupt``; nothing else, whatever the bytes.

    """
    if len(key) != len(SLICE_PREFIX) + _U32.size or len(value) != _SPAN.size:
        raise _corrupt("a slice's row", value)
    number: int = _U32.unpack_from(key, len(SLICE_PREFIX))[0]
    first_ms, end_ms = _SPAN.unpack(value)
    return number, first_ms, end_ms


def encode_version(version: int = LAYOUT_VERSION) -> bytes:
    """Return the value of the version row."""
    return _U32.pack(version)


def decode_version(value: bytes) -> int:
    """Return the layout version of a version row.

    Raises:
        StoreError: ``store.corrupt``; nothing else, whatever the bytes.

    """
    if len(value) != _U32.size:
        raise _corrupt("the version row", value)
    version: int = _U32.unpack(value)[0]
    return version


def _corrupt(what: str, data: bytes) -> StoreError:
    return StoreError(
        f"{what} of {len(data)} bytes cannot be read",
        where=data[:16].hex(),
        code="store.corrupt",
    )
