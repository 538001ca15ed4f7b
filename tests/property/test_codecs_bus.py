"""Laws of the bus's codecs over random and mutated bytes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    NamespacePolicy,
    TFHESidecarRef,
    validate_structure,
)
from luxrelay.bus.constants import FLAG_TFHE_SIDECAR, MAX_BLOB_BYTES, MAX_U64
from luxrelay.bus.schemes import SCHEMES
from luxrelay.errors import HeaderError, PolicyError

hashes = st.binary(min_size=32, max_size=32).filter(any)
u64 = st.integers(1, MAX_U64)


@st.composite
def headers(draw: st.DrawFn) -> MsgHeader:
    """Well-formed headers of all five schemes, with and without a sidecar."""
    spec = SCHEMES[draw(st.sampled_from(sorted(SCHEMES)))]
    sidecar = None
    if draw(st.booleans()):
        sidecar = TFHESidecarRef(commitment=draw(hashes), epoch=draw(u64))
    filler = draw(st.binary(min_size=1, max_size=8))
    key = (filler * spec.key_field_bytes)[: spec.key_field_bytes - 1]
    blob_len = draw(st.integers(0, MAX_BLOB_BYTES))
    return MsgHeader(
        namespace_id=NamespaceId(draw(st.binary(min_size=20, max_size=20).filter(any))),
        seq=draw(u64),
        timestamp=draw(st.integers(0, MAX_U64)),
        blob_commitment=draw(hashes) if blob_len else bytes(32),
        blob_len=blob_len,
        policy_hash=draw(hashes),
        sender_pub_key=bytes([spec.scheme]) + key,
        signature=(filler * spec.signature_bytes)[: spec.signature_bytes],
        fee_proof=draw(st.sampled_from([b"\x00", b"\x01voucher", b"\x04" + bytes(800)])),
        flags=spec.flags | (FLAG_TFHE_SIDECAR if sidecar else 0),
        tfhe_sidecar=sidecar,
    )


@given(headers())
def test_header_round_trip(header: MsgHeader) -> None:
    """decode(encode(h)) == h and encode(decode(b)) == b, from bytes and from JSON (11-03)."""
    data = header.encode()
    decoded = MsgHeader.decode(data)

    assert decoded == header
    assert decoded.encode() == data
    assert MsgHeader.from_json(decoded.to_json()) == header


@given(headers(), st.data())
def test_mutated_header_decodes_or_says_why(header: MsgHeader, data: st.DataObject) -> None:
    """Mutated bytes decode to themselves or raise HeaderError, nothing else (11-48)."""
    raw = bytearray(header.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, min(len(raw), 400) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw) + 3))
    mutated = bytes(raw[:cut]) + bytes(max(0, cut - len(raw)))

    verdict = validate_structure(mutated)
    if verdict.accepted:
        assert MsgHeader.decode(mutated).encode() == mutated
    else:
        with pytest.raises(HeaderError):
            MsgHeader.decode(mutated)


@given(st.binary(max_size=400))
@example(b"")
def test_random_bytes_are_no_header(data: bytes) -> None:
    """Random bytes raise HeaderError, nothing else (11-48)."""
    with pytest.raises(HeaderError):
        MsgHeader.decode(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@given(headers(), st.data(), json_values)
def test_mutated_json_decodes_or_says_why(
    header: MsgHeader, data: st.DataObject, value: object
) -> None:
    """A JSON object with any value in any field is a header or a HeaderError."""
    obj = header.to_json()
    obj[data.draw(st.sampled_from(sorted(obj)))] = value
    try:
        assert isinstance(MsgHeader.from_json(obj), MsgHeader)
    except HeaderError:
        return


@given(st.binary(max_size=300))
@example(bytes.fromhex("0001010014") + bytes(47))
def test_random_bytes_are_a_policy_or_an_error(data: bytes) -> None:
    """A policy that decodes encodes to the same bytes; anything else is PolicyError."""
    try:
        policy = NamespacePolicy.decode(data)
    except PolicyError:
        return
    assert policy.encode() == data
