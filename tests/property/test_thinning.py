"""A thinned store beside one that keeps everything: what went is what J3 lets go, and nothing else.

Batches in any order with contended slots and holes, time that passes, restarts and steps of any
size. What a thinned store must hold is worked out from what its twin holds.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from luxrelay.store import NamespaceQuery, RelayStore, RelayStoreConfig, StoredMessage

OLD_MS = 200
RATIO = 3


def _load_oracle() -> ModuleType:
    path = Path(__file__).parents[1] / "oracle" / "store.py"
    spec = spec_from_file_location("store_oracle_of_thinning", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


oracle = _load_oracle()
FORGE = oracle.Forge()
SPACE = oracle.PARENT
PLAIN = RelayStoreConfig(
    durability="os",  # type: ignore[arg-type]  # as a configuration file gives it
    cold_store_ttl_ms=1_000_000,
    write_buffer_bytes=1 << 20,
    block_cache_bytes=1 << 20,
)

RUNS = st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 3))
"""First sequence, how many, sender."""
PUTS = st.tuples(st.just("put"), st.lists(RUNS, min_size=1, max_size=3))
CYCLES = st.tuples(st.just("cycle"), st.sampled_from([0, 1, OLD_MS - 1, OLD_MS]))
"""After so many milliseconds."""
STEPS = st.lists(PUTS | CYCLES | st.just(("reopen", 0)), max_size=12)


def all_of(store: RelayStore, now: int) -> tuple[list[StoredMessage], list[tuple[int, int]]]:
    """Return what a reader gets in one page, and the gaps it is told."""
    page = store.query(NamespaceQuery(namespace_id=SPACE, limit=1_000), now)
    assert not page.has_more
    return page.messages, page.gaps


def due(store: RelayStore, now: int, position: int) -> int:
    """Return up to which sequence a pass thins that begins at ``position``.

    It goes on to the first slot with a young candidate; one that came later below the position
    stays and stops nothing.
    """
    head = store.head(SPACE)
    young = [
        each.seq
        for each in all_of(store, now)[0]
        if each.header.timestamp > now - OLD_MS and each.seq >= position
    ]
    return min(head.contiguous_seq, head.latest_seq - 1, min(young, default=1_000) - 1)


@pytest.mark.slow
@settings(settings(), max_examples=max(10, settings().max_examples // 3))
@example(5, [("cycle", OLD_MS)], 1)  # the newest stays
@example(4, [("put", [(6, 3, 1)]), ("cycle", 199), ("put", [(5, 1, 1)]), ("cycle", 1)], 5)
@example(3, [("cycle", 1), ("put", [(2, 1, 2)]), ("cycle", 199)], 1)  # a young candidate
@example(8, [("cycle", 200), ("put", [(2, 8, 1)]), ("cycle", 0)], 1)  # young below it
@example(4, [("cycle", 200), ("put", [(1, 5, 1)]), ("cycle", 0)], 1)  # and at it
@given(begun=st.integers(0, 8), steps=STEPS, chunk=st.integers(1, 5))
def test_only_what_may_go_goes(begun: int, steps: list[tuple[str, object]], chunk: int) -> None:
    """Every Nth, the newest, the young and what lies above a hole stay (21-43, 21-44, J3)."""
    thinned = replace(PLAIN, thin_ratios={SPACE: RATIO}, thin_after_ms=OLD_MS, gc_chunk_size=chunk)
    now = oracle.NOW
    gone: set[int] = set()
    position = 0  # the last slot that a pass came by; a start begins anew
    with TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("plain", "thinned")]
        plain, thin = (
            RelayStore.open(path, config, now_ms=now)
            for path, config in zip(paths, (PLAIN, thinned), strict=True)
        )
        try:
            for step, value in [("put", [(1, begun, 1)]), *steps]:
                if step == "put":
                    batch = [
                        FORGE.message(seq, sender=sender, namespace=SPACE, at=now)
                        for first, count, sender in value  # type: ignore[attr-defined]  # runs
                        for seq in range(first, first + count)
                        if seq not in gone
                    ]
                    assert thin.put_many(batch, now) == plain.put_many(batch, now)
                elif step == "cycle":
                    now += value  # type: ignore[operator]  # a number
                    there = [each.seq for each in all_of(thin, now)[0]]
                    assert not thin.expire(now).hit_limit
                    last = due(plain, now, position)
                    gone |= {seq for seq in range(position, last + 1) if seq % RATIO}
                    position = max(
                        (seq for seq in there if position <= seq <= last), default=position
                    )
                else:
                    thin.close()
                    thin, position = RelayStore.open(paths[1], thinned, now_ms=now), 0
                kept, told = all_of(plain, now)[0], all_of(thin, now)
                assert [m.header_bytes for m in told[0]] == [
                    m.header_bytes for m in kept if m.seq not in gone
                ]
                heads = [store.head(SPACE) for store in (plain, thin)]
                assert heads[0].contiguous_seq == heads[1].contiguous_seq
                assert heads[0].latest_header_hash == heads[1].latest_header_hash
                assert plain.gaps(SPACE) == thin.gaps(SPACE)
            held = {m.seq for m in all_of(plain, now)[0]}
            missing = {
                seq for first, last in all_of(thin, now)[1] for seq in range(first, last + 1)
            }
            assert missing == set(range(1, max(held, default=0) + 1)) - (held - gone)
            assert thin.verify() == []
        finally:
            plain.close()
            thin.close()
