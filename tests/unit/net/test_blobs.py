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
    assert request.encode() == data


@pytest.mark.parametrize("name", list(BlobConfig.__dataclass_fields__))
def test_every_bound_is_above_zero(name: str) -> None:
    """A bound of zero is refused by name."""
    with pytest.raises(ConfigError, match=name):
        BlobConfig(**{name: 0})


def test_rate_lets_the_largest_blob_pass() -> None:
    """A rate that would never serve a blob of 2 MiB, and a patience above Yamux's, are refused."""
    with pytest.raises(ConfigError, match="no blob"):
        BlobConfig(peer_bytes_per_s=1024, burst_s=3)
    with pytest.raises(ConfigError, match="5 seconds"):
        BlobConfig(stall_s=5)
