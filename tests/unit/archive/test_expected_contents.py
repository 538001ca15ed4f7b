"""What of the archive a relay should hold, against sets and lists."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha3_256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.archive import expected_contents as holdings
from luxrelay.archive.expected_contents import (
    HeldRow,
    HeldTree,
    block_digests,
    block_rows,
    held_tree,
    losers,
    rows_of,
)
from luxrelay.archive.query import ArchiveReader
from luxrelay.bus import MsgHeader, NamespaceId
from luxrelay.bus.finality import FinalityState
from luxrelay.store.merkle import MerkleTree, bucket_of
from luxrelay.sync import WireMessage
from luxrelay.sync.heads import SeqRange

A, B = NamespaceId(b"a" * 20), NamespaceId(b"b" * 20)
Forge = Callable[..., WireMessage]


def _row(seq: int, content: bytes, sender: bytes = b"s", finality: int = 0) -> HeldRow:
    return HeldRow(
        namespace_id=A,
        seq=seq,
        content_id=content,
        header_hash=content[::-1],
        sender=sender,
        expires_at=1,
        relays=(),
        finality=finality,
    )


@given(st.sets(st.binary(min_size=32, max_size=32), max_size=40), st.integers(1, 5))
def test_a_tree_is_that_of_its_ids(ids: set[bytes], limit: int) -> None:
    """Hashes, buckets and the lowest ids of each, as a relay's own tree has them (J4)."""
    tree = HeldTree(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 32))
    twin = MerkleTree(ids)

    assert len(tree) == len(ids)
    assert list(tree.nodes()) == twin.nodes()
    for bucket in {bucket_of(each) for each in ids} | {0, 65_535}:
        mine = sorted(each for each in ids if bucket_of(each) == bucket)
        assert tree.ids(bucket, limit) == mine[:limit]
        assert tree.buckets(bucket >> 8) == twin.buckets(bucket >> 8)


def test_a_tree_is_of_what_lies_in_intervals(
    archive_of: Callable[..., Path], forge: Forge, tmp_path: Path
) -> None:
    """Both ends of an interval included, of the namespaces named, and no loser of a slot (J11)."""
    messages = [forge(name, seq) for name in (A, B) for seq in range(1, 12)]
    rivals = [forge(A, 5, blob=b"%d" % number) for number in range(3)]  # of one sender
    reader = ArchiveReader(archive_of(tmp_path / "archive", [*messages, *rivals]))
    spans = {bytes(A): [SeqRange(2, 3), SeqRange(5, 2**64 - 1)], b"c" * 20: [SeqRange(1, 9)]}

    tree = held_tree(reader, spans)

    slot = [_content(m) for m in (*messages, *rivals) if (m.namespace_id, m.seq) == (A, 5)]
    others = {_content(m) for m in messages if m.namespace_id == A and m.seq not in {1, 4, 5}}
    assert tree is not None
    assert list(tree.nodes()) == MerkleTree(others | {min(slot)}).nodes()
    assert len(held_tree(reader, {}) or "") == 0


def test_a_tree_of_more_ids_than_there_may_be_is_none(
    archive_of: Callable[..., Path], forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the bound there is one, above it none."""
    reader = ArchiveReader(archive_of(tmp_path / "archive", [forge(A, 1), forge(A, 2)]))
    monkeypatch.setattr(holdings, "IDS_MAX", 1)

    assert held_tree(reader, {bytes(A): [SeqRange(1, 2)]}) is None
    assert held_tree(reader, {bytes(A): [SeqRange(2, 2)]}) is not None


def test_who_loses_a_slot() -> None:
    """A sender keeps its lowest content, four senders stay, a finalized one stays alone (P40)."""
    own = [_row(1, bytes([n]) * 32) for n in (3, 1, 2)]
    several = [_row(2, bytes([n]) * 32, bytes([n])) for n in (5, 4, 3, 2, 1)]
    final = [_row(3, bytes([n]) * 32, bytes([n])) for n in (1, 2)]
    final.append(_row(3, b"\x09" * 32, b"f", int(FinalityState.FINALIZED)))

    lost = losers([*own, *several, *final])

    found = sorted((row.seq, row.content_id[0]) for row in lost)
    assert found == [(1, 2), (1, 3), (2, 5), (3, 1), (3, 2)]


def test_blocks_are_summed_up_as_relays_do(
    archive_of: Callable[..., Path], forge: Forge, tmp_path: Path
) -> None:
    """Header hashes in order of sequence and content id; nothing for an empty block (P26)."""
    messages = [forge(A, seq) for seq in (1, 256, 257, 513, 1_100)]
    reader = ArchiveReader(archive_of(tmp_path / "archive", [*messages, forge(B, 2)]))

    rows = block_rows(reader, A, 0, 4)
    digests = block_digests(rows, [SeqRange(1, 256), SeqRange(513, 900)], 0, 4)

    hashes = [MsgHeader.decode(m.header).header_hash for m in messages]
    assert [row.seq for row in rows] == [1, 256, 257, 513]
    assert digests == [
        sha3_256(hashes[0] + hashes[1]).digest(),
        b"",
        sha3_256(hashes[3]).digest(),
        b"",
    ]
    assert [row.seq for row in rows_of(reader, [_content(messages[4])])] == [1_100]
    assert block_rows(reader, A, 2**55 - 1, 1) == []


def _content(message: WireMessage) -> bytes:
    return MsgHeader.decode(message.header).content_id
