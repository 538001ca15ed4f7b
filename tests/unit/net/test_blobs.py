"""Questions for blobs: what goes in comes out, and nothing else is let in; bounds make sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus.constants import MAX_BLOB_BYTES
from luxrelay.errors import ConfigError, FrameError
from luxrelay.net.blobs import BlobConfig, BlobRequest, CommitmentKind

REQUEST = BlobRequest(commitment=bytes(range(32)), length=5, kind=CommitmentKind.KZG)


def test_request_layout() -> None:
    """Version, kind, commitment and length, big-endian (G11)."""
    assert REQUEST.encode().hex() == "0101" + bytes(range(32)).hex() + "00000005"
    assert BlobRequest.decode(REQUEST.encode()) == REQUEST


@pytest.mark.parametrize("length", [1, MAX_BLOB_BYTES])
def test_take_every_length_of_a_blob(length: int) -> None:
    """One byte to 2 MiB can be asked for."""
    data = BlobRequest(commitment=bytes(32), length=length).encode()

    assert BlobRequest.decode(data).length == length


@pytest.mark.parametrize(
    "data",
    [
        b"",
        REQUEST.encode()[:-1],
        REQUEST.encode() + b"\x00",
        b"\x02" + REQUEST.encode()[1:],
        b"\x01\x03" + REQUEST.encode()[2:],
        REQUEST.encode()[:-4] + bytes(4),
        REQUEST.encode()[:-4] + (MAX_BLOB_BYTES + 1).to_bytes(4),
    ],
)
def test_refuse_what_is_no_request(data: bytes) -> None:
    """Other versions, kinds, sizes and lengths are refused."""
    with pytest.raises(FrameError):
        BlobRequest.decode(data)


@given(st.binary(max_size=60))
def test_nothing_but_frame_errors(data: bytes) -> None:
    """Any bytes are a request that encodes to them, or a FrameError."""
    try:
        request = BlobRequest.decode(data)
    except FrameError:
        return
    assert data in {request.encode(), request.encode_range()}


@pytest.mark.parametrize("name", list(BlobConfig.__dataclass_fields__))
def test_every_bound_is_above_zero(name: str) -> None:
    """A bound of zero is refused by name."""
    with pytest.raises(ConfigError, match=name):
        BlobConfig(**{name: 0})


def test_rate_lets_the_largest_blob_pass() -> None:
    """A rate that would never serve a blob of 2 MiB is refused."""
    with pytest.raises(ConfigError, match="no blob"):
        BlobConfig(peer_bytes_per_s=1024, burst_s=3)


RANGE = BlobRequest(commitment=bytes(range(32)), length=9, offset=4, count=3)


def test_range_layout() -> None:
    """P50: version 2, kind, commitment, length, offset and count; the most an answer may bring."""
    assert RANGE.encode_range().hex() == (
        "0200" + bytes(range(32)).hex() + "00000009" + "00000004" + "00000003"
    )
    assert BlobRequest.decode(RANGE.encode_range()) == RANGE
    assert (RANGE.asked, RANGE.fits(9), RANGE.fits(8)) == (3, True, False)
    rest = BlobRequest(commitment=bytes(32), length=9, offset=4, kind=CommitmentKind.SIDECAR)
    assert (rest.asked, rest.fits(5), rest.fits(4), rest.fits(10)) == (5, True, False, False)


@pytest.mark.parametrize(
    ("offset", "count"), [(9, 0), (8, 2), (0, 10), (2**32 - 1, 1), (0, 2**32 - 1)]
)
def test_refuse_a_range_beyond_the_blob(offset: int, count: int) -> None:
    """P50: what lies behind the end of a blob is no question."""
    data = RANGE.encode_range()[:-8] + offset.to_bytes(4) + count.to_bytes(4)
    with pytest.raises(FrameError, match="bytes at"):
        BlobRequest.decode(data)


def test_news_of_a_blob_is_no_question_of_the_older_version() -> None:
    """P50: HERE travels in version 2 alone."""
    here = BlobRequest.here(bytes(32))
    assert BlobRequest.decode(here.encode_range()) == here
    with pytest.raises(FrameError, match="kind 3"):
        BlobRequest.decode(here.encode())
