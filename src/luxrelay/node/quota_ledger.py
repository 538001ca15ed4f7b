"""The quota ledger for threads: one lock around the pure state machine.

The doors of a node work in several threads. Each step of the ledger is short, so one lock is
enough, and no two charges can take the same last unit.

Source: LP-6422 §4; S7.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from luxrelay.bus.quota import AccountRow, Charge, LedgerConfig, QuotaLedger, ReserveOutcome


class SharedQuotaLedger:
    """A `QuotaLedger` that any thread may call."""

    def __init__(
        self,
        config: LedgerConfig | None = None,
        *,
        steady_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        """Start without accounts; ``steady_ms`` is a clock that nobody sets, milliseconds."""
        self._steady_ms = steady_ms
        self._lock = threading.Lock()
        self._ledger = QuotaLedger(config)

    def reserve(self, charge: Charge, now_ms: int) -> ReserveOutcome:
        """Take a charge from its account until it is committed or released."""
        with self._lock:
            return self._ledger.reserve(charge, now_ms, self._steady_ms())

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

    def sweep(self, now_ms: int) -> None:
        """Drop charges in flight for too long and accounts that were over for long enough."""
        with self._lock:
            self._ledger.sweep(now_ms, self._steady_ms())

    def rows(self) -> list[AccountRow]:
        """Return every account as committed."""
        with self._lock:
            return self._ledger.rows()

    @property
    def forgotten_ms(self) -> int:
        """The latest end of an account that was forgotten, Unix milliseconds; -1 for none."""
        with self._lock:
            return self._ledger.forgotten_ms

    def restore(self, rows: Iterable[AccountRow], forgotten_ms: int = -1) -> None:
        """Take over the accounts of an earlier process, and what it forgot; once, at the start."""
        with self._lock:
            self._ledger.restore(rows, forgotten_ms)
