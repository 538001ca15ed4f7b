"""Valid messages and broken headers."""

from itertools import pairwise

import pytest

from luxrelay.bus import Code, SignatureScheme, check_blob, validate_structure, verify_header
from luxrelay.bus.structure import REASONS
from luxrelay.testing import breakages, message_line, shaped_header, signing_key


def test_a_line_is_valid() -> None:
    """Sequences rise by one, timestamps do not fall, signatures and blobs hold."""
    messages = list(message_line(4, first_seq=9))

    assert [message.header.seq for message in messages] == [9, 10, 11, 12]
    assert all(verify_header(message.header) for message in messages)
    assert all(check_blob(message.header, message.blob).accepted for message in messages)
    assert all(a.header.timestamp <= b.header.timestamp for a, b in pairwise(messages))


@pytest.mark.parametrize("scheme", SignatureScheme)
def test_keys_and_shapes_of_every_scheme(scheme: SignatureScheme) -> None:
    """A scheme and a number are one key; shaped headers are well-formed."""
    assert signing_key(scheme).public_field == signing_key(scheme).public_field
    assert signing_key(scheme, 2).public_field != signing_key(scheme).public_field
    for sidecar in (False, True):
        assert validate_structure(shaped_header(scheme, sidecar=sidecar).encode()).accepted


def test_breakages_cover_every_structural_rule() -> None:
    """At least sixty ways, each named once, together every code of the tables (11-50)."""
    broken = breakages()

    assert len(broken) >= 60
    assert len({breakage.name for breakage in broken}) == len(broken)
    assert {breakage.code for breakage in broken} == set(REASONS)
    assert all(breakage.code is not Code.OK for breakage in broken)
