"""Counters."""

from __future__ import annotations

from typing import Any

Kit = Any


def test_stats_are_copies(kit: Kit) -> None:
    """A snapshot does not change afterwards, and changing it changes nothing."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    before = desk.router.stats()

    desk.message(peer, topic, kit.envelope(topic))
    before.peers[peer].received += 5
    before.duplicates += 5

    after = desk.router.stats()
    assert (before.received, after.received) == (0, 1)
    assert (after.peers[peer].received, after.duplicates) == (1, 0)
    assert after.mesh == {topic: 1}
