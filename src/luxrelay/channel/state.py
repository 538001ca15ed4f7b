"""Durable state of a channel as rows, and the interface of its storage.

The machines of a channel keep their state in memory and write down each change as it happens in
a `Journal`: a table, a key, and the new value or its removal. The driver takes what the journal
holds, hands it to the `RowStore` in one transaction, and only then lets the step take effect. After
a crash `RowStore.load` gives back every row of the last transaction that was committed, and the
machines begin from there.

A row store needs to know nothing of the tables: to it a row is bytes under a name.

Source: reliable-channel-api (Persistence); decision C7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, runtime_checkable


class StateTable(IntEnum):
    """Where rows belong; numbers are on disk and do not change."""

    META = 1
    """Single values by name: layout version, clocks, counters, epoch use."""
    LOG = 2
    """Delivered messages by id."""
    OUTGOING = 3
    """Messages without an acknowledgement by id."""
    INCOMING = 4
    """Messages that wait for missing ones by id."""
    REPAIR_OUT = 5
    """Missing messages by id, and when they are asked for."""
    REPAIR_IN = 6
    """Requests to be answered by id."""
    REQUESTS = 7
    """Calls of `send` without a final event by request id."""
    SETS = 8
    """Partly received messages by set."""
    SEGMENTS = 9
    """Segments of partly received messages by set, class and index."""
    COMPLETED = 10
    """Finished messages by set."""
    EVENTS = 11
    """Events not yet taken by the application by position."""
    BODIES = 12
    """Delivered messages as bytes by id, for repair."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row as it is kept, or with no value its removal."""

    table: StateTable
    """Which table."""
    key: bytes
    """Its name there, 600 bytes at most."""
    value: bytes | None
    """Its bytes; None removes it."""


@dataclass(frozen=True, slots=True)
class ChannelScope:
    """Whose rows: one participant in one channel."""

    channel_id: str
    """The channel."""
    sender_id: str
    """The participant."""


@runtime_checkable
class RowStore(Protocol):
    """The rows of one scope, held by one owner at a time.

    Calls come one after another; from worker threads when `Persistence.blocking` is set.
    """

    def load(self) -> Iterable[Row]:
        """Return every row, in the order of table and key.

        Raises:
            ChannelError: ``channel.state``, what is kept cannot be read.

        """
        ...

    def commit(self, rows: Sequence[Row]) -> None:
        """Apply all rows in one transaction, durable when it returns, or none of them.

        Raises:
            ChannelError: ``channel.state``, nothing was applied.

        """
        ...

    def close(self) -> None:
        """Let go of the scope; idempotent."""
        ...


@runtime_checkable
class Persistence(Protocol):
    """Keeps the state of channels. One object serves any number of scopes."""

    @property
    def blocking(self) -> bool:
        """Calls may take long: make them in a worker thread."""
        ...

    def open(self, scope: ChannelScope) -> RowStore:
        """Return the rows of a scope, locked against every other opener.

        Raises:
            ChannelError: ``channel.locked``, somebody has it open; ``channel.state``, it cannot be
                read.

        """
        ...

    def drop(self, scope: ChannelScope) -> None:
        """Forget a scope that is not open; nothing happens when there is none.

        Raises:
            ChannelError: as for `open`.

        """
        ...


class Journal:
    """The changes of a step, last one of each row."""

    def __init__(self) -> None:
        self._rows: dict[tuple[StateTable, bytes], bytes | None] = {}

    def put(self, table: StateTable, key: bytes, value: bytes) -> None:
        """Write a row."""
        self._rows[table, key] = value

    def remove(self, table: StateTable, key: bytes) -> None:
        """Remove a row."""
        self._rows[table, key] = None

    def drain(self) -> list[Row]:
        """Return the changes since the last call."""
        rows = [Row(table, key, value) for (table, key), value in self._rows.items()]
        self._rows.clear()
        return rows
