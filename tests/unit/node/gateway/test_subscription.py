"""A subscriber's place, against a list that is the store."""

import random
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import (
    ACCEPTED,
    Code,
    ContentId,
    MsgHeader,
    NamespaceId,
    SigningKey,
    Verdict,
)
from luxrelay.bus.verdict import ignore
from luxrelay.errors import BusArgumentError
from luxrelay.node.gateway import subscription as subscription_module
from luxrelay.node.gateway.subscription import (
    CATCH_UP_LOOK_S,
    CATCH_UP_WAIT_S,
    GAPS_MAX,
    LATE_MAX,
    LOOK_S,
    RECENT_MAX,
    Blobs,
    Read,
    ReadPage,
    Subscription,
    Tell,
    TellBeyond,
    TellDropped,
    TellGap,
    TellLive,
    TellRefused,
    TellWaiting,
    Told,
    Wish,
    sender_of_any,
)
from luxrelay.store import StoredMessage
from luxrelay.testing import message_line, signing_key

LANE = NamespaceId(b"\x01" * 20)
OTHER = NamespaceId(b"\x02" * 20)
WAIT_MS = 1000


def headers(
    namespace_id: NamespaceId, count: int, key: SigningKey | None = None
) -> list[MsgHeader]:
    """Return a line of headers, the first at index 0."""
    line = message_line(count, namespace_id=namespace_id, key=key, blob=lambda seq: b"x")  # noqa: ARG005
    return [message.header for message in line]


LINE = headers(LANE, 40)
SECOND = headers(LANE, 40, signing_key(number=2))
BESIDE = headers(OTHER, 40)


@dataclass(slots=True)
class Shelf:
    """The store as a list."""

    page: int = 8
    rows: list[StoredMessage] = field(default_factory=list)
    floor: int = 0
    held: int | None = None

    def put(self, header: MsgHeader, now_ms: int = 0) -> MsgHeader:
        """Hold a message."""
        self.rows.append(
            StoredMessage(header_bytes=header.encode(), blob=b"x", received_at=now_ms, expires_at=1)
        )
        self.rows.sort(key=lambda row: (row.namespace_id, row.seq, row.header.content_id))
        return header

    def read(self, read: Read) -> ReadPage:
        """Return a page as it is now."""
        found = [r for r in self.rows if r.namespace_id == read.namespace_id]
        if read.cursor:
            seq, content = int.from_bytes(read.cursor[:8], "big"), read.cursor[8:]
            found = [r for r in found if (r.seq, r.header.content_id) > (seq, content)]
        else:
            found = [r for r in found if r.seq > read.after]
        if read.to:
            found = [r for r in found if r.seq <= read.to]
        page, more = found[: self.page], found[self.page :]
        cursor = page[-1].seq.to_bytes(8, "big") + page[-1].header.content_id if more else b""
        return ReadPage(page, cursor, self.floor, held=self.held)

    def serve(self, subscription: Subscription, now: float, now_ms: int) -> list[Tell]:
        """Do what the driver does until there is nothing to read; return what was told."""
        told: list[Tell] = []
        while (read := subscription.next_read()) is not None:
            subscription.page(read, self.read(read), now, now_ms)
            told += subscription.drain()
        wanted = subscription.next_late()
        subscription.late(wanted, [r for r in self.rows if r.header.content_id in wanted], [])
        return told + subscription.drain()


def subscription(*lanes: NamespaceId, after: int = 0, lanes_max: int = 10) -> Subscription:
    """Return a subscription of these lanes."""
    made = Subscription(lanes_max=lanes_max, gap_wait_ms=WAIT_MS)
    for lane in lanes:
        made.follow(lane, lane, after)
    return made


def note(subscription: Subscription, header: MsgHeader) -> None:
    """Say that a message was stored."""
    subscription.note(header.namespace_id, header.namespace_id, header.seq, header.content_id)


def seqs(told: list[Tell]) -> list[int]:
    """Return the sequences told, late ones negative."""
    return [
        -each.message.seq if each.late else each.message.seq
        for each in told
        if isinstance(each, Told)
    ]


def test_replay_then_live() -> None:
    """What is stored is told in order, then that it is live, then what comes."""
    shelf, place = Shelf(), subscription(LANE, after=3)
    for header in LINE[:20]:
        shelf.put(header)

    replay = shelf.serve(place, 0.0, 0)
    note(place, shelf.put(LINE[20]))
    live = shelf.serve(place, 0.0, 0)

    assert seqs(replay) == list(range(4, 21))
    assert replay[-1] == TellLive({LANE: 20})
    assert seqs(live) == [21]
    assert place.positions == {LANE: 21}


def test_a_gap_waits_as_long_as_the_message_behind_it_is_young() -> None:
    """The gap is told when the message above it is gap_wait_ms old, not before."""
    shelf, place = Shelf(), subscription(LANE)
    shelf.put(LINE[0], 5000)
    shelf.put(LINE[2], 5400)

    young = shelf.serve(place, 10.0, 5400)
    wake_at = place.wake_at()
    place.wake(10.5)
    early = shelf.serve(place, 10.5, 5900)
    place.wake(11.0)
    old = shelf.serve(place, 11.0, 6400)

    assert seqs(young) == [1]
    assert wake_at == pytest.approx(11.0)
    assert seqs(early) == []
    assert old == [
        TellGap(LANE, 2, 2, "missing"),
        *[each for each in old if isinstance(each, Told)],
    ]
    assert seqs(old) == [3]
    assert place.wake_at() is None


def test_an_old_gap_is_told_at_once() -> None:
    """Replaying history does not wait for what has not come for long."""
    shelf, place = Shelf(), subscription(LANE)
    shelf.put(LINE[4], 5000)

    told = shelf.serve(place, 10.0, 60_000)

    assert told[0] == TellGap(LANE, 1, 4, "missing")
    assert seqs(told) == [5]


def test_a_filled_gap_ends_the_wait() -> None:
    """What was waited for is told in its place."""
    shelf, place = Shelf(), subscription(LANE)
    shelf.put(LINE[2], 5000)
    assert seqs(shelf.serve(place, 0.0, 5000)) == []
    for header in LINE[:2]:
        note(place, shelf.put(header, 5000))

    told = shelf.serve(place, 0.1, 5100)

    assert seqs(told) == [1, 2, 3]
    assert not any(isinstance(each, TellGap) for each in told)
    assert place.wake_at() is None


def test_a_message_into_a_told_gap_is_late_and_told_once() -> None:
    """A late message is marked, and its copy is not told again."""
    shelf, place = Shelf(), subscription(LANE)
    shelf.put(LINE[2], 0)
    shelf.serve(place, 10.0, 60_000)

    note(place, shelf.put(LINE[0]))
    first = shelf.serve(place, 10.0, 60_000)
    note(place, LINE[0])
    again = shelf.serve(place, 10.0, 60_000)

    assert seqs(first) == [-1]
    assert seqs(again) == []
    assert place.positions == {LANE: 3}


def test_another_candidate_of_a_told_slot_is_late() -> None:
    """A second sender in a slot is told although its position has passed; a copy is not."""
    shelf, place = Shelf(), subscription(LANE)
    shelf.put(LINE[0])
    shelf.serve(place, 0.0, 0)

    note(place, shelf.put(SECOND[0]))
    note(place, LINE[0])

    assert seqs(shelf.serve(place, 0.0, 0)) == [-1]


def test_below_the_floor_nothing_is_waited_for() -> None:
    """What has expired is a gap at once, also when nothing is left at all."""
    shelf, place = Shelf(floor=7), subscription(LANE)
    shelf.put(LINE[8], 0)

    told = shelf.serve(place, 0.0, 0)
    shelf.rows.clear()
    shelf.floor = 12
    place.look_everywhere()
    emptied = shelf.serve(place, 0.0, 0)

    assert told[0] == TellGap(LANE, 1, 7, "expired")
    assert seqs(told) == []  # sequence 8 is still waited for
    assert emptied == [TellGap(LANE, 8, 12, "expired")]


def test_lanes_beyond_the_bound_are_told() -> None:
    """A lane that is not followed is counted and told, once."""
    shelf, place = Shelf(), subscription(LANE, lanes_max=1)
    assert not place.follow(OTHER, OTHER, 0)

    told = shelf.serve(place, 0.0, 0)
    note(place, BESIDE[0])

    assert TellDropped(1, 0) in told
    assert shelf.serve(place, 0.0, 0) == []


def test_a_new_lane_begins_behind_its_position() -> None:
    """A lane that turns up later begins where the subscriber says it was."""
    shelf = Shelf()
    place = Subscription(lanes_max=10, gap_wait_ms=0, begin={OTHER: 2})
    place.follow(LANE, LANE, 0)
    for header in BESIDE[:4]:
        note(place, shelf.put(header))

    assert seqs(shelf.serve(place, 0.0, 0)) == [3, 4]


def test_whatever_comes_into_a_told_gap_is_told() -> None:
    """However many come between two reads, in any order, each once; nothing is counted as lost."""
    shelf, place = Shelf(), subscription(LANE)
    line = headers(LANE, 3 * LATE_MAX)
    shelf.put(line[-1])
    shelf.serve(place, 10.0, 60_000)
    random.Random(7).shuffle(shuffled := line[:-1])
    told: list[Tell] = []
    for start in range(0, len(shuffled), 500):
        for header in shuffled[start : start + 500]:
            note(place, shelf.put(header))
        told += shelf.serve(place, 10.0, 60_000)

    assert sorted(seqs(told)) == sorted(-seq for seq in range(1, 3 * LATE_MAX))
    assert not any(isinstance(each, TellDropped) for each in told)


def test_dropped_notes_lose_nothing_of_a_told_gap() -> None:
    """When notes were dropped the gaps are read as well."""
    shelf, place = Shelf(), subscription(LANE)
    shelf.put(LINE[9])
    shelf.serve(place, 10.0, 60_000)
    for header in LINE[2:6]:
        shelf.put(header)
    place.look_everywhere()

    assert seqs(shelf.serve(place, 10.0, 60_000)) == [-3, -4, -5, -6]


def test_late_candidates_are_bounded() -> None:
    """More further candidates of told slots than LATE_MAX between two reads are counted."""
    shelf, place = Shelf(page=1_000), subscription(LANE)
    for header in headers(LANE, LATE_MAX + 6):
        shelf.put(header)
    shelf.serve(place, 10.0, 60_000)
    for header in headers(LANE, LATE_MAX + 6, signing_key(number=2)):
        note(place, shelf.put(header))

    told = shelf.serve(place, 10.0, 60_000)

    assert len(seqs(told)) == LATE_MAX
    assert TellDropped(0, 6) in told


def test_gaps_that_are_forgotten_are_told() -> None:
    """Beyond GAPS_MAX told gaps the oldest is forgotten, and what may come into it is counted."""
    shelf, place = Shelf(page=5_000), subscription(LANE)
    line = headers(LANE, 3 * GAPS_MAX + 6)
    for header in line[2::3]:
        shelf.put(header)
    told: list[Tell] = []
    for step in range(GAPS_MAX + 3):
        place.wake(10.0 + step)
        told += shelf.serve(place, 10.0 + step, 60_000)

    assert [each for each in told if isinstance(each, TellDropped)] == [TellDropped(0, 4)]
    note(place, shelf.put(line[0]))
    assert seqs(shelf.serve(place, 20_000.0, 60_000)) == []


def test_a_gap_is_coming_while_a_catch_up_may_fill_it() -> None:
    """P48: what is new goes on, what comes is late, what is left when it ends is missing."""
    due = [True]
    shelf = Shelf()
    place = Subscription(lanes_max=10, gap_wait_ms=WAIT_MS, expects=lambda _: due[0])
    place.follow(LANE, LANE, 0)
    shelf.put(LINE[4])
    told = shelf.serve(place, 101.0, 60_000)
    assert told[0] == TellGap(LANE, 1, 4, "coming")
    assert seqs(told) == [5]
    note(place, shelf.put(LINE[1]))
    due[0] = False
    place.wake(102.0)  # not before what is here is read
    assert seqs(shelf.serve(place, 102.0, 60_000)) == [-2]
    place.wake(103.0)
    assert shelf.serve(place, 103.0, 60_000) == [
        TellGap(LANE, 1, 1, "missing"),
        TellGap(LANE, 3, 4, "missing"),
    ]
    assert place.wake_at() is None
    note(place, shelf.put(LINE[3]))
    assert seqs(shelf.serve(place, 104.0, 60_000)) == [-4]


def test_what_comes_while_a_gap_is_told_is_told() -> None:
    """P48: the page that shows the gap was read before it came."""
    shelf = Shelf()
    place = subscription(LANE)
    shelf.put(LINE[4])
    read = place.next_read(100.0)
    assert read is not None
    page = shelf.read(read)
    note(place, shelf.put(LINE[2]))
    place.page(read, page, 100.0, 60_000)
    told = place.drain()
    assert told[0] == TellGap(LANE, 1, 4, "missing")
    assert seqs(told + shelf.serve(place, 100.0, 60_000)) == [5, -3]


def test_what_comes_into_a_gap_while_it_is_read_is_told() -> None:
    """P48: a page that was read before lacks it, wherever in the range it is."""
    shelf = Shelf()
    place = subscription(LANE)
    shelf.put(LINE[4])
    assert seqs(shelf.serve(place, 100.0, 60_000)) == [5]
    note(place, shelf.put(LINE[2]))
    read = place.next_read(100.0)
    assert read is not None
    page = shelf.read(read)
    for header in (LINE[0], LINE[1], LINE[3]):
        note(place, shelf.put(header))
    place.page(read, page, 100.0, 60_000)
    told = place.drain()
    assert sorted(seqs(told + shelf.serve(place, 100.0, 60_000))) == [-4, -3, -2, -1]


def test_a_gap_that_a_catch_up_fills_is_never_missing() -> None:
    """P48: when all of it came nothing is left to tell, and nothing to wake for."""
    shelf = Shelf()
    place = Subscription(lanes_max=10, gap_wait_ms=0, expects=lambda _: True)
    place.follow(LANE, LANE, 0)
    shelf.put(LINE[2])
    assert shelf.serve(place, 100.0, 60_000)[0] == TellGap(LANE, 1, 2, "coming")
    for header in LINE[:2]:
        note(place, shelf.put(header))
    assert seqs(shelf.serve(place, 100.5, 60_000)) == [-1, -2]
    assert place.wake_at() == 100.0 + CATCH_UP_LOOK_S
    place.wake(100.0 + CATCH_UP_LOOK_S)
    assert shelf.serve(place, 102.0, 60_000) == []
    assert place.wake_at() is None


@given(st.sets(st.integers(1, 40), min_size=1), st.sets(st.integers(1, 40)))
def test_what_is_missing_in_the_end_is_what_did_not_come(here: set[int], brought: set[int]) -> None:
    """P48: of all gaps that were coming, each sequence that is not here is told, once."""
    due, shelf, line = [True], Shelf(page=100), headers(LANE, 40)
    place = Subscription(lanes_max=10, gap_wait_ms=0, expects=lambda _: due[0])
    place.follow(LANE, LANE, 0)
    for seq in here:
        shelf.put(line[seq - 1])
    shelf.serve(place, 100.0, 60_000)
    for seq in brought - here:
        note(place, shelf.put(line[seq - 1]))
    shelf.serve(place, 100.0, 60_000)
    due[0] = False
    place.wake(100.0 + CATCH_UP_LOOK_S)
    told = [each for each in shelf.serve(place, 102.0, 60_000) if isinstance(each, TellGap)]
    assert {each.reason for each in told} <= {"missing"}
    missing = [seq for each in told for seq in range(each.first, each.last + 1)]
    assert missing == sorted(set(range(1, max(here | brought))) - here - brought)


def test_a_gap_is_not_coming_for_ever() -> None:
    """P48: after CATCH_UP_WAIT_S it is told as missing although the catch-up is due still."""
    shelf = Shelf()
    place = Subscription(lanes_max=10, gap_wait_ms=WAIT_MS, expects=lambda _: True)
    place.follow(LANE, LANE, 0)
    shelf.put(LINE[4])
    now, told = 100.0, []
    while len(told) < 2 and now < 100.0 + 2 * CATCH_UP_WAIT_S:
        told += [t for t in shelf.serve(place, now, 60_000) if isinstance(t, TellGap)]
        now += CATCH_UP_LOOK_S
        place.wake(now)
    assert told == [TellGap(LANE, 1, 4, "coming"), TellGap(LANE, 1, 4, "missing")]
    assert CATCH_UP_WAIT_S <= now - 100.0 <= CATCH_UP_WAIT_S + 2


def test_what_is_remembered_is_bounded() -> None:
    """A subscription remembers RECENT_MAX slots, however many it tells."""
    shelf, place = Shelf(page=512), subscription(LANE)
    for header in headers(LANE, RECENT_MAX + 10):
        shelf.put(header)

    shelf.serve(place, 0.0, 0)

    assert len(place._recent) == RECENT_MAX


@given(
    st.integers(1, 6),
    st.lists(st.sampled_from([*LINE[:12], *SECOND[:12], *BESIDE[:6]]), max_size=60),
    st.randoms(use_true_random=False),
)
def test_everything_is_told_exactly_once(
    page: int, arrivals: list[MsgHeader], rng: random.Random
) -> None:
    """Whatever order messages arrive in, each content is told once, in order unless late."""
    shelf, place = Shelf(page=page), subscription(LANE, OTHER)
    told: list[Tell] = []
    held: set[bytes] = set()
    for step, header in enumerate(arrivals):
        if header.content_id not in held:
            held.add(header.content_id)
            note(place, shelf.put(header, step))
        if rng.random() < 0.5:
            place.wake(float(step))
            told += shelf.serve(place, float(step), step)
    end = len(arrivals) + 10.0
    told += shelf.serve(place, end, int(end * 1000))
    place.wake(end + 10)
    told += shelf.serve(place, end + 10, int(end * 1000) + 10_000)
    contents = [each.message.header.content_id for each in told if isinstance(each, Told)]

    assert sorted(contents) == sorted(held)
    for lane in (LANE, OTHER):
        in_order = [
            each.message.seq
            for each in told
            if isinstance(each, Told) and not each.late and each.message.namespace_id == lane
        ]
        assert in_order == sorted(in_order)


def test_after_dropped_notes_new_lanes_are_looked_for() -> None:
    """A lane whose first note was dropped is found by looking, and read from its beginning."""
    followed = subscription(LANE)
    assert not followed.next_search()
    followed.look_everywhere()
    assert followed.next_search()
    assert not followed.next_search()

    followed.found([(LANE, LANE), (OTHER, LANE)])

    reads = [followed.next_read(), followed.next_read()]
    assert {read.namespace_id: read.after for read in reads if read} == {LANE: 0, OTHER: 0}


def test_late_messages_that_did_not_fit_are_wanted_again() -> None:
    """Of what was asked for, the rest of a full answer comes with the next; the missing do not."""
    followed = subscription(LANE)
    wanted = [ContentId(bytes([n]) * 32) for n in range(4)]
    followed._late.extend(wanted)
    assert followed.next_late() == wanted
    assert followed.late(wanted, [], [wanted[0], wanted[2]])
    assert followed.next_late() == [wanted[1], wanted[3]]
    assert not followed.late([wanted[1], wanted[3]], [], [])  # nothing was answered: not at once
    assert followed.next_late() == [wanted[1], wanted[3]]


def test_a_position_above_everything_held_is_told_once() -> None:
    """Not when it is the latest itself; the lane goes on when messages pass the position."""
    shelf = Shelf(held=2)
    beyond, level = subscription(LANE, after=3), subscription(LANE, after=2)
    for header in LINE[:2]:
        shelf.put(header)

    told = shelf.serve(beyond, 0.0, 0)
    assert told == [TellBeyond(LANE, 2, 3), TellLive({LANE: 3})]
    assert shelf.serve(level, 0.0, 0) == [TellLive({LANE: 2})]
    note(beyond, shelf.put(LINE[2]))
    beyond.look_everywhere()
    assert shelf.serve(beyond, 0.0, 0) == []
    note(beyond, shelf.put(LINE[3]))
    assert seqs(shelf.serve(beyond, 0.0, 0)) == [4]


def test_a_namespace_that_only_its_lanes_are_written_to_is_not_told_as_beyond() -> None:
    """One position for all lanes says nothing of it, unless nothing else is there."""
    shelf = Shelf(held=0)
    alone, beside = subscription(LANE, after=1), subscription(LANE, OTHER, after=1)

    assert shelf.serve(alone, 0.0, 0) == [TellBeyond(LANE, 0, 1), TellLive({LANE: 1})]
    assert shelf.serve(beside, 0.0, 0) == [TellLive({LANE: 1, OTHER: 1})]


# An ordered view.


def ordered(*bad: MsgHeader) -> Subscription:
    """Return an ordered view of one lane that takes all but some."""

    def in_order(
        header: MsgHeader, parent: NamespaceId, position: int, before_ms: int | None
    ) -> Verdict:
        assert parent == LANE
        assert header.seq == position + 1
        assert before_ms is None or position
        return ignore(Code.POLICY_VIOLATION, "no") if header in bad else ACCEPTED

    made = Subscription(lanes_max=4, gap_wait_ms=WAIT_MS, in_order=in_order)
    made.follow(LANE, LANE, 0)
    return made


def shown(tells: list[Tell]) -> list[tuple[str, int, int]]:
    """Return what was told, short."""
    found = []
    for tell in tells:
        match tell:
            case Told(message):
                found.append(("message", message.seq, message.seq))
            case TellRefused(_, seq, _, code, _):
                found.append(("refused", seq, code))
            case TellWaiting(_, first, last):
                found.append(("waiting", first, last))
            case TellGap(_, first, last, reason):
                found.append((reason, first, last))
    return found


def test_an_ordered_view_never_passes_a_hole() -> None:
    """It says what it waits for, once, and goes on when that comes (11-14)."""
    shelf, view = Shelf(), ordered()
    for seq in (1, 2, 4):
        shelf.put(LINE[seq - 1])

    assert shown(shelf.serve(view, 0.0, 0)) == [("message", 1, 1), ("message", 2, 2)]
    assert view.wake_at() == WAIT_MS / 1000
    view.wake(1.0)
    assert shown(shelf.serve(view, 1.0, 1000)) == [("waiting", 3, 3)]
    note(view, shelf.put(LINE[4]))
    assert view.next_read() is None  # not what it waits for
    view.wake(1000.0)
    assert shown(shelf.serve(view, 1000.0, 0)) == []
    note(view, shelf.put(LINE[2]))
    assert shown(shelf.serve(view, 1001.0, 0)) == [("message", n, n) for n in (3, 4, 5)]


def test_of_a_slot_the_first_candidate_that_passes_is_told() -> None:
    """The others with their codes, each once; a later one cannot have it any more (11-46)."""
    low, high = sorted((LINE[0], SECOND[0]), key=lambda header: header.content_id)
    shelf, view = Shelf(), ordered(low)
    shelf.put(low)
    assert shown(shelf.serve(view, 0.0, 0)) == [("refused", 1, Code.POLICY_VIOLATION)]

    note(view, shelf.put(high))
    assert shown(shelf.serve(view, 0.0, 0)) == [("message", 1, 1)]

    late = headers(LANE, 1, signing_key(number=3))[0]
    note(view, shelf.put(late))
    assert shown(shelf.serve(view, 0.0, 0)) == [("refused", 1, Code.CONTENTION)]


def test_behind_a_refused_message_nothing_is_told() -> None:
    """Its successor is not the next one of what was taken (LP-6411 §2.2)."""
    shelf, view = Shelf(), ordered(LINE[1])
    for seq in (1, 2, 3):
        shelf.put(LINE[seq - 1])

    told = shown(shelf.serve(view, 0.0, 0))
    view.wake(1.0)
    told += shown(shelf.serve(view, 1.0, 1000))

    assert told == [("message", 1, 1), ("refused", 2, Code.POLICY_VIOLATION), ("waiting", 2, 2)]


def test_an_ordered_view_passes_what_has_expired() -> None:
    """As a gap, because it never comes; also while it waits for it."""
    shelf, view = Shelf(), ordered()
    shelf.put(LINE[3])
    view.wake(0.0)
    shelf.serve(view, 0.0, 0)
    view.wake(1.0)
    assert shown(shelf.serve(view, 1.0, 1000)) == [("waiting", 1, 3)]

    shelf.floor = 3
    view.wake(1.0 + LOOK_S)

    assert shown(shelf.serve(view, 1.0 + LOOK_S, 0)) == [("expired", 1, 3), ("message", 4, 4)]


@given(order=st.permutations(range(1, 13)), page=st.integers(1, 5))
def test_whatever_comes_first_an_ordered_view_is_in_order(order: list[int], page: int) -> None:
    """Each message once, none before the one below it."""
    shelf, view = Shelf(page=page), ordered()
    told: list[tuple[str, int, int]] = []
    now = 0.0
    for seq in order:
        note(view, shelf.put(LINE[seq - 1]))
        now += 10.0
        view.wake(now)
        told += shown(shelf.serve(view, now, 0))

    assert [seq for kind, seq, _ in told if kind == "message"] == list(range(1, 13))
    assert not [each for each in told if each[0] not in ("message", "waiting")]


# What is wanted: senders, a rate, blobs.


def wishing(**wish: object) -> Subscription:
    """Return a subscription of one lane with a wish."""
    made = Subscription(lanes_max=4, gap_wait_ms=0, wish=Wish(**wish))  # type: ignore[arg-type]
    made.follow(LANE, LANE, 0)
    return made


def test_only_the_senders_that_are_wanted_are_told() -> None:
    """The position passes over the others, and a gap is still told (20-39)."""
    shelf, place = Shelf(), wishing(senders=frozenset({SECOND[0].sender_address}))
    for header in (LINE[0], SECOND[1], LINE[2], SECOND[4]):
        shelf.put(header)

    told = shelf.serve(place, 0.0, 0)

    assert shown(told) == [("message", 2, 2), ("missing", 4, 4), ("message", 5, 5)]
    assert place.positions == {LANE: 5}


def test_a_rate_makes_a_subscriber_slower_and_loses_nothing() -> None:
    """As many at once as in a second, then one after the other (20-40)."""
    shelf, place = Shelf(), wishing(max_rate=4)
    for header in LINE[:12]:
        shelf.put(header)
    now, times = 100.0, []
    while len(times) < 12:
        page = shelf.page
        while (read := place.next_read(now)) is not None:
            found = [r for r in shelf.rows if r.seq > read.after][: min(page, read.limit)]
            more = found and found[-1].seq < 12
            cursor = found[-1].seq.to_bytes(8, "big") + bytes(32) if more else b""
            place.page(read, ReadPage(found, cursor, 0), now, 0)
        times += [now] * len(seqs(place.drain()))
        if (wake_at := place.wake_at()) is not None:
            now = wake_at
            place.wake(now)

    assert times[:4] == [100.0] * 4
    assert times[4:] == pytest.approx([100.25 + 0.25 * n for n in range(8)])


def test_a_blob_that_comes_later_is_told() -> None:
    """Its message once more, complete; and only once (LP-6420 §8.1; 20-38)."""
    shelf, place = Shelf(), wishing(blobs=Blobs.LATER)
    header = shelf.put(LINE[0])
    shelf.rows[0].blob = None
    first = [t for t in shelf.serve(place, 0.0, 0) if isinstance(t, Told)]
    shelf.rows[0] = replace(shelf.rows[0], blob=b"x")
    place.blob_came(header.content_id)
    place.blob_came(header.content_id)
    assert len(place._late) == 1

    again = [t for t in shelf.serve(place, 0.0, 0) if isinstance(t, Told)]

    assert [(t.message.seq, t.completes) for t in first] == [(1, False)]
    assert [(t.message.seq, t.message.blob, t.completes) for t in again] == [(1, b"x", True)]
    assert seqs(shelf.serve(place, 0.0, 0)) == []


def test_a_blob_that_comes_while_its_message_is_read_is_told() -> None:
    """The page was read before, and is told after."""
    shelf, place = Shelf(), wishing(blobs=Blobs.LATER)
    header = shelf.put(LINE[0])
    read, page = place.next_read(), [replace(shelf.rows[0], blob=None)]
    assert read is not None
    place.blob_came(header.content_id)
    place.page(read, ReadPage(page, b"", 0), 0.0, 0)

    told = [t for t in [*place.drain(), *shelf.serve(place, 0.0, 0)] if isinstance(t, Told)]

    assert [(t.message.blob, t.completes) for t in told] == [(None, False), (b"x", True)]


def test_notes_that_were_dropped_cost_no_blob() -> None:
    """Everything that is waited for is looked at."""
    shelf, place = Shelf(), wishing(blobs=Blobs.LATER)
    for header in LINE[:3]:
        shelf.put(header)
    for row in shelf.rows:
        row.blob = None
    shelf.serve(place, 0.0, 0)
    shelf.rows[1] = replace(shelf.rows[1], blob=b"x")

    place.look_everywhere()
    told = [t for t in shelf.serve(place, 0.0, 0) if isinstance(t, Told)]

    assert [(t.message.seq, t.completes) for t in told] == [(2, True)]


def test_messages_that_wait_for_blobs_are_bounded() -> None:
    """What is forgotten is counted and told."""
    place = wishing(blobs=Blobs.LATER)
    rows = [StoredMessage(header.encode(), None, 0, 1) for header in LINE[:3]]
    read = place.next_read()
    assert read is not None
    with patch.object(subscription_module, "AWAITED_MAX", 2):
        place.page(read, ReadPage(rows, b"", 0), 0.0, 0)

    assert TellDropped(0, 0, 1) in place.drain()


@pytest.mark.parametrize("blobs", [Blobs.HELD, Blobs.NONE])
def test_who_wants_no_later_blobs_is_told_of_none(blobs: Blobs) -> None:
    """And who wants none gets none."""
    shelf, place = Shelf(), wishing(blobs=blobs)
    header = shelf.put(LINE[0])
    (told,) = [t for t in shelf.serve(place, 0.0, 0) if isinstance(t, Told)]
    place.blob_came(header.content_id)

    assert told.message.blob == (None if blobs is Blobs.NONE else b"x")
    assert seqs(shelf.serve(place, 0.0, 0)) == []


def test_a_sender_is_an_address_or_a_key_field() -> None:
    """Both name the same; anything else is refused."""
    key = signing_key(number=2)
    address = SECOND[0].sender_address

    assert sender_of_any(address) == sender_of_any(key.public_field) == address
    for wrong in (b"", b"\1" * 19, b"\x09" * 33, b"\1" * 32):
        with pytest.raises(BusArgumentError):
            sender_of_any(wrong)
