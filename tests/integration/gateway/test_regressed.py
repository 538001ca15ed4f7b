"""Timestamps that go back: refused with the numbers at each door, and told of history (H13)."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from luxrelay.bus import Code, MsgHeader, SigningKey
from luxrelay.client import LaneSigner, Message, Outgoing, Query, Subscribe, subscribe
from luxrelay.sync import (
    PublishItem,
    RelaySyncClient,
    RelaySyncServer,
    SyncServerConfig,
    WireMessage,
)
from luxrelay.sync.following import Followed

from .conftest import PARENT, Stand, now_ms
from .test_subscribe_grpc import ALL, served
from .test_subscribe_grpc import until as until_followed

pytestmark = pytest.mark.slow
BACK_MS = 20_000


@pytest.fixture
def pair() -> tuple[Outgoing, Outgoing]:
    """A message, and the next one of the lane from a machine whose clock is behind."""
    key, now = SigningKey.generate(), now_ms()
    first = LaneSigner(key, PARENT).sign(b"first", now)
    return first, LaneSigner(key, PARENT, next_seq=2).sign(b"second", now - BACK_MS)


@pytest.mark.trial
def test_http_refuses_it_and_says_how_far(stand: Stand, pair: tuple[Outgoing, Outgoing]) -> None:
    """The receipt has the code; the reason how far back, behind which sequence (11-16, 11-47)."""
    with stand.client("read", "publish") as client:
        (taken,) = client.publish(pair[:1])
        (refused,) = client.publish(pair[1:])

    assert taken.stored
    assert not refused.stored
    assert (refused.verdict, refused.code) == ("ignore", Code.TIMESTAMP_INVALID)
    assert "20.000 s before that of sequence 1" in refused.reason


@pytest.mark.trial
def test_grpc_refuses_it_and_says_how_far(stand: Stand, pair: tuple[Outgoing, Outgoing]) -> None:
    """As over HTTP."""
    server = RelaySyncServer(
        stand.store, SyncServerConfig(port=0), clock_ms=now_ms, publisher=stand.doors
    )
    port = server.start()
    items = [PublishItem(header=m.header, blob=m.blob, parent_id=m.parent) for m in pair]
    try:
        with RelaySyncClient(f"127.0.0.1:{port}") as client:
            taken, refused = client.publish(items)
    finally:
        server.stop(0.0)

    assert taken.stored
    assert refused.code == Code.TIMESTAMP_INVALID
    assert "20.000 s before that of sequence 1" in refused.reason


@pytest.mark.trial
def test_history_that_goes_back_is_told_at_every_door(
    stand: Stand, pair: tuple[Outgoing, Outgoing]
) -> None:
    """By namespace, time, sender and id; as JSON, as bytes, over WebSocket and over gRPC."""
    stand.doors.history(PARENT, [WireMessage(each.header, each.blob) for each in pair])
    header = MsgHeader.decode(pair[1].header)
    lane, sender = header.namespace_id.hex(), header.sender_address.hex()
    name = header.message_id.hex()
    for path in (
        f"/v1/namespaces/{lane}/messages",
        f"/v1/namespaces/{lane}/messages?after_seq=1",
        f"/v1/messages?sender={sender}",
        f"/v1/messages?from_ms={header.timestamp}",
        f"/v1/messages/{name}",
    ):
        answer = stand.fetch(path)
        assert answer.status == 200, answer.body
        told = {int(each["header"]["seq"]): each.get("regressed") for each in _messages(answer)}
        assert told in ({1: None, 2: True}, {2: True}), path

    with stand.client() as client:
        page = list(client.messages(Query(namespace_id=header.namespace_id)))
        assert [each.regressed for each in page] == [False, True]
        events = subscribe(client, Subscribe(namespaces=[PARENT]))
        told_ws: list[bool] = []
        while len(told_ws) < 2:
            if isinstance(event := next(events), Message):
                told_ws.append(event.regressed)
    assert told_ws == [False, True]

    with served(stand) as grpc, closing(grpc.subscribe(ALL)) as followed:
        found = until_followed(followed, 2)
    assert [each.regressed for each in found if isinstance(each, Followed)] == [False, True]


def test_a_late_message_is_told_with_its_mark(
    stand: Stand, pair: tuple[Outgoing, Outgoing]
) -> None:
    """It comes into a gap that was told, and is behind the one before it."""
    key, now = SigningKey.generate(), now_ms()
    lane = LaneSigner(key, PARENT)
    first = lane.sign(b"first", now)
    third = LaneSigner(key, PARENT, next_seq=3).sign(b"third", now)
    second = LaneSigner(key, PARENT, next_seq=2).sign(b"second", now - BACK_MS)
    del pair
    stand.publish([first, third])
    with stand.client() as client:
        events = subscribe(client, Subscribe(namespaces=[PARENT], gap_wait_ms=0))
        seen: dict[int, tuple[bool, bool]] = {}
        for event in events:
            if isinstance(event, Message):
                seen[event.header.seq] = (event.late, event.regressed)
                if event.header.seq == 3:
                    stand.doors.history(PARENT, [WireMessage(second.header, second.blob)])
                if event.header.seq == 2:
                    break
    assert seen == {1: (False, False), 3: (False, False), 2: (True, True)}


def _messages(answer: Any) -> list[dict[str, Any]]:
    return list(answer.json["messages"])
