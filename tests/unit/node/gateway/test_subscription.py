"""A subscriber's place, against a list that is the store."""

import random
from dataclasses import dataclass, field

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
from luxrelay.node.gateway.subscription import (
    LATE_MAX,
    LOOK_S,
    RECENT_MAX,
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

    def serve(self, subscription: Subscription, now: float, now_ms: int) -> list[Tell]:
        """Do what the driver does until there is nothing to read; return what was told."""
        told: list[Tell] = []
        while (read := subscription.next_read()) is not None:
            found = [r for r in self.rows if r.namespace_id == read.namespace_id]
            if read.cursor:
                seq, content = int.from_bytes(read.cursor[:8], "big"), read.cursor[8:]
                found = [r for r in found if (r.seq, r.header.content_id) > (seq, content)]
            else:
                found = [r for r in found if r.seq > read.after]
            page, more = found[: self.page], found[self.page :]
            cursor = page[-1].seq.to_bytes(8, "big") + page[-1].header.content_id if more else b""
            subscription.page(read, ReadPage(page, cursor, self.floor, held=self.held), now, now_ms)
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


def test_late_messages_are_bounded() -> None:
    """More late messages than LATE_MAX between two reads are counted and told."""
    shelf, place = Shelf(), subscription(LANE)
    line = headers(LANE, LATE_MAX + 6)
    shelf.put(line[-1])
    shelf.serve(place, 10.0, 60_000)
    for header in line[:-1]:
        note(place, shelf.put(header))

    told = shelf.serve(place, 10.0, 60_000)

    assert len(seqs(told)) == LATE_MAX
    assert TellDropped(0, 5) in told


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
