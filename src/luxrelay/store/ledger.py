"""`Ledger`: what readers see of the namespaces, and the totals.

The writer replaces whole `NamespaceState` values after its batch is written and never changes one
that stands here, so a reader that took a state keeps a consistent one without a lock.

Source: decisions P44; architecture, rule 5.
"""

from __future__ import annotations

from collections.abc import Iterable

from luxrelay.bus import NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import StoreError
from luxrelay.store import layout
from luxrelay.store.namespaces import NamespaceHead, NamespaceState
from luxrelay.store.rocks import Database


class Ledger:
    """Published namespace states with their sums."""

    __slots__ = ("expiry_hint", "messages", "size_bytes", "states")

    def __init__(self) -> None:
        self.states: dict[NamespaceId, NamespaceState] = {}
        self.messages = 0
        self.size_bytes = 0
        self.expiry_hint = 0
        """No message expires earlier; saves the deletion cycle the walk over its own tombstones."""

    @classmethod
    def load(cls, database: Database) -> Ledger:
        """Return the ledger of ``database``: counters as stored, runs found again from the rows.

        Raises:
            StoreError: ``store.corrupt`` or ``store.io``.

        """
        ledger = cls()
        for key, value in database.scan(layout.NAMESPACES, b"", b""):
            state = layout.decode_state(key, value)
            if state.latest > state.contiguous:
                _find_runs(database, state)
            ledger.states[state.namespace_id] = state
            ledger.messages += state.messages
            ledger.size_bytes += state.size_bytes
        return ledger

    def publish(self, states: Iterable[NamespaceState], messages: int, size_bytes: int) -> None:
        """Readers see ``states``; the totals change by ``messages`` and ``size_bytes``."""
        for state in states:
            self.states[state.namespace_id] = state
        self.messages += messages
        self.size_bytes += size_bytes

    def head(self, namespace: NamespaceId) -> NamespaceHead:
        """Return the head of ``namespace``, zeros for an unknown one."""
        state = self.states.get(namespace)
        if state is None:
            return NamespaceHead(namespace_id=namespace, parent=namespace)
        return state.head()


def read_heads(
    database: Database, ledger: Ledger, parent: NamespaceId | None, cursor: bytes, limit: int
) -> tuple[list[NamespaceHead], bytes]:
    """Return up to ``limit`` heads in order of their ids, and where to go on; empty at the end.

    Args:
        database: Holds the order of ids.
        ledger: Holds the heads.
        parent: Only this namespace and its lanes (J6); None for all.
        cursor: Empty, or what the previous answer gave.
        limit: At least 1.

    """
    family, prefix = (layout.NAMESPACES, b"") if parent is None else (layout.LANES, bytes(parent))
    heads: list[NamespaceHead] = []
    start = prefix + cursor + b"\x00" if cursor else prefix
    for key in database.keys(family, start, layout.after(prefix)):
        if len(heads) == limit:
            return heads, bytes(heads[-1].namespace_id)
        namespace = NamespaceId(key[-c.NAMESPACE_BYTES :])
        if namespace not in ledger.states:
            raise StoreError(
                "a namespace has no state", where=namespace.hex(), code="store.corrupt"
            )
        heads.append(ledger.head(namespace))
    return heads, b""


def _find_runs(database: Database, state: NamespaceState) -> None:
    start = layout.slot_key(state.namespace_id, state.contiguous + 1)
    for key in database.keys(layout.HEADERS, start, layout.after(state.namespace_id)):
        state.runs.add(layout.split_slot(key)[1])
