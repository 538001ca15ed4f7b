"""The catch-up machine, input by input, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from luxrelay.bus.header import NamespaceId
from luxrelay.errors import SyncArgumentError
from luxrelay.sync.actions import Action, AskHeads, AskPage, Fault, Finished, SkipTo
from luxrelay.sync.catchup import CatchUp
from luxrelay.sync.heads import PeerHead, SeqRange
from luxrelay.sync.messages import SyncStatus
from luxrelay.sync.params import CatchUpConfig
from luxrelay.sync.report import AcceptResult, Outcome
from luxrelay.sync.transfer import PAGES_A_WINDOW, LinkWindow

PARENT = NamespaceId(b"p" * 20)
CONFIG = CatchUpConfig(page_messages=10, call_lanes=1)
_Kind = TypeVar("_Kind")


def ns(index: int = 0) -> NamespaceId:
    """Return the id of lane ``index``."""
    return NamespaceId(index.to_bytes(20, "big"))


def head(latest: int, *, lane: int = 0, earliest: int = 1, contiguous: int = -1) -> PeerHead:
    """Return a head without holes."""
    return PeerHead(
        namespace_id=ns(lane),
        parent_id=PARENT,
        earliest_seq=earliest,
        contiguous_seq=latest if contiguous < 0 else contiguous,
        latest_seq=latest,
    )


class Play:
    """A machine, its actions and the clock."""

    def __init__(
        self,
        *peers: str,
        config: CatchUpConfig = CONFIG,
        windows: dict[str, LinkWindow] | None = None,
    ) -> None:
        self.machine = CatchUp(peers, parent=PARENT, windows=windows, config=config)
        self.now = 100.0
        self.log: list[Action] = []

    def start(self, *own: PeerHead, gaps: dict[NamespaceId, list[SeqRange]] | None = None) -> None:
        """Begin with what we hold."""
        self.machine.start(own, gaps or {}, self.now)

    def take(self, kind: type[_Kind]) -> list[_Kind]:
        """Return the new actions of a kind; others stay for later."""
        self.log += self.machine.drain()
        found = [action for action in self.log if isinstance(action, kind)]
        self.log = [action for action in self.log if not isinstance(action, kind)]
        return found

    def list(self, **heads: Sequence[PeerHead]) -> None:
        """Answer the listings of the peers named."""
        for ask in self.take(AskHeads):
            if ask.peer in heads:
                self.machine.heads_received(ask.request, heads[ask.peer], self.now)
            else:
                self.log.append(ask)

    def serve(self, ask: AskPage, seqs: Sequence[int], **status: object) -> None:
        """Answer a page with valid messages."""
        self.answer(ask, seqs, [Outcome.STORED] * len(seqs), **status)

    def answer(
        self, ask: AskPage, seqs: Sequence[int], outcomes: Sequence[Outcome], **status: object
    ) -> None:
        """Answer a page."""
        last = seqs[-1] if seqs else 0
        contiguous = status.pop("contiguous", 0)
        assert isinstance(contiguous, int)
        fields: dict[str, object] = {"last_seq": last, "earliest_seq": 1, **status}
        result = AcceptResult(outcomes=tuple(outcomes), contiguous_seq=contiguous)
        self.machine.page_stored(
            ask.request,
            seqs,
            SyncStatus(**fields),  # type: ignore[arg-type]
            result,
            self.now,
        )

    def page(self) -> AskPage:
        """Return the one page that is asked for now."""
        (ask,) = self.take(AskPage)
        return ask

    @property
    def finished(self) -> bool:
        """True when the machine has said so."""
        return bool(self.take(Finished))


def test_list_every_peer_first() -> None:
    """The run begins by listing the heads of the parent at every peer."""
    play = Play("a", "b")
    play.start()

    asks = play.take(AskHeads)

    assert [(ask.peer, ask.parent) for ask in asks] == [("a", PARENT), ("b", PARENT)]
    assert not play.machine.finished


def test_finish_at_once_without_peers() -> None:
    """Nobody to ask is the end, and not complete."""
    play = Play()
    play.start(head(3))

    assert play.finished
    assert not play.machine.report().complete


def test_ask_from_our_contiguous_head() -> None:
    """LP-6421 §2.3, P25: the first page begins above our contiguous head."""
    play = Play("a")
    play.start(head(7))
    play.list(a=[head(30)])

    ask = play.page()

    assert (ask.namespace_id, ask.parent) == (ns(), PARENT)
    assert (ask.from_seq, ask.to_seq, ask.cursor) == (7, 30, b"")
    assert (ask.max_messages, ask.max_bytes) == (10, CONFIG.transfer.window_first // 4)


def test_go_on_by_cursor_to_the_head() -> None:
    """P24: pages follow each other by cursor until the head is reached."""
    play = Play("a")
    play.start()
    play.list(a=[head(25)])
    play.serve(play.page(), range(1, 11), has_more=True, next_cursor=b"ten")
    second = play.page()
    play.serve(second, range(11, 21), has_more=True, next_cursor=b"twenty")
    third = play.page()
    play.serve(third, range(21, 26))
    play.list(a=[head(25)])

    assert (second.from_seq, second.to_seq, second.cursor) == (0, 25, b"ten")
    assert third.cursor == b"twenty"
    assert play.finished
    assert play.machine.report().complete


def test_ask_only_own_gaps() -> None:
    """P25: with gaps known, only what is missing is asked for."""
    play = Play("a", config=replace(CONFIG, join_max=1))
    play.start(head(20, contiguous=3), gaps={ns(): [SeqRange(4, 5), SeqRange(12, 12)]})
    play.list(a=[head(20)])
    first = play.page()
    play.serve(first, [4, 5], contiguous=11)
    second = play.page()

    assert (first.from_seq, first.to_seq) == (3, 5)
    assert (second.from_seq, second.to_seq) == (11, 12)


def test_ask_a_hole_elsewhere_and_only_once() -> None:
    """21-26, P25: a hole goes to the next peer, and to nobody twice."""
    play = Play("a", "b")
    play.start()
    play.list(a=[head(5)], b=[head(5)])
    first = play.page()
    play.serve(first, [1, 2, 4, 5])
    second = play.page()
    play.serve(second, [])
    play.list(a=[head(5)], b=[head(5)])

    assert (second.from_seq, second.to_seq) == (2, 3)
    assert {first.peer, second.peer} == {"a", "b"}
    assert play.finished
    report = play.machine.report()
    assert report.holes_left == ((ns(), SeqRange(3, 3)),)
    assert [peer.withheld for peer in report.peers] == [1, 1]


def test_ask_later_peers_for_what_is_stuck() -> None:
    """A peer that lists late is asked for what the others did not have."""
    play = Play("a", "b")
    play.start()
    play.list(a=[head(3)])
    play.serve(play.page(), [1, 3])
    assert play.take(AskPage) == []

    play.list(b=[head(3)])

    ask = play.page()
    assert (ask.peer, ask.from_seq, ask.to_seq) == ("b", 1, 2)


def test_extend_a_lane_by_a_later_head() -> None:
    """A peer that is further ahead lengthens what is asked."""
    play = Play("a", "b")
    play.start()
    play.list(a=[head(3)], b=[head(9)])
    play.serve(play.page(), [1, 2, 3])

    ask = play.page()

    assert (ask.peer, ask.from_seq, ask.to_seq) == ("b", 3, 9)


def test_close_holes_by_the_stores_head() -> None:
    """P25: what gossip has brought meanwhile is not asked for any more."""
    play = Play("a")
    play.start()
    play.list(a=[head(25)])
    play.serve(play.page(), range(1, 11), has_more=True, next_cursor=b"c", contiguous=25)
    play.list(a=[head(25)])

    assert play.take(AskPage) == []
    assert play.finished


def test_list_again_until_nothing_new_comes() -> None:
    """P24: a round that brought something is followed by another one."""
    play = Play("a")
    play.start()
    play.list(a=[head(3)])
    play.serve(play.page(), [1, 2, 3])
    play.list(a=[head(5)])
    ask = play.page()
    play.serve(ask, [4, 5])
    play.list(a=[head(5)])

    assert (ask.from_seq, ask.to_seq) == (3, 5)
    assert play.finished
    assert play.machine.report().rounds == 3


def test_bound_the_rounds() -> None:
    """rounds_max ends a run whose peers are always ahead; live gossip takes over."""
    play = Play("a", config=replace(CONFIG, rounds_max=2))
    play.start()
    for latest in (3, 6):
        play.list(a=[head(latest)])
        play.serve(play.page(), range(latest - 2, latest + 1))

    assert play.finished
    assert play.machine.report().rounds == 2


def test_give_up_a_peer_that_forges() -> None:
    """21-27: rejected_max invalid messages are borne, one more is not."""
    play = Play("a", config=replace(CONFIG, rejected_max=3))
    play.start()
    play.list(a=[head(4), head(4, lane=1), head(4, lane=2)])
    first, second, _third = play.take(AskPage)
    play.answer(first, [1, 2, 3, 4], [Outcome.REJECTED] * 3 + [Outcome.STORED])
    assert play.machine.report().peers[0].given_up == ""

    play.answer(second, [1], [Outcome.REJECTED])

    assert "invalid" in play.machine.report().peers[0].given_up
    assert play.take(AskPage) == []


def test_keep_what_is_valid_beside_a_forgery() -> None:
    """21-27: of a page with a forgery the rest counts, and the forged one is asked elsewhere."""
    play = Play("a", "b")
    play.start()
    play.list(a=[head(3)])
    play.answer(play.page(), [1, 2, 3], [Outcome.STORED, Outcome.REJECTED, Outcome.STORED])
    play.list(b=[head(3)])

    ask = play.page()

    assert (ask.peer, ask.from_seq, ask.to_seq) == ("b", 1, 2)
    assert play.machine.report().stored == 2


def test_count_a_slot_with_one_valid_candidate_as_held() -> None:
    """J11: of several candidates of a slot one valid one is enough."""
    play = Play("a")
    play.start()
    play.list(a=[head(1)])
    play.answer(play.page(), [1, 1], [Outcome.REJECTED, Outcome.STORED])
    play.list(a=[head(1)])

    assert play.finished
    assert play.machine.report().complete


def test_try_an_unreachable_peer_again() -> None:
    """A peer that fails is asked again after a pause, and given up after failures_max."""
    play = Play("a", config=replace(CONFIG, failures_max=3, backoff_s=1.0))
    play.start()
    for pause in (1.0, 2.0):
        (ask,) = play.take(AskHeads)
        play.machine.failed(ask.request, Fault.UNREACHABLE, play.now)
        assert play.take(AskHeads) == []
        assert play.machine.wake_at() == pytest.approx(play.now + pause)
        play.now += pause
        play.machine.wake(play.now)
    (ask,) = play.take(AskHeads)
    play.machine.failed(ask.request, Fault.UNREACHABLE, play.now)

    assert play.finished
    assert play.machine.wake_at() is None
    report = play.machine.report()
    assert (report.peers[0].given_up, report.peers[0].failures) == ("unreachable", 3)


def test_send_a_failed_page_to_another_peer() -> None:
    """A page that failed at one peer is asked of another at once."""
    play = Play("a", "b")
    play.start()
    play.list(a=[head(5)], b=[head(5)])
    first = play.page()
    play.machine.failed(first.request, Fault.UNREACHABLE, play.now)

    second = play.page()

    assert second.peer != first.peer
    assert (second.from_seq, second.to_seq) == (first.from_seq, first.to_seq)


def test_count_pages_lost_together_as_one_failure() -> None:
    """A broken connection that takes four pages with it is one failure in a row, not four."""
    play = Play("a", config=replace(CONFIG, peer_pages_max=4, backoff_s=1.0))
    play.start()
    play.list(a=[head(1, lane=lane) for lane in range(4)])
    for ask in play.take(AskPage):
        play.machine.failed(ask.request, Fault.UNREACHABLE, play.now)

    assert play.machine.report().peers[0].given_up == ""
    play.now += 1.0
    play.machine.wake(play.now)
    assert len(play.take(AskPage)) == 4


def test_forgive_after_an_answer() -> None:
    """Failures count in a row: an answer between them clears them."""
    play = Play("a", config=replace(CONFIG, failures_max=2, backoff_s=1.0, page_messages=1))
    play.start()
    play.list(a=[head(3)])
    for seq in (1, 2):
        play.machine.failed(play.page().request, Fault.UNREACHABLE, play.now)
        play.now += 1.0
        play.machine.wake(play.now)
        play.serve(play.page(), [seq], has_more=True, next_cursor=b"c")

    assert play.machine.report().peers[0].given_up == ""


def test_do_not_repeat_an_unusable_answer() -> None:
    """What a peer answered unusably is not asked of it again; after a few it is given up."""
    play = Play("a", config=replace(CONFIG, failures_max=2, backoff_s=1.0))
    play.start()
    play.list(a=[head(1, lane=lane) for lane in range(3)])
    first, second, third = play.take(AskPage)
    play.machine.failed(first.request, Fault.UNUSABLE, play.now)
    play.now += 5.0
    play.machine.failed(second.request, Fault.UNUSABLE, play.now)
    play.serve(third, [1])

    assert play.finished
    report = play.machine.report()
    assert "cannot be used" in report.peers[0].given_up
    assert (report.peers[0].unusable, len(report.holes_left)) == (2, 2)


def test_give_up_a_peer_whose_heads_are_unusable() -> None:
    """21-56: a relay that does not offer the service is not asked again."""
    play = Play("a")
    play.start()
    (ask,) = play.take(AskHeads)
    play.machine.failed(ask.request, Fault.UNUSABLE, play.now)

    assert play.finished


def test_refuse_a_page_that_does_not_move_on() -> None:
    """A page that promises more without having moved is unusable, not an endless loop."""
    play = Play("a")
    play.start()
    play.list(a=[head(9)])
    play.serve(play.page(), [], has_more=True, next_cursor=b"x", last_seq=0)

    assert play.take(AskPage) == []
    assert play.machine.report().peers[0].unusable == 1


def test_ignore_heads_that_contradict_themselves() -> None:
    """Implausible heads and those of another parent open nothing and are counted."""
    play = Play("a")
    play.start()
    play.list(a=[head(3, earliest=9), replace(head(3), parent_id=ns(7))])

    assert play.finished
    report = play.machine.report()
    assert (report.peers[0].unusable, report.namespaces) == (2, 0)


def test_skip_with_evidence_only() -> None:
    """P25: the hole is given up once a valid message above it is there, and recorded."""
    play = Play("a", "b")
    play.start()
    play.list(a=[head(60, earliest=51)], b=[head(60, earliest=51)])
    assert play.take(SkipTo) == []

    play.serve(play.page(), range(51, 61), earliest_seq=51)

    (skip,) = play.take(SkipTo)
    assert (skip.namespace_id, skip.parent, skip.seq) == (ns(), PARENT, 50)
    play.list(a=[head(60, earliest=51)], b=[head(60, earliest=51)])
    assert play.finished
    report = play.machine.report()
    assert report.complete
    assert report.skipped == ((ns(), SeqRange(1, 50)),)


def test_stay_incomplete_when_a_message_was_not_kept() -> None:
    """A full store is told: what was not kept is neither asked again nor called complete."""
    play = Play("a")
    play.start()
    play.list(a=[head(2)])
    play.answer(play.page(), [1, 2], [Outcome.STORED, Outcome.UNKEPT])
    play.list(a=[head(2)])

    assert play.finished
    assert not play.machine.report().complete
    assert play.machine.report().unkept == 1


def test_bound_the_pages_under_way() -> None:
    """pages_max over all peers, peer_pages_max at one, and one page a lane."""
    config = replace(CONFIG, pages_max=5, peer_pages_max=3)
    play = Play("a", "b", config=config)
    play.start()
    heads = [head(1, lane=lane) for lane in range(20)]
    play.list(a=heads)
    assert len(play.take(AskPage)) == 3
    play.list(b=heads)
    assert [ask.peer for ask in play.take(AskPage)] == ["b", "b"]


def test_share_the_lanes_between_peers() -> None:
    """Pages go to whoever has the fewest under way."""
    play = Play("a", "b", config=replace(CONFIG, pages_max=1))
    play.start()
    heads = [head(1, lane=lane) for lane in range(7)]
    play.list(a=heads, b=heads)
    served = [play.page()]
    play.machine._calls.config = replace(CONFIG, pages_max=7)
    play.serve(served[0], [1])

    asks = play.take(AskPage)

    assert sorted(ask.peer for ask in asks) == ["a"] * 3 + ["b"] * 3


def test_look_past_lanes_that_must_wait() -> None:
    """scan_max: lanes that only a busy peer can serve do not stop the others for ever."""
    config = replace(CONFIG, pages_max=2, peer_pages_max=1, scan_max=2)
    play = Play("a", "b", config=config)
    play.start()
    only_a = [head(1, lane=lane) for lane in range(5)]
    play.list(a=only_a, b=[head(1, lane=9)])
    served = []
    while asks := play.take(AskPage):
        for ask in asks:
            served.append(ask.namespace_id)
            play.serve(ask, [1])
        play.list(a=only_a, b=[head(1, lane=9)])

    assert sorted(served) == sorted([ns(lane) for lane in range(5)] + [ns(9)])
    assert play.finished


def test_bound_lanes_and_heads() -> None:
    """lanes_max and heads_max bound what one run deals with; the report says what was left."""
    config = replace(CONFIG, lanes_max=2, heads_max=3, pages_max=9, peer_pages_max=9)
    play = Play("a", config=config)
    play.start()
    play.list(a=[head(1, lane=lane) for lane in range(9)])

    assert len(play.take(AskPage)) == 2
    report = play.machine.report()
    assert (report.namespaces, report.peers[0].heads) == (2, 3)
    assert report.holes_unlisted >= 2
    assert not report.complete


def test_bound_holes_in_a_lane_and_in_the_report() -> None:
    """holes_max bounds what is tracked, holes_listed what is named; both are counted."""
    config = replace(CONFIG, holes_max=3, holes_listed=2)
    play = Play("a", config=config)
    play.start()
    play.list(a=[head(11)])
    play.serve(play.page(), [2, 4, 6, 8, 10])
    play.list(a=[head(11)])

    assert play.finished
    report = play.machine.report()
    assert report.holes_left == ((ns(), SeqRange(1, 1)), (ns(), SeqRange(3, 3)))
    assert report.holes_unlisted == 1 + 3
    assert not report.complete


def test_bound_the_peers() -> None:
    """peers_max and distinct names are demanded when the machine is built."""
    with pytest.raises(SyncArgumentError):
        CatchUp(["a", "b"], config=replace(CONFIG, peers_max=1))
    with pytest.raises(SyncArgumentError):
        CatchUp(["a", "a"])


def test_cancel_ends_it_and_late_answers_are_ignored() -> None:
    """After a cancel nothing is asked any more; answers under way change nothing."""
    play = Play("a")
    play.start()
    play.list(a=[head(5), head(5, lane=1)])
    first, second = play.take(AskPage)

    play.machine.cancel(play.now)
    play.serve(first, [1, 2, 3, 4, 5])
    play.machine.failed(second.request, Fault.UNREACHABLE, play.now)
    play.machine.cancel(play.now)

    assert play.finished
    assert play.machine.drain() == []
    report = play.machine.report()
    assert (report.cancelled, report.complete, report.stored) == (True, False, 0)


def test_ignore_an_answer_to_nothing() -> None:
    """A request number that is not under way changes nothing."""
    play = Play("a")
    play.start()
    play.machine.heads_received(999, [head(5)], play.now)
    play.machine.failed(999, Fault.UNREACHABLE, play.now)

    assert play.take(AskPage) == []


def test_tell_progress_and_seconds() -> None:
    """Progress counts what has come; seconds are the caller's clock."""
    play = Play("a")
    play.start()
    play.list(a=[head(2), head(2, lane=1)])
    first, _ = play.take(AskPage)
    play.now += 2.5
    play.serve(first, [1, 2])

    progress = play.machine.progress()

    assert (progress.round, progress.pages, progress.stored) == (1, 1, 2)
    assert (progress.namespaces, progress.namespaces_done, progress.outstanding) == (2, 1, 1)
    assert play.machine.report().seconds == pytest.approx(2.5)


def test_see_peers_disagree() -> None:
    """21-28, P26: two hashes for one latest sequence are reported, and both peers stay."""
    play = Play("a", "b")
    play.start(head(5))
    play.list(
        a=[replace(head(5), latest_header_hash=b"a" * 32)],
        b=[replace(head(5), latest_header_hash=b"b" * 32)],
    )

    assert play.finished
    assert play.machine.report().disagreements == 1


def test_deal_with_thousands_of_lanes() -> None:
    """J6: 5,000 lanes, of which 50 are behind: 50 pages are asked, none of the others touched."""
    play = Play("a", config=replace(CONFIG, pages_max=64, peer_pages_max=64))
    own = [head(3, lane=lane) for lane in range(5_000)]
    play.start(*own)
    theirs = [head(4 if lane % 100 == 0 else 3, lane=lane) for lane in range(5_000)]
    play.list(a=theirs)

    assert len(play.take(AskPage)) == 50
    assert play.machine.progress().namespaces == 50


def test_open_nothing_for_a_peer_that_holds_nothing() -> None:
    """A relay whose messages have all expired names a latest sequence and has nothing to give."""
    play = Play("a")
    play.start(head(3))
    play.list(a=[head(9, earliest=0)])

    assert play.finished
    assert play.machine.report().namespaces == 0


MANY = CatchUpConfig(page_messages=100, call_lanes=8, pages_max=3, peer_pages_max=2)


def small(lane: int, messages: int = 1, size: int = 500) -> PeerHead:
    """Return the head of a lane whose messages are small."""
    return replace(head(messages, lane=lane), messages=messages, size_bytes=messages * size)


def calls_of(asks: Sequence[AskPage]) -> dict[int, list[AskPage]]:
    """Return the pages by the call that they go out in."""
    found: dict[int, list[AskPage]] = {}
    for ask in asks:
        found.setdefault(ask.call, []).append(ask)
    return found


def test_many_lanes_go_out_in_one_call() -> None:
    """P47: lanes that lack a message each share calls, up to call_lanes in one, and two peers."""
    play = Play("a", "b", config=MANY)
    play.start()
    heads = [small(lane) for lane in range(60)]
    play.list(a=heads, b=heads)

    calls = calls_of(play.take(AskPage))

    assert [len(asks) for asks in calls.values()] == [8, 8, 8]
    assert all(len({ask.peer for ask in asks}) == 1 for asks in calls.values())
    assert {asks[0].peer for asks in calls.values()} == {"a", "b"}
    assert len({ask.namespace_id for asks in calls.values() for ask in asks}) == 24
    for ask in next(iter(calls.values())):
        play.serve(ask, [1])
    assert [len(asks) for asks in calls_of(play.take(AskPage)).values()] == [8]


def test_a_call_has_the_bytes_and_messages_of_one_page() -> None:
    """P46, P47: the messages of all its lanes count, and the bytes that a slow link allows."""
    play = Play("a", config=replace(MANY, call_lanes=1_000, page_messages=20))
    play.start()
    play.list(a=[small(lane, 6) for lane in range(30)])
    rows = [len(asks) * 6 for asks in calls_of(play.take(AskPage)).values()]
    assert rows == [18, 18]

    play = Play("a", config=replace(MANY, call_lanes=1_000, page_messages=1_000))
    play.start()
    play.list(a=[small(lane, 1, 100_000) for lane in range(30)])
    calls = calls_of(play.take(AskPage))
    assert [len(asks) for asks in calls.values()] == [2, 2]
    assert {ask.max_bytes for asks in calls.values() for ask in asks} == {262_144}


def test_what_a_call_did_not_come_to_is_asked_again() -> None:
    """P47: it is no failure of the peer, and no hole counts as asked for."""
    play = Play("a", config=MANY)
    play.start()
    play.list(a=[small(lane) for lane in range(8)])
    (asks,) = calls_of(play.take(AskPage)).values()
    play.serve(asks[0], [1])
    for ask in asks[1:]:
        play.machine.passed_over(ask.request, play.now)

    again = play.take(AskPage)

    assert {ask.namespace_id for ask in again} == {ask.namespace_id for ask in asks[1:]}
    for ask in again:
        play.serve(ask, [1])
    play.list(a=[small(lane) for lane in range(8)])
    assert play.machine.report().complete
    assert play.machine.report().peers[0].failures == 0


def test_what_came_of_a_page_that_was_cut_is_kept() -> None:
    """P46: the next page begins behind the last message that came, at whoever can serve it."""
    play = Play("a", config=CONFIG)
    play.start()
    play.list(a=[head(10)])
    ask = play.page()
    play.serve(ask, [1, 2, 3, 4], has_more=True, earliest_seq=0, contiguous=4)

    rest = play.page()

    assert (rest.from_seq, rest.to_seq, rest.cursor) == (4, 10, b"")
    assert play.machine.report().peers[0].cut == 1
    play.serve(rest, [5, 6, 7, 8, 9, 10], contiguous=10)
    play.list(a=[head(10)])
    assert play.machine.report().complete


def test_a_slow_link_is_asked_for_as_much_as_it_carries() -> None:
    """P46: the window is known to the next catch-up, with smaller pages, frames and blobs."""
    windows = {"a": LinkWindow()}
    config = replace(CONFIG, page_messages=1_000)
    asked: list[AskPage] = []
    for _ in range(3):
        play = Play("a", config=config, windows=windows)
        play.start()
        play.list(a=[replace(head(400), messages=400, size_bytes=400 * 12_000)])
        asked.append(play.page())
        for _ in range(20):
            play.now += 0.5
            play.machine.came(asked[-1].request, 5_000, play.now)  # 10,000 bytes a second
        play.machine.cancel(play.now)

    assert (asked[0].max_bytes, asked[0].max_blob_bytes) == (262_144, 0)
    assert (asked[0].max_messages, asked[2].max_messages) == (43, 2)
    assert asked[2].max_bytes == config.transfer.window_min // PAGES_A_WINDOW
    assert asked[2].max_blob_bytes == 50_000
    assert asked[2].max_frame_bytes < asked[0].max_frame_bytes
    assert windows["a"].under_way == 0


def test_a_link_that_brought_nothing_is_asked_for_no_large_blob() -> None:
    """P46: a large blob shows no progress before its end; one that was late comes by itself."""
    play = Play("a", config=CONFIG)
    play.start()
    play.list(a=[replace(head(3), messages=3, size_bytes=6_000_000)])
    ask = play.page()
    assert (ask.max_messages, ask.max_blob_bytes) == (1, 0)
    play.machine.failed(ask.request, Fault.UNREACHABLE, play.now)
    play.now += 1.0
    play.machine.wake(play.now)
    assert play.page().max_blob_bytes == 65_536


def test_a_fast_link_is_asked_for_whole_pages_with_every_blob() -> None:
    """P46: after a few pages it is asked as if there were no window."""
    play = Play("a", config=replace(CONFIG, page_messages=1_000))
    play.start()
    play.list(a=[replace(head(10_000), messages=10_000, size_bytes=10_000 * 4_000)])
    first = 1
    for _ in range(8):
        ask = play.page()
        play.now += 0.01
        play.machine.came(ask.request, ask.max_bytes, play.now)
        seqs = list(range(first, first + 50))
        first += 50
        play.serve(ask, seqs, has_more=True, next_cursor=b"on", contiguous=seqs[-1])

    ask = play.page()

    assert (ask.max_bytes, ask.max_blob_bytes) == (CONFIG.page_bytes, 0)
    assert ask.max_frame_bytes >= 256 * 1024


def test_nothing_is_asked_beyond_the_window_of_a_peer() -> None:
    """P46: what is under way fills it; the first page is asked for whatever its size."""
    play = Play("a", config=replace(CONFIG, pages_max=8, peer_pages_max=8))
    play.start()
    play.list(a=[small(lane, 10, 300_000) for lane in range(8)])
    asks = play.take(AskPage)
    assert len(asks) == 4
    play.machine.came(asks[0].request, 262_144, play.now)
    play.machine.wake(play.now)
    assert len(play.take(AskPage)) == 1


def test_what_is_put_off_is_asked_of_others_and_nothing_is_skipped_over_it() -> None:
    """One peer is not asked for two sequences, the other is; without it they stay missing (G36)."""
    put_off = {"a": {ns(): [SeqRange(3, 4)]}}
    for others, left in (((), 2), (("b",), 0)):
        play = Play("a", *others)
        play.machine = CatchUp(("a", *others), parent=PARENT, postponed=put_off, config=CONFIG)
        play.start()
        asked: dict[str, set[int]] = {"a": set(), "b": set()}
        while not play.machine.finished:
            play.list(a=[head(6)], b=[head(6)])
            for ask in play.take(AskPage):
                seqs = range(ask.from_seq + 1, ask.to_seq + 1)
                asked[ask.peer] |= set(seqs)
                play.serve(ask, seqs)
        assert asked["a"] & {3, 4} == set()
        assert asked["a"] | asked["b"] == ({1, 2, 5, 6} if left else set(range(1, 7)))
        report = play.machine.report()
        assert sum(span.size for _, span in report.holes_left) == left
        assert not report.skipped
        assert report.complete == (not left)
