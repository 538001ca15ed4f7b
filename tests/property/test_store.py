"""RelayStore against its slow twin: whatever happens to both, both give the same answers.

Random batches, queries, expiry, skips and restarts, in any order, with contended slots, lanes,
holes, missing blobs and clocks that pass the time to live.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from luxrelay.bus import NamespaceId
from luxrelay.store import (
    BucketQuery,
    NamespaceQuery,
    RelayStore,
    RelayStoreConfig,
    SenderQuery,
    TimeQuery,
)
from luxrelay.store.merkle import MerkleTree, bucket_of

TTL_MS = 1_000
CONFIG = RelayStoreConfig(
    durability="os",  # type: ignore[arg-type]  # as a configuration file gives it
    cold_store_ttl_ms=TTL_MS,
    inline_blob_bytes_max=8,
    group_messages_max=5,
    gc_chunk_size=3,
    page_rows_max=7,
    heads_max=2,
    write_buffer_bytes=1 << 20,
    block_cache_bytes=1 << 20,
)


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
SHARED = NamespaceId(b"s" * 20)
NAMESPACES = [SHARED, *(FORGE.lane(sender) for sender in (1, 2))]
BLOBS = [b"", b"short", b"a longer one", b"another longer one"]

SEQUENCES = st.integers(1, 12)
DESCRIPTIONS = st.fixed_dictionaries(
    {
        "seq": SEQUENCES,
        "sender": st.integers(1, 6),
        "shared": st.booleans(),
        "with_parent": st.booleans(),
        "nonce": st.integers(0, 1),
        "blob": st.sampled_from(BLOBS),
        "with_blob": st.booleans(),
        "age": st.integers(-300, 1_100),
        "ahead": st.sampled_from([0, 0, -200, 200]),
    }
)


class StoreAgainstOracle(RuleBasedStateMachine):
    """Does everything twice."""

    config = CONFIG

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="luxrelay-store-"))
        self.now = oracle.NOW
        self.slow = oracle.SlowStore(TTL_MS)
        self.fast: RelayStore

    @initialize()
    def open(self) -> None:
        """Begin with an empty store."""
        self.fast = RelayStore.open(self.folder / "store", self.config, now_ms=self.now)

    def teardown(self) -> None:
        """End with a sound store and no files."""
        try:
            assert self.fast.verify() == []
        finally:
            self.fast.close()
            shutil.rmtree(self.folder)

    def message(self, what: dict[str, Any]) -> Any:
        """Return the message a description means, relative to the present."""
        lane = NAMESPACES[1 + what["sender"] % 2]
        at = self.now - what["age"]
        return FORGE.message(
            what["seq"],
            sender=what["sender"] if what["shared"] else 1 + what["sender"] % 2,
            namespace=SHARED if what["shared"] else lane,
            parent=None if what["shared"] or not what["with_parent"] else oracle.PARENT,
            nonce=what["nonce"],
            blob=what["blob"],
            with_blob=what["with_blob"],
            at=at,
            received_at=at + what["ahead"],
        )

    @rule(batch=st.lists(DESCRIPTIONS, max_size=8))
    def put(self, batch: list[dict[str, Any]]) -> None:
        """The outcomes are the same, one by one."""
        messages = [self.message(what) for what in batch]
        expected = [self.slow.put(message, self.now) for message in messages]

        assert self.fast.put_many(messages, self.now) == expected

    @rule(step=st.integers(0, 400))
    def wait(self, step: int) -> None:
        """Time passes."""
        self.now += step

    @rule()
    def expire(self) -> None:
        """Both forget the same number."""
        expected = self.slow.expire(self.now)
        stats = self.fast.expire(self.now)

        assert (stats.removed_count, stats.hit_limit) == (expected, False)

    @rule(namespace=st.sampled_from(NAMESPACES), seq=SEQUENCES)
    def skip(self, namespace: NamespaceId, seq: int) -> None:
        """Both stop expecting what lies below."""
        self.slow.skip_to(namespace, oracle.PARENT, seq)
        self.fast.skip_to(namespace, oracle.PARENT, seq)

    @rule(namespace=st.sampled_from([*NAMESPACES, oracle.PARENT]), seq=st.integers(0, 12))
    def hand_off(self, namespace: NamespaceId, seq: int) -> None:
        """An archive has read so far (21-51)."""
        self.slow.hand_off(namespace, oracle.PARENT, seq)
        self.fast.set_watermark(namespace, oracle.PARENT, seq)

    @rule(namespace=st.sampled_from([*NAMESPACES, oracle.PARENT]))
    def stop_reading(self, namespace: NamespaceId) -> None:
        """No archive reads it any more."""
        if namespace in self.slow.known:
            self.slow.known[namespace].watermark = None
        self.fast.drop_watermark(namespace)

    @rule()
    def reopen(self) -> None:
        """A restart changes nothing."""
        self.fast.close()
        self.open()

        assert self.fast.verify() == []

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        seqs=st.tuples(st.integers(0, 12), st.integers(0, 12)),
        ages=st.tuples(st.none() | st.integers(-100, 900), st.none() | st.integers(-100, 900)),
        page=st.tuples(st.integers(0, 4), st.integers(0, 3)),
        held=st.booleans(),
    )
    def query(
        self,
        namespace: NamespaceId,
        seqs: tuple[int, int],
        ages: tuple[int | None, int | None],
        page: tuple[int, int],
        held: bool,
    ) -> None:
        """All pages together are what the list gives, in order (21-32)."""
        limit, offset = page
        fields: dict[str, Any] = {
            "namespace_id": namespace,
            "from_seq": seqs[0],
            "to_seq": seqs[1],
            "from_time": 0 if ages[0] is None else self.now - ages[0],
            "to_time": 0 if ages[1] is None else self.now - ages[1],
            "limit": limit,
            "offset": offset,
            "held": held,
        }
        expected = self.slow.matches(NamespaceQuery(**fields), self.now)
        found: list[Any] = []
        cursor = b""
        while True:
            answer = self.fast.query(NamespaceQuery(**fields, cursor=cursor), self.now)
            assert len(answer.messages) <= (limit or CONFIG.page_messages_default)
            found += answer.messages
            if not answer.has_more:
                break
            # An offset counts matches of the first page only, and page_rows_max may end it early.
            fields["offset"] = 0
            cursor = answer.next_cursor

        if offset == 0 or len(self.slow.held) < CONFIG.page_rows_max:
            assert [
                (message.header_bytes, message.blob, message.received_at, message.expires_at)
                for message in found
            ] == [
                (held.message.header.encode(), held.blob, held.message.received_at, held.expires_at)
                for held in expected
            ]

    @rule(
        sender=st.none() | st.integers(1, 6),
        ages=st.tuples(st.none() | st.integers(-100, 900), st.none() | st.integers(-100, 900)),
        limit=st.integers(0, 3),
    )
    def across(self, sender: int | None, ages: tuple[int | None, int | None], limit: int) -> None:
        """All pages by time, or by sender, are what the list gives, in order (21-34, 21-35)."""
        first, last = (0 if age is None else self.now - age for age in ages)
        fields: dict[str, Any] = {"from_time": first, "to_time": last, "limit": limit}
        if sender is None:
            expected = self.slow.in_time(first, last, self.now)
        else:
            fields["sender"] = FORGE.message(1, sender=sender).header.sender_address
            expected = self.slow.of_sender(fields["sender"], first, last, self.now)
        found: list[Any] = []
        while True:
            if sender is None:
                page = self.fast.query_time(TimeQuery(**fields), self.now)
            else:
                page = self.fast.query_sender(SenderQuery(**fields), self.now)
            assert len(page.messages) <= (limit or CONFIG.page_messages_default)
            found += page.messages
            if not page.has_more:
                break
            fields["cursor"] = page.next_cursor

        assert [(message.header_bytes, message.blob) for message in found] == [
            (held.message.header.encode(), held.blob) for held in expected
        ]

    @rule(namespace=st.sampled_from(NAMESPACES), seqs=st.lists(SEQUENCES, max_size=4, unique=True))
    def by_id(self, namespace: NamespaceId, seqs: list[int]) -> None:
        """By id both find the same candidates (21-23)."""
        ids = [FORGE.message(seq, namespace=namespace).header.message_id for seq in seqs]
        expected = [self.slow.by_id(wanted, self.now) for wanted in ids]
        found, missing = self.fast.get_messages(ids, self.now)

        assert [message.header_bytes for message in found] == [
            held.message.header.encode() for slot in expected for held in slot
        ]
        assert missing == [wanted for wanted, slot in zip(ids, expected, strict=True) if not slot]

    @invariant()
    def agree(self) -> None:
        """Heads, holes, lanes and totals are the same after every step."""
        if not hasattr(self, "fast"):
            return
        sizes = 0
        for namespace in NAMESPACES:
            head = self.fast.head(namespace)
            sizes += head.size_bytes
            assert head == self.slow.head(namespace, head.size_bytes)
            expected = self.slow.gaps(namespace) if namespace in self.slow.known else []
            assert self.fast.gaps(namespace) == expected
        stats = self.fast.stats()
        assert (stats.messages, stats.size_bytes) == (len(self.slow.held), sizes)
        assert self.lanes(oracle.PARENT) == sorted(
            name for name, known in self.slow.known.items() if known.parent == oracle.PARENT
        )
        assert self.lanes(None) == sorted(self.slow.known)
        for held in self.slow.held:
            assert self.fast.has(held.content)
        tree = MerkleTree(held.content for held in self.slow.held)
        assert self.fast.tree_root() == tree.root()
        for namespace in NAMESPACES:
            assert self.fast.watermark(namespace) == self.slow.watermark(namespace)

    @rule(data=st.data())
    def by_content(self, data: st.DataObject) -> None:
        """Buckets list what is served, and their ids lead to the messages (J4)."""
        if not self.slow.held:
            return
        held = data.draw(st.sampled_from(self.slow.held))
        ids, cursor = self.fast.bucket_ids(BucketQuery(bucket=bucket_of(held.content)), self.now)
        served = held.expires_at > self.now

        assert cursor == b""
        assert (held.content in ids) == served
        found, missing = self.fast.get_contents([held.content], self.now)
        assert [message.blob for message in found] == ([held.blob] if served else [])
        assert missing == ([] if served else [held.content])

    def lanes(self, parent: NamespaceId | None) -> list[NamespaceId]:
        """Return every namespace of a parent, page by page."""
        names: list[NamespaceId] = []
        cursor = b""
        while True:
            heads, cursor = self.fast.heads(parent, cursor, 0)
            names += [head.namespace_id for head in heads]
            if not cursor:
                return names


TestStoreAgainstOracle = pytest.mark.slow(StoreAgainstOracle.TestCase)
TestStoreAgainstOracle.settings = settings(
    settings(), max_examples=max(10, settings().max_examples // 3), stateful_step_count=30
)


class SlicedStoreAgainstOracle(StoreAgainstOracle):
    """The same with slices so short that messages of one namespace lie in several."""

    config = replace(CONFIG, slice_ms=400, slices_max=4)


TestSlicedStoreAgainstOracle = pytest.mark.slow(SlicedStoreAgainstOracle.TestCase)
TestSlicedStoreAgainstOracle.settings = settings(
    settings(), max_examples=max(10, settings().max_examples // 3), stateful_step_count=30
)
