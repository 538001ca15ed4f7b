"""What an archive has not read stays for it, and only room or age beyond the window takes it."""

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.bus import NamespaceId
from luxrelay.errors import StoreArgumentError, StoreError
from luxrelay.store import NamespaceQuery, RelayStore, layout

Opener = Callable[..., RelayStore]
TTL = 600_000


def archive_sees(store: RelayStore, namespace: Any, now: int) -> list[int]:
    """Return what a query of the archive gives."""
    page = store.query(NamespaceQuery(namespace_id=namespace, held=True), now)
    return [message.seq for message in page.messages]


def others_see(store: RelayStore, namespace: Any, now: int) -> list[int]:
    """Return what any other query gives."""
    page = store.query(NamespaceQuery(namespace_id=namespace), now)
    return [message.seq for message in page.messages]


def test_the_unread_stay_past_their_ttl(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """Expiry takes what the archive has read; the rest waits for it alone (21-51, J8)."""
    store = open_store()
    store.put_many([forge.message(seq) for seq in range(1, 6)], now)
    store.set_watermark(parent, parent, 2)

    assert store.expire(now + TTL).removed_count == 2
    assert archive_sees(store, parent, now + TTL) == [3, 4, 5]
    assert others_see(store, parent, now + TTL) == []
    assert (store.stats().held, store.stats().handoffs) == (3, 1)
    assert store.head(parent).floor == 2
    assert store.verify() == []
    assert store.expire(now + TTL).removed_count == 0


def test_what_was_read_goes_with_the_next_cycle(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """The watermark passes, the cycle follows (J8)."""
    store = open_store(gc_chunk_size=2)
    store.put_many([forge.message(seq) for seq in range(1, 8)], now)
    store.set_watermark(parent, parent, 0)
    store.expire(now + TTL)
    store.set_watermark(parent, parent, 5)

    assert store.expire(now + TTL).removed_count == 5
    assert archive_sees(store, parent, now + TTL) == [6, 7]
    store.set_watermark(parent, parent, 2**64 - 1)
    assert store.expire(now + TTL).removed_count == 2
    assert list(store._ledger.slices.keys(layout.HELD, b"", b"")) == []
    assert (store.stats().held, store.stats().unread_evicted) == (0, 0)
    assert not store._ledger.holding
    assert store.verify() == []


def test_a_watermark_never_goes_back_and_outlives_a_restart(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """A lower watermark changes nothing; watermark and held messages are on disk (J8)."""
    store = open_store()
    store.put_many([forge.message(seq) for seq in (1, 2, 3)], now)
    store.set_watermark(parent, parent, 2)
    store.set_watermark(parent, parent, 1)
    store.expire(now + TTL)
    store.close()
    again = open_store()

    assert again.watermark(parent) == 2
    assert again.stats().held == 1
    assert archive_sees(again, parent, now + TTL) == [3]
    again.set_watermark(parent, parent, 3)
    assert again.expire(now + TTL).removed_count == 1


def test_without_an_archive_nothing_is_held(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """A namespace that nobody reads expires as ever; dropping a watermark lets all go."""
    store = open_store()
    assert store.watermark(parent) is None
    store.put_many([forge.message(seq) for seq in (1, 2)], now)
    store.set_watermark(parent, parent, 0)
    store.expire(now + TTL)
    assert store.stats().held == 2
    store.drop_watermark(parent)
    store.drop_watermark(NamespaceId(b"u" * 20))

    assert store.watermark(parent) is None
    assert store.expire(now + TTL).removed_count == 2
    assert store.stats().handoffs == 0


def test_a_lane_follows_its_parent(forge: Any, open_store: Opener, parent: Any, now: int) -> None:
    """A new lane of a parent that is archived is archived from its beginning (J6, J8)."""
    store = open_store()
    store.set_watermark(parent, parent, 0)
    store.put_many([forge.in_lane(seq, 1) for seq in (1, 2)], now)

    assert store.watermark(forge.lane(1)) == 0
    assert store.expire(now + TTL).removed_count == 0
    store.set_watermark(forge.lane(1), parent, 1)
    assert store.expire(now + TTL).removed_count == 1
    assert archive_sees(store, forge.lane(1), now + TTL) == [2]


def test_room_is_made_by_the_unread_too_and_counted(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """Storage pressure is stronger than the handoff, and says so in a number (J8)."""
    store = open_store(namespace_quota_bytes=8_000)
    store.set_watermark(parent, parent, 3)
    store.put_many([forge.message(seq) for seq in range(1, 41)], now)
    stats = store.stats()

    assert stats.size_bytes <= 8_000
    assert stats.unread_evicted == sum(stats.evicted.values()) - 3
    assert store.verify() == []


def test_a_full_store_looks_past_what_it_set_aside(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """Expired messages that wait for the archive give no room by themselves; eviction does."""
    store = open_store(max_storage_bytes=8_000, gc_chunk_size=3)
    store.set_watermark(parent, parent, 0)
    store.put_many([forge.message(seq) for seq in range(1, 11)], now)
    fresh = [forge.message(seq, namespace=forge.lane(2), at=now + TTL) for seq in range(1, 6)]
    store.put_many(fresh, now + TTL)

    assert others_see(store, forge.lane(2), now + TTL) == [1, 2, 3, 4, 5]
    assert store.stats().unread_evicted > 0
    assert store.verify() == []


def test_the_retention_window_is_stronger(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """Past the window a message goes whether or not it was read, and is counted (J2)."""
    store = open_store(retention_window_ms=2 * TTL)
    store.set_watermark(parent, parent, 0)
    store.put_many([forge.message(seq) for seq in (1, 2)], now)
    store.expire(now + TTL)
    assert store.stats().held == 2

    assert store.expire(now + 2 * TTL).removed_count == 2
    assert (store.stats().held, store.stats().unread_evicted) == (0, 2)
    assert store.verify() == []


def test_a_replaced_candidate_is_held_no_more(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """A held message whose slot another takes leaves no row behind (P9)."""
    store = open_store()
    store.set_watermark(parent, parent, 0)
    store.put_many([forge.message(1, sender=1)], now)
    store.expire(now + TTL)
    store.put_many([forge.message(1, sender=2, at=now + TTL)], now + TTL)

    assert store.stats().held == 0
    assert store.verify() == []


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.set_watermark(NamespaceId(b"n"), NamespaceId(b"n" * 20), 0),
        lambda store: store.set_watermark(NamespaceId(b"n" * 20), NamespaceId(b"n"), 0),
        lambda store: store.set_watermark(NamespaceId(b"n" * 20), NamespaceId(b"n" * 20), -1),
        lambda store: store.set_watermark(NamespaceId(b"n" * 20), NamespaceId(b"n" * 20), 2**64),
    ],
)
def test_refuse_watermarks_that_mean_nothing(
    open_store: Opener, call: Callable[[RelayStore], None]
) -> None:
    """Wrong lengths and ranges are the caller's fault."""
    with pytest.raises(StoreArgumentError):
        call(open_store())


def test_one_namespace_too_many_has_no_watermark(open_store: Opener) -> None:
    """namespaces_max bounds what an archive can announce."""
    store = open_store(namespaces_max=1)
    one, two = NamespaceId(b"1" * 20), NamespaceId(b"2" * 20)
    store.set_watermark(one, one, 0)

    with pytest.raises(StoreError) as caught:
        store.set_watermark(two, two, 0)
    assert caught.value.code == "store.full"
