"""The reconcile stream: comparison with a peer, and transfer of missing messages.

`/lux/relay/reconcile/1.0.0` carries interval lists, Merkle sync and range-based reconciliation, and
the messages that they find, between peers of which no gRPC address is known. A frame is an unsigned
varint length and that many bytes; what is in it says `luxrelay.sync.rpc.stream_kinds`.

*Who answers*: the same servicer as over gRPC, in worker threads, with the same turns and rates. A
peer holds one stream at a time, an address and a subnet two, all peers together a few; a stream has
a number of questions, a time for each and a time for all. When all places are taken, the stream
that has had its place longest, and for `yield_s` at least, makes room. Whoever is above any of
these, sends a frame that is too long, or stops in the middle of one, loses the stream and nothing
else.

*Who asks*: `StreamClient` in a worker thread, over a carrier that comes back to the loop for each
frame, with bounds on the frames and seconds of an answer.

Source: docs/explanation/architecture.md; decisions J4, J5, J11; retention document, "Merkle Tree
Implications".
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Final, TypeVar

import trio

from luxrelay.errors import ConfigError, FrameError, NetError
from luxrelay.gossip import PeerId
from luxrelay.net.addresses import peer_text
from luxrelay.net.config import COALESCED_BYTES
from luxrelay.net.connections import ConnectionLimits
from luxrelay.net.host import RelayHost
from luxrelay.net.streams import FrameCutError, FrameDecoder, RelayStream, encode_frame
from luxrelay.sync.rpc.config import FRAME_BYTES_MAX, SyncClientConfig
from luxrelay.sync.rpc.reading import SyncServicer
from luxrelay.sync.rpc.stream_answers import AnsweringStream
from luxrelay.sync.rpc.stream_calls import CarrierError, StreamClient
from luxrelay.sync.rpc.stream_kinds import StreamKind

RECONCILE: Final = "/lux/relay/reconcile/1.0.0"
PREFIX: Final = "p2p:"
"""Before the peer id in a peer's name, so that it is no address of a sync peer."""
PIECE_BYTES: Final = 16 * 1024
"""Bytes of an answer that a peer takes in `ReconcileStreamConfig.idle_s`: 13 kbit/s."""
_READ_BYTES: Final = 262_144
_NO_STREAM: Final = "the stream is gone"
_PART: Final = b"\x00"
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileStreamConfig:
    """Bounds of the stream, for both sides; every number is positive."""

    streams_max: int = 4
    """Streams of all peers that are answered at one time; a further one is reset."""
    peer_streams_max: int = 2
    """Streams of one peer that are answered at one time: one, and one that is just ending."""
    address_streams_max: int = 2
    """Streams of one IPv4 address or IPv6 /64 that are answered at one time."""
    subnet_streams_max: int = 2
    """Streams of one IPv4 /24 or IPv6 /56 that are answered at one time."""
    yield_s: float = 20.0
    """Seconds after which a stream makes room for another when all places are taken."""
    questions_max: int = 512
    """Questions on one stream; after them it ends."""
    question_bytes_max: int = FRAME_BYTES_MAX
    """Largest question, bytes; a reconciliation's own messages are the largest."""
    frame_bytes_max: int = FRAME_BYTES_MAX + 1024
    """Largest frame of an answer, bytes; nothing that a servicer makes is larger than 4 MiB."""
    answer_frames_max: int = 65_536
    """Frames of one answer that are taken; a listing has one for each namespace."""
    idle_s: float = 10.0
    """Seconds without a byte of a question, and for each piece of an answer to be taken; for the
    asking side the longest silence in an answer (P46)."""
    question_s: float = 30.0
    """Seconds for a whole question."""
    answer_s: float = 10.0
    """Seconds that the making of one answer may take; a page is shorter then."""
    stream_s: float = 120.0
    """Longest life of a stream, seconds, and of one comparison on the asking side."""
    heads_max: int = 65_536
    """Namespaces taken from one peer; a peer that lists more is left."""
    gaps_max: int = 1_000
    """Intervals of one namespace taken from a peer, and gaps of one page."""
    asked_max: int = 3
    """Connected peers, chosen by chance, that may be asked for one comparison."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise ConfigError(
                    f"{each.name} must be above zero",
                    where="ReconcileStreamConfig",
                    hint="see its docstring",
                )


@dataclass(slots=True, kw_only=True)
class ReconcileStreamCounters:
    """What the answering side did; they only grow."""

    streams: int = 0
    """Streams of peers that were let in."""
    refused: int = 0
    """Streams that found every place taken."""
    yielded: int = 0
    """Streams that made room for another."""
    questions: int = 0
    """Questions answered or refused."""
    cut: int = 0
    """Streams that ended by a bound, a time, or bytes that are no frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A stream that is answered."""

    peer: PeerId
    host: str
    since: float
    life: trio.CancelScope


class ReconcileStreams:
    """Answers peers and asks them.

    Args:
        host: Whose streams these are.
        servicer: Who answers; None answers nobody.
        config: Bounds.

    """

    def __init__(
        self,
        host: RelayHost,
        servicer: SyncServicer | None,
        config: ReconcileStreamConfig | None = None,
    ) -> None:
        self._host = host
        self._servicer = servicer
        self._config = config or ReconcileStreamConfig()
        self._places: dict[int, _Place] = {}
        """Streams that are answered, the oldest first."""
        self._number = 0
        self._limits = ConnectionLimits(
            replace(
                host.config,
                address_connections_max=self._config.address_streams_max,
                subnet_connections_max=self._config.subnet_streams_max,
                private_address_connections_max=self._config.address_streams_max,
                private_subnet_connections_max=self._config.subnet_streams_max,
            )
        )
        self.counters = ReconcileStreamCounters()

    def listen(self) -> None:
        """Have the host give us the streams of its peers."""
        if self._servicer is not None:
            self._host.handle(RECONCILE, self.serve)

    async def serve(self, stream: RelayStream) -> None:
        """Answer one stream until it ends or a bound is reached."""
        config, peer = self._config, stream.peer
        host, life = self._host.remote_host(peer), trio.CancelScope()
        if self._servicer is None or not self._room(peer, host):
            self.counters.refused += 1
            return
        self._number += 1
        number, now = self._number, trio.current_time()
        self._places[number] = _Place(peer=peer, host=host, since=now, life=life)
        self._limits.opened(host)
        self.counters.streams += 1
        session = AnsweringStream(self._servicer, peer_text(peer), config.answer_s, host)
        life.deadline = now + config.stream_s
        try:
            with life:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_let_go, session)
                    await self._answer(stream, session)
                    nursery.cancel_scope.cancel()
            self.counters.cut += life.cancelled_caught
        finally:
            self._leave(number)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(session.close)

    def _room(self, peer: PeerId, host: str) -> bool:
        """Whether a peer finds a place; the oldest stream makes room when its time has come."""
        held = sum(place.peer == peer for place in self._places.values())
        if held >= self._config.peer_streams_max or self._limits.refusal(host):
            return False
        if len(self._places) < self._config.streams_max:
            return True
        number, oldest = next(iter(self._places.items()))
        if trio.current_time() - oldest.since < self._config.yield_s:
            return False
        self.counters.yielded += 1
        self._leave(number)
        oldest.life.cancel()
        return True

    def _leave(self, number: int) -> None:
        place = self._places.pop(number, None)
        if place is not None:
            self._limits.closed(place.host)

    async def _answer(self, stream: RelayStream, session: AnsweringStream) -> None:
        try:
            await self._questions(stream, session)
        except (FrameError, trio.BrokenResourceError, trio.TooSlowError):
            self.counters.cut += 1

    async def _questions(self, stream: RelayStream, session: AnsweringStream) -> None:
        config = self._config
        decoder = FrameDecoder(config.question_bytes_max)
        for _ in range(config.questions_max):
            with trio.fail_after(config.question_s):
                question = await _frame(stream, decoder, config.idle_s)
            if question is None:
                return
            self.counters.questions += 1
            frames = session.answer(question)
            while data := await trio.to_thread.run_sync(_chunk, frames):
                view = memoryview(data)  # one message may be the whole of a large frame
                for start in range(0, len(view), PIECE_BYTES):
                    with trio.fail_after(config.idle_s):
                        await stream.send_all(view[start : start + PIECE_BYTES])
        self.counters.cut += 1

    def client(self, peer: PeerId) -> StreamClient:
        """Return a client for worker threads; called on the loop, closed anywhere."""
        config = self._config
        deadlines = SyncClientConfig(
            call_s=config.idle_s,
            page_s=config.idle_s,
            reconcile_s=config.idle_s,
            transfer_s=config.idle_s,
            heads_page=min(1_000, config.answer_frames_max),
            heads_max=config.heads_max,
            gaps_max=config.gaps_max,
        )
        token = trio.lowlevel.current_trio_token()
        carrier = _Carrier(self._host, peer, config, token)
        return StreamClient(PREFIX + peer_text(peer), carrier, deadlines)

    @asynccontextmanager
    async def clients(self, rng: Random) -> AsyncIterator[list[StreamClient]]:
        """Yield clients of a few connected peers; closed afterwards, and when this is cancelled.

        Closing ends what a worker thread waits for, so that a node that stops need not wait.
        """
        peers = sorted(self._host.connected())
        chosen = rng.sample(peers, min(len(peers), self._config.asked_max))
        made = [self.client(peer) for peer in chosen]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_close_after, made)
            yield made
            nursery.cancel_scope.cancel()


async def _close_after(clients: Sequence[StreamClient]) -> None:
    try:
        await trio.sleep_forever()
    finally:
        for client in clients:
            client.close()


class _Carrier:
    """One stream to a peer, opened when it is needed; threads come to the loop for each frame."""

    def __init__(
        self,
        host: RelayHost,
        peer: PeerId,
        config: ReconcileStreamConfig,
        token: trio.lowlevel.TrioToken,
    ) -> None:
        self._host = host
        self._peer = peer
        self._config = config
        self._token = token
        self._stream: RelayStream | None = None
        self._decoder = FrameDecoder(config.frame_bytes_max)
        self._until = time.monotonic() + config.stream_s
        self._asked = 0
        """Questions on this stream."""

    def ask(self, question: bytes, timeout_s: float) -> Iterator[bytes]:
        """Yield the frames of the answer to one question."""
        if self._asked >= self._config.questions_max // 2 and question[0] != StreamKind.RECONCILE:
            self.drop()  # the other side ends a stream after so many; a reconciliation stays on it
        whole = False
        try:
            self._run(self._send, question, min(timeout_s, self._left()))
            for _ in range(self._config.answer_frames_max):
                frame = self._run(self._receive, timeout_s, self._left())
                whole = frame[:1] != _PART
                yield frame
                if whole:
                    return
            raise CarrierError("an answer without an end", unusable=True)
        finally:
            if not whole:
                self.drop()

    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def drop(self) -> None:
        """Reset the stream; the next question opens another."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        try:
            self._token.run_sync_soon(trio.lowlevel.spawn_system_task, _reset, stream)
        except trio.RunFinishedError:
            return  # the host is closed, and its streams with it

    def _run(self, work: Callable[..., Awaitable[_Result]], *values: object) -> _Result:
        try:
            return trio.from_thread.run(work, *values, trio_token=self._token)
        except trio.TooSlowError:
            raise CarrierError("no answer in time", late=True) from None
        except (NetError, trio.BrokenResourceError) as error:
            raise CarrierError(str(error) or _NO_STREAM) from None
        except FrameError as error:
            raise CarrierError(str(error), unusable=True) from None
        except (trio.RunFinishedError, trio.Cancelled):
            raise CarrierError("this node is stopping") from None

    async def _send(self, question: bytes, timeout_s: float) -> None:
        with trio.fail_after(timeout_s):
            if self._stream is None:
                self._decoder = FrameDecoder(self._config.frame_bytes_max)
                self._asked = 0
                self._stream = await self._host.open_stream(self._peer, RECONCILE)
            self._asked += 1
            await self._stream.send_all(encode_frame(question))

    async def _receive(self, silence_s: float, left_s: float) -> bytes:
        with trio.fail_after(left_s):
            if self._stream is None:
                raise trio.BrokenResourceError("the stream is gone")
            frame = await _frame(self._stream, self._decoder, silence_s)
        if frame is None:
            raise trio.BrokenResourceError("the peer ended the stream")
        return frame


async def _reset(stream: RelayStream) -> None:
    with suppress(Exception):  # it may be gone with its connection
        await stream.reset()


async def _let_go(session: AnsweringStream) -> None:
    """When the stream is over, a thread that waits in an answer is let go."""
    try:
        await trio.sleep_forever()
    finally:
        session.cancel()


def _chunk(frames: Iterator[bytes]) -> bytes:
    """Return the next frames of an answer, about one write's worth; empty at its end."""
    parts: list[bytes] = []
    size = 0
    for frame in frames:
        parts.append(encode_frame(frame))
        size += len(parts[-1])
        if size >= COALESCED_BYTES:
            break
    return b"".join(parts)


async def _frame(stream: RelayStream, decoder: FrameDecoder, silence_s: float) -> bytes | None:
    """Return the next frame; None at the end of the stream.

    Raises:
        trio.TooSlowError: no byte came for ``silence_s``; how long a frame takes is no matter.
        FrameCutError: the stream ended inside a frame.
        FrameError: the bytes are no frame, or too many.

    """
    while True:
        frames = decoder.take(1)
        if frames:
            await trio.lowlevel.checkpoint()
            return frames[0]
        with trio.fail_after(silence_s):
            data = await stream.receive_some(_READ_BYTES)
        if not data:
            if decoder.unfinished:
                raise FrameCutError("The stream ended inside a frame")
            return None
        decoder.feed(data)
