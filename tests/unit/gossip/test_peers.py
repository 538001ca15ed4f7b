"""Peers and subscriptions."""

from __future__ import annotations

from luxrelay.gossip import GossipParams, GossipStats, PeerId
from luxrelay.gossip.peers import PeerState, PeerTable
from luxrelay.gossip.score import PeerLedger

NAME = "/lux/n/relay/namespace/" + "ab" * 20
ALIAS = "/lux/n/relay/namespace/0x" + "ab" * 20


def table(params: GossipParams | None = None) -> tuple[PeerTable, GossipStats]:
    """Return an empty table and its counters."""
    stats = GossipStats()
    return PeerTable(params or GossipParams(), stats), stats


def added(peers: PeerTable, name: bytes) -> PeerState:
    """Add a peer without a past."""
    peer = PeerId(name)
    return peers.add(peer, "/meshsub/1.1.0", outbound=False, ledger=PeerLedger(peer))


def test_a_peer_is_written_to_in_its_own_spelling() -> None:
    """A peer that subscribes with 0x stays with 0x until it uses the canonical name (G5)."""
    peers, _ = table()
    state = added(peers, b"p")

    assert peers.subscribe(state, ALIAS) == NAME
    assert state.spell(NAME) == ALIAS
    assert peers.subscribe(state, NAME) is None
    assert state.spell(NAME) == NAME
    assert list(peers.subscribers(NAME)) == [b"p"]


def test_a_subscription_ends_in_the_spelling_that_made_it() -> None:
    """A peer that used both spellings and drops one still follows the topic."""
    peers, _ = table()
    state = added(peers, b"p")
    peers.subscribe(state, ALIAS)
    peers.subscribe(state, NAME)

    assert peers.unsubscribe(state, ALIAS) is None
    assert peers.unsubscribe(state, NAME) == NAME
    assert peers.unsubscribe(state, NAME) is None
    assert not peers.subscribers(NAME)


def test_topics_of_a_peer_are_bounded() -> None:
    """A peer follows at most topics_max topics; more is refused and counted (G25)."""
    peers, stats = table(GossipParams(topics_max=2))
    state = added(peers, b"p")

    for number in range(4):
        peers.subscribe(state, f"/lux/n/relay/namespace/{number:040x}")

    assert len(state.topics) == 2
    assert stats.subscriptions_refused == 2


def test_a_foreign_topic_is_passed_over() -> None:
    """Another application's topic is no fault and is not kept."""
    peers, stats = table()
    state = added(peers, b"p")

    assert peers.subscribe(state, "chat") is None
    assert peers.unsubscribe(state, "chat") is None
    assert (state.topics, stats.subscriptions_refused) == ({}, 0)


def test_a_removed_peer_leaves_nothing() -> None:
    """Its subscriptions go with it, and peers_max counts the connected ones only."""
    peers, _ = table(GossipParams(peers_max=1))
    state = added(peers, b"p")
    peers.subscribe(state, NAME)
    assert peers.full()

    assert peers.remove(PeerId(b"p")) is state
    assert peers.remove(PeerId(b"p")) is None
    assert not peers.full()
    assert not peers.subscribers(NAME)
    assert list(peers) == []


def test_what_a_peer_did_can_be_read_after_it_left() -> None:
    """Of the last peers_max that left; one that comes back is no longer among them."""
    peers, stats = table(GossipParams(peers_max=2))

    for name in (b"a", b"b", b"c"):
        added(peers, name).stats.unheard = 7
        peers.remove(PeerId(name))
    added(peers, b"c")

    assert {peer: found.unheard for peer, found in stats.departed.items()} == {b"b": 7}
