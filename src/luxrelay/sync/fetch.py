"""`BlobFetch`: whom to ask for which part of a blob, and the end of the search.

Theory of operation
===================

*Decides*: which peer is asked for which blob, from which byte on, when another is asked beside it,
when a blob is given up and for how long nobody is asked again.

*Does not know*: stores, streams, clocks. Whoever drives it looks into its own store first, and
answers a peer's question from there alone: a question is never passed on, so an unknown commitment
costs each node of a network few questions (P28).

*Machines and their states*: a **wanted** blob has peers still to ask, parts that came (`BlobParts`)
and requests under way, of which one at most has begun. A **request** is over when it is silent for
too long (`Transfer`); the next peer is asked from the byte reached. A **link** is a peer with its
`LinkWindow`: of one peer so much is asked at once as its link carries in a few seconds, the oldest
wanted blob first, so that many blobs do not starve each other. A blob ends with `Delivered`, or
`GivenUp` when nobody is left to ask, and all who want it meanwhile share its end (coalescing). A
commitment given up is *absent* for a while; parts of it are kept for the next time.

*Inputs and what they may cause*: ``want`` asks the first peer. ``began`` ends the other requests of
that blob: both would bring the same over one line. ``came`` may fill the blob: it is delivered when
it matches, its only sender is blamed when not, and one of several senders is sought (P49).
``missing``, ``failed``, ``busy``, ``wrong`` and ``wake`` ask the next peer; ``later`` too, and the
one that said it is asked again when its time has come (P52). ``heard`` adds a peer that says to
have it. ``have`` ends a fetch that is no longer needed.

*Timers*: a request is over ``silence_s`` after its last byte, or, when another peer can be asked,
when it brought less than ``crawl_bytes_per_s``. Another peer is asked beside one that sent no byte
for ``hedge_s``, or `HEDGE_LATENCIES` of its usual time when that is longer, and not while that peer
brings bytes of another blob: a narrow link answers late, and is not slow for that.

*Bounds*: `FetchConfig`; each field names one.

*Deviations from the specification*: LP-6421 §5.2 asks one peer after the other without limits.

*What else to change when you change this*: ``rpc/blob_driver.py``, ``net/blobs.py``.

Source: LP-6421 §5.2; decisions P28, P46, P49; 21-37, 21-38.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Final

from luxrelay.bus import constants as c
from luxrelay.errors import SyncArgumentError
from luxrelay.sync.blob_parts import BlobParts
from luxrelay.sync.transfer import LinkWindow, Transfer, TransferConfig

HEDGE_LATENCIES: Final = 3.0
"""A first byte may take so many times as long as those of that peer usually take."""
BUSY_S: Final = 0.5
"""Pause before a busy peer is asked again, seconds; it doubles each time up to `BUSY_MAX_S`."""
BUSY_MAX_S: Final = 8.0
"""Longest such pause, seconds."""
LOOKS_MAX: Final = 256
"""Blobs that wait for room, of which one look at the links takes note; the oldest ones."""
LOOK_S: Final = 0.1
"""Shortest time between two looks at what waits for room on a link, seconds."""
LINKS: Final = TransferConfig(window_first=256 * 1024)
"""Windows of links: four seconds of half a megabit a second before anything was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    """How much is asked of how many; every number is positive."""

    parallel_max: int = 3
    """Peers asked for one blob at once, before the first byte of it came (P28)."""
    requests_max: int = 24
    """Requests under way at once, all blobs together."""
    silence_s: float = 15.0
    """A request that brings no byte for so long is over, seconds (P46)."""
    hedge_s: float = 1.5
    """Another peer is asked when no first byte came for so long, seconds."""
    crawl_bytes_per_s: float = 256.0
    """Whoever sends less, over ``silence_s``, is left for another peer if there is one."""
    absent_s: float = 30.0
    """A blob that nobody had is not asked for again for this long, seconds (P28)."""
    wanted_max: int = 4_096
    """Blobs wanted at once; further ones are refused."""
    absent_max: int = 4_096
    """Absent blobs remembered; the oldest is forgotten."""
    peers_max: int = 16
    """Peers asked for one blob altogether."""
    tries_max: int = 32
    """Requests to one peer for one blob: a link that is cut now and then is gone on with."""
    link_requests_max: int = 4
    """Requests to one peer at once; what a relay serves to one (`BlobConfig.peer_streams_max`)."""
    links_max: int = 256
    """Peers whose rate is remembered; the one unasked for longest is forgotten."""
    partial_bytes_max: int = 32 * 1024 * 1024
    """Bytes of blobs that have not come whole, their missing parts included."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise SyncArgumentError(f"{each.name} must be positive", where="FetchConfig")
        if self.partial_bytes_max < c.MAX_BLOB_BYTES:
            raise SyncArgumentError(
                "partial_bytes_max is below one blob of 2 MiB", where="FetchConfig"
            )
        if self.links_max <= self.requests_max:
            raise SyncArgumentError("links_max must be above requests_max", where="FetchConfig")


class WantedRange(IntEnum):
    """What came of wanting a blob."""

    ASKED = 0
    """It is being asked for; its end will be told."""
    SHARED = 1
    """It was being asked for already; its end will be told once."""
    ABSENT = 2
    """Nobody had it a moment ago; nothing will be told."""
    REFUSED = 3
    """Too many are wanted, or there is nobody to ask; nothing will be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskBlob:
    """Ask ``peer`` for ``count`` bytes of a blob, from ``offset`` on."""

    request: int
    """Names the request in the answer."""
    peer: str
    """Whom."""
    commitment: bytes
    """Which one."""
    length: int
    """Bytes it must have."""
    exact: bool = True
    """Whether it must have all of them; else it may have fewer, as a sidecar."""
    offset: int = 0
    """The first byte that is asked for."""
    count: int = 0
    """Bytes asked for; fewer when the blob ends before."""


@dataclass(frozen=True, slots=True)
class DropRequest:
    """Nobody waits for this answer any more; end it."""

    request: int
    """Which one."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The blob is here and matches its commitment."""

    commitment: bytes
    """Which one."""
    blob: bytes
    """Its bytes."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Nobody who was asked has the blob, or it is no longer needed."""

    commitment: bytes
    """Which one."""


@dataclass(frozen=True, slots=True)
class Blame:
    """A peer sent something that is not the blob."""

    peer: str
    """Who."""
    commitment: bytes
    """What it was asked for."""
    why: str
    """What was wrong."""


FetchAction = AskBlob | DropRequest | Delivered | GivenUp | Blame


@dataclass(slots=True)
class FetchTotals:
    """What fetches cost; they only grow."""

    bytes: int = 0
    """Bytes of blobs that came."""
    useful_bytes: int = 0
    """Of those, bytes of blobs that were delivered."""
    resumed: int = 0
    """Requests that went on where another had ended."""
    hedged: int = 0
    """Requests beside another for the same blob."""
    silent: int = 0
    """Requests that ended because nothing came."""
    put_off: int = 0
    """Requests that a peer put off, because it sent the blob to another (P52)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """A blob that is being fetched, for the status page."""

    commitment: bytes
    """Which one."""
    length: int
    """Bytes it has."""
    position: int
    """Bytes of it that came."""
    peers: tuple[str, ...]
    """Who is being asked."""


@dataclass(slots=True)
class _Blob:
    parts: BlobParts
    peers: list[str]
    """Still to be asked, the next one last."""
    requests: list[int] = field(default_factory=list)
    tries: dict[str, int] = field(default_factory=dict)
    later: dict[str, float] = field(default_factory=dict)
    """Links of peers that put the question off, until when, monotonic seconds."""
    running: bool = False
    """Whether a request of it has begun."""
    begun: bool = False
    """Whether its bytes are counted in the budget."""

    def is_put_off(self, now: float) -> bool:
        """Whether a peer wants to be asked later."""
        return any(until > now for until in self.later.values())


@dataclass(slots=True)
class _Request:
    commitment: bytes
    peer: str
    line: str
    """The link that it goes over: the peer's name then, or the other one that it had."""
    offset: int
    count: int
    transfer: Transfer
    asked_at: float
    hedge_at: float
    mark_at: float
    mark: int = 0

    @property
    def left(self) -> int:
        return max(0, self.count - self.transfer.position)


@dataclass(slots=True)
class _Link:
    window: LinkWindow
    requests: int = 0
    latency_s: float = 0.0
    """How long first bytes usually take, seconds."""
    came_at: float = float("-inf")
    blocked_until: float = float("-inf")
    refusals: int = 0


class BlobFetch:
    """Fetches blobs from peers; see the theory above.

    The driver's contract: feed inputs; after each, `drain` and do the actions in order; sleep until
    `wake_at`; `wake(now)`; never call the machine from inside one of its own actions.

    Args:
        matches: Whether bytes are the blob of a commitment; pure.
        config: Bounds.

    """

    def __init__(
        self, matches: Callable[[bytes, bytes], bool], config: FetchConfig | None = None
    ) -> None:
        self.totals = FetchTotals()
        """What the fetches cost."""
        self._same: Mapping[str, str] = {}
        self._matches = matches
        self._config = config or FetchConfig()
        self._blobs: dict[bytes, _Blob] = {}
        self._requests: dict[int, _Request] = {}
        self._links: OrderedDict[str, _Link] = OrderedDict()
        self._absent: OrderedDict[bytes, float] = OrderedDict()
        self._kept: OrderedDict[bytes, BlobParts] = OrderedDict()
        self._looked_at = float("-inf")
        self._waited: set[str] = set()
        """Peers on whose link an older blob waits for room."""
        self._next = 1
        self._actions: list[FetchAction] = []

    # Inputs

    def want(
        self,
        commitment: bytes,
        length: int,
        peers: Sequence[str],
        now: float,
        *,
        exact: bool = True,
        same: Mapping[str, str] | None = None,
    ) -> WantedRange:
        """Begin to fetch a blob.

        Args:
            commitment: 32 bytes.
            length: Bytes it must have, as its header says; 1 to 2 MiB.
            peers: Whom to ask, best first; each once.
            now: Monotonic seconds.
            exact: Whether it must have that length; else it has no more.
            same: Peers with two names: one to the other, which their link goes by from now on; as
                before when not given.

        """
        if len(commitment) != c.HASH_BYTES or not 0 < length <= c.MAX_BLOB_BYTES:
            raise SyncArgumentError(
                f"a blob of {length} bytes with a commitment of {len(commitment)}", where="want"
            )
        if same is not None:
            self._same = same
        if commitment in self._blobs:
            return WantedRange.SHARED
        if self._absent.get(commitment, now) > now:
            return WantedRange.ABSENT
        asked = list(dict.fromkeys(peers))[: self._config.peers_max]
        if not asked or len(self._blobs) >= self._config.wanted_max:
            return WantedRange.REFUSED
        self._absent.pop(commitment, None)
        parts = self._kept.pop(commitment, None)
        if parts is None or (parts.most, parts.exact) != (length, exact):
            parts = BlobParts(length, exact=exact)
        self._blobs[commitment] = blob = _Blob(parts, asked[::-1])
        self._ask_for(commitment, blob, now)
        return WantedRange.ASKED

    def heard(self, commitment: bytes, peers: Iterable[str], now: float) -> None:
        """Ask peers that say now to have a blob which is being fetched; also those that had not."""
        blob = self._blobs.get(commitment)
        if blob is None:
            return
        asked = {self._requests[each].peer for each in blob.requests}
        for peer in peers:
            if peer in asked or blob.tries.get(peer, 0) >= self._config.tries_max:
                continue
            blob.later.pop(self._line(peer), None)
            if peer in blob.peers:
                blob.peers.remove(peer)
            elif len({*blob.tries, *blob.peers, peer}) > 2 * self._config.peers_max:
                continue
            blob.peers.append(peer)
        self._ask(now)

    def have(self, commitment: bytes, now: float) -> None:
        """Fetch a blob no longer: it came another way."""
        self._kept.pop(commitment, None)
        if commitment in self._blobs:
            self._end(commitment, now)
            self._actions.append(GivenUp(commitment))
            self._ask(now)

    def began(self, request: int, total: int, now: float) -> None:
        """Take a peer's word that it has the blob and begins to send; of how many bytes in all."""
        asked = self._requests.get(request)
        if asked is None or asked.transfer.begun:
            return
        blob = self._blobs[asked.commitment]
        why = blob.parts.told(asked.peer, total)
        if why:
            self._actions.append(DropRequest(request))
            self.wrong(request, why, now)
            return
        if blob.parts.gap(asked.peer)[0] != asked.offset:  # it has another length than others said
            self._over(request, now)
            self._actions.append(DropRequest(request))
            blob.peers.append(asked.peer)
            self._ask(now)
            return
        for each in [each for each in blob.requests if each != request]:
            other = self._over(each, now)
            self._actions.append(DropRequest(each))
            self._again(blob, other.peer, first=True)
        link = self._links[asked.line]
        took_s = now - asked.asked_at
        link.latency_s = took_s if not link.latency_s else (link.latency_s + took_s) / 2
        link.came_at, link.refusals = now, 0
        count = min(asked.count, blob.parts.length - asked.offset)
        link.window.ended(asked.count - count, now)
        asked.count = count
        asked.transfer.begun, asked.transfer.due = True, now + self._config.silence_s
        asked.mark_at = now + self._config.silence_s
        blob.running = True
        blob.parts.begin(asked.peer, asked.offset)

    def came(self, request: int, data: bytes, now: float) -> None:
        """Keep bytes that a peer sent, after `began`."""
        asked = self._requests.get(request)
        self.totals.bytes += len(data)
        if asked is None or not asked.transfer.begun:
            return
        blob, link = self._blobs[asked.commitment], self._links[asked.line]
        if len(data) > asked.left:
            self._actions.append(DropRequest(request))
            self.wrong(request, "more bytes than it was asked for", now)
            return
        blob.parts.add(asked.peer, asked.offset + asked.transfer.position, data)
        asked.transfer.came(len(data), now)
        link.window.came(len(data), now)
        link.came_at = now
        if asked.left:
            if now - self._looked_at >= LOOK_S:
                self._ask(now)
            return
        self._over(request, now)
        if blob.parts.gap(asked.peer)[1]:
            blob.peers.append(asked.peer)  # it has to send another part of the same
        else:
            self._judge(asked, blob, now)
        self._ask(now)

    def missing(self, request: int, now: float) -> None:
        """Take a peer's word that it does not have the blob; or that it failed before a byte."""
        if request in self._requests:
            asked = self._over(request, now)
            if asked.transfer.position:
                blob = self._blobs[asked.commitment]
                # Of a doubted blob one peer sends all, before the next one begins.
                self._again(blob, asked.peer, first=blob.parts.doubted)
            self._ask(now)

    failed = missing
    """A request that ended early: who sent a part of it may be asked again, after the others."""

    def busy(self, request: int, now: float) -> None:
        """Take a peer's word that it has enough to do; it is asked again after a pause."""
        if request in self._requests:
            asked = self._over(request, now)
            link = self._links[asked.line]
            pause_s = min(BUSY_S * 2**link.refusals, BUSY_MAX_S)
            link.blocked_until, link.refusals = now + pause_s, min(link.refusals + 1, 16)
            self._again(self._blobs[asked.commitment], asked.peer)
            self._ask(now)

    def later(self, request: int, wait_s: float, now: float) -> None:
        """Take a peer's word that it sends the blob to another now; others are asked meanwhile."""
        if request in self._requests:
            asked = self._over(request, now)
            blob = self._blobs[asked.commitment]
            blob.later[asked.line] = now + wait_s
            self.totals.put_off += 1
            blob.tries[asked.peer] -= 1  # it holds the blob, and is asked as often as others
            self._again(blob, asked.peer)
            self._ask(now)

    def wrong(self, request: int, why: str, now: float) -> None:
        """Blame a peer for an answer that cannot be one."""
        if request in self._requests:
            asked = self._over(request, now)
            self._blame(asked.peer, asked.commitment, why)
            self._ask(now)

    def wake(self, now: float) -> None:
        """Do what was put off until now."""
        for number, each in list(self._requests.items()):
            blob = self._blobs[each.commitment]
            if each.transfer.late(now):
                self.totals.silent += 1
                self._drop(number, now, late=True)
            elif each.transfer.begun and each.mark_at <= now:
                brought = each.transfer.position - each.mark
                if brought < self._config.crawl_bytes_per_s * self._config.silence_s and blob.peers:
                    self._drop(number, now)
                each.mark, each.mark_at = each.transfer.position, now + self._config.silence_s
        self._ask(now)

    # Outputs

    def drain(self) -> list[FetchAction]:
        """Return the actions since the last call, in order."""
        actions, self._actions = self._actions, []
        return actions

    def wake_at(self) -> float | None:
        """Return when `wake` has something to do, monotonic seconds; None for never."""
        times = [
            min(each.transfer.due, each.mark_at) if each.transfer.begun else each.transfer.due
            for each in self._requests.values()
        ]
        if len(self._requests) < self._config.requests_max:
            times += filter(None, map(self._next_at, self._blobs.values()))
        return min(times, default=None)

    @property
    def wanted(self) -> int:
        """Blobs being fetched."""
        return len(self._blobs)

    @property
    def absent(self) -> int:
        """Blobs remembered as absent."""
        return len(self._absent)

    @property
    def partial_bytes(self) -> int:
        """Bytes of blobs that have not come whole, their missing parts included."""
        begun = sum(each.parts.bound for each in self._blobs.values() if each.begun)
        return begun + sum(each.bound for each in self._kept.values())

    @property
    def links(self) -> int:
        """Peers whose rate is remembered."""
        return len(self._links)

    def under_way(self, limit: int) -> list[UnderWay]:
        """Return the blobs that are being asked for, the oldest first."""
        found: list[UnderWay] = []
        for commitment, blob in self._blobs.items():
            if len(found) >= limit:
                break
            if blob.requests:
                found.append(
                    UnderWay(
                        commitment=commitment,
                        length=blob.parts.length,
                        position=blob.parts.held,
                        peers=tuple(self._requests[each].peer for each in blob.requests),
                    )
                )
        return found

    # Asking

    def _ask(self, now: float) -> None:
        """Ask where there is room, the oldest blob first; give up what has nobody left to ask."""
        self._looked_at = now
        self._waited.clear()
        waiting = 0
        # What is put off comes after what nobody was asked for: that may not be on its way yet.
        for commitment in sorted(self._blobs, key=lambda each: self._blobs[each].is_put_off(now)):
            blob = self._blobs[commitment]
            if not (blob.peers or blob.requests):
                self._give_up(commitment, now)
            elif not blob.running and waiting < LOOKS_MAX:
                self._ask_for(commitment, blob, now)
                waiting += not blob.requests

    def _ask_for(self, commitment: bytes, blob: _Blob, now: float) -> None:
        """Ask for a blob where there is room, unless enough are asked for it."""
        config = self._config
        full = len(blob.requests) >= config.parallel_max
        if full or not blob.peers or len(self._requests) >= config.requests_max:
            return
        if blob.requests and self._hedge_at(blob) > now:
            return
        peer = next((peer for peer in reversed(blob.peers) if self._takes(peer, blob, now)), "")
        if not peer or not (blob.begun or self._room_for(blob.parts.bound)):
            waits_at = [x for x in map(self._line, blob.peers) if blob.later.get(x, now) <= now]
            if waits_at and not blob.requests:
                self._waited.add(waits_at[-1])  # what is younger does not pass it there
            return
        blob.peers.remove(peer)
        blob.begun = True
        blob.tries[peer] = blob.tries.get(peer, 0) + 1
        self.totals.hedged += bool(blob.requests)
        self._begin(commitment, blob, peer, now)

    def _begin(self, commitment: bytes, blob: _Blob, peer: str, now: float) -> None:
        line = self._line(peer)
        link = self._links[line]
        offset, count = blob.parts.gap(peer)
        self.totals.resumed += bool(offset)
        silence_s = self._config.silence_s
        wait_s = max(self._config.hedge_s, HEDGE_LATENCIES * link.latency_s)
        request = _Request(
            commitment,
            peer,
            line,
            offset,
            count,
            Transfer(silence_s, now),
            asked_at=now,
            hedge_at=now + min(wait_s, silence_s),
            mark_at=now + silence_s,
        )
        link.requests += 1
        link.window.asked(count, now)
        self._requests[self._next] = request
        blob.requests.append(self._next)
        self._actions.append(
            AskBlob(
                request=self._next,
                peer=peer,
                commitment=commitment,
                length=blob.parts.most,
                exact=blob.parts.exact,
                offset=offset,
                count=count,
            )
        )
        self._next += 1

    def _takes(self, peer: str, blob: _Blob, now: float) -> bool:
        """Whether a peer's link has room for what is lacking of a blob."""
        link = self._link(peer)
        line = self._line(peer)
        if any(line == self._requests[each].line for each in blob.requests):
            return False
        if line in self._waited or max(link.blocked_until, blob.later.get(line, now)) > now:
            return False
        if link.requests >= self._config.link_requests_max:
            return False
        return not link.requests or link.window.room >= blob.parts.gap(peer)[1]

    def _link(self, peer: str) -> _Link:
        line = self._line(peer)
        link = self._links.get(line)
        if link is None:
            link = self._links[line] = _Link(LinkWindow(LINKS))
            if len(self._links) > self._config.links_max:
                idle = (name for name, each in self._links.items() if not each.requests)
                del self._links[next(idle)]
        self._links.move_to_end(line)
        return link

    def _line(self, peer: str) -> str:
        return self._same.get(peer, peer)

    def _hedge_at(self, blob: _Blob) -> float:
        """Return when another peer is asked beside those that were, monotonic seconds."""
        newest = self._requests[blob.requests[-1]]
        link = self._links[newest.line]
        if link.requests == 1:
            return newest.hedge_at
        return max(newest.hedge_at, link.came_at + self._config.hedge_s)

    def _next_at(self, blob: _Blob) -> float | None:
        """Return when somebody may be asked for a blob that no event tells; None for never."""
        if blob.running or not blob.peers or len(blob.requests) >= self._config.parallel_max:
            return None
        soon = self._looked_at + LOOK_S
        if blob.requests:
            return max(soon, self._hedge_at(blob))
        lines = list(map(self._line, blob.peers))
        later = [blob.later[each] for each in lines if each in blob.later]
        if len(later) == len(lines):
            return max(soon, min(later))
        links = filter(None, map(self._links.get, lines))
        blocked = [x.blocked_until for x in links if x.blocked_until > self._looked_at]
        if not self._requests:
            blocked.append(max(soon, min(blocked, default=soon)))
        return min(blocked, default=None)

    def _room_for(self, size: int) -> bool:
        """Whether the budget lets another blob begin; what is kept of others gives way."""
        over = self.partial_bytes + size - self._config.partial_bytes_max
        while over > 0 and self._kept:
            over -= self._kept.popitem(last=False)[1].bound
        return over <= 0

    # Ends

    def _judge(self, asked: _Request, blob: _Blob, now: float) -> None:
        """Deliver a blob that came whole, or find out who sent something else."""
        whole = blob.parts.whole(asked.peer)
        if self._matches(asked.commitment, whole):
            for peer in blob.parts.liars(whole):
                self._blame(peer, asked.commitment, "other bytes in its part of the blob")
            self.totals.useful_bytes += len(whole)
            self._end(asked.commitment, now)
            self._actions.append(Delivered(asked.commitment, whole))
            return
        senders = blob.parts.senders(asked.peer)
        if len(senders) == 1:
            self._blame(senders[0], asked.commitment, "other bytes than the commitment says")
            return
        blob.parts.doubt()
        others = [each for each in blob.peers if each not in senders]
        # Who sent most of it has least to send; whoever lied costs one more fetch at most.
        blob.peers = [*others, *sorted(senders, key=lambda p: -blob.parts.gap(p)[1])]

    def _blame(self, peer: str, commitment: bytes, why: str) -> None:
        blob = self._blobs[commitment]
        blob.parts.forget(peer)
        blob.tries[peer] = self._config.tries_max
        if peer in blob.peers:
            blob.peers.remove(peer)
        self._actions.append(Blame(peer, commitment, why))

    def _drop(self, number: int, now: float, *, late: bool = False) -> None:
        """End a request that brings too little; who sent a part is asked again later."""
        asked = self._over(number, now, late=late)
        self._actions.append(DropRequest(number))
        if asked.transfer.position:
            self._again(self._blobs[asked.commitment], asked.peer)

    def _again(self, blob: _Blob, peer: str, *, first: bool = False) -> None:
        if blob.tries.get(peer, 0) < self._config.tries_max and peer not in blob.peers:
            blob.peers.insert(len(blob.peers) if first else 0, peer)

    def _over(self, number: int, now: float, *, late: bool = False) -> _Request:
        """Forget a request."""
        asked = self._requests.pop(number)
        blob, link = self._blobs[asked.commitment], self._links[asked.line]
        blob.requests.remove(number)
        blob.running = blob.running and not asked.transfer.begun
        link.requests -= 1
        link.window.ended(asked.left, now, late=late)
        return asked

    def _give_up(self, commitment: bytes, now: float) -> None:
        parts = self._blobs[commitment].parts
        self._end(commitment, now)
        if parts.held and not parts.doubted and self._room_for(parts.bound):
            self._kept[commitment] = parts
        self._absent[commitment] = now + self._config.absent_s
        if len(self._absent) > self._config.absent_max:
            self._absent.popitem(last=False)
        self._actions.append(GivenUp(commitment))

    def _end(self, commitment: bytes, now: float) -> None:
        for number in list(self._blobs[commitment].requests):
            self._over(number, now)
            self._actions.append(DropRequest(number))
        del self._blobs[commitment]
