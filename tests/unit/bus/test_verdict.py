"""Verdicts and their codes."""

from luxrelay.bus import ACCEPTED, Code, VerdictKind
from luxrelay.bus.verdict import ignore, reject


def test_lp_6400_codes_keep_their_numbers() -> None:
    """The eight codes of LP-6400 are 1001 to 1008 (S11, J10)."""
    assert [code.value for code in Code if 1001 <= code <= 1008] == list(range(1001, 1009))
    assert Code(1005) is Code.INVALID_SIGNATURE


def test_only_accept_is_accepted() -> None:
    """IGNORE and REJECT both keep a message out."""
    assert ACCEPTED.accepted
    assert not ignore(Code.DUPLICATE, "seen").accepted
    assert reject(Code.TRUNCATED, "cut").kind is VerdictKind.REJECT
