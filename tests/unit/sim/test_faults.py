"""What goes wrong, and what follows from it."""

from collections.abc import Callable
from dataclasses import replace

from luxrelay.sim import Scenario, simulate
from luxrelay.sim.faults import KINDS, Censorship, Churn, Crash, Eclipse, Flood, Partition, Sybil
from luxrelay.sim.run import SimRun
from luxrelay.sim.scenario import NetworkPlan

Small = Callable[..., Scenario]


def test_every_kind_has_its_name() -> None:
    """A file may name each of them."""
    assert set(KINDS) == {"crash", "churn", "partition", "flood", "sybil", "censor", "eclipse"}


def test_crash_takes_a_share_and_spares_publishers(small: Small) -> None:
    """The mesh of the rest is whole again soon (20-51)."""
    known = NetworkPlan(nodes=16, dials=6, book=15, start_spread_s=0.2, redial_s=0.5)
    run = SimRun(small(Crash(at_s=3.0, share=0.25), network=known))
    run.execute()

    down = [node for node in run.network.nodes if not node.alive]
    assert len(down) == 4
    assert not set(down) & set(run.publishers)
    assert next(mark for mark in run.marks if mark.name == "crash").whole_at is not None


def test_a_silent_crash_is_noticed_late(small: Small) -> None:
    """Peers keep the connection until their pings have run out."""
    run = SimRun(small(Crash(at_s=3.0, share=0.2, silent=True), duration_s=5.0, nodes=10))
    run.execute()
    stale = [
        link
        for node in run.network.nodes
        for link, _ in node.links.values()
        if not link.target.alive
    ]
    assert stale

    run.network.run(60.0)

    assert not [
        link
        for node in run.network.nodes
        for link, _ in node.links.values()
        if not link.target.alive
    ]


def test_churn_replaces_nodes_and_sync_completes_them(small: Small) -> None:
    """Who comes back is another node, and catching up brings what it missed (20-52)."""
    fault = Churn(from_s=2.0, until_s=5.0, every_s=1.0, share=0.1, down_s=0.2)
    run = SimRun(small(fault, duration_s=12.0, sync_s=1.0))
    run.execute()
    report = simulate(small(fault, duration_s=12.0, sync_s=1.0))

    assert sum(node.lives - 1 for node in run.network.nodes) == 3
    assert report.measures["delivered_share"] == 1
    assert report.measures["stored_share"] == 1


def test_a_partition_heals_and_sync_brings_the_rest(small: Small) -> None:
    """Halves that were apart deliver across after contact and hold everything (20-53)."""
    fault = Partition(at_s=2.0, for_s=4.0)
    report = simulate(small(fault, messages=40, duration_s=14.0, sync_s=1.0))
    apart = simulate(small(fault, messages=40, duration_s=14.0))

    healed = report.measures["contact_healed_heartbeats"]
    assert healed is not None
    assert healed <= 3
    assert report.measures["stored_share"] == 1
    assert apart.measures["stored_share"] is not None
    assert apart.measures["stored_share"] < 1


def test_a_long_partition_breaks_connections(small: Small) -> None:
    """After the pings have run out nobody is connected across; later they meet again."""
    run = SimRun(small(Partition(at_s=2.0, for_s=50.0), duration_s=50.0))
    run.execute()
    crossing = [
        link
        for node in run.network.nodes
        for link, _ in node.links.values()
        if link.source.side != link.target.side
    ]
    assert not crossing

    run.network.run(60.0)

    assert run.network.contact_at is not None


def test_flooders_are_not_believed_and_lose_their_place(small: Small) -> None:
    """Nothing forged is delivered, honest messages arrive, flooders leave the meshes (20-54)."""
    fault = Flood(from_s=1.5, share=0.2, rate=5, messages=3, ids=5)
    run = SimRun(small(fault, nodes=15))
    run.execute()
    report = simulate(small(fault, nodes=15))

    assert run.network.forged > 0
    assert report.measures["invalid_delivered"] == 0
    assert report.measures["delivered_share"] == 1
    hostile = {node.peer for node in run.network.nodes if node.hostile}
    for node in run.network.nodes:
        if not node.hostile:
            assert node.router is not None
            topic = next(iter(node.router.stats().mesh))
            assert not hostile & set(node.router.mesh_peers(topic))


def test_a_flood_ends(small: Small) -> None:
    """After its end flooders are quiet."""
    run = SimRun(small(Flood(from_s=1.0, until_s=2.0, share=0.2, rate=5), duration_s=2.0))
    run.execute()
    before = run.network.forged
    run.network.run(4.0)

    assert run.network.forged == before > 0


def test_sybils_forward_nothing_and_stop_nothing(small: Small) -> None:
    """A third of mute peers does not keep messages from the others."""
    run = SimRun(small(Sybil(share=0.3, dials=6), nodes=15))
    run.execute()
    report = simulate(small(Sybil(share=0.3, dials=6), nodes=15))

    assert report.measures["delivered_share"] == 1
    for node in run.network.nodes:
        if node.hostile:
            assert node.router is not None
            assert node.router.stats().forwarded == 0


def test_censors_do_not_keep_a_message_from_anybody(small: Small) -> None:
    """A twisted first copy does not make the true one a duplicate (20-22)."""
    report = simulate(small(Censorship(share=0.2), nodes=15))

    assert report.measures["rejected"] is not None
    assert report.measures["rejected"] > 0
    assert report.measures["invalid_delivered"] == 0
    assert report.measures["delivered_share"] == 1


def test_one_subnet_cannot_surround_a_victim(small: Small) -> None:
    """Attackers of one /16 get as many connections as the limit allows (20-30)."""
    fault = Eclipse(attackers=20, targets=1, restart_s=1.5)
    scenario = small(fault, nodes=15, duration_s=9.0)
    guarded = simulate(scenario).measures
    open_ = simulate(replace(scenario, diversity={"subnet_max": 50})).measures

    assert guarded["victim_hostile_links_max"] == 4
    assert guarded["victim_delivered_share"] == 1
    assert open_["victim_hostile_links_max"] is not None
    assert open_["victim_hostile_links_max"] > 4
