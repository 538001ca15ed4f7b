"""The ordered view of a validator, at the doors: the next message, or nothing (H16, H18)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from unittest.mock import patch

import pytest

from luxrelay.bus import Code, NamespaceId, SigningKey
from luxrelay.cli.main import main
from luxrelay.client import (
    Gap,
    LaneSigner,
    Message,
    Outgoing,
    Refused,
    Subscribe,
    Waiting,
    subscribe,
)
from luxrelay.errors import SyncRemoteError
from luxrelay.node.subscription_messages import StoreFollowing
from luxrelay.sync import RelaySyncClient, RelaySyncServer, SyncServerConfig, WireMessage
from luxrelay.sync.following import (
    Followed,
    FollowedRefused,
    FollowedWaiting,
    SubscribeWanted,
)
from luxrelay.sync.rpc import publishing as calls
from luxrelay.sync.rpc import subscription_frames as frames

from .conftest import PARENT, Stand, now_ms
from .test_subscribe_grpc import served

pytestmark = pytest.mark.slow
Shown = tuple[str, int, int]


class Writer:
    """Signs messages of one lane in any order and with any time."""

    def __init__(self) -> None:
        self.key = SigningKey.generate()
        self.began = now_ms()
        self.lane = NamespaceId(LaneSigner(self.key, PARENT).namespace_id)

    def message(self, seq: int, ms: int = 0) -> Outgoing:
        """Return the message of a sequence, so many milliseconds after the first."""
        signer = LaneSigner(self.key, PARENT, next_seq=seq)
        return signer.sign(b"%d" % seq, self.began + ms)


@pytest.fixture
def writer() -> Writer:
    """A writer with a lane of its own."""
    return Writer()


def bring(stand: Stand, *messages: Outgoing) -> None:
    """Store messages as history, which takes timestamps that go back."""
    verdicts = stand.doors.history(PARENT, [WireMessage(m.header, m.blob) for m in messages])
    assert all(verdict.accepted for verdict in verdicts), verdicts


def ws(stand: Stand, lane: NamespaceId, **more: Any) -> Iterator[Shown]:
    """Yield what an ordered view tells over WebSocket."""
    wanted = Subscribe(namespaces=[lane], lanes=False, ordered=True, gap_wait_ms=0, **more)
    with stand.client() as client:
        for event in subscribe(client, wanted):
            match event:
                case Message(header=header):
                    yield "message", header.seq, header.seq
                case Refused(_, seq, _, code, _):
                    yield "refused", seq, code
                case Waiting(_, first, last):
                    yield "waiting", first, last
                case Gap(_, first, last, reason):
                    yield reason, first, last


def grpc(stand: Stand, lane: NamespaceId) -> Iterator[Shown]:
    """Yield the same over gRPC."""
    wanted = SubscribeWanted(namespaces=[lane], lanes=False, ordered=True, gap_wait_ms=0)
    with served(stand) as client, closing(client.subscribe(wanted)) as events:
        for event in events:
            match event:
                case Followed(message):
                    yield "message", message.seq, message.seq
                case FollowedRefused(_, seq, _, code, _):
                    yield "refused", seq, code
                case FollowedWaiting(_, first, last):
                    yield "waiting", first, last


DOORS = pytest.mark.parametrize("door", [ws, grpc], ids=["WebSocket", "gRPC"])


@DOORS
def test_no_hole_is_passed(stand: Stand, writer: Writer, door: Any) -> None:
    """The view waits for what is missing, and goes on in order when it comes (11-14, 11-47)."""
    stand.publish([writer.message(1), writer.message(4)])
    told = door(stand, writer.lane)

    assert [next(told), next(told)] == [("message", 1, 1), ("waiting", 2, 3)]
    stand.publish([writer.message(3), writer.message(2), writer.message(5)])
    assert [next(told) for _ in range(4)] == [("message", n, n) for n in (2, 3, 4, 5)]
    told.close()


@DOORS
def test_a_timestamp_that_goes_back_ends_the_order(stand: Stand, writer: Writer, door: Any) -> None:
    """It is told with its code, and nothing behind it: a validator would not have taken it."""
    bring(stand, writer.message(1, ms=0), writer.message(2, ms=-5), writer.message(3, ms=1))
    told = door(stand, writer.lane)

    assert [next(told) for _ in range(3)] == [
        ("message", 1, 1),
        ("refused", 2, Code.TIMESTAMP_INVALID),
        ("waiting", 2, 2),
    ]
    told.close()


def test_a_view_that_begins_in_the_middle_knows_the_time_before(
    stand: Stand, writer: Writer
) -> None:
    """The first message is compared with the one at the position, which is not told."""
    bring(stand, writer.message(1, ms=0), writer.message(2, ms=-5))
    told = ws(stand, writer.lane, after=1)

    assert next(told) == ("refused", 2, Code.TIMESTAMP_INVALID)
    told.close()


def test_a_policy_that_is_not_in_force_is_refused(stand: Stand, writer: Writer) -> None:
    """What the store holds from before a change of its configuration is judged by today's."""
    stand.publish([writer.message(1)])
    before, stand.judge._policies = stand.judge._policies, {PARENT: frozenset({b"\1" * 32})}
    try:
        told = ws(stand, writer.lane)
        assert next(told) == ("refused", 1, Code.POLICY_VIOLATION)
        told.close()
    finally:
        stand.judge._policies = before


def test_the_command_shows_it(
    stand: Stand, writer: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    """`luxrelay subscribe --ordered --json`: messages, and what is refused, a line each."""
    bring(stand, writer.message(1, ms=0), writer.message(2, ms=-5))

    code = main(
        ["subscribe", "--gateway", f"http://{stand.address}", "--namespace", writer.lane.hex(),
         "--ordered", "--json", "--count", "1"]
    )  # fmt: skip

    assert code == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["header"]["seq"] for line in lines if "header" in line] == [1]


def test_who_cannot_give_one_says_so(stand: Stand, writer: Writer) -> None:
    """Nobody believes in an order that is none."""
    server = RelaySyncServer(
        stand.store,
        SyncServerConfig(port=0),
        clock_ms=now_ms,
        followed=StoreFollowing(stand.store, stand.feed, now_ms),
    )
    port = server.start()
    wanted = SubscribeWanted(namespaces=[writer.lane], ordered=True)
    try:
        with RelaySyncClient(f"127.0.0.1:{port}") as client:
            events = client.subscribe(wanted)
            with closing(events), pytest.raises(SyncRemoteError, match="ordered"):
                next(events)
    finally:
        server.stop(0.0)


@pytest.mark.parametrize(
    "asked",
    [{"ordered": True}, {"senders": [b"\1" * 20]}, {"max_rate": 1}, {"blobs": "later"}],
    ids=lambda asked: next(iter(asked)),
)
def test_a_node_that_does_not_know_it_is_found_out(
    stand: Stand, writer: Writer, asked: dict[str, Any]
) -> None:
    """An older node passes over what it does not know, and does not say that it knows it."""
    stand.publish([writer.message(1)])
    older = {"KNOWS": 6}
    wanted = SubscribeWanted(namespaces=[writer.lane], **asked)
    with served(stand) as client, patch.multiple(frames, **older), patch.multiple(calls, **older):
        events = client.subscribe(wanted)
        with closing(events), pytest.raises(SyncRemoteError, match="older version"):
            next(events)
