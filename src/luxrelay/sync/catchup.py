"""`CatchUp`: from "I was away" to "I am complete", as a machine without I/O.

Theory of operation
===================

*Decides*: which peer is asked for which sequences of which namespace, when a hole is asked for
elsewhere, when it is given up, when a peer is not asked again, and when the whole is done.

*Does not know*: sockets, clocks, the store, signatures. It is told what a peer listed, what a page
held and what the sink made of it.

*Machines and their states*: a **peer** is to be listed, listing, listed, or given up. A **lane**
(one namespace) is ready (waits for a peer), asked (one page under way, never two), stuck (what is
missing has been asked of everybody who claims it) or done (nothing missing). The **round** lists
every peer once; a round that brought something is followed by another, because messages have been
published meanwhile (P24).

*Inputs and what they may cause*: ``start`` asks for heads. ``heads_received`` opens lanes in which
a peer is ahead, and pages. ``page_stored`` closes or splits holes, and causes the next page or a
``SkipTo``. ``failed`` sends a lane to another peer. ``wake`` repeats what was put off. Any of them
may cause ``Finished``, once.

*A hole's life*: missing sequences begin as one hole from our contiguous head to the highest
sequence anybody reports. A page covers the asked range up to its last message, or all of it when
the relay has no more. What a covered range did not bring stays a hole and remembers whom it was
asked of (P25). The lowest hole is given up when every peer that lists the namespace has forgotten
it, or claims it and did not deliver it while another has forgotten it; and only below a sequence
that we hold: a valid message above is the evidence that a peer cannot invent. A peer's word alone
never moves our head.

*Calls*: pages of many namespaces go out in one call, as large as the peer's link is fast
(`PageCalls`). What a call did not come to is asked for again; what came before it was cut is
stored, and the lane goes on behind it.

*Timers*: one pause for each peer after a failure, doubled each time.

*Bounds*: `CatchUpConfig`; each field names one.

*Deviations from the specification*: LP-6421 §2.3 asks one peer for one page and takes its last
sequence as the new head. Here pages go on to the head (P24), the head moves contiguously (P25) and
several peers take part (P26). Heads are compared, digests of ranges are not.

*What else to change when you change this*: ``rpc/catchup_driver.py`` (one branch an action),
``tests/property/test_catchup.py`` (the lies it must survive).

Source: LP-6421 §2.3; decisions P24, P25, P26, P46, P47, J6; 21-25 to 21-28.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from luxrelay.bus.header import NamespaceId
from luxrelay.errors import SyncArgumentError
from luxrelay.sync.actions import Action, AskHeads, AskPage, Fault, Finished, SkipTo
from luxrelay.sync.heads import PeerHead, SeqRange, disagreements, overlap
from luxrelay.sync.lanes import Hole, LaneRecord, PageRequest
from luxrelay.sync.messages import SyncStatus
from luxrelay.sync.page_calls import PageCalls
from luxrelay.sync.params import CatchUpConfig
from luxrelay.sync.peers import PeerRecord
from luxrelay.sync.postponed import Spans
from luxrelay.sync.report import AcceptResult, CatchUpProgress, CatchUpReport, Outcome
from luxrelay.sync.transfer import LinkWindow

_USUAL_BYTES: Final = 4_096
"""What a message has when the peer does not say what its messages have."""
_UNREACHABLE: Final = "unreachable"
_REFUSED: Final = "its answers cannot be used"
_LYING: Final = "it sent too many invalid messages"


class _Found(Enum):
    """What looking for a page for a lane came to."""

    ASKED = 0
    WAIT = 1
    NOBODY = 2


@dataclass(frozen=True, slots=True)
class _Request:
    """A listing under way, or with a lane a page."""

    peer: PeerRecord
    lane: LaneRecord | None = None
    page: PageRequest | None = None
    call: int = 0


class CatchUp:
    """Brings one node level with its peers.

    The driver's contract: feed inputs; after each, `drain` and do the actions in order; sleep
    until `wake_at`; `wake(now)`; never call the machine from inside one of its own actions.

    Args:
        peers: Names of the peers, best first.
        parent: Catch up this namespace and its lanes; None for every namespace.
        windows: What is known of the links to peers, by name; it is kept up to date.
        postponed: What each peer is not asked for, by name (G36).
        config: Bounds.

    Raises:
        SyncArgumentError: more peers than ``peers_max``, or one twice.

    """

    def __init__(
        self,
        peers: Sequence[str],
        *,
        parent: NamespaceId | None = None,
        windows: Mapping[str, LinkWindow] | None = None,
        postponed: Mapping[str, Spans] | None = None,
        config: CatchUpConfig | None = None,
    ) -> None:
        self._config = config or CatchUpConfig()
        if len(peers) > self._config.peers_max or len(set(peers)) != len(peers):
            raise SyncArgumentError(
                f"{len(peers)} peers, or one of them twice",
                where="CatchUp.peers",
                hint=f"name each once, {self._config.peers_max} at most",
            )
        self._parent = parent
        known = windows or {}
        self._peers = [
            PeerRecord(name, 1 << index, known.get(name) or LinkWindow(self._config.transfer))
            for index, name in enumerate(peers)
        ]
        self._postponed = postponed or {}
        self._calls = PageCalls(self._config)
        self._own: dict[NamespaceId, PeerHead] = {}
        self._gaps: Mapping[NamespaceId, Sequence[SeqRange]] = {}
        self._lanes: dict[NamespaceId, LaneRecord] = {}
        self._ready: deque[LaneRecord] = deque()
        self._stuck: list[LaneRecord] = []
        self._requests: dict[int, _Request] = {}
        self._next_request = 1
        self._actions: list[Action] = []
        self._round = 0
        self._gained = False
        self._unlisted = 0
        self._skipped: list[tuple[NamespaceId, SeqRange]] = []
        self._skipped_messages = 0
        self._finished = False
        self._cancelled = False
        self._started_at = 0.0
        self._now = 0.0

    # Inputs

    def start(
        self, own: Iterable[PeerHead], gaps: Mapping[NamespaceId, Sequence[SeqRange]], now: float
    ) -> None:
        """Begin from what we hold.

        Args:
            own: Our heads of the namespaces concerned.
            gaps: For each of them with a hole, its missing ranges above the contiguous head.
            now: Monotonic seconds.

        """
        self._own = {head.namespace_id: head for head in own}
        self._gaps = gaps
        self._started_at = now
        for namespace_id in gaps:
            self._open(namespace_id, None)
        self._begin_round()
        self._advance(now)

    def heads_received(self, request: int, heads: Iterable[PeerHead], now: float) -> None:
        """Take a peer's listing: lanes in which it is ahead are opened or extended."""
        asked = self._requests.pop(request, None)
        if asked is None or self._finished:
            return
        peer = asked.peer
        peer.listing, peer.listed, peer.strikes = False, True, 0
        peer.heads = {}
        for head in heads:
            if len(peer.heads) == self._config.heads_max:
                self._unlisted += 1
                break
            if not head.plausible or (self._parent is not None and head.parent_id != self._parent):
                peer.unusable += 1
                continue
            peer.heads[head.namespace_id] = head
            self._extend(head)
        self._revive()
        self._advance(now)

    def page_stored(
        self,
        request: int,
        seqs: Sequence[int],
        status: SyncStatus,
        result: AcceptResult,
        now: float,
    ) -> None:
        """Take what a page brought and what the sink made of it.

        Args:
            request: The `AskPage` it answers.
            seqs: Sequences of its messages, ascending.
            status: How the page ended.
            result: What the sink made of them.
            now: Monotonic seconds.

        """
        asked = self._requests.pop(request, None)
        if asked is None or asked.lane is None or asked.page is None or self._finished:
            return
        lane, peer = asked.lane, asked.peer
        cut = status.has_more and not status.next_cursor
        self._returned(asked, now, late=cut)
        peer.count(result)
        peer.cut += cut
        self._gained = self._gained or Outcome.STORED in result.outcomes
        if status.has_more and status.last_seq < asked.page.span.first:
            self._unusable(asked, now)  # a page that promises more and does not move on
        else:
            peer.strikes = 0
            lane.settle(asked.page, seqs, result.outcomes, status)
        lane.reached(result.contiguous_seq)
        if peer.rejected > self._config.rejected_max:
            self._give_up(peer, _LYING)
        self._queue(lane)
        self._advance(now)

    def failed(self, request: int, fault: Fault, now: float) -> None:
        """Take a request that brought nothing; another peer or a later moment may do better."""
        asked = self._requests.pop(request, None)
        if asked is None or self._finished:
            return
        peer = asked.peer
        if asked.lane is None:
            peer.listing = False
            if fault is Fault.UNUSABLE:
                peer.unusable += 1
                self._give_up(peer, _REFUSED)
            else:
                self._unreachable(peer, now)
        else:
            self._returned(asked, now, late=fault is Fault.UNREACHABLE)
            if fault is Fault.UNUSABLE:
                self._unusable(asked, now)
            else:
                self._unreachable(peer, now)
            self._queue(asked.lane)
        self._advance(now)

    def came(self, request: int, size: int, now: float) -> None:
        """Take note that so many bytes of the call of a page arrived."""
        asked = self._requests.get(request)
        if asked is not None and asked.call:
            self._calls.came(asked.call, size, now)

    def passed_over(self, request: int, now: float) -> None:
        """Take back a page that its call did not come to: the call was full before."""
        asked = self._requests.pop(request, None)
        if asked is None or asked.lane is None or self._finished:
            return
        asked.peer.strikes = 0  # it has answered
        self._returned(asked, now)
        self._queue(asked.lane)
        self._advance(now)

    def wake(self, now: float) -> None:
        """Do what was put off until now."""
        self._advance(now)

    def cancel(self, now: float) -> None:
        """End early; what was stored stays, and a later run goes on from there."""
        if not self._finished:
            self._now = max(self._now, now)
            self._cancelled = True
            self._finish()

    # Outputs

    def drain(self) -> list[Action]:
        """Return the actions since the last call, in order."""
        actions, self._actions = self._actions, []
        return actions

    def wake_at(self) -> float | None:
        """Return when `wake` has something to do, monotonic seconds; None for never."""
        if self._finished:
            return None
        waiting = [
            peer.retry_at
            for peer in self._peers
            if not peer.given_up
            and peer.retry_at > self._now
            and (self._ready if peer.listed else not peer.listing)
        ]
        return min(waiting, default=None)

    @property
    def finished(self) -> bool:
        """True when nothing more will be asked."""
        return self._finished

    def progress(self) -> CatchUpProgress:
        """Return how far it has come; costs one pass over the namespaces concerned."""
        return CatchUpProgress(
            round=self._round,
            pages=sum(peer.pages for peer in self._peers),
            received=sum(peer.received for peer in self._peers),
            stored=sum(peer.stored for peer in self._peers),
            rejected=sum(peer.rejected for peer in self._peers),
            namespaces=len(self._lanes),
            namespaces_done=self._done(),
            outstanding=len(self._requests),
        )

    def report(self) -> CatchUpReport:
        """Return how it ended, or how it stands."""
        limit = self._config.holes_listed
        left = [
            (lane.namespace_id, hole.span) for lane in self._lanes.values() for hole in lane.holes
        ]
        dropped = sum(lane.holes.dropped for lane in self._lanes.values())
        unlisted = max(0, len(left) - limit) + dropped + self._unlisted
        answered = any(peer.listed and not peer.given_up for peer in self._peers)
        done = self._done()
        return CatchUpReport(
            complete=answered and not self._cancelled and not unlisted and done == len(self._lanes),
            cancelled=self._cancelled,
            rounds=self._round,
            namespaces=len(self._lanes),
            namespaces_done=done,
            holes_left=tuple(left[:limit]),
            holes_unlisted=unlisted,
            skipped=tuple(self._skipped),
            skipped_messages=self._skipped_messages,
            disagreements=self._disagreements(),
            peers=tuple(peer.report() for peer in self._peers),
            seconds=self._now - self._started_at,
        )

    # Lanes

    def _extend(self, head: PeerHead) -> None:
        """Open or lengthen the lane of a namespace in which a peer is ahead of us."""
        if head.reach is None:
            return
        lane = self._lanes.get(head.namespace_id) or self._open(head.namespace_id, head)
        if lane is not None:
            lane.extend(head.latest_seq)
            self._put_off(lane)
            self._queue(lane)

    def _put_off(self, lane: LaneRecord) -> None:
        for peer in self._peers if self._postponed else ():
            spans = self._postponed.get(peer.name, {}).get(lane.namespace_id, ())
            lane.put_off(spans, peer)

    def _open(self, namespace_id: NamespaceId, theirs: PeerHead | None) -> LaneRecord | None:
        lane = LaneRecord.open(
            self._own.get(namespace_id),
            self._gaps.get(namespace_id, ()),
            theirs,
            self._config.holes_max,
        )
        if lane is not None and len(self._lanes) == self._config.lanes_max:
            self._unlisted += 1
            return None
        if lane is not None:
            self._lanes[namespace_id] = lane
            self._put_off(lane)
        return lane

    def _queue(self, lane: LaneRecord) -> None:
        if lane.holes and not (lane.asked or lane.queued):
            lane.queued = True
            self._ready.append(lane)

    def _revive(self) -> None:
        """Look at stuck lanes again: a peer has listed, or one has been given up."""
        stuck, self._stuck = self._stuck, []
        for lane in stuck:
            self._queue(lane)

    def _skip(self, lane: LaneRecord) -> None:
        """Give up what nobody has any more, and have it recorded."""
        for gone in lane.skip(self._peers, self._config.skip_peers_min):
            self._actions.append(
                SkipTo(namespace_id=lane.namespace_id, parent=lane.parent, seq=gone.last)
            )
            self._skipped_messages += gone.size
            if len(self._skipped) < self._config.holes_listed:
                self._skipped.append((lane.namespace_id, gone))

    # Requests

    def _begin_round(self) -> None:
        self._round += 1
        self._gained = False
        for peer in self._peers:
            peer.listed = False

    def _advance(self, now: float) -> None:
        """Ask whatever can be asked now; finish when nothing is left to ask."""
        self._now = max(self._now, now)
        while not self._finished:
            self._ask_heads()
            self._fill()
            if self._requests or self._ready or not all(peer.settled for peer in self._peers):
                return
            anybody = any(not peer.given_up for peer in self._peers)
            if not (self._gained and anybody and self._round < self._config.rounds_max):
                self._finish()
                return
            self._begin_round()

    def _finish(self) -> None:
        self._finished = True
        self._ready.clear()
        self._requests.clear()
        self._calls.drop(self._now)
        self._actions.append(Finished())

    def _ask_heads(self) -> None:
        for peer in self._peers:
            if peer.settled or peer.listing or peer.retry_at > self._now:
                continue
            peer.listing = True
            request = self._register(_Request(peer))
            self._actions.append(AskHeads(request=request, peer=peer.name, parent=self._parent))

    def _fill(self) -> None:
        """Give pages to lanes in turn until every place is taken or nobody can serve."""
        untried, in_vain = len(self._ready), 0
        self._calls.close_all()
        while untried and not self._calls.full:
            if in_vain >= self._config.scan_max and self._calls:
                return  # an answer will come, and with it another look
            lane = self._ready.popleft()
            lane.queued = False
            untried -= 1
            found = self._find(lane)
            in_vain = 0 if found is _Found.ASKED else in_vain + 1
            if found is _Found.WAIT:
                self._queue(lane)
            elif found is _Found.NOBODY and lane.holes:
                self._stuck.append(lane)

    def _find(self, lane: LaneRecord) -> _Found:
        """Ask for the lowest hole that somebody can serve now."""
        self._skip(lane)
        found = _Found.NOBODY
        for index, hole in enumerate(lane.holes):
            best: PeerRecord | None = None
            for peer in self._peers:
                if peer.given_up or not peer.listed or hole.tried & peer.bit:
                    continue
                head = peer.heads.get(lane.namespace_id)
                if head is None or head.reach is None or overlap(hole.span, head.reach) is None:
                    continue
                size = self._expected(peer, head, hole)
                if not peer.ready(self._now) or not self._calls.takes(peer, *size):
                    found = _Found.WAIT
                elif best is None or self._rank(lane, peer) < self._rank(lane, best):
                    best = peer
            if best is not None:
                self._ask_page(lane, index, best)
                return _Found.ASKED
        return found

    def _rank(self, lane: LaneRecord, peer: PeerRecord) -> tuple[bool, int, int, int]:
        """Order of preference: who has begun, who is reliable, who is free, who was named first."""
        begun = lane.resume is not None and lane.resume.peer is peer
        return (not begun, peer.strikes, peer.window.under_way, peer.bit)

    def _expected(self, peer: PeerRecord, head: PeerHead, hole: Hole) -> tuple[int, int]:
        """Return how many messages and bytes a page of a hole may bring, by the peer's word."""
        each = _each(head)
        rows = min(hole.span.size, self._calls.page_rows(peer, each))
        return rows, min(rows * each, self._calls.page_bytes(peer))

    def _ask_page(self, lane: LaneRecord, index: int, peer: PeerRecord) -> None:
        head = peer.heads[lane.namespace_id]
        size = self._expected(peer, head, lane.holes[index])
        page = lane.request(index, peer, self._config.join_max)
        call = self._calls.ask(peer, *size, self._now)
        self._actions.append(
            AskPage(
                request=self._register(_Request(peer, lane, page, call.number)),
                peer=peer.name,
                namespace_id=lane.namespace_id,
                parent=page.parent,
                from_seq=page.from_seq,
                to_seq=page.span.last,
                cursor=page.cursor,
                max_messages=self._calls.page_rows(peer, _each(head)),
                max_bytes=self._calls.page_bytes(peer),
                call=call.number,
                max_frame_bytes=peer.window.frame_bytes,
                max_blob_bytes=peer.window.blob_bytes,
            )
        )

    def _register(self, request: _Request) -> int:
        number = self._next_request
        self._next_request += 1
        self._requests[number] = request
        return number

    def _returned(self, asked: _Request, now: float, *, late: bool = False) -> None:
        assert asked.lane is not None
        asked.lane.asked = False
        self._calls.over(asked.call, now, late=late)

    # Peers

    def _unusable(self, asked: _Request, now: float) -> None:
        """Do not ask this peer for the same again; after a few such answers, for nothing."""
        assert asked.lane is not None
        assert asked.page is not None
        asked.peer.unusable += 1
        asked.lane.holes.settle(asked.page.span, (), asked.peer.bit)
        self._strike(asked.peer, now, _REFUSED)

    def _unreachable(self, peer: PeerRecord, now: float) -> None:
        peer.failures += 1
        self._strike(peer, now, _UNREACHABLE)

    def _strike(self, peer: PeerRecord, now: float, reason: str) -> None:
        """Count a failure; pages lost with one connection are one failure."""
        if now < peer.retry_at:
            return
        peer.failed(now, self._config.backoff_s, self._config.backoff_max_s)
        if peer.strikes >= self._config.failures_max:
            self._give_up(peer, reason)

    def _give_up(self, peer: PeerRecord, reason: str) -> None:
        if not peer.given_up:
            peer.given_up = reason
            self._revive()

    def _done(self) -> int:
        return sum(lane.done for lane in self._lanes.values())

    def _disagreements(self) -> int:
        """Return in how many namespaces two peers name one latest sequence differently (P26)."""
        seen: dict[NamespaceId, dict[str, PeerHead]] = {}
        for peer in self._peers:
            for namespace_id, head in peer.heads.items():
                seen.setdefault(namespace_id, {})[peer.name] = head
        return sum(bool(disagreements(heads)) for heads in seen.values() if len(heads) > 1)


def _each(head: PeerHead) -> int:
    """Return the bytes of a message, by a peer's word of all it holds."""
    return max(1, head.size_bytes // head.messages) if head.messages else _USUAL_BYTES
