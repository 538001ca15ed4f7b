"""The orphan scan: has every message all its rows, every row its message, every sum its terms?

Reads the whole store once by messages and once by index rows; memory does not grow with it. The
Merkle tree is built anew and compared.

Source: decisions J4, P9, P44; 21-09, 21-45.
"""

from __future__ import annotations

from collections.abc import Iterator

from luxrelay.bus import MsgHeader, NamespaceId, message_id
from luxrelay.errors import BusArgumentError, HeaderError, StoreError
from luxrelay.store import layout
from luxrelay.store.layout import BlobPlace, MessageRow
from luxrelay.store.ledger import Ledger
from luxrelay.store.merkle import MerkleTree
from luxrelay.store.namespaces import NamespaceState
from luxrelay.store.rocks import Database

_KEYED_BY_MESSAGE = (layout.TIMES, layout.EXPIRIES, layout.SENDERS, layout.REFERENCES)


def findings(database: Database, ledger: Ledger) -> Iterator[str]:
    """Yield one line for each thing that is not as it should be; nothing for a sound store."""
    yield from _messages(database, ledger)
    yield from _index_rows(database)
    yield from _slots_and_contents(database)
    yield from _held(database, ledger)
    yield from _tree(database, ledger)
    yield from _blobs(database)
    yield from _lanes(database, ledger)


def _messages(database: Database, ledger: Ledger) -> Iterator[str]:
    """Each message: readable, under its own key, with every row; each namespace: its sums."""
    counted: NamespaceState | None = None
    seen: set[NamespaceId] = set()
    for key, value in database.scan(layout.HEADERS, b"", b""):
        namespace, seq = layout.split_slot(key)
        if counted is None or counted.namespace_id != namespace:
            if counted is not None:
                yield from _sums(counted, ledger)
            counted = NamespaceState(namespace_id=namespace, parent=namespace)
            seen.add(namespace)
            known = ledger.states.get(namespace)
            if known is not None:
                counted.raise_floor(known.floor)
        try:
            row = layout.decode_row(value)
        except StoreError as error:
            yield f"headers {key.hex()}: {error.what}"
            continue
        counted.hold(seq)
        counted.messages += 1
        counted.size_bytes += layout.charge_bytes(row)
        yield from _message(database, key, row)
    if counted is not None:
        yield from _sums(counted, ledger)
    for namespace, state in ledger.states.items():
        if namespace not in seen and (state.messages or state.size_bytes or state.earliest):
            yield f"namespaces {namespace.hex()}: counts messages, has none"


def _message(database: Database, key: bytes, row: MessageRow) -> Iterator[str]:
    try:
        header = MsgHeader.decode(row.header)
    except HeaderError as error:
        yield f"headers {key.hex()}: {error.what}"
        return
    if layout.slot_key(header.namespace_id, header.seq) + header.content_id != key:
        yield f"headers {key.hex()}: holds another message"
    held = database.get(layout.HELD, key) is not None
    for family, index_key, value in layout.index_rows(key, row):
        expected = None if held and family == layout.EXPIRIES else value
        if database.get(family, index_key) != expected:
            yield f"headers {key.hex()}: its row in {family} is missing or wrong"
    if row.place is BlobPlace.APART:
        blob = database.get(layout.BLOBS, row.commitment)
        if blob is None or len(blob) != row.blob_len:
            yield f"headers {key.hex()}: its blob is missing or has another length"


def _sums(counted: NamespaceState, ledger: Ledger) -> Iterator[str]:
    name = f"namespaces {counted.namespace_id.hex()}"
    state = ledger.states.get(counted.namespace_id)
    if state is None:
        yield f"{name}: has messages, but no state"
        return
    for field in ("messages", "size_bytes", "earliest"):
        if getattr(state, field) != getattr(counted, field):
            yield (
                f"{name}: {field} says {getattr(state, field)}, "
                f"the rows say {getattr(counted, field)}"
            )
    if state.latest < counted.latest:
        yield f"{name}: latest says {state.latest}, the rows say {counted.latest}"
    # The head never goes back, so rows that have gone may lie below it; none may lie just above.
    if state.contiguous < counted.contiguous or state.runs.runs() != counted.runs.runs():
        yield f"{name}: the contiguous head says {state.contiguous}, the rows go on"


def _index_rows(database: Database) -> Iterator[str]:
    """Each row that ends in a message key belongs to that message."""
    for family in _KEYED_BY_MESSAGE:
        for index_key, value in database.scan(family, b"", b""):
            key = index_key[-layout.MESSAGE_KEY_BYTES :]
            stored = database.get(layout.HEADERS, key)
            if stored is None or not _belongs(family, index_key, value, key, stored):
                yield f"{family} {index_key.hex()}: belongs to no message"


def _belongs(family: str, index_key: bytes, value: bytes, key: bytes, stored: bytes) -> bool:
    try:
        return (family, index_key, value) in layout.index_rows(key, layout.decode_row(stored))
    except (StoreError, BusArgumentError):
        return False  # the message itself is reported


def _slots_and_contents(database: Database) -> Iterator[str]:
    for content, value in database.scan(layout.CONTENTS, b"", b""):
        if database.get(layout.HEADERS, value[: layout.SLOT_BYTES] + content) is None:
            yield f"contents {content.hex()}: belongs to no message"
    for message, slot in database.scan(layout.SLOTS, b"", b""):
        named = len(slot) == layout.SLOT_BYTES and message == message_id(*layout.split_slot(slot))
        known = next(database.keys(layout.HEADERS, slot, layout.after(slot)), None)
        if not named or known is None:
            yield f"slots {message.hex()}: belongs to no message"


def _held(database: Database, ledger: Ledger) -> Iterator[str]:
    """Each message set aside for the archive is there, and they are as many as counted."""
    rows = 0
    for key in database.keys(layout.HELD, b"", b""):
        rows += 1
        if database.get(layout.HEADERS, key) is None:
            yield f"held {key.hex()}: belongs to no message"
    if rows != ledger.held:
        yield f"held: {rows} rows, {ledger.held} are counted"


def _tree(database: Database, ledger: Ledger) -> Iterator[str]:
    """The Merkle tree is the one that the id rows give (J4)."""
    if MerkleTree(database.keys(layout.CONTENTS, b"", b"")) != ledger.tree:
        yield "tree: its buckets are not those of the id rows"


def _blobs(database: Database) -> Iterator[str]:
    apart = bytes([BlobPlace.APART])
    for commitment in database.keys(layout.BLOBS, b"", b""):
        rows = database.scan(layout.REFERENCES, commitment, layout.after(commitment))
        if not any(value == apart for _, value in rows):
            yield f"blobs {commitment.hex()}: no message refers to it"


def _lanes(database: Database, ledger: Ledger) -> Iterator[str]:
    rows = 0
    for key in database.keys(layout.LANES, b"", b""):
        rows += 1
        state = ledger.states.get(NamespaceId(key[20:]))
        if state is None or state.parent != key[:20]:
            yield f"lanes {key.hex()}: belongs to no namespace"
    if rows < len(ledger.states):
        yield f"lanes: {rows} rows for {len(ledger.states)} namespaces"
