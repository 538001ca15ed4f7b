"""What hostile nodes do."""

from luxrelay.bus import VerdictKind
from luxrelay.gossip import RelayMessage, Validate
from luxrelay.gossip.rpc import decode_rpc
from luxrelay.sim.faults import Censor, Conduct, Flooder
from luxrelay.sim.network import Network
from luxrelay.sim.node import Role
from luxrelay.sim.traffic import TOPIC, Author, twisted


def validate(data: bytes) -> Validate:
    """Return the action that asks for a verdict."""
    from luxrelay.gossip import PeerId

    message = RelayMessage.decode(data)
    return Validate(token=1, peer=PeerId(b"p"), topic=TOPIC, message=message, data=data)


def connected(network: Network) -> list[bytes]:
    """Connect both nodes and return the list into which what the first one sends is put."""
    for node in network.nodes:
        network.start(node)
    network.run(2.0)
    sent: list[bytes] = []
    network.send_raw = lambda _link, data: sent.append(data)  # type: ignore[method-assign]
    return sent


def test_a_mute_peer_ignores_everything(pair: Network) -> None:
    """So its router forwards nothing."""
    data = Author(1).write(b"", b"p", 0.0)

    assert Conduct().verdict(pair, pair.nodes[0], validate(data)) is VerdictKind.IGNORE


def test_a_censor_sends_a_twisted_copy_to_every_peer(pair: Network) -> None:
    """Of genuine messages only: it does not twist what another censor twisted."""
    sent = connected(pair)
    data = Author(1).write(b"", b"p", 0.0)

    assert Censor().verdict(pair, pair.nodes[0], validate(data)) is VerdictKind.IGNORE
    assert Censor().verdict(pair, pair.nodes[0], validate(twisted(data))) is VerdictKind.IGNORE

    (frame,) = sent
    assert decode_rpc(frame, pair.params).messages == [(TOPIC, twisted(data))]


def test_flooders_spare_each_other(pair: Network) -> None:
    """They are one attacker; a turn without an honest peer forges nothing."""
    sent = connected(pair)
    flooder = Flooder(rate=2.0, until_s=pair.clock.now + 0.6, messages=3, ids=4)
    pair.nodes[1].role = Role.HOSTILE

    flooder.turn(pair, pair.nodes[0])
    assert (sent, pair.forged) == ([], 0)

    pair.nodes[1].role = Role.HONEST
    pair.run(pair.clock.now + 0.55)
    assert pair.forged == 3
    assert len(sent) == 1


def test_a_turn_of_a_flooder(pair: Network) -> None:
    """Fresh forged messages, invented ids and a GRAFT to every peer, until the end."""
    sent = connected(pair)
    flooder = Flooder(rate=2.0, until_s=pair.clock.now + 0.6, messages=3, ids=4)
    flooder.turn(pair, pair.nodes[0])
    pair.run(pair.clock.now + 3.0)

    first, second = [decode_rpc(frame, pair.params) for frame in sent if len(frame) > 600]
    assert (len(first.messages), len(first.ihave[0][1]), first.graft) == (3, 4, [TOPIC])
    assert not set(first.messages) & set(second.messages)
    assert pair.forged == 6
