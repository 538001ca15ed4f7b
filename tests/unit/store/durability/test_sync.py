"""A receipt tells the truth: durable when the disk has it, never before, never after a failure."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.errors import StoreError
from luxrelay.store import Durability, PutOutcome, RelayStore
from luxrelay.store.rocks import Database

Opener = Callable[..., RelayStore]


class Disk:
    """Database.sync that waits to be let through, or fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs, self.go_on = threading.Event(), threading.Event()
        self.fails = False
        self.calls = 0
        real = Database.sync

        def sync(database: Database) -> None:
            self.calls += 1
            self.runs.set()
            self.go_on.wait(30)
            if self.fails:
                raise StoreError("input/output error")
            real(database)

        monkeypatch.setattr(Database, "sync", sync)


@pytest.fixture
def disk(open_store: Opener, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A slow disk under the store "group"; let through when the test ends."""
    open_store("group", durability=Durability.GROUP).close()
    slow = Disk(monkeypatch)
    yield slow
    slow.go_on.set()


def test_a_receipt_is_durable_after_the_sync(
    forge: Any, open_store: Opener, disk: Disk, now: int
) -> None:
    """With durability group a put returns before the sync, the receipt follows it (P3)."""
    store = open_store("group", durability=Durability.GROUP)
    receipt = store.put([forge.message(1), forge.message(1)], now)
    assert disk.runs.wait(30)

    assert receipt.outcomes == [PutOutcome.STORED, PutOutcome.DUPLICATE]
    assert not receipt.durable
    assert receipt.wait(0.001) is False
    disk.go_on.set()
    assert receipt.wait(30)
    assert receipt.durable


def test_one_sync_covers_many_puts(forge: Any, open_store: Opener, disk: Disk, now: int) -> None:
    """What is written while the disk is busy shares the next sync."""
    store = open_store("group", durability=Durability.GROUP, group_interval_ms=1)
    first = store.put([forge.message(1)], now)
    assert disk.runs.wait(30)
    others = [store.put([forge.message(seq)], now) for seq in range(2, 20)]
    disk.go_on.set()

    assert first.wait(30)
    assert all(receipt.wait(30) for receipt in others)
    assert store.stats().syncs == 2


def test_put_many_waits_for_the_group(forge: Any, open_store: Opener, disk: Disk, now: int) -> None:
    """`put_many` returns only what is durable, with group as with fsync."""
    store = open_store("group", durability=Durability.GROUP)
    answered = threading.Event()

    def put() -> None:
        store.put_many([forge.message(1)], now)
        answered.set()

    thread = threading.Thread(target=put)
    thread.start()
    assert disk.runs.wait(30)
    assert not answered.is_set()
    disk.go_on.set()
    thread.join()

    assert answered.is_set()


def test_syncs_keep_their_distance(forge: Any, open_store: Opener, now: int) -> None:
    """After a sync the next one waits for the interval, while nobody waits for it (P3)."""
    store = open_store(durability=Durability.GROUP, group_interval_ms=3_600_000)
    store.put_many([forge.message(1)], now)
    receipts = [store.put([forge.message(seq)], now) for seq in range(2, 200)]

    assert store.stats().syncs <= 2  # the one waited for, and the thread's own first one
    store.close()
    assert receipts[-1].durable


@pytest.mark.parametrize("timeout_s", [30, None])
def test_whoever_waits_does_not_wait_for_the_interval(
    forge: Any, open_store: Opener, now: int, timeout_s: float | None
) -> None:
    """A receipt that somebody waits for is synced at once: group is never slower than fsync."""
    store = open_store(durability=Durability.GROUP, group_interval_ms=3_600_000)
    for seq in range(1, 20):
        assert store.put([forge.message(seq)], now).wait(timeout_s)
    assert store.put_many([forge.message(20)], now) == [PutOutcome.STORED]


def test_a_failed_sync_ends_writing_and_every_receipt(
    forge: Any, open_store: Opener, disk: Disk, now: int
) -> None:
    """Nothing written before or after a failed sync is acknowledged; reading goes on."""
    store = open_store("group", durability=Durability.GROUP)
    receipt = store.put([forge.message(1)], now)
    disk.fails = True
    disk.go_on.set()

    with pytest.raises(StoreError) as caught:
        receipt.wait(30)
    assert caught.value.code == "store.io"
    assert not receipt.durable
    with pytest.raises(StoreError):
        store.put([forge.message(2)], now)
    assert store.stats().messages == 1
    disk.fails = False


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])
def test_receipts_of_the_other_choices(
    forge: Any, open_store: Opener, now: int, durability: Durability
) -> None:
    """With fsync waiting syncs; with os there is nothing to wait for."""
    store = open_store(durability=durability)
    receipt = store.put([forge.message(1)], now)

    assert receipt.durable is (durability is Durability.OS)
    assert receipt.wait()
    assert receipt.durable
    assert store.stats().syncs == (durability is Durability.FSYNC)


def test_closing_makes_the_rest_durable(
    forge: Any, open_store: Opener, disk: Disk, now: int
) -> None:
    """A receipt outlives its store and is durable once that is closed."""
    disk.go_on.set()
    store = open_store("group", durability=Durability.GROUP)
    receipts = [store.put([forge.message(seq)], now) for seq in range(1, 5)]
    store.close()

    assert all(receipt.durable for receipt in receipts)
    assert all(receipt.wait() for receipt in receipts)
