"""Blobs over a libp2p stream: one question, one answer, both bounded.

Theory of operation
  Decides: how much may be asked of us and of others at once. Whom to ask, and what to make of an
    answer, is `luxrelay.sync.fetch`'s business.
  A question (`BlobRequest`) is one frame on a stream of its own: version, kind of commitment,
    commitment, the length that the header says, and since version 1.1.0 the first byte wanted and
    how many. The answer of 1.1.0 is a status byte and after FOUND the length of the whole blob and
    the bytes as they are, so that whoever reads sees them come. That of 1.0.0, which is spoken with
    older peers, is one frame of the whole: a status byte, and after FOUND the blob. The asker then
    ends the stream. LATER says in how many milliseconds to ask again (`BlobUplink`, P52).
  Whoever is asked looks into its own store and nowhere else, so a question is never passed on and
    an unknown commitment costs a peer one look (P28).
  A peer that asked for what we are fetching ourselves is told when it has come (`BlobRequest.here`,
    a question of kind HERE that has no answer), so that along a line of relays each asks once.
  Bounds: `BlobConfig`. Both sides: bytes of an answer by the length asked for, seconds without
    progress. Serving: streams at once, of all peers and of one, questions and bytes a second of one
    peer. A question above them is answered BUSY, which costs one byte and no look into the store. A
    question and the length it asks for are charged before the look; what is MISSING gets its bytes
    back, not its question. Asking: questions at once.
  An answer may take as long as its link needs: a peer that takes nothing for ``stall_s`` is reset
    (P46). When every place is taken, the slowest answer that is older than ``grace_s`` gives its
    place to a newcomer: what was sent of it is not lost, the asker goes on with a range.

Source: LP-6420 §4.2, LP-6421 §5.2; decisions G6, G11, G29, P28, P46, P50; 20-58, 21-37, 21-38.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from enum import IntEnum
from math import ceil
from struct import Struct
from typing import Final

import trio

from luxrelay.bus import constants as c
from luxrelay.bus.limits import LimitConfig, Rate, RateLimiter
from luxrelay.errors import AddressError, ConfigError, FrameError, LuxRelayError, NetError
from luxrelay.gossip import PeerId
from luxrelay.net.addresses import peer_id_from_text, peer_text
from luxrelay.net.config import COALESCED_BYTES
from luxrelay.net.host import RelayHost
from luxrelay.net.scopes import ReadyReport
from luxrelay.net.streams import FrameDecoder, RelayStream, encode_frame, read_frame
from luxrelay.sync.rpc.uplink import LATER_MAX_S, BlobUplink

BLOBS: Final = "/lux/relay/blob/1.0.0"
"""The protocol of a stream with one question and its answer in one frame (G29)."""
BLOB_RANGES: Final = "/lux/relay/blob/1.1.0"
"""The protocol of a stream with a question for a range and its answer as it comes (P50)."""
VERSION: Final = 1
"""Version of the question for a whole blob."""
VERSION_RANGES: Final = 2
"""Version of the question for a range."""
PIECE_BYTES: Final = 16 * 1024
"""Bytes of an answer that are written at a time: a second of 128 kbit/s."""
END_STALLS: Final = 4
"""Times ``stall_s`` that the end may take: a window of bytes is still on its way then."""
_REQUEST: Final = Struct(f">BB{c.HASH_BYTES}sI")
_RANGE: Final = Struct(f">BB{c.HASH_BYTES}sIII")
_TOTAL: Final = Struct(">I")


class CommitmentKind(IntEnum):
    """What a commitment is of a blob (LP-6411 §2.5)."""

    SHA3 = 0
    """Its SHA3-256."""
    KZG = 1
    """The hash of its polynomials' commitments (H2)."""
    SIDECAR = 2
    """The SHA3-256 of a TFHE sidecar, of which no header says the length (LP-6411 §2.10)."""
    HERE = 3
    """No question: the sender has come to hold what we asked it for (P50)."""


class BlobStatus(IntEnum):
    """What came of a question; FAILED and BROKEN are ours, the others travel."""

    FOUND = 0
    """The blob follows."""
    MISSING = 1
    """The peer does not hold it."""
    BUSY = 2
    """The peer has enough to do for us; it may hold the blob."""
    FAILED = 3
    """No answer in time, no such protocol, or the connection is gone."""
    BROKEN = 4
    """The answer breaks the protocol, or is longer than it may be."""
    LATER = 5
    """The peer sends it to another now; whoever wants it asks again later, or there (P52)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRequest:
    """A question: u8 version ‖ u8 kind ‖ commitment ‖ u32 length, then u32 offset ‖ u32 count.

    The last two are of version 2 only.
    """

    commitment: bytes
    """32 bytes."""
    length: int
    """Bytes that the blob has, 1 to 2 MiB; the most that a sidecar may have."""
    kind: CommitmentKind = CommitmentKind.SHA3
    """What the commitment is."""
    offset: int = 0
    """The first byte that is asked for."""
    count: int = 0
    """Bytes that are asked for, fewer when the blob ends before; 0 for all from ``offset`` on."""

    @property
    def asked(self) -> int:
        """The most bytes that an answer may bring."""
        left = self.length - self.offset
        return min(self.count, left) if self.count else left

    def fits(self, length: int) -> bool:
        """Return True when a blob of ``length`` bytes may be the answer."""
        if self.kind is CommitmentKind.SIDECAR:
            return self.offset < length <= self.length
        return length == self.length

    def encode(self) -> bytes:
        """The frame's payload for version 1.0.0, which asks for the whole."""
        return _REQUEST.pack(VERSION, self.kind, self.commitment, self.length)

    def encode_range(self) -> bytes:
        """The frame's payload for version 1.1.0."""
        return _RANGE.pack(
            VERSION_RANGES, self.kind, self.commitment, self.length, self.offset, self.count
        )

    @classmethod
    def here(cls, commitment: bytes) -> BlobRequest:
        """What tells a peer that we have come to hold what it asked us for."""
        return cls(commitment=commitment, length=1, kind=CommitmentKind.HERE)

    @classmethod
    def decode(cls, data: bytes) -> BlobRequest:
        """The question in a frame.

        Raises:
            FrameError: The bytes are no question.

        """
        offset = count = 0
        if len(data) == _RANGE.size:
            wanted = VERSION_RANGES
            version, kind, commitment, length, offset, count = _RANGE.unpack(data)
        elif len(data) == _REQUEST.size:
            wanted = VERSION
            version, kind, commitment, length = _REQUEST.unpack(data)
        else:
            raise FrameError(f"A blob request has no {len(data)} bytes")
        if version != wanted:
            raise FrameError(f"A blob request of version {version}, not {wanted}")
        known = kind in CommitmentKind._value2member_map_
        if not known or (kind == CommitmentKind.HERE and version == VERSION):
            raise FrameError(f"A blob request for commitments of kind {kind}")
        if not 0 < length <= c.MAX_BLOB_BYTES:
            raise FrameError(f"A blob request for {length} bytes, not 1 to {c.MAX_BLOB_BYTES}")
        if offset >= length or count > length - offset:
            raise FrameError(f"A blob request for {count} bytes at {offset} of {length}")
        return cls(
            commitment=commitment, length=length, kind=CommitmentKind(kind), offset=offset,
            count=count,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobConfig:
    """How much is served and asked; every number is positive."""

    streams_max: int = 16
    """Questions served at once; with 2 MiB each the memory they may take."""
    peer_streams_max: int = 4
    """Questions of one peer served at once."""
    peer_requests_per_s: float = 20.0
    """Questions of one peer a second (P34)."""
    peer_bytes_per_s: float = 4.0 * 1024 * 1024
    """Bytes served to one peer a second."""
    burst_s: float = 3.0
    """Seconds' worth of both rates that may be used at once; a largest blob at least."""
    peers_max: int = 1024
    """Peers whose use is remembered; further ones share what is left."""
    request_timeout_s: float = 10.0
    """Seconds for a question to arrive; it waits behind what else is on its link."""
    stall_s: float = 15.0
    """Seconds for `PIECE_BYTES` of an answer to be taken, and for the stream to be ended after the
    last (P46)."""
    grace_s: float = 20.0
    """Seconds for which an answer keeps its place although all are taken."""
    told_max: int = 1_024
    """Questions for what we are fetching ourselves that are remembered, and as many for what we
    have not heard of; the oldest is forgotten."""
    tell_s: float = 5.0
    """Seconds in which a peer takes the news of a blob."""
    tells_max: int = 16
    """Peers that are told at once of a blob which has come."""
    lookups_max: int = 4
    """Looks into the store at once."""
    asks_max: int = 32
    """Questions to others under way at once; further ones fail."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise ConfigError(
                    f"{each.name} must be above zero", where="BlobConfig", hint="see its docstring"
                )
        if self.peer_bytes_per_s * self.burst_s < c.MAX_BLOB_BYTES:
            raise ConfigError(
                "peer_bytes_per_s lets no blob of 2 MiB pass",
                where="BlobConfig",
                hint="raise it or burst_s",
            )


@dataclass(slots=True, kw_only=True)
class BlobCounters:
    """Blobs on their way; the numbers only grow."""

    served: int = 0
    """Blobs that peers took from us."""
    served_bytes: int = 0
    """Their bytes."""
    unknown: int = 0
    """Questions for what we do not hold."""
    later: int = 0
    """Questions that were put off, because the blob was on its way to another."""
    busy: int = 0
    """Questions above a bound, answered so."""
    malformed: int = 0
    """Streams whose question could not be read, or did not come in time."""
    unfinished: int = 0
    """Answers that were not taken in time, or whose peer went away."""
    crowded: int = 0
    """Of those, slow ones that gave their place to a newcomer."""
    told: int = 0
    """Peers that were told of a blob which had come after they asked for it."""
    asked: int = 0
    """Questions to others."""
    fetched: int = 0
    """Answers of others that brought all that was asked for; not yet compared with commitments."""
    fetched_bytes: int = 0
    """Bytes of blobs that others sent, those of answers that broke off included."""
    failed: int = 0
    """Questions to others that brought nothing."""
    broken: int = 0
    """Of those, answers that break the protocol."""


Held = Callable[[bytes, int], bytes | None]
"""Looks into the own store for a commitment, in a worker thread; whole blobs only."""


@dataclass(slots=True)
class _Served:
    """A place of the serving side."""

    peer: PeerId
    since: float
    scope: trio.CancelScope
    sent: int = 0


class BlobAnswerStream:
    """An answer that is on its way; made by `BlobExchange.open`, ended by `close`.

    Args:
        stream: What it comes on.
        status: What the peer says.
        total: Bytes of the whole blob, after FOUND; milliseconds, after LATER.
        skip: Bytes that come before those that were asked for.
        count: Bytes that were asked for.
        first: Bytes that came with the beginning.

    """

    def __init__(
        self,
        stream: RelayStream,
        status: BlobStatus,
        total: int = 0,
        *,
        skip: int = 0,
        count: int = 0,
        first: bytes = b"",
        counters: BlobCounters,
    ) -> None:
        self.status = status
        self.total = total
        self._stream = stream
        self._skip = skip
        self._left = count
        self._first = first
        self._counters = counters

    async def read(self) -> bytes:
        """What has come, at least a byte; empty at the end of what was asked for.

        Raises:
            FrameError: the answer ended before.

        """
        while self._left:
            data, self._first = self._first, b""
            if not data:
                data = await self._stream.receive_some(COALESCED_BYTES)
                if not data:
                    self._counters.failed += 1
                    raise FrameError("The answer ended before the blob")
            self._counters.fetched_bytes += len(data)
            cut = min(self._skip, len(data))
            self._skip -= cut
            data = data[cut : cut + self._left]
            self._left -= len(data)
            if data:
                self._counters.fetched += not self._left
                return data
        return b""

    async def close(self) -> None:
        """Nothing more of it is wanted."""
        await self._stream.reset()


class BlobExchange:
    """Serves blobs to peers and asks peers for blobs, over one host.

    Args:
        host: A host that is running, or will be.
        held: Returns the blob of a commitment and length from the own store, or None; called in
            worker threads, may raise `LuxRelayError`.
        coming: Whether we are fetching what somebody asks for; cheap.
        heard: Told of a peer that has come to hold what we asked it for.
        uplink: What is sent of blobs, by all doors of a node or alone.
        config: Bounds.
        clock: Monotonic seconds.

    """

    def __init__(
        self,
        host: RelayHost,
        held: Held,
        *,
        coming: Callable[[bytes], bool] = lambda _: False,
        heard: Callable[[PeerId, bytes], object] = lambda peer, commitment: None,  # noqa: ARG005
        uplink: BlobUplink | None = None,
        config: BlobConfig | None = None,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self.counters = BlobCounters()
        self._uplink = uplink or BlobUplink(clock)
        self._host = host
        self._held = held
        self._coming = coming
        self._heard = heard
        self._config = config = config or BlobConfig()
        self._clock = clock
        self._serving: dict[int, _Served] = {}
        self._next = 0
        self._asking = 0
        self._asked_us: OrderedDict[tuple[bytes, PeerId], None] = OrderedDict()
        self._asked_early: OrderedDict[tuple[bytes, PeerId], None] = OrderedDict()
        rate = Rate(config.peer_requests_per_s, config.peer_bytes_per_s)
        self._limits = RateLimiter(
            LimitConfig(peer=rate, burst_factor=config.burst_s, keys_max=config.peers_max)
        )
        self._lookups = trio.CapacityLimiter(config.lookups_max)
        self._telling = trio.CapacityLimiter(config.tells_max)
        self._to_be_told: dict[PeerId, list[bytes]] = {}
        self._news_in, self._news = trio.open_memory_channel[tuple[bytes, PeerId | None]](
            config.told_max
        )

    @property
    def serving(self) -> int:
        """Answers that are being sent."""
        return len(self._serving)

    async def run(self, *, task_status: ReadyReport[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; asking works without it."""
        self._host.handle(BLOBS, self._serve)
        self._host.handle(BLOB_RANGES, self._serve)
        try:
            task_status.started(None)
            async with trio.open_nursery() as nursery:
                async for commitment, peer in self._news:
                    for each in self._to_tell(commitment) if peer is None else [peer]:
                        self._tell_soon(nursery, commitment, each)
        finally:
            self._host.unhandle(BLOBS)
            self._host.unhandle(BLOB_RANGES)

    # Asking.

    async def open(
        self, peer: PeerId, request: BlobRequest, *, silence_s: float = 15.0
    ) -> BlobAnswerStream | None:
        """The beginning of what a connected peer answers; None when it cannot be asked.

        Whether it is the blob of its commitment is for the caller to check.

        Args:
            peer: Whom.
            request: For what.
            silence_s: Seconds until the answer begins.

        """
        counters = self.counters
        if self._asking >= self._config.asks_max:
            counters.failed += 1
            return None
        counters.asked += 1
        self._asking += 1
        answer = None
        try:
            with trio.move_on_after(silence_s):
                answer = await self._open(peer, request)
        finally:
            self._asking -= 1
        if answer is None or answer.status is not BlobStatus.FOUND:
            counters.failed += 1
            counters.broken += answer is not None and answer.status is BlobStatus.BROKEN
        return answer

    async def ask(
        self, peer: PeerId, request: BlobRequest, *, silence_s: float = 15.0
    ) -> tuple[BlobStatus, bytes]:
        """All that a connected peer answers; empty when it is not what was asked for.

        Args:
            peer: Whom.
            request: For what.
            silence_s: Seconds without a byte after which it is over.

        """
        answer = await self.open(peer, request, silence_s=silence_s)
        if answer is None:
            return BlobStatus.FAILED, b""
        parts = []
        try:
            while answer.status is BlobStatus.FOUND:
                with trio.fail_after(silence_s):
                    part = await answer.read()
                if not part:
                    break
                parts.append(part)
        except (FrameError, trio.TooSlowError):
            return BlobStatus.FAILED, b""
        finally:
            await answer.close()
        return answer.status, b"".join(parts)

    async def _open(self, peer: PeerId, request: BlobRequest) -> BlobAnswerStream | None:
        try:
            stream = await self._host.open_stream(peer, BLOB_RANGES, BLOBS)
        except NetError:
            return None
        done = False
        try:
            ranges = stream.protocol == BLOB_RANGES
            question = request.encode_range() if ranges else request.encode()
            await stream.send_all(encode_frame(question))
            answer = await _beginning(stream, request, ranges=ranges, counters=self.counters)
            done = True
        except trio.BrokenResourceError:
            return None
        except FrameError:
            # A node of an earlier version ends the stream when it is asked for a sidecar.
            honest = request.kind is CommitmentKind.SIDECAR or not self._host.is_connected(peer)
            if honest:
                return None
            done = True
            return BlobAnswerStream(stream, BlobStatus.BROKEN, counters=self.counters)
        finally:
            if not done:
                await stream.reset()
        return answer

    # Telling.

    def arrived(self, commitment: bytes) -> None:
        """A blob is here now; who asked for it meanwhile is told. Called on the loop."""
        if not any(asked == commitment for asked, _ in (*self._asked_us, *self._asked_early)):
            return
        with suppress(trio.WouldBlock):
            self._news_in.send_nowait((commitment, None))

    def _to_tell(self, commitment: bytes) -> list[PeerId]:
        """Who asked for a blob while it was not here; they are remembered no longer."""
        asked = (*self._asked_us, *self._asked_early)
        peers = list(dict.fromkeys(asker for wanted, asker in asked if wanted == commitment))
        for each in peers:
            self._asked_us.pop((commitment, each), None)
            self._asked_early.pop((commitment, each), None)
        return peers

    def _tell_soon(self, nursery: trio.Nursery, commitment: bytes, peer: PeerId) -> None:
        """Have a peer told; each is told one after the other, so one that is slow delays itself."""
        waiting = self._to_be_told.get(peer)
        if waiting is None:
            self._to_be_told[peer] = [commitment]
            self._host.faults.start(nursery, "blob news", self._tell_all, peer)
        elif len(waiting) < 2 * self._config.told_max:  # as many as are remembered
            waiting.append(commitment)

    async def _tell_all(self, peer: PeerId) -> None:
        waiting = self._to_be_told[peer]
        try:
            while waiting and self._host.is_connected(peer):
                async with self._telling:
                    await self._tell(waiting.pop(0), peer)
        finally:
            del self._to_be_told[peer]

    async def _tell(self, commitment: bytes, peer: PeerId) -> None:
        """Tell a peer that it may ask for a blob."""
        with trio.move_on_after(self._config.tell_s), suppress(NetError):
            stream = await self._host.open_stream(peer, BLOB_RANGES)
            try:
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(encode_frame(BlobRequest.here(commitment).encode_range()))
                    await stream.send_eof()
                    self.counters.told += 1
                    await stream.receive_some(1)
            finally:
                await stream.reset()

    # Serving.

    async def _serve(self, stream: RelayStream) -> None:
        with trio.CancelScope() as scope, self._place(stream.peer, scope) as place:
            try:
                with trio.fail_after(self._config.request_timeout_s):
                    request = BlobRequest.decode(await read_frame(stream, _RANGE.size))
            except (FrameError, trio.TooSlowError):
                self.counters.malformed += 1
                return
            here = request.kind is CommitmentKind.HERE
            size = 0 if here else request.asked
            full = place is None and not here  # what tells us something takes no place
            if full or not self._limits.admit_peer(stream.peer, size, self._clock()):
                self.counters.busy += 1
                await self._send_status(stream, BlobStatus.BUSY)
            elif place is None or here:
                self._heard(stream.peer, request.commitment)
            else:
                await self._answer(stream, request, place)
        if scope.cancelled_caught:
            self.counters.unfinished += 1
            self.counters.crowded += 1
            await stream.reset()

    async def _answer(self, stream: RelayStream, request: BlobRequest, place: _Served) -> None:
        counters = self.counters
        try:
            blob = await trio.to_thread.run_sync(
                self._held, request.commitment, request.length, limiter=self._lookups
            )
        except LuxRelayError:  # our disk, not the peer's fault; others may hold it
            blob = None
        if blob is None or not request.fits(len(blob)):
            counters.unknown += 1
            self._limits.give_back_peer(stream.peer, request.asked)
            self._remember(request.commitment, stream.peer)
            await self._send_status(stream, BlobStatus.MISSING)
            return
        ranges = stream.protocol == BLOB_RANGES
        if ranges:
            part = memoryview(blob)[request.offset : request.offset + request.asked]
            head = bytes([BlobStatus.FOUND]) + _TOTAL.pack(len(blob))
        else:
            part = memoryview(blob)
            head = encode_frame(bytes([BlobStatus.FOUND]) + blob)[: -len(blob)]
        self._limits.give_back_peer(stream.peer, request.asked - len(part))
        asker = peer_text(stream.peer)
        later_s = self._uplink.begin(request.commitment, asker, len(part), must=not ranges)
        if later_s:
            counters.later += 1
            self._limits.give_back_peer(stream.peer, len(part))
            await self._send(stream, bytes([BlobStatus.LATER]) + _TOTAL.pack(ceil(1000 * later_s)))
            return
        try:
            if await self._send(stream, head, part, place):
                counters.served += 1
                counters.served_bytes += len(part)
        finally:
            most = 2 * len(part) >= len(blob)
            self._uplink.ended(request.commitment, len(part) - place.sent, most=most)
            for commitment, peer in self._uplink.next_askers():
                with suppress(trio.WouldBlock, AddressError):
                    self._news_in.send_nowait((commitment, peer_id_from_text(peer)))

    def _remember(self, commitment: bytes, peer: PeerId) -> None:
        """Remember who asked for what is on its way to us, or of which we may hear any moment.

        Anybody can ask for anything: what nobody wants has a table of its own, and crowds out
        nothing that is coming.
        """
        asked = self._asked_us if self._coming(commitment) else self._asked_early
        asked[commitment, peer] = None
        asked.move_to_end((commitment, peer))
        if len(asked) > self._config.told_max:
            asked.popitem(last=False)

    async def _send_status(self, stream: RelayStream, status: BlobStatus) -> None:
        ranges = stream.protocol == BLOB_RANGES
        await self._send(stream, bytes([status]) if ranges else encode_frame(bytes([status])))

    async def _send(
        self,
        stream: RelayStream,
        head: bytes,
        part: memoryview | None = None,
        place: _Served | None = None,
    ) -> bool:
        """Whether the peer has taken the answer and ended the stream, and never stood still."""
        stall_s = self._config.stall_s
        stream.credit_wait_s = stall_s
        part = memoryview(b"") if part is None else part
        try:
            with trio.fail_after(stall_s):
                await stream.send_all(head)
            for start in range(0, len(part), PIECE_BYTES):
                piece = part[start : start + PIECE_BYTES]
                with trio.fail_after(stall_s):
                    await stream.send_all(piece)
                if place is not None:
                    place.sent += len(piece)
                    self._uplink.sent(len(piece), narrow=self._host.crowded(stream.peer))
            await stream.send_eof()
            with trio.fail_after(END_STALLS * stall_s):
                await stream.receive_some(1)  # the end: the peer has taken it
        except (trio.TooSlowError, trio.BrokenResourceError):
            self.counters.unfinished += 1
            return False
        return True

    @contextmanager
    def _place(self, peer: PeerId, scope: trio.CancelScope) -> Iterator[_Served | None]:
        """A place for one more question of this peer, or None."""
        serving, config, now = self._serving, self._config, self._clock()
        own = sum(each.peer == peer for each in serving.values())
        if own < config.peer_streams_max and len(serving) >= config.streams_max:
            self._crowd(now)
        place = None
        if own < config.peer_streams_max and len(serving) < config.streams_max:
            self._next += 1
            number, place = self._next, _Served(peer, now, scope)
            serving[number] = place
        try:
            yield place
        finally:
            if place is not None:
                serving.pop(number, None)

    def _crowd(self, now: float) -> None:
        """The slowest of those that have had their time makes room."""
        old = {
            number: each.sent / (now - each.since)
            for number, each in self._serving.items()
            if now - each.since >= self._config.grace_s
        }
        if old:
            self._serving.pop(min(old, key=old.__getitem__)).scope.cancel()


async def _beginning(
    stream: RelayStream, request: BlobRequest, *, ranges: bool, counters: BlobCounters
) -> BlobAnswerStream:
    """The answer whose status and length have come.

    Raises:
        FrameError: they break the protocol.

    """
    held, start, status, total = await _head(stream, request, ranges=ranges)
    if status == BlobStatus.FOUND and request.fits(total):
        return BlobAnswerStream(
            stream,
            BlobStatus.FOUND,
            total,
            skip=0 if ranges else request.offset,
            count=min(request.asked, total - request.offset),
            first=bytes(held[start:]),
            counters=counters,
        )
    if ranges and status == BlobStatus.LATER and 0 < total <= 1000 * LATER_MAX_S:
        return BlobAnswerStream(stream, BlobStatus.LATER, total, counters=counters)
    if status in {BlobStatus.MISSING, BlobStatus.BUSY} and not total and len(held) == start:
        return BlobAnswerStream(stream, BlobStatus(status), counters=counters)
    raise FrameError("The answer is none")


async def _head(
    stream: RelayStream, request: BlobRequest, *, ranges: bool
) -> tuple[bytearray, int, int, int]:
    """What has come, where the blob's bytes begin in it, the status and what it says of a length.

    Raises:
        FrameError: the stream ended before, or it is no answer.

    """
    held = bytearray()

    async def more(size: int) -> None:
        while len(held) < size:
            data = await stream.receive_some(COALESCED_BYTES)
            if not data:
                raise FrameError("The stream ended before its answer")
            held.extend(data)

    if ranges:
        await more(1)
        if held[0] not in {BlobStatus.FOUND, BlobStatus.LATER}:
            return held, 1, held[0], 0
        start = 1 + _TOTAL.size
        await more(start)
        return held, start, held[0], _TOTAL.unpack(held[1:start])[0]
    decoder = FrameDecoder(1 + request.length)
    length = None
    while length is None:
        await more(len(held) + 1)
        decoder.feed(bytes(held[decoder.unfinished :]))
        length = decoder.announced
    if not length:
        raise FrameError("An empty answer")
    prefix = (length.bit_length() + 6) // 7
    await more(prefix + 1)
    return held, prefix + 1, held[prefix], length - 1
