"""`LaneRecord`: one namespace in which something is missing; a child machine of `CatchUp`.

It knows its holes, its heads and what was promised about it. It does not choose peers.

`HoleList`: what is missing in one namespace, and who has been asked for it in vain.

Peers are bits of an integer, so that a hole and its history are three numbers.

Source: 21-26; P25: holes are tracked and asked for again from other peers; decisions P24, P25.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from luxrelay.bus.header import NamespaceId
from luxrelay.sync.heads import PeerHead, SeqRange, missing_up_to, overlap
from luxrelay.sync.messages import SyncStatus
from luxrelay.sync.peers import PeerRecord
from luxrelay.sync.report import Outcome


class Hole(NamedTuple):
    """Missing sequences that share one history."""

    first: int
    """Lowest missing sequence."""
    last: int
    """Highest missing sequence."""
    tried: int
    """Bit *i* is set when peer *i* was asked and did not deliver."""

    @property
    def span(self) -> SeqRange:
        """The sequences alone."""
        return SeqRange(self.first, self.last)


class HoleList:
    """Ascending, disjoint holes, at most ``holes_max`` of them.

    When there would be more, the highest ones are forgotten and counted in `dropped`; the next
    catch-up finds them again, because the store still knows that they are missing.
    """

    __slots__ = ("_holes", "_max", "dropped")

    def __init__(self, holes_max: int) -> None:
        self._holes: list[Hole] = []
        self._max = holes_max
        self.dropped = 0

    def __iter__(self) -> Iterator[Hole]:
        return iter(self._holes)

    def __len__(self) -> int:
        return len(self._holes)

    def __getitem__(self, index: int) -> Hole:
        return self._holes[index]

    def add(self, spans: Iterable[SeqRange]) -> None:
        """Append ascending spans above everything held so far, untried."""
        self._keep(self._holes + [Hole(span.first, span.last, 0) for span in spans])

    def remove(self, span: SeqRange) -> None:
        """Forget what lies in ``span``: it is held now, or gone everywhere."""
        if self._holes and self._holes[0].first <= span.last:
            self.settle(span, [span], 0)

    def settle(self, covered: SeqRange, delivered: Sequence[SeqRange], bit: int) -> None:
        """Take the answer of one peer into account.

        Args:
            covered: What the answer speaks about.
            delivered: What it brought, ascending; gone from the holes afterwards.
            bit: The peer; set on whatever of ``covered`` is still missing.

        """
        holes: list[Hole] = []
        start = 0  # both lists ascend, so what ends before a hole is passed over once
        for hole in self._holes:
            inside = overlap(hole.span, covered)
            if inside is None:
                holes.append(hole)
                continue
            if hole.first < inside.first:
                holes.append(Hole(hole.first, inside.first - 1, hole.tried))
            while start < len(delivered) and delivered[start].last < inside.first:
                start += 1
            expected = inside.first
            for index in range(start, len(delivered)):
                span = delivered[index]
                if span.first > inside.last:
                    break
                if span.first > expected:
                    holes.append(Hole(expected, span.first - 1, hole.tried | bit))
                expected = span.last + 1
            if expected <= inside.last:
                holes.append(Hole(expected, inside.last, hole.tried | bit))
            if hole.last > inside.last:
                holes.append(Hole(inside.last + 1, hole.last, hole.tried))
        self._keep(holes)

    def mark(self, spans: Sequence[SeqRange], bit: int) -> bool:
        """Note that a peer is not to be asked for what of the holes lies in ascending spans.

        One pass over both, however many there are; False when nothing does.
        """
        holes: list[Hole] = []
        at, marked = 0, False
        for hole in self._holes:
            while at < len(spans) and spans[at].last < hole.first:
                at += 1
            first, index = hole.first, at
            while index < len(spans) and spans[index].first <= hole.last:
                begin = max(first, spans[index].first)
                end = min(hole.last, spans[index].last)
                if begin > first:
                    holes.append(Hole(first, begin - 1, hole.tried))
                holes.append(Hole(begin, end, hole.tried | bit))
                first, index, marked = end + 1, index + 1, True
            if first <= hole.last:
                holes.append(Hole(first, hole.last, hole.tried))
        self._keep(holes)
        return marked

    def _keep(self, holes: list[Hole]) -> None:
        merged: list[Hole] = []
        for hole in holes:
            before = merged[-1] if merged else None
            if before and before.last + 1 == hole.first and before.tried == hole.tried:
                merged[-1] = Hole(before.first, hole.last, hole.tried)
            else:
                merged.append(hole)
        self.dropped += max(0, len(merged) - self._max)
        self._holes = merged[: self._max]


def spans_of(seqs: Iterable[int]) -> list[SeqRange]:
    """Return ascending sequences, repeats allowed, as ranges."""
    spans: list[SeqRange] = []
    for seq in seqs:
        if spans and seq <= spans[-1].last + 1:
            spans[-1] = SeqRange(spans[-1].first, max(seq, spans[-1].last))
        else:
            spans.append(SeqRange(seq, seq))
    return spans


@dataclass(slots=True)
class Resume:
    """A page that ended early: how to go on at the same peer."""

    peer: PeerRecord
    """Who sent it."""
    cursor: bytes
    """Where it ended."""
    from_seq: int
    """Lower bound of the range it belongs to, exclusive."""
    to_seq: int
    """Upper bound of that range."""
    first: int
    """Sequence after its last message."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A page under way: at whom, for what."""

    peer: PeerRecord
    """Who is asked."""
    parent: NamespaceId
    """The parent that peer reports."""
    span: SeqRange
    """The sequences the answer will speak about."""
    from_seq: int
    """Lower bound as asked, exclusive; below ``span`` when a range is resumed."""
    cursor: bytes
    """Where to resume; empty at the beginning of a range."""


@dataclass(slots=True)
class LaneRecord:
    """One namespace; mutable, owned by the machine."""

    namespace_id: NamespaceId
    """The namespace."""
    parent: NamespaceId
    """Its parent, as we or the peer that first proved a message know it."""
    holes: HoleList
    """What is missing."""
    contiguous: int
    """Our contiguous head."""
    target: int
    """Highest sequence anybody reports."""
    proven: int
    """Highest sequence of a valid message, ours or received."""
    asked: bool = False
    """A page is under way."""
    queued: bool = False
    """It waits for a peer."""
    unkept: bool = False
    """A valid message was not kept: nothing may be skipped over it."""
    held_back: bool = False
    """A peer is not asked for what it has: nothing may be skipped over that either."""
    resume: Resume | None = None
    """How to go on with a range that is not finished."""

    @classmethod
    def open(
        cls,
        own: PeerHead | None,
        gaps: Sequence[SeqRange],
        theirs: PeerHead | None,
        holes_max: int,
    ) -> LaneRecord | None:
        """Return the lane of our head and a peer's; None when nothing is missing."""
        known = own or theirs
        held = own.latest_seq if own else 0
        target = max(held, theirs.latest_seq if theirs else 0)
        missing = missing_up_to(own, gaps, target)
        if known is None or not missing:
            return None
        lane = cls(
            namespace_id=known.namespace_id,
            parent=known.parent_id,
            holes=HoleList(holes_max),
            contiguous=own.contiguous_seq if own else 0,
            target=target,
            proven=held,
        )
        lane.holes.add(missing)
        return lane

    @property
    def done(self) -> bool:
        """True when nothing is missing and nothing was left out."""
        return not (self.holes or self.unkept or self.holes.dropped)

    def extend(self, latest_seq: int) -> None:
        """Expect everything up to ``latest_seq``."""
        if latest_seq > self.target:
            self.holes.add([SeqRange(self.target + 1, latest_seq)])
            self.target = latest_seq

    def put_off(self, spans: Sequence[SeqRange], peer: PeerRecord) -> None:
        """Do not ask the peer for these sequences in this run; nothing is skipped over them."""
        if spans and self.holes.mark(spans, peer.bit):
            self.held_back = True

    def reached(self, contiguous_seq: int) -> None:
        """Take the store's word for how far it has come."""
        self.contiguous = max(self.contiguous, contiguous_seq)
        self.holes.remove(SeqRange(1, self.contiguous))

    def request(self, index: int, peer: PeerRecord, join_max: int) -> PageRequest:
        """Return what to ask ``peer`` for, beginning in hole ``index``, and mark it asked.

        The hole as far as the peer reaches, and holes at most ``join_max`` held messages after it;
        or the rest of a range that this peer has begun.
        """
        head = peer.heads[self.namespace_id]
        span = self._span(index, peer, head, join_max)
        resume, self.resume = self.resume, None
        self.asked = True
        if resume is not None and resume.peer is peer and resume.first == span.first:
            span = SeqRange(span.first, resume.to_seq)
            return PageRequest(peer, head.parent_id, span, resume.from_seq, resume.cursor)
        return PageRequest(peer, head.parent_id, span, span.first - 1, b"")

    def _span(self, index: int, peer: PeerRecord, head: PeerHead, join_max: int) -> SeqRange:
        first = max(self.holes[index].first, head.earliest_seq)
        last = min(self.holes[index].last, head.latest_seq)
        for following in range(index + 1, len(self.holes)):
            hole = self.holes[following]
            near = hole.first - last - 1 <= join_max
            if not near or hole.tried & peer.bit or hole.first > head.latest_seq:
                break
            last = min(hole.last, head.latest_seq)
        return SeqRange(first, last)

    def settle(
        self,
        asked: PageRequest,
        seqs: Iterable[int],
        outcomes: Sequence[Outcome],
        status: SyncStatus,
    ) -> None:
        """Close what the page brought, and remember what it should have brought (P25)."""
        came = list(zip(seqs, outcomes, strict=True))
        valid = spans_of(seq for seq, outcome in came if outcome is not Outcome.REJECTED)
        last = min(asked.span.last, status.last_seq) if status.has_more else asked.span.last
        covered = SeqRange(asked.span.first, last)
        self.holes.settle(covered, valid, asked.peer.bit)
        if valid:
            self.proven = max(self.proven, valid[-1].last)
            self.parent = asked.parent
        self.unkept = self.unkept or Outcome.UNKEPT in outcomes
        self._note_claims(asked.peer, covered, status, {seq for seq, _ in came})
        if status.has_more and status.next_cursor and last < asked.span.last:
            self.resume = Resume(
                asked.peer, status.next_cursor, asked.from_seq, asked.span.last, last + 1
            )

    def _note_claims(
        self, peer: PeerRecord, covered: SeqRange, status: SyncStatus, came: Collection[int]
    ) -> None:
        """Count what the peer claimed and kept back, and correct what it has forgotten since.

        What came and does not hold was not kept back: it may have been damaged on its way (G38).
        """
        head = peer.heads.get(self.namespace_id)
        if head is None or not status.earliest_seq:
            return
        earliest = max(head.earliest_seq, status.earliest_seq)
        claim = SeqRange(max(earliest, covered.first), min(head.contiguous_seq, covered.last))
        if claim.first <= claim.last:
            kept = [overlap(hole.span, claim) for hole in self.holes]
            peer.withheld += sum(
                span.size - sum(span.first <= seq <= span.last for seq in came)
                for span in kept
                if span is not None
            )
        if earliest != head.earliest_seq:
            peer.heads[self.namespace_id] = replace(
                head, earliest_seq=earliest, latest_seq=max(earliest, head.latest_seq)
            )

    def skip(self, peers: Sequence[PeerRecord], peers_min: int) -> list[SeqRange]:
        """Give up the lowest holes that nobody has any more; return them (P25).

        Args:
            peers: Everybody who takes part.
            peers_min: Peers that must have forgotten a hole.

        """
        given_up: list[SeqRange] = []
        kept_back = self.unkept or self.held_back
        while self.holes and not kept_back and self.holes[0].first == self.contiguous + 1:
            first, seq = self.holes[0].first, self._gone_to(peers, peers_min)
            if seq < first:
                break
            given_up.append(SeqRange(first, seq))
            self.holes.remove(given_up[-1])
            self.contiguous = (self.holes[0].first - 1) if self.holes else self.proven
        return given_up

    def _gone_to(self, peers: Sequence[PeerRecord], peers_min: int) -> int:
        """Return up to where the lowest hole is gone everywhere; 0 when it is not."""
        hole = self.holes[0]
        seq = min(hole.last, self.proven - 1)
        forgetful = 0
        for peer in peers:
            if not peer.settled:
                return 0
            head = peer.heads.get(self.namespace_id)
            if peer.given_up or head is None or head.reach is None:
                continue
            if head.earliest_seq > hole.first:
                forgetful += 1
                seq = min(seq, head.earliest_seq - 1)
            elif not hole.tried & peer.bit:
                return 0
        return seq if forgetful >= peers_min else 0
