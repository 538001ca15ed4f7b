"""A segment as bytes, and cutting a payload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luxrelay.channel.params import SegmentationConfig, SegmentRevision
from luxrelay.channel.segments import Segment, chunk_bytes, payload_hash, split
from luxrelay.errors import ChannelArgumentError, SegmentError

VECTORS = json.loads((Path(__file__).parent / "data" / "segmentation.json").read_text())
MESSAGE = bytes((i * 37 + 11) & 255 for i in range(1000))
REVISIONS = [SegmentRevision.B, SegmentRevision.C]


def config(revision: SegmentRevision, **changes: Any) -> SegmentationConfig:
    """Return a configuration whose full segments carry 256 bytes."""
    size = 256 if revision is SegmentRevision.B else 384
    return SegmentationConfig(revision=revision, segment_size_bytes=size, **changes)


@pytest.mark.parametrize("vector", VECTORS["keccak256"], ids=lambda v: v["input_hex"][:8])
def test_payload_hash_is_keccak(vector: dict[str, str]) -> None:
    """The hash is Keccak-256 with its old padding."""
    assert payload_hash(bytes.fromhex(vector["input_hex"])).hex() == vector["digest"]


@pytest.mark.parametrize(
    ("revision", "name"),
    [(SegmentRevision.B, "revB_lips_head"), (SegmentRevision.C, "revC_newest")],
)
def test_split_as_published(revision: SegmentRevision, name: str) -> None:
    """Four data and two parity segments of 1,000 bytes, byte for byte."""
    cut = config(revision, enable_reed_solomon=True, parity_rate=0.5)

    segments = split(MESSAGE, cut)

    assert [segment.hex() for segment in segments] == VECTORS[name]
    decoded = [Segment.decode(segment, cut) for segment in segments]
    assert [(one.is_parity, one.index) for one in decoded] == [
        (False, 0), (False, 1), (False, 2), (False, 3), (True, 0), (True, 1),
    ]  # fmt: skip
    assert [one.encode(revision) for one in decoded] == segments


@pytest.mark.parametrize("vector", VECTORS["revC_published"], ids=lambda v: v["name"])
def test_golden_bytes(vector: dict[str, str]) -> None:
    """The golden bytes of the public implementation are read and written again."""
    data = bytes.fromhex(vector["hex"])
    cut = SegmentationConfig()

    assert Segment.decode(data, cut).encode(SegmentRevision.C) == data


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 512, 1000])
def test_segments_are_no_longer_than_configured(revision: SegmentRevision, length: int) -> None:
    """Revision C bounds the serialised segment, revision B its payload; the end is not padded."""
    cut = config(revision)

    segments = split(bytes(length), cut)

    assert len(segments) == max(1, -(-length // 256))
    if revision is SegmentRevision.C:
        assert max(map(len, segments)) <= cut.segment_size_bytes
    pieces = [Segment.decode(segment, cut).payload for segment in segments]
    assert b"".join(pieces) == bytes(length)


def test_default_chunk() -> None:
    """A default segment carries 102,272 bytes in revision C, as published, 102,400 in B."""
    assert chunk_bytes(SegmentationConfig()) == 102_272
    assert chunk_bytes(SegmentationConfig(revision=SegmentRevision.B)) == 102_400
    assert len(split(bytes(306_817), SegmentationConfig())) == 4


def test_parity_rounds_up_in_c_and_down_in_b() -> None:
    """Revision C rounds the parity up, B down, and neither makes more than data."""
    for revision, count in ((SegmentRevision.C, 5 + 1), (SegmentRevision.B, 5)):
        assert len(split(bytes(5 * 256), config(revision, enable_reed_solomon=True))) == count
    full = config(SegmentRevision.C, enable_reed_solomon=True, parity_rate=1)
    assert len(split(bytes(3 * 256), full)) == 6


@pytest.mark.parametrize(
    ("revision", "segments_max", "most"),
    [(SegmentRevision.C, 256, 256), (SegmentRevision.B, 256, 255), (SegmentRevision.C, 3, 3)],
)
def test_refuse_more_segments_than_allowed(
    revision: SegmentRevision, segments_max: int, most: int
) -> None:
    """A payload of one segment more than `segments_max` (revision B: less one) is refused."""
    cut = config(revision, segments_max=segments_max)
    assert len(split(bytes(256 * most), cut)) == most

    with pytest.raises(ChannelArgumentError, match="too many segments"):
        split(bytes(256 * most + 1), cut)


def test_refuse_parity_beyond_the_field() -> None:
    """227 data segments with 29 of parity would need the larger field."""
    cut = config(SegmentRevision.C, enable_reed_solomon=True, parity_rate=0.127)

    with pytest.raises(ChannelArgumentError):
        split(bytes(256 * 227), cut)


def segment(**changes: Any) -> Segment:
    """Return a small segment with changes."""
    values: dict[str, Any] = {
        "payload_hash": bytes(32),
        "payload_length": 4,
        "index": 0,
        "data_count": 2,
        "payload": b"x",
    }
    return Segment(**{**values, **changes})


@pytest.mark.parametrize(
    "bad",
    [
        segment(payload_hash=bytes(31)),
        segment(payload_length=1 << 32),
        segment(data_count=0),
        segment(data_count=257),
        segment(data_count=200, parity_count=57),
        segment(index=2),
        segment(index=0, is_parity=True),
        segment(index=1, parity_count=1, is_parity=True),
    ],
)
def test_decode_refuses_numbers_that_do_not_fit(bad: Segment) -> None:
    """Hash, counts and index are checked against each other before anything is kept."""
    with pytest.raises(SegmentError):
        Segment.decode(bad.encode(SegmentRevision.C), SegmentationConfig())


def test_decode_refuses_a_class_above_one() -> None:
    """A class that is neither data nor parity is refused."""
    data = segment(parity_count=1, is_parity=True).encode(SegmentRevision.C)
    assert b"\x30\x01" in data

    with pytest.raises(SegmentError):
        Segment.decode(data.replace(b"\x30\x01", b"\x30\x02"), SegmentationConfig())


def test_a_revision_is_not_guessed() -> None:
    """Bytes of the other revision are refused or read otherwise, never taken for what they are."""
    written = split(MESSAGE, config(SegmentRevision.C))[0]

    with pytest.raises(SegmentError):
        Segment.decode(written, config(SegmentRevision.B))
