"""Subscriptions: replay that becomes live, resumed, bounded; publishing over a WebSocket."""

import itertools
import json
import socket
import threading
from collections.abc import Iterable
from contextlib import aclosing, suppress
from itertools import islice
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from wsproto.events import BytesMessage, TextMessage

from luxrelay.bus import MsgHeader, SigningKey
from luxrelay.client import (
    LATEST,
    NO_RETRY,
    AsyncRelayClient,
    Dropped,
    Event,
    Gap,
    LaneSigner,
    Live,
    Message,
    Place,
    PublishStream,
    Query,
    Reconnected,
    RelayClient,
    Retry,
    Subscribe,
    subscribe,
    subscribe_async,
)
from luxrelay.client.exchange import Exchanges
from luxrelay.client.session import StreamSession
from luxrelay.errors import ClientRefusedError, ClientUnreachableError
from luxrelay.node.gateway.websocket import _Session

from .conftest import PARENT, Stand, now_ms

pytestmark = pytest.mark.slow
QUICK = Retry(first_s=0.01, most_s=0.05)


def until(events: Iterable[Event], count: int) -> list[Event]:
    """Return the events up to the ``count``-th message."""
    found: list[Event] = []
    for event in events:
        found.append(event)
        if sum(isinstance(each, Message) for each in found) == count:
            return found
    raise AssertionError(found)


def seqs(events: Iterable[Event]) -> list[int]:
    """Return the sequences of the messages."""
    return [event.header.seq for event in events if isinstance(event, Message)]


def test_replay_becomes_live_without_loss_or_repetition(stand: Stand) -> None:
    """While messages pour in, a subscriber from the beginning gets each once, in order."""
    writers = 4
    signers = [LaneSigner(SigningKey.generate(), PARENT) for _ in range(writers)]
    each = 150
    for signer in signers:
        stand.publish([signer.sign(b"x", now_ms()) for _ in range(30)])

    def write() -> None:
        for _ in range((each - 30) // 5):
            for signer in signers:
                stand.publish([signer.sign(b"x", now_ms()) for _ in range(5)])

    writer = threading.Thread(target=write)
    with stand.client() as client:
        events = subscribe(client, Subscribe(namespaces=[PARENT]), retry=NO_RETRY)
        found = [next(events)]
        writer.start()
        while sum(isinstance(event, Message) for event in found) < writers * each:
            found.append(next(events))
        writer.join()
    lanes: dict[bytes, list[int]] = {}
    for event in found:
        if isinstance(event, Message):
            lanes.setdefault(event.header.namespace_id, []).append(event.header.seq)

    assert lanes == {signer.namespace_id: list(range(1, each + 1)) for signer in signers}
    assert sum(isinstance(event, Live) for event in found) == 1
    assert not any(isinstance(event, Gap | Dropped) for event in found)


def test_subscribe_from_a_sequence_and_from_the_latest(stand: Stand) -> None:
    """``after`` leaves out what came up to it; ``latest`` begins with what comes now."""
    signer = stand.store_line(20)
    with stand.client() as client:
        wanted = Subscribe(namespaces=[signer.namespace_id], after=15, lanes=False)
        some = until(subscribe(client, wanted), 5)
        events = subscribe(client, Subscribe(namespaces=[PARENT], after=LATEST))
        live = next(events)
        stand.publish([signer.sign(b"now", now_ms())])
        newcomer = stand.store_line(1)
        fresh = until(events, 2)

    assert seqs(some) == [16, 17, 18, 19, 20]
    assert isinstance(live, Live)
    assert live.positions[signer.namespace_id] == 20
    assert [(m.header.namespace_id, m.header.seq) for m in fresh if isinstance(m, Message)] == [
        (signer.namespace_id, 21),
        (newcomer.namespace_id, 1),
    ]


def test_a_gap_is_waited_for_then_told_and_filled_late(stand: Stand) -> None:
    """What is missing is waited for; then the gap is told, and what fills it comes late."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    one, two, three, four = (signer.sign(b"x", now_ms()) for _ in range(4))
    with stand.client() as client:
        patient = subscribe(client, Subscribe(namespaces=[PARENT], gap_wait_ms=60_000))
        hasty = subscribe(client, Subscribe(namespaces=[PARENT], gap_wait_ms=0))
        assert isinstance(next(patient), Live)
        assert isinstance(next(hasty), Live)
        stand.publish([one, three])
        told = until(hasty, 2)
        stand.publish([two])
        late = next(hasty)
        stand.publish([four])

        assert seqs(until(patient, 4)) == [1, 2, 3, 4]
        assert [type(event) for event in told] == [Message, Gap, Message]
        assert told[1] == Gap(signer.namespace_id, 2, 2, "missing")
        assert isinstance(late, Message)
        assert (late.header.seq, late.late) == (2, True)
        assert seqs([next(hasty)]) == [4]


def test_what_has_expired_is_told_as_a_gap(stand: Stand) -> None:
    """A subscriber that was away for too long is told what it missed (user-06)."""
    signer = stand.store_line(5)
    stand.store.skip_to(signer.namespace_id, PARENT, 9)
    signer.next_seq = 10
    stand.publish([signer.sign(b"x", now_ms())])
    with stand.client() as client:
        wanted = Subscribe(namespaces=[signer.namespace_id], lanes=False)
        events = until(subscribe(client, wanted), 6)

    assert seqs(events) == [1, 2, 3, 4, 5, 10]
    assert Gap(signer.namespace_id, 6, 9, "expired") in events


def test_a_lost_connection_is_resumed_without_loss_or_repetition(stand: Stand) -> None:
    """Whenever the connection breaks, the subscription goes on behind its last message."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    place, found = Place(), []
    with stand.client() as client:
        breaking = _Breaking(client.connect)
        client.connect = breaking  # type: ignore[method-assign]
        events = subscribe(client, Subscribe(namespaces=[PARENT]), place=place, retry=QUICK)
        for rounds in range(1, 11):
            stand.publish([signer.sign(b"x", now_ms()) for _ in range(20)])
            while len(seqs(found)) < 20 * rounds - 10:
                found.append(next(events))
            breaking.cut()
            while len(seqs(found)) < 20 * rounds:
                found.append(next(events))

    assert seqs(found) == list(range(1, 201))
    assert any(isinstance(event, Reconnected) for event in found)
    assert place.positions[signer.namespace_id] == 200


class _Breaking:
    """Opens lines and cuts them on demand."""

    def __init__(self, connect: Any) -> None:
        self._connect = connect
        self._line: Any = None

    def __call__(self) -> Any:
        self._line = self._connect()
        return self._line

    def cut(self) -> None:
        """Break the connection as a network does."""
        with suppress(OSError):  # it is down already
            self._line._stream.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_asynchronous_client_on_both_loops(stand: Stand, backend: str) -> None:
    """Publishing, reading and subscribing work on asyncio and on trio."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    token = stand.token("publish", "read")

    async def use() -> tuple[list[int], list[int], list[int]]:
        async with AsyncRelayClient(stand.address, token=token) as client:
            await client.publish([signer.sign(b"x", now_ms()) for _ in range(10)])
            query = Query(namespace_id=signer.namespace_id, limit=3)
            read = [message.header.seq async for message in client.messages(query)]
            heads = [head.latest_seq async for head in client.heads(PARENT) if head.messages]
            assert (await client.head(signer.namespace_id)).messages == 10
            assert await client.gaps(signer.namespace_id) == []
            told: list[int] = []
            async with anyio.create_task_group() as tasks:

                async def publish_more() -> None:
                    await client.publish([signer.sign(b"y", now_ms()) for _ in range(5)])

                events = subscribe_async(client, Subscribe(namespaces=[PARENT]))
                async with aclosing(events):
                    async for event in events:
                        if isinstance(event, Live):
                            tasks.start_soon(publish_more)
                        if isinstance(event, Message):
                            told.append(event.header.seq)
                            if len(told) == 15:
                                break
            return read, heads, told

    read, heads, told = anyio.run(use, backend=backend)

    assert read == list(range(1, 11))
    assert heads == [10]
    assert told == list(range(1, 16))


def test_publish_over_a_websocket(stand: Stand) -> None:
    """Receipts come in order, also when messages are sent ahead of them."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    with stand.client("publish") as client, PublishStream(client) as stream:
        (first,) = stream.publish([signer.sign(b"x", now_ms())])
        for _ in range(20):
            stream.send([signer.sign(b"x", now_ms()), signer.sign(b"y", now_ms())])
        rest = list(itertools.chain.from_iterable(stream.receive(2) for _ in range(20)))

    assert all(receipt.stored for receipt in [first, *rest])
    assert stand.store.head(signer.namespace_id).contiguous_seq == 41


def speak(
    stand: Stand, token: str, messages: list[str | bytes], count: int, path: str = "/v1/stream"
) -> list[dict[str, Any]]:
    """Return the first JSON messages of the node to a client that sends these."""
    said: list[dict[str, Any]] = []
    with RelayClient(stand.address, token=token, timeout_s=20) as client:
        line = client.connect()
        try:
            received = line.run(Exchanges(client.endpoint).upgrade(path, bytes(16)))
            session = StreamSession(received, client.checks)
            session._said = said.append  # type: ignore[assignment, method-assign]
            for each in messages:
                kind = TextMessage if isinstance(each, str) else BytesMessage
                line.send(session._frames.send(kind(data=each)))
            session.pending()
            while len(said) < count:
                session.receive(line.receive())
        except ClientUnreachableError as error:
            said.append({"type": "closed", "detail": error.what})
        finally:
            line.close()
    return said[:count]


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ("nonsense", "body"),
        ("[]", "type"),
        ("{}", "type"),
        ('{"type":"dance"}', "type"),
        ('{"type":"publish","messages":[]}', "messages"),
        ('{"type":"publish","id":5,"messages":[]}', "id"),
        (b"\x00" * 26, ""),
        (b"\x00" * 5, "byte 0"),
    ],
)
def test_a_wrong_message_is_told_and_the_session_goes_on(
    standing: Stand, message: str | bytes, where: str
) -> None:
    """What a session cannot use is answered with a problem; the next message is served."""
    token = standing.token("publish", "read")

    first, second = speak(standing, token, [message, '{"type":"ping"}'], 2)

    if where:
        assert first["type"] == "error"
        assert first["problem"]["where"] == where
    else:
        assert first["receipts"][0]["verdict"] == "reject"
    assert second["type"] == "pong"


@pytest.mark.parametrize(
    ("subscription", "where"),
    [
        ({}, "subscribe.namespaces"),
        ({"namespaces": []}, "subscribe.namespaces"),
        ({"namespaces": ["zz"]}, "subscribe.namespaces"),
        ({"namespaces": ["11" * 20] * 65}, "subscribe.namespaces"),
        ({"namespaces": ["11" * 20], "after": -1}, "subscribe.after"),
        ({"namespaces": ["11" * 20], "after": 2**64}, "subscribe.after"),
        ({"namespaces": ["11" * 20], "positions": []}, "subscribe.positions"),
        ({"namespaces": ["11" * 20], "lanes": 1}, "subscribe.lanes"),
        ({"namespaces": ["11" * 20], "format": "xml"}, "subscribe.format"),
        ({"namespaces": ["11" * 20], "gapWaitMs": 10**9}, "subscribe.gapWaitMs"),
        ({"namespaces": ["11" * 20], "extra": 1}, "subscribe.extra"),
    ],
)
def test_a_wrong_subscription_is_refused_at_once(
    standing: Stand, subscription: dict[str, Any], where: str
) -> None:
    """The start is checked before anything is read; the problem says what is wrong."""
    message = json.dumps({"type": "subscribe", **subscription})
    said = speak(standing, "", [message], 2)

    assert [each["type"] for each in said] == ["error", "closed"]
    assert said[0]["problem"]["where"] == where
    assert "4400" in said[1]["detail"]


def test_a_json_subscription_by_the_address_alone(stand: Stand) -> None:
    """A client that can only open an address subscribes with it and gets JSON."""
    signer = stand.store_line(2)
    path = f"/v1/stream?namespace={PARENT.hex()}&after=1"

    subscribed, message, live = speak(stand, "", [], 3, path)

    assert subscribed["positions"]["0x" + signer.namespace_id.hex()] == 1
    assert (message["type"], message["header"]["seq"], message["blob"]) == (
        "message", 2, "bWVzc2FnZSAy",
    )  # fmt: skip
    assert live["type"] == "live"


def test_a_session_may_not_do_more_than_its_token(standing: Stand) -> None:
    """Publishing without the scope is refused, and so is reading."""
    reader, publisher = standing.token("read"), standing.token("publish")
    publish = '{"type":"publish","messages":[{"header":"00"}]}'
    follow = json.dumps({"type": "subscribe", "namespaces": [PARENT.hex()]})

    refusals = [
        speak(standing, token, [message], 1)[0]["problem"]["code"]
        for token, message in ((reader, publish), (publisher, follow), ("", publish))
    ]

    assert refusals == ["gateway.scope", "gateway.scope", "gateway.token"]
    with pytest.raises(ClientRefusedError, match=r"gateway\.token"):
        speak(standing, "lrt_00000000_" + "A" * 43, [], 1)


def test_a_revoked_token_ends_its_subscription(stand: Stand) -> None:
    """An open WebSocket ends when its token does, and others go on."""
    text, token = stand.tokens.new("reader", ["read"], now_ms())
    signer = LaneSigner(SigningKey.generate(), PARENT)
    with RelayClient(stand.address, token=text, timeout_s=20) as client, stand.client() as other:
        events = subscribe(client, Subscribe(namespaces=[PARENT]), retry=QUICK)
        others = subscribe(other, Subscribe(namespaces=[PARENT]), retry=NO_RETRY)
        stand.publish([signer.sign(b"1", now_ms())])
        assert seqs(until(events, 1)) == seqs(until(others, 1)) == [1]

        stand.tokens.revoke(token.id)

        with pytest.raises(ClientRefusedError, match=r"gateway\.token"):
            list(events)
        stand.publish([signer.sign(b"2", now_ms())])
        assert seqs(until(others, 1)) == [2]


def test_a_token_that_expires_ends_its_subscription(stand: Stand) -> None:
    """The node closes the WebSocket with a code of its own; the clock decides, not the file."""
    text, _ = stand.tokens.new("reader", ["read"], now_ms() - 86_400_000 + 500, days=1)
    with RelayClient(stand.address, token=text, timeout_s=20) as client:
        events = subscribe(client, Subscribe(namespaces=[PARENT]), retry=NO_RETRY)

        with pytest.raises(ClientUnreachableError, match="4401"):
            list(events)


def test_a_lane_that_begins_while_subscribed_is_sent_is_told(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored after the heads were read and before the first page is told."""
    message = LaneSigner(SigningKey.generate(), PARENT).sign(b"just now", now_ms())
    send = _Session._send_json

    async def slowly(session: _Session, value: dict[str, Any]) -> None:
        await send(session, value)
        if value["type"] == "subscribed":
            await trio.to_thread.run_sync(stand.publish, [message])
            await trio.testing.wait_all_tasks_blocked()  # the feed has noted it

    monkeypatch.setattr(_Session, "_send_json", slowly)
    with stand.client() as client:
        events = subscribe(client, Subscribe(namespaces=[PARENT]), retry=NO_RETRY)
        blobs = [event.blob for event in islice(events, 2) if isinstance(event, Message)]

    assert blobs == [b"just now"]


def holed(stand: Stand, count: int) -> list[Any]:
    """Store the first and last of so many messages; return those between."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    line = [signer.sign(b"x", now_ms()) for _ in range(count)]
    stand.publish([line[0], line[-1]])
    return line[1:-1]


def test_everything_that_comes_into_a_told_gap_is_told(stand: Stand) -> None:
    """P48: 600 messages that come late, in one go and backwards: each is told once, marked."""
    between = holed(stand, 602)
    with stand.client() as client:
        events = subscribe(client, Subscribe(namespaces=[PARENT], gap_wait_ms=0), retry=NO_RETRY)
        begin = list(islice(events, 4))
        assert [type(each) for each in begin] == [Message, Gap, Message, Live]
        for start in range(500, -1, -100):
            stand.publish(between[start : start + 100][::-1])
        late = until(events, 600)
    assert sorted(seqs(late)) == list(range(2, 602))
    assert all(each.late for each in late if isinstance(each, Message))
    assert not any(isinstance(each, Dropped) for each in late)


def test_a_client_that_was_away_reads_the_told_gaps_again(stand: Stand) -> None:
    """P48: what came into a gap while nobody followed is late; a gap that stands is asked again."""
    between = holed(stand, 302)
    place, wanted = Place(), Subscribe(namespaces=[PARENT], gap_wait_ms=0)
    with stand.client() as client:
        list(islice(subscribe(client, wanted, place=place, retry=NO_RETRY), 4))
        (gaps,) = place.gaps.ranges.values()
        assert gaps == [(2, 301)]
        stand.publish(between[:250])
        back = until(subscribe(client, wanted, place=place, retry=NO_RETRY), 250)
        (gaps,) = place.gaps.ranges.values()
        assert gaps == [(252, 301)]
        stand.publish(between[250:])
        rest = until(subscribe(client, wanted, place=place, retry=NO_RETRY), 50)
    assert seqs(back) == list(range(2, 252))
    assert seqs(rest) == list(range(252, 302))
    assert all(each.late for each in (*back, *rest) if isinstance(each, Message))
    assert place.gaps.ranges == {}


def test_an_asynchronous_client_reads_the_told_gaps_again(stand: Stand) -> None:
    """P48: the same by asyncio, of the senders that are wanted only, and without payloads."""
    between = holed(stand, 22)
    sender = MsgHeader.decode(between[0].header).sender_address
    place = Place()

    async def main() -> list[Event]:
        told: list[Event] = []
        async with AsyncRelayClient(stand.address, token=stand.token("read")) as client:
            for some in ([], between):
                wanted = Subscribe(
                    namespaces=[PARENT], gap_wait_ms=0, senders=[sender], blobs="none"
                )
                await anyio.to_thread.run_sync(stand.publish, some)
                stream = subscribe_async(client, wanted, place=place, retry=NO_RETRY)
                async with aclosing(stream) as events:
                    async for event in events:
                        told.append(event)
                        if isinstance(event, Live) if not some else len(told) == 25:
                            break
        return told

    told = anyio.run(main)
    assert sorted(seqs(told)) == list(range(1, 23))
    assert all(each.blob is None for each in told if isinstance(each, Message))
