"""One simulated node."""

from luxrelay.gossip import PROTOCOLS
from luxrelay.sim.network import Network
from luxrelay.sim.node import Role, SimNode, peer_of


def test_identities_differ_and_are_those_of_their_seed() -> None:
    """One seed, index and life give one peer id of the usual length; any other gives another."""
    made = {peer_of(seed, index, life) for seed in (1, 2) for index in range(3) for life in (0, 2)}

    assert len(made) == 12
    assert {len(peer) for peer in made} == {38}
    assert peer_of(1, 2, 0) == peer_of(1, 2, 0)


def test_a_start_forgets_connections_and_keeps_the_store(pair: Network) -> None:
    """What was in memory is gone, what was on disk is not."""
    node = pair.nodes[0]
    pair.start(node)
    node.store.put(b"lane" * 5, 1, b"x")  # type: ignore[arg-type]
    node.refused[pair.nodes[1].peer] = 99.0
    first = node.router

    pair.crash(node)
    assert not node.alive
    pair.start(node)

    assert node.router is not first
    assert (node.refused, node.links, node.store.size) == ({}, {}, 1)
    assert node.rng is not None


def test_roles_and_connections() -> None:
    """A victim is honest; only connections that it dialed count as outbound."""
    victim = SimNode(1, 1, address="11.0.0.1", role=Role.VICTIM, dials=2)

    assert not victim.hostile
    assert SimNode(2, 1, address="11.0.0.2", role=Role.HOSTILE, dials=2).hostile
    assert victim.outbound() == 0
    assert not victim.alive
    assert PROTOCOLS[0] == "/meshsub/1.2.0"
