"""The strategies give what they promise."""

from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import MsgHeader, NamespacePolicy, validate_structure, verify_header
from luxrelay.bus.sidecar import TFHESidecar
from luxrelay.testing import strategies as ours


@given(ours.headers())
def test_headers_are_well_formed(header: MsgHeader) -> None:
    """Every rule of structure holds (11-03)."""
    assert validate_structure(header.encode()).accepted


@given(ours.signed_headers())
def test_signed_headers_verify(header: MsgHeader) -> None:
    """Their signature holds."""
    assert verify_header(header)


@given(ours.policies())
def test_policies_come_back(policy: NamespacePolicy) -> None:
    """Decode inverts encode."""
    assert NamespacePolicy.decode(policy.encode()) == policy


@given(ours.sidecars)
def test_sidecars_come_back(sidecar: TFHESidecar) -> None:
    """Decode inverts encode."""
    assert TFHESidecar.decode(sidecar.encode()) == sidecar


@given(st.data(), st.binary(min_size=1, max_size=300))
def test_mutated_stays_near(data: st.DataObject, raw: bytes) -> None:
    """A mutation is at most 41 bytes longer."""
    assert len(data.draw(ours.mutated(raw))) <= len(raw) + 41
