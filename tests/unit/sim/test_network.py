"""Two nodes and what is between them."""

import pytest

from luxrelay.bus import VerdictKind
from luxrelay.gossip import Deliver, Disconnect
from luxrelay.sim.network import VIOLATIONS_MAX, Network
from luxrelay.sim.traffic import TOPIC, Author, TrafficJudge


def started(network: Network) -> Network:
    """Return the network after both nodes have found each other."""
    for node in network.nodes:
        network.start(node)
    network.run(2.0)
    return network


def publish(network: Network, number: int = 0) -> bytes:
    """Publish a message at the first node and return its envelope."""
    node = network.nodes[0]
    assert node.router is not None
    data = Author(0).write(b"hello", node.peer, network.clock.now)
    network.numbers[TrafficJudge.message_id(data)] = number
    node.router.publish(TOPIC, data, network.clock.now)
    network.touch(node)
    network.call_at(network.clock.now, lambda: None)
    return data


def test_nodes_dial_and_form_a_mesh(pair: Network) -> None:
    """Both know each other, one of them as outbound, and are in each other's mesh."""
    first, second = started(pair).nodes

    assert list(first.links) == [second.peer]
    assert list(second.links) == [first.peer]
    assert first.outbound() + second.outbound() == 1
    for node, other in ((first, second), (second, first)):
        assert node.router is not None
        assert node.router.mesh_peers(TOPIC) == (other.peer,)


def test_a_message_takes_latency_and_validation(pair: Network) -> None:
    """It is delivered and stored once, after the link and the verdict."""
    second = started(pair).nodes[1]
    at = pair.clock.now
    publish(pair)
    pair.run(at + 1.0)

    latency = next(iter(second.links.values()))[0].latency_s
    assert list(second.life.got) == [0]
    assert second.life.got[0] - at == pytest.approx(latency * 1.0 + 0.0052, rel=0.5)
    assert second.life.got[0] - at > 0.0052
    assert second.store.size == 1


def test_a_crash_is_noticed_and_healed(pair: Network) -> None:
    """The other side learns of it after a latency, and both meet again after a restart."""
    first, second = started(pair).nodes
    pair.crash(second)
    assert not second.alive
    assert first.links
    pair.run(pair.clock.now + 0.5)
    assert not first.links
    assert first.router is not None
    assert first.router.mesh_peers(TOPIC) == ()

    pair.start(second)
    pair.run(pair.clock.now + 3.0)

    assert list(first.links) == [second.peer]
    assert second.lives == 2


def test_a_fresh_start_is_another_node(pair: Network) -> None:
    """It has another identity and an empty store; a plain restart keeps both."""
    started(pair)
    publish(pair)
    pair.run(pair.clock.now + 1.0)
    second = pair.nodes[1]
    before = second.peer
    pair.crash(second)
    pair.start(second)
    assert (second.peer, second.store.size) == (before, 1)

    pair.crash(second)
    pair.start(second, fresh=True)

    assert second.peer != before
    assert second.store.size == 0


def test_nothing_crosses_a_partition(pair: Network) -> None:
    """Frames are lost, calls fail, dials fail."""
    first, second = started(pair).nodes
    second.side = 1
    publish(pair)
    pair.run(pair.clock.now + 1.0)

    assert not second.life.got
    assert pair.weather.lost > 0
    assert not pair.reachable(first, second)


def test_what_is_under_way_on_a_closed_link_is_lost(pair: Network) -> None:
    """A frame does not arrive on a connection that has ended."""
    first, second = started(pair).nodes
    publish(pair)
    link = first.links[second.peer][0]
    pair.call_at(pair.clock.now + link.latency_s / 3, pair.disconnect, link)
    pair.run(pair.clock.now + 0.4)

    assert not second.life.got


def test_a_refused_peer_is_not_dialed_until_its_time_is_over(pair: Network) -> None:
    """What the router says about coming back is kept to."""
    first, second = started(pair).nodes
    action = Disconnect(peer=second.peer, reason="test", refuse_s=5.0)
    pair._do_disconnect(first, action)
    pair.run(pair.clock.now + 4.0)
    assert not first.links
    assert pair.router_disconnects == 1
    assert pair.refusals > 0

    pair.run(pair.clock.now + 4.0)

    assert first.links


def test_a_second_delivery_is_a_violation(pair: Network) -> None:
    """The check on duplicates sees one, says where, and keeps a bounded number."""
    first = started(pair).nodes[0]
    data = publish(pair, number=3)
    again = Deliver(topic=TOPIC, data=data, message_id=TrafficJudge.message_id(data))
    for _ in range(VIOLATIONS_MAX + 2):
        pair._do_deliver(first, again)

    assert pair.violation_count == VIOLATIONS_MAX + 1
    assert len(pair.violations) == VIOLATIONS_MAX
    assert (pair.violations[0].node, pair.violations[0].what) == (
        0,
        "message 3 was delivered twice",
    )


def test_a_delivery_that_nobody_published_is_counted(pair: Network) -> None:
    """A forged message that reached an application shows in the measures."""
    first = started(pair).nodes[0]
    data = Author(9).write(b"", b"p", 0.0)

    pair._do_deliver(
        first, Deliver(topic=TOPIC, data=data, message_id=TrafficJudge.message_id(data))
    )

    assert pair.invalid_delivered == 1
    assert pair.judge.verdict(data) is VerdictKind.ACCEPT
    assert not first.life.got


def test_verdicts_queue_for_the_processor(pair: Network) -> None:
    """Two messages at once take twice the processor time."""
    second = started(pair).nodes[1]
    for number in (0, 1):
        data = Author(number).write(b"", pair.nodes[0].peer, 0.0)
        assert pair.nodes[0].router is not None
        pair.nodes[0].router.publish(TOPIC, data, pair.clock.now)
    pair.touch(pair.nodes[0])
    pair.call_at(pair.clock.now, lambda: None)
    began = pair.clock.now
    pair.run(began + 0.5)

    assert second.cpu_free_at > began
    link = pair.nodes[0].links[second.peer][0]
    assert second.cpu_free_at - (link.last_at + 0.0004) < 0.0021
