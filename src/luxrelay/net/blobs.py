"""Blobs over a libp2p stream: one question, one answer, both bounded.

Theory of operation
  Decides: how much may be asked of us and of others at once. Whom to ask, and what to make of an
    answer, is `luxrelay.sync.fetch`'s business.
  A question (`BlobRequest`) is one frame on a stream of its own: version, kind of commitment,
    commitment, the length that the header says. The answer is one frame: a status byte, and after
    FOUND the blob. The asker then ends the stream.
  Whoever is asked looks into its own store and nowhere else, so a question is never passed on and
    an unknown commitment costs a peer one look (P28).
  Bounds: `BlobConfig`. Both sides: bytes of a frame by the length asked for, seconds. Serving:
    streams at once, of all peers and of one, questions and bytes a second of one peer. A question
    above them is answered BUSY, which costs one byte and no look into the store. A question and the
    length it asks for are charged before the look; what is MISSING gets its bytes back, not its
    question. Asking: questions at once.
  A peer that stops taking, or does not end the stream, is reset after ``stall_s``; one that takes a
    little now and then after ``serve_timeout_s``.

Source: LP-6420 §4.2, LP-6421 §5.2; decisions G6, G11, G29, P28; 20-58, 21-37, 21-38.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import IntEnum
from struct import Struct
from typing import Final

import trio

from luxrelay.bus import constants as c
from luxrelay.bus.limits import LimitConfig, Rate, RateLimiter
from luxrelay.errors import ConfigError, FrameError, LuxRelayError, NetError
from luxrelay.gossip import PeerId
from luxrelay.net.config import COALESCED_BYTES
from luxrelay.net.host import RelayHost
from luxrelay.net.scopes import ReadyReport
from luxrelay.net.streams import RelayStream, encode_frame, read_frame

BLOBS: Final = "/lux/relay/blob/1.0.0"
"""The protocol of a stream with one question and its answer (G29)."""
VERSION: Final = 1
"""Version of the question."""
_REQUEST: Final = Struct(f">BB{c.HASH_BYTES}sI")


class CommitmentKind(IntEnum):
    """What a commitment is of a blob (LP-6411 §2.5)."""

    SHA3 = 0
    """Its SHA3-256."""
    KZG = 1
    """The hash of its polynomials' commitments (H2)."""
    SIDECAR = 2
    """The SHA3-256 of a TFHE sidecar, of which no header says the length (LP-6411 §2.10)."""


class BlobStatus(IntEnum):
    """What came of a question; the first three travel, the others are ours."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRequest:
    """A question: u8 version ‖ u8 kind ‖ commitment ‖ u32 length."""

    commitment: bytes
    """32 bytes."""
    length: int
    """Bytes that the blob has, 1 to 2 MiB; the most that a sidecar may have."""
    kind: CommitmentKind = CommitmentKind.SHA3
    """What the commitment is."""

    def fits(self, blob: bytes) -> bool:
        """Return True when an answer may have the length of ``blob``."""
        if self.kind is CommitmentKind.SIDECAR:
            return 0 < len(blob) <= self.length
        return len(blob) == self.length

    def encode(self) -> bytes:
        """The frame's payload."""
        return _REQUEST.pack(VERSION, self.kind, self.commitment, self.length)

    @classmethod
    def decode(cls, data: bytes) -> BlobRequest:
        """The question in a frame.

        Raises:
            FrameError: The bytes are no question.

        """
        if len(data) != _REQUEST.size:
            raise FrameError(f"A blob request has {_REQUEST.size} bytes, not {len(data)}")
        version, kind, commitment, length = _REQUEST.unpack(data)
        if version != VERSION:
            raise FrameError(f"A blob request of version {version}, not {VERSION}")
        if kind not in CommitmentKind._value2member_map_:
            raise FrameError(f"A blob request for commitments of kind {kind}")
        if not 0 < length <= c.MAX_BLOB_BYTES:
            raise FrameError(f"A blob request for {length} bytes, not 1 to {c.MAX_BLOB_BYTES}")
        return cls(commitment=commitment, length=length, kind=CommitmentKind(kind))


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
    request_timeout_s: float = 2.0
    """Seconds for a question to arrive."""
    serve_timeout_s: float = 20.0
    """Seconds for an answer to be taken."""
    stall_s: float = 4.0
    """Seconds for 64 KiB of an answer to be taken, and for the stream to be ended after the last;
    below the 5 of the library's Yamux."""
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
        if self.stall_s >= 5:
            raise ConfigError(
                "stall_s is 5 seconds or more",
                where="BlobConfig",
                hint="choose less than 5; the library's Yamux waits no longer",
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
    busy: int = 0
    """Questions above a bound, answered so."""
    malformed: int = 0
    """Streams whose question could not be read, or did not come in time."""
    unfinished: int = 0
    """Answers that were not taken in time, or whose peer went away."""
    asked: int = 0
    """Questions to others."""
    fetched: int = 0
    """Blobs that others sent, of the length asked for; not yet compared with the commitment."""
    fetched_bytes: int = 0
    """Their bytes."""
    failed: int = 0
    """Questions to others that brought nothing."""
    broken: int = 0
    """Of those, answers that break the protocol."""


Held = Callable[[bytes, int], bytes | None]
"""Looks into the own store for a commitment, in a worker thread; whole blobs only."""


class BlobExchange:
    """Serves blobs to peers and asks peers for blobs, over one host.

    Args:
        host: A host that is running, or will be.
        held: Returns the blob of a commitment and length from the own store, or None; called in
            worker threads, may raise `LuxRelayError`.
        config: Bounds.
        clock: Monotonic seconds.

    """

    def __init__(
        self,
        host: RelayHost,
        held: Held,
        *,
        config: BlobConfig | None = None,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self.counters = BlobCounters()
        self._host = host
        self._held = held
        self._config = config = config or BlobConfig()
        self._clock = clock
        self._serving: Counter[PeerId] = Counter()
        self._asking = 0
        rate = Rate(config.peer_requests_per_s, config.peer_bytes_per_s)
        self._limits = RateLimiter(
            LimitConfig(peer=rate, burst_factor=config.burst_s, keys_max=config.peers_max)
        )
        self._lookups = trio.CapacityLimiter(config.lookups_max)

    async def run(self, *, task_status: ReadyReport[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; asking works without it."""
        self._host.handle(BLOBS, self._serve)
        try:
            task_status.started(None)
            await trio.sleep_forever()
        finally:
            self._host.unhandle(BLOBS)

    # Asking.

    async def ask(
        self, peer: PeerId, request: BlobRequest, *, timeout_s: float = 2.0
    ) -> tuple[BlobStatus, bytes]:
        """What a connected peer answers; the blob has the length asked for, or is empty.

        Whether it is the blob of its commitment is for the caller to check.

        Args:
            peer: Whom.
            request: For what.
            timeout_s: Seconds for all of it (P28).

        """
        counters = self.counters
        if self._asking >= self._config.asks_max:
            counters.failed += 1
            return BlobStatus.FAILED, b""
        counters.asked += 1
        self._asking += 1
        status, blob = BlobStatus.FAILED, b""
        try:
            with trio.move_on_after(timeout_s):
                status, blob = await self._ask(peer, request)
        finally:
            self._asking -= 1
        if status is BlobStatus.FOUND:
            counters.fetched += 1
            counters.fetched_bytes += len(blob)
        else:
            counters.failed += 1
            counters.broken += status is BlobStatus.BROKEN
        return status, blob

    async def _ask(self, peer: PeerId, request: BlobRequest) -> tuple[BlobStatus, bytes]:
        try:
            stream = await self._host.open_stream(peer, BLOBS)
        except NetError:
            return BlobStatus.FAILED, b""
        try:
            await stream.send_all(encode_frame(request.encode()))
            answer = await read_frame(stream, 1 + request.length)
        except trio.BrokenResourceError:
            return BlobStatus.FAILED, b""
        except FrameError:
            # A node of an earlier version ends the stream when it is asked for a sidecar.
            honest = request.kind is CommitmentKind.SIDECAR or not self._host.is_connected(peer)
            return (BlobStatus.FAILED if honest else BlobStatus.BROKEN), b""
        finally:
            await stream.reset()
        return _answer_of(answer, request)

    # Serving.

    async def _serve(self, stream: RelayStream) -> None:
        with self._place(stream.peer) as room:
            try:
                with trio.fail_after(self._config.request_timeout_s):
                    request = BlobRequest.decode(await read_frame(stream, _REQUEST.size))
            except (FrameError, trio.TooSlowError):
                self.counters.malformed += 1
                return
            if not room or not self._limits.admit_peer(stream.peer, request.length, self._clock()):
                self.counters.busy += 1
                await self._send(stream, bytes([BlobStatus.BUSY]))
                return
            await self._answer(stream, request)

    async def _answer(self, stream: RelayStream, request: BlobRequest) -> None:
        counters = self.counters
        try:
            blob = await trio.to_thread.run_sync(
                self._held, request.commitment, request.length, limiter=self._lookups
            )
        except LuxRelayError:  # our disk, not the peer's fault; others may hold it
            blob = None
        if blob is not None and request.fits(blob):
            self._limits.give_back_peer(stream.peer, request.length - len(blob))
        else:
            blob = None
        if blob is None:
            counters.unknown += 1
            self._limits.give_back_peer(stream.peer, request.length)
            await self._send(stream, bytes([BlobStatus.MISSING]))
        elif await self._send(stream, bytes([BlobStatus.FOUND]) + blob):
            counters.served += 1
            counters.served_bytes += len(blob)

    async def _send(self, stream: RelayStream, answer: bytes) -> bool:
        """Whether the peer has taken the answer and ended the stream, within its time."""
        frame = memoryview(encode_frame(answer))
        try:
            with trio.fail_after(self._config.serve_timeout_s):
                for start in range(0, len(frame), COALESCED_BYTES):
                    with trio.fail_after(self._config.stall_s):
                        await stream.send_all(frame[start : start + COALESCED_BYTES])
                await stream.send_eof()
                with trio.fail_after(self._config.stall_s):
                    await stream.receive_some(1)  # the end: the peer has taken it
        except (trio.TooSlowError, trio.BrokenResourceError):
            self.counters.unfinished += 1
            return False
        return True

    @contextmanager
    def _place(self, peer: PeerId) -> Iterator[bool]:
        """Whether there is room for one more question of this peer while it lasts."""
        serving, config = self._serving, self._config
        room = serving.total() < config.streams_max and serving[peer] < config.peer_streams_max
        if room:
            serving[peer] += 1
        try:
            yield room
        finally:
            if room:
                serving[peer] -= 1
            if not serving[peer]:
                del serving[peer]


def _answer_of(answer: bytes, request: BlobRequest) -> tuple[BlobStatus, bytes]:
    status, blob = answer[0], answer[1:]
    if status == BlobStatus.FOUND and request.fits(blob):
        return BlobStatus.FOUND, blob
    if status in {BlobStatus.MISSING, BlobStatus.BUSY} and not blob:
        return BlobStatus(status), b""
    return BlobStatus.BROKEN, b""
