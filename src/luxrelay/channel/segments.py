"""A segment as bytes, in both revisions of its specification, and how a payload is cut.

    revision C  1 payload_hash  2 payload_length  3 index  4 data_count  5 parity_count
                6 is_parity  7 payload
    revision B  1 payload_hash  2 data index  3 data_count  4 payload  5 parity index
                6 parity_count  7 is_parity

The same bytes may be a segment in both, so the revision is configured and never guessed.

Source: segmentation specification, revisions B and C; decision C4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from Crypto.Hash import keccak

from luxrelay.channel.params import SegmentationConfig, SegmentRevision
from luxrelay.channel.parity import fits, make_parity
from luxrelay.channel.wire import fields_of
from luxrelay.errors import ChannelArgumentError, SegmentError
from luxrelay.wire import varint

HEADER_BYTES: Final = 128
"""Room for the fields beside the payload of a segment; revision C reserves it."""
LENGTH_MAX: Final = (1 << 32) - 1
"""Longest payload a segment can name."""
_WHERE: Final = "segment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One piece of a payload."""

    payload_hash: bytes
    """Keccak-256 of the whole payload."""
    payload_length: int
    """Bytes of the whole payload; 0 in revision B, which does not say."""
    index: int
    """Number within its class."""
    data_count: int
    """Data segments of the payload."""
    parity_count: int = 0
    """Parity segments of the payload."""
    is_parity: bool = False
    """Which class."""
    payload: bytes = b""
    """The piece."""

    def encode(self, revision: SegmentRevision) -> bytes:
        """Return the bytes in a revision."""
        parts = [b"\x0a", varint(len(self.payload_hash)), self.payload_hash]

        def number(tag: bytes, value: int) -> None:
            if value:
                parts.extend((tag, varint(value)))

        if revision is SegmentRevision.C:
            number(b"\x10", self.payload_length)
            number(b"\x18", self.index)
            number(b"\x20", self.data_count)
            number(b"\x28", self.parity_count)
            number(b"\x30", self.is_parity)
            payload_tag = b"\x3a"
        else:
            number(b"\x10", 0 if self.is_parity else self.index)
            number(b"\x18", self.data_count)
            payload_tag = b"\x22"
        if self.payload:
            parts += (payload_tag, varint(len(self.payload)), self.payload)
        if revision is SegmentRevision.B:
            number(b"\x28", self.index if self.is_parity else 0)
            number(b"\x30", self.parity_count)
            number(b"\x38", self.is_parity)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, config: SegmentationConfig) -> Segment:
        """Return the segment of ``data``.

        Raises:
            SegmentError: no segment of the configured revision, or its numbers do not fit.

        """
        values = _read(data, config.revision)
        if config.revision is SegmentRevision.C:
            index = values.get(3, 0)
            data_count, parity_count = values.get(4, 0), values.get(5, 0)
            is_parity, payload = values.get(6, 0), values.get(7, b"")
            length = values.get(2, 0)
        else:
            is_parity, payload, length = values.get(7, 0), values.get(4, b""), 0
            index = values.get(5 if is_parity else 2, 0)
            data_count, parity_count = values.get(3, 0), values.get(6, 0)
        payload_hash = values.get(1, b"")
        assert isinstance(payload_hash, bytes)
        assert isinstance(payload, bytes)
        assert isinstance(length, int)
        assert isinstance(index, int)
        assert isinstance(data_count, int)
        assert isinstance(parity_count, int)
        total_max = config.segments_max - (config.revision is SegmentRevision.B)
        if len(payload_hash) != 32 or length > LENGTH_MAX or is_parity not in (0, 1):
            raise SegmentError("hash, length or class does not fit", where=_WHERE)
        if not 1 <= data_count <= total_max or data_count + parity_count > total_max:
            raise SegmentError("numbers of segments do not fit", where=_WHERE)
        if index >= (parity_count if is_parity else data_count):
            raise SegmentError("the index does not fit", where=_WHERE)
        return cls(
            payload_hash=payload_hash,
            payload_length=length,
            index=index,
            data_count=data_count,
            parity_count=parity_count,
            is_parity=bool(is_parity),
            payload=payload,
        )


_TYPES: Final = {
    SegmentRevision.B: {1: 2, 2: 0, 3: 0, 4: 2, 5: 0, 6: 0, 7: 0},
    SegmentRevision.C: {1: 2, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 7: 2},
}
"""Field numbers of a revision and their wire types."""


def _read(data: bytes, revision: SegmentRevision) -> dict[int, int | bytes]:
    """Return the fields of a segment by number."""
    return dict(fields_of(data, _TYPES[revision], _WHERE, SegmentError))


def payload_hash(payload: bytes) -> bytes:
    """Return the Keccak-256 of a payload (not SHA3-256: the padding differs)."""
    return keccak.new(data=payload, digest_bytes=32).digest()


def chunk_bytes(config: SegmentationConfig) -> int:
    """Return the payload bytes of a full segment."""
    if config.revision is SegmentRevision.C:
        return (config.segment_size_bytes - HEADER_BYTES) // 64 * 64
    if config.enable_reed_solomon:
        return config.segment_size_bytes // 64 * 64
    return config.segment_size_bytes


def parity_count(data_count: int, config: SegmentationConfig) -> int:
    """Return how many parity segments go with a number of data segments."""
    if not config.enable_reed_solomon:
        return 0
    scaled = data_count * round(config.parity_rate * 1_000_000)
    if config.revision is SegmentRevision.C:
        return min(-(-scaled // 1_000_000), data_count)
    return min(scaled // 1_000_000, data_count)


def split(payload: bytes, config: SegmentationConfig) -> list[bytes]:
    """Return the segments of a payload, data before parity.

    Args:
        payload: Any bytes, also none.
        config: Sizes and revision.

    Raises:
        ChannelArgumentError: more segments than ``segments_max``.

    """
    size = chunk_bytes(config)
    data_count = max(1, -(-len(payload) // size))
    parity = parity_count(data_count, config)
    total_max = config.segments_max - (config.revision is SegmentRevision.B)
    if data_count + parity > total_max or (parity and not fits(data_count, parity)):
        raise ChannelArgumentError(
            f"{len(payload)} bytes make too many segments",
            where="send",
            hint=f"send {size * total_max * 8 // 10} bytes at most, or raise segment_size_bytes",
        )
    whole = payload_hash(payload)
    length = len(payload) if config.revision is SegmentRevision.C else 0
    chunks = [payload[index * size : (index + 1) * size] for index in range(data_count)]
    padded = [chunk.ljust(size, b"\0") for chunk in chunks] if parity else []
    extra = make_parity(padded, parity) if parity else []
    return [
        Segment(
            payload_hash=whole,
            payload_length=length,
            index=index,
            data_count=data_count,
            parity_count=parity,
            is_parity=is_parity,
            payload=piece,
        ).encode(config.revision)
        for is_parity, pieces in ((False, chunks), (True, extra))
        for index, piece in enumerate(pieces)
    ]
