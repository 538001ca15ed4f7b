"""The shared ledger under threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

from luxrelay.bus.quota import Charge, ReserveOutcome
from luxrelay.node.fees import SharedQuotaLedger

NOW = 1_704_067_200_000
ACCOUNT = b"\x01" * 32


def charge(number: int) -> Charge:
    """Return a charge of three units on an account of 500 messages and 900 units."""
    return Charge(
        account=ACCOUNT,
        message=number.to_bytes(32, "big"),
        messages_limit=500,
        units_limit=900,
        units=3,
        expires_ms=NOW + 10_000,
    )


def test_threads_never_overdraw() -> None:
    """Eight threads that race for one account spend its last unit once (S7)."""
    ledger = SharedQuotaLedger()
    start = threading.Barrier(8)

    def spend(worker: int) -> int:
        start.wait()
        spent = 0
        for n in range(200):
            item = charge(worker * 1000 + n)
            if ledger.reserve(item, NOW) is not ReserveOutcome.RESERVED:
                continue
            if n % 5 == 0:
                assert ledger.release(item.message)
            else:
                spent += ledger.commit(item.message)
        return spent

    with ThreadPoolExecutor(8) as pool:
        spent = sum(pool.map(spend, range(8)))

    assert spent == 300
    assert ledger.remaining(ACCOUNT) == (200, 0)


def test_threads_charge_one_message_once() -> None:
    """Of many threads that charge the same message one gets it (S7)."""
    ledger = SharedQuotaLedger()
    start = threading.Barrier(8)

    def spend(_: int) -> ReserveOutcome:
        start.wait()
        return ledger.reserve(charge(1), NOW)

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(spend, range(8)))

    assert outcomes.count(ReserveOutcome.RESERVED) == 1
    assert outcomes.count(ReserveOutcome.DUPLICATE) == 7


def test_state_moves_to_another_ledger() -> None:
    """Committed rows carry over (S7)."""
    ledger = SharedQuotaLedger()
    ledger.reserve(charge(1), NOW)
    ledger.commit(charge(1).message)
    again = SharedQuotaLedger()
    again.restore(ledger.rows())

    assert again.remaining(ACCOUNT) == (499, 897)
