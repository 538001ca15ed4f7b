"""Whatever comes in: bounds hold, and nobody loses a message who did not have to (P1, P2, P13)."""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luxrelay.bus import NamespaceId
from luxrelay.store import Lack, NamespaceQuery, PutOutcome, RelayStore, RelayStoreConfig


def _load_oracle() -> ModuleType:
    path = Path(__file__).parents[1] / "oracle" / "store.py"
    spec = spec_from_file_location("store_oracle", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


oracle = _load_oracle()
FORGE = oracle.Forge()
QUOTA = 6_000
STORE = 15_000

ARRIVALS = st.lists(
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from([b"", b"x" * 40, b"y" * 400])),
        min_size=1,
        max_size=20,
    ),
    min_size=1,
    max_size=6,
)
"""Batches of (sender, blob); each sender counts up in its lane or in a namespace of its own."""


def config(**changes: Any) -> RelayStoreConfig:
    """Return a small configuration."""
    return RelayStoreConfig(
        durability="os",  # type: ignore[arg-type]  # as a configuration file gives it
        inline_blob_bytes_max=64,
        gc_chunk_size=3,
        write_buffer_bytes=1 << 20,
        block_cache_bytes=1 << 20,
        **changes,
    )


def sequences(store: RelayStore, namespace: NamespaceId) -> list[int]:
    """Return the sequences a namespace serves."""
    page = store.query(NamespaceQuery(namespace_id=namespace), oracle.NOW)
    return [message.seq for message in page.messages]


@pytest.mark.slow
@settings(max_examples=max(15, settings().max_examples // 3))
@given(batches=ARRIVALS, lanes=st.booleans(), chunk=st.integers(1, 5))
def test_bounds_hold_and_the_newest_stay(
    batches: list[list[tuple[int, bytes]]], lanes: bool, chunk: int
) -> None:
    """Sizes stay within quota and store; a namespace keeps a run that ends with its newest."""
    folder = Path(tempfile.mkdtemp(prefix="luxrelay-quota-"))
    sent = dict.fromkeys(range(1, 7), 0)
    now = oracle.NOW
    bounds = config(namespace_quota_bytes=QUOTA, max_storage_bytes=STORE)
    try:
        with RelayStore.open(folder / "store", bounds, now_ms=now) as store:
            for step, batch in enumerate(batches):
                messages = []
                for sender, blob in batch:
                    sent[sender] += 1
                    parent = oracle.PARENT if lanes else FORGE.lane(sender)
                    messages.append(
                        FORGE.message(
                            sent[sender],
                            sender=sender,
                            namespace=FORGE.lane(sender),
                            parent=parent,
                            blob=blob,
                            at=now + step,
                        )
                    )
                outcomes = store.put_many(messages, now)

                assert set(outcomes) == {PutOutcome.STORED}
                stats = store.stats()
                heads = [store.head(FORGE.lane(sender)) for sender in sent]
                sizes = [head.size_bytes for head in heads]
                assert stats.size_bytes == sum(sizes) <= STORE
                assert max(sizes) <= QUOTA
                assert not lanes or sum(sizes) <= QUOTA
                for sender, head in zip(sent, heads, strict=True):
                    held = sequences(store, FORGE.lane(sender))
                    assert held == list(range(head.floor + 1, sent[sender] + 1))
                    assert store.gaps(FORGE.lane(sender)) == []
                if step % chunk == 0:
                    store.expire(now)
            assert store.verify() == []
            stats = store.stats()
            assert stats.messages + sum(stats.evicted.values()) == sum(sent.values())
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
@settings(max_examples=max(15, settings().max_examples // 3))
@given(batches=ARRIVALS)
def test_a_flood_takes_nothing_from_others(batches: list[list[tuple[int, bytes]]]) -> None:
    """While all quotas fit into the store, only a namespace's own messages make its room."""
    folder = Path(tempfile.mkdtemp(prefix="luxrelay-quota-"))
    now, flood = oracle.NOW, 0
    quiet: dict[int, int] = dict.fromkeys(range(2, 7), 0)
    bounds = config(namespace_quota_bytes=QUOTA, max_storage_bytes=6 * QUOTA)
    try:
        with RelayStore.open(folder / "store", bounds, now_ms=now) as store:
            for batch in batches:
                messages = []
                for sender, blob in batch:
                    if sender in quiet and quiet[sender] < 4:
                        quiet[sender] += 1
                        seq, name = quiet[sender], sender
                    else:
                        flood += 1
                        seq, name = flood, 1
                    lane = FORGE.lane(name)
                    messages.append(
                        FORGE.message(seq, sender=name, namespace=lane, blob=blob, at=now)
                    )
                store.put_many(messages, now)
            store.expire(now)

            for sender, count in quiet.items():
                assert sequences(store, FORGE.lane(sender)) == list(range(1, count + 1))
            assert store.stats().evicted[Lack.STORE] == 0
    finally:
        shutil.rmtree(folder)
