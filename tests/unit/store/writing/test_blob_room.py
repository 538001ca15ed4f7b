"""Blobs beyond their bounds are not kept, or go oldest first; their messages stay (21-36)."""

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.errors import StoreArgumentError
from luxrelay.store import NamespaceQuery, PutOutcome, RelayStore, RelayStoreConfig, layout
from luxrelay.store.blobs import blob_of

Opener = Callable[..., RelayStore]
STORED, DUPLICATE = PutOutcome.STORED, PutOutcome.DUPLICATE
BIG = 5_000
"""Bytes of a blob that has a row of its own."""


def blobs(store: RelayStore, parent: Any, now: int) -> dict[int, int | None]:
    """Return the length of each message's blob by sequence, None where it is missing."""
    page = store.query(NamespaceQuery(namespace_id=parent), now)
    return {each.seq: None if each.blob is None else len(each.blob) for each in page.messages}


def counted(store: RelayStore) -> int:
    """Return the bytes of all blobs as the slices count them, after comparing with the rows."""
    for each in store._ledger.slices.live:
        rows = [layout.decode_row(value) for _, value in each.table.scan(b"", b"", layout.HEADERS)]
        assert each.blob_bytes == sum(row.attached_bytes for row in rows)
    return sum(each.blob_bytes for each in store._ledger.slices.live)


def test_a_store_without_blobs_keeps_headers(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """Disabled, no blob is kept and every message is (21-36, LP-6421 §5.1)."""
    store = open_store(blobs_enabled=False)
    assert (
        store.put_many([forge.message(1), forge.message(2, blob=bytes(BIG))], now) == [STORED] * 2
    )

    assert blobs(store, parent, now) == {1: None, 2: None}
    assert store.get_blob(forge.message(1).header.blob_commitment) is None
    assert store.put_many([forge.message(1)], now) == [DUPLICATE]
    assert blobs(store, parent, now) == {1: None, 2: None}
    assert store.verify() == []


def test_a_blob_above_the_largest_is_not_kept(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """At blob_bytes_max it is, one byte above only the header is (21-36)."""
    store = open_store(blob_bytes_max=BIG)
    store.put_many([forge.message(1, blob=bytes(BIG)), forge.message(2, blob=bytes(BIG + 1))], now)

    assert blobs(store, parent, now) == {1: BIG, 2: None}
    assert store.verify() == []


def test_a_sidecar_counts_as_a_blob(forge: Any, open_store: Opener, now: int, parent: Any) -> None:
    """Too large it is not kept; above the bound of all blobs it goes with its message's blob."""
    store = open_store(blob_bytes_max=BIG, blob_cache_bytes=2 * BIG)
    messages = [forge.message(seq, ciphertext=bytes(BIG - 48)) for seq in (1, 2)]
    messages.append(forge.message(3, ciphertext=bytes(BIG)))
    store.put_many(messages, now)

    page = store.query(NamespaceQuery(namespace_id=parent), now)
    assert [each.sidecar_len for each in page.messages] == [0, BIG, 0]
    assert blobs(store, parent, now) == {1: None, 2: 5, 3: 5}
    assert counted(store) == BIG + 10
    assert store.verify() == []


@pytest.mark.parametrize("size", [100, BIG])
def test_the_oldest_blobs_go_when_all_are_too_large(
    forge: Any, open_store: Opener, now: int, parent: Any, size: int
) -> None:
    """blob_cache_bytes holds after every put, by timestamp, inline and apart (21-36)."""
    store = open_store(blob_cache_bytes=3 * size, slice_ms=1_000, gc_chunk_size=2)
    newest = [forge.message(seq, at=now + seq * 900, blob=bytes(size)) for seq in range(4, 7)]
    oldest = [forge.message(seq, at=now + seq * 900, blob=bytes(size)) for seq in range(1, 4)]
    store.put_many(newest, now)
    assert counted(store) == 3 * size
    store.put_many(oldest, now)

    assert blobs(store, parent, now) == {1: None, 2: None, 3: None, 4: size, 5: size, 6: size}
    assert counted(store) == 3 * size
    store.put_many([forge.message(7, at=now + 6_300, blob=bytes(size))], now)
    assert blobs(store, parent, now) == dict.fromkeys(range(1, 5)) | dict.fromkeys(
        range(5, 8), size
    )
    assert store.stats().blobs_dropped == 4
    assert store.verify() == []
    store.put_many(oldest[:1], now)  # the blob comes again and is the oldest again
    assert counted(store) == 3 * size
    assert blobs(store, parent, now)[1] is None


def test_what_a_message_without_its_blob_costs(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """Counters, head and tree are those of a store that never had the blob (P9, J4)."""
    store, bare = open_store(blob_cache_bytes=1), open_store("bare")
    store.put_many([forge.message(1, blob=bytes(BIG))], now)
    bare.put_many([forge.message(1, blob=bytes(BIG), with_blob=False)], now)

    assert store.head(parent) == bare.head(parent)
    assert store.tree_root() == bare.tree_root()
    assert store.stats().size_bytes == bare.stats().size_bytes
    assert store.get_messages([forge.message(1).header.message_id], now) == bare.get_messages(
        [forge.message(1).header.message_id], now
    )


def test_a_blob_that_is_too_old_goes_before_its_message(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """With the cycle at blob_ttl_ms after the timestamp, not one before; none comes in (21-36)."""
    store = open_store(blob_ttl_ms=60_000, slice_ms=1_000)
    store.put_many([forge.message(1), forge.message(2, at=now + 1_000, blob=bytes(BIG))], now)
    store.expire(now + 59_999)
    assert blobs(store, parent, now + 59_999) == {1: 5, 2: BIG}
    store.expire(now + 60_000)
    assert blobs(store, parent, now + 60_000) == {1: None, 2: BIG}
    store.put_many([forge.message(1)], now + 60_000)
    assert blobs(store, parent, now + 60_000) == {1: None, 2: BIG}
    assert not store.expire(now + 61_000).hit_limit

    assert blobs(store, parent, now + 61_000) == {1: None, 2: None}
    assert (store.stats().blobs_dropped, store.stats().messages) == (2, 2)
    assert store.verify() == []


def test_a_cycle_takes_its_limit_of_blobs_and_says_so(
    forge: Any, open_store: Opener, now: int
) -> None:
    """The rest goes with the next cycle."""
    store = open_store(blob_ttl_ms=1_000, gc_batch_limit=2)
    store.put_many([forge.message(seq) for seq in range(1, 6)], now)

    assert store.expire(now + 1_000).hit_limit
    assert store.stats().blobs_dropped == 2
    assert store.expire(now + 1_000).hit_limit
    assert not store.expire(now + 1_000).hit_limit
    assert store.stats().blobs_dropped == 5


def test_a_clock_that_jumps_takes_no_blob(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """Age is not believed then (P43)."""
    store = open_store(blob_ttl_ms=60_000)
    store.put_many([forge.message(1)], now)
    store.expire(now, 1.0)

    assert store.expire(now + 400_000, 2.0).paused
    assert blobs(store, parent, now) == {1: 5}


def test_a_shared_blob_stays_for_the_younger_message(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """Two messages of a slice refer to one row; the older gives up its reference alone (P29)."""
    store = open_store(blob_cache_bytes=BIG)
    store.put_many(
        [forge.message(seq, at=now + seq, blob=bytes(BIG)) for seq in (1, 2)],
        now,
    )

    assert blobs(store, parent, now) == {1: None, 2: BIG}
    assert store.verify() == []


def test_bounds_hold_for_what_a_store_already_has(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """Opened with a smaller bound, or without blobs, the next cycle brings it there (21-36)."""
    messages = [forge.message(seq, at=now + seq, blob=bytes(BIG)) for seq in range(1, 5)]
    store = open_store()
    store.put_many(messages, now)
    store.close()
    smaller = open_store(blob_cache_bytes=2 * BIG)
    smaller.expire(now)
    assert blobs(smaller, parent, now) == {1: None, 2: None, 3: BIG, 4: BIG}
    assert counted(smaller) == 2 * BIG
    smaller.close()
    none = open_store(blobs_enabled=False)
    none.expire(now)

    assert blobs(none, parent, now) == dict.fromkeys(range(1, 5))
    assert none.verify() == []


def test_counts_follow_what_is_deleted(forge: Any, open_store: Opener, now: int) -> None:
    """Slices, sweeps and eviction take the bytes with them."""
    store = open_store(blob_cache_bytes=10**6, slice_ms=1_000, namespace_quota_bytes=40_000)
    for seq in range(1, 12):
        store.put_many([forge.message(seq, at=now + 300 * seq, blob=bytes(BIG))], now)
        counted(store)
    assert 0 < counted(store) < 11 * BIG
    store.expire(now + 602_500)
    assert 0 < counted(store) < 8 * BIG
    store.expire(now + 700_000)

    assert counted(store) == 0


def test_a_reader_that_was_overtaken_sees_a_message_without_blob(
    forge: Any, open_store: Opener, now: int
) -> None:
    """The row read before says that there is one; the message is not passed over."""
    store = open_store(blob_ttl_ms=1_000)
    store.put_many([forge.message(1, blob=bytes(BIG))], now)
    slices = store._ledger.slices
    ((_, value),) = slices.scan(layout.HEADERS, b"", b"")
    store.expire(now + 1_000)

    assert blob_of(slices, layout.decode_row(value)) is None
    store.expire(now + 700_000)
    with pytest.raises(KeyError):
        blob_of(slices, layout.decode_row(value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("blobs_enabled", 1),
        ("blob_bytes_max", 0),
        ("blob_cache_bytes", 0),
        ("blob_ttl_ms", -1),
    ],
)
def test_bounds_out_of_range_are_refused(name: str, value: int) -> None:
    """The field is named."""
    with pytest.raises(StoreArgumentError, match=name):
        RelayStoreConfig(**{name: value})
