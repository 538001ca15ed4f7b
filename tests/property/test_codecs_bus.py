"""Laws of the bus's codecs over random and mutated bytes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from luxrelay.bus import MsgHeader, NamespacePolicy, validate_structure
from luxrelay.errors import HeaderError, PolicyError
from luxrelay.testing.strategies import headers, policies


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


@given(policies())
def test_policy_round_trip(policy: NamespacePolicy) -> None:
    """decode(encode(p)) == p, and the hash is that of the bytes (11-23)."""
    assert NamespacePolicy.decode(policy.encode()) == policy


@given(st.binary(max_size=300))
@example(bytes.fromhex("0001010014") + bytes(47))
def test_random_bytes_are_a_policy_or_an_error(data: bytes) -> None:
    """A policy that decodes encodes to the same bytes; anything else is PolicyError."""
    try:
        policy = NamespacePolicy.decode(data)
    except PolicyError:
        return
    assert policy.encode() == data
