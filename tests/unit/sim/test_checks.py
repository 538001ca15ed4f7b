"""What must hold."""

from dataclasses import replace

from luxrelay.gossip import GossipParams, GossipStats
from luxrelay.sim.checks import broken_bounds, check_node, look_at_mesh
from luxrelay.sim.network import Network


def test_the_mesh_of_two_is_one(pair: Network) -> None:
    """Before they meet there are two parts, then one; a degree below d_lo is seen."""
    for node in pair.nodes:
        pair.start(node)
    apart = look_at_mesh(pair)
    pair.run(2.0)
    together = look_at_mesh(pair)

    assert (apart.components, apart.degree_max) == (2, 0)
    assert (together.components, together.degree_min, together.degree_mean) == (1, 1, 1.0)
    assert (together.within, together.whole) == (0.0, False)


def test_hostile_and_dead_nodes_do_not_count(pair: Network) -> None:
    """The mesh is that of the honest nodes that run."""
    for node in pair.nodes:
        pair.start(node)
    pair.run(2.0)
    pair.crash(pair.nodes[1])

    state = look_at_mesh(pair)

    assert (state.nodes, state.degree_max) == (1, 0)


def test_each_broken_bound_is_named() -> None:
    """Numbers at their bounds are right; one above is a violation with its name."""
    params = GossipParams()
    stats = GossipStats(
        seen=2 * params.seen_max,
        pending=params.pending_max,
        failures=params.failures_max,
        cached=params.cache_messages_max,
        cached_bytes=params.cache_bytes_max,
        wanted=params.wanted_max,
    )
    assert broken_bounds(stats, params) == []

    for name in ("seen", "pending", "failures", "cached", "cached_bytes", "wanted"):
        (said,) = broken_bounds(replace(stats, **{name: getattr(stats, name) + 1}), params)
        assert said.endswith(f"above {getattr(stats, name)}")


def test_a_node_is_checked_while_it_runs(pair: Network) -> None:
    """A bound that a router breaks becomes a violation at that node."""
    pair.start(pair.nodes[0])
    pair.params = replace(pair.params, d=1, d_lo=1, d_out=0, d_score=1, peers_max=1)
    check_node(pair, pair.nodes[0])
    check_node(pair, pair.nodes[1])
    assert pair.violation_count == 0

    pair.violated(None, "the network is upside down")
    assert pair.violations[0].node == -1
