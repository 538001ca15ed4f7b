"""The hot cache keeps the youngest within three bounds and is never behind the database."""

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.store import RelayStore, RelayStoreConfig
from luxrelay.store.ledger import ENTRY_BYTES, HitRate, HotCache
from luxrelay.store.rocks import RocksTable

Opener = Callable[..., RelayStore]
NOW = 1_764_000_000_000


def row(size: int = 100, at: int = NOW) -> bytes:
    """Return a row of ``size`` bytes that arrived at ``at``."""
    return at.to_bytes(8, "big") + bytes(size - 8)


def cache(**bounds: int) -> HotCache:
    """Return a cache with bounds."""
    return HotCache(RelayStoreConfig(**bounds))  # type: ignore[arg-type]  # by name


def test_the_defaults_are_those_of_the_document() -> None:
    """100,000 messages, one minute; 128 MiB are ours (21-01, P30)."""
    config = RelayStoreConfig()

    assert (config.hot_messages_max, config.hot_ttl_ms) == (100_000, 60_000)
    assert config.hot_bytes_max == 128 * 1024**2


def test_bounded_by_count() -> None:
    """One slot more pushes out the oldest (21-02)."""
    hot = cache(hot_messages_max=2)
    for name in (b"1", b"2", b"3"):
        hot.keep(name, row())

    assert [hot.get(name, NOW) is not None for name in (b"1", b"2", b"3")] == [False, True, True]
    assert len(hot) == 2


def test_bounded_by_bytes() -> None:
    """Entries add up to hot_bytes_max at most, replaced and dropped ones taken off (21-02)."""
    hot = cache(hot_bytes_max=3 * (ENTRY_BYTES + 100))
    for name in (b"1", b"2", b"3"):
        hot.keep(name, row())
    hot.keep(b"2", row(200))

    assert hot.get(b"1", NOW) is None
    assert hot.size_bytes == 2 * ENTRY_BYTES + 300
    hot.drop(b"2")
    hot.drop(b"2")
    assert hot.size_bytes == ENTRY_BYTES + 100


def test_bounded_by_age() -> None:
    """After hot_ttl_ms an entry is not given, and goes (21-02)."""
    hot = cache(hot_ttl_ms=1_000)
    hot.keep(b"1", row())
    hot.keep(b"2", row(at=NOW + 500))

    assert hot.get(b"1", NOW + 999) is not None
    assert hot.get(b"1", NOW + 1_000) is None
    hot.forget_old(NOW + 1_000)
    assert (len(hot), hot.size_bytes) == (1, ENTRY_BYTES + 100)


def test_batches_go_whole_and_in_parts() -> None:
    """Of batches as of single entries exactly the youngest stay, and every byte is counted."""
    hot = cache(hot_messages_max=4, hot_ttl_ms=1_000)
    for first in range(0, 9, 3):
        at = NOW + 100 * first
        hot.keep_all({b"%d" % (first + n): row(at=at + n) for n in range(3)}, 2**64)
    assert [n for n in range(9) if hot.get(b"%d" % n, NOW + 600)] == [5, 6, 7, 8]
    assert (len(hot), hot.size_bytes) == (4, 4 * (ENTRY_BYTES + 100))

    hot.drop(b"6")
    hot.forget_old(NOW + 1_302)
    assert (len(hot), hot.size_bytes) == (2, 2 * (ENTRY_BYTES + 100))
    hot.forget_old(NOW + 1_601)
    assert [n for n in range(9) if hot.get(b"%d" % n, NOW + 601)] == [8]
    hot.forget_old(NOW + 1_602)
    assert (len(hot), hot.size_bytes) == (0, 0)


def test_an_entry_above_the_bound_is_not_kept() -> None:
    """What is larger than the whole cache is not in it."""
    hot = cache(hot_bytes_max=ENTRY_BYTES)
    hot.keep(b"1", row())

    assert (len(hot), hot.size_bytes) == (0, 0)


def test_the_rate_is_of_the_last_five_minutes() -> None:
    """Hits and misses are counted for ever, their ratio forgets (P45)."""
    rate = HitRate()
    assert rate.ratio() == 0.0
    rate.count(0, 10, NOW)
    rate.count(3, 1, NOW + 299_000)
    assert rate.ratio() == pytest.approx(3 / 14)
    rate.count(0, 0, NOW + 331_000)

    assert rate.ratio() == pytest.approx(3 / 4)
    assert (rate.hits, rate.misses) == (3, 11)


def test_a_hit_needs_no_database(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A young message is read from memory, with its small blob, and counted (21-02, 21-46)."""
    store = open_store()
    messages = [forge.message(seq) for seq in (1, 2)]
    store.put_many(messages, now)
    ids = [message.header.message_id for message in messages]
    unknown = forge.message(9).header.message_id
    _, missing = store.get_messages([unknown], now)
    monkeypatch.setattr(RocksTable, "get", None)
    monkeypatch.setattr(RocksTable, "scan", None)
    found, _ = store.get_messages(ids, now)

    assert missing == [unknown]
    assert [message.blob for message in found] == [b"hello", b"hello"]
    stats = store.stats()
    assert (stats.hot_hits, stats.hot_misses, stats.hit_rate) == (2, 1, 2 / 3)
    assert stats.hot_messages == 2


def test_hot_and_cold_give_the_same(forge: Any, open_store: Opener, now: int) -> None:
    """Candidates, replaced ones, large blobs and blobs that came later are the same from both."""
    store = open_store(hot_ttl_ms=60_000)
    store.put_many([forge.message(1, sender=sender) for sender in range(1, 7)], now)
    store.put_many([forge.message(2, with_blob=False)], now)
    store.put_many([forge.message(2)], now)
    store.put_many([forge.message(3, blob=bytes(9_000))], now)
    ids = [forge.message(seq).header.message_id for seq in (1, 2, 3)]
    hot, _ = store.get_messages(ids, now)
    cold, _ = store.get_messages(ids, now + 60_000)

    assert len(hot) == 6
    assert hot == cold
    assert (store.stats().hot_hits, store.stats().hot_misses) == (2, 4)  # one slot is contended


def test_what_is_deleted_is_not_hot(forge: Any, open_store: Opener, now: int) -> None:
    """Expiry and eviction take a message out of the cache with its rows (P14)."""
    store = open_store(cold_store_ttl_ms=1_000, hot_ttl_ms=60_000)
    store.put_many([forge.message(1, sender=1), forge.message(1, sender=2, at=now + 500)], now)
    wanted = [forge.message(1).header.message_id]
    assert len(store.get_messages(wanted, now + 999)[0]) == 2
    assert len(store.get_messages(wanted, now + 1_000)[0]) == 1
    store.expire(now + 1_000)
    assert len(store.get_messages(wanted, now + 1_000)[0]) == 1
    store.expire(now + 1_500)

    assert store.get_messages(wanted, now) == ([], wanted)
    assert store.stats().hot_messages == 0
