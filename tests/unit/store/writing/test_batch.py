"""A group decides slots, counts exactly, and changes nothing before it is committed."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from luxrelay.errors import StoreError
from luxrelay.store import PutOutcome, RelayStore, RelayStoreConfig, layout
from luxrelay.store.ledger import Ledger
from luxrelay.store.rocks import Batch, Database
from luxrelay.store.writing.batch import Group

Opener = Callable[..., RelayStore]
STORED, DUPLICATE = PutOutcome.STORED, PutOutcome.DUPLICATE
LOST, EXPIRED, FULL = PutOutcome.LOST_SLOT, PutOutcome.EXPIRED, PutOutcome.FULL


def contents(store: RelayStore, message: Any, now: int) -> list[bytes]:
    """Return the content ids in the slot of ``message``."""
    found, _ = store.get_messages([message.header.message_id], now)
    return [each.header.content_id for each in found]


def by_content(messages: list[Any]) -> list[Any]:
    """Return messages in the order of their content ids."""
    return sorted(messages, key=lambda message: message.header.content_id)


def test_a_message_twice_is_stored_once(forge: Any, open_store: Opener, now: int) -> None:
    """The second copy is a duplicate, in one batch or in two (21-30)."""
    store = open_store()
    message = forge.message(1)

    assert store.put_many([message, message], now) == [STORED, DUPLICATE]
    assert store.put_many([message], now) == [DUPLICATE]
    assert store.stats().messages == 1


def test_a_copy_does_not_live_longer(forge: Any, open_store: Opener, now: int) -> None:
    """Receiving a message again changes neither arrival nor expiry (21-13, P14)."""
    store = open_store()
    store.put_many([forge.message(1)], now)
    store.put_many([forge.message(1, received_at=now + 300_000)], now + 300_000)
    (found,), _ = store.get_messages([forge.message(1).header.message_id], now + 300_000)

    assert (found.received_at, found.expires_at) == (now, now + 600_000)


def test_an_expired_message_is_refused(forge: Any, open_store: Opener, now: int) -> None:
    """At exactly its TTL a message is past its time (21-10, 21-13)."""
    store = open_store()

    assert store.put_many([forge.message(1)], now + 600_000) == [EXPIRED]
    assert store.put_many([forge.message(1)], now + 599_999) == [STORED]
    assert store.stats().outcomes[EXPIRED] == 1


def test_a_late_copy_of_an_expired_message_is_refused(
    forge: Any, open_store: Opener, now: int
) -> None:
    """A message that expired by its arrival is not revived by a later arrival (P14)."""
    store = open_store()
    ahead = forge.message(1, at=now + 20_000, received_at=now)
    later = forge.message(1, at=now + 20_000, received_at=now + 20_000)
    store.put_many([ahead], now)

    assert store.put_many([later], now + 600_000) == [EXPIRED]
    assert contents(store, ahead, now + 600_000) == []


@pytest.mark.slow
def test_five_writers_leave_the_same_four_in_every_order(
    forge: Any, open_store: Opener, now: int
) -> None:
    """Of five senders in a slot the same four stay, whatever the order (21-31, J11)."""
    store = open_store()

    for seq, order in enumerate(permutations(range(5)), start=1):
        slot = [forge.message(seq, sender=sender, nonce=seq) for sender in range(1, 6)]
        expected = [message.header.content_id for message in by_content(slot)[:4]]
        for index in order:
            store.put_many([slot[index]], now)
        assert contents(store, slot[0], now) == expected
    assert store.verify() == []


def test_the_fifth_writer_loses_or_displaces(forge: Any, open_store: Opener, now: int) -> None:
    """The highest content loses when it comes last and is displaced when it came first."""
    messages = by_content([forge.message(1, sender=sender) for sender in range(1, 6)])
    late, early = open_store("late"), open_store("early")

    assert late.put_many(messages, now) == [STORED] * 4 + [LOST]
    assert early.put_many(messages[::-1], now) == [STORED] * 5
    assert early.stats().messages == late.stats().messages == 4
    assert contents(late, messages[0], now) == contents(early, messages[0], now)
    assert not early.has(messages[4].header.content_id)
    assert early.verify() == late.verify() == []


def test_a_second_content_of_a_sender_is_an_equivocation(
    forge: Any, open_store: Opener, now: int
) -> None:
    """One content of a sender stays, the lower, and the event is counted (H17)."""
    low, high = by_content([forge.message(1, nonce=nonce) for nonce in (1, 2)])
    store = open_store()

    assert store.put_many([low, high], now) == [STORED, LOST]
    assert contents(store, low, now) == [low.header.content_id]
    assert store.stats().equivocations == 1


def test_equivocations_are_kept_as_evidence(forge: Any, open_store: Opener, now: int) -> None:
    """Both headers of the newest equivocations can be had, equivocations_max of them (H17)."""
    store = open_store(equivocations_max=2)
    pairs = [[forge.message(seq, nonce=nonce) for nonce in (1, 2)] for seq in (1, 2, 3)]
    for held, came in pairs:
        store.put_many([held, came], now)

    assert [(one.held, one.came) for one in store.equivocations()] == [
        (held.header.encode(), came.header.encode()) for held, came in pairs[1:]
    ]
    assert store.stats().equivocations == 3


def test_an_expired_candidate_makes_room(forge: Any, open_store: Opener, now: int) -> None:
    """Whoever is past its time holds no place in a slot (J11, P14)."""
    old, new = by_content(
        [forge.message(1, sender=1, at=now), forge.message(1, sender=1, at=now + 400_000)]
    )
    if old.header.timestamp > new.header.timestamp:
        old, new = new, old
    store = open_store()
    store.put_many([old], now)

    assert store.put_many([new], now + 600_000) == [STORED]
    assert contents(store, new, now + 600_000) == [new.header.content_id]
    head = store.head(new.header.namespace_id)
    assert (head.latest_header_hash, head.messages) == (new.header.header_hash, 1)
    assert store.verify() == []


def test_the_head_shows_the_lowest_content_of_the_latest_slot(
    forge: Any, open_store: Opener, now: int
) -> None:
    """Two stores that saw candidates in another order show the same head (21-24, J11)."""
    messages = by_content([forge.message(1, sender=sender, at=now + sender) for sender in (1, 2)])
    one, two = open_store("one"), open_store("two")
    one.put_many(messages, now)
    two.put_many(messages[::-1], now)

    head = one.head(messages[0].header.namespace_id)
    assert head == two.head(messages[0].header.namespace_id)
    assert head.latest_header_hash == messages[0].header.header_hash
    assert head.latest_timestamp == messages[0].header.timestamp


def test_the_head_forgets_an_expired_crown(forge: Any, open_store: Opener, now: int) -> None:
    """When the candidate the head showed has expired, the lowest that lives is shown."""
    early = by_content([forge.message(1, sender=sender, at=now) for sender in range(1, 9)])
    late = by_content([forge.message(1, sender=sender, at=now + 5000) for sender in range(9, 17)])
    crown, second, third = early[0], *late[-2:]
    assert crown.header.content_id < second.header.content_id
    store = open_store()
    store.put_many([crown, second], now)
    assert store.head(crown.parent).latest_header_hash == crown.header.header_hash

    assert store.put_many([third], now + 600_000) == [STORED]

    assert store.head(crown.parent).latest_header_hash == second.header.header_hash
    assert store.head(crown.parent).latest_timestamp == second.header.timestamp
    assert store.verify() == []


def test_a_full_store_refuses_what_does_not_fit(forge: Any, open_store: Opener, now: int) -> None:
    """At max_storage_bytes exactly nothing is lost; one byte more is FULL (21-47)."""
    probe = open_store("probe")
    probe.put_many([forge.message(1), forge.message(2)], now)
    store = open_store(max_storage_bytes=probe.stats().size_bytes, when_full="refuse")

    assert store.put_many([forge.message(seq) for seq in (1, 2, 3)], now) == [STORED, STORED, FULL]
    assert store.stats().size_bytes == store.config.max_storage_bytes
    store.expire(now + 600_000)
    assert store.put_many([forge.message(9, at=now + 600_000)], now + 600_000) == [STORED]


def test_a_full_store_still_replaces_within_a_slot(
    forge: Any, open_store: Opener, now: int
) -> None:
    """A lower content of the same size takes its sender's place without room (J11)."""
    low, high = by_content([forge.message(1, nonce=nonce) for nonce in (1, 2)])
    probe = open_store("probe")
    probe.put_many([high], now)
    store = open_store(max_storage_bytes=probe.stats().size_bytes, when_full="refuse")

    assert store.put_many([high, low], now) == [STORED, STORED]
    assert store.verify() == []


def test_one_namespace_too_many_is_full(forge: Any, open_store: Opener, now: int) -> None:
    """namespaces_max bounds the states, known namespaces go on (21-47)."""
    store = open_store(namespaces_max=2)
    messages = [forge.in_lane(1, sender) for sender in (1, 2, 3)]

    assert store.put_many(messages, now) == [STORED, STORED, FULL]
    assert store.put_many([messages[2], forge.in_lane(2, 1)], now) == [FULL, STORED]
    assert store.stats().namespaces == 2
    with pytest.raises(StoreError) as caught:
        store.skip_to(messages[2].header.namespace_id, messages[2].parent, 5)
    assert caught.value.code == "store.full"


def test_a_lane_finds_its_parent_later(forge: Any, open_store: Opener, now: int) -> None:
    """A namespace first seen without its parent joins the parent when that is known (J6)."""
    lane, parent = forge.lane(1), forge.in_lane(1, 1).parent
    store = open_store()
    store.put_many([forge.message(1, namespace=lane)], now)
    assert store.head(lane).parent == lane

    store.put_many([forge.in_lane(2, 1)], now)
    store.put_many([forge.message(3, namespace=lane)], now)

    assert store.head(lane).parent == parent
    assert [head.namespace_id for head in store.heads(parent, b"", 10)[0]] == [lane]
    assert store.heads(lane, b"", 10)[0] == []
    assert store.verify() == []


def test_a_lane_finds_its_parent_in_the_same_batch(
    forge: Any, open_store: Opener, now: int
) -> None:
    """The same within one batch."""
    lane = forge.lane(1)
    store = open_store()
    store.put_many([forge.message(1, namespace=lane), forge.in_lane(2, 1)], now)

    assert store.head(lane).parent == forge.in_lane(1, 1).parent
    assert store.verify() == []


def begin(database: Database, ledger: Ledger) -> Group:
    """Return a group on an empty database."""
    return Group(database, ledger, RelayStoreConfig.small())


def test_nothing_is_visible_before_commit(forge: Any, database: Database, now: int) -> None:
    """A group that is dropped has changed neither ledger nor database (P9)."""
    ledger = Ledger.load(database)
    group = begin(database, ledger)
    group.place(forge.message(1), now)

    assert not ledger.states
    assert next(ledger.slices.keys(layout.HEADERS, b"", b""), None) is None


def test_a_failed_write_changes_nothing(
    forge: Any, database: Database, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the batch cannot be written the ledger stays as it was (P9)."""
    ledger = Ledger.load(database)
    group = begin(database, ledger)
    group.place(forge.message(1), now)

    def refuse(_self: Database, _batch: Batch) -> None:
        raise StoreError("no space left")

    monkeypatch.setattr(Database, "write", refuse)
    with pytest.raises(StoreError):
        group.commit()

    assert (ledger.messages, ledger.size_bytes, dict(ledger.states)) == (0, 0, {})


def test_an_undecided_group_writes_nothing(forge: Any, database: Database, now: int) -> None:
    """A group in which nothing was stored commits to nothing."""
    group = begin(database, Ledger.load(database))
    group.place(forge.message(1), now + 600_000)

    assert group.commit() is False


def test_a_message_of_a_lost_namespace_is_corruption(database: Database) -> None:
    """Forgetting a message whose namespace has no state is reported."""
    with pytest.raises(StoreError) as caught:
        begin(database, Ledger.load(database)).forget(bytes(60))
    assert caught.value.code == "store.corrupt"
