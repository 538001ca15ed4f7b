"""What a store lets go early leaves no hole: peers that sync from it get every sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luxrelay.store import RelayStore, RelayStoreConfig
from luxrelay.sync import CatchUpConfig, run_catchup

SIZES = CatchUpConfig(page_messages=16, backoff_s=0.01, backoff_max_s=0.05)
COUNT, BLOB = 60, b"hello"


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, COUNT),
        ({"blob_cache_bytes": 20 * len(BLOB)}, 20),
        ({"blobs_enabled": False}, 0),
    ],
    ids=["default", "oldest-blobs-gone", "no-blobs"],
)
def test_compaction_never_breaks_contiguous_sync(
    harbour: Any, changes: dict[str, Any], kept: int
) -> None:
    """21-43, P16: by default nothing is thinned, and blobs that go leave their headers in line."""
    author = harbour.author()
    config = replace(RelayStoreConfig.small(), **changes)
    source = RelayStore.open(harbour.folder / "source", config, now_ms=harbour.base_ms)
    harbour.stores.append(source)
    source.put_many(author.messages(range(1, COUNT + 1), blob=BLOB), harbour.base_ms)
    source.expire(harbour.base_ms + 1)
    client = harbour.client(harbour.serve(source))
    sink = harbour.sink(harbour.store())

    report = run_catchup([client], sink, parent=harbour.parent, config=SIZES)

    assert (report.complete, report.stored, report.holes_left) == (True, COUNT, ())
    assert sink.skips == []
    page = client.sync_page(author.lane)
    assert [message.seq for message in page.messages] == list(range(1, COUNT + 1))
    assert (page.status.complete, page.status.gaps) == (True, ())
    for store in (source, sink.store):
        head = store.head(author.lane)
        assert (head.earliest_seq, head.contiguous_seq, head.latest_seq) == (1, COUNT, COUNT)
        assert store.gaps(author.lane) == []
        assert store.verify() == []
    assert sink.store.tree_root() == source.tree_root()
    assert sum(message.blob == BLOB for message in page.messages) == kept
