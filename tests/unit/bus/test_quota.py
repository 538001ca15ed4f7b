"""The ledger: nothing is spent twice, nothing is overdrawn, everything is bounded."""

import random
from dataclasses import replace

import pytest

from luxrelay.bus.quota import AccountRow, Charge, LedgerConfig, QuotaLedger, ReserveOutcome
from luxrelay.errors import BusArgumentError

NOW = 1_704_067_200_000
R = ReserveOutcome


def charge(message: int, **changes: object) -> Charge:
    """Return a charge of 10 units on an account of three messages and 100 units."""
    fields: dict[str, object] = {
        "account": b"\x01" * 32,
        "message": message.to_bytes(32, "big"),
        "messages_limit": 3,
        "units_limit": 100,
        "units": 10,
        "expires_ms": NOW + 1000,
        **changes,
    }
    return Charge(**fields)  # type: ignore[arg-type]


def test_messages_and_units_run_out() -> None:
    """Either limit ends the account (S7)."""
    ledger = QuotaLedger()

    assert [ledger.reserve(charge(n), NOW) for n in range(4)] == [R.RESERVED] * 3 + [R.EXHAUSTED]
    heavy = [charge(n, account=b"\x02" * 32, units=60) for n in range(10, 12)]
    assert [ledger.reserve(c, NOW) for c in heavy] == [R.RESERVED, R.EXHAUSTED]
    assert ledger.remaining(b"\x01" * 32) == (0, 70)
    assert ledger.remaining(b"\x09" * 32) is None


def test_release_gives_back_and_commit_does_not() -> None:
    """A released charge can be spent again, a committed one cannot."""
    ledger = QuotaLedger()
    ledger.reserve(charge(1), NOW)
    ledger.reserve(charge(2), NOW)

    assert ledger.commit(charge(1).message)
    assert ledger.release(charge(2).message)
    assert not ledger.commit(charge(2).message)
    assert not ledger.release(charge(1).message)
    assert ledger.remaining(b"\x01" * 32) == (2, 90)


def test_one_message_is_charged_once() -> None:
    """While a message is in flight, charging it again says so and takes nothing."""
    ledger = QuotaLedger()
    ledger.reserve(charge(1), NOW)

    assert ledger.reserve(charge(1), NOW) is R.DUPLICATE
    assert ledger.remaining(b"\x01" * 32) == (2, 90)


def test_reservation_runs_out() -> None:
    """A charge nobody settles is given back after ``reservation_ms``, and a late commit fails."""
    ledger = QuotaLedger(LedgerConfig(reservation_ms=1000))
    wide = {"expires_ms": NOW + 100_000}
    ledger.reserve(charge(1, **wide), NOW)

    ledger.reserve(charge(2, **wide), NOW + 999)
    assert ledger.remaining(b"\x01" * 32) == (1, 80)
    ledger.reserve(charge(3, **wide), NOW + 1000)
    assert ledger.remaining(b"\x01" * 32) == (1, 80)
    assert not ledger.commit(charge(1).message)


def test_account_is_kept_past_its_end() -> None:
    """A used account is remembered until nobody may charge it, so it never starts afresh."""
    ledger = QuotaLedger(LedgerConfig(keep_ms=5000))
    used = [charge(n) for n in range(3)]
    for item in used:
        ledger.reserve(item, NOW)
        ledger.commit(item.message)

    assert ledger.reserve(charge(9), NOW + 5999) is R.EXHAUSTED
    assert ledger.reserve(charge(9), NOW + 6000) is R.EXPIRED
    assert ledger.reserve(charge(9), NOW + 10_998) is R.EXPIRED
    assert len(ledger) == 1  # seen to be over for less than 5,000 ms
    assert ledger.reserve(charge(9), NOW + 10_999) is R.EXPIRED
    assert len(ledger) == 0


def test_clock_that_jumps_ahead_and_back_revives_nothing() -> None:
    """An account that was dropped at a wrong time stays spent when the clock is right again."""
    ledger = QuotaLedger()
    used = [charge(n) for n in range(3)]
    for item in used:
        ledger.reserve(item, NOW)
        ledger.commit(item.message)
    later = charge(8, account=b"\x02" * 32, expires_ms=NOW + 1_000_000_000)
    assert ledger.reserve(later, NOW + 900_000_000, 0) is R.RESERVED
    assert ledger.reserve(later, NOW + 900_000_000, 660_000) is R.RESERVED
    assert len(ledger) == 1

    assert ledger.reserve(charge(9), NOW, 660_001) is R.EXPIRED
    longer = charge(10, account=b"\x03" * 32, expires_ms=NOW + 1001)
    assert ledger.reserve(longer, NOW, 660_002) is R.RESERVED


YEAR_MS = 365 * 86_400_000


@pytest.mark.trial
@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS], ids=["ahead", "back"])
def test_a_clock_that_jumps_and_comes_back_changes_no_account(jump_ms: int) -> None:
    """What was used stays used, what is left is left, and what is in flight stays in flight."""
    ledger = QuotaLedger(LedgerConfig(keep_ms=5000, reservation_ms=2000))
    wide = {"expires_ms": NOW + 100_000}
    assert ledger.reserve(charge(1, **wide), NOW, 0) is R.RESERVED
    assert ledger.commit(charge(1).message)
    assert ledger.reserve(charge(2, **wide), NOW, 0) is R.RESERVED

    ledger.reserve(charge(3, **wide), NOW + jump_ms, 1000)
    ledger.release(charge(3).message)

    assert ledger.commit(charge(2).message)
    assert ledger.remaining(b"\x01" * 32) == (1, 80)
    assert ledger.reserve(charge(4, **wide), NOW + 1000, 1001) is R.RESERVED
    assert ledger.reserve(charge(5, **wide), NOW + 1000, 1001) is R.EXHAUSTED


def test_a_clock_set_back_keeps_no_charge_in_flight_for_ever() -> None:
    """A charge that nobody settles is given back after ``reservation_ms`` of a steady clock."""
    ledger = QuotaLedger(LedgerConfig(reservation_ms=1000))
    ledger.reserve(charge(1), NOW, 0)

    ledger.reserve(charge(2), NOW - YEAR_MS, 1000)
    assert not ledger.commit(charge(1).message)


def test_an_account_that_was_over_only_by_a_wrong_clock_is_kept() -> None:
    """After the clock was set right, the account ends when it ends."""
    ledger = QuotaLedger(LedgerConfig(keep_ms=5000))
    wide = {"expires_ms": NOW + 100_000}
    ledger.reserve(charge(1, **wide), NOW, 0)
    ledger.reserve(charge(2, **wide), NOW + YEAR_MS, 1)

    assert ledger.reserve(charge(3, **wide), NOW + 6000, 6000) is R.RESERVED
    assert len(ledger) == 1
    ledger.reserve(charge(4, **wide), NOW + 100_000, 100_000)
    assert len(ledger) == 1
    ledger.reserve(charge(5, **wide), NOW + 105_000, 105_000)
    assert len(ledger) == 0


def test_what_was_forgotten_stays_spent_in_the_next_process() -> None:
    """The latest end of a forgotten account goes along with the rows."""
    ledger = QuotaLedger(LedgerConfig(keep_ms=0))
    ledger.reserve(charge(1), NOW)
    ledger.reserve(charge(2, account=b"\x02" * 32, expires_ms=NOW + 9000), NOW + 2000)
    assert len(ledger) == 1

    again = QuotaLedger()
    again.restore(ledger.rows(), ledger.forgotten_ms)
    assert again.reserve(charge(3), NOW) is R.EXPIRED


def test_later_end_keeps_the_account() -> None:
    """A charge that brings a later end moves the account's."""
    ledger = QuotaLedger(LedgerConfig(keep_ms=0))
    ledger.reserve(charge(1), NOW)
    ledger.reserve(charge(2, expires_ms=NOW + 9000), NOW)

    assert ledger.reserve(charge(3, expires_ms=NOW + 9000), NOW + 8000) is R.RESERVED
    assert ledger.remaining(b"\x01" * 32) == (0, 70)


def test_limits_only_rise() -> None:
    """A lower limit that comes late changes nothing; a higher one counts (vouchers)."""
    ledger = QuotaLedger()

    assert ledger.reserve(charge(1, units_limit=10), NOW) is R.RESERVED
    assert ledger.reserve(charge(2, units_limit=20), NOW) is R.RESERVED
    assert ledger.reserve(charge(3, units_limit=10), NOW) is R.EXHAUSTED
    assert ledger.remaining(b"\x01" * 32) == (1, 0)


def test_accounts_are_bounded() -> None:
    """With ``accounts_max`` live accounts a new one is refused; none is forgotten for it."""
    ledger = QuotaLedger(LedgerConfig(accounts_max=2, keep_ms=0))
    for n in range(2):
        assert ledger.reserve(charge(n, account=bytes([n]) * 32), NOW) is R.RESERVED

    assert ledger.reserve(charge(8, account=b"\x08" * 32), NOW) is R.FULL
    later = charge(9, account=b"\x09" * 32, expires_ms=NOW + 9000)
    assert ledger.reserve(later, NOW + 1000) is R.RESERVED


def test_reservations_are_bounded() -> None:
    """With ``reservations_max`` charges in flight one more waits."""
    ledger = QuotaLedger(LedgerConfig(reservations_max=1))
    ledger.reserve(charge(1), NOW)

    assert ledger.reserve(charge(2), NOW) is R.FULL
    ledger.commit(charge(1).message)
    assert ledger.reserve(charge(2), NOW) is R.RESERVED


def test_worthless_account_takes_no_place() -> None:
    """An account that cannot pay its first message is not remembered."""
    ledger = QuotaLedger()

    assert ledger.reserve(charge(1, units_limit=9), NOW) is R.EXHAUSTED
    assert ledger.reserve(charge(1, messages_limit=0), NOW) is R.EXHAUSTED
    assert len(ledger) == 0


def test_committed_state_survives() -> None:
    """Rows carry what is committed, not what is in flight, into a fresh ledger (S7)."""
    ledger = QuotaLedger()
    for n in range(2):
        ledger.reserve(charge(n), NOW)
    ledger.commit(charge(0).message)

    rows = ledger.rows()
    assert rows == [AccountRow(b"\x01" * 32, 3, 100, 1, 10, NOW + 1000)]
    again = QuotaLedger()
    again.restore(rows)
    assert again.remaining(b"\x01" * 32) == (2, 90)
    with pytest.raises(BusArgumentError):
        again.restore(rows)
    with pytest.raises(BusArgumentError):
        QuotaLedger(LedgerConfig(accounts_max=1)).restore([rows[0], rows[0]._replace(account=b"")])
    with pytest.raises(BusArgumentError):
        LedgerConfig(accounts_max=0)


def test_release_after_the_account_is_gone() -> None:
    """A charge may outlive its account; giving it back is harmless."""
    ledger = QuotaLedger(LedgerConfig(keep_ms=0, reservation_ms=100_000))
    ledger.reserve(charge(1), NOW)
    other = charge(2, account=b"\x02" * 32, expires_ms=NOW + 9000)
    ledger.reserve(other, NOW + 2000)

    assert ledger.release(charge(1).message)
    assert len(ledger) == 1


def test_random_walk_never_overdraws() -> None:
    """Whatever the order of reserve, commit and release, used stays between 0 and the limit."""
    rng = random.Random(7)
    ledger = QuotaLedger(LedgerConfig(reservation_ms=50, keep_ms=1_000_000))
    spent = 0
    now = NOW
    flying: dict[bytes, int] = {}
    for step in range(5000):
        now += rng.randrange(3)
        units = rng.randrange(30)
        item = replace(charge(step), units=units, messages_limit=400, units_limit=4000)
        if ledger.reserve(item, now) is R.RESERVED:
            flying[item.message] = units
        for message in rng.sample(sorted(flying), k=min(len(flying), rng.randrange(3))):
            units = flying.pop(message)
            if rng.random() < 0.5:
                spent += units * ledger.commit(message)
            else:
                ledger.release(message)
        left = ledger.remaining(b"\x01" * 32)
        assert left is not None
        assert 0 <= left[0] <= 400
        assert 0 <= left[1] <= 4000 - spent
    assert spent <= 4000
