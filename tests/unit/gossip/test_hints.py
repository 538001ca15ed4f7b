"""Hints that are renewed under one id."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luxrelay.bus import MessageId, VerdictKind
from luxrelay.gossip import (
    BlobAvailabilityHint,
    GossipParams,
    MessageType,
    RelayMessage,
    TopicKind,
    global_topic,
)
from luxrelay.gossip.seen import EnvelopeDigest, HintSet, Slot

Kit = Any
TOPIC = global_topic("testnet", TopicKind.BLOBS_AVAILABLE)
SLOT: Slot = (TOPIC, MessageId(b"i" * 32))


def hint(*providers: bytes, expires: int = 1_000_000) -> BlobAvailabilityHint:
    """Return a hint of one blob."""
    return BlobAvailabilityHint(
        commitment=b"c" * 32,
        blob_len=5,
        providers=providers or (b"one",),
        expires_at_ms=expires,
    )


def envelope(*providers: bytes, expires: int = 1_000_000) -> bytes:
    """Return the hint in its envelope."""
    payload = hint(*providers, expires=expires).encode()
    return RelayMessage(type=MessageType.BLOB_HINT, topic=TOPIC, payload=payload).encode()


def desk_on(kit: Kit, params: GossipParams | None = None) -> Any:
    """Return a router that follows the hints, and its peers."""
    desk = kit.Desk(params)
    desk.router.subscribe(TOPIC, desk.now)
    return desk, desk.peers(3, TOPIC)


@pytest.mark.parametrize(
    ("second", "news"),
    [
        (envelope(expires=1_059_999), False),
        (envelope(expires=1_060_000), True),
        (envelope(b"one", expires=5), False),
        (envelope(b"two"), True),
        (envelope(b"one", b"two", expires=5), True),
    ],
)
def test_a_refreshed_hint_propagates(kit: Kit, second: bytes, news: bool) -> None:
    """A minute more or a new provider is news; anything else is a copy (20-24, G3)."""
    desk, peers = desk_on(kit)
    desk.accept(peers[0], TOPIC, envelope())

    validations = desk.message(peers[0], TOPIC, second).validate

    assert bool(validations) == news
    assert desk.router.stats().duplicates == (not news)
    for validate in validations:
        spread = desk.verdict(validate, VerdictKind.ACCEPT)
        assert spread.receivers(second) == {peers[1], peers[2]}
        assert [d.data for d in spread.deliver] == [second]


def test_a_rejected_hint_teaches_nothing(kit: Kit) -> None:
    """A forged hint with a far expiry and many providers does not silence true ones (G1, G3)."""
    desk, peers = desk_on(kit)
    (validate,) = desk.message(peers[0], TOPIC, envelope(b"one", b"two", expires=2**63)).validate
    desk.verdict(validate, VerdictKind.REJECT)

    assert len(desk.message(peers[1], TOPIC, envelope(b"two")).validate) == 1


def test_renewals_are_bounded(kit: Kit) -> None:
    """hint_renewals_max hints of a blob in hint_ttl_s, then again (20-24, G3)."""
    desk, peers = desk_on(kit, replace(GossipParams(), hint_renewals_max=3))
    seen = []
    for number in range(6):
        seen.append(len(desk.message(peers[0], TOPIC, envelope(b"p%d" % number)).validate))
        for token in range(1, 10):
            desk.router.validated(token, VerdictKind.ACCEPT, desk.now)
    assert seen == [1, 1, 1, 0, 0, 0]

    desk.now += desk.params.hint_ttl_s
    desk.heartbeat()
    assert len(desk.message(peers[0], TOPIC, envelope(b"p0")).validate) == 1


def test_our_own_hints_are_known(kit: Kit) -> None:
    """What we published is no news when others bring it, and a renewal of ours is sent (20-24)."""
    desk, peers = desk_on(kit)

    assert desk.router.publish(TOPIC, envelope(), desk.now) == 3
    assert desk.router.publish(TOPIC, envelope(b"two"), desk.now) == 3
    assert desk.router.publish(TOPIC, envelope(b"two"), desk.now) == 0
    assert desk.message(peers[0], TOPIC, envelope(b"one", b"two", expires=4)).validate == []


def test_what_is_forgotten_is_news_again() -> None:
    """The set remembers what a slot promised as long as the slot, and no longer."""
    hints = HintSet(ttl_s=30.0, entries_max=2, renewals_max=4)
    digests = [EnvelopeDigest(bytes([n])) for n in range(4)]

    assert hints.learn(SLOT, digests[0], hint(), 0.0)
    assert not hints.learn(SLOT, digests[0], hint(b"new"), 0.0)
    assert not hints.news(SLOT, hint())
    for number in (1, 2):
        hints.learn((TOPIC, MessageId(bytes([number]) * 32)), digests[number], hint(), 1.0)
    assert hints.news(SLOT, hint())
    assert len(hints._known) == len(hints) == 2
    hints.expire(31.0)
    assert len(hints._known) == len(hints) == 0
