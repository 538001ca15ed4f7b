"""Room is made by the oldest of whoever is above, whole, and by nobody else."""

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.store import Lack, NamespaceQuery, PutOutcome, RelayStore

Opener = Callable[..., RelayStore]
STORED, FULL = PutOutcome.STORED, PutOutcome.FULL


@pytest.fixture
def size(forge: Any, open_store: Opener, now: int) -> int:
    """The logical bytes of one message of the forge's default form."""
    probe = open_store("probe")
    probe.put_many([forge.in_lane(1, 1)], now)
    return probe.stats().size_bytes


def sequences(store: RelayStore, namespace: Any, now: int) -> list[int]:
    """Return the sequences a namespace serves."""
    page = store.query(NamespaceQuery(namespace_id=namespace), now)
    assert not page.has_more
    return [message.seq for message in page.messages]


def test_a_full_quota_forgets_its_oldest(
    forge: Any, open_store: Opener, size: int, now: int
) -> None:
    """At its quota a namespace keeps its newest; others are untouched (21-03, 21-05, P2)."""
    store = open_store(namespace_quota_bytes=20 * size)
    quiet = [forge.message(seq, sender=2, namespace=forge.lane(2), at=now) for seq in (1, 2)]
    loud = [forge.message(seq, namespace=forge.lane(1), at=now + seq) for seq in range(1, 101)]
    store.put_many(quiet, now)

    assert store.put_many(loud, now + 100) == [STORED] * 100
    held = sequences(store, forge.lane(1), now + 100)
    assert held == list(range(held[0], 101))
    assert 18 <= len(held) <= 20
    assert sequences(store, forge.lane(2), now) == [1, 2]
    head = store.head(forge.lane(1))
    assert (head.floor, head.earliest_seq, head.contiguous_seq) == (held[0] - 1, held[0], 100)
    assert store.gaps(forge.lane(1)) == []
    assert store.stats().evicted[Lack.ACCOUNT] == 100 - len(held)
    assert store.verify() == []


def test_a_quota_of_zero_denies(forge: Any, open_store: Opener, now: int) -> None:
    """An explicit 0 stores nothing of a namespace; an unlisted one is accepted (21-04, P1)."""
    store = open_store(namespace_quotas={forge.lane(1): 0})

    assert store.put_many([forge.in_lane(1, 1), forge.in_lane(1, 2)], now) == [FULL, STORED]
    assert store.stats().refused[Lack.DENIED] == 1


def test_refuse_instead_when_configured(
    forge: Any, open_store: Opener, size: int, now: int
) -> None:
    """With when_full = refuse the old stay and the new are FULL (P2)."""
    store = open_store(namespace_quota_bytes=3 * size, when_full="refuse")
    outcomes = store.put_many([forge.in_lane(seq, 1) for seq in range(1, 6)], now)

    assert outcomes == [STORED] * 3 + [FULL] * 2
    assert sequences(store, forge.lane(1), now) == [1, 2, 3]
    assert store.stats().refused[Lack.ACCOUNT] == 2


WHY_FULL = {
    "quota": "its namespace holds {held} of {held} bytes, the message takes {size} and",
    "store": "the store holds {held} of {held} bytes, the message takes {size} and",
    "denied": "the message takes {size} bytes, its namespace's quota is 0 (P1)",
    "namespaces": "the store has 2 namespaces, the most (namespaces_max)",
}


@pytest.mark.parametrize("full", WHY_FULL)
def test_what_found_no_room_is_told_with_the_bytes(
    forge: Any, open_store: Opener, size: int, now: int, full: str
) -> None:
    """A quota, one of zero, a store that is full and too many namespaces: each by number."""
    bounds: dict[str, Any] = {
        "quota": {"namespace_quotas": {forge.lane(1): 2 * size}},
        "store": {"max_storage_bytes": 2 * size},
        "denied": {"namespace_quotas": {forge.lane(1): 0}},
        "namespaces": {"namespaces_max": 2},
    }[full]
    store = open_store(when_full="refuse", **bounds)
    lanes = (2, 3, 1) if full == "namespaces" else (1, 1, 1)
    messages = [forge.in_lane(seq, name) for seq, name in enumerate(lanes, 1)]

    *_, last = store.put_many(messages, now)

    assert last is FULL
    words = WHY_FULL[full].format(held=f"{store.stats().size_bytes:,}", size=f"{size:,}")
    assert store.why_full(messages[-1]).startswith(words)


def test_refusing_forgets_nothing_in_a_cycle_either(
    forge: Any, open_store: Opener, size: int, now: int
) -> None:
    """With when_full = refuse a smaller quota takes nothing that is there (P2)."""
    store = open_store()
    store.put_many([forge.in_lane(seq, 1) for seq in range(1, 6)], now)
    store.close()
    again = open_store(
        namespace_quota_bytes=3 * size, max_storage_bytes=4 * size, when_full="refuse"
    )

    assert again.expire(now).removed_count == 0
    assert again.put_many([forge.in_lane(6, 1)], now) == [FULL]
    assert sequences(again, forge.lane(1), now) == [1, 2, 3, 4, 5]


def test_a_lane_that_joins_a_full_account_is_relieved_by_the_cycle(
    forge: Any, open_store: Opener, size: int, now: int
) -> None:
    """Bytes that move into an account may lift it above its quota until the next cycle (J6)."""
    store = open_store(namespace_quota_bytes=10 * size)
    store.put_many([forge.in_lane(seq, 1) for seq in range(1, 9)], now)
    alone = [forge.message(seq, sender=2, namespace=forge.lane(2)) for seq in range(1, 7)]
    store.put_many(alone, now)
    store.skip_to(forge.lane(2), forge.in_lane(1, 1).parent, 1)
    assert store.stats().messages == 14

    assert store.expire(now).removed_count == 5
    assert store.stats().size_bytes <= 9 * size
    assert store.verify() == []


def test_a_flooding_lane_pays_before_the_others(
    forge: Any, open_store: Opener, size: int, now: int
) -> None:
    """Lanes share a quota, and the largest of them makes the room (P13, J6)."""
    store = open_store(namespace_quota_bytes=40 * size, gc_chunk_size=4)
    for sender in (1, 2, 3):
        store.put_many([forge.in_lane(seq, sender) for seq in range(1, 6)], now)

    assert store.put_many([forge.in_lane(seq, 4) for seq in range(1, 101)], now) == [STORED] * 100
    for sender in (1, 2, 3):
        assert sequences(store, forge.lane(sender), now) == [1, 2, 3, 4, 5]
    assert sequences(store, forge.lane(4), now)[-1] == 100
    assert store.stats().size_bytes <= 40 * size
    assert store.verify() == []


def test_an_old_message_makes_nobody_leave(
    forge: Any, open_store: Opener, size: int, now: int
) -> None:
    """What would be the next to go is refused, so two peers do not push the same in and out."""
    store = open_store(namespace_quota_bytes=10 * size)
    store.put_many([forge.in_lane(seq, 1) for seq in range(1, 11)], now)
    store.put_many([forge.in_lane(11, 1)], now)
    before = sequences(store, forge.lane(1), now)
    fill = [forge.in_lane(seq, 1) for seq in range(12, 12 + 10 - len(before))]
    store.put_many(fill, now)
    assert store.stats().messages == 10

    assert store.put_many([forge.in_lane(1, 1)], now) == [FULL]
    assert store.stats().messages == 10


def test_a_full_store_forgets_its_oldest(
    forge: Any, open_store: Opener, size: int, now: int
) -> None:
    """Twice the capacity comes in; the newest stay, whole, within the bound (21-11)."""
    store = open_store(max_storage_bytes=40 * size, gc_chunk_size=5)
    messages = [
        forge.in_lane(seq, sender, at=now + 10 * seq + sender)
        for seq in range(1, 21)
        for sender in (1, 2, 3, 4)
    ]

    assert store.put_many(messages, now) == [STORED] * 80
    assert store.stats().size_bytes <= 40 * size
    oldest = store.stats().oldest_timestamp
    kept = [m for m in messages if m.header.timestamp >= oldest]
    assert store.stats().messages == len(kept)
    assert all(store.has(message.header.content_id) for message in kept)
    assert store.stats().evicted[Lack.STORE] == 80 - len(kept)
    assert store.verify() == []


def test_a_message_older_than_a_full_store_is_refused(
    forge: Any, open_store: Opener, size: int, now: int
) -> None:
    """A message older than everything would be the next to go (P13)."""
    store = open_store(max_storage_bytes=5 * size)
    store.put_many([forge.in_lane(seq, 1, at=now + seq) for seq in range(2, 7)], now)

    assert store.put_many([forge.in_lane(1, 2, at=now)], now) == [FULL]
    assert store.stats().refused[Lack.STORE] == 1


def test_the_expired_go_first(forge: Any, open_store: Opener, size: int, now: int) -> None:
    """A full store forgets what is past its time before anything else (P13)."""
    store = open_store(max_storage_bytes=10 * size)
    store.put_many([forge.in_lane(seq, 1, at=now) for seq in range(1, 6)], now)
    later = now + 600_000
    fresh = [forge.in_lane(seq, 2, at=later - 1) for seq in range(1, 6)]
    store.put_many(fresh, later - 1)

    assert store.put_many([forge.in_lane(6, 2, at=later)], later) == [STORED]
    assert sequences(store, forge.lane(2), later) == [1, 2, 3, 4, 5, 6]
    assert (store.stats().removed, store.stats().evicted[Lack.STORE]) == (5, 0)


def test_an_account_above_its_quota_pays_before_the_store(
    forge: Any, open_store: Opener, size: int, now: int
) -> None:
    """After a quota was made smaller its account makes room for all (P13)."""
    store = open_store(max_storage_bytes=20 * size)
    store.put_many([forge.message(1, namespace=forge.lane(2), at=now - 5)], now)
    loud = [forge.message(seq, namespace=forge.lane(1), at=now) for seq in range(1, 20)]
    store.put_many(loud, now)
    store.close()
    again = open_store(max_storage_bytes=20 * size, namespace_quotas={forge.lane(1): 10 * size})

    assert again.put_many([forge.message(2, namespace=forge.lane(2))], now) == [STORED]
    assert sequences(again, forge.lane(2), now) == [1, 2]
    assert again.head(forge.lane(1)).size_bytes <= 10 * size


def test_the_cycle_brings_what_was_full_to_the_low_water_mark(
    forge: Any, open_store: Opener, size: int, now: int
) -> None:
    """After a put made room by one chunk the cycle goes on to 90 % and stops there (21-11, P13)."""
    store = open_store(namespace_quota_bytes=100 * size, gc_chunk_size=2)
    store.put_many([forge.in_lane(seq, 1) for seq in range(1, 102)], now)
    assert store.stats().messages == 99
    stats = store.expire(now)

    assert (stats.removed_count, stats.namespaces_processed, stats.hit_limit) == (9, 1, False)
    assert store.stats().messages == 90
    assert store.expire(now).removed_count == 0
    assert store.verify() == []


def test_the_cycle_relieves_the_store(forge: Any, open_store: Opener, size: int, now: int) -> None:
    """The same for the store as a whole, and for one opened with a smaller bound."""
    store = open_store()
    store.put_many([forge.in_lane(seq, 1, at=now + seq) for seq in range(1, 51)], now)
    store.close()
    again = open_store(max_storage_bytes=20 * size, gc_batch_limit=10)

    assert again.expire(now).hit_limit
    while again.expire(now).hit_limit:
        pass
    assert sequences(again, forge.lane(1), now + 50) == list(range(33, 51))
    assert again.verify() == []


def test_one_large_message_needs_several_runs(forge: Any, open_store: Opener, now: int) -> None:
    """A blob larger than one chunk frees is stored after several chunks."""
    store = open_store(max_storage_bytes=60_000, gc_chunk_size=3)
    store.put_many([forge.in_lane(seq, 1) for seq in range(1, 80)], now)

    assert store.put_many([forge.in_lane(1, 2, blob=bytes(40_000))], now) == [STORED]
    assert store.stats().size_bytes <= 60_000
    assert store.verify() == []


def test_a_message_above_every_quota_evicts_nothing(
    forge: Any, open_store: Opener, size: int, now: int
) -> None:
    """What could never fit makes nobody leave, be it the quota or the store (21-47)."""
    for name, bound in (("quota", "namespace_quota_bytes"), ("store", "max_storage_bytes")):
        store = open_store(name, **{bound: 10 * size})
        store.put_many([forge.in_lane(1, 1)], now)

        assert store.put_many([forge.in_lane(2, 1, blob=bytes(20 * size))], now) == [FULL]
        assert store.stats().messages == 1


def test_an_equivocation_is_counted_once_when_room_is_made(
    forge: Any, open_store: Opener, size: int, now: int
) -> None:
    """A message placed again after an eviction is one event (H17)."""
    store = open_store(namespace_quota_bytes=4 * size)
    store.put_many([forge.in_lane(seq, 1) for seq in (1, 2, 3, 4)], now)
    rivals = sorted(
        (forge.in_lane(4, 1, nonce=nonce, blob=bytes(100)) for nonce in range(1, 9)),
        key=lambda message: message.header.content_id,
    )
    held = forge.in_lane(4, 1).header.content_id
    lower = [rival for rival in rivals if rival.header.content_id < held]
    if lower:
        assert store.put_many(lower[:1], now) == [STORED]
    else:
        assert store.put_many(rivals[:1], now) == [PutOutcome.LOST_SLOT]

    assert store.stats().equivocations == 1
    assert store.verify() == []
