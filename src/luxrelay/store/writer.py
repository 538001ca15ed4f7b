"""`Writer`: the one who changes rows, counters and states.

Theory of operation
-------------------
*Decides* who writes when, and when a caller may be told that a write is safe.
*Does not know* what a message means to a slot; `Group` does.
*Machine*: one lock for changes. Each public method makes one `Group` under it and commits it, so
states on disk, in the ledger and in the counters move together. A second lock for fsync: whoever
needs durability waits for it; the first one syncs for everybody who has written by then, the
others find their work done. Writing goes on meanwhile.
*A failed sync* ends writing: what the log then holds is unknown, and a later success would
acknowledge it. Reading goes on; opening the store again recovers what is there.
*Timers*: none; the node calls `expire` by its clock.
*Bounds*: a put waits for at most one other group or one chunk of the deletion cycle.
*What else to change when you change this*: `group`, docs on durability, tests/chaos.

Source: decisions P3, P9, P14; store-notes 3, 7; architecture, rules 5 and 6.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from luxrelay.bus import NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import StoreError
from luxrelay.store import layout
from luxrelay.store.config import Durability, RelayStoreConfig
from luxrelay.store.group import Group
from luxrelay.store.ledger import Ledger
from luxrelay.store.messages import IncomingMessage, PutOutcome
from luxrelay.store.rocks import Database


@dataclass(slots=True)
class WriterCounters:
    """What the writer has done since the store was opened."""

    outcomes: list[int] = field(default_factory=lambda: [0] * len(PutOutcome))
    """Messages by `PutOutcome`."""
    equivocations: int = 0
    removed: int = 0
    batches: int = 0
    syncs: int = 0


class Writer:
    """Groups in, batches on disk, outcomes out."""

    def __init__(self, database: Database, ledger: Ledger, config: RelayStoreConfig) -> None:
        self.counters = WriterCounters()
        self.lock = threading.Lock()
        """Held while anything changes; `verify` holds it to see one picture."""
        self._database = database
        self._ledger = ledger
        self._config = config
        self._sync_lock = threading.Lock()
        self._written = 0
        self._synced = 0
        self._failed = False

    def put(self, messages: Sequence[IncomingMessage], now_ms: int) -> list[PutOutcome]:
        """Every message is decided, what is stored is written; not yet durable."""
        outcomes: list[PutOutcome] = []
        for part in split_groups(
            messages, self._config.group_messages_max, self._config.group_bytes_max
        ):
            with self.lock:
                group = self._begin()
                decided = [group.place(message, now_ms) for message in part]
                self._commit(group)
                for outcome in decided:
                    self.counters.outcomes[outcome] += 1
            outcomes += decided
        return outcomes

    def skip_to(self, namespace: NamespaceId, parent: NamespaceId, seq: int) -> None:
        """The floor of ``namespace`` is ``seq`` or more; not yet durable.

        Raises:
            StoreError: ``store.full`` when one namespace more is too many.

        """
        with self.lock:
            group = self._begin()
            if not group.skip_to(namespace, parent, seq):
                raise StoreError(
                    "the store holds namespaces_max namespaces",
                    where=namespace.hex(),
                    code="store.full",
                )
            self._commit(group)

    def remove_expired(self, now_ms: int, limit: int) -> list[NamespaceId]:
        """Up to ``limit`` expired messages are gone; return the namespace of each."""
        with self.lock:
            keys = list(islice(self._expired(now_ms), limit))
            group = self._begin()
            namespaces = [group.forget(key[8:]) for key in keys]
            self._commit(group)
            self.counters.removed += len(keys)
            if len(keys) < limit:
                self._ledger.expiry_hint = now_ms + 1
            else:
                self._ledger.expiry_hint = layout.read_u64(keys[-1])
        return namespaces

    def has_expired(self, now_ms: int) -> bool:
        """Return True when a message waits to be removed."""
        with self.lock:
            return next(self._expired(now_ms), None) is not None

    def make_durable(self) -> None:
        """Everything written before the call is as durable as the configuration promises.

        Raises:
            StoreError: ``store.io``; the store then takes no more writes.

        """
        if self._config.durability is Durability.OS:
            return
        target = self._written
        with self._sync_lock:
            if self._synced < target:
                self._check()
                covered = self._written
                try:
                    self._database.sync()
                except StoreError:
                    self._failed = True
                    raise
                self._synced = covered
                self.counters.syncs += 1

    def _begin(self) -> Group:
        self._check()
        return Group(self._database, self._ledger, self._config)

    def _commit(self, group: Group) -> None:
        if group.commit():
            self._written += 1
            self.counters.batches += 1
        self.counters.equivocations += group.equivocations

    def _check(self) -> None:
        if self._failed:
            raise StoreError(
                "the store takes no writes since a sync failed",
                hint="check the disk, then open the store again",
            )

    def _expired(self, now_ms: int) -> Iterator[bytes]:
        """Yield the rows of ``expiries`` that are due, oldest first."""
        start = min(self._ledger.expiry_hint, c.MAX_U64)
        stop = layout.u64(now_ms + 1) if now_ms < c.MAX_U64 else b""
        return self._database.keys(layout.EXPIRIES, layout.u64(start), stop)


def split_groups(
    messages: Sequence[IncomingMessage], messages_max: int, bytes_max: int
) -> Iterator[Sequence[IncomingMessage]]:
    """Yield ``messages`` in runs within both bounds, at least one message each."""
    start = size = 0
    for at, message in enumerate(messages):
        charge = len(message.header.encode()) + len(message.blob or b"")
        if at > start and (at - start == messages_max or size + charge > bytes_max):
            yield messages[start:at]
            start, size = at, 0
        size += charge
    if messages:
        yield messages[start:]
