"""Scalable data sync, several participants in memory and in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.channel.actions import Purpose
from luxrelay.channel.bloom import RollingBloom
from luxrelay.channel.params import RepairConfig, SdsConfig
from luxrelay.channel.state import StateTable
from luxrelay.channel.wire import HistoryEntry, SdsMessage

Make = Callable[..., Any]


def crafted(net: Any, name: str, *names: str, clock: int = 0, **fields: Any) -> bytes:
    """Return a content message of mallory with a causal history."""
    values: dict[str, Any] = {
        "sender_id": "mallory",
        "message_id": name,
        "channel_id": "chan",
        "lamport_timestamp": clock or net.now_ms,
        "causal_history": tuple(HistoryEntry(each, None, "mallory") for each in names),
        "content": name.encode(),
    }
    return SdsMessage(**{**values, **fields}).encode()


def test_delivered_and_acknowledged(new_net: Make) -> None:
    """A message is delivered once, and its sender learns of it within the acknowledging time."""
    net = new_net("ab")
    name = net["a"].say(b"hello")

    net.run(1.1)

    assert net["b"].delivered == [("a", b"hello")]
    assert net["a"].acknowledged == [name]
    assert net["a"].delivered == []
    assert net["a"].machine.stats.own == 1


def test_reply_acknowledges_without_a_sync_message(new_net: Make) -> None:
    """A message of the other side acknowledges what it names, and no sync message is needed."""
    net = new_net("ab")
    name = net["a"].say(b"question")
    net.run(0.1)
    net["b"].say(b"answer")
    net.run(0.1)

    assert net["a"].acknowledged == [name]
    assert net["b"].machine.stats.syncs == 0


def test_one_witness_is_enough(new_net: Make) -> None:
    """Of nine receivers few say that they have a message: the others heard it said."""
    net = new_net("abcdefghij")
    net["a"].say(b"hello")

    net.run(3.0)

    assert all(net[name].delivered == [("a", b"hello")] for name in "bcdefghij")
    assert len(net["a"].acknowledged) == 1
    assert sum(net[name].machine.stats.syncs for name in "bcdefghij") <= 3


def test_a_sender_naming_its_own_is_no_witness(new_net: Make) -> None:
    """Messages of one sender name its earlier ones; these are acknowledged all the same."""
    net = new_net("ab")
    names = [net["a"].say(bytes([number + 1])) for number in range(6)]
    net.run(1.2)

    assert net["b"].machine.stats.syncs == 1
    assert sorted(net["a"].acknowledged) == sorted(names)


def test_equal_contents_are_two_messages(new_net: Make) -> None:
    """The same content twice, in the same millisecond, is delivered twice."""
    net = new_net("ab")
    first, second = net["a"].say(b"ok"), net["a"].say(b"ok")
    net.run(2.0)

    assert first != second
    assert net["b"].delivered == [("a", b"ok")] * 2


def test_duplicates_are_delivered_once(new_net: Make) -> None:
    """Bytes that arrive again are counted and change nothing but that they are named again."""
    net = new_net("ab")
    net["a"].say(b"hello")
    net.run(0.1)
    data = net["a"].sent[0][1].data

    net["b"].take(data)
    net["b"].take(data)

    assert net["b"].delivered == [("a", b"hello")]
    assert net["b"].machine.stats.duplicate == 2


def test_own_echo_is_ignored_before_anything_else(new_net: Make) -> None:
    """What comes back to its sender acknowledges nothing, even if it names its own messages."""
    net = new_net("a")
    net["a"].say(b"one")
    net["a"].say(b"two")

    net.run(1.0)

    assert net["a"].acknowledged == []
    assert net["a"].machine.stats.own == 2


def test_foreign_and_nameless_messages_are_counted(new_net: Make) -> None:
    """Another channel's messages, and those without a sender or id, do nothing."""
    net = new_net("a")
    net["a"].take(crafted(net, "m", channel_id="other"))
    net["a"].take(crafted(net, "m", sender_id=""))
    net["a"].take(crafted(net, ""))

    assert (net["a"].machine.stats.foreign, net["a"].machine.stats.invalid) == (1, 2)
    assert net["a"].delivered == []
    assert set(net["a"].rows) == set()


def test_causal_order_whatever_arrives_first(new_net: Make) -> None:
    """m3, m2, m1 arrive, m1, m2, m3 are delivered, as soon as m1 is there."""
    net = new_net("a")
    messages = [
        crafted(net, "m1", clock=1),
        crafted(net, "m2", "m1", clock=2),
        crafted(net, "m3", "m2", clock=3),
    ]
    net["a"].take(messages[2])
    net["a"].take(messages[1])
    assert net["a"].delivered == []
    assert net["a"].machine.waiting == 2

    net["a"].take(messages[0])

    assert [content for _, content in net["a"].delivered] == [b"m1", b"m2", b"m3"]
    assert net["a"].machine.waiting == 0
    assert net["a"].machine.log.ids() == ["m1", "m2", "m3"]


def test_released_in_the_order_of_clocks(new_net: Make) -> None:
    """What one message frees at once is delivered by clock, ties by id."""
    net = new_net("a")
    for name, clock in (("c", 5), ("a", 5), ("b", 4)):
        net["a"].take(crafted(net, name, "root", clock=clock))

    net["a"].take(crafted(net, "root", clock=1))

    assert [content for _, content in net["a"].delivered] == [b"root", b"b", b"a", b"c"]


def test_log_is_sorted_by_clock_then_id(new_net: Make) -> None:
    """Messages without a common past stand in the log by clock and id, each once."""
    net = new_net("a")
    for name, clock in (("z", 9), ("b", 3), ("a", 3), ("b", 3)):
        net["a"].take(crafted(net, name, clock=clock))

    assert net["a"].machine.log.ids() == ["a", "b", "z"]


def test_clock_grows_and_adopts_within_reason(new_net: Make) -> None:
    """Our clock is above what we delivered, and at most ten minutes ahead of the wall clock."""
    net = new_net("ab")
    net["a"].take(crafted(net, "near", clock=net.now_ms + 60_000))
    near = net["a"].machine.clock
    net["a"].take(crafted(net, "far", clock=(1 << 64) - 1))

    assert near == net.now_ms + 60_000
    assert net["a"].machine.clock == net.now_ms + 600_000
    net["a"].say(b"next")
    sent = SdsMessage.decode(net["a"].sent[-1][1].data)
    assert sent.lamport_timestamp == net.now_ms + 600_001


def test_clocks_far_ahead_do_not_hold_the_log(new_net: Make, quick: Make) -> None:
    """Messages with clocks of the far future age like others: new ones keep their place."""
    net = new_net("a", quick(log_max=5))
    for number in range(5):
        net["a"].take(crafted(net, f"far{number}", clock=(1 << 64) - 1 - number))
    net.now += 700.0
    for name in ("n2", "n1"):
        net["a"].take(crafted(net, name))

    assert [content for _, content in net["a"].delivered][-2:] == [b"n2", b"n1"]
    assert set(net["a"].machine.log.ids()) >= {"n1", "n2"}


def test_history_names_the_newest_in_order_and_the_tips(new_net: Make) -> None:
    """A message names the newest of the log and what nobody has named yet, by clock."""
    net = new_net("a")
    for name, clock in (("t1", 1), ("t2", 2), ("t3", 3), ("t4", 4)):
        net["a"].take(crafted(net, name, clock=clock))
    net["a"].take(crafted(net, "joins", "t1", "t2", clock=5))

    net["a"].say(b"x")

    named = [one.message_id for one in SdsMessage.decode(net["a"].sent[-1][1].data).causal_history]
    assert named[:3] == ["t3", "t4", "joins"] or set(named) == {"t1", "t2", "t3", "t4", "joins"}
    assert named == sorted(named, key=["t1", "t2", "t3", "t4", "joins"].index)
    net["a"].say(b"y")
    second = SdsMessage.decode(net["a"].sent[-1][1].data).causal_history
    assert second[-1].message_id == net["a"].sent[-2][1].message_id


def test_bare_protocol_names_the_newest_only(new_net: Make, quick: Make) -> None:
    """With `causal_history_max` equal to `causal_history_size` nothing else is named."""
    net = new_net("a", quick(causal_history_max=2))
    for number in range(5):
        net["a"].take(crafted(net, f"m{number}", clock=number + 1))

    net["a"].say(b"x")

    history = SdsMessage.decode(net["a"].sent[-1][1].data).causal_history
    assert [one.message_id for one in history] == ["m3", "m4"]


def test_causal_history_max_bounds_what_is_named(new_net: Make, quick: Make) -> None:
    """However many tips there are, a message names no more; the next ones name the rest."""
    net = new_net("a", quick(causal_history_max=8))
    for number in range(40):
        net["a"].take(crafted(net, f"m{number:02}", clock=number + 1))

    net["a"].say(b"x")
    history = SdsMessage.decode(net["a"].sent[-1][1].data).causal_history
    assert len(history) == 8

    net.run(60.0)
    named = {
        one.message_id
        for _, sent in net["a"].sent
        for one in SdsMessage.decode(sent.data).causal_history
    }
    assert named >= {f"m{number:02}" for number in range(40)}


def test_message_does_not_show_itself(new_net: Make) -> None:
    """The filter of a message shows what was received before, not the message."""
    net = new_net("a")
    first = net["a"].say(b"one")
    second = net["a"].say(b"two")
    bloom = SdsMessage.decode(net["a"].sent[1][1].data).bloom_filter
    twin = RollingBloom(100, 0.001)
    twin.add(first)

    assert bloom == twin.encode()
    twin.add(second)
    assert bloom != twin.encode()


def test_no_filter_when_configured_so(new_net: Make, quick: Make) -> None:
    """`bloom_capacity` 0 leaves the field out, and acknowledgement works by history alone."""
    net = new_net("ab", quick(bloom_capacity=0))
    net["a"].say(b"x")
    net.run(2.0)

    assert SdsMessage.decode(net["a"].sent[0][1].data).bloom_filter is None
    assert len(net["a"].acknowledged) == 1


def filter_of(*ids: str) -> bytes:
    """Return a filter that shows ids."""
    bloom = RollingBloom(100, 0.001)
    for each in ids:
        bloom.add(each)
    return bloom.encode()


def sync(net: Any, sender: str, *names: str, **fields: Any) -> bytes:
    """Return a sync message."""
    return SdsMessage(
        sender_id=sender,
        message_id=f"sync-{sender}",
        channel_id="chan",
        lamport_timestamp=net.now_ms,
        causal_history=tuple(HistoryEntry(name, None, "a") for name in names),
        **fields,
    ).encode()


def test_two_participants_filters_acknowledge(new_net: Make) -> None:
    """A filter shows a message possibly; a second participant's makes it certain enough."""
    net = new_net("a")
    name = net["a"].say(b"x")

    net["a"].take(sync(net, "b", bloom_filter=filter_of(name)))
    net["a"].take(sync(net, "b", bloom_filter=filter_of(name, "more")))
    assert net["a"].acknowledged == []

    net["a"].take(sync(net, "c", bloom_filter=filter_of(name)))
    assert net["a"].acknowledged == [name]


def test_filter_that_shows_others_acknowledges_nothing(new_net: Make) -> None:
    """Filters without the message, and of another length, change nothing."""
    net = new_net("a")
    net["a"].say(b"x")
    for sender in "bcd":
        net["a"].take(sync(net, sender, bloom_filter=filter_of("other")))
        net["a"].take(sync(net, sender, bloom_filter=b"\xff" * 100))
        net["a"].take(sync(net, sender, bloom_filter=b""))

    assert net["a"].acknowledged == []
    assert net["a"].machine.stats.filters_ignored == 6


def test_history_of_a_stranger_acknowledges_only_what_it_names(new_net: Make) -> None:
    """An id that is not ours acknowledges nothing, ours does at once."""
    net = new_net("a")
    first, second = net["a"].say(b"x"), net["a"].say(b"y")

    net["a"].take(sync(net, "b", "unknown", second))

    assert net["a"].acknowledged == [second]
    assert net["a"].machine.unacknowledged == 1
    net["a"].take(sync(net, "b", first, second))
    assert net["a"].acknowledged == [second, first]


def transmissions(net: Any, name: str) -> list[float]:
    """Return when a participant sent its content messages."""
    return [
        round(at - 100.0, 3)
        for at, sent in net[name].sent
        if sent.purpose in {Purpose.FIRST, Purpose.AGAIN}
    ]


@pytest.mark.parametrize("most", [0, 1, 5])
def test_exhausted_after_exactly_max_retransmissions(new_net: Make, quick: Make, most: int) -> None:
    """With nobody there a message goes out 1 + max times, and fails one timeout after the last."""
    net = new_net("a", quick(max_retransmissions=most))
    name = net["a"].say(b"x")

    net.run(5.0 * (most + 1) - 0.001)
    assert net["a"].exhausted == []
    net.run(0.002)

    assert net["a"].exhausted == [name]
    assert transmissions(net, "a") == [5.0 * number for number in range(most + 1)]
    assert len({sent.data for _, sent in net["a"].sent if sent.purpose is not Purpose.SYNC}) == 1
    net.run(100.0)
    assert net["a"].exhausted == [name]


def test_possibly_acknowledged_waits_twice_as_long(new_net: Make) -> None:
    """A message that one filter shows is sent again after two timeouts, not one."""
    net = new_net("a")
    name = net["a"].say(b"x")
    net["a"].take(sync(net, "b", bloom_filter=filter_of(name)))

    net.run(25.0)

    assert transmissions(net, "a") == [0.0, 10.0, 20.0]


def test_acknowledgement_ends_retransmission(new_net: Make) -> None:
    """Nothing is sent again once it is acknowledged, and late acknowledgements say nothing."""
    net = new_net("a")
    name = net["a"].say(b"x")
    net.run(6.0)
    net["a"].take(sync(net, "b", name))
    net.run(50.0)

    assert transmissions(net, "a") == [0.0, 5.0]
    net["a"].take(sync(net, "c", name))
    assert net["a"].acknowledged == [name]


def test_timeout_begins_with_the_dispatch(new_net: Make) -> None:
    """A message held back is not sent again, however long; failing to dispatch counts."""
    net = new_net("a")
    machine = net["a"].machine
    name = machine.send(b"x", net.now, net.now_ms)
    machine.drain()

    machine.wake(net.now + 1_000.0, net.now_ms)
    assert [one for one in machine.drain() if getattr(one, "message_id", "") == name] == []

    machine.dispatch_failed(name, net.now)
    machine.wake(net.now + 5.0, net.now_ms)
    (again,) = [one for one in machine.drain() if getattr(one, "message_id", "") == name]
    assert (again.purpose, again.attempt) == (Purpose.AGAIN, 1)


def test_abandoned_is_not_sent_again(new_net: Make) -> None:
    """A message that was given up is neither sent again nor reported."""
    net = new_net("a")
    name = net["a"].say(b"x")
    net["a"].machine.abandon(name)
    net.run(60.0)

    assert (transmissions(net, "a"), net["a"].exhausted) == ([0.0], [])


def test_missing_is_fetched_from_a_store(new_net: Make) -> None:
    """A lost message that was stored is fetched by its hint, shortly after it is missed."""
    net = new_net("ab", stored=True)
    net["b"].up = False
    net["a"].say(b"one")
    net.run(0.1)
    net["b"].up = True
    net["a"].say(b"two")

    net.run(0.5)

    assert [content for _, content in net["b"].delivered] == [b"one", b"two"]


def test_retrieval_is_repeated_and_bounded(new_net: Make, quick: Make) -> None:
    """What a store does not have is asked for every interval, few at a time."""
    net = new_net("a", quick(retrievals_max=2, retrieval_interval_ms=1_000, lost_timeout_ms=3_500))
    asked: list[str] = []
    participant = net["a"]
    participant.do = lambda action: (  # type: ignore[method-assign]
        asked.append(action.entry.message_id) if hasattr(action, "entry") else None
    )
    names = [f"h{number}" for number in range(5)]
    history = tuple(HistoryEntry(name, b"hint", "b") for name in names)
    participant.take(crafted(net, "m", causal_history=history))
    net.run(2.0)
    assert len(asked) == 2

    for name in asked:
        participant.machine.fetched(name, net.now)
    net.run(0.1)
    assert len(set(asked)) == 4
    net.run(9.0)
    assert participant.machine.missing == []


def test_repair_brings_what_was_lost(new_net: Make) -> None:
    """A message nobody stores is asked for, and another participant than its sender answers."""
    net = new_net("abc")
    net["c"].up = False
    net["a"].say(b"one")
    net.run(3.0)
    net["a"].up = False
    net["c"].up = True
    net["b"].say(b"two")

    net.run(8.0)

    assert [content for _, content in net["c"].delivered] == [b"one", b"two"]
    assert net["b"].machine.stats.answers >= 1
    answer = next(sent for _, sent in net["b"].sent if sent.purpose is Purpose.ANSWER)
    assert answer.data == net["a"].sent[0][1].data


def test_last_message_is_repaired_too(new_net: Make) -> None:
    """A lost message that no other follows is found out about by a sync message."""
    net = new_net("abc")
    net["c"].up = False
    net["a"].say(b"last")
    net.run(3.0)
    net["c"].up = True

    net.run(60.0, lambda: bool(net["c"].delivered))

    assert net["c"].delivered == [("a", b"last")]


def test_lost_is_reported_and_the_rest_delivered(new_net: Make, quick: Make) -> None:
    """What never comes is lost after its time, and everything that waited is delivered then."""
    net = new_net("a", quick(lost_timeout_ms=20_000))
    net["a"].take(crafted(net, "m2", "m1", clock=2))
    net.run(5.0)
    net["a"].take(crafted(net, "m3", "m1", "m2", clock=3))
    net.run(14.0)
    assert (net["a"].delivered, net["a"].lost) == ([], [])

    net.run(2.0)

    assert net["a"].lost == ["m1"]
    assert [content for _, content in net["a"].delivered] == [b"m2", b"m3"]
    net["a"].take(crafted(net, "m4", "m1", clock=4))
    assert net["a"].delivered[-1] == ("mallory", b"m4")


def test_lost_message_that_comes_after_all_is_delivered(new_net: Make, quick: Make) -> None:
    """A late message is delivered, once, and may be depended on again."""
    net = new_net("a", quick(lost_timeout_ms=1_000))
    net["a"].take(crafted(net, "m2", "m1", clock=2))
    net.run(2.0)
    net["a"].restart()

    net["a"].take(crafted(net, "m1", clock=1))
    net["a"].take(crafted(net, "m1", clock=1))

    assert [content for _, content in net["a"].delivered] == [b"m2", b"m1"]
    assert not [key for table, key in net["a"].rows if key.startswith(b"lost:")]


def test_recent_max_bounds_lost_ids(new_net: Make, quick: Make) -> None:
    """Of lost ids the newest are remembered."""
    net = new_net("a", quick(lost_timeout_ms=1_000, recent_max=3))
    for number in range(9):
        net["a"].take(crafted(net, f"m{number}", f"lost{number}", clock=number + 1))
    net.run(2.0)

    assert len(net["a"].lost) == 9
    assert len([key for table, key in net["a"].rows if key.startswith(b"lost:")]) == 3


def test_full_buffer_takes_no_more_until_the_gap_closes(new_net: Make, quick: Make) -> None:
    """`incoming_max` bounds what waits; what is missing is taken all the same, and frees it."""
    net = new_net("a", quick(incoming_max=3))
    for number in range(2, 9):
        net["a"].take(crafted(net, f"m{number}", f"m{number - 1}", clock=number))
    assert net["a"].machine.waiting == 3
    assert net["a"].machine.stats.refused == 4

    net["a"].take(crafted(net, "m1", clock=1))

    assert [content for _, content in net["a"].delivered] == [b"m1", b"m2", b"m3", b"m4"]
    for number in range(5, 9):
        net["a"].take(crafted(net, f"m{number}", f"m{number - 1}", clock=number))
    assert len(net["a"].delivered) == 8


def test_incoming_bytes_max_bounds_what_waits(new_net: Make, quick: Make) -> None:
    """Bytes are bounded as well as messages."""
    net = new_net("a", quick(incoming_bytes_max=1_000))
    for number in range(2, 9):
        net["a"].take(
            crafted(net, f"m{number}", f"x{number}", clock=number, content=bytes([7]) * 300)
        )

    assert net["a"].machine.waiting == 2
    assert net["a"].machine._incoming.size <= 1_000


def test_a_needed_message_evicts_the_furthest(new_net: Make, quick: Make) -> None:
    """A deep gap closes with a full buffer too: what others wait for takes the last place."""
    net = new_net("a", quick(incoming_max=3))
    for number in (4, 5, 6):
        net["a"].take(crafted(net, f"m{number}", f"m{number - 1}", clock=number))
    for number in (3, 2, 1):
        net["a"].take(crafted(net, f"m{number}", *([f"m{number - 1}"] if number > 1 else []),
                              clock=number))  # fmt: skip

    assert [content for _, content in net["a"].delivered][:4] == [b"m1", b"m2", b"m3", b"m4"]


def test_a_needed_large_message_stays_within_the_bytes(new_net: Make, quick: Make) -> None:
    """What others wait for takes the room of as many as it needs, not of one."""
    net = new_net("a", quick(incoming_bytes_max=5_000))
    for number in range(10, 50):
        net["a"].take(crafted(net, f"m{number}", f"x{number}", clock=number, content=bytes(100)))
    full = net["a"].machine._incoming.size

    for number in (10, 11):
        net["a"].take(crafted(net, f"x{number}", "gone", clock=5, content=bytes(1_500)))

    assert full > 4_000
    assert 3_000 < net["a"].machine._incoming.size <= 5_000
    assert "x10" in net["a"].machine._incoming
    assert "x11" in net["a"].machine._incoming


@pytest.mark.parametrize(
    ("waiting", "asked"), [(4, 1_000), (1_000, 2), (4, 2)], ids=["waiting", "asked", "both"]
)
def test_what_found_no_place_is_asked_for_again(
    new_net: Make, quick: Make, waiting: int, asked: int
) -> None:
    """However little may wait and be asked for at once, an absent one gets all in the end.

    Somebody else has acknowledged the messages, so nobody sends them again unasked.
    """
    repair = RepairConfig(t_min_ms=500, t_max_ms=3_000, buffer_max=asked)
    net = new_net("abc", quick(incoming_max=waiting, repair=repair))
    net["b"].up = False
    for _ in range(60):
        net["a"].say(b"x")
        net.run(0.5)
    net.run(20.0, lambda: len(net["a"].acknowledged) == 60)
    assert len(net["a"].acknowledged) == 60
    net["b"].up = True
    net["a"].say(b"the end")

    net.run(2_000.0, lambda: len(net["b"].delivered) == 61)

    assert len(net["b"].delivered) == 61
    assert net["b"].lost == []


def test_log_max_forgets_the_oldest_and_refuses_older(new_net: Make, quick: Make) -> None:
    """Beyond `log_max` the oldest go; what is older than they were is not delivered again."""
    net = new_net("a", quick(log_max=5))
    messages = [crafted(net, f"m{number}", clock=number + 1) for number in range(8)]
    for data in messages:
        net["a"].take(data)
    assert net["a"].machine.log.ids() == [f"m{number}" for number in range(3, 8)]

    net["a"].restart()
    for data in messages:
        net["a"].take(data)

    assert len(net["a"].delivered) == 8
    assert net["a"].machine.stats.stale == 3
    assert len([key for table, key in net["a"].rows if table is StateTable.BODIES]) == 5


def test_repairable_bytes_max_keeps_what_is_unacknowledged(new_net: Make, quick: Make) -> None:
    """Bytes for repair are bounded, oldest first, but what may be sent again is kept."""
    net = new_net("a", quick(repairable_bytes_max=3_000))
    ours = net["a"].say(bytes(1_000))
    for number in range(6):
        net["a"].take(crafted(net, f"m{number}", content=bytes([1]) * 900))

    log = net["a"].machine.log
    assert log.body(ours) is not None
    assert log.body("m0") is None
    assert log.body("m5") is not None
    assert sum(map(len, log.bodies.values())) <= 3_000
    net.run(6.0)
    assert transmissions(net, "a") == [0.0, 5.0]


def test_ephemeral_bypasses_everything(new_net: Make) -> None:
    """It is delivered at once, once, and is neither logged nor acknowledged nor in a filter."""
    net = new_net("ab", repeat=1.0)
    net["a"].machine.send_ephemeral(b"typing", net.now_ms)
    net["a"].step()
    net.run(30.0)

    assert net["b"].delivered == [("a", b"typing")]
    assert (len(net["a"].machine.log), len(net["b"].machine.log)) == (0, 0)
    assert net["b"].machine.stats.syncs == 0
    assert net["a"].rows == net["b"].rows == {}


def test_recent_max_bounds_ephemeral_ids(new_net: Make, quick: Make) -> None:
    """Beyond `recent_max` an ephemeral message may come again."""
    net = new_net("a", quick(recent_max=2))
    data = [crafted(net, f"e{n}", lamport_timestamp=None) for n in range(3)]
    for each in (*data, data[2], data[0]):
        net["a"].take(each)

    assert [content for _, content in net["a"].delivered] == [b"e0", b"e1", b"e2", b"e0"]


def test_sync_message_is_not_kept(new_net: Make) -> None:
    """A sync message raises the clock, is in no log and no buffer, and does not reach the top."""
    net = new_net("ab")
    net["a"].say(b"x")
    net.run(2.0)
    before = net["a"].machine.log.ids()
    sent = [SdsMessage.decode(one.data) for _, one in net["b"].sent]

    assert [one.kind.name for one in sent] == ["SYNC"]
    assert sent[0].lamport_timestamp > SdsMessage.decode(net["a"].sent[0][1].data).lamport_timestamp
    assert net["a"].machine.log.ids() == before
    assert net["a"].delivered == []


def test_idle_sync_messages_grow_rare(new_net: Make) -> None:
    """While nothing happens the pause doubles up to its bound; an empty log says nothing."""
    net = new_net("ab")
    net.run(300.0)
    assert net["a"].sent == net["b"].sent == []

    net["a"].say(b"x")
    net.run(2_000.0)

    total = sum(net[name].machine.stats.syncs for name in "ab")
    assert 20 <= total <= 110


def test_state_survives_a_restart(new_net: Make) -> None:
    """Log, clock, buffers and what is missing come back; what is unacknowledged goes out again."""
    net = new_net("ab")
    net["b"].up = False
    name = net["a"].say(b"mine")
    net["a"].take(crafted(net, "m1", clock=1))
    net["a"].take(crafted(net, "m3", "m2", clock=3))
    before = net["a"].machine
    bloom, clock = before._bloom.encode(), before.clock

    net["a"].restart()

    after = net["a"].machine
    assert after.log.ids() == before.log.ids()
    assert (after.clock, after.waiting, after._bloom.encode()) == (clock, 1, bloom)
    assert after.missing == ["m2"]
    assert net["a"].sent[-1][1].message_id == name
    assert net["a"].sent[-1][1].data == net["a"].sent[0][1].data
    net["a"].take(crafted(net, "m2", clock=2))
    assert [content for _, content in net["a"].delivered] == [b"m1", b"m2", b"m3"]


def test_clock_does_not_go_back_with_the_wall_clock(new_net: Make) -> None:
    """After a restart with an earlier wall clock, clock and ids go on."""
    net = new_net("a")
    first = net["a"].say(b"x")
    clock = net["a"].machine.clock
    net.now -= 50.0
    net["a"].restart()

    second = net["a"].say(b"x")

    assert first != second
    assert net["a"].machine.clock == clock + 1


def test_retransmissions_are_counted_over_restarts(new_net: Make) -> None:
    """Crashing gives a message no further retransmissions; it only repeats the last one."""
    net = new_net("a")
    name = net["a"].say(b"x")
    for _ in range(6):
        net.run(5.0)
        net["a"].restart()
    net.run(5.1)

    assert net["a"].exhausted == [name]
    assert max(sent.attempt for _, sent in net["a"].sent) == 5


def test_message_of_ours_that_we_forgot_holds_nobody_up(new_net: Make) -> None:
    """After state was lost, others name messages of ours that we do not know: they count as met."""
    net = new_net("ab")
    net["a"].say(b"forgotten")
    net.run(0.1)
    net["a"].rows.clear()
    net["a"].restart()
    net["b"].say(b"reply")
    net.run(0.1)

    assert net["a"].delivered == [("b", b"reply")]


def test_filter_rolls_over(new_net: Make) -> None:
    """Beyond its capacity the filter forgets the oldest, and nothing is lost by that."""
    net = new_net("ab")
    for number in range(150):
        net["a"].say(f"m{number}".encode())
    net.run(30.0)

    assert net["b"].machine._bloom.rolls == 1
    assert len(net["b"].delivered) == 150
    assert net["a"].machine.unacknowledged == 0


@pytest.mark.parametrize("seed", range(3))
def test_everybody_gets_everything_in_causal_order(new_net: Make, seed: int) -> None:
    """30 % loss, delays that reorder, repetition: each message once, after what it depends on."""
    net = new_net("abcd", loss=0.3, repeat=0.2, delay_s=(0.01, 1.5), seed=seed)
    for number in range(25):
        for name in "abcd":
            net[name].say(f"{name}{number}".encode())
        net.run(net.rng.uniform(0, 1.5))

    net.run(
        900.0,
        lambda: (
            all(len(one.delivered) == 75 for one in net.participants.values())
            and not any(one.machine.unacknowledged for one in net.participants.values())
        ),
    )

    past: dict[str, set[str]] = {}
    for one in net.participants.values():
        for _, sent in one.sent:
            message = SdsMessage.decode(sent.data)
            if message.content:
                past[message.content.decode()] = {
                    SdsMessage.decode(net[entry.sender_id].machine.log.body(entry.message_id))
                    .content.decode()
                    for entry in message.causal_history
                }  # fmt: skip
    for name, one in net.participants.items():
        seen = {content for content in past if content.startswith(name)}
        assert len(one.delivered) == len(set(one.delivered)) == 75
        for _, content in one.delivered:
            assert past[content.decode()] <= seen
            seen.add(content.decode())
        assert (one.exhausted, one.lost) == ([], [])
        assert len(one.acknowledged) == 25


def test_repair_can_be_switched_off(new_net: Make, quick: Make) -> None:
    """Without repair nobody asks and nobody answers."""
    net = new_net("abc", quick(repair=RepairConfig(enabled=False)), loss=0.4, seed=1)
    for number in range(10):
        net["a"].say(str(number).encode())
        net.run(1.0)
    net.run(60.0)

    assert all(one.machine.stats.answers == 0 for one in net.participants.values())
    messages = [SdsMessage.decode(sent.data) for one in net.participants.values()
                for _, sent in one.sent]  # fmt: skip
    assert not any(message.repair_request for message in messages)


def test_default_configuration_is_the_specifications() -> None:
    """Defaults are those of the API's text and the published filter."""
    config = SdsConfig()
    assert (config.acknowledgement_timeout_ms, config.max_retransmissions) == (5_000, 5)
    assert (config.causal_history_size, config.bloom_capacity) == (2, 10_000)
    assert RollingBloom(config.bloom_capacity, config.bloom_error_rate).size_bytes == 18_752
