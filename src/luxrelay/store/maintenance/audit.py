"""The orphan scan: has every message all its rows, every row its message, every sum its terms?

Reads the whole store once by messages and once by index rows; memory does not grow with it. The
Merkle tree is built anew and compared.

Source: decisions J4, P9, P44; 21-09, 21-45.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from luxrelay.bus import MsgHeader, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import BusArgumentError, HeaderError, StoreError
from luxrelay.store import layout
from luxrelay.store.layout import BlobPlace, MessageRow, Share
from luxrelay.store.ledger import Ledger
from luxrelay.store.merkle import MerkleTree
from luxrelay.store.namespaces import NamespaceState
from luxrelay.store.rocks import Database
from luxrelay.store.slices import Slice

_KEYED_BY_MESSAGE = (layout.TIMES, layout.REFERENCES)
NAMES = {
    layout.HEADERS: "headers",
    layout.TIMES: "times",
    layout.CONTENTS: "contents",
    layout.SLOTS: "slots",
    layout.REFERENCES: "references",
    layout.BLOBS: "blobs",
    layout.SIDECARS: "sidecars",
    layout.HELD: "held",
    layout.SENDERS: "senders",
    layout.SHARES: "shares",
    layout.THINNED: "thinned",
}
"""What a kind of row is called in a finding."""


def findings(database: Database, ledger: Ledger) -> Iterator[str]:
    """Yield one line for each thing that is not as it should be; nothing for a sound store."""
    yield from _messages(ledger)
    for each in ledger.slices.live:
        yield from _index_rows(each)
        yield from _slots_and_contents(each)
        yield from _held(each)
        yield from _blobs(each)
        yield from _shares(each)
        yield from _thinned(ledger, each)
    yield from _totals(ledger)
    yield from _lanes(database, ledger)
    for name in database.keys(layout.FORGOTTEN, b"", b""):
        if NamespaceId(name) in ledger.states:
            yield f"forgotten {name.hex()}: is known"


def _messages(ledger: Ledger) -> Iterator[str]:
    """Each message: readable, under its own key, with every row; each namespace: its sums."""
    counted: NamespaceState | None = None
    seen: set[NamespaceId] = set()
    for key, value in ledger.slices.scan(layout.HEADERS, b"", b""):
        namespace, seq = layout.split_slot(key)
        if counted is None or counted.namespace_id != namespace:
            if counted is not None:
                yield from _sums(counted, ledger)
            counted = NamespaceState(namespace_id=namespace, parent=namespace)
            seen.add(namespace)
            for slot in ledger.slices.keys(layout.THINNED, namespace, layout.after(namespace)):
                counted.runs.add(layout.split_slot(slot)[1])
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
        yield from _message(ledger.slices.at(row.expires_at), key, row)
    if counted is not None:
        yield from _sums(counted, ledger)
    for namespace, state in ledger.states.items():
        if namespace not in seen and (state.messages or state.size_bytes or state.earliest):
            yield f"namespaces {namespace.hex()}: counts messages, has none"


def _message(where: Slice | None, key: bytes, row: MessageRow) -> Iterator[str]:
    try:
        header = MsgHeader.decode(row.header)
    except HeaderError as error:
        yield f"headers {key.hex()}: {error.what}"
        return
    if layout.slot_key(header.namespace_id, header.seq) + header.content_id != key:
        yield f"headers {key.hex()}: holds another message"
    if where is None or where.get(layout.HEADERS, key) is None:
        yield f"headers {key.hex()}: is not in the slice of its expiry"
        return
    slot = key[: layout.SLOT_BYTES]
    index = [*layout.index_rows(key, row), (layout.SLOTS, layout.slot_name(slot), slot)]
    for kind, index_key, value in index:
        if where.get(kind, index_key) != value:
            yield f"headers {key.hex()}: its row in {NAMES[kind]} is missing or wrong"
    if row.place is BlobPlace.APART:
        blob = where.get(layout.BLOBS, row.commitment)
        if blob is None or len(blob) != row.blob_len:
            yield f"headers {key.hex()}: its blob is missing or has another length"
    if row.sidecar_len:
        sidecar = where.get(layout.SIDECARS, key)
        if sidecar is None or len(sidecar) != row.sidecar_len:
            yield f"headers {key.hex()}: its sidecar is missing or has another length"


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
    counted.contiguous = counted.runs.take_from(counted.contiguous)
    # The head never goes back, so rows that have gone may lie below it; none may lie just above.
    if state.contiguous < counted.contiguous or state.runs.runs() != counted.runs.runs():
        yield f"{name}: the contiguous head says {state.contiguous}, the rows go on"


def _index_rows(where: Slice) -> Iterator[str]:
    """Each row that ends in a message key belongs to that message."""
    for kind in _KEYED_BY_MESSAGE:
        for index_key, value in where.table.scan(b"", b"", kind):
            key = index_key[-layout.MESSAGE_KEY_BYTES :]
            stored = where.get(layout.HEADERS, key)
            if stored is None or not _belongs(kind, index_key, value, key, stored):
                yield f"{NAMES[kind]} {index_key.hex()}: belongs to no message"


def _belongs(kind: bytes, index_key: bytes, value: bytes, key: bytes, stored: bytes) -> bool:
    try:
        return (kind, index_key, value) in layout.index_rows(key, layout.decode_row(stored))
    except StoreError:
        return False  # the message itself is reported


def _slots_and_contents(where: Slice) -> Iterator[str]:
    for content, value in where.table.scan(b"", b"", layout.CONTENTS):
        if where.get(layout.HEADERS, value[: layout.SLOT_BYTES] + content) is None:
            yield f"contents {content.hex()}: belongs to no message"
    for message, slot in where.table.scan(b"", b"", layout.SLOTS):
        named = len(slot) == layout.SLOT_BYTES and message == layout.slot_name(slot)
        known = next(where.table.keys(slot, layout.after(slot), layout.HEADERS), None)
        if not named or known is None:
            yield f"slots {message.hex()}: belongs to no message"


def _held(where: Slice) -> Iterator[str]:
    """Each message set aside for the archive is there, and they are as many as counted."""
    rows = 0
    for key in where.table.keys(b"", b"", layout.HELD):
        rows += 1
        if where.get(layout.HEADERS, key) is None:
            yield f"held {key.hex()}: belongs to no message"
    if rows != where.held:
        yield f"held: {rows} rows in slice {where.number}, {where.held} are counted"


def _thinned(ledger: Ledger, where: Slice) -> Iterator[str]:
    """No message stands in a slot that was thinned (J3)."""
    for slot, digest in where.table.scan(b"", b"", layout.THINNED):
        if len(slot) != layout.SLOT_BYTES or len(digest) != c.HASH_BYTES:
            yield f"thinned {slot.hex()}: names no slot and header"
            continue
        if next(ledger.slices.keys(layout.HEADERS, slot, layout.after(slot)), None) is not None:
            yield f"thinned {slot.hex()}: its message is here"


def _shares(where: Slice) -> Iterator[str]:
    """What a slice says that it holds of each namespace and sender is what it holds."""
    senders: Counter[bytes] = Counter()
    shares: dict[bytes, Share] = {}
    for key, value in where.table.scan(b"", b"", layout.HEADERS):
        try:
            row = layout.decode_row(value)
            senders[layout.sender_key(row.header)] += 1
        except (StoreError, BusArgumentError):
            continue  # the message itself is reported
        namespace, seq = layout.split_slot(key)
        known = shares.get(namespace, Share(first=seq))
        size = known.size_bytes + layout.charge_bytes(row)
        shares[namespace] = Share(known.messages + 1, size, known.first, seq)
    rows = dict(where.table.scan(b"", b"", layout.SENDERS))
    if rows != {key: layout.u64(number) for key, number in senders.items()}:
        yield f"senders: the rows of slice {where.number} are not those of its messages"
    if where.senders != dict(senders):
        yield f"senders: slice {where.number} counts others than its messages have"
    stored = dict(where.table.scan(b"", b"", layout.SHARES))
    if stored != {name: layout.encode_share(share) for name, share in where.shares.items()}:
        yield f"shares: the rows of slice {where.number} are not what is counted"
    if shares.keys() != where.shares.keys():
        yield f"shares: slice {where.number} counts other namespaces than it holds"
    for name, share in where.shares.items():
        if name in shares and not _covers(share, shares[name]):
            yield f"shares {name.hex()}: slice {where.number} holds other messages than it counts"


def _covers(said: Share, found: Share) -> bool:
    """Return True when ``said`` has the same sums, and bounds that are right or further apart."""
    same = (said.messages, said.size_bytes) == (found.messages, found.size_bytes)
    last = said.last == found.last or (not said.exact and said.last > found.last)
    return same and last and said.first <= found.first


def _totals(ledger: Ledger) -> Iterator[str]:
    """The Merkle tree is the one that the id rows give (J4), the sums are those of the slices."""
    live = ledger.slices.live
    total = MerkleTree()
    for each in live:
        tree = MerkleTree(each.table.keys(b"", b"", layout.CONTENTS))
        with ledger.lock:  # a tree takes in what waits when it is asked
            same = tree == each.tree
        if not same:
            yield f"tree: the buckets of slice {each.number} are not those of its id rows"
        total.add(tree)
    with ledger.lock:
        same = total == ledger.tree
    if not same:
        yield "tree: its buckets are not those of the id rows"
    for name in ("messages", "size_bytes", "held"):
        said, found = getattr(ledger, name), sum(getattr(each, name) for each in live)
        if said != found:
            yield f"totals: {name} says {said}, the slices say {found}"


def _blobs(where: Slice) -> Iterator[str]:
    apart = bytes([BlobPlace.APART])
    for commitment in where.table.keys(b"", b"", layout.BLOBS):
        rows = where.table.scan(commitment, layout.after(commitment), layout.REFERENCES)
        if not any(value == apart for _, value in rows):
            yield f"blobs {commitment.hex()}: no message refers to it"
    for key in where.table.keys(b"", b"", layout.SIDECARS):
        value = where.get(layout.HEADERS, key)
        if value is None or not layout.decode_row(value).sidecar_len:
            yield f"sidecars {key.hex()}: belongs to no message"


def _lanes(database: Database, ledger: Ledger) -> Iterator[str]:
    rows = 0
    for key in database.keys(layout.LANES, b"", b""):
        rows += 1
        state = ledger.states.get(NamespaceId(key[20:]))
        if state is None or state.parent != key[:20]:
            yield f"lanes {key.hex()}: belongs to no namespace"
    if rows < len(ledger.states):
        yield f"lanes: {rows} rows for {len(ledger.states)} namespaces"
