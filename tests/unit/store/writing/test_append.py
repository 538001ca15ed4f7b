"""The loop of ingest makes what the careful way makes, and stops where that must decide."""

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.store import PutOutcome, RelayStore, layout
from luxrelay.store.namespaces import NamespaceState
from luxrelay.store.writing.batch import Group, Tail

Opener = Callable[..., RelayStore]


def everything(store: RelayStore) -> dict[str, list[tuple[bytes, bytes]]]:
    """Return every row of a store."""
    database = store._database
    return {name: list(database.scan(name, b"", b"")) for name in database.names}


def life(forge: Any, now: int) -> list[list[Any]]:
    """Return batches with all that ingest meets."""
    lanes = [forge.in_lane(seq, sender) for seq in range(1, 30) for sender in (1, 2, 3)]
    shared = [forge.message(seq, sender=1 + seq % 3, source=b"peer") for seq in range(1, 20)]
    return [
        lanes,
        shared + [forge.message(seq, sender=4) for seq in (22, 21, 25, 26, 20)],
        [forge.message(seq, blob=b"", at=now - seq) for seq in range(27, 33)],
        [forge.message(40, blob=bytes(9_000)), forge.message(41, with_blob=False)],
        [forge.message(seq, at=now + 70_000 * (seq % 2)) for seq in range(50, 60)],
        [forge.message(seq, received_at=now - 1_000) for seq in (60, 60, 59, 61)],
        [forge.message(41), forge.message(70, sender=2), forge.message(70, sender=3)],
        [
            forge.message(1, sender=5, namespace=forge.lane(5)),
            forge.message(2, sender=5, namespace=forge.lane(5)),
            forge.in_lane(3, 5),
            forge.message(4, sender=5, namespace=forge.lane(5)),
        ],
        [forge.in_lane(30, 1), forge.message(71), forge.in_lane(31, 1), forge.in_lane(33, 1)],
    ]


def test_the_loop_makes_the_rows_of_the_careful_way(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row, head, sum and tree is the same when no message is taken for a plain one (P9)."""
    quick, careful = open_store("quick"), open_store("careful")
    for batch in life(forge, now):
        outcomes = quick.put_many(batch, now)
        with monkeypatch.context() as patch:
            patch.setattr(Group, "place_plain", lambda _self, _messages, start, _now: start)
            assert careful.put_many(batch, now) == outcomes

    assert everything(quick) == everything(careful)
    assert quick.tree_root() == careful.tree_root()
    assert quick.stats().outcomes == careful.stats().outcomes
    assert quick.stats().hot_bytes == careful.stats().hot_bytes
    assert quick.verify() == careful.verify() == []
    for where, twin in zip(quick._ledger.slices.live, careful._ledger.slices.live, strict=True):
        assert (where.blob_bytes, where.next_due) == (twin.blob_bytes, twin.next_due)
    assert quick._ledger.time_hint == careful._ledger.time_hint


def test_nearly_all_messages_are_plain(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of messages in order only the first of each new namespace is looked at closely."""
    closely = []
    place = Group.place
    monkeypatch.setattr(
        Group,
        "place",
        lambda self, message, at: closely.append(message) or place(self, message, at),
    )
    store = open_store()
    for first in (1, 11, 21):
        batch = [forge.in_lane(seq, who) for seq in range(first, first + 10) for who in (1, 2)]
        assert set(store.put_many(batch, now)) == {PutOutcome.STORED}

    assert len(closely) == 2


def test_a_hole_does_not_end_the_loop(
    forge: Any, open_store: Opener, parent: Any, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace with a hole is appended to as fast as one without (P25)."""
    store = open_store()
    store.put_many([forge.message(1)], now)
    monkeypatch.setattr(Group, "place", None)
    batch = [forge.message(seq) for seq in (2, 3, 7, 8, 12, 13)]
    store.put_many(batch, now)

    head = store.head(parent)
    assert (head.contiguous_seq, head.latest_seq, head.messages) == (3, 13, 7)
    assert head.latest_header_hash == batch[-1].header.header_hash
    assert store.gaps(parent) == [(4, 6), (9, 11)]


def test_a_run_keeps_away_from_the_quota(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """What might not fit is decided one by one, so a quota is kept to the byte (21-03)."""
    one = layout.charge_of(len(forge.message(1).header.encode()), 0, 1, 5)
    store = open_store(namespace_quotas={parent: 5 * one}, when_full="refuse")
    outcomes = store.put_many([forge.message(seq) for seq in range(1, 9)], now)

    assert outcomes == [PutOutcome.STORED] * 5 + [PutOutcome.FULL] * 3
    assert store.stats().size_bytes == 5 * one


def test_a_tail_knows_the_next_sequence(parent: Any) -> None:
    """With holes there is no next one; below the head nothing is appended."""
    whole = NamespaceState(namespace_id=parent, parent=parent, latest=7, contiguous=7, earliest=1)
    holed = whole.copy()
    holed.hold(9)

    assert Tail(whole, 8).next == 8
    assert Tail(holed, 10).next == 0
    assert not Tail(whole, 7).jump(7)
    assert Tail(holed, 10).jump(10)
    assert (holed.latest, holed.contiguous) == (10, 7)


def test_a_run_that_stores_nothing_changes_nothing(
    forge: Any, open_store: Opener, now: int
) -> None:
    """Duplicates leave no batch behind (21-30)."""
    store = open_store()
    store.put_many([forge.message(1)], now)
    before = everything(store)

    assert store.put_many([forge.message(1)] * 3, now) == [PutOutcome.DUPLICATE] * 3
    assert everything(store) == before
    assert store.stats().batches == 1


def test_a_slot_that_was_full_and_is_then_taken(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """A message refused for room, then a smaller one for its slot: the head is right."""
    one = layout.charge_of(len(forge.message(1).header.encode()), 0, 1, 5)
    store = open_store(namespace_quotas={parent: one}, when_full="refuse")
    large = forge.message(2, blob=bytes(100))
    store.skip_to(parent, parent, 1)
    store.put_many([forge.message(1, namespace=forge.lane(1))], now)

    assert store.put_many([large, forge.message(2)], now) == [PutOutcome.FULL, PutOutcome.STORED]
    assert store.head(parent).earliest_seq == 2
    assert store.verify() == []
