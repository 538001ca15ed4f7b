"""Random peers with random holes and lies: catch-up ends with exactly the valid messages.

Virtual time, no I/O: the machine, a network that answers in random order, and a set as the store.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus.header import NamespaceId
from luxrelay.sync.actions import Action, AskHeads, AskPage, Fault, Finished, SkipTo
from luxrelay.sync.catchup import CatchUp
from luxrelay.sync.heads import PeerHead
from luxrelay.sync.lanes import spans_of
from luxrelay.sync.messages import SyncStatus
from luxrelay.sync.params import CatchUpConfig
from luxrelay.sync.report import AcceptResult, CatchUpReport, Outcome

PARENT = NamespaceId(b"p" * 20)
SMALL = CatchUpConfig(
    pages_max=3,
    peer_pages_max=2,
    page_messages=4,
    join_max=2,
    scan_max=2,
    rejected_max=3,
    rounds_max=6,
    holes_max=64,
    call_lanes=3,
)
LIES = ("none", "withhold", "forge", "boast", "early", "late", "stall", "garbage", "dead")
STEPS_MAX = 20_000


def lane_id(index: int) -> NamespaceId:
    """Return the id of lane ``index``."""
    return NamespaceId(index.to_bytes(20, "big"))


@dataclass
class Peer:
    """A relay: what it holds of each lane, how it lies, how often it fails in a row."""

    held: dict[int, set[int]]
    lie: str
    flaky: bool
    failures: int = 0

    @property
    def honest(self) -> bool:
        """True when every answer of it is true, once it answers."""
        return self.lie == "none"

    def heads(self) -> list[PeerHead]:
        """Return what it says it holds."""
        found = []
        for lane, seqs in self.held.items():
            if not seqs:
                continue
            earliest, latest = min(seqs), max(seqs)
            contiguous = next(seq for seq in range(earliest, latest + 2) if seq + 1 not in seqs)
            if self.lie == "boast":
                latest = contiguous = 2**63
            if self.lie == "early":
                earliest, contiguous = 1, latest
            if self.lie == "late":
                earliest = latest = contiguous = latest + 1000
            found.append(
                PeerHead(
                    namespace_id=lane_id(lane),
                    parent_id=PARENT,
                    earliest_seq=earliest,
                    contiguous_seq=contiguous,
                    latest_seq=latest,
                )
            )
        return found

    def page(self, ask: AskPage, rng: random.Random) -> tuple[list[int], list[bool], SyncStatus]:
        """Return sequences, whether each is valid, and the status."""
        lane = int.from_bytes(ask.namespace_id, "big")
        after = int.from_bytes(ask.cursor, "big") if ask.cursor else ask.from_seq
        seqs = sorted(seq for seq in self.held[lane] if after < seq <= ask.to_seq)
        page, more = seqs[: ask.max_messages], len(seqs) > ask.max_messages
        last = page[-1] if page else 0
        valid = [True] * len(page)
        if self.lie == "withhold":
            page = [seq for seq in page if rng.random() < 0.5]
            valid = [True] * len(page)
        if self.lie == "forge":
            valid = [rng.random() < 0.5 for _ in page]
        if self.lie == "stall":
            page, valid, more, last = [], [], True, 0
        status = SyncStatus(
            last_seq=last,
            has_more=more,
            earliest_seq=min(self.held[lane]),
            next_cursor=last.to_bytes(8, "big") if more else b"",
        )
        if page and rng.random() < 0.1:  # the link was cut; what came before it stays
            kept = rng.randrange(len(page)) + 1
            page, valid = page[:kept], valid[:kept]
            status = SyncStatus(last_seq=page[-1], has_more=True)
        return page, valid, status


@dataclass
class World:
    """The network, our store and the clock."""

    peers: dict[str, Peer]
    own: dict[int, set[int]]
    rng: random.Random
    skipped: dict[int, int] = field(default_factory=dict)
    now: float = 0.0

    def contiguous(self, lane: int) -> int:
        """Return our contiguous head, floor included."""
        seq = self.skipped.get(lane, 0)
        while seq + 1 in self.own[lane]:
            seq += 1
        return seq

    def own_head(self, lane: int) -> PeerHead:
        """Return our head."""
        seqs = self.own[lane]
        return PeerHead(
            namespace_id=lane_id(lane),
            parent_id=PARENT,
            earliest_seq=min(seqs, default=0),
            contiguous_seq=self.contiguous(lane),
            latest_seq=max(seqs, default=0),
        )

    def run(self) -> CatchUpReport:
        """Drive the machine to its end."""
        machine = CatchUp(list(self.peers), parent=PARENT, config=SMALL)
        heads = [self.own_head(lane) for lane in self.own if self.own[lane]]
        gaps = {
            head.namespace_id: spans_of(
                seq
                for seq in range(head.contiguous_seq + 1, head.latest_seq)
                if seq not in self.own[int.from_bytes(head.namespace_id, "big")]
            )
            for head in heads
        }
        machine.start(heads, gaps, self.now)
        waiting: list[Action] = []
        for _ in range(STEPS_MAX):
            for action in machine.drain():
                if isinstance(action, SkipTo):
                    self.skip(action)
                elif isinstance(action, Finished):
                    return machine.report()
                else:
                    waiting.append(action)
            calls = [one for one in waiting if isinstance(one, AskPage)]
            assert len({one.call for one in calls}) <= SMALL.pages_max
            for peer in self.peers:
                pages = [one for one in calls if one.peer == peer]
                assert len({one.call for one in pages}) <= SMALL.peer_pages_max
                assert max(Counter(one.call for one in pages).values(), default=0) <= 3
                assert len({one.namespace_id for one in pages}) == len(pages)
            wake_at = machine.wake_at()
            if waiting:
                self.now += self.rng.random() * 0.05
                self.answer(machine, waiting.pop(self.rng.randrange(len(waiting))))
            else:
                assert wake_at is not None, "nothing under way and nothing to wait for"
                self.now = max(self.now, wake_at)
                machine.wake(self.now)
        raise AssertionError("catch-up does not end")

    def answer(self, machine: CatchUp, ask: Action) -> None:
        """Let one request come back."""
        assert isinstance(ask, AskHeads | AskPage)
        peer = self.peers[ask.peer]
        if peer.lie == "dead" or (peer.flaky and peer.failures < 2 and self.rng.random() < 0.5):
            peer.failures += 1
            machine.failed(ask.request, Fault.UNREACHABLE, self.now)
            return
        peer.failures = 0
        if isinstance(ask, AskHeads):
            machine.heads_received(ask.request, peer.heads(), self.now)
            return
        if peer.lie == "garbage" and self.rng.random() < 0.5:
            machine.failed(ask.request, Fault.UNUSABLE, self.now)
            return
        if self.rng.random() < 0.2:
            machine.passed_over(ask.request, self.now)
            return
        machine.came(ask.request, self.rng.randrange(1, 10_000), self.now)
        lane = int.from_bytes(ask.namespace_id, "big")
        seqs, valid, status = peer.page(ask, self.rng)
        outcomes = []
        for seq, good in zip(seqs, valid, strict=True):
            if not good:
                outcomes.append(Outcome.REJECTED)
            elif seq in self.own[lane]:
                outcomes.append(Outcome.DUPLICATE)
            else:
                self.own[lane].add(seq)
                outcomes.append(Outcome.STORED)
        result = AcceptResult(outcomes=tuple(outcomes), contiguous_seq=self.contiguous(lane))
        machine.page_stored(ask.request, seqs, status, result, self.now)

    def skip(self, action: SkipTo) -> None:
        """Raise our floor; never over something an honest peer could have given us."""
        lane = int.from_bytes(action.namespace_id, "big")
        begin = self.contiguous(lane) + 1
        for peer in self.peers.values():
            if peer.honest:
                lost = {seq for seq in peer.held.get(lane, ()) if begin <= seq <= action.seq}
                assert lost <= self.own[lane]
        self.skipped[lane] = max(self.skipped.get(lane, 0), action.seq)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, dict[int, set[int]], dict[int, set[int]]]:
    """Draw a world, with what honest peers hold and what anybody holds."""
    seed = draw(st.integers(0, 2**32))
    rng = random.Random(seed)
    lanes = range(1, draw(st.integers(1, 4)) + 1)
    lengths = {lane: draw(st.integers(1, 24)) for lane in lanes}
    peers: dict[str, Peer] = {}
    for index in range(draw(st.integers(1, 5))):
        held: dict[int, set[int]] = {}
        for lane in lanes:
            floor = rng.randrange(lengths[lane]) if rng.random() < 0.5 else 0
            share = rng.choice((0.3, 0.8, 1.0))
            seqs = {seq for seq in range(floor + 1, lengths[lane] + 1) if rng.random() < share}
            if seqs:
                held[lane] = seqs
        peers[f"peer{index}"] = Peer(held, draw(st.sampled_from(LIES)), draw(st.booleans()))
    own = {
        lane: {seq for seq in range(1, lengths[lane] + 1) if rng.random() < rng.choice((0, 0.4))}
        for lane in lanes
    }
    honest = {
        lane: own[lane].union(*(p.held.get(lane, set()) for p in peers.values() if p.honest))
        for lane in lanes
    }
    anybody = {
        lane: own[lane].union(*(p.held.get(lane, set()) for p in peers.values())) for lane in lanes
    }
    return World(peers, own, rng), honest, anybody


@given(worlds())
def test_end_with_exactly_the_valid_messages(
    drawn: tuple[World, dict[int, set[int]], dict[int, set[int]]],
) -> None:
    """All that honest peers hold arrives, nothing forged does, nothing to be had is skipped.

    And it ends, whatever the holes, failures and lies (21-25, 21-26, 21-27, P24 to P26).
    """
    world, honest, anybody = drawn

    report = world.run()

    for lane, seqs in world.own.items():
        assert honest[lane] <= seqs <= anybody[lane]
    assert report.stored == sum(peer.stored for peer in report.peers)
    assert not report.cancelled


@given(worlds())
def test_resume_after_any_interruption(
    drawn: tuple[World, dict[int, set[int]], dict[int, set[int]]],
) -> None:
    """A second run from whatever the first one left behind loses nothing and adds no forgery."""
    world, honest, anybody = drawn
    world.run()
    for lane in world.own:  # forget a third of what arrived, as if the first run had been cut off
        arrived = sorted(seq for seq in world.own[lane] if seq > world.skipped.get(lane, 0))
        world.own[lane] -= set(arrived[: len(arrived) // 3])

    world.run()

    for lane, seqs in world.own.items():
        kept = {seq for seq in honest[lane] if seq > world.skipped.get(lane, 0)}
        reachable = kept.intersection(
            *([set().union(*(p.held.get(lane, set()) for p in world.peers.values() if p.honest))])
        )
        assert reachable <= seqs <= anybody[lane]


@given(worlds())
def test_be_complete_among_honest_peers(
    drawn: tuple[World, dict[int, set[int]], dict[int, set[int]]],
) -> None:
    """Among honest peers the report is complete exactly when no reported sequence is missing."""
    world, _, _ = drawn
    for peer in world.peers.values():
        peer.lie = "none"

    report = world.run()

    def latest(lane: int) -> int:
        held = [world.own[lane], *(peer.held.get(lane, set()) for peer in world.peers.values())]
        return max(max(seqs, default=0) for seqs in held)

    missing = [lane for lane in world.own if world.contiguous(lane) < latest(lane)]
    assert report.complete == (not missing)
    assert all(peer.given_up == "" for peer in report.peers)
