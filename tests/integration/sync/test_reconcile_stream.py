"""Two real hosts: one compares itself with the other over a stream, and each may be hostile."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from luxrelay.errors import NetError, SyncRemoteError, SyncUnreachableError
from luxrelay.net import NetConfig, RelayHost, RelayStream
from luxrelay.net.reconcile import RECONCILE, ReconcileStreamConfig, ReconcileStreams
from luxrelay.net.streams import FrameDecoder, encode_frame
from luxrelay.store import RelayStore
from luxrelay.sync import run_catchup
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.reconcile_driver import ReconcileReport, reconcile_with
from luxrelay.sync.rpc.stream_kinds import END, PART, REFUSED, StreamKind

if TYPE_CHECKING:
    from tests.integration.sync.conftest import Harbour

QUICK = ReconcileStreamConfig(
    idle_s=0.5, answer_s=1.0, stream_s=20.0, questions_max=8, answer_frames_max=32
)
HELD = bytes([StreamKind.LIST_HELD])


class Pair:
    """Two connected hosts; ``a`` asks, ``b`` answers."""

    def __init__(self, a: RelayHost, b: RelayHost) -> None:
        self.a, self.b = a, b

    async def ask(
        self, work: Callable[..., Any], config: ReconcileStreamConfig | None = None
    ) -> Any:
        """Return what ``work`` makes of a client of ``b``, in a worker thread."""
        streams = ReconcileStreams(self.a, None, config)
        client = streams.client(self.b.peer_id)

        def closed() -> Any:
            try:
                return work(client)
            finally:
                client.close()

        return await trio.to_thread.run_sync(closed)

    async def stream(self) -> RelayStream:
        """Return a bare stream to ``b``."""
        return await self.a.open_stream(self.b.peer_id, RECONCILE)


@asynccontextmanager
async def hosts(*, loopback_exempt: bool = True) -> AsyncIterator[Pair]:
    """Yield two connected hosts."""
    config = NetConfig(listen=("/ip4/127.0.0.1/tcp/0",), loopback_exempt=loopback_exempt)
    made = [RelayHost(bytes([number]) * 32, config) for number in (1, 2)]
    async with trio.open_nursery() as nursery:
        for host in made:
            await nursery.start(host.run)
        await made[0].dial(made[1].addresses[0])
        yield Pair(*made)
        nursery.cancel_scope.cancel()


def on_trio(test: Callable[[Pair], Awaitable[None]], *, loopback_exempt: bool = True) -> None:
    """Run a test with two hosts, a minute at most."""

    async def main() -> None:
        with trio.fail_after(60):
            async with hosts(loopback_exempt=loopback_exempt) as pair:
                await test(pair)

    trio.run(main)


def served(
    pair: Pair, harbour: Harbour, store: RelayStore, config: ReconcileStreamConfig | None = None
) -> ReconcileStreams:
    """Have ``b`` answer from a store."""
    harbour.serve(store)
    streams = ReconcileStreams(pair.b, harbour.servers[-1].servicer, config)
    streams.listen()
    return streams


def level(harbour: Harbour, ours: RelayStore, client: Any, **changes: Any) -> ReconcileReport:
    """Reconcile a store with a client's relay."""
    wanted: dict[str, Any] = {"parent": harbour.parent, "now_ms": harbour.base_ms + 60_000}
    return reconcile_with(client, ours, harbour.sink(ours), **{**wanted, **changes})


async def read_frames(stream: RelayStream, count: int) -> list[bytes]:
    """Return some frames, fewer when the stream ends."""
    decoder, frames = FrameDecoder(8 * 2**20), []
    while len(frames) < count and (data := await stream.receive_some(65_536)):
        decoder.feed(data)
        frames += decoder.take(count)
    return frames


def test_holes_and_forks_come_over_the_stream(harbour: Harbour) -> None:
    """J5, J11: interval lists, then ranges; both sides hold the same afterwards."""
    messages = [m for n in (1, 2) for m in harbour.author(n).messages(range(1, 301))]
    fork = harbour.author(1).message(150, blob=b"another")
    low, high = sorted([messages[149], fork], key=lambda m: m.header.content_id)
    others = [m for m in messages if m is not messages[149]]
    theirs = harbour.store([*others, low])
    ours = harbour.store([*others[:100], *others[140:400], high])

    async def test(pair: Pair) -> None:
        streams = served(pair, harbour, theirs)
        report = await pair.ask(partial(level, harbour, ours))

        assert report.methods == ["intervals", "ranges"]
        assert report.stored == len(messages) - 360
        assert (report.rejected, report.withheld, report.cut) == (0, 0, False)
        assert streams.counters.streams == 1
        assert ours.tree_root() == theirs.tree_root()
        again = await pair.ask(partial(level, harbour, ours, parent=None))
        assert again.methods == ["intervals", "tree"]
        assert again.equal

    on_trio(test)


def test_catch_up_over_the_stream(harbour: Harbour) -> None:
    """21-25: where no gRPC address is known, the stream carries a whole catch-up as well."""
    theirs, ours = harbour.store(harbour.author(1).messages(range(1, 501))), harbour.store()

    async def test(pair: Pair) -> None:
        served(pair, harbour, theirs)
        report = await pair.ask(lambda client: run_catchup([client], harbour.sink(ours)))

        assert report.complete
        assert ours.tree_root() == theirs.tree_root()

    on_trio(test)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", SyncUnreachableError),  # half-open: nothing comes, nothing ends
        (b"\xff\xff\xff\x7f", SyncRemoteError),  # a frame of 256 MiB
        (encode_frame(b"\x07what"), SyncRemoteError),
        (encode_frame(PART + b"\xff\xff"), SyncRemoteError),
        (encode_frame(PART + pb.HeldNamespace(namespace_id=b"1").SerializeToString()) + b"\1\1",
         SyncRemoteError),
        (encode_frame(PART) * 64, SyncRemoteError),  # an answer that never ends
        (encode_frame(REFUSED + bytes([8]) + b"busy"), SyncUnreachableError),
        (encode_frame(REFUSED + b"\xee"), SyncRemoteError),
        (b"\x05\x00", None),  # it ends inside a frame
    ],
)  # fmt: skip
def test_a_hostile_relay_costs_a_moment(answer: bytes, error: Any, harbour: Harbour) -> None:
    """21-38's spirit: whatever the other side says, the asker has an error of ours and is free."""
    ours = harbour.store()

    async def test(pair: Pair) -> None:
        async def lie(stream: RelayStream) -> None:
            await stream.receive_some(1024)
            await stream.send_all(answer)
            if error is not None:
                await trio.sleep(5)

        pair.b.handle(RECONCILE, lie)
        began = time.monotonic()
        with pytest.raises(error or (SyncRemoteError, SyncUnreachableError)):
            await pair.ask(partial(level, harbour, ours), QUICK)

        assert time.monotonic() - began < 4.0
        assert ours.stats().messages == 0

    on_trio(test)


def test_endless_rounds_end(harbour: Harbour) -> None:
    """A responder that always finds another difference is left after the rounds of the plan."""
    ours = harbour.store(harbour.author(1).messages(range(1, 101)))

    async def test(pair: Pair) -> None:
        rounds = 0

        async def lie(stream: RelayStream) -> None:
            nonlocal rounds
            decoder = FrameDecoder(2**22)
            while data := await stream.receive_some(65_536):
                decoder.feed(data)
                for question in decoder.take(8):
                    rounds += question[0] == StreamKind.RECONCILE
                    # One fingerprint for everything, and never ours.
                    differs = b"\x61\x00\x00\x01" + rounds.to_bytes(16, "big")
                    reply = pb.ReconcileReply(payload=differs).SerializeToString()
                    part = (
                        encode_frame(PART + reply) if question[0] == StreamKind.RECONCILE else b""
                    )
                    await stream.send_all(part + encode_frame(END))

        pair.b.handle(RECONCILE, lie)
        report = await pair.ask(partial(level, harbour, ours))

        assert report.cut
        assert rounds == report.rounds - 1 == 64

    on_trio(test)


def test_an_endless_listing_ends(harbour: Harbour) -> None:
    """A relay that always has another page of namespaces is left when the time is over."""
    ours = harbour.store()

    async def test(pair: Pair) -> None:
        pages = 0

        async def lie(stream: RelayStream) -> None:
            nonlocal pages
            decoder = FrameDecoder(2**22)
            while data := await stream.receive_some(65_536):
                decoder.feed(data)
                for _ in decoder.take(8):
                    pages += 1
                    name = pages.to_bytes(20, "big")
                    lane = pb.HeldNamespace(
                        namespace_id=name, parent_id=harbour.parent, next_cursor=name
                    )
                    part = encode_frame(PART + lane.SerializeToString())
                    await stream.send_all(part + encode_frame(END))

        pair.b.handle(RECONCILE, lie)
        began = time.monotonic()
        with pytest.raises(SyncUnreachableError, match="in time"):
            await pair.ask(partial(level, harbour, ours), ReconcileStreamConfig(stream_s=1.0))

        assert 0.5 < time.monotonic() - began < 4.0
        assert pages > 1

    on_trio(test)


def test_more_questions_than_a_stream_has(harbour: Harbour) -> None:
    """The asker opens another stream before the other side ends the one it has."""
    theirs = harbour.store(harbour.author(1).messages(range(1, 40, 2)))
    few = ReconcileStreamConfig(questions_max=8)

    async def test(pair: Pair) -> None:
        streams = served(pair, harbour, theirs, few)
        ours = harbour.store()
        report = await pair.ask(partial(level, harbour, ours), few)

        assert report.stored == 20
        assert ours.tree_root() == theirs.tree_root()
        assert streams.counters.streams > 4
        assert streams.counters.cut == 0

    on_trio(test)


def test_half_open_and_endless_askers_are_let_go(harbour: Harbour) -> None:
    """Whoever opens a stream and says nothing, or never stops asking, loses it in time."""
    theirs = harbour.store(harbour.author(1).messages(range(1, 4)))

    async def test(pair: Pair) -> None:
        streams = served(pair, harbour, theirs, QUICK)
        silent = await pair.stream()
        assert await silent.receive_some(1) == b""  # reset after idle_s
        half = await pair.stream()
        await half.send_all(b"\x20half a question")
        assert await half.receive_some(1) == b""
        endless = await pair.stream()
        frames = []
        for _ in range(QUICK.questions_max):
            await endless.send_all(encode_frame(HELD))
            frames += await read_frames(endless, 2)
        assert frames.count(END) == QUICK.questions_max
        assert await endless.receive_some(1) == b""

        assert streams.counters.cut == 3
        assert (await pair.ask(partial(level, harbour, harbour.store()))).stored == 3

    on_trio(test)


def test_oversized_and_unreadable_questions(harbour: Harbour) -> None:
    """A frame above the bound loses the stream; a question that is none is refused and no more."""
    theirs = harbour.store()

    async def test(pair: Pair) -> None:
        streams = served(pair, harbour, theirs, QUICK)
        large = await pair.stream()
        await large.send_all(b"\xff\xff\xff\x7f")
        assert await large.receive_some(1) == b""
        odd = await pair.stream()
        for question in (b"\x63", HELD + b"\xff", bytes([StreamKind.RECONCILE]), b"\x02\x08\x63"):
            await odd.send_all(encode_frame(question))
            (frame,) = await read_frames(odd, 1)
            assert frame[:1] == REFUSED
        await odd.send_all(encode_frame(HELD))
        assert await read_frames(odd, 1) == [END]
        await odd.reset()

        assert streams.counters.cut == 1
        assert streams.counters.questions == 5

    on_trio(test)


@pytest.mark.parametrize(
    "bound",
    [
        ReconcileStreamConfig(peer_streams_max=1),
        ReconcileStreamConfig(streams_max=1, yield_s=60.0),
        ReconcileStreamConfig(address_streams_max=1),
        ReconcileStreamConfig(subnet_streams_max=1),
    ],
    ids=["peer", "all", "address", "subnet"],
)
def test_streams_at_once_are_bounded(bound: ReconcileStreamConfig, harbour: Harbour) -> None:
    """A stream above a number is reset, and the first goes on."""
    theirs = harbour.store(harbour.author(1).messages(range(1, 4)))

    async def test(pair: Pair) -> None:
        streams = served(pair, harbour, theirs, bound)
        first = await pair.stream()
        await first.send_all(encode_frame(HELD))
        assert len(await read_frames(first, 2)) == 2
        try:
            second = await pair.stream()
            assert await second.receive_some(1) == b""
        except NetError:
            pass  # the reset came before the protocol's last line was read
        await first.send_all(encode_frame(HELD))
        assert len(await read_frames(first, 2)) == 2
        await first.reset()

        assert (streams.counters.refused, streams.counters.streams) == (1, 1)

    on_trio(test, loopback_exempt=False)


def test_the_oldest_stream_makes_room(harbour: Harbour) -> None:
    """Peers that sit on every place lose the oldest one to whoever comes after its time."""
    theirs = harbour.store(harbour.author(1).messages(range(1, 4)))

    async def test(pair: Pair) -> None:
        config = ReconcileStreamConfig(streams_max=1, yield_s=1e-9)
        streams = served(pair, harbour, theirs, config)
        first = await pair.stream()
        await first.send_all(encode_frame(HELD))
        assert len(await read_frames(first, 2)) == 2

        assert (await pair.ask(partial(level, harbour, harbour.store()))).stored == 3

        assert await first.receive_some(1) == b""
        assert (streams.counters.yielded, streams.counters.refused) == (1, 0)
        while streams._places:  # noqa: ASYNC110 - the other side's state
            await trio.sleep(0.01)

    on_trio(test)


def test_a_reader_that_takes_nothing_is_let_go(harbour: Harbour) -> None:
    """An answer that nobody reads ends with the stream, and its thread is free."""
    lines = harbour.author(1).messages(range(1, 201), blob=bytes(4_000))
    theirs = harbour.store(lines)
    question = pb.SyncRequest(
        namespace_id=harbour.author(1).lane, max_messages=200, max_frame_messages=64
    )

    async def test(pair: Pair) -> None:
        streams = served(pair, harbour, theirs, QUICK)
        stream = await pair.stream()
        data = bytes([StreamKind.SYNC_NAMESPACE]) + question.SerializeToString()
        await stream.send_all(encode_frame(data))
        with trio.fail_after(10):
            while not streams.counters.cut:  # noqa: ASYNC110 - the other side's counter
                await trio.sleep(0.02)
        await stream.reset()

        assert (await pair.ask(partial(level, harbour, harbour.store()))).stored == 200

    on_trio(test)
