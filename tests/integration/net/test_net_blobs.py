"""The blob stream between real hosts, honest and hostile."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
import trio

from luxrelay.bus.constants import MAX_BLOB_BYTES
from luxrelay.errors import FrameError, StoreError
from luxrelay.net.blobs import (
    BLOB_RANGES,
    BLOBS,
    BlobAnswerStream,
    BlobConfig,
    BlobExchange,
    BlobRequest,
    BlobStatus,
    CommitmentKind,
)
from luxrelay.net.host import RelayHost
from luxrelay.net.streams import RelayStream, encode_frame, read_frame
from luxrelay.sync.rpc.uplink import LATER_MAX_S, LATER_MIN_S, BlobUplink

pytestmark = pytest.mark.slow
LARGEST = bytes(range(256)) * (MAX_BLOB_BYTES // 256)


async def hold(_stream: RelayStream) -> None:
    """Take a question and never answer."""
    await trio.sleep_forever()


def request(blob: bytes, length: int | None = None) -> BlobRequest:
    """A question for a blob."""
    return BlobRequest(
        commitment=hashlib.sha3_256(blob).digest(), length=len(blob) if length is None else length
    )


def shelf(*blobs: bytes) -> Mapping[bytes, bytes]:
    """Blobs by commitment."""
    return {hashlib.sha3_256(blob).digest(): blob for blob in blobs}


async def server(
    nursery: trio.Nursery, world: Any, *blobs: bytes, config: BlobConfig | None = None
) -> tuple[RelayHost, BlobExchange]:
    """A host that serves these blobs."""
    held = shelf(*blobs)
    host = await world.host(nursery, "server")
    exchange = BlobExchange(host, lambda commitment, _length: held.get(commitment), config=config)
    await nursery.start(exchange.run)
    return host, exchange


async def asker(
    nursery: trio.Nursery, world: Any, peer: RelayHost, name: str = "asker", **bounds: Any
) -> BlobExchange:
    """A host connected to the peer, that holds nothing."""
    host = await world.host(nursery, name)
    await host.dial(peer.addresses[0])
    return BlobExchange(host, lambda *_: None, config=BlobConfig(**bounds))


async def test_blobs_of_every_size_come_whole(world: Any) -> None:
    """One byte and 2 MiB cross a real connection; what is not held is said at once (G11)."""
    async with trio.open_nursery() as nursery:
        host, served = await server(nursery, world, b"x", LARGEST)
        ours = await asker(nursery, world, host)

        for blob in (b"x", LARGEST):
            found = await ours.ask(host.peer_id, request(blob), silence_s=10)
            assert found == (BlobStatus.FOUND, blob)
        assert await ours.ask(host.peer_id, request(b"unknown")) == (BlobStatus.MISSING, b"")

        await world.until(lambda: served.counters.served == 2)
        assert served.counters.served_bytes == 1 + MAX_BLOB_BYTES
        assert served.counters.unknown == 1
        assert (ours.counters.asked, ours.counters.fetched, ours.counters.failed) == (3, 2, 1)
        nursery.cancel_scope.cancel()


async def test_another_length_than_asked_for_is_missing(world: Any) -> None:
    """A blob of another length than the header says is not sent (P28)."""
    async with trio.open_nursery() as nursery:
        host, _ = await server(nursery, world, b"four")
        ours = await asker(nursery, world, host)

        assert (await ours.ask(host.peer_id, request(b"four", 5)))[0] is BlobStatus.MISSING
        nursery.cancel_scope.cancel()


async def test_broken_store_is_missing(world: Any) -> None:
    """A disk that cannot be read is the server's fault alone, and it goes on serving."""

    def broken(_commitment: bytes, _length: int) -> bytes:
        raise StoreError("the disk is gone")

    async with trio.open_nursery() as nursery:
        host = await world.host(nursery, "server")
        await nursery.start(BlobExchange(host, broken).run)
        ours = await asker(nursery, world, host)

        for _ in range(2):
            assert (await ours.ask(host.peer_id, request(b"a")))[0] is BlobStatus.MISSING
        assert host.stats().swarm.handler_errors == 0
        nursery.cancel_scope.cancel()


async def test_peer_without_the_protocol_has_failed(world: Any) -> None:
    """A peer that speaks no blob stream, and one that is gone, are failures of one question."""
    async with trio.open_nursery() as nursery:
        host = await world.host(nursery, "plain")
        ours = await asker(nursery, world, host)

        assert (await ours.ask(host.peer_id, request(b"a")))[0] is BlobStatus.FAILED
        await host.disconnect(ours._host.peer_id)
        assert (await ours.ask(host.peer_id, request(b"a")))[0] is BlobStatus.FAILED
        assert ours.counters.broken == 0
        nursery.cancel_scope.cancel()


async def test_one_peer_has_its_share(world: Any) -> None:
    """Questions of one peer above its rate are answered busy, another peer's are served (P34)."""
    config = BlobConfig(peer_requests_per_s=1, burst_s=2)
    async with trio.open_nursery() as nursery:
        host, served = await server(nursery, world, b"a", config=config)
        greedy = await asker(nursery, world, host, "greedy")
        modest = await asker(nursery, world, host, "modest")

        got = [(await greedy.ask(host.peer_id, request(b"a")))[0] for _ in range(4)]

        assert got == [BlobStatus.FOUND, BlobStatus.FOUND, BlobStatus.BUSY, BlobStatus.BUSY]
        assert (await modest.ask(host.peer_id, request(b"a")))[0] is BlobStatus.FOUND
        assert served.counters.busy == 2
        nursery.cancel_scope.cancel()


async def test_what_is_missing_costs_a_question_and_no_bytes(world: Any) -> None:
    """Questions for unknown blobs of 2 MiB leave the peer the bytes for the one that is held."""
    config = BlobConfig(peer_bytes_per_s=MAX_BLOB_BYTES / 10, burst_s=10, peer_requests_per_s=0.4)
    async with trio.open_nursery() as nursery:
        host, served = await server(nursery, world, LARGEST, config=config)
        ours = await asker(nursery, world, host)
        unknown = request(b"unknown", MAX_BLOB_BYTES)

        asked = [unknown, unknown, unknown, request(LARGEST), unknown]
        got = [(await ours.ask(host.peer_id, each, silence_s=10))[0] for each in asked]

        assert got == [BlobStatus.MISSING] * 3 + [BlobStatus.FOUND, BlobStatus.BUSY]
        assert (served.counters.unknown, served.counters.busy) == (3, 1)
        nursery.cancel_scope.cancel()


async def test_bytes_of_one_peer_are_limited(world: Any) -> None:
    """Above its bytes a peer gets no further blob for a while, but an answer (P34)."""
    config = BlobConfig(peer_bytes_per_s=MAX_BLOB_BYTES / 2, burst_s=2)
    async with trio.open_nursery() as nursery:
        host, _ = await server(nursery, world, LARGEST, config=config)
        ours = await asker(nursery, world, host)

        got = [(await ours.ask(host.peer_id, request(LARGEST), silence_s=10))[0] for _ in range(2)]

        assert got == [BlobStatus.FOUND, BlobStatus.BUSY]
        nursery.cancel_scope.cancel()


async def test_half_open_and_slow_readers_hold_nobody_up(world: Any) -> None:
    """Streams without a question and answers that nobody takes end; others are served (20-58)."""
    config = BlobConfig(request_timeout_s=3.0, stall_s=3.0, streams_max=3, peer_streams_max=2)
    async with trio.open_nursery() as nursery:
        host, served = await server(nursery, world, b"a", LARGEST, config=config)
        rogue = await world.host(nursery, "rogue")
        await rogue.dial(host.addresses[0])
        silent = await rogue.open_stream(host.peer_id, BLOBS)
        deaf = await rogue.open_stream(host.peer_id, BLOBS)
        await deaf.send_all(encode_frame(request(LARGEST).encode()))
        await world.until(lambda: served.serving == 2)

        third = await rogue.open_stream(host.peer_id, BLOBS)
        await third.send_all(encode_frame(request(b"a").encode()))
        assert await read_frame(third, 10) == bytes([BlobStatus.BUSY])
        ours = await asker(nursery, world, host)
        status, _ = await ours.ask(host.peer_id, request(b"a"), silence_s=30.0)
        assert status is BlobStatus.FOUND

        await world.until(lambda: served.counters.unfinished == 2)
        assert served.serving == 0
        assert served.counters.malformed == 1
        assert await silent.receive_some(1) == b""
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "data", [b"\xff" * 64, encode_frame(b"\x01"), encode_frame(bytes(38)), b"\x26\x01"]
)
async def test_malformed_questions_end_their_stream(world: Any, data: bytes) -> None:
    """Whatever is no question ends its stream, and nothing else."""
    config = BlobConfig(request_timeout_s=0.5)
    async with trio.open_nursery() as nursery:
        host, served = await server(nursery, world, config=config)
        rogue = await world.host(nursery, "rogue")
        await rogue.dial(host.addresses[0])
        stream = await rogue.open_stream(host.peer_id, BLOBS)

        await stream.send_all(data)

        assert await stream.receive_some(1) == b""
        await world.until(lambda: served.counters.malformed == 1)
        assert rogue.is_connected(host.peer_id)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (encode_frame(b"\x00longer"), BlobStatus.BROKEN),
        (encode_frame(b"\x00sho"), BlobStatus.BROKEN),
        (encode_frame(b"\x01four"), BlobStatus.BROKEN),
        (encode_frame(b"\x07"), BlobStatus.BROKEN),
        (b"\x00", BlobStatus.BROKEN),
        (b"\xff\xff\xff\x7f", BlobStatus.BROKEN),
        (b"", BlobStatus.FAILED),
    ],
)
async def test_lying_answers_are_bounded(world: Any, answer: bytes, status: BlobStatus) -> None:
    """An answer that breaks the protocol is told apart from none at all; neither takes longer."""

    async def lie(stream: RelayStream) -> None:
        await stream.receive_some(64)
        await stream.send_all(answer or b"\x05")
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        host = await world.host(nursery, "liar")
        host.handle(BLOBS, lie)
        ours = await asker(nursery, world, host)

        assert (await ours.ask(host.peer_id, request(b"four"), silence_s=0.5))[0] is status
        assert ours.counters.broken == (status is BlobStatus.BROKEN)
        nursery.cancel_scope.cancel()


async def test_questions_to_others_are_bounded(world: Any) -> None:
    """A question above ``asks_max`` fails without being asked."""
    async with trio.open_nursery() as nursery:
        host = await world.host(nursery, "silent")
        host.handle(BLOBS, hold)
        ours = await asker(nursery, world, host, asks_max=1)
        results: list[BlobStatus] = []

        async def ask() -> None:
            results.append((await ours.ask(host.peer_id, request(b"a"), silence_s=0.5))[0])

        async with trio.open_nursery() as asking:
            for _ in range(3):
                asking.start_soon(ask)

        assert results == [BlobStatus.FAILED] * 3
        assert (ours.counters.asked, ours.counters.failed) == (1, 3)
        nursery.cancel_scope.cancel()


def sidecar_request(sidecar: bytes, length: int) -> BlobRequest:
    """A question for a sidecar of at most so many bytes."""
    commitment = hashlib.sha3_256(sidecar).digest()
    return BlobRequest(commitment=commitment, length=length, kind=CommitmentKind.SIDECAR)


async def test_a_sidecar_is_asked_for_by_the_most_it_may_have(world: Any) -> None:
    """A shorter one is sent, a longer one is not, and only what was sent counts (11-35, G11)."""
    rate = BlobConfig(peer_bytes_per_s=MAX_BLOB_BYTES / 3, burst_s=3.0, peer_requests_per_s=100)
    async with trio.open_nursery() as nursery:
        host, served = await server(nursery, world, b"four", config=rate)
        ours = await asker(nursery, world, host)

        for _ in range(8):
            found = await ours.ask(host.peer_id, sidecar_request(b"four", MAX_BLOB_BYTES))
            assert found == (BlobStatus.FOUND, b"four")
        shorter = await ours.ask(host.peer_id, sidecar_request(b"four", 3))
        assert shorter == (BlobStatus.MISSING, b"")
        assert served.counters.busy == 0
        nursery.cancel_scope.cancel()


async def test_a_peer_that_knows_no_sidecars_is_not_to_blame(world: Any) -> None:
    """A node of an earlier version ends the stream unanswered: a failure, no broken answer."""
    seen: list[int] = []

    async def earlier(stream: RelayStream) -> None:
        frame = await read_frame(stream, 64)
        seen.append(frame[1])
        await stream.send_eof()

    async with trio.open_nursery() as nursery:
        host = await world.host(nursery, "earlier")
        host.handle(BLOBS, earlier)
        ours = await asker(nursery, world, host)

        status, blob = await ours.ask(host.peer_id, sidecar_request(b"four", 9), silence_s=10)
        assert (status, blob) == (BlobStatus.FAILED, b"")
        assert seen == [CommitmentKind.SIDECAR]
        assert ours.counters.broken == 0
        nursery.cancel_scope.cancel()


def part(blob: bytes, offset: int, count: int = 0) -> BlobRequest:
    """A question for a part of a blob."""
    return BlobRequest(
        commitment=hashlib.sha3_256(blob).digest(), length=len(blob), offset=offset, count=count
    )


@pytest.mark.parametrize("old", [False, True])
async def test_a_part_is_asked_for_of_new_and_old_nodes(world: Any, old: bool) -> None:
    """P50: a node of version 1.0.0 sends the whole; only what was asked for is handed on."""
    async with trio.open_nursery() as nursery:
        host, served = await server(nursery, world, LARGEST)
        if old:
            host.unhandle(BLOB_RANGES)
        ours = await asker(nursery, world, host)
        for offset, count in ((0, 7), (5, 0), (MAX_BLOB_BYTES - 1, 0), (70_000, 70_000)):
            answer = await ours.open(host.peer_id, part(LARGEST, offset, count))
            assert answer is not None
            assert (answer.status, answer.total) == (BlobStatus.FOUND, MAX_BLOB_BYTES)
            came = b""
            while data := await answer.read():
                came += data
            await answer.close()
            assert came == LARGEST[offset : offset + count if count else None]
        sent = 4 * MAX_BLOB_BYTES if old else 7 + (MAX_BLOB_BYTES - 5) + 1 + 70_000
        # The last one of an old node is ended early: it has sent what was asked for.
        await world.until(lambda: served.counters.served + served.counters.unfinished == 4)
        assert served.counters.served_bytes <= sent
        assert (served.counters.served_bytes == sent) is not old
        nursery.cancel_scope.cancel()


async def test_an_answer_that_breaks_off_is_gone_on_with(world: Any) -> None:
    """P50: the bytes that came are handed on as they come; the rest is asked for by its offset."""
    cut = trio.Event()

    async def breaks(stream: RelayStream) -> None:
        await read_frame(stream, 64)
        head = bytes([BlobStatus.FOUND]) + len(LARGEST).to_bytes(4)
        await stream.send_all(head + LARGEST[:100_000])
        await cut.wait()
        await stream.reset()

    async with trio.open_nursery() as nursery:
        host, _ = await server(nursery, world, LARGEST)
        bad = await world.host(nursery, "bad")
        bad.handle(BLOB_RANGES, breaks)
        ours = await asker(nursery, world, bad)
        await ours._host.dial(host.addresses[0])
        answer = await ours.open(bad.peer_id, part(LARGEST, 0))
        assert answer is not None
        came = b""
        while len(came) < 100_000:
            came += await answer.read()
        cut.set()
        with pytest.raises(FrameError):
            await answer.read()
        await answer.close()
        status, rest = await ours.ask(host.peer_id, part(LARGEST, len(came)))
        assert (status, came + rest) == (BlobStatus.FOUND, LARGEST)
        nursery.cancel_scope.cancel()


async def rest_of(answer: BlobAnswerStream) -> int:
    """Bytes that come until an answer breaks off."""
    came = 0
    with suppress(FrameError):
        while data := await answer.read():
            came += len(data)
    return came


async def test_a_slow_reader_is_served_and_gives_its_place_when_all_are_taken(world: Any) -> None:
    """P46: no time for the whole; who has had its time and is slowest makes room for a newcomer."""
    clock = [0.0]
    async with trio.open_nursery() as nursery:
        host = await world.host(nursery, "server")
        held = shelf(LARGEST, b"a")
        config = BlobConfig(streams_max=1, grace_s=20.0, stall_s=60.0)
        served = BlobExchange(
            host, lambda key, _: held.get(key), config=config, clock=lambda: clock[0]
        )
        await nursery.start(served.run)
        slow = await asker(nursery, world, host, "slow")
        answer = await slow.open(host.peer_id, part(LARGEST, 0))
        assert answer is not None
        first = len(await answer.read())
        other = await asker(nursery, world, host, "other")
        assert (await other.ask(host.peer_id, request(b"a")))[0] is BlobStatus.BUSY
        clock[0] = 19.0
        assert (await other.ask(host.peer_id, request(b"a")))[0] is BlobStatus.BUSY
        clock[0] = 3_600.0
        assert (await other.ask(host.peer_id, request(b"a")))[0] is BlobStatus.FOUND
        await world.until(lambda: served.counters.crowded == 1)
        left = await rest_of(answer)
        assert first + left < MAX_BLOB_BYTES
        nursery.cancel_scope.cancel()


async def test_who_asked_for_what_is_on_its_way_is_told_when_it_is_here(world: Any) -> None:
    """P50: told once; told_max who asked for what is coming, and as many who asked before."""
    heard: list[bytes] = []
    ids = [bytes([number]) * 32 for number in range(4)]
    async with trio.open_nursery() as nursery:
        host = await world.host(nursery, "server")
        served = BlobExchange(
            host,
            lambda *_: None,
            coming=lambda key: key in ids[:2],
            config=BlobConfig(told_max=1),
        )
        await nursery.start(served.run)
        there = await world.host(nursery, "asker")
        await there.dial(host.addresses[0])
        ours = BlobExchange(there, lambda *_: None, heard=lambda _, key: heard.append(key))
        await nursery.start(ours.run)
        for key in ids:
            question = BlobRequest(commitment=key, length=5)
            assert (await ours.ask(host.peer_id, question))[0] is BlobStatus.MISSING
        for key in (*ids, ids[1]):
            served.arrived(key)
        await world.until(lambda: sorted(heard) == [ids[1], ids[3]])
        await world.until(lambda: served.counters.told == 2)
        nursery.cancel_scope.cancel()


class Narrow(BlobUplink):
    """An uplink that stands in a queue, whatever is sent."""

    def sent(self, size: int, *, narrow: bool) -> None:
        """Take note of it."""
        del narrow
        super().sent(size, narrow=True)


async def test_on_a_narrow_uplink_the_second_asker_is_put_off_and_told(world: Any) -> None:
    """P52: a blob goes to one; another is told when to ask again, and when there is room."""
    clock, heard = [100.0], []
    async with trio.open_nursery() as nursery:
        host = await world.host(nursery, "server")
        held, uplink = shelf(LARGEST), Narrow(lambda: clock[0])
        served = BlobExchange(host, lambda key, _: held.get(key), uplink=uplink)
        await nursery.start(served.run)
        first = await asker(nursery, world, host, "first")
        answer = await first.open(host.peer_id, part(LARGEST, 0))
        assert answer is not None
        assert await answer.read()
        there = await world.host(nursery, "second")
        await there.dial(host.addresses[0])
        second = BlobExchange(there, lambda *_: None, heard=lambda *news: heard.append(news))
        await nursery.start(second.run)

        later = await second.open(host.peer_id, part(LARGEST, 0))
        assert later is not None
        assert later.status is BlobStatus.LATER
        assert 1000 * LATER_MIN_S <= later.total <= 1000 * LATER_MAX_S
        await later.close()
        assert (await second.ask(host.peer_id, request(LARGEST)))[0] is BlobStatus.LATER
        assert served.counters.later == 2

        await rest_of(answer)
        await answer.close()
        await world.until(lambda: heard == [(host.peer_id, request(LARGEST).commitment)])
        assert (await second.ask(host.peer_id, request(LARGEST)))[0] is BlobStatus.FOUND
        nursery.cancel_scope.cancel()


async def test_news_of_a_blob_takes_no_place(world: Any) -> None:
    """P50: a relay that serves a peer as much as it may still hears from it what has come."""
    heard: list[bytes] = []
    async with trio.open_nursery() as nursery:
        host = await world.host(nursery, "server")
        held = shelf(LARGEST)
        served = BlobExchange(
            host,
            lambda key, _: held.get(key),
            heard=lambda _, key: heard.append(key),
            config=BlobConfig(peer_streams_max=1),
        )
        await nursery.start(served.run)
        ours = await asker(nursery, world, host)
        answer = await ours.open(host.peer_id, part(LARGEST, 0))
        assert answer is not None
        assert (await ours.ask(host.peer_id, request(b"a")))[0] is BlobStatus.BUSY
        await ours._tell(bytes(32), host.peer_id)  # as after a question of the server's
        await world.until(lambda: heard == [bytes(32)])
        nursery.cancel_scope.cancel()
