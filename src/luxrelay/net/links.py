"""State and counters of one peer in the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from luxrelay.failures import EVERY_S
from luxrelay.gossip import GossipStats, PeerId
from luxrelay.net.account import Account
from luxrelay.net.addresses import peer_text
from luxrelay.net.bans import Ban
from luxrelay.net.exchange import ExchangeCounters
from luxrelay.net.finder import FinderCounters
from luxrelay.net.greeting import GreetingCounters
from luxrelay.net.hello import Hello
from luxrelay.net.host import HostStats
from luxrelay.net.peer_clocks import ClockOffset
from luxrelay.net.streams import PeerWriter, RelayStream

_LOGGER: Final = logging.getLogger("luxrelay.net")
LINES_MAX: Final = 60
"""Lines about peers in a minute."""
REMEMBERED_MAX: Final = 1024
"""Lost peers remembered, and lines; beyond it the oldest is forgotten."""
_PAUSE_S: Final = 0.05
"""Seconds between the first two times that a peer is greeted anew; half of go's shortest wait."""


@dataclass(slots=True, kw_only=True)
class LinkCounters:
    """Gossip traffic of one peer since its connection began."""

    frames_in: int = 0
    """RPCs received."""
    bytes_in: int = 0
    """Bytes of these."""
    frames_out: int = 0
    """RPCs sent."""
    bytes_out: int = 0
    """Bytes of these, with their length prefixes."""
    frame_errors: int = 0
    """Streams reset because their bytes were no frames."""
    queued_frames: int = 0
    """RPCs waiting to be sent now."""
    queued_bytes: int = 0
    """Bytes of these."""
    pending: int = 0
    """Messages waiting for a verdict now."""
    given_up: int = 0
    """RPCs of messages not sent to it because too much waited; it may ask for the messages."""


@dataclass(slots=True, kw_only=True)
class DriverCounters:
    """What the driver did since it was made."""

    frame_errors: int = 0
    """Streams reset because their bytes were no frames."""
    streams_refused: int = 0
    """Gossip streams reset because the peer had `gossip_streams_max` already."""
    streams_lost: int = 0
    """Gossip streams to a peer that broke while its connection lived, whoever reset them."""
    streams_cut: int = 0
    """Gossip streams of peers that ended inside a frame."""
    inbox_overflows: int = 0
    """Messages answered with IGNORE because `inbox_max` were waiting."""
    validate_errors: int = 0
    """Batches answered with IGNORE because `validate` failed."""
    batches: int = 0
    """Batches given to `validate`."""
    unsendable: int = 0
    """RPCs for peers without a stream, or whose queue was full."""
    dropped_stalled: int = 0
    """Peers dropped because they took nothing for `write_stall_s`."""
    dropped_overflow: int = 0
    """Peers dropped because too much control waited for them."""
    disconnects: int = 0
    """Peers dropped because the router said so."""
    delivered: int = 0
    """Accepted messages handed to `deliver`."""
    dials: int = 0
    """Peers reached."""
    dials_failed: int = 0
    """Peers not reached, tries."""


@dataclass(slots=True, kw_only=True)
class NewsCounters:
    """Records of new addresses on their way."""

    own: int = 0
    """Times our own addresses changed."""
    told: int = 0
    """Records sent to peers because their addresses are new, our own among them."""
    untold: int = 0
    """Peers not told: of an earlier version, gone, or silent."""
    followed: int = 0
    """Records of others that were newer and named other addresses."""
    refused: int = 0
    """Records that were not in order, old, of strangers, or too many of one bringer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetStats:
    """A snapshot of the driver, its host and its router."""

    host: HostStats
    """Connections and bytes on the wire."""
    router: GossipStats
    """The router's own counters."""
    greeting: GreetingCounters = field(default_factory=GreetingCounters)
    """What came of hello."""
    exchange: ExchangeCounters = field(default_factory=ExchangeCounters)
    """Peer records given and taken."""
    news: NewsCounters = field(default_factory=NewsCounters)
    """Records of new addresses."""
    finder: FinderCounters = field(default_factory=FinderCounters)
    """What the distributed hash table cost and brought."""
    clock: ClockOffset = field(default_factory=ClockOffset)
    """How far our wall clock is from those of the peers."""
    clock_offsets: dict[bytes, int] = field(default_factory=dict)
    """The same by peer that told its clock, milliseconds, positive when ours is ahead."""
    quiet_s: float | None = None
    """Seconds since the last byte of any peer; None without peers, now and in the configuration."""
    known_peers: int = 0
    """Peers in the address book now."""
    bans: dict[PeerId, Ban] = field(default_factory=dict)
    """Who is not let in now."""
    faults: dict[str, int] = field(default_factory=dict)
    """Failures that went no further than their stream, connection or round, by kind."""
    driver: DriverCounters
    """The driver's counters."""
    peers: dict[PeerId, LinkCounters]
    """Gossip traffic by peer."""


@dataclass(slots=True, eq=False)
class Link:
    """One connected peer, for as long as it is connected."""

    peer: PeerId
    """Its id."""
    counters: LinkCounters = field(default_factory=LinkCounters)
    """What it cost and brought."""
    hello: Hello | None = None
    """What it said of itself; None for a peer without hello."""
    writer: PeerWriter | None = None
    """The queue of our gossip stream to it, while there is one."""
    stream: RelayStream | None = None
    """That stream."""
    talking: trio.CancelScope | None = None
    """Cancelled to open our stream anew."""
    streams: int = 0
    """Its gossip streams to us."""
    pending: int = 0
    """Its messages waiting for a verdict."""
    account: Account | None = None
    """What its inbound connection cost; None when it is not charged."""
    pulls: bool = False
    """It fetches messages by catching up: what waited for it was given up (G41)."""
    closed: bool = False
    """The peer is gone or speaks no gossip; nobody waits any more."""
    met_at: float | None = None
    """When gossip with it began; None before."""
    readers: set[trio.CancelScope] = field(default_factory=set)
    """Tasks that read from it."""
    _moved: trio.Event = field(default_factory=trio.Event)
    _greeting_at: float = float("-inf")
    _pause_s: float = _PAUSE_S

    def notify(self) -> None:
        """Those who wait for this link look again."""
        self._moved.set()
        self._moved = trio.Event()

    def attach(self, stream: RelayStream, writer: PeerWriter, scope: trio.CancelScope) -> None:
        """There is a stream to the peer."""
        self.stream, self.writer, self.talking = stream, writer, scope
        self.notify()

    def came_back(self, stream: RelayStream) -> None:
        """Our stream is opened anew when the peer comes back over another connection.

        A peer that has restarted may be here again before its old connection is known to be dead;
        what we send there it never gets. Two peers that dial each other at once open one stream
        each, so that neither has come back.
        """
        if (
            self.streams
            and self.stream is not None
            and self.talking is not None
            and not self.stream.shares_connection(stream)
        ):
            self.talking.cancel()

    def greets_again(self, now: float) -> bool:
        """Whether a peer that opens a stream to us is greeted anew.

        go-libp2p-pubsub forgets what a peer follows when it gives up an older connection with it,
        and then opens its stream anew; whoever does so may have forgotten us. The pause between two
        greetings doubles, because a greeting costs more than a stream.
        """
        if now < self._greeting_at:
            return False
        self._greeting_at, self._pause_s = now + self._pause_s, 2 * self._pause_s
        return True

    async def wait_ready(self) -> bool:
        """Whether the router knows the peer; returns False once the peer is gone."""
        while self.writer is None and not self.closed:
            await self._moved.wait()
        return not self.closed

    async def wait_room(self, pending_max: int) -> None:
        """At most ``pending_max`` of its messages wait for a verdict, or the peer is gone."""
        while self.pending > pending_max and not self.closed:
            await self._moved.wait()

    def judged(self, count: int, accepted: int = 0) -> None:
        """So many of its messages have their verdict; so many of these were accepted."""
        if self.account is not None:
            self.account.judged(accepted, count - accepted)
        self.pending = max(0, self.pending - count)  # a peer that came back starts at zero
        self.notify()

    def detach(self) -> None:
        """The stream to the peer is over; its numbers are kept."""
        writer = self.writer
        if writer is not None:
            self.counters.frames_out += writer.frames_out
            self.counters.bytes_out += writer.bytes_out
            self.counters.given_up += writer.given_up
            self.writer = self.stream = self.talking = None
            self.notify()

    def close(self) -> None:
        """The peer is gone."""
        self.closed = True
        self.detach()
        self.notify()
        for scope in self.readers:
            scope.cancel()

    def snapshot(self) -> LinkCounters:
        """The counters as they are now, with what is under way."""
        counters, writer = self.counters, self.writer
        return LinkCounters(
            frames_in=counters.frames_in,
            bytes_in=counters.bytes_in,
            frames_out=counters.frames_out + (writer.frames_out if writer else 0),
            bytes_out=counters.bytes_out + (writer.bytes_out if writer else 0),
            frame_errors=counters.frame_errors,
            queued_frames=writer.queued_frames if writer else 0,
            queued_bytes=writer.queued_bytes if writer else 0,
            pending=self.pending,
            given_up=counters.given_up + (writer.given_up if writer else 0),
        )


class PeerLog:
    """Log lines of peers that are lost, come back, become slow and get well.

    A peer has one line of a kind a minute at most, with how many went unsaid since the last, and
    all peers together `LINES_MAX` a minute: peers cause these lines.

    Args:
        clock: Monotonic seconds.
        log: Writes a line.

    """

    def __init__(
        self,
        clock: Callable[[], float] = trio.current_time,
        log: Callable[[str, dict[str, object]], None] | None = None,
    ) -> None:
        self._clock = clock
        self._log = log or _write
        self._lost_at: dict[PeerId, float] = {}
        self._said: dict[tuple[str, PeerId], tuple[float, int]] = {}
        self._minute, self._lines = float("-inf"), 0

    def met(self, link: Link) -> None:
        """Gossip with the peer has begun; said when the peer was lost before."""
        if link.met_at is not None:
            return
        now = link.met_at = self._clock()
        lost_at = self._lost_at.pop(link.peer, None)
        if lost_at is not None:
            self._say("peer is back", link.peer, away_s=round(now - lost_at, 1))

    def lost(self, link: Link, reason: str) -> None:
        """The peer is gone; nothing is said of one with which there was no gossip."""
        if link.met_at is None:
            return
        now = self._clock()
        self._lost_at.pop(link.peer, None)
        self._lost_at[link.peer] = now
        if len(self._lost_at) > REMEMBERED_MAX:
            del self._lost_at[next(iter(self._lost_at))]
        self._say("peer lost", link.peer, reason=reason, connected_s=round(now - link.met_at, 1))

    def slow(self, link: Link, *, slow: bool) -> None:
        """The peer's link takes less than is offered, or takes it again."""
        snapshot = link.snapshot()
        self._say(
            "peer is slow" if slow else "peer is no longer slow",
            link.peer,
            queued_bytes=snapshot.queued_bytes,
            given_up=snapshot.given_up,
        )

    def own_link(self, *, pulls: bool, waits_s: float) -> None:
        """Our own link carries less than peers send us unasked, or carries it again."""
        what = "own link is slow: catching up" if pulls else "own link is no longer slow"
        self._log(what, {"packets_wait_s": round(waits_s, 2)})

    def _say(self, what: str, peer: PeerId, **fields: object) -> None:
        now, key = self._clock(), (what, peer)
        at, unsaid = self._said.pop(key, (float("-inf"), 0))
        if now - self._minute >= EVERY_S:
            self._minute, self._lines = now, 0
        if now - at < EVERY_S or self._lines >= LINES_MAX:
            self._said[key] = at, unsaid + 1
        else:
            self._lines += 1
            self._said[key] = now, 0
            self._log(what, {"peer": peer_text(peer), **fields, "unsaid": unsaid})
        if len(self._said) > REMEMBERED_MAX:
            del self._said[next(iter(self._said))]


def _write(what: str, fields: dict[str, object]) -> None:
    _LOGGER.info(what, extra={"fields": fields})
