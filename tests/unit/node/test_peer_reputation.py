"""Penalties of sync peers."""

from __future__ import annotations

import pytest

from luxrelay.conduct import Cause
from luxrelay.node.peer_reputation import (
    DAMAGED,
    FORGED,
    HALF_LIFE_MS,
    PEERS_MAX,
    PENALTY_MAX,
    UNUSABLE,
    PeerStanding,
)
from luxrelay.sync.report import PeerReport


def test_a_liar_is_asked_last_and_forgiven_slowly() -> None:
    """21-28: what was forged and withheld counts, and halves with the time."""
    standing = PeerStanding()

    added = standing.note(PeerReport(peer="liar", rejected=3, withheld=7, unusable=1), 0)

    assert added == 3 * FORGED + 7 + UNUSABLE
    assert standing.order(["liar", "b", "a"], 0) == ["b", "a", "liar"]
    assert standing.penalty("liar", HALF_LIFE_MS) == pytest.approx(added / 2)
    assert standing.order(["liar", "a"], 20 * HALF_LIFE_MS) == ["liar", "a"]


def test_good_conduct_adds_nothing_and_penalties_are_bounded() -> None:
    """A peer that delivers has no penalty; the worst one owes PENALTY_MAX."""
    standing = PeerStanding()

    assert standing.note(PeerReport(peer="good", stored=10, failures=2), 0) == 0
    standing.note(PeerReport(peer="bad", rejected=10**9), 0)

    assert standing.penalty("good", 0) == 0
    assert standing.penalty("bad", 0) == PENALTY_MAX
    assert standing.penalty("bad", -5) == PENALTY_MAX


def test_identities_are_free_and_memory_is_not() -> None:
    """Beyond PEERS_MAX the liar that was last heard of longest ago is forgotten."""
    standing = PeerStanding()
    standing.note(PeerReport(peer="first", rejected=1), 0)
    standing.note(PeerReport(peer="second", rejected=1), 0)
    standing.note(PeerReport(peer="first", rejected=1), 0)

    for number in range(PEERS_MAX - 1):
        standing.note(PeerReport(peer=f"p2p:{number}", rejected=1), 0)

    assert standing.penalty("second", 0) == 0
    assert standing.penalty("first", 0) == 2 * FORGED


def test_damage_over_a_plain_connection_is_no_lie() -> None:
    """What a network can do costs a place in the order and little more (G38)."""
    standing = PeerStanding()
    report = PeerReport(peer="far", rejected=2, unusable=1)

    assert standing.note(report, 0, Cause.ANSWER_DAMAGED) == 3 * DAMAGED
    assert standing.note(report, 0, Cause.ANSWER_FORGED) == 2 * FORGED + UNUSABLE
    assert standing.order(["far", "near"], 0) == ["near", "far"]
