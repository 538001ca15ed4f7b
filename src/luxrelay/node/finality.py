"""Finality from a file of signed statements, read again when it has changed.

A file holds one statement a line, in hex with or without 0x, the oldest first; empty lines and
lines that begin with # are skipped. A validator or an operator appends to it. A statement that does
not check is logged and skipped: what was said before stays as it is.

Source: LP-6413; decisions J9, S19.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from luxrelay.bus import NamespaceId
from luxrelay.bus.finality import (
    FinalityRow,
    FinalityState,
    FinalityStatement,
    StatementOracle,
)
from luxrelay.errors import ConfigError, FinalityError
from luxrelay.files import read_bounded
from luxrelay.node.logs import log
from luxrelay.wire import from_hex

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest file of statements that is read, bytes."""
WAITING_MAX: Final = 262_144
"""Rows kept for messages that have not come; the ones said longest ago are given up."""
Apply = Callable[[Sequence[FinalityRow], Mapping[NamespaceId, int]], list[FinalityRow]]
"""Takes rows and heads over, returns the rows whose messages have not come."""


class FinalityFile:
    """An oracle fed from a file; any thread may ask, one at a time refreshes."""

    def __init__(
        self, path: Path, network: str, signers: Sequence[bytes], *, waiting_max: int = WAITING_MAX
    ) -> None:
        """Read the file, which must exist and be readable at the start.

        Raises:
            ConfigError: it cannot be read.

        """
        self._path = path
        self._oracle = StatementOracle(network, signers)
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._taken = 0
        self._waiting: dict[tuple[NamespaceId, int, bytes], FinalityRow] = {}
        self._waiting_max = waiting_max
        self.applied = 0
        """Statements taken over."""
        self.refused = 0
        """Statements that did not check."""
        self.refresh(starting=True)

    def state(self, namespace_id: NamespaceId, seq: int, header_hash: bytes) -> FinalityState:
        """Return a message's state, PENDING for one that no statement names."""
        with self._lock:
            return self._oracle.state(namespace_id, seq, header_hash)

    def finalized_seq(self, namespace_id: NamespaceId) -> int:
        """Return the highest finalized sequence of a namespace, 0 for none."""
        with self._lock:
            return self._oracle.finalized_seq(namespace_id)

    def hand_over(self, apply: Apply) -> int:
        """The store knows what was said; return how many rows wait for a message.

        They are handed over again with the next call. One thread calls this and `refresh`.

        Raises:
            StoreError: the store could not write; the next call says all of it again.

        """
        rows = list(self._waiting.values())
        if rows:
            heads = {row.namespace_id: self.finalized_seq(row.namespace_id) for row in rows}
            self._waiting = {row[:3]: row for row in apply(rows, heads)}
        return len(self._waiting)

    def refresh(self, *, starting: bool = False) -> int:
        """Take over what was appended since the last call; return how many states changed.

        Args:
            starting: A file that cannot be read is an error now, and a log line later.

        Raises:
            ConfigError: it cannot be read, at the start.

        """
        try:
            lines = self._changed()
        except (OSError, UnicodeDecodeError, ValueError) as error:
            if starting:
                raise ConfigError(
                    f"cannot read the statements: {error}",
                    where=str(self._path),
                    hint="give the path of a text file; an empty one will do",
                ) from error
            log(logging.ERROR, "the finality file cannot be read", error=str(error))
            return 0
        changed = 0
        for number, line in enumerate(lines[self._taken :], start=self._taken + 1):
            changed += self._take(line, number)
        self._taken = max(self._taken, len(lines))
        return changed

    def _changed(self) -> list[str]:
        """Return every complete line when the file has changed, nothing when it has not."""
        found = self._path.stat()
        mark = (found.st_mtime_ns, found.st_size, found.st_ino)
        if mark == self._seen:
            return []
        text = read_bounded(self._path, FILE_BYTES_MAX).decode("ascii")
        if self._seen is not None and found.st_ino != self._seen[2]:
            self._taken = 0  # another file: numbers that do not rise are refused one by one
        self._seen = mark
        whole = text if text.endswith("\n") else text[: text.rfind("\n") + 1]
        return whole.splitlines()

    def _take(self, line: str, number: int) -> int:
        text = line.strip()
        if not text or text.startswith("#"):
            return 0
        try:
            statement = FinalityStatement.decode(from_hex(text))
            with self._lock:
                changed = self._oracle.apply(statement)
        except (FinalityError, ValueError) as error:
            self.refused += 1
            where = f"{self._path}:{number}"
            log(logging.WARNING, "a finality statement is refused", where=where, error=str(error))
            return 0
        self.applied += 1
        # As the oracle does: what stops being final makes place before what becomes it.
        self._wait(sorted(statement.rows, key=lambda row: row.state is FinalityState.FINALIZED))
        return changed

    def _wait(self, rows: Sequence[FinalityRow]) -> None:
        for row in rows:
            self._waiting.pop(row[:3], None)
            self._waiting[row[:3]] = row
        while len(self._waiting) > self._waiting_max:
            del self._waiting[next(iter(self._waiting))]
