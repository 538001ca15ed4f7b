"""The ledger finds again what the rows say, and lists heads in order."""

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.bus import NamespaceId
from luxrelay.errors import StoreError
from luxrelay.store import PutOutcome, RelayStore, layout
from luxrelay.store.ledger import Ledger, read_heads
from luxrelay.store.namespaces import NamespaceState
from luxrelay.store.rocks import Database

Opener = Callable[..., Any]


def name(number: int) -> NamespaceId:
    """Return a numbered namespace."""
    return NamespaceId(bytes([number]) * 20)


def write_states(database: Database, states: list[NamespaceState]) -> None:
    """Put state and lane rows as the writer does."""
    batch = database.batch()
    for state in states:
        batch.put(layout.NAMESPACES, state.namespace_id, layout.encode_state(state))
        batch.put(layout.LANES, state.parent + state.namespace_id, b"")
    database.write(batch)


def test_load_sums_and_runs(forge: Any, open_store: Opener) -> None:
    """After a reopen heads, sums and holes are what they were (P44, 21-49)."""
    store = open_store()
    store.put_many([forge.message(seq) for seq in (1, 2, 4, 5, 9)], forge.message(1).received_at)
    namespace = forge.message(1).header.namespace_id
    before = store.head(namespace), store.gaps(namespace), store.stats().size_bytes
    store.close()
    again = open_store()

    assert (again.head(namespace), again.gaps(namespace), again.stats().size_bytes) == before
    assert again.gaps(namespace) == [(3, 3), (6, 8)]
    assert again.stats().messages == 5


def test_an_unknown_namespace_has_a_head_of_zeros(database: Database) -> None:
    """Nothing known is all zero, under its own name."""
    head = Ledger.load(database).head(name(1))

    assert (head.namespace_id, head.parent) == (name(1), name(1))
    assert (head.earliest_seq, head.contiguous_seq, head.latest_seq, head.messages) == (0, 0, 0, 0)


def test_list_a_parent_and_its_lanes_in_pages(database: Database) -> None:
    """Pages of a parent follow the order of ids and end with an empty cursor (J6)."""
    states = [NamespaceState(namespace_id=name(n), parent=name(5)) for n in (3, 5, 9)]
    states.append(NamespaceState(namespace_id=name(4), parent=name(4)))
    write_states(database, states)
    ledger = Ledger.load(database)

    first, cursor = read_heads(database, ledger, name(5), b"", 2)
    second, end = read_heads(database, ledger, name(5), cursor, 2)

    assert [head.namespace_id for head in first] == [name(3), name(5)]
    assert cursor == name(5)
    assert [head.namespace_id for head in second] == [name(9)]
    assert end == b""


def test_a_page_that_ends_the_list_has_no_cursor(database: Database) -> None:
    """A page filled exactly to the end does not promise more."""
    write_states(database, [NamespaceState(namespace_id=name(n), parent=name(n)) for n in (1, 2)])

    heads, cursor = read_heads(database, Ledger.load(database), None, b"", 2)

    assert [head.namespace_id for head in heads] == [name(1), name(2)]
    assert cursor == b""


def test_lanes_of_an_unknown_parent_are_none(database: Database) -> None:
    """A parent nobody has written to has an empty list."""
    assert read_heads(database, Ledger.load(database), name(7), b"", 10) == ([], b"")


def test_a_lane_row_without_state_is_corruption(database: Database) -> None:
    """A namespace without a state is reported, not invented."""
    batch = database.batch()
    batch.put(layout.LANES, name(1) + name(2), b"")
    database.write(batch)

    with pytest.raises(StoreError) as caught:
        read_heads(database, Ledger.load(database), name(1), b"", 10)
    assert caught.value.code == "store.corrupt"


def test_a_broken_state_row_is_corruption(database: Database) -> None:
    """A state that cannot be read stops the start with our error."""
    batch = database.batch()
    batch.put(layout.NAMESPACES, name(1), b"short")
    database.write(batch)

    with pytest.raises(StoreError) as caught:
        Ledger.load(database)
    assert caught.value.code == "store.corrupt"


def test_namespaces_without_messages_make_room(
    forge: Any, open_store: Callable[..., RelayStore], now: int
) -> None:
    """Whoever makes namespaces_max keys keeps nobody out for good (21-47)."""
    store = open_store(namespaces_max=10)
    store.put_many([forge.in_lane(7, sender, at=now + sender) for sender in range(1, 11)], now)
    full = forge.in_lane(1, 11, at=now + 50)
    assert store.put_many([full], now) == [PutOutcome.FULL]

    store.expire(now + 600_050)

    assert store.stats().namespaces == 9
    late = [forge.in_lane(1, sender, at=now + 600_050) for sender in range(11, 19)]
    assert set(store.put_many(late, now + 600_050)) == {PutOutcome.STORED}
    assert store.stats().namespaces <= 10
    assert store.verify() == []


def test_a_forgotten_head_never_goes_back(
    forge: Any, open_store: Callable[..., RelayStore], parent: Any, now: int
) -> None:
    """A lane that made room keeps its latest sequence, over a restart and when it comes again."""
    store = open_store(namespaces_max=2)
    lane = forge.lane(1)
    store.put_many([forge.in_lane(seq, 1) for seq in (1, 2, 5)], now)
    store.put_many([forge.in_lane(1, 2, at=now + 1)], now)
    before = store.head(lane)
    store.expire(now + 600_050)
    assert lane not in store._ledger.states

    for _ in range(2):
        head = store.head(lane)
        assert (head.latest_seq, head.latest_header_hash) == (5, before.latest_header_hash)
        assert (head.parent, head.floor, head.contiguous_seq) == (parent, 5, 5)
        store.close()
        store = open_store(namespaces_max=2)
    assert store.put_many([forge.in_lane(6, 1, at=now + 600_060)], now + 600_060) == [
        PutOutcome.STORED
    ]
    head = store.head(lane)
    assert (head.latest_seq, head.contiguous_seq, head.messages) == (6, 6, 1)
    assert store._ledger.forgotten == len(list(store._database.keys("forgotten", b"", b"")))
    assert store.verify() == []


def test_a_watermark_is_not_forgotten(
    forge: Any, open_store: Callable[..., RelayStore], parent: Any, now: int
) -> None:
    """What an archive reads stays known (J8)."""
    store = open_store(namespaces_max=2)
    store.set_watermark(forge.lane(1), parent, 3)
    store.set_watermark(forge.lane(2), parent, 3)
    store.expire(now + 600_000)

    assert store.watermark(forge.lane(1)) == 3
    assert store.put_many([forge.in_lane(1, 3)], now) == [PutOutcome.FULL]


def test_forgotten_heads_are_bounded(
    forge: Any, open_store: Callable[..., RelayStore], now: int
) -> None:
    """forgotten_max heads are kept on the disk; then namespaces_max holds again."""
    store = open_store(namespaces_max=10, forgotten_max=2)
    store.put_many([forge.in_lane(1, sender) for sender in range(1, 11)], now)
    store.expire(now + 600_050)
    for sender in range(11, 21):
        store.put_many([forge.in_lane(1, sender, at=now + 600_050)], now + 600_050)
        store.expire(now + 600_050)

    assert store._ledger.forgotten == 2
    assert store.stats().namespaces == 10
    assert store.verify() == []
