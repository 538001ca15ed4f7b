"""The orphan scan finds every kind of damage and none in a sound store."""

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.store import RelayStore, layout
from luxrelay.store.maintenance.audit import NAMES

Opener = Callable[..., RelayStore]
LARGE = b"x" * 5000


@pytest.fixture
def store(forge: Any, open_store: Opener, now: int) -> RelayStore:
    """A sound store with lanes, a contended slot, a hole, small and large blobs, one held."""
    opened = open_store(slice_ms=1_200_000)
    messages = [forge.in_lane(seq, sender) for sender in (1, 2) for seq in (1, 2, 4)]
    messages += [forge.message(1, sender=sender) for sender in range(5)]
    messages += [forge.message(2, blob=LARGE), forge.message(3, blob=LARGE)]
    messages.append(forge.in_lane(1, 3, at=now - 1))
    messages.append(forge.in_lane(3, 1, ciphertext=LARGE))
    opened.put_many(messages, now)
    opened.set_watermark(forge.lane(3), messages[0].parent, 0)
    opened.expire(now + 599_999)
    return opened


ROWS = [layout.LANES, *layout.KINDS]
"""Tables and kinds of rows whose every row belongs to a message or a namespace."""


def first(store: RelayStore, where: str | bytes) -> tuple[bytes, bytes]:
    """Return the first row of a table or of a kind."""
    if isinstance(where, str):
        return next(store._database.scan(where, b"", b""))
    return next(store._ledger.slices.scan(where, b"", b""))


def put(store: RelayStore, where: str | bytes, key: bytes, value: bytes | None) -> None:
    """Write a row behind the store's back, or take it away."""
    batch = store._database.batch()
    if isinstance(where, str) and value is not None:
        batch.put(where, key, value)
    elif isinstance(where, str):
        batch.delete(where, key)
    else:
        (table,) = [each.table for each in store._ledger.slices.live]
        if value is None:
            batch.delete_rows(table, [where + key])
        else:
            batch.put_rows(table, [(where + key, value)])
    store._database.write(batch)


def test_find_a_wrong_tree(store: RelayStore) -> None:
    """A tree that is not that of the id rows is reported (J4)."""
    store._ledger.tree.insert(bytes(32))

    assert store.verify() == ["tree: its buckets are not those of the id rows"]


def test_find_a_wrong_tree_of_a_slice(store: RelayStore) -> None:
    """Each slice's own tree is compared as well."""
    store._ledger.slices.live[0].tree.insert(bytes(32))

    assert any("slice 1" in line for line in store.verify())


def test_a_sound_store_has_no_findings(store: RelayStore) -> None:
    """Nothing is reported where nothing is wrong (21-09)."""
    assert store.verify() == []


@pytest.mark.parametrize("family", ROWS)
def test_find_a_missing_row(store: RelayStore, family: str | bytes) -> None:
    """Whichever row is taken away, the scan notices (21-09, P9)."""
    key, _ = first(store, family)
    put(store, family, key, None)

    assert store.verify() != []


@pytest.mark.parametrize("family", ROWS)
def test_find_a_row_too_many(store: RelayStore, family: str | bytes) -> None:
    """A row that belongs to nothing is named by its family (21-45)."""
    key, value = first(store, family)
    put(store, family, bytes(len(key) - 1) + b"\x01", value)

    name = family if isinstance(family, str) else NAMES[family]
    assert any(line.startswith(name) for line in store.verify())


@pytest.mark.parametrize(
    "family", [layout.HEADERS, layout.SLOTS, layout.CONTENTS, layout.REFERENCES, layout.BLOBS]
)
def test_find_a_changed_value(store: RelayStore, family: bytes) -> None:
    """A value that is not what was written is reported."""
    key, value = first(store, family)
    put(store, family, key, value[:-1])

    assert store.verify() != []


def test_find_a_header_that_cannot_be_decoded(store: RelayStore) -> None:
    """A row that holds no header is reported, not raised."""
    key, value = first(store, layout.HEADERS)
    row = layout.decode_row(value)
    put(store, layout.HEADERS, key, layout.encode_row(row._replace(header=bytes(200))))

    assert any("headers" in line for line in store.verify())


@pytest.mark.parametrize("field", ["messages", "size_bytes", "earliest", "latest", "contiguous"])
def test_find_a_wrong_sum(store: RelayStore, field: str) -> None:
    """Counters and heads are compared with the rows (P44)."""
    state = next(iter(store._ledger.states.values()))
    setattr(state, field, 0)

    assert any(line.startswith("namespaces") for line in store.verify())


def test_find_a_namespace_without_state(store: RelayStore) -> None:
    """Messages without a state, and a state that counts messages it has not."""
    namespace, state = store._ledger.states.popitem()
    assert any("no state" in line for line in store.verify())
    ghost = type(namespace)(b"g" * 20)
    store._ledger.states[ghost] = state

    assert any("has none" in line for line in store.verify())


def test_stop_at_findings_max(forge: Any, open_store: Opener, now: int) -> None:
    """A ruined store gives findings_max lines, not all of them."""
    store = open_store(findings_max=2, slice_ms=1_200_000)
    store.put_many([forge.message(seq) for seq in range(1, 9)], now)
    for key in list(store._ledger.slices.keys(layout.TIMES, b"", b"")):
        put(store, layout.TIMES, key, None)

    assert len(store.verify()) == 2


@pytest.mark.parametrize("change", [{"messages": 9}, {"size_bytes": 9}, {"first": 2}, {"last": 1}])
def test_find_a_wrong_share(store: RelayStore, parent: Any, change: dict[str, int]) -> None:
    """What a slice says it holds of a namespace is compared with its messages."""
    where = store._ledger.slices.live[0]
    where.shares[parent] = where.shares[parent]._replace(**change)
    put(store, layout.SHARES, parent, layout.encode_share(where.shares[parent]))

    assert any(line.startswith("shares") for line in store.verify())


def test_find_a_wrong_sender(store: RelayStore) -> None:
    """What a slice counts of a sender is compared with its messages (21-35)."""
    where = store._ledger.slices.live[0]
    where.senders[next(iter(where.senders))] += 1

    assert any(line.startswith("senders") for line in store.verify())


def test_find_a_wrong_total(store: RelayStore) -> None:
    """The store's sums are those of its slices (P44)."""
    store._ledger.messages += 1

    assert any(line.startswith("totals") for line in store.verify())
