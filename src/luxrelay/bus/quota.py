"""The ledger of paid and used quotas: pure state, no clock, no lock.

Theory of operation
-------------------
*Decides* whether one more charge fits an account. An account is named by 32 bytes (a quota's hash,
a channel's account) and has two limits: messages and units (bytes, or money). A charge is named by
the content id of the message it pays.
*Order*: ``reserve`` takes the charge from the account at once, so that two messages in flight can
never both take the last unit; ``commit`` makes it final when the message was stored, ``release``
gives it back when it was not. Who neither commits nor releases loses the reservation after
``reservation_ms``, and a commit that comes later says False.
*Limits rise only*: a charge may bring a higher limit (a channel's newer voucher); a lower one, from
a voucher that gossip brought late, changes nothing. So vouchers may arrive in any order, and the
accepted charges never exceed the highest voucher seen.
*Bounds*: ``accounts_max``, ``reservations_max``. An account is forgotten when it was over for
``keep_ms`` and not before, because forgetting a used account would let it be spent again; when all
places are taken by live accounts, a new one is refused. After the end plus ``keep_ms`` charges are
refused, and so is a new account that ends no later than one that was forgotten: a forgotten
account cannot come back, not even after a restart (`forgotten_ms`).
*Clocks*: the wall clock says whether an account is over; how long it has been over, and how long a
charge has been in flight, is counted by a steady clock. A wall clock that jumps ahead and back
neither forgets an account nor gives a charge back, nor keeps one for ever.
*Threads*: one caller at a time. `luxrelay.node.fees` wraps it with a lock.
*Restart*: `rows` and `restore` carry the committed state over; a ledger that starts empty would
honour a spent quota again.

Source: LP-6422 §4; decision S7.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from luxrelay.errors import BusArgumentError


class ReserveOutcome(Enum):
    """What became of a charge."""

    RESERVED = "reserved"
    DUPLICATE = "duplicate"
    """The same message is being charged already."""
    EXHAUSTED = "exhausted"
    """The account does not hold that much."""
    EXPIRED = "expired"
    """The account has ended."""
    FULL = "full"
    """The ledger has no room; the account's fault it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """Bounds of a ledger."""

    accounts_max: int = 100_000
    """Most accounts remembered."""
    reservations_max: int = 16_384
    """Most charges in flight."""
    reservation_ms: int = 60_000
    """How long a charge may stay in flight, milliseconds."""
    keep_ms: int = 660_000
    """How long an account is remembered after its end, milliseconds: the time to live of a
    message and the clock's tolerance, so that history can still be charged."""

    def __post_init__(self) -> None:
        """Refuse bounds that hold nothing."""
        if min(self.accounts_max, self.reservations_max, self.reservation_ms) < 1:
            raise BusArgumentError("bounds begin at 1", where="LedgerConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One message to be paid from one account."""

    account: bytes
    """Quota hash or a channel's account, 32 bytes."""
    message: bytes
    """Content id of the message, 32 bytes."""
    messages_limit: int
    """What the account holds in messages."""
    units_limit: int
    """What the account holds in units."""
    units: int
    """What this message costs in units; it costs one message too."""
    expires_ms: int
    """When the account ends, Unix milliseconds."""


class AccountRow(NamedTuple):
    """An account as it outlives the process; charges in flight are not in it."""

    account: bytes
    messages_limit: int
    units_limit: int
    messages_used: int
    units_used: int
    expires_ms: int


@dataclass(slots=True)
class _Account:
    messages_limit: int
    units_limit: int
    expires_ms: int
    messages_used: int = 0
    units_used: int = 0


class _Reservation(NamedTuple):
    account: bytes
    units: int
    made_ms: int
    """Steady milliseconds."""


class QuotaLedger:
    """Accounts and the charges in flight."""

    def __init__(self, config: LedgerConfig | None = None) -> None:
        """Start without accounts."""
        self._config = config or LedgerConfig()
        self._accounts: dict[bytes, _Account] = {}
        self._ends: list[tuple[int, bytes]] = []
        self._over: dict[bytes, int] = {}  # since when each is over, steady; the oldest first
        self._flights: dict[bytes, _Reservation] = {}
        self.forgotten_ms = -1
        """The latest end of an account that was forgotten, Unix milliseconds; -1 for none."""

    def reserve(self, charge: Charge, now_ms: int, steady_ms: int | None = None) -> ReserveOutcome:
        """Take a charge from its account until it is committed or released.

        Args:
            charge: What the message costs.
            now_ms: The wall clock, Unix milliseconds.
            steady_ms: A clock that nobody sets, milliseconds; the wall clock when None.

        """
        steady_ms = now_ms if steady_ms is None else steady_ms
        self.sweep(now_ms, steady_ms)
        if charge.message in self._flights:
            return ReserveOutcome.DUPLICATE
        if charge.expires_ms + self._config.keep_ms <= now_ms:
            return ReserveOutcome.EXPIRED
        if len(self._flights) >= self._config.reservations_max:
            return ReserveOutcome.FULL
        account = self._accounts.get(charge.account)
        limits = charge.messages_limit, charge.units_limit
        if account is None:
            if charge.expires_ms <= self.forgotten_ms:
                return ReserveOutcome.EXPIRED  # it may be one that was dropped when it was spent
            if len(self._accounts) >= self._config.accounts_max:
                return ReserveOutcome.FULL
            if charge.units > charge.units_limit or charge.messages_limit < 1:
                return ReserveOutcome.EXHAUSTED  # worth no place in the ledger
            account = self._accounts[charge.account] = _Account(*limits, charge.expires_ms)
            heapq.heappush(self._ends, (charge.expires_ms, charge.account))
        account.messages_limit = max(account.messages_limit, limits[0])
        account.units_limit = max(account.units_limit, limits[1])
        account.expires_ms = max(account.expires_ms, charge.expires_ms)
        if (
            account.messages_used + 1 > account.messages_limit
            or account.units_used + charge.units > account.units_limit
        ):
            return ReserveOutcome.EXHAUSTED
        account.messages_used += 1
        account.units_used += charge.units
        self._flights[charge.message] = _Reservation(charge.account, charge.units, steady_ms)
        return ReserveOutcome.RESERVED

    def commit(self, message: bytes) -> bool:
        """Make a charge final; False when it was not in flight any more."""
        return self._flights.pop(message, None) is not None

    def release(self, message: bytes) -> bool:
        """Give a charge back; False when it was not in flight any more."""
        flight = self._flights.pop(message, None)
        if flight is None:
            return False
        self._refund(flight)
        return True

    def remaining(self, account: bytes) -> tuple[int, int] | None:
        """Return the messages and units an account still holds, None for one never charged."""
        found = self._accounts.get(account)
        if found is None:
            return None
        return (
            found.messages_limit - found.messages_used,
            found.units_limit - found.units_used,
        )

    def row(self, account: bytes) -> AccountRow | None:
        """Return one account as `rows` would, None for one never charged."""
        found = self._accounts.get(account)
        return None if found is None else self._row(account, found, self._pending())

    def rows(self) -> list[AccountRow]:
        """Return every account as committed: what is in flight counts as not spent."""
        pending = self._pending()
        return [self._row(name, account, pending) for name, account in self._accounts.items()]

    def restore(self, rows: Iterable[AccountRow], forgotten_ms: int = -1) -> None:
        """Take over the accounts of an earlier process, and what it forgot; once, at the start.

        Raises:
            BusArgumentError: the ledger is in use or the rows are too many.

        """
        if self._accounts:
            raise BusArgumentError("the ledger is in use", where="QuotaLedger.restore")
        self.forgotten_ms = max(self.forgotten_ms, forgotten_ms)
        for row in rows:
            if len(self._accounts) >= self._config.accounts_max:
                raise BusArgumentError("more rows than accounts_max", where="QuotaLedger.restore")
            account = _Account(row.messages_limit, row.units_limit, row.expires_ms)
            account.messages_used, account.units_used = row.messages_used, row.units_used
            self._accounts[row.account] = account
            heapq.heappush(self._ends, (row.expires_ms, row.account))

    def __len__(self) -> int:
        """Return the number of accounts."""
        return len(self._accounts)

    def _pending(self) -> dict[bytes, tuple[int, int]]:
        """Return the messages and units in flight by account."""
        pending: dict[bytes, tuple[int, int]] = {}
        for flight in self._flights.values():
            count, units = pending.get(flight.account, (0, 0))
            pending[flight.account] = (count + 1, units + flight.units)
        return pending

    @staticmethod
    def _row(name: bytes, account: _Account, pending: dict[bytes, tuple[int, int]]) -> AccountRow:
        count, units = pending.get(name, (0, 0))
        return AccountRow(
            name,
            account.messages_limit,
            account.units_limit,
            account.messages_used - count,
            account.units_used - units,
            account.expires_ms,
        )

    def _refund(self, flight: _Reservation) -> None:
        account = self._accounts.get(flight.account)
        if account is not None:
            account.messages_used -= 1
            account.units_used -= flight.units

    def sweep(self, now_ms: int, steady_ms: int) -> None:
        """Drop charges in flight for too long and accounts that were over for long enough."""
        while self._flights:
            message, flight = next(iter(self._flights.items()))
            if flight.made_ms + self._config.reservation_ms > steady_ms:
                break
            del self._flights[message]
            self._refund(flight)
        while self._ends and self._ends[0][0] <= now_ms:
            _, name = heapq.heappop(self._ends)
            if self._accounts[name].expires_ms <= now_ms:
                self._over[name] = steady_ms
            else:  # a later charge moved its end
                heapq.heappush(self._ends, (self._accounts[name].expires_ms, name))
        while self._over:
            name, since = next(iter(self._over.items()))
            if since + self._config.keep_ms > steady_ms:
                break
            del self._over[name]
            account = self._accounts[name]
            if account.expires_ms <= now_ms:
                del self._accounts[name]
                self.forgotten_ms = max(self.forgotten_ms, account.expires_ms)
            else:  # the clock has gone back
                heapq.heappush(self._ends, (account.expires_ms, name))
