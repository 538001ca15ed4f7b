"""Frames are cut, gathered, bounded; slow takers end, and nobody waits for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import FrameError
from luxrelay.net.config import COALESCED_BYTES, NetConfig
from luxrelay.net.streams import (
    FrameCutError,
    FrameDecoder,
    FrameReader,
    PeerWriter,
    WriterEnd,
    encode_frame,
)

CONFIG = NetConfig(frame_max=2000, queue_bytes_max=8000, queue_frames_max=10)


def cut(data: bytes, *, frame_max: int = 2000) -> list[bytes]:
    """All frames in the bytes."""
    decoder = FrameDecoder(frame_max)
    decoder.feed(data)
    return decoder.take(1_000_000)


@given(st.lists(st.binary(min_size=1, max_size=300)), st.data())
def test_frames_survive_any_split(payloads: list[bytes], data: st.DataObject) -> None:
    """Frames come out as they went in, however the bytes were cut on the way."""
    wire = b"".join(map(encode_frame, payloads))
    decoder = FrameDecoder(300)
    found: list[bytes] = []

    while wire:
        size = data.draw(st.integers(1, len(wire)))
        decoder.feed(wire[:size])
        wire = wire[size:]
        found += decoder.take(data.draw(st.integers(0, 5)))
    found += decoder.take(1_000_000)

    assert found == payloads
    assert not decoder.unfinished


@given(st.binary(max_size=400))
def test_nothing_but_frame_errors(data: bytes) -> None:
    """Any bytes are frames or a FrameError."""
    try:
        frames = cut(data)
    except FrameError:
        return
    assert all(0 < len(frame) <= 2000 for frame in frames)


@pytest.mark.parametrize(
    ("size", "prefix"), [(1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (16384, "808001")]
)
def test_encode_length(size: int, prefix: str) -> None:
    """The length is an unsigned varint, seven bits a byte, lowest first."""
    frame = encode_frame(bytes(size))

    assert frame[: len(prefix) // 2].hex() == prefix
    assert len(frame) == size + len(prefix) // 2


def test_take_frame_of_maximum_size() -> None:
    """A frame of exactly the maximum is taken."""
    assert cut(encode_frame(bytes(2000))) == [bytes(2000)]


@pytest.mark.parametrize("wire", ["d10f", "8000", "ffffffff01", "8080808001"])
def test_refuse_bad_length(wire: str) -> None:
    """A length above the maximum, not in its shortest form, or without end is refused at once."""
    with pytest.raises(FrameError):
        cut(bytes.fromhex(wire))


def test_leave_out_a_few_empty_frames() -> None:
    """So many empty frames as a stream may have are left out; one more is refused."""
    decoder = FrameDecoder(2000, empty_max=3)
    decoder.feed(b"\x00\x00" + encode_frame(b"a") + b"\x00" + encode_frame(b"b"))

    assert decoder.take(9) == [b"a", b"b"]
    decoder.feed(b"\x00")
    with pytest.raises(FrameError, match="empty"):
        decoder.take(9)


def test_refuse_an_empty_frame_where_none_is_expected() -> None:
    """A stream of questions and answers has no empty frames."""
    with pytest.raises(FrameError, match="empty"):
        cut(encode_frame(b"a") + b"\x00")


async def test_reader_refuses_a_flood_of_empty_frames() -> None:
    """A peer that follows nothing greets with an empty frame; a mebibyte of them is cut at once."""
    ours, theirs = trio.testing.memory_stream_pair()
    reader = FrameReader(ours, CONFIG)
    await theirs.send_all(bytes(CONFIG.empty_frames_max) + encode_frame(b"whole"))

    assert await reader.receive() == [b"whole"]
    await theirs.send_all(bytes(2**20))
    with pytest.raises(FrameError, match="empty"):
        await reader.receive()
    assert reader._decoder.unfinished  # what stands behind it is not looked at


async def test_reader_hands_over_bounded_batches() -> None:
    """A thousand frames in one read come in batches of `frame_batch_max`."""
    ours, theirs = trio.testing.memory_stream_pair()
    reader = FrameReader(ours, replace(CONFIG, frame_batch_max=100))
    await theirs.send_all(encode_frame(b"x") * 1000)
    await theirs.send_eof()

    sizes = []
    while frames := await reader.receive():
        sizes.append(len(frames))

    assert sizes == [100] * 10


async def test_reader_refuses_end_inside_frame() -> None:
    """A stream that ends inside a frame is an error, not an end."""
    ours, theirs = trio.testing.memory_stream_pair()
    reader = FrameReader(ours, CONFIG)
    await theirs.send_all(encode_frame(b"whole") + encode_frame(b"broken")[:-1])
    await theirs.send_eof()

    assert await reader.receive() == [b"whole"]
    with pytest.raises(FrameError, match="inside a frame"):
        await reader.receive()


async def test_writer_gathers_what_is_ready() -> None:
    """Frames offered before the writer runs leave in one write."""
    ours, theirs = trio.testing.memory_stream_pair()
    writer = PeerWriter(ours, CONFIG)
    payloads = [bytes([n]) * 100 for n in range(10)]
    for payload in payloads:
        assert writer.offer(payload)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        frames = await FrameReader(theirs, CONFIG).receive()
        nursery.cancel_scope.cancel()

    assert frames == payloads
    assert (writer.writes, writer.frames_out, writer.queued_bytes) == (1, 10, 0)


async def test_writer_cuts_large_frames() -> None:
    """A frame above 64 KiB leaves in writes of 64 KiB, so that the stall limit sees progress."""
    ours, theirs = trio.testing.memory_stream_pair()
    config = NetConfig()
    writer = PeerWriter(ours, config)
    payload = bytes(range(256)) * 1000
    writer.offer(payload)
    writer.offer(b"next")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        reader = FrameReader(theirs, config)
        frames: list[bytes] = []
        while len(frames) < 2:
            frames += await reader.receive()
        nursery.cancel_scope.cancel()

    assert frames == [payload, b"next"]
    assert writer.writes == len(payload) // COALESCED_BYTES + 1


@pytest.mark.parametrize(("count", "size"), [(11, 1), (9, 1000)])
async def test_writer_ends_when_queue_overflows(count: int, size: int) -> None:
    """One frame of control, or one byte, too many ends the writer (20-58)."""
    ours, _theirs = trio.testing.memory_stream_pair()
    writer = PeerWriter(ours, CONFIG)

    accepted = [writer.offer(bytes(size), urgent=True) for _ in range(count)]

    assert accepted == [True] * (count - (1 if size == 1 else 2)) + [False] * (
        1 if size == 1 else 2
    )
    assert await writer.run() is WriterEnd.OVERFLOWED


async def test_overflow_interrupts_stalled_write() -> None:
    """A writer that is stuck in a write ends at once when its queue overflows."""
    ours, _theirs = trio.testing.lockstep_stream_pair()
    writer = PeerWriter(ours, CONFIG)
    ends: list[WriterEnd] = []

    async def run() -> None:
        ends.append(await writer.run())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        writer.offer(b"stuck")
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        while writer.offer(b"more", urgent=True):
            pass

    assert ends == [WriterEnd.OVERFLOWED]
    assert trio.current_time() == began


async def test_writer_ends_when_peer_stalls() -> None:
    """A write that takes longer than `write_stall_s` ends the writer (20-58)."""
    ours, _theirs = trio.testing.lockstep_stream_pair()
    writer = PeerWriter(ours, replace(CONFIG, write_stall_s=3.0))
    writer.offer(b"nobody takes this")
    began = trio.current_time()

    end = await writer.run()

    assert end is WriterEnd.STALLED
    assert trio.current_time() - began == pytest.approx(3.0)


async def test_writer_ends_when_stream_breaks() -> None:
    """A stream that the peer has closed ends the writer."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    writer = PeerWriter(ours, CONFIG)
    writer.offer(b"too late")
    await theirs.aclose()

    assert await writer.run() is WriterEnd.LOST


async def test_silence_is_no_stall() -> None:
    """A writer with nothing to write waits as long as it takes."""
    ours, theirs = trio.testing.memory_stream_pair()
    writer = PeerWriter(ours, CONFIG)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        await trio.sleep(50)
        writer.offer(b"at last")
        frames = await FrameReader(theirs, CONFIG).receive()
        nursery.cancel_scope.cancel()

    assert frames == [b"at last"]


async def test_pressed_for_a_while_only() -> None:
    """A half full queue asks to be waited for, but not for longer than `patience_s`."""
    ours, _theirs = trio.testing.lockstep_stream_pair()
    writer = PeerWriter(ours, replace(CONFIG, patience_s=1.0))

    for _ in range(5):
        writer.offer(b"x")
    assert not writer.pressed(trio.current_time())
    writer.offer(b"x")

    assert writer.pressed(trio.current_time())
    assert writer.pressed(trio.current_time() + 0.9)
    assert not writer.pressed(trio.current_time() + 1.0)


async def test_not_pressed_after_writing() -> None:
    """Once the queue is below half again, a later press counts anew."""
    ours, _theirs = trio.testing.memory_stream_pair()
    writer = PeerWriter(ours, CONFIG)
    for _ in range(8):
        writer.offer(b"x")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert not writer.pressed(trio.current_time())
    assert writer.queued_frames == 0


def test_a_message_that_does_not_fit_is_given_up() -> None:
    """The writer goes on, the peer is slow at the next look, and control still has room (G39)."""
    writer = PeerWriter(trio.testing.memory_stream_pair()[0], CONFIG, lambda: 0.0)

    accepted = [writer.offer(b"x") for _ in range(11)]

    assert accepted == [True] * 10 + [False]
    assert (writer.given_up, writer.slow) == (1, False)
    assert writer.look(0.0) is not None
    assert writer.offer(b"control", urgent=True)


async def test_control_goes_before_messages_and_never_inside_one() -> None:
    """What is urgent keeps its own order and overtakes what waits (G39)."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    config = replace(CONFIG, frame_max=200_000, queue_bytes_max=200_000)
    writer, reader = PeerWriter(ours, config), FrameReader(theirs, config)
    long = bytes([7]) * (COALESCED_BYTES + 10)
    frames: list[bytes] = []

    async with trio.open_nursery() as nursery:
        writer.offer(long)
        nursery.start_soon(writer.run)
        await trio.testing.wait_all_tasks_blocked()
        for payload, urgent in ((b"last", False), (b"first", True), (b"second", True)):
            writer.offer(payload, urgent=urgent)
        while len(frames) < 4:
            frames += await reader.receive()
        nursery.cancel_scope.cancel()

    assert frames == [long, b"first", b"second", b"last"]


def test_slow_from_a_late_frame_until_the_queue_stays_empty() -> None:
    """A frame that waits makes a peer slow, which trims its queue; emptiness heals it (G39)."""
    config = replace(
        CONFIG, slow_after_s=2.0, slow_hold_s=10.0, slow_bytes=3_000, queue_frames_max=100
    )
    writer = PeerWriter(trio.testing.memory_stream_pair()[0], config, lambda: 0.0)
    for _ in range(7):
        writer.offer(bytes(998))

    assert writer.look(2.0) is None
    writer.offer(b"control", urgent=True)
    assert writer.look(2.1) == 3_000 - writer.queued_bytes
    assert (writer.slow, writer.queued_frames, writer.given_up) == (True, 1, 7)
    writer._gather()
    assert writer.look(3.0) == 3_000
    assert writer.look(12.9) is not None
    writer.offer(b"x")
    assert writer.look(1.0) is not None
    writer._gather()
    assert writer.look(13.0) is not None
    assert writer.look(22.9) is not None
    assert writer.look(23.0) is None


def test_after_long_writes_short_ones_follow() -> None:
    """A link shows that it moves before `write_stall_s` is over, though nobody said it is slow."""
    config = replace(CONFIG, frame_max=200_000, queue_bytes_max=400_000)
    writer = PeerWriter(trio.testing.memory_stream_pair()[0], config, lambda: 0.0)
    writer.offer(bytes(190_000))

    assert len(writer._gather()) == COALESCED_BYTES
    writer._note_written(COALESCED_BYTES, 5.0)
    assert len(writer._gather()) == 16 * 1024
    for _ in range(10):
        writer._note_written(16 * 1024, 0.01)
    assert len(writer._gather()) == COALESCED_BYTES


async def test_what_is_being_written_waits_as_well() -> None:
    """A link that takes long for one write is slow, though nothing waits behind it (G39)."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    config, now = replace(CONFIG, slow_after_s=2.0), [0.0]
    writer, reader = PeerWriter(ours, config, lambda: now[0]), FrameReader(theirs, config)

    async with trio.open_nursery() as nursery:
        writer.offer(b"only")
        nursery.start_soon(writer.run)
        await trio.testing.wait_all_tasks_blocked()
        assert writer.queued_frames == 0
        assert writer.look(2.0) is None
        now[0] = 2.1
        assert writer.look(now[0]) is not None
        assert await reader.receive() == [b"only"]
        await trio.testing.wait_all_tasks_blocked()
        now[0] = 4.2
        writer.look(now[0])
        assert writer.look(now[0] + config.slow_hold_s) is None
        nursery.cancel_scope.cancel()


def test_a_slow_peer_has_room_for_what_its_link_takes_in_time() -> None:
    """The rate of the last writes bounds what may wait; one message always fits (G39)."""
    config = replace(CONFIG, slow_after_s=2.0, slow_bytes=1_000_000)
    writer = PeerWriter(trio.testing.memory_stream_pair()[0], config, lambda: 0.0)
    writer.offer(b"late")
    writer.look(2.5)
    for _ in range(20):
        writer._note_written(5_000, 1.0)

    assert writer.look(3.0) == pytest.approx(10_000, abs=5)
    writer.offer(bytes(1_900))
    assert writer.look(1.0) == pytest.approx(8_098, abs=5)
    writer._gather()
    for _ in range(20):
        writer._note_written(1, 100.0)
    assert writer.look(3.0) == 1


async def test_a_cut_frame_is_told_from_a_wrong_one() -> None:
    """A stream that ends inside a frame says nothing about its sender (G38)."""
    ours, theirs = trio.testing.memory_stream_pair()
    await ours.send_all(encode_frame(b"whole") + encode_frame(b"never")[:3])
    await ours.send_stream.aclose()
    reader = FrameReader(theirs, CONFIG)

    assert await reader.receive() == [b"whole"]
    with pytest.raises(FrameCutError) as caught:
        await reader.receive()
    assert isinstance(caught.value, trio.BrokenResourceError)
