"""Two publishers of one key and one slot: one of them is told, whoever comes first."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from luxrelay.bus import Code, MsgHeader, SigningKey, topic_namespace
from luxrelay.bus.verdict import ACCEPTED, reject
from luxrelay.client import LaneSigner
from luxrelay.node.ingress import FirstStays
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig

PARENT = topic_namespace("/chat/1/room")
NOW_MS = time.time_ns() // 1_000_000


@pytest.fixture
def store(tmp_path: Path) -> RelayStore:
    """An empty store."""
    return RelayStore.open(tmp_path / "store", RelayStoreConfig.small(), now_ms=NOW_MS)


def rivals(count: int) -> list[MsgHeader]:
    """Return headers of one sender for one slot."""
    key = SigningKey.generate()
    signed = [LaneSigner(key, PARENT).sign(b"%d" % n, NOW_MS) for n in range(count)]
    return [MsgHeader.decode(each.header) for each in signed]


def put(store: RelayStore, header: MsgHeader) -> None:
    """Store a header's message."""
    message = IncomingMessage(header=header, blob=None, parent=PARENT, received_at=NOW_MS)
    store.put_many([message], NOW_MS)


def test_of_many_at_once_one_is_first(store: RelayStore) -> None:
    """Threads that look at the same moment do not all find the slot free."""
    firsts = FirstStays(store)
    headers = rivals(8)
    stored: list[MsgHeader] = []
    begin = threading.Barrier(len(headers))

    def publish(header: MsgHeader) -> None:
        begin.wait()
        with firsts.guarded([header], [ACCEPTED]) as (verdict,):
            if verdict.accepted:
                put(store, header)
                stored.append(header)

    threads = [threading.Thread(target=publish, args=(header,)) for header in headers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (first,) = stored
    assert store.has(first.content_id)
    assert store.slot_holders(first.namespace_id, 1) == {first.sender_pub_key: first.content_id}
    store.close()


def test_the_first_of_a_batch_stays_and_a_repetition_passes(store: RelayStore) -> None:
    """Inside one call too; what is stored already is no rival of itself, and faults stay faults."""
    firsts = FirstStays(store)
    one, other = rivals(2)
    wrong = reject(Code.POLICY_VIOLATION, "no")

    with firsts.guarded([one, other, one, other], [ACCEPTED, ACCEPTED, ACCEPTED, wrong]) as found:
        assert [verdict.code for verdict in found] == [
            Code.OK, Code.CONTENTION, Code.OK, Code.POLICY_VIOLATION,
        ]  # fmt: skip
        put(store, one)
    with firsts.guarded([other, one], [ACCEPTED, ACCEPTED]) as found:
        assert [verdict.code for verdict in found] == [Code.CONTENTION, Code.OK]
    store.close()
