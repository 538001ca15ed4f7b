"""Accounts add up, quotas apply, and the largest namespace of a full account pays."""

from luxrelay.bus import NamespaceId
from luxrelay.store import RelayStoreConfig
from luxrelay.store.config import MIB
from luxrelay.store.namespaces import Payment, QuotaBook, low_water


def name(number: int) -> NamespaceId:
    """Return a numbered namespace."""
    return NamespaceId(bytes([number]) * 20)


def book(quota: int = 1_000, **quotas: int) -> QuotaBook:
    """Return a book with a default quota and quotas by number."""
    named = {name(int(number[1:])): size for number, size in quotas.items()}
    return QuotaBook(RelayStoreConfig(namespace_quota_bytes=quota, namespace_quotas=named))


def test_the_default_quota_is_a_tenth_and_16_mib_at_least() -> None:
    """An unlisted namespace has 10 % of the store, never less than 16 MiB (21-04, P1)."""
    large = RelayStoreConfig(max_storage_bytes=1024 * MIB)
    small = RelayStoreConfig(max_storage_bytes=20 * MIB)

    assert QuotaBook(large).quota(name(1)) == large.max_storage_bytes // 10
    assert QuotaBook(small).quota(name(1)) == 16 * MIB


def test_a_named_quota_applies_and_zero_denies() -> None:
    """Named namespaces have their own quota; 0 is a quota too (21-03, P1)."""
    quotas = book(1_000, n1=50, n2=0)

    assert [quotas.quota(name(n)) for n in (1, 2, 3)] == [50, 0, 1_000]


def test_lanes_share_their_parents_account() -> None:
    """A parent and its lanes add up; a lane with its own quota stands alone (J6)."""
    quotas = book(1_000, n4=100)
    for lane, size in ((1, 10), (2, 20), (3, 30), (4, 40)):
        quotas.update(name(lane), name(1), size)

    assert quotas.size_bytes(name(1)) == 60
    assert quotas.size_bytes(name(4)) == 40
    assert quotas.account_of(name(2), name(1)) == name(1)
    assert quotas.account_of(name(4), name(1)) == name(4)


def test_a_lane_that_finds_its_parent_moves() -> None:
    """Bytes go with the namespace from its own account to its parent's."""
    quotas = book()
    quotas.update(name(2), name(2), 20)
    quotas.update(name(2), name(1), 25)

    assert (quotas.size_bytes(name(2)), quotas.size_bytes(name(1))) == (0, 25)
    quotas.update(name(2), name(1), 0)
    assert quotas.size_bytes(name(1)) == 0
    assert quotas.largest(name(1)) is None


def test_the_largest_pays_down_to_the_next() -> None:
    """One that floods shrinks to the size of the others before they lose anything (P13)."""
    quotas = book(1_000)
    quotas.update(name(2), name(1), 700)
    quotas.update(name(3), name(1), 650)

    assert quotas.payment(name(1)) == Payment(name(2), 50)
    quotas.update(name(2), name(1), 640)
    assert quotas.payment(name(1)) == Payment(name(3), 10)


def test_equal_lanes_pay_in_few_steps() -> None:
    """Among equals one pays a sixteenth of what an account frees, not one byte."""
    quotas = book(16_000)
    for lane in (2, 3):
        quotas.update(name(lane), name(1), 8_000)
    payment = quotas.payment(name(1))

    assert payment is not None
    assert payment.size_bytes == (16_000 - low_water(16_000)) // 16


def test_nobody_pays_at_the_low_water_mark() -> None:
    """At 90 % of the quota making room ends (P13)."""
    quotas = book(1_000)
    quotas.update(name(1), name(1), 900)
    assert quotas.payment(name(1)) is None
    quotas.update(name(1), name(1), 901)

    assert quotas.payment(name(1)) == Payment(name(1), 1)
    assert quotas.payment(name(9)) is None


def test_an_account_above_its_quota_is_known() -> None:
    """A quota made smaller leaves an account above it until its oldest have gone (P13)."""
    quotas = book(1_000)
    quotas.update(name(1), name(1), 1_001)
    assert quotas.over() == name(1)
    quotas.update(name(1), name(1), 1_000)

    assert quotas.over() is None


def test_the_heap_does_not_grow_with_updates() -> None:
    """An account remembers its members, not its history."""
    quotas = book(10**6)
    for size in range(1, 500):
        quotas.update(name(2), name(1), size)
        quotas.update(name(3), name(1), 2 * size)

    account = quotas._accounts[name(1)]
    assert len(account.heap) <= 2 * 2 + 8
    assert quotas.largest(name(1)) == name(3)
