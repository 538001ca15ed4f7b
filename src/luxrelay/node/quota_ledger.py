"""The quota ledger for threads: one lock around the pure state machine.

The doors of a node work in several threads. Each step of the ledger is short, so one lock is
enough, and no two charges can take the same last unit.

Source: LP-6422 §4; S7.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from luxrelay.bus.quota import AccountRow, Charge, LedgerConfig, QuotaLedger, ReserveOutcome


class SharedQuotaLedger:
    """A `QuotaLedger` that any thread may call."""

    def __init__(self, config: LedgerConfig | None = None) -> None:
        """Start without accounts."""
        self._lock = threading.Lock()
        self._ledger = QuotaLedger(config)

    def reserve(self, charge: Charge, now_ms: int) -> ReserveOutcome:
        """Take a charge from its account until it is committed or released."""
        with self._lock:
            return self._ledger.reserve(charge, now_ms)

    def commit(self, message: bytes) -> bool:
        """Make a charge final; False when it was not in flight any more."""
        with self._lock:
            return self._ledger.commit(message)

    def release(self, message: bytes) -> bool:
        """Give a charge back; False when it was not in flight any more."""
        with self._lock:
            return self._ledger.release(message)

    def remaining(self, account: bytes) -> tuple[int, int] | None:
        """Return the messages and units an account still holds, None for one never charged."""
        with self._lock:
            return self._ledger.remaining(account)

    def row(self, account: bytes) -> AccountRow | None:
        """Return one account as committed, None for one never charged."""
        with self._lock:
            return self._ledger.row(account)

    def rows(self) -> list[AccountRow]:
        """Return every account as committed."""
        with self._lock:
            return self._ledger.rows()

    def restore(self, rows: Iterable[AccountRow]) -> None:
        """Take over the accounts of an earlier process; into an empty ledger only."""
        with self._lock:
            self._ledger.restore(rows)
