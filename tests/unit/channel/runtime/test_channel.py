"""`ReliableChannel` on asyncio and on trio; long times under trio's virtual clock."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from trio.testing import MockClock

from luxrelay.bus import SigningKey
from luxrelay.channel import (
    ChannelConfig,
    ChannelEvent,
    ChannelScope,
    Counting,
    MemoryPersistence,
    MessageDispatched,
    MessageReceived,
    MessageSendError,
    MessageSent,
    RateLimitConfig,
    ReliableSendId,
    RepairConfig,
    Row,
    RowStore,
    SdsConfig,
    SegmentationConfig,
    SharedKeyEncryption,
    SqlitePersistence,
    StateTable,
    create_reliable_channel,
)
from luxrelay.channel.runtime.remote import RemoteMessaging
from luxrelay.client import AsyncRelayClient
from luxrelay.errors import ChannelArgumentError, ChannelError, MessagingError
from luxrelay.testing.wire import Wire

EPOCH_MS = 1_700_000_000_000
TOPIC = "/1/chat"
QUICK = SdsConfig(
    acknowledge_after_ms=20,
    bloom_capacity=100,
    repair=RepairConfig(t_min_ms=500, t_max_ms=3_000),
)


def run(backend: str, main: Callable[[], Awaitable[None]]) -> None:
    """Run a program on a loop, on trio with a clock that jumps."""
    options = {"clock": MockClock(autojump_threshold=0)} if backend == "virtual" else {}

    async def bounded() -> None:
        with anyio.fail_after(3_600 if backend == "virtual" else 20):
            await main()

    anyio.run(bounded, backend="trio" if backend == "virtual" else backend, backend_options=options)


def clock_ms() -> int:
    """Return Unix milliseconds of the loop's clock."""
    return EPOCH_MS + int(anyio.current_time() * 1000)


def opened(wire: Wire, name: str, *, sds: SdsConfig = QUICK, **settings: Any) -> Any:
    """Open a channel for a participant."""
    return create_reliable_channel(
        wire.messaging(), "chan", TOPIC, name, sds_config=sds, clock_ms=clock_ms,
        rng=random.Random(name), **settings,
    )  # fmt: skip


async def until(channel: Any, *kinds: type[ChannelEvent], count: int = 1) -> list[Any]:
    """Take events until there are so many of some kinds, and return these."""
    found: list[Any] = []
    async for event in channel.events():
        if isinstance(event, kinds):
            found.append(event)
            channel.message_events.take(event)
        if len(found) == count:
            break
    return found


both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@both
@pytest.mark.parametrize("kept", [False, True], ids=["memory", "sqlite"])
def test_two_talk(backend: str, kept: bool, tmp_path: Path) -> None:
    """Bytes go over, in memory and with SQLite, and the sender is told how it ended."""

    async def main() -> None:
        sds = SdsConfig(
            acknowledge_after_ms=20, persistence=SqlitePersistence(tmp_path) if kept else None
        )
        async with Wire() as wire, opened(wire, "a", sds=sds) as a, opened(wire, "b", sds=sds) as b:
            request = await a.send(bytes(300_000))
            (received,) = await until(b, MessageReceived)
            told = await until(a, MessageDispatched, MessageSent, count=2)

        assert (received.sender_id, received.message) == ("a", bytes(300_000))
        assert [type(event) for event in told] == [MessageDispatched, MessageSent]
        assert {event.request_id for event in told} == {request}

    run(backend, main)


@both
def test_callbacks(backend: str) -> None:
    """Functions and coroutines are called with each event, and one that fails is counted."""

    async def main() -> None:
        heard: list[str] = []
        first, done = anyio.Event(), anyio.Event()

        def fails(event: ChannelEvent) -> None:
            heard.append("fails")
            raise RuntimeError(event.name)

        async def counts(event: ChannelEvent) -> None:
            await anyio.lowlevel.checkpoint()
            assert isinstance(event, MessageReceived)
            heard.append(event.message.decode())
            (done if event.message == b"two" else first).set()

        async with Wire() as wire, opened(wire, "a") as a, opened(wire, "b") as b:
            events = b.message_events
            off = events.on("reliable:message:received", fails)
            events.on("reliable:message:received", counts)
            await a.send(b"one")
            await first.wait()
            off()
            await a.send(b"two")
            await done.wait()
            assert events.callback_errors == 1
        assert heard == ["fails", "one", "two"]

    run(backend, main)


@both
def test_one_taker_of_events(backend: str) -> None:
    """Two who wait, or one and callbacks, would share events by chance: refused."""

    async def main() -> None:
        async with Wire() as wire, opened(wire, "a") as a, anyio.create_task_group() as tasks:
            tasks.start_soon(until, a, MessageReceived)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(ChannelArgumentError):
                await anext(aiter(a.events()))
            with pytest.raises(ChannelArgumentError):
                a.message_events.on("reliable:message:sent", print)
            tasks.cancel_scope.cancel()
        async with Wire() as wire, opened(wire, "a") as a:
            with pytest.raises(ChannelArgumentError, match="no event"):
                a.message_events.on("reliable:message:unheard", print)
            a.message_events.on("reliable:message:sent", print)
            with pytest.raises(ChannelArgumentError):
                await anext(aiter(a.events()))

    run(backend, main)


@both
def test_a_loop_that_was_left_goes_on_in_the_next(backend: str) -> None:
    """Leaving a loop and beginning another one skips no event and repeats none."""

    async def main() -> None:
        async with Wire() as wire, opened(wire, "a") as a, opened(wire, "b") as b:
            for number in range(4):
                await a.send(bytes([number]))
            heard = []
            for _ in range(4):
                async for event in b.events():
                    heard.append(event.message[0])
                    break
            assert heard == [0, 1, 2, 3]

    run(backend, main)


@both
def test_damaged_state_is_said(backend: str) -> None:
    """Rows that make no sense, or were written otherwise configured, are refused as such."""

    async def main() -> None:
        damaged = (
            Row(StateTable.SEGMENTS, b"key", b"junk"),
            Row(StateTable.LOG, b"m", b"junk"),
            Row(StateTable.EVENTS, bytes(8), b"\xff"),
            Row(StateTable.INCOMING, b"m", b"\x00junk"),
        )
        for row in damaged:
            persistence = MemoryPersistence()
            rows = persistence.open(ChannelScope("chan", "a"))
            rows.commit([row])
            rows.close()
            async with Wire() as wire:
                with pytest.raises(ChannelError) as caught:
                    async with opened(wire, "a", sds=SdsConfig(persistence=persistence)):
                        pass
            assert caught.value.code == "channel.state"
            persistence.open(ChannelScope("chan", "a")).close()

    run(backend, main)


@both
def test_close_is_idempotent_and_ends_every_wait(backend: str) -> None:
    """Closing twice, from two tasks, is fine; who waits for events or room is woken."""

    async def main() -> None:
        ended: list[str] = []
        sds = SdsConfig(outgoing_max=1, bloom_capacity=0)
        async with Wire(loss=1.0) as wire, opened(wire, "a", sds=sds) as a:

            async def iterate() -> None:
                async for _ in a.events():
                    pass
                ended.append("events")

            async def send() -> None:
                with pytest.raises(ChannelError) as caught:
                    await a.send(b"two")
                assert caught.value.code == "channel.closed"
                ended.append("send")

            await a.send(b"one")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(iterate)
                tasks.start_soon(send)
                await anyio.wait_all_tasks_blocked()
                assert a._sends
                tasks.start_soon(a.close)
                tasks.start_soon(a.close)
            await a.close()
            assert a.closed
            for call in (a.send, a.send_ephemeral):
                with pytest.raises(ChannelError):
                    await call(b"three")
            assert wire._queues == []
        assert sorted(ended) == ["events", "send"]

    run(backend, main)


@both
def test_cancelled_close_closes_all_the_same(backend: str) -> None:
    """A close that is cancelled at once has closed the channel when its context is left."""

    async def main() -> None:
        persistence = MemoryPersistence()
        sds = SdsConfig(persistence=persistence)
        async with Wire() as wire:
            async with opened(wire, "a", sds=sds) as a:
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await a.close()
                assert a.closed
            persistence.open(ChannelScope("chan", "a")).close()

    run(backend, main)


@both
def test_cancelled_body_closes(backend: str, tmp_path: Path) -> None:
    """Cancelling the task that holds a channel lets go of its state and its subscription."""

    async def main() -> None:
        sds = SdsConfig(persistence=SqlitePersistence(tmp_path))
        async with Wire() as wire:
            with anyio.CancelScope() as scope:
                async with opened(wire, "a", sds=sds) as a:
                    await a.send(b"x")
                    scope.cancel()
                    await anyio.sleep(100)
            assert wire._queues == []
            async with opened(wire, "a", sds=sds) as again:
                assert again.session.sds.unacknowledged == 1

    run(backend, main)


@both
def test_an_error_in_the_body_is_not_wrapped(backend: str) -> None:
    """What the body raises comes out as it was, not in a group."""

    async def main() -> None:
        async with Wire() as wire:
            with pytest.raises(KeyError, match="mine"):
                async with opened(wire, "a"):
                    raise KeyError("mine")

    run(backend, main)


@both
def test_one_state_has_one_owner(backend: str, tmp_path: Path) -> None:
    """The same sender in the same channel twice is refused while the first is open."""

    async def main() -> None:
        sds = SdsConfig(persistence=SqlitePersistence(tmp_path))
        async with Wire() as wire, opened(wire, "a", sds=sds):
            with pytest.raises(ChannelError) as caught:
                async with opened(wire, "a", sds=sds):
                    pass
            assert caught.value.code == "channel.locked"

    run(backend, main)


class Failing(MemoryPersistence):
    """Rows that cannot be written after a while."""

    broken = False

    def open(self, scope: ChannelScope) -> RowStore:
        """Return such rows."""
        rows = super().open(scope)
        inner = rows.commit

        def commit(changed: Sequence[Row]) -> None:
            if self.broken:
                raise ChannelError("the disk is full", code="channel.state")
            inner(changed)

        rows.commit = commit  # type: ignore[method-assign]
        return rows


@both
def test_what_cannot_be_kept_does_not_happen(backend: str) -> None:
    """When a commit fails nothing is sent, the caller is told, and so is whoever calls later."""

    async def main() -> None:
        persistence = Failing()
        sds = SdsConfig(persistence=persistence)
        async with Wire() as wire, opened(wire, "a", sds=sds) as a:
            persistence.broken = True
            for _ in range(2):
                with pytest.raises(ChannelError, match="disk is full"):
                    await a.send(b"x")
            with pytest.raises(ChannelError, match="disk is full"):
                await anext(aiter(a.events()))
            assert wire.stats.sent == 0

    run(backend, main)


@both
def test_layer_below_that_closes_breaks_the_channel(backend: str) -> None:
    """When the subscription ends the application is told, whichever call it makes."""

    async def main() -> None:
        async with Wire() as wire, opened(wire, "a") as a:
            wire.close()
            with pytest.raises(MessagingError):
                await anext(aiter(a.events()))
            with pytest.raises(MessagingError):
                await a.send(b"x")

    run(backend, main)


@both
def test_send_refuses_and_goes_on(backend: str) -> None:
    """A payload of too many segments is refused; the next one is sent."""

    async def main() -> None:
        cut = SegmentationConfig(segment_size_bytes=384, segments_max=2)
        async with (
            Wire() as wire,
            opened(wire, "a", segmentation_config=cut) as a,
            opened(wire, "b", segmentation_config=cut) as b,
        ):
            with pytest.raises(ChannelArgumentError):
                await a.send(bytes(1_000))
            with pytest.raises(ChannelArgumentError):
                await a.send_ephemeral(b"")
            await a.send(b"fits")
            await a.send_ephemeral(b"typing")
            received = await until(b, MessageReceived, count=2)
            assert [event.message for event in received] == [b"fits", b"typing"]

    run(backend, main)


@both
def test_cancelled_send_that_waits_sends_nothing(backend: str) -> None:
    """A call that was waiting for room leaves no trace when it is cancelled."""

    async def main() -> None:
        sds = SdsConfig(outgoing_max=1, bloom_capacity=0)
        async with Wire(loss=1.0) as wire, opened(wire, "a", sds=sds) as a:
            await a.send(b"one")
            with anyio.move_on_after(0.01):
                await a.send(b"two")
            assert not a._sends
            assert a.session.sds.unacknowledged == 1

    run(backend, main)


def test_send_waits_for_room() -> None:
    """`outgoing_max` holds callers back; they go on in order as acknowledgements come."""

    async def main() -> None:
        sds = SdsConfig(outgoing_max=2, bloom_capacity=0, acknowledge_after_ms=500)
        async with (
            Wire(delay_s=(0.1, 0.1)) as wire,
            opened(wire, "a", sds=sds) as a,
            opened(wire, "b", sds=sds) as b,
        ):
            began = anyio.current_time()
            for number in range(6):
                await a.send(bytes([number]))
            waited = anyio.current_time() - began
            received = await until(b, MessageReceived, count=6)
        assert waited > 0.8
        assert [event.message for event in received] == [bytes([n]) for n in range(6)]

    run("virtual", main)


def test_all_lost_is_told_after_exactly_max_retransmissions() -> None:
    """On a wire that loses everything the error comes after 30 s, not before."""

    async def main() -> None:
        async with Wire(loss=1.0) as wire, opened(wire, "a", sds=SdsConfig()) as a:
            began = anyio.current_time()
            await a.send(b"x")
            (error,) = await until(a, MessageSendError)
            assert 30.0 <= anyio.current_time() - began < 30.001
            assert error.error == "no acknowledgement after 5 retransmissions"

    run("virtual", main)


def test_layer_that_is_down_for_a_while() -> None:
    """Sends that are refused for now are repeated and end well."""

    async def main() -> None:
        async with Wire() as wire, opened(wire, "a") as a, opened(wire, "b") as b:
            wire.down = "out of order"
            await a.send(b"x")
            await anyio.sleep(7)
            wire.down = None
            await until(b, MessageReceived)
            await until(a, MessageSent)

    run("virtual", main)


def test_missed_messages_are_fetched_from_a_store() -> None:
    """Who was away gets what was stored meanwhile, and continues; nothing comes twice."""

    async def main() -> None:
        persistence = MemoryPersistence()
        sds = SdsConfig(persistence=persistence)
        async with Wire(stored=True) as wire, opened(wire, "a", sds=sds) as a:
            async with opened(wire, "b", sds=sds) as b:
                await a.send(b"one")
                await until(b, MessageReceived)
            for text in (b"two", b"three"):
                await a.send(text)
                await anyio.sleep(30)
            async with opened(wire, "b", sds=sds) as b:
                received = await until(b, MessageReceived, count=2)
                assert [event.message for event in received] == [b"two", b"three"]

    run("virtual", main)


class Talk:
    """Three who each send eight messages, and what came of it."""

    def __init__(self) -> None:
        """Nothing has been said."""
        self.received: dict[str, list[tuple[str, bytes]]] = {name: [] for name in "abc"}
        self.ended: dict[str, int] = dict.fromkeys("abc", 0)
        self.done = anyio.Event()

    async def speak(self, channel: Any, name: str) -> None:
        """Send eight messages, short and long."""
        rng = random.Random(name)
        for number in range(8):
            size = rng.choice([0, 100, 220_000])
            await channel.send(f"{name}{number}".encode() + bytes(size))
            await anyio.sleep(rng.random())

    async def listen(self, channel: Any, name: str) -> None:
        """Take events; when all have all, it is done."""
        async for event in channel.events():
            assert not isinstance(event, MessageSendError)
            self.ended[name] += isinstance(event, MessageSent)
            if isinstance(event, MessageReceived):
                self.received[name].append((event.sender_id, event.message[:2]))
            if all(len(self.received[one]) >= 16 and self.ended[one] == 8 for one in "abc"):
                self.done.set()

    async def take_part(self, wire: Wire, name: str, hook: SharedKeyEncryption | None) -> None:
        """Be one of them until it is done."""
        async with (
            opened(wire, name, encryption=hook) as channel,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self.speak, channel, name)
            tasks.start_soon(self.listen, channel, name)
            await self.done.wait()
            tasks.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True], ids=["clear", "encrypted"])
def test_unkind_wire(encrypted: bool) -> None:
    """Loss, delay, repetition and corruption: everybody gets everything once, all senders know."""
    talks: list[Talk] = []

    async def main() -> None:
        talk = Talk()
        talks.append(talk)
        hook = SharedKeyEncryption(bytes(32)) if encrypted else None
        corruption = 0.05 if encrypted else 0.0
        async with (
            Wire(
                loss=0.3, delay_s=(0.01, 1.0), duplication=0.2, corruption=corruption, seed=5
            ) as wire,
            anyio.create_task_group() as tasks,
        ):
            for name in "abc":
                tasks.start_soon(talk.take_part, wire, name, hook)

    run("virtual", main)
    for name, messages in talks[0].received.items():
        assert len(messages) == 16
        for other in set("abc") - {name}:
            mine = [message for sender, message in messages if sender == other]
            assert mine == [f"{other}{number}".encode() for number in range(8)]


@both
def test_restart_goes_on(backend: str, tmp_path: Path) -> None:
    """What nobody acknowledged before a close is sent and ends after it, under the same request."""

    async def main() -> None:
        sds = SdsConfig(persistence=SqlitePersistence(tmp_path), acknowledge_after_ms=20)
        async with Wire() as wire:
            async with opened(wire, "a", sds=sds) as a:
                request = await a.send(b"x")
            async with opened(wire, "b", sds=sds) as b, opened(wire, "a", sds=sds) as a:
                (received,) = await until(b, MessageReceived)
                (sent,) = await until(a, MessageSent)
            assert (received.message, sent.request_id) == (b"x", request)
            async with opened(wire, "b", sds=sds) as b:
                with anyio.move_on_after(0.05):
                    await until(b, MessageReceived)
                    raise AssertionError("told twice")

    run(backend, main)


@both
def test_configuration_that_does_not_fit_is_refused(backend: str) -> None:
    """Before anything is opened the sizes are added up, and names are looked at."""

    async def main() -> None:
        big = SegmentationConfig(segment_size_bytes=150_000)
        async with Wire() as wire:
            with pytest.raises(
                ChannelArgumentError, match=r"150000.* = \d+ bytes, above the 153600"
            ):
                async with opened(wire, "a", segmentation_config=big):
                    pass
            with pytest.raises(ChannelArgumentError, match="empty"):
                async with opened(wire, ""):
                    pass
            with pytest.raises(ChannelArgumentError, match="zero character"):
                async with opened(wire, "a\0b"):
                    pass
            elsewhere = SegmentationConfig(persistence=MemoryPersistence())
            with pytest.raises(ChannelArgumentError, match="one place"):
                async with opened(wire, "a", segmentation_config=elsewhere):
                    pass
            async with opened(wire, "a", config=ChannelConfig(inbox_max=1, batch_max=1)) as a:
                await a.send(b"x")

    run(backend, main)


def test_inbox_max_holds_the_receiver_back() -> None:
    """A channel that cannot keep up leaves payloads with the layer below, and loses none."""

    async def main() -> None:
        config = ChannelConfig(inbox_max=2, batch_max=1)
        async with Wire() as wire, opened(wire, "a") as a, opened(wire, "b", config=config) as b:
            for number in range(30):
                await a.send(bytes([number]))
            received = await until(b, MessageReceived, count=30)
            assert [event.message for event in received] == [bytes([n]) for n in range(30)]

    run("virtual", main)


class CountingLayer:
    """A layer below that says how many payloads it was handed at once."""

    def __init__(self, inner: Any) -> None:
        """Stand before another layer."""
        self.inner = inner
        self.at_once = self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def send(self, *args: Any, **named: Any) -> Any:
        """Take a second for each."""
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await anyio.sleep(1.0)
            return await self.inner.send(*args, **named)
        finally:
            self.at_once -= 1


def test_dispatches_max_bounds_what_the_layer_below_is_handed() -> None:
    """A slow layer has so many payloads in its hands and no more; all of them arrive in order."""

    async def main() -> None:
        async with Wire() as wire, opened(wire, "b") as b:
            below = CountingLayer(wire.messaging())
            config = ChannelConfig(dispatches_max=3)
            async with create_reliable_channel(
                below, "chan", TOPIC, "a", sds_config=QUICK, clock_ms=clock_ms,
                rng=random.Random(1), config=config,
            ) as a:  # fmt: skip
                for number in range(12):
                    await a.send(bytes([number]))
                received = await until(b, MessageReceived, count=12)
            assert [event.message for event in received] == [bytes([n]) for n in range(12)]
            assert below.most == 3

    run("virtual", main)


class Prover:
    """Makes the same proof for everything."""

    def prove(self, payload: bytes, epoch: int, nonce: int) -> bytes:
        """Return a proof."""
        assert payload
        return b"proof of %d in %d" % (nonce, epoch)

    def verify(self, payload: bytes, proof: bytes, now_ms: int) -> bool:
        """Return whether it is one of ours."""
        assert payload
        assert now_ms
        return proof.startswith(b"proof of")


@pytest.mark.trial
@both
def test_proofs_over_a_layer_that_carries_none_are_refused(backend: str) -> None:
    """When it is opened: its receivers would take no message of it, and nobody would say so."""
    client = AsyncRelayClient("127.0.0.1:9")  # nothing is asked of it
    layer = RemoteMessaging(client, SigningKey.generate())
    pace = RateLimitConfig(enabled=True, counting=Counting.EVERY_SEGMENT, proof_provider=Prover())

    async def main() -> None:
        async with create_reliable_channel(layer, "chan", TOPIC, "alice", rate_limit_config=pace):
            raise AssertionError

    with pytest.raises(ChannelArgumentError, match="carries no rate limit proofs"):
        run(backend, main)


@both
def test_proofs_over_a_layer_that_carries_them_arrive(backend: str) -> None:
    """The wire of the tests does."""
    pace = RateLimitConfig(enabled=True, counting=Counting.EVERY_SEGMENT, proof_provider=Prover())

    async def main() -> None:
        async with (
            Wire() as wire,
            opened(wire, "alice", rate_limit_config=pace) as alice,
            opened(wire, "bob", rate_limit_config=pace) as bob,
        ):
            await alice.send(b"hello")
            (received,) = await until(bob, MessageReceived)
            assert received.message == b"hello"

    run(backend, main)


@both
def test_a_handle_is_kept_without_a_context(backend: str, tmp_path: Path) -> None:
    """Awaited, a channel outlives whoever opened it, until it is closed; closing twice is once."""

    async def main() -> None:
        kept: list[Any] = []
        async with Wire() as wire, opened(wire, "b") as b:
            with anyio.CancelScope() as opener:
                kept.append(await opened(wire, "a", sds=SdsConfig(), folder=tmp_path))
                opener.cancel()
                await anyio.lowlevel.checkpoint()
            (a,) = kept
            await a.send(b"x")
            (received,) = await until(b, MessageReceived)
            assert received.message == b"x"
            await a.close()
            await a.close()
            with pytest.raises(ChannelError, match="closed"):
                await a.send(b"y")
            again = await opened(wire, "a", sds=SdsConfig(), folder=tmp_path)  # it let go
            assert again.session.last_seen_ms
            await again.close()

    run(backend, main)


@both
def test_a_handle_may_live_in_a_group(backend: str) -> None:
    """In the tasks that were given it ends with them, whether awaited or entered."""

    async def main() -> None:
        async with Wire() as wire:
            async with anyio.create_task_group() as tasks:
                a = await opened(wire, "a", tasks=tasks)
                async with opened(wire, "b", tasks=tasks) as b:
                    assert not b.closed
                assert b.closed
                tasks.cancel_scope.cancel()
            assert a.closed

    run(backend, main)


class BreakingLayer:
    """A layer below whose subscription fails, at once or when it is told to."""

    def __init__(self, *, at_once: bool) -> None:
        """Say when."""
        self.payload_bytes_max = 150_000
        self.at_once = at_once
        self.fail = anyio.Event()

    @asynccontextmanager
    async def subscribe(self, content_topic: str, *, since_ms: int | None = None) -> Any:
        """Fail."""
        assert content_topic
        assert since_ms is None
        if self.at_once:
            raise MessagingError("the topic cannot be had")

        async def nothing() -> Any:
            await self.fail.wait()
            raise RuntimeError("an adapter is wrong")
            yield

        yield nothing()

    async def send(self, content_topic: str, payload: bytes, **named: Any) -> Any:
        """Take nothing."""
        raise MessagingError(f"{content_topic} {len(payload)} {named}")

    async def fetch(self, content_topic: str, hint: bytes) -> bytes | None:
        """Have nothing."""
        assert content_topic
        assert hint
        return None


@both
def test_what_ends_a_handle_is_told_by_it(backend: str) -> None:
    """A layer that fails at the start fails the opening; later, the events, and nothing else."""

    async def main() -> None:
        with pytest.raises(MessagingError, match="cannot be had"):
            await create_reliable_channel(BreakingLayer(at_once=True), "c", TOPIC, "a")
        layer = BreakingLayer(at_once=False)
        a = await create_reliable_channel(layer, "c", TOPIC, "a")
        layer.fail.set()
        with pytest.raises(ChannelError, match="an adapter is wrong"):
            await until(a, MessageReceived)
        with pytest.raises(ChannelError, match="an adapter is wrong"):
            await a.send(b"x")
        await a.close()

    run(backend, main)


@both
def test_an_opening_that_is_given_up_leaves_nothing(backend: str, tmp_path: Path) -> None:
    """Cancelled before the layer below answers, the state is free again."""

    class Slow(BreakingLayer):
        @asynccontextmanager
        async def subscribe(self, content_topic: str, *, since_ms: int | None = None) -> Any:
            assert content_topic
            assert since_ms is None
            await anyio.sleep_forever()
            yield

    async def main() -> None:
        with anyio.move_on_after(0.05):
            await create_reliable_channel(Slow(at_once=False), "chan", TOPIC, "a", folder=tmp_path)
        async with Wire() as wire:
            a = await opened(wire, "a", sds=SdsConfig(), folder=tmp_path)
            await a.close()

    run(backend, main)


@both
def test_two_places_for_one_state_are_refused(backend: str, tmp_path: Path) -> None:
    """A folder beside a persistence, and the folder keeps topics apart."""

    async def main() -> None:
        async with Wire() as wire:
            with pytest.raises(ChannelArgumentError, match="two places"):
                await opened(wire, "a", sds=SdsConfig(persistence=MemoryPersistence()), folder="x")
            for topic in ("/one", "/two"):
                channel = await create_reliable_channel(
                    wire.messaging(), "c", topic, "a", folder=tmp_path
                )
                await channel.close()

    run(backend, main)
    assert len(list(tmp_path.glob("*/*.db"))) == 2


@both
def test_the_end_of_the_loop_ends_a_handle(backend: str, tmp_path: Path) -> None:
    """A program that never closes its channel ends, and has it again the next time."""

    async def main() -> None:
        async with Wire() as wire:
            a = await opened(wire, "a", sds=SdsConfig(), folder=tmp_path)
            await a.send(b"x")

    run(backend, main)
    run(backend, main)


@both
def test_every_segment_has_a_request_id(backend: str) -> None:
    """A send of three segments has three, in order, and tells what became of each."""

    async def main() -> None:
        segments = SegmentationConfig(segment_size_bytes=1_000)
        bounds = ChannelConfig(segments_remembered_max=3)
        async with (
            Wire() as wire,
            opened(wire, "a", segmentation_config=segments, config=bounds) as a,
        ):
            request = await a.send(bytes(2_000))
            before = a.requests_of(request)
            assert a.open_requests == (request,)
            async with opened(wire, "b", segmentation_config=segments) as b:
                await until(a, MessageSent)
                await until(b, MessageReceived)
            after = a.requests_of(request)
            assert len({each.request_id for each in before}) == 3
            assert [each.request_id for each in before] == [each.request_id for each in after]
            assert not any(each.acknowledged for each in before)
            assert all(each.dispatched and each.acknowledged for each in after)
            assert a.open_requests == ()
            assert a.requests_of(ReliableSendId("none")) == ()

    run(backend, main)
