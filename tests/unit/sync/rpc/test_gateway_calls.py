"""The gateway's frames hold all that its JSON holds."""

from __future__ import annotations

from dataclasses import asdict

from google.protobuf.json_format import ParseDict

from luxrelay.gossip import PeerId
from luxrelay.gossip.score import ScoreTerms, TopicTerms
from luxrelay.gossip.stats import GossipStats, PeerStats
from luxrelay.net import NetStats
from luxrelay.net.host import HostStats
from luxrelay.net.links import DriverCounters, LinkCounters
from luxrelay.net.swarm import SwarmCounters
from luxrelay.net.yamux import MuxCounters
from luxrelay.node.gateway.http import peer_rows
from luxrelay.sync.rpc import relay_gateway_pb2 as pb

PEER = PeerId(b"\x00\x24\x08\x01\x12\x20" + bytes(range(32)))


def test_a_peer_loses_nothing_but_its_clock() -> None:
    """Each counter and each term of the score that HTTP shows has a field of the same name."""
    topic = TopicTerms(
        time_in_mesh=1.0, first_deliveries=2.0, mesh_deficit=3.0, mesh_failures=4.0, invalid=5.0
    )
    terms = ScoreTerms(
        score=-1.5, credit=3.0, topic_penalty=8.0, application=0.5, colocation=0.25,
        behaviour=0.125, offences=7.0, topics={"/lux/x": topic},
    )  # fmt: skip
    stats = GossipStats(peers={PEER: PeerStats(received=9, duplicates=4, since=3.5)})
    net = NetStats(
        host=HostStats(
            inbound=0, outbound=0, peers=1, bytes_in=0, bytes_out=0,
            swarm=SwarmCounters(), mux=MuxCounters(),
        ),
        router=stats, driver=DriverCounters(), peers={PEER: LinkCounters(bytes_in=2**40)},
    )  # fmt: skip
    (row,) = peer_rows(net, lambda _: asdict(terms))
    del row["since"]  # of a clock that means nothing elsewhere

    frame = ParseDict(row, pb.Peer())  # a name that is no field raises

    assert frame.received == 9
    assert frame.duplicates == 4
    assert frame.bytes_in == 2**40
    assert frame.score.offences == 7.0
    assert frame.score.topics["/lux/x"].mesh_failures == 4.0
    shown = set(asdict(terms)) & {f.name for f in pb.PeerScore.DESCRIPTOR.fields}
    assert shown == set(asdict(terms))
