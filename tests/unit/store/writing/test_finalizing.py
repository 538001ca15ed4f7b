"""A slot that consensus has decided keeps that message alone, and heads say how far it has come."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from luxrelay.bus.finality import FinalityRow, FinalityState, StatementOracle
from luxrelay.errors import StoreArgumentError
from luxrelay.store import PutOutcome, RelayStore

Opener = Callable[..., RelayStore]
FINALIZED, REORGED = FinalityState.FINALIZED, FinalityState.REORGED


def said(message: Any, state: FinalityState = FINALIZED) -> FinalityRow:
    """Return what a statement says of a message."""
    header = message.header
    return FinalityRow(header.namespace_id, header.seq, header.header_hash, state)


def rivals(forge: Any, seq: int, count: int = 4) -> list[Any]:
    """Return contents of several senders for one slot, in the order of their ids."""
    made = [forge.message(seq, sender=sender, nonce=sender) for sender in range(1, count + 1)]
    return sorted(made, key=lambda message: message.header.content_id)


def held(store: RelayStore, message: Any, now: int) -> list[tuple[bytes, int]]:
    """Return content id and finality of every candidate in a slot."""
    found, _ = store.get_messages([message.header.message_id], now)
    return [(each.header.content_id, each.finality) for each in found]


def test_losers_of_a_finalized_slot_are_dropped(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """The one finalized stays, marked; counters, tree and rows are right (21-58, P40)."""
    store, alone = open_store(), open_store("alone")
    slot = rivals(forge, 1)
    winner = slot[2]
    store.put_many([*slot, forge.message(2)], now)
    alone.put_many([winner, forge.message(2)], now)

    assert store.apply_finality([said(winner)], {parent: 1}) == []
    assert held(store, winner, now) == [(winner.header.content_id, FINALIZED)]
    assert store.verify() == []
    assert store.tree_root() == alone.tree_root()
    stats, expected = store.stats(), alone.stats()
    assert (stats.messages, stats.size_bytes) == (expected.messages, expected.size_bytes)
    assert stats.superseded == 3
    assert not store.has(slot[0].header.content_id)
    head = store.head(parent)
    assert (head.finalized_seq, head.contiguous_seq, head.messages) == (1, 2, 2)


def test_the_head_shows_the_winner_and_outlives_a_restart(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """Finalized head, mark and crowned hash are on the disk (21-58, J9)."""
    store = open_store()
    slot = rivals(forge, 1)
    store.put_many(slot, now)
    assert store.head(parent).latest_header_hash == slot[0].header.header_hash
    store.apply_finality([said(slot[3])], {parent: 1})
    before = store.head(parent)
    store.close()
    again = open_store()

    assert before.latest_header_hash == slot[3].header.header_hash
    assert again.head(parent) == before
    assert again.heads(None, b"", 0)[0][0].finalized_seq == 1
    assert held(again, slot[3], now) == [(slot[3].header.content_id, FINALIZED)]
    assert again.verify() == []


def test_no_rival_comes_back_until_the_slot_is_open_again(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """A lower content id loses against a finalized one; REORGED ends that (21-58, J9, J11)."""
    store = open_store()
    low, high = rivals(forge, 1, 2)
    store.put_many([high], now)
    store.apply_finality([said(high)], {parent: 1})

    assert store.put_many([low, high], now) == [PutOutcome.LOST_SLOT, PutOutcome.DUPLICATE]
    store.apply_finality([said(high, REORGED)], {parent: 0})
    assert store.head(parent).finalized_seq == 0
    assert store.put_many([low], now) == [PutOutcome.STORED]
    assert held(store, high, now) == [
        (low.header.content_id, FinalityState.PENDING),
        (high.header.content_id, REORGED),
    ]
    assert store.verify() == []


def test_a_statement_ahead_of_its_message_waits(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """It is handed back, nothing is dropped for it, and it counts when it is said again."""
    store = open_store()
    other, winner = rivals(forge, 1, 2)
    assert store.apply_finality([said(winner)], {parent: 1}) == [said(winner)]
    assert store.stats().namespaces == 0
    store.put_many([other], now)

    assert store.apply_finality([said(winner)], {parent: 1}) == [said(winner)]
    assert held(store, other, now) == [(other.header.content_id, FinalityState.PENDING)]
    assert store.head(parent).finalized_seq == 1
    store.put_many([winner], now)
    assert store.apply_finality([said(winner)], {parent: 1}) == []
    assert held(store, winner, now) == [(winner.header.content_id, FINALIZED)]
    assert store.verify() == []


def test_a_statement_on_what_is_forgotten_does_not_wait(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """Nothing below the floor is waited for."""
    store = open_store()
    store.put_many([forge.message(1)], now)
    store.expire(now + 600_000)

    assert store.apply_finality([said(forge.message(1))], {parent: 1}) == []


def test_saying_it_again_writes_nothing(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """A repeated statement makes no batch."""
    store = open_store()
    store.put_many(rivals(forge, 1), now)
    store.apply_finality([said(rivals(forge, 1)[1])], {parent: 1})
    batches = store.stats().batches
    store.apply_finality([said(rivals(forge, 1)[1])], {parent: 1})

    assert store.stats().batches == batches


def test_candidates_in_several_slices_and_with_shared_blobs(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """A winner keeps its blob when a loser that shares it goes, also in another slice (P29)."""
    store = open_store(slice_ms=60_000)
    blob = bytes(10_000)
    first = forge.message(1, sender=1, blob=blob, nonce=1)
    second = forge.message(1, sender=2, blob=blob, nonce=2, at=now + 200_000)
    twin = forge.message(1, sender=3, blob=blob, nonce=3)
    store.put_many([first, second, twin], now)
    store.apply_finality([said(twin)], {parent: 1})

    (found,), _ = store.get_messages([twin.header.message_id], now)
    assert (found.header.content_id, found.blob) == (twin.header.content_id, blob)
    assert store.verify() == []


@pytest.mark.parametrize("chunk", [1, 2, 1_000])
def test_every_slot_is_decided_whatever_the_chunk(
    forge: Any, open_store: Opener, now: int, parent: Any, chunk: int
) -> None:
    """Statements go in chunks of gc_chunk_size; the outcome does not depend on it."""
    store = open_store(gc_chunk_size=chunk)
    slots = [rivals(forge, seq, 3) for seq in range(1, 4)]
    for slot, order in zip(slots, permutations(range(3)), strict=False):
        store.put_many([slot[at] for at in order], now)
    store.apply_finality([said(slot[1]) for slot in slots], {parent: 3})

    assert [held(store, slot[1], now) for slot in slots] == [
        [(slot[1].header.content_id, FINALIZED)] for slot in slots
    ]
    assert store.head(parent).finalized_seq == 3


def test_senders_of_equal_headers_share_a_hash(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """The hash names no sender: of two the lower content id stays, as everywhere (J11)."""
    store = open_store()
    twins = [forge.message(1, sender=sender) for sender in (1, 2)]
    assert len({twin.header.header_hash for twin in twins}) == 1
    store.put_many(twins, now)
    store.apply_finality([said(twins[0])], {parent: 1})

    lowest = min(twin.header.content_id for twin in twins)
    assert held(store, twins[0], now) == [(lowest, FINALIZED)]


def test_a_store_opened_for_reading_takes_nothing(
    forge: Any, open_store: Opener, now: int, parent: Any, tmp_path: Any
) -> None:
    """Tools cannot change what consensus said."""
    open_store().put_many([forge.message(1)], now)
    with (
        RelayStore.open_read_only(tmp_path / "store", now_ms=now) as shown,
        pytest.raises(StoreArgumentError, match="reading only"),
    ):
        shown.apply_finality([said(forge.message(1))], {parent: 1})


def test_without_an_oracle_everything_is_pending(
    forge: Any, open_store: Opener, now: int, parent: Any
) -> None:
    """Head and messages say so (J9)."""
    store = open_store()
    store.put_many([forge.message(1)], now)

    assert store.head(parent).finalized_seq == StatementOracle("devnet", []).finalized_seq(parent)
    assert [state for _, state in held(store, forge.message(1), now)] == [FinalityState.PENDING]
