"""Which candidates a slot keeps. Pure.

A slot is a (namespace, sequence). Each sender keeps its content with the lowest content id, and
the four senders with the lowest content ids stay. Both choices use the same order, so a candidate
that was dropped can never be wanted again: whatever it lost to is replaced only by something
lower still. The kept set of any messages is therefore the same in every order of arrival, and a
store needs to remember no more than the four.

*One order*: had each sender kept the content with the lowest headerHash, and senders been ranked by
content id, the outcome would depend on arrival: a sender whose later content has a lower hash but a
higher id falls behind a fifth sender that is already forgotten.

Source: decisions H17, J11, P27; 21-31.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from luxrelay.bus import ContentId

CANDIDATES_MAX: Final = 4
"""Senders a slot keeps (H17)."""


class Candidate(NamedTuple):
    """One content competing for a slot; ordered by content id."""

    content_id: ContentId
    """What is signed and who signed it."""
    sender: bytes
    """The senderPubKey field."""


class Equivocation(NamedTuple):
    """Two contents that one sender signed for one slot; each proves the other wrong (H17)."""

    held: bytes
    """The encoded header that was in the store."""
    came: bytes
    """The encoded header that came."""


def settle(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that stay, lowest content id first.

    ``settle(settle(a) + b) == settle(a + b)`` for all ``a`` and ``b``.
    """
    kept: list[Candidate] = []
    senders: set[bytes] = set()
    for candidate in sorted(candidates):
        if candidate.sender not in senders:
            senders.add(candidate.sender)
            kept.append(candidate)
    return kept[:CANDIDATES_MAX]
