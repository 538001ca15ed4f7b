"""A group's rows, sums and trees are those of its messages."""

from collections.abc import Callable
from typing import Any

from luxrelay.store import RelayStore, layout
from luxrelay.store.layout import Share

Opener = Callable[..., RelayStore]


def test_sums_follow_the_messages(forge: Any, open_store: Opener, parent: Any, now: int) -> None:
    """A slice knows messages, bytes and bounds of each namespace, and senders (P44)."""
    store = open_store(slice_ms=1_200_000)
    store.put_many([forge.message(seq, sender=seq % 2) for seq in (3, 4, 5, 9)], now)
    (where,) = store._ledger.slices.live

    assert where.shares == {parent: Share(4, store.stats().size_bytes, 3, 9, exact=True)}
    assert sorted(where.senders.values()) == [1, 3]
    assert (where.messages, where.size_bytes) == (4, store.stats().size_bytes)


def test_a_loser_leaves_a_share_that_is_no_more_exact(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """When the message at the upper bound loses its slot, the slice says so (J11)."""
    store = open_store(slice_ms=60_000)
    pair = [forge.message(5, nonce=0), forge.message(5, nonce=1, at=now + 60_000)]
    low, high = sorted(pair, key=lambda message: message.header.content_id)
    store.put_many([forge.message(1, at=high.header.timestamp), high, low], now + 60_000)

    shares = {each.first_ms: each.shares[parent] for each in store._ledger.slices.live}
    assert [share.exact for _, share in sorted(shares.items())].count(False) == 1
    assert store.verify() == []
    first = min(shares)
    store.expire(first + 60_000)
    # The floor rises to what has gone, not to the slot that another message holds.
    assert store.head(parent).floor in {1, 5}
    assert store.verify() == []


def test_rows_of_a_message_that_loses_in_its_own_group(
    forge: Any, open_store: Opener, now: int
) -> None:
    """A message that is put and beaten in one batch leaves nothing behind (P9)."""
    store = open_store()
    pair = sorted(
        [forge.message(5, nonce=nonce, blob=b"large" * 2000) for nonce in (0, 1)],
        key=lambda message: message.header.content_id,
        reverse=True,
    )
    store.put_many(pair, now)

    assert store.stats().messages == 1
    assert store.verify() == []
    contents = list(store._ledger.slices.keys(layout.CONTENTS, b"", b""))
    assert contents == [pair[1].header.content_id]
