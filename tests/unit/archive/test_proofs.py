"""Day roots and proofs of inclusion."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from luxrelay.archive.proofs import day_root, leaf, prove, seal
from luxrelay.errors import ArchiveArgumentError

NS = b"n" * 20


def _day(count: int) -> list[tuple[int, bytes]]:
    return [(seq, hashlib.sha3_256(b"%d" % seq).digest()) for seq in range(1, count + 1)]


def _slow_top(leaves: list[bytes]) -> bytes:
    """RFC 9162 as it is written: split at the largest power of two below the count."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    joined = _slow_top(leaves[:split]) + _slow_top(leaves[split:])
    return hashlib.sha3_256(b"\x01" + joined).digest()


@pytest.mark.parametrize("count", range(1, 34))
def test_every_message_of_a_day_is_proven(count: int) -> None:
    """Root and proofs agree with the recursive definition for every size and place."""
    day = _day(count)
    root = day_root(NS, 19_723, reversed(day))

    assert root == seal(NS, 19_723, count, _slow_top([leaf(*each) for each in day]))
    for each in day:
        proof = prove(NS, 19_723, day, each)
        assert proof.holds(*each, root)
        assert proof.index == each[0] - 1


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 13])
def test_a_false_proof_does_not_hold(count: int) -> None:
    """Another message, place, day, namespace, count or sibling leads elsewhere or nowhere."""
    day = _day(count)
    root = day_root(NS, 5, day)
    proof = prove(NS, 5, day, day[0])
    stranger = (1, b"\x07" * 32)

    assert not proof.holds(*stranger, root)
    assert not proof.holds(2, day[0][1], root)
    for change in ({"day": 6}, {"namespace": b"m" * 20}, {"count": count + 1}, {"index": count}):
        assert not replace(proof, **change).holds(*day[0], root)  # type: ignore[arg-type]
    assert not replace(proof, path=(*proof.path, b"\x01" * 32)).holds(*day[0], root)
    assert not replace(proof, path=(b"x", *proof.path[1:])).holds(*day[0], root)
    if count > 1:
        assert not replace(proof, path=proof.path[:-1]).holds(*day[0], root)
        assert not replace(proof, index=1).holds(*day[0], root)


def test_a_proof_has_a_bound() -> None:
    """A path longer than any tree is refused before it is hashed."""
    proof = replace(prove(NS, 5, _day(2), _day(2)[0]), path=(b"\x00" * 32,) * 65, count=2**63)

    assert proof.root(*_day(2)[0]) is None


def test_refuse_what_is_not_there() -> None:
    """An empty day has no root, and a stranger no proof."""
    with pytest.raises(ArchiveArgumentError, match="no root"):
        day_root(NS, 5, [])
    with pytest.raises(ArchiveArgumentError, match="not of that day"):
        prove(NS, 5, _day(3), (9, b"\x00" * 32))
