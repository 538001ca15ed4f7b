"""Fetching blobs in virtual time."""

from __future__ import annotations

import pytest

from luxrelay.bus import sha3_commitment
from luxrelay.errors import SyncArgumentError
from luxrelay.sync.fetch import (
    AskBlob,
    Blame,
    BlobFetch,
    Delivered,
    DropRequest,
    FetchConfig,
    GivenUp,
    WantedRange,
)

BLOB = b"payload"
ID = sha3_commitment(BLOB)
PEERS = ["a", "b", "c", "d"]


def fetcher(**changes: float) -> BlobFetch:
    """Return a machine with these bounds."""
    return BlobFetch(lambda key, blob: sha3_commitment(blob) == key, FetchConfig(**changes))


def send(machine: BlobFetch, request: int, blob: bytes, now: float) -> None:
    """Let a peer send a whole blob."""
    machine.began(request, len(blob), now)
    machine.came(request, blob, now)


def asked(machine: BlobFetch) -> list[tuple[int, str]]:
    """Return request and peer of each question; nothing else was to be done."""
    actions = machine.drain()
    assert all(isinstance(each, AskBlob) for each in actions), actions
    return [(each.request, each.peer) for each in actions if isinstance(each, AskBlob)]


def test_ask_one_and_deliver() -> None:
    """21-37: one peer is asked, and what matches is delivered."""
    machine = fetcher()

    assert machine.want(ID, 7, PEERS, 0.0) is WantedRange.ASKED
    assert asked(machine) == [(1, "a")]
    send(machine, 1, BLOB, 0.1)

    assert machine.drain() == [Delivered(ID, BLOB)]
    assert (machine.wanted, machine.wake_at()) == (0, None)


def test_ask_others_beside_a_silent_one_and_no_more_than_three() -> None:
    """21-37: one more peer each hedge_s before the first byte; the first byte ends the others."""
    machine = fetcher(hedge_s=0.25)
    machine.want(ID, 7, PEERS, 0.0)
    told = asked(machine)
    while (wake_at := machine.wake_at()) is not None and wake_at < 2.0:
        machine.wake(wake_at)
        told += asked(machine)

    assert [peer for _, peer in told] == ["a", "b", "c"]
    machine.began(2, 7, 1.0)
    assert machine.drain() == [DropRequest(1), DropRequest(3)]
    machine.came(2, BLOB[:3], 1.0)
    machine.wake(1.1)
    assert machine.drain() == []
    machine.came(2, BLOB[3:], 14.0)
    assert machine.drain() == [Delivered(ID, BLOB)]
    assert (machine.totals.bytes, machine.totals.useful_bytes, machine.totals.hedged) == (7, 7, 2)


@pytest.mark.parametrize(("sent", "why"), [(b"other!!", "other bytes"), (b"short", "5 bytes")])
def test_blame_who_sends_something_else(sent: bytes, why: str) -> None:
    """21-37: wrong bytes are refused, their sender is named, and the next peer is asked."""
    machine = fetcher()
    machine.want(ID, 7, PEERS, 0.0)
    machine.drain()

    send(machine, 1, sent, 0.1)

    blame, ask = (each for each in machine.drain() if not isinstance(each, DropRequest))
    assert isinstance(blame, Blame)
    assert (blame.peer, blame.commitment) == ("a", ID)
    assert why in blame.why
    assert isinstance(ask, AskBlob)
    assert ask.peer == "b"


def test_silence_ends_a_request_and_the_next_peer_goes_on() -> None:
    """21-38, P46: over silence_s after the last byte; the next is asked from the byte reached."""
    machine = fetcher(silence_s=2.0, parallel_max=1, crawl_bytes_per_s=1)
    machine.want(ID, 7, ["a", "b"], 0.0)
    machine.drain()
    machine.began(1, 7, 1.0)
    machine.came(1, BLOB[:3], 2.5)
    machine.wake(4.4)
    assert machine.drain() == []
    machine.wake(4.5)
    assert machine.drain() == [
        DropRequest(1),
        AskBlob(request=2, peer="b", commitment=ID, length=7, offset=3, count=4),
    ]

    machine.came(1, BLOB[3:], 4.6)
    machine.missing(1, 4.6)
    assert machine.drain() == []
    machine.began(2, 7, 4.7)
    machine.came(2, BLOB[3:], 4.7)
    assert machine.drain() == [Delivered(ID, BLOB)]
    assert (machine.totals.bytes, machine.totals.useful_bytes) == (11, 7)
    assert (machine.totals.resumed, machine.totals.silent) == (1, 1)


def test_each_peer_is_asked_once_and_then_nobody() -> None:
    """21-38: when nobody has it, each was asked once, and nobody is asked again for a while."""
    machine = fetcher(absent_s=30.0)
    machine.want(ID, 7, ["a", "b", "a"], 0.0)
    assert asked(machine) == [(1, "a")]
    machine.missing(1, 0.0)
    assert asked(machine) == [(2, "b")]
    machine.failed(2, 0.0)

    assert machine.drain() == [GivenUp(ID)]
    assert machine.want(ID, 7, PEERS, 29.9) is WantedRange.ABSENT
    assert machine.drain() == []
    assert machine.want(ID, 7, PEERS, 30.0) is WantedRange.ASKED


def test_those_who_want_the_same_share_one_fetch() -> None:
    """21-38: a blob that is being asked for is not asked for again."""
    machine = fetcher()
    machine.want(ID, 7, PEERS, 0.0)
    machine.drain()

    assert machine.want(ID, 7, PEERS, 0.1) is WantedRange.SHARED
    assert machine.drain() == []


def test_requests_under_way_are_bounded() -> None:
    """requests_max bounds all blobs together, and the next one is asked for when one ends."""
    machine = fetcher(requests_max=2)
    ids = [bytes([number]) * 32 for number in range(3)]
    for each in ids:
        machine.want(each, 7, ["a"], 0.0)
    assert len(asked(machine)) == 2

    machine.missing(1, 0.0)

    assert [type(each) for each in machine.drain()] == [GivenUp, AskBlob]


def test_wanted_absent_and_peers_are_bounded() -> None:
    """wanted_max, absent_max and peers_max hold."""
    machine = fetcher(wanted_max=1, absent_max=1, peers_max=1)
    assert machine.want(b"\x01" * 32, 7, PEERS, 0.0) is WantedRange.ASKED
    assert machine.want(b"\x02" * 32, 7, PEERS, 0.0) is WantedRange.REFUSED
    machine.missing(1, 0.0)
    assert GivenUp(b"\x01" * 32) in machine.drain()
    machine.want(b"\x02" * 32, 7, PEERS, 0.0)
    machine.missing(2, 0.0)

    assert machine.absent == 1
    assert machine.want(b"\x03" * 32, 7, [], 0.0) is WantedRange.REFUSED


@pytest.mark.parametrize(("key", "length"), [(b"short", 7), (ID, 0), (ID, 2 * 1024 * 1024 + 1)])
def test_refuse_what_no_blob_can_be(key: bytes, length: int) -> None:
    """A commitment has 32 bytes, a blob 1 byte to 2 MiB."""
    with pytest.raises(SyncArgumentError):
        fetcher().want(key, length, PEERS, 0.0)


@pytest.mark.parametrize(
    "name",
    list(FetchConfig.__dataclass_fields__),
)
def test_refuse_bounds_that_cannot_work(name: str) -> None:
    """Every bound is positive."""
    with pytest.raises(SyncArgumentError, match=name):
        FetchConfig(**{name: 0})


def test_a_sidecar_has_at_most_the_length_asked_for() -> None:
    """No header says how long one is: shorter is right, nothing and more than asked are not."""
    machine = fetcher()
    assert machine.want(ID, 7 + 5, PEERS, 0.0, exact=False) is WantedRange.ASKED
    (ask,) = machine.drain()
    assert isinstance(ask, AskBlob)
    assert (ask.length, ask.exact) == (12, False)

    send(machine, ask.request, b"", 0.1)
    send(machine, 2, bytes(13), 0.2)
    send(machine, 3, BLOB, 0.3)

    actions = machine.drain()
    assert [each.peer for each in actions if isinstance(each, Blame)] == ["a", "b"]
    assert actions[-1] == Delivered(ID, BLOB)


@pytest.mark.parametrize(
    "values", [{"partial_bytes_max": 2 * 1024 * 1024 - 1}, {"links_max": 24}], ids=str
)
def test_refuse_bounds_that_do_not_fit_together(values: dict[str, float]) -> None:
    """One blob has to fit, and a link for each request."""
    with pytest.raises(SyncArgumentError):
        FetchConfig(**values)  # type: ignore[arg-type]


def test_who_puts_off_is_asked_again_when_its_time_has_come() -> None:
    """P52: others are asked meanwhile, the blob is not given up, and news brings the time on."""
    machine = fetcher(hedge_s=5.0)
    machine.want(ID, 7, ["a", "b"], 0.0)
    assert asked(machine) == [(1, "a")]
    machine.later(1, 3.0, 0.1)
    assert asked(machine) == [(2, "b")]
    machine.missing(2, 0.2)
    assert asked(machine) == []
    assert (machine.wanted, machine.wake_at()) == (1, 3.1)
    machine.wake(3.1)
    assert asked(machine) == [(3, "a")]
    machine.later(3, 8.0, 3.2)
    machine.heard(ID, ["a"], 4.0)
    assert asked(machine) == [(4, "a")]
    send(machine, 4, BLOB, 4.1)
    assert machine.drain() == [Delivered(ID, BLOB)]
    assert machine.totals.put_off == 2


def test_what_was_put_off_keeps_nothing_else_waiting() -> None:
    """P52: a younger blob is asked for at the peer that put the older one off, and before it."""
    other = b"another"
    machine = fetcher(link_requests_max=1)
    machine.want(ID, 7, ["a"], 0.0)
    machine.want(sha3_commitment(other), 7, ["a"], 0.0)
    assert asked(machine) == [(1, "a")]
    machine.later(1, 1.0, 0.5)
    assert asked(machine) == [(2, "a")]
    machine.wake(2.0)
    assert asked(machine) == []
    send(machine, 2, other, 2.5)
    delivered, again = machine.drain()
    assert delivered == Delivered(sha3_commitment(other), other)
    assert isinstance(again, AskBlob)
    assert (again.peer, again.commitment) == ("a", ID)


def test_two_names_of_a_machine_are_one_link() -> None:
    """P52: it is not asked by the other name beside the first, nor before it wants to be."""
    machine = fetcher(hedge_s=0.25)
    same = {"10.0.0.1:9641": "p2p:one"}
    machine.want(ID, 7, ["p2p:one", "10.0.0.1:9641"], 0.0, same=same)
    assert asked(machine) == [(1, "p2p:one")]
    machine.wake(1.0)
    assert asked(machine) == []
    machine.later(1, 2.0, 1.0)
    assert asked(machine) == []
    machine.wake(3.0)
    assert len(asked(machine)) == 1
    assert machine.links == 1
