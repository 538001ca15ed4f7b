"""Buckets and content ids: what is served, in bounded answers, and nothing that has aged."""

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.bus import ContentId
from luxrelay.errors import StoreArgumentError
from luxrelay.store import BucketQuery, RelayStore
from luxrelay.store.merkle import MerkleTree, bucket_of, differing_buckets, differing_nodes

Opener = Callable[..., RelayStore]


def crowd(forge: Any, count: int) -> list[Any]:
    """Return messages of which several share a bucket."""
    found: dict[int, list[Any]] = {}
    for seq in range(1, 4_000):
        message = forge.message(seq, blob=b"")
        same = found.setdefault(bucket_of(message.header.content_id), [])
        same.append(message)
        if len(same) == count:
            return same
    raise AssertionError("no crowded bucket")


def test_two_stores_find_their_difference(forge: Any, open_store: Opener, now: int) -> None:
    """From root to nodes to buckets to ids to messages, both end with the same set (J4)."""
    one, two = open_store("one"), open_store("two")
    messages = [forge.in_lane(seq, sender) for sender in (1, 2) for seq in range(1, 21)]
    one.put_many(messages, now)
    two.put_many([*messages[:30], forge.in_lane(1, 3)], now)
    assert one.tree_root() != two.tree_root()

    lacking: list[ContentId] = []
    for node in differing_nodes(one.tree_nodes(), two.tree_nodes()):
        for bucket in differing_buckets(node, one.tree_buckets(node), two.tree_buckets(node)):
            ids, _ = one.bucket_ids(BucketQuery(bucket=bucket), now)
            lacking += [content for content in ids if not two.has(content)]
    found, missing = one.get_contents(lacking, now)

    assert missing == []
    assert sorted(m.header_bytes for m in found) == sorted(m.header.encode() for m in messages[30:])
    two.put_many(messages[30:], now)
    one.put_many([forge.in_lane(1, 3)], now)
    assert one.tree_root() == two.tree_root()


def test_the_tree_is_rebuilt_at_start(forge: Any, open_store: Opener, now: int) -> None:
    """A reopened store has the tree of its rows (retention document)."""
    store = open_store()
    store.put_many([forge.message(seq) for seq in range(1, 30)], now)
    store.expire(now + 1)
    root = store.tree_root()
    store.close()

    assert open_store().tree_root() == root


def test_the_tree_follows_replacement_and_expiry(forge: Any, open_store: Opener, now: int) -> None:
    """A content that loses its slot and one that expires leave the tree (J4, J11)."""
    low, high = sorted(
        (forge.message(1, nonce=nonce) for nonce in (1, 2)), key=lambda m: m.header.content_id
    )
    store = open_store()
    store.put_many([high], now)
    store.put_many([low], now)

    assert store.tree_root() == MerkleTree([low.header.content_id]).root()
    store.expire(now + 600_000)
    assert store.tree_root() == MerkleTree().root()


def test_a_bucket_is_read_in_bounded_steps(forge: Any, open_store: Opener, now: int) -> None:
    """bucket_ids_max bounds an answer; the cursor goes on to the end."""
    store = open_store(bucket_ids_max=1)
    messages = crowd(forge, 2)
    store.put_many(messages, now)
    wanted = sorted(message.header.content_id for message in messages)
    bucket = bucket_of(wanted[0])
    first, cursor = store.bucket_ids(BucketQuery(bucket=bucket, limit=9), now)
    second, end = store.bucket_ids(BucketQuery(bucket=bucket, cursor=cursor), now)

    assert (first, second, end) == (wanted[:1], wanted[1:], b"")


def test_what_has_aged_is_not_offered(forge: Any, open_store: Opener, now: int) -> None:
    """Neither the expired nor what is past the cut-off is listed or served (21-13)."""
    store = open_store()
    store.put_many([forge.message(1, at=now)], now)
    content = forge.message(1).header.content_id
    query = BucketQuery(bucket=bucket_of(content))
    assert store.bucket_ids(query, now + 599_999) == ([content], b"")
    assert store.bucket_ids(query, now + 600_000) == ([], b"")
    assert store.get_contents([content], now + 600_000) == ([], [content])
    store.close()
    shorter = open_store(retention_window_ms=10_000)

    assert shorter.bucket_ids(query, now + 9_999) == ([content], b"")
    assert shorter.bucket_ids(query, now + 10_000) == ([], b"")
    assert shorter.get_contents([content], now + 10_000) == ([], [content])


def test_contents_are_bounded_in_bytes(forge: Any, open_store: Opener, now: int) -> None:
    """An id in neither answer did not fit: ask again."""
    store = open_store(page_bytes_max=2 * 1024**2 + 8192)
    messages = [forge.message(seq, blob=bytes(1_500_000)) for seq in (1, 2)]
    store.put_many(messages, now)
    ids = [message.header.content_id for message in messages]
    found, missing = store.get_contents(ids, now)

    assert [message.seq for message in found] == [1]
    assert missing == []
    assert [message.seq for message in store.get_contents(ids[1:], now)[0]] == [2]


def test_a_message_that_goes_in_between_is_missing(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that vanish while an answer is made are as if they had gone before."""
    store = open_store()
    message = forge.message(1, blob=bytes(10_000))
    store.put_many([message], now)
    content = message.header.content_id

    def gone(_database: Any, row: Any) -> bytes:
        raise KeyError(row.commitment)

    with monkeypatch.context() as patch:
        patch.setattr("luxrelay.store.blobs.blob_of", gone)
        assert store.get_contents([content], now) == ([], [content])
    assert store.get_contents([ContentId(bytes(32))], now) == ([], [bytes(32)])


@pytest.mark.parametrize(
    "call",
    [
        lambda store, now: store.get_contents([ContentId(b"short")], now),
        lambda store, now: store.get_contents([ContentId(bytes(32))] * 1_001, now),
        lambda store, _: store.tree_buckets(256),
        lambda *_: BucketQuery(bucket=65_536),
        lambda *_: BucketQuery(bucket=-1),
        lambda *_: BucketQuery(bucket=0, limit=-1),
        lambda *_: BucketQuery(bucket=0, cursor=b"odd"),
        lambda *_: BucketQuery(bucket=1, cursor=bytes(32)),
    ],
)
def test_refuse_calls_that_mean_nothing(
    open_store: Opener, now: int, call: Callable[..., Any]
) -> None:
    """Wrong lengths and ranges are the caller's fault."""
    with pytest.raises(StoreArgumentError):
        call(open_store(), now)
