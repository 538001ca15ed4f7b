"""Counters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luxrelay.bus import VerdictKind
from luxrelay.gossip import GossipParams
from luxrelay.gossip.stats import Histogram

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


def test_topics_are_counted_while_they_are_followed(kit: Kit) -> None:
    """What a topic counted goes when we leave it, and late verdicts do not bring it back."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    (validate,) = desk.message(peer, topic, kit.envelope(topic)).validate
    assert desk.router.stats().topics[topic].received == 1

    desk.router.unsubscribe(topic, desk.now)
    desk.verdict(validate, VerdictKind.REJECT)

    assert desk.router.stats().topics == {}


def test_topics_we_only_publish_to_are_counted_up_to_a_bound(kit: Kit) -> None:
    """Up to topics_max of them, and always those that we follow (20-42, 20-58)."""
    desk = kit.Desk(replace(GossipParams(), topics_max=2))
    for number in range(10):
        topic = kit.topic_of(number)
        desk.router.publish(topic, kit.envelope(topic, number), desk.now)

    assert (len(desk.router.stats().topics), desk.router.stats().published) == (2, 10)
    for number in (11, 12):
        desk.router.subscribe(kit.topic_of(number), desk.now)
    assert len(desk.router.stats().topics) == 4
    (peer,) = desk.peers(1, topic := kit.topic_of(12))
    desk.accept(peer, topic, kit.envelope(topic, 99))
    assert desk.router.stats().topics[topic].accepted == 1


def test_a_histogram_counts_by_class() -> None:
    """Bounds are inclusive, what is above all of them has a class of its own."""
    found = Histogram.of((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        found.observe(value)
    copy = found.copy()
    found.observe(1.0)

    assert (copy.counts, copy.total) == ([2, 2, 1], 14.0)


def test_connections_that_end_are_measured(kit: Kit) -> None:
    """How long they lasted, by our clock (20-43)."""
    desk = kit.Desk()
    (peer,) = desk.peers(1)
    desk.now += 100
    desk.router.peer_disconnected(peer, desk.now)

    assert desk.router.stats().durations_s.total == pytest.approx(100, abs=1)
