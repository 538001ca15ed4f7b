"""Fees of messages: reserved before storing, settled with it, kept on disk.

A charge is reserved once the sender is proven, made final when the message was stored, and given
back when it was not. Accounts are documents in the store, written after the batch that they paid
for: a crash in between gives a sender the messages of one batch for nothing, never the other way
round. History is charged as well, so that a quota is used up wherever its messages are.

The quota ledger for threads: one lock around the pure state machine.

The doors of a node work in several threads. Each step of the ledger is short, so one lock is
enough, and no two charges can take the same last unit.

Source: LP-6411 §2.9, LP-6422 §4; LP-6422 §4; decisions S6, S7.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from struct import Struct
from struct import error as WrongLength  # noqa: N812  it is a class
from typing import Final

from luxrelay.bus import MsgHeader, Verdict
from luxrelay.bus.fee import FeeKind
from luxrelay.bus.fee_verifiers import FeeVerifier, FeeVerifiers, PrepaidVerifier
from luxrelay.bus.quota import AccountRow, Charge, LedgerConfig, QuotaLedger, ReserveOutcome
from luxrelay.errors import NodeError
from luxrelay.sync import QuotaUse


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


ACCOUNTS_MAX: Final = 32_768
"""Accounts a node remembers: half of the documents that a store keeps."""
_PREFIX: Final = b"fee/"
_FORGOTTEN: Final = b"fee.forgotten"
"""The document that says how late an account ended that was forgotten; no account's, which have
the prefix."""
_ROW: Final = Struct(">QQQQQ")
_END: Final = Struct(">Q")


class FeeDesk:
    """The fee verifiers of a node and its ledger; any thread may call."""

    def __init__(
        self,
        network: str,
        documents: MutableMapping[bytes, bytes],
        *,
        issuers: Sequence[bytes] = (),
        free_tier: bool = True,
        accounts_max: int = ACCOUNTS_MAX,
        steady_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        """Honour the quotas of ``issuers``, key fields; take over what was used up before.

        Raises:
            NodeError: an account in the store cannot be read (``store.corrupt``).

        """
        self._documents = documents
        self._issuers, self._free_tier = tuple(issuers), free_tier
        limits = LedgerConfig(accounts_max=accounts_max)
        self._ledger = SharedQuotaLedger(limits, steady_ms=steady_ms)
        self._ledger.restore(_rows(documents), _forgotten(documents))
        kinds: dict[FeeKind, FeeVerifier] = {}
        if issuers:
            kinds[FeeKind.PREPAID] = PrepaidVerifier(network, issuers)
        self.verifiers = FeeVerifiers(network, kinds, book=self._ledger, free_tier=free_tier)
        """What the rules ask about a fee proof."""
        self.charges = bool(issuers) or not free_tier
        """Whether a message can cost anything here, or be refused for want of a fee."""

    def reserve(self, header: MsgHeader, now_ms: int) -> Verdict:
        """Take what a proven message costs until `settle`; an IGNORE when the quota is used up."""
        return self.verifiers.reserve(header, now_ms)

    def settle(self, messages: Iterable[tuple[MsgHeader, bool]]) -> None:
        """Make the charges of stored messages final, give the others back, keep the accounts.

        Raises:
            StoreError: the disk refuses an account; the ledger in memory is right all the same.

        """
        changed = set()
        for header, stored in messages:
            account = self.verifiers.account(header)
            self.verifiers.settle(header, stored=stored)
            if account is not None and stored:
                changed.add(account)
        for account in sorted(changed):
            row = self._ledger.row(account)
            if row is not None:
                self._documents[_PREFIX + account] = _ROW.pack(*row[1:])

    def remaining(self, account: bytes) -> tuple[int, int] | None:
        """Return the messages and bytes a quota still holds, None for one never charged."""
        return self._ledger.remaining(account)

    def quotas(self, accounts: Sequence[bytes]) -> list[QuotaUse]:
        """Return what was counted of quotas, in order; what is in flight is not in it."""
        found = []
        for account in accounts:
            row = self._ledger.row(account)
            if row is None:
                found.append(QuotaUse(account=account))
                continue
            found.append(
                QuotaUse(
                    account=account,
                    messages_limit=row.messages_limit,
                    bytes_limit=row.units_limit,
                    messages_used=row.messages_used,
                    bytes_used=row.units_used,
                    expires_ms=row.expires_ms,
                )
            )
        return found

    def public(self) -> dict[str, object]:
        """Return what a message needs here, as `/v1/limits` names it."""
        return {
            "freeTier": self._free_tier,
            "prepaidIssuers": ["0x" + each.hex() for each in self._issuers],
        }

    def forget(self, now_ms: int) -> int:
        """Forget the accounts that were over for long enough, in the store too; return how many."""
        self._ledger.sweep(now_ms)
        kept = {row.account for row in self._ledger.rows()}
        gone = [key for key in _keys(self._documents) if key[len(_PREFIX) :] not in kept]
        forgotten_ms = self._ledger.forgotten_ms
        if forgotten_ms > _forgotten(self._documents):  # first, or a crash would let them come back
            self._documents[_FORGOTTEN] = _END.pack(forgotten_ms)
        for key in gone:
            del self._documents[key]
        return len(gone)


def _forgotten(documents: MutableMapping[bytes, bytes]) -> int:
    data = documents.get(_FORGOTTEN)
    if data is None:
        return -1
    try:
        return int(_END.unpack(data)[0])
    except WrongLength as error:
        raise NodeError(
            "what was forgotten of quotas cannot be read",
            where=_FORGOTTEN.decode(),
            code="store.corrupt",
        ) from error


def _keys(documents: MutableMapping[bytes, bytes]) -> list[bytes]:
    return [key for key in documents if key.startswith(_PREFIX)]


def _rows(documents: MutableMapping[bytes, bytes]) -> list[AccountRow]:
    rows = []
    for key in _keys(documents):
        try:
            rows.append(AccountRow(key[len(_PREFIX) :], *_ROW.unpack(documents[key])))
        except WrongLength as error:
            raise NodeError(
                "a quota's account in the store cannot be read",
                where=key.hex(),
                code="store.corrupt",
            ) from error
    return rows
