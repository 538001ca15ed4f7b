"""Messages of ours that peers show to hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luxrelay.bus import VerdictKind
from luxrelay.errors import GossipArgumentError
from luxrelay.gossip import Echo, GossipParams

Kit = Any


def standing(kit: Kit, count: int = 3, **bounds: int) -> tuple[Any, str, list[Any]]:
    """Return a router that follows a topic, the topic, and peers that do, too."""
    desk = kit.Desk(replace(GossipParams(), **bounds))
    topic = kit.topic_of(1)
    desk.router.subscribe(topic, desk.now)
    return desk, topic, desk.peers(count, topic)


def publish(desk: Any, topic: str, data: bytes) -> list[Echo]:
    """Publish, and return whom that tells of."""
    desk.router.publish(topic, data, desk.now)
    echoes: list[Echo] = desk.drain().echo
    return echoes


def test_a_duplicate_of_ours_is_an_echo(kit: Kit) -> None:
    """Who sends our bytes back has them; it is told each time."""
    desk, topic, peers = standing(kit)
    data = kit.envelope(topic)
    assert publish(desk, topic, data) == []

    for _ in range(2):
        shown = desk.message(peers[1], topic, data).echo
        assert shown == [Echo(peer=peers[1], message_ids=(kit.id_of(data),))]
    assert desk.drain().echo == []


def test_an_announcement_of_ours_is_an_echo(kit: Kit) -> None:
    """An IHAVE that names our message is told, with each id once, and causes no IWANT."""
    desk, topic, peers = standing(kit)
    first, second = kit.envelope(topic, 1), kit.envelope(topic, 2)
    publish(desk, topic, first)
    publish(desk, topic, second)
    ids = [kit.id_of(first), kit.id_of(second), kit.id_of(first)]

    drained = desk.receive(peers[0], kit.frame(ihave=[(topic, ids)]))

    assert drained.echo == [Echo(peer=peers[0], message_ids=(ids[0], ids[1]))]
    assert drained.frames == {}


def test_messages_of_others_are_no_echo(kit: Kit) -> None:
    """Neither copies nor announcements of what a peer brought are told."""
    desk, topic, peers = standing(kit)
    data = kit.envelope(topic)
    desk.accept(peers[0], topic, data)

    assert desk.message(peers[1], topic, data).echo == []
    assert desk.receive(peers[2], kit.frame(ihave=[(topic, [kit.id_of(data)])])).echo == []


def test_an_id_on_another_topic_is_no_echo(kit: Kit) -> None:
    """What is known is known on its topic (G2)."""
    desk, topic, peers = standing(kit)
    other = kit.topic_of(2)
    desk.router.subscribe(other, desk.now)
    data = kit.envelope(topic)
    publish(desk, topic, data)

    assert desk.receive(peers[0], kit.frame(ihave=[(other, [kit.id_of(data)])])).echo == []


def test_who_brought_it_before_we_published_has_it(kit: Kit) -> None:
    """A copy that waits for its verdict while we publish the same bytes is an echo, too."""
    desk, topic, peers = standing(kit)
    data = kit.envelope(topic)
    (validate,) = desk.message(peers[2], topic, data).validate

    assert publish(desk, topic, data) == [Echo(peer=peers[2], message_ids=(kit.id_of(data),))]
    assert desk.message(peers[0], topic, data).echo[0].peer == peers[0]
    assert desk.verdict(validate, VerdictKind.ACCEPT).echo == []


def test_forget_the_oldest_of_ours(kit: Kit) -> None:
    """Beyond published_max the oldest is no longer told; the others are."""
    desk, topic, peers = standing(kit, published_max=2)
    ours = [kit.envelope(topic, seq) for seq in (1, 2, 3)]
    for data in ours:
        publish(desk, topic, data)
    ids = [kit.id_of(data) for data in ours]

    (announced,) = desk.receive(peers[0], kit.frame(ihave=[(topic, ids)])).echo
    sent = desk.receive(peers[1], kit.frame(messages=[(topic, data) for data in ours])).echo

    assert announced.message_ids == (ids[1], ids[2])
    assert sent == [Echo(peer=peers[1], message_ids=(ids[1], ids[2]))]


def test_published_max_is_positive() -> None:
    """No room at all is a mistake."""
    with pytest.raises(GossipArgumentError, match="published_max is 0"):
        GossipParams(published_max=0)
