"""What a store holds outlives the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luxrelay.store import Durability, NamespaceQuery, PutOutcome, RelayStore, RelayStoreConfig

SMALL = RelayStoreConfig.small()


def everything(store: RelayStore, namespace: Any, now: int) -> list[tuple[bytes, bytes | None]]:
    """Return header and blob of every message of a namespace."""
    page = store.query(NamespaceQuery(namespace_id=namespace, limit=10_000), now)
    assert not page.has_more
    return [(message.header_bytes, message.blob) for message in page.messages]


@pytest.mark.slow
@pytest.mark.parametrize("durability", list(Durability))
def test_everything_is_there_after_a_restart(
    forge: Any, tmp_path: Path, now: int, durability: Durability
) -> None:
    """Messages, heads, holes, lanes and sums are the same after a close and an open (21-49)."""
    config = RelayStoreConfig(
        durability=durability, write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20
    )
    messages = [forge.in_lane(seq, sender) for sender in (1, 2) for seq in range(1, 400)]
    messages += [forge.in_lane(seq, 3, blob=bytes([seq]) * 9000) for seq in (1, 2, 5)]
    parent = messages[0].parent
    with RelayStore.open(tmp_path / "store", config, now_ms=now) as store:
        assert set(store.put_many(messages, now)) == {PutOutcome.STORED}
        heads = store.heads(parent, b"", 10)
        rows = [everything(store, forge.lane(sender), now) for sender in (1, 2, 3)]
        size = store.stats().size_bytes

    with RelayStore.open(tmp_path / "store", config, now_ms=now) as again:
        assert again.heads(parent, b"", 10) == heads
        assert [everything(again, forge.lane(sender), now) for sender in (1, 2, 3)] == rows
        assert again.gaps(forge.lane(3)) == [(3, 4)]
        assert (again.stats().size_bytes, again.stats().messages) == (size, len(messages))
        assert again.put_many(messages[:5], now) == [PutOutcome.DUPLICATE] * 5
        assert again.verify() == []


def test_expired_while_closed(forge: Any, tmp_path: Path, now: int) -> None:
    """What passed its time while the store was closed is neither served nor kept (21-13)."""
    with RelayStore.open(tmp_path / "store", SMALL, now_ms=now) as store:
        store.put_many([forge.message(seq) for seq in (1, 2, 3)], now)
    later = now + SMALL.cold_store_ttl_ms

    with RelayStore.open(tmp_path / "store", SMALL, now_ms=later) as again:
        assert everything(again, forge.message(1).parent, later) == []
        assert again.expire(later).removed_count == 3
        assert again.verify() == []


def test_a_longer_ttl_does_not_extend_old_messages(forge: Any, tmp_path: Path, now: int) -> None:
    """A message keeps the expiry it was stored with, whatever the configuration says later."""
    with RelayStore.open(tmp_path / "store", SMALL, now_ms=now) as store:
        store.put_many([forge.message(1)], now)
    longer = RelayStoreConfig(
        cold_store_ttl_ms=10 * SMALL.cold_store_ttl_ms, durability=Durability.OS
    )

    with RelayStore.open(tmp_path / "store", longer, now_ms=now) as again:
        assert again.expire(now + SMALL.cold_store_ttl_ms).removed_count == 1
