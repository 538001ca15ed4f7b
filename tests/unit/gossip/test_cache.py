"""The caches, one by one."""

from __future__ import annotations

from luxrelay.bus import MessageId, VerdictKind
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.rpc import decode_rpc, encode_message
from luxrelay.gossip.seen import (
    CachedMessage,
    EnvelopeDigest,
    FailureCache,
    MessageCache,
    OnceSet,
    SeenSet,
    Slot,
)


def slot(number: int, topic: str = "/a") -> Slot:
    """Return a slot."""
    return (topic, MessageId(bytes([number]) * 32))


def digest(number: int) -> EnvelopeDigest:
    """Return a digest."""
    return EnvelopeDigest(bytes([number]) * 32)


def cached(number: int, topic: str = "/a", size: int = 100) -> CachedMessage:
    """Return a message of about ``size`` bytes."""
    return CachedMessage(topic, slot(number)[1], encode_message(topic, bytes(size)))


def seen(entries_max: int = 10) -> SeenSet:
    """Return an empty set with a time of 5 s and 2 envelopes a slot."""
    return SeenSet(ttl_s=5, entries_max=entries_max, digests_max=2)


def test_a_slot_takes_so_many_envelopes() -> None:
    """digests_max distinct envelopes share a slot, one more is refused (G1)."""
    known = seen()

    assert [known.add(slot(1), digest(n), 0) for n in (1, 1, 2, 3)] == [True, False, True, False]
    assert known.full(slot(1))
    assert not known.full(slot(2))
    assert known.has_digest(digest(2))
    assert not known.has_digest(digest(3))


def test_the_topic_is_part_of_the_slot() -> None:
    """An id known on one topic is unknown on another (G2)."""
    known = seen()
    known.add(slot(1), digest(1), 0)

    assert known.has(slot(1))
    assert not known.has(slot(1, "/b"))


def test_a_slot_is_forgotten_after_its_time() -> None:
    """A later envelope does not prolong the life of a slot."""
    known = seen()
    known.add(slot(1), digest(1), 0)
    known.add(slot(2), digest(2), 3)
    known.add(slot(1), digest(3), 4)

    known.expire(5)

    assert not known.has(slot(1))
    assert not known.has_digest(digest(3))
    assert known.has(slot(2))


def test_a_copy_of_accepted_bytes_prolongs_the_life_of_its_slot() -> None:
    """What keeps coming stays known; the order of forgetting follows the last sight."""
    known = seen()
    known.add(slot(1), digest(1), 0)
    known.add(slot(2), digest(2), 0)
    for now in range(3, 30, 3):
        assert known.sighted(digest(1), now) == slot(1)
        known.expire(now)
        assert known.has_digest(digest(1))
    assert not known.has(slot(2))
    known.expire(31)
    assert known.has(slot(1))
    known.expire(32)
    assert len(known) == 0


def test_a_copy_soon_after_the_first_changes_nothing() -> None:
    """Copies of the first moments cost a look and no more; unknown bytes prolong nothing."""
    known = seen()
    known.add(slot(1), digest(1), 0)

    assert known.sighted(digest(1), 1) is None
    assert known.sighted(digest(9), 4) is None
    known.expire(5)
    assert len(known) == 0


def test_nobody_keeps_a_full_slot_alive() -> None:
    """A slot that takes no further envelope is forgotten in time, or it would shut others out."""
    known = seen()
    known.add(slot(1), digest(1), 0)
    known.add(slot(1), digest(2), 0)

    assert known.sighted(digest(1), 4) is None
    known.expire(5)
    assert not known.has(slot(1))
    assert not known.has_digest(digest(2))


def test_the_seen_set_forgets_the_oldest_beyond_its_limit() -> None:
    """seen_max slots are known at once."""
    known = seen(entries_max=2)
    for n in range(3):
        known.add(slot(n), digest(n), n)

    assert len(known) == 2
    assert not known.has_digest(digest(0))


def test_an_id_is_delivered_once() -> None:
    """Known until its time is over or newer ids push it out."""
    once = OnceSet(ttl_s=5, entries_max=2)
    ids = [slot(n)[1] for n in range(3)]

    assert [once.add(ids[0], 0), once.add(ids[0], 1), once.add(ids[1], 1)] == [True, False, True]
    assert once.add(ids[2], 2)
    assert len(once) == 2
    once.expire(6)
    assert len(once) == 1
    once.expire(7)
    assert len(once) == 0


def test_a_failure_is_known_by_its_bytes_for_a_while() -> None:
    """The same bytes fail the same way until their time is over (G1)."""
    failures = FailureCache(entries_max=2)
    failures.add(digest(1), VerdictKind.REJECT, 10)
    failures.add(digest(2), VerdictKind.IGNORE, 2)

    assert failures.verdict(digest(1), 9) is VerdictKind.REJECT
    assert failures.verdict(digest(2), 2) is None
    failures.add(digest(1), VerdictKind.REJECT, 12)
    failures.expire(3)
    assert len(failures) == 1
    for n in (3, 4):
        failures.add(digest(n), VerdictKind.REJECT, 20)
    assert len(failures) == 2
    assert failures.verdict(digest(1), 9) is None


def test_a_message_can_be_asked_for_as_long_as_its_window() -> None:
    """history_length heartbeats after its own the cache does not have it (20-17)."""
    cache = MessageCache(length=5, gossip=3, messages_max=10, bytes_max=10_000)
    cache.put(cached(1))

    held, announced = [], []
    for _ in range(6):
        held.append(bool(cache.get(slot(1)[1])))
        announced.append(bool(cache.recent()))
        cache.shift()

    assert held == [True] * 5 + [False]
    assert announced == [True] * 3 + [False] * 3
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_recent_ids_are_distinct_and_by_topic() -> None:
    """An id is announced once a topic, however many envelopes share it."""
    cache = MessageCache(length=5, gossip=3, messages_max=10, bytes_max=10_000)
    for message in (cached(1), cached(1), cached(1, "/b"), cached(2)):
        cache.put(message)

    assert cache.recent() == {("/a", ""): [slot(1)[1], slot(2)[1]], ("/b", ""): [slot(1)[1]]}
    assert [message.topic for message in cache.get(slot(1)[1])] == ["/a", "/a", "/b"]


def test_the_cache_is_bounded_in_messages_and_bytes() -> None:
    """cache_messages_max and cache_bytes_max hold; the oldest goes first."""
    cache = MessageCache(length=3, gossip=3, messages_max=3, bytes_max=1_000)
    for n in range(3):
        cache.put(cached(n))
        cache.shift() if n == 0 else None

    cache.put(cached(3))
    assert len(cache) == 3
    assert cache.get(slot(0)[1]) == []

    cache.put(cached(4, size=900))
    assert cache.size_bytes <= 1_000
    assert cache.get(slot(4)[1])


def test_a_message_is_encoded_once_a_spelling() -> None:
    """All peers of a spelling share the same bytes (G5)."""
    message = CachedMessage("/a", slot(1)[1], encode_message("/a", b"x"))

    assert message.wire("/a") is message.wire("/a")
    assert message.wire("/b") is message.wire("/b")
    assert decode_rpc(message.wire("/b"), GossipParams()).messages == [("/b", b"x")]
