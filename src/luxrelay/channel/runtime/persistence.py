"""State in memory: for tests, and for channels that begin anew with each process.

Source: reliable-channel-api (Persistence); decision C7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from luxrelay.channel.state import ChannelScope, Row, RowStore, StateTable
from luxrelay.errors import ChannelError


class MemoryPersistence:
    """Rows of any number of scopes, for as long as this object lives."""

    def __init__(self) -> None:
        self._scopes: dict[ChannelScope, dict[tuple[StateTable, bytes], bytes]] = {}
        self._open: set[ChannelScope] = set()

    @property
    def blocking(self) -> bool:
        """Nothing here takes long."""
        return False

    def open(self, scope: ChannelScope) -> RowStore:
        """Return the rows of a scope, locked against every other opener.

        Raises:
            ChannelError: ``channel.locked``: they are open already.

        """
        self._check_free(scope)
        self._open.add(scope)
        return _MemoryRows(self, scope)

    def drop(self, scope: ChannelScope) -> None:
        """Forget a scope that is not open.

        Raises:
            ChannelError: ``channel.locked``: it is open.

        """
        self._check_free(scope)
        self._scopes.pop(scope, None)

    def _check_free(self, scope: ChannelScope) -> None:
        if scope in self._open:
            raise ChannelError(
                f"{scope.sender_id} in {scope.channel_id} is open",
                where="MemoryPersistence",
                code="channel.locked",
            )


class _MemoryRows:
    """The rows of one scope."""

    def __init__(self, owner: MemoryPersistence, scope: ChannelScope) -> None:
        self._owner = owner
        self._scope = scope
        self._rows = owner._scopes.setdefault(scope, {})  # noqa: SLF001 - its own maker

    def load(self) -> Iterable[Row]:
        """Return every row in order."""
        return [Row(table, key, value) for (table, key), value in sorted(self._rows.items())]

    def commit(self, rows: Sequence[Row]) -> None:
        """Apply all rows."""
        for row in rows:
            if row.value is None:
                self._rows.pop((row.table, row.key), None)
            else:
                self._rows[row.table, row.key] = row.value

    def close(self) -> None:
        """Let go of the scope."""
        self._owner._open.discard(self._scope)  # noqa: SLF001 - its own maker
