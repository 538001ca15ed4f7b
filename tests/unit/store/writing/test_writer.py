"""The writer groups, syncs once for many, and stops when a sync failed."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.errors import StoreError
from luxrelay.store import Durability, PutOutcome, RelayStore
from luxrelay.store.rocks import Database
from luxrelay.store.writing.writer import split_groups

Opener = Callable[..., RelayStore]


def test_split_by_count(forge: Any) -> None:
    """No group has more than group_messages_max messages; none is lost."""
    messages = [forge.message(seq) for seq in range(1, 8)]
    groups = list(split_groups(messages, 3, 10**9))

    assert [len(group) for group in groups] == [3, 3, 1]
    assert [message for group in groups for message in group] == messages


def test_split_by_bytes(forge: Any) -> None:
    """No group has more than group_bytes_max bytes unless it is one message."""
    messages = [forge.message(seq, blob=bytes(1000)) for seq in range(1, 5)]
    size = len(messages[0].header.encode()) + 1000

    assert [len(group) for group in split_groups(messages, 99, 2 * size)] == [2, 2]
    assert [len(group) for group in split_groups(messages, 99, 2 * size - 1)] == [1] * 4
    assert [len(group) for group in split_groups(messages, 99, 1)] == [1] * 4
    assert list(split_groups([], 99, 1)) == []


def test_a_long_list_goes_in_several_batches(forge: Any, open_store: Opener, now: int) -> None:
    """group_messages_max bounds one batch; the outcomes come back in order."""
    store = open_store(group_messages_max=2)
    messages = [forge.message(seq) for seq in (1, 2, 3, 3, 4)]
    outcomes = store.put_many(messages, now)

    assert outcomes == [0, 0, 0, PutOutcome.DUPLICATE, 0]
    assert store.stats().batches == 3


def test_an_empty_list_is_no_work(open_store: Opener, now: int) -> None:
    """Nothing put is nothing written."""
    store = open_store()

    assert store.put_many([], now) == []
    assert store.stats().batches == 0


def test_sync_before_returning(forge: Any, open_store: Opener, now: int) -> None:
    """With durability fsync each call that wrote has synced; one that had nothing to do not."""
    store = open_store(durability=Durability.FSYNC)
    store.put_many([forge.message(1)], now)
    assert store.stats().syncs == 1
    store.put_many([forge.message(1)], now)
    assert store.stats().syncs == 1
    store.skip_to(forge.message(1).header.namespace_id, forge.message(1).parent, 9)

    assert store.stats().syncs == 2


def test_leave_the_sync_to_the_system(forge: Any, open_store: Opener, now: int) -> None:
    """With durability os no call waits for the disk."""
    store = open_store(durability=Durability.OS)
    store.put_many([forge.message(1)], now)

    assert store.stats().syncs == 0


def test_one_sync_serves_many_writers(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers that wrote while a sync ran share the next one."""
    store = open_store(durability=Durability.FSYNC)
    real_sync = Database.sync
    first_runs, go_on = threading.Event(), threading.Event()

    def slow_sync(database: Database) -> None:
        first_runs.set()
        go_on.wait(30)
        real_sync(database)

    monkeypatch.setattr(Database, "sync", slow_sync)
    threads = [
        threading.Thread(target=store.put_many, args=([forge.message(seq)], now))
        for seq in range(1, 9)
    ]
    threads[0].start()
    assert first_runs.wait(30)
    for thread in threads[1:]:
        thread.start()
    while store.stats().batches < len(threads):
        threading.Event().wait(0.001)
    go_on.set()
    for thread in threads:
        thread.join()

    assert store.stats().messages == len(threads)
    assert store.stats().syncs == 2


def test_a_failed_sync_ends_writing(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync nothing is acknowledged any more; reading goes on."""
    store = open_store(durability=Durability.FSYNC)
    store.put_many([forge.message(1)], now)

    def refuse(_database: Database) -> None:
        raise StoreError("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "sync", refuse)
        with pytest.raises(StoreError):
            store.put_many([forge.message(2)], now)
    for seq in (2, 3):
        with pytest.raises(StoreError) as caught:
            store.put_many([forge.message(seq)], now)
        assert caught.value.code == "store.io"

    assert len(store.get_messages([forge.message(1).header.message_id], now)[0]) == 1


def test_a_duplicate_waits_for_the_first_copy_to_be_durable(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DUPLICATE is an acknowledgement: it is not given before the message is synced."""
    store = open_store(durability=Durability.FSYNC)
    real_sync = Database.sync
    runs, go_on = threading.Event(), threading.Event()

    def slow_sync(database: Database) -> None:
        runs.set()
        go_on.wait(30)
        real_sync(database)

    monkeypatch.setattr(Database, "sync", slow_sync)
    answered = threading.Event()

    def put_copy() -> None:
        store.put_many([forge.message(1)], now)
        answered.set()

    first = threading.Thread(target=store.put_many, args=([forge.message(1)], now))
    first.start()
    assert runs.wait(30)
    second = threading.Thread(target=put_copy)
    second.start()
    while store.stats().outcomes[PutOutcome.DUPLICATE] == 0:
        threading.Event().wait(0.001)

    assert not answered.is_set()
    go_on.set()
    first.join()
    second.join()
    assert answered.is_set()


def test_many_threads_put_and_read_at_once(forge: Any, open_store: Opener, now: int) -> None:
    """Writers, readers and the deletion cycle share a store without losing a row."""
    store = open_store()
    messages = {sender: [forge.in_lane(seq, sender) for seq in range(1, 41)] for sender in range(4)}
    done = threading.Event()
    faults: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                for head in store.heads(None, b"", 0)[0]:
                    assert head.contiguous_seq == head.messages
                store.expire(now)
        except BaseException as fault:  # noqa: BLE001  # reported by the main thread
            faults.append(fault)

    def write(sender: int) -> None:
        for start in range(0, 40, 8):
            store.put_many(messages[sender][start : start + 8], now)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(sender,)) for sender in messages]
    reader.start()
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()

    assert faults == []
    assert store.stats().messages == 160
    assert store.verify() == []
