"""KZG codecs: every value comes back, and no bytes raise anything but our error."""

from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import KzgCommitment
from luxrelay.bus.kzg import blob_to_polynomials, polynomials_to_blob
from luxrelay.errors import CommitmentError


@given(blob=st.binary(min_size=1, max_size=400))
def test_cutting_keeps_every_payload(blob: bytes) -> None:
    """Every payload comes back as it was."""
    assert polynomials_to_blob(blob_to_polynomials(blob), len(blob)) == blob


@given(data=st.binary(max_size=300))
def test_container_decoder_raises_its_own_error_only(data: bytes) -> None:
    """Any bytes are a container that encodes to them, or a CommitmentError."""
    try:
        value = KzgCommitment.decode(data)
    except CommitmentError:
        return
    assert value.encode() == data
