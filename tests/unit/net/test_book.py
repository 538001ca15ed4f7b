"""The address book: what is worth keeping, and when to try again."""

from __future__ import annotations

import random

import pytest

from luxrelay.gossip import PeerId
from luxrelay.net.book import KEPT_MAX, AddressBook, Source
from luxrelay.net.config import NetConfig

CONFIG = NetConfig(book_max=4, redial_min_s=1.0, redial_max_s=8.0, dial_failures_max=3)


def peer(number: int) -> PeerId:
    """Any peer id."""
    return PeerId(b"p%d" % number)


def book() -> AddressBook:
    """An empty book of four peers at most."""
    return AddressBook(CONFIG, random.Random(1))


def test_operators_peers_come_first() -> None:
    """Candidates are the operator's, then others by chance, never those who are excluded."""
    ours = book()
    for number in range(3):
        ours.learn(peer(number), ["a"], Source.EXCHANGE)
    ours.learn(peer(9), ["b"], Source.BOOTSTRAP)

    assert ours.candidates(1, (), 0.0) == [peer(9)]
    assert set(ours.candidates(9, {peer(9), peer(0)}, 0.0)) == {peer(1), peer(2)}
    assert ours.candidates(-1, (), 0.0) == []


def test_wait_doubles_up_to_a_bound() -> None:
    """Between two tries of a bootstrap peer pass half to all of 1, 2, 4, 8, 8 seconds."""
    ours = book()
    ours.learn(peer(1), ["a"], Source.BOOTSTRAP)

    for longest in (1.0, 2.0, 4.0, 8.0, 8.0):
        ours.failed(peer(1), 0.0)
        assert not ours.candidates(1, (), longest * 0.49)
        assert ours.candidates(1, (), longest) == [peer(1)]

    ours.reached(peer(1))
    assert ours.candidates(1, (), 0.0) == [peer(1)]


def test_forget_peer_that_others_named() -> None:
    """Three failures and a peer that others named is gone; the operator's peers stay."""
    ours = book()
    ours.learn(peer(1), ["a"], Source.EXCHANGE)
    ours.learn(peer(2), ["b"], Source.BOOTSTRAP)

    for _ in range(3):
        ours.failed(peer(1), 0.0)
        ours.failed(peer(2), 0.0)
    ours.forget(peer(2))

    assert peer(1) not in ours
    assert peer(2) in ours
    assert ours.failed(peer(1), 0.0) == 0


def test_book_is_bounded() -> None:
    """Beyond `book_max` goes what others named, whoever failed most first; never the newest."""
    ours = book()
    ours.learn(peer(1), ["a"], Source.BOOTSTRAP)
    ours.learn(peer(2), ["a"], Source.HELLO)
    ours.learn(peer(3), ["a"], Source.EXCHANGE)
    ours.learn(peer(4), ["a"], Source.EXCHANGE)
    ours.failed(peer(4), 0.0)

    ours.learn(peer(5), ["a"], Source.EXCHANGE)
    assert peer(4) not in ours
    ours.learn(peer(6), ["a"], Source.EXCHANGE)
    ours.learn(peer(7), ["a"], Source.EXCHANGE)

    assert len(ours) == 4
    assert all(peer(number) in ours for number in (1, 2, 7))


def test_newer_record_replaces_addresses() -> None:
    """A later record moves a peer and an older one does not; what was before is a fallback."""
    ours = book()
    ours.learn(peer(1), ["old"], Source.EXCHANGE, seq=2)
    ours.learn(peer(1), ["older"], Source.EXCHANGE, seq=1)
    assert ours.addresses(peer(1)) == ("old",)
    assert ours.learn(peer(1), ["new"], Source.HELLO, seq=3)
    assert ours.addresses(peer(1)) == ("new", "old")
    assert not ours.learn(peer(1), ["new"], Source.HELLO, seq=4)
    for seq in range(5, 50):
        ours.learn(peer(1), [f"{seq}"], Source.HELLO, seq=seq)
    assert ours.addresses(peer(1))[:2] == ("49", "48")
    assert len(ours.addresses(peer(1))) == KEPT_MAX

    ours.learn(peer(2), ["given"], Source.BOOTSTRAP)
    ours.learn(peer(2), ["claimed"], Source.EXCHANGE, seq=9)
    assert ours.addresses(peer(2)) == ("claimed", "given")
    for seq in range(10, 30):
        ours.learn(peer(2), [f"{seq}"], Source.EXCHANGE, seq=seq)
    assert ours.addresses(peer(2))[-1] == "given"
    ours.learn(peer(3), [], Source.EXCHANGE)
    assert peer(3) not in ours


def test_let_go_waits() -> None:
    """A peer that was let go on purpose is tried again after `redial_max_s`, not at once."""
    ours = book()
    ours.learn(peer(1), ["a"], Source.HELLO)
    ours.postpone(peer(1), 0.0)

    assert not ours.candidates(1, (), 7.9)
    assert ours.candidates(1, (), 8.0) == [peer(1)]


@pytest.mark.parametrize("ends", ["reached", "failed"])
def test_a_dial_under_way_does_not_bring_back_who_was_let_go(ends: str) -> None:
    """However it ends: who is here already may be let go before the dial has returned."""
    ours = book()
    ours.learn(peer(1), ["a"], Source.BOOTSTRAP)
    ours.postpone(peer(1), 0.0)
    if ends == "reached":
        ours.reached(peer(1))
    else:
        ours.failed(peer(1), 0.0)

    assert not ours.candidates(1, (), 7.9)
    assert ours.candidates(1, (), 8.0) == [peer(1)]


def test_made_up_peers_take_every_other_dial_at_most() -> None:
    """A book full of peers that others named still tries those that were here (20-03, G22)."""
    ours = AddressBook(NetConfig(book_max=1_000), random.Random(1))
    for number in range(900):
        ours.learn(peer(number), ["a"], Source.EXCHANGE)
    met = {peer(number) for number in range(900, 904)}
    for each in met:
        ours.learn(each, ["b"], Source.HELLO)

    chosen = ours.candidates(8, (), 0.0)

    assert met <= set(chosen)
    assert len(set(chosen)) == 8
    assert len(ours.candidates(1_000, (), 0.0)) == 904


def test_what_a_peer_says_itself_counts_whatever_its_clock_said_before() -> None:
    """A record of a clock that was ahead does not shut out the peer's own later word."""
    ours = book()
    ours.learn(peer(1), ["old"], Source.HELLO, seq=1_000)

    ours.learn(peer(1), ["hearsay"], Source.EXCHANGE, seq=10)
    assert ours.addresses(peer(1)) == ("old",)
    ours.learn(peer(1), ["new"], Source.HELLO, seq=10)
    assert ours.addresses(peer(1)) == ("new", "old")


def test_a_peer_that_moved_is_tried_at_once() -> None:
    """Failures at the old address do not keep it away from the new one (G40)."""
    ours = book()
    ours.learn(peer(1), ["old"], Source.HELLO, seq=1)
    ours.failed(peer(1), 100.0)
    assert ours.candidates(1, (), 100.0) == []

    assert ours.learn(peer(1), ["new"], Source.EXCHANGE, seq=2)

    assert ours.candidates(1, (), 100.0) == [peer(1)]
