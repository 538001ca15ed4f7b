"""The hash table's memory: near peers first, so many and no more, signed records only."""

from __future__ import annotations

import random

import pytest
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from luxrelay.gossip import PeerId
from luxrelay.net.config import NetConfig
from luxrelay.net.connector import Connector
from luxrelay.net.exchange import PeerExchange
from luxrelay.net.finder import ANSWER_MAX, PeerFinder, _LookupStore, distance_key
from luxrelay.net.host import RelayHost
from luxrelay.net.links import DriverCounters
from luxrelay.net.records import check, seal

CONFIG = NetConfig(listen=("/ip4/127.0.0.1/tcp/0",), dht=True, dht_peers_max=50)


@pytest.fixture
def finder() -> PeerFinder:
    """A finder whose host does not listen."""
    host, rng = RelayHost(bytes(32), CONFIG), random.Random(1)
    connector = Connector(
        host,
        CONFIG,
        PeerExchange(host, CONFIG, rng),
        rng=rng,
        counters=DriverCounters(),
        kept=(),
        refuses=lambda _: "",
        greeted=list,
    )
    return PeerFinder(host, CONFIG, rng=rng, connector=connector)


def peer(number: int) -> PeerId:
    """A peer id."""
    return PeerId(b"peer %d" % number)


def record(number: int) -> bytes:
    """A signed record of a peer of its own."""
    return seal(number.to_bytes(32), [f"/ip4/127.0.0.1/tcp/{number + 1}"], 1)


def test_the_nearest_come_first_without_the_asker(finder: PeerFinder) -> None:
    """Twenty by XOR of SHA-256, the one who asks not among them (Kademlia's k)."""
    for number in range(40):
        finder.know(peer(number), b"record")
    key = b"somewhere"

    near = finder.closest(key, peer(0))

    def distance(each: PeerId) -> int:
        return distance_key(each) ^ distance_key(key)

    expected = sorted((peer(number) for number in range(1, 40)), key=distance)[:ANSWER_MAX]
    assert near == expected
    assert finder.closest(peer(7), peer(0))[0] == peer(7)


def test_memory_is_bounded(finder: PeerFinder) -> None:
    """Beyond dht_peers_max whoever was heard of longest ago goes; we ourselves are not in it."""
    finder.know(finder._host.peer_id, b"own")
    finder.know(peer(0), b"old")
    finder.know(peer(1), b"record")
    finder.know(peer(0), b"new")

    for number in range(2, CONFIG.dht_peers_max + 1):
        finder.know(peer(number), b"record")

    assert len(finder) == CONFIG.dht_peers_max
    assert peer(1) not in finder._known
    assert finder._known[peer(0)][1] == b"new"


def test_off_remembers_nobody(finder: PeerFinder) -> None:
    """A node without the table keeps no records for it (20-04)."""
    finder._config = NetConfig(listen=("/ip4/127.0.0.1/tcp/0",))
    finder.know(peer(0), b"record")

    assert len(finder) == 0


def test_a_lookup_takes_signed_records_within_its_bound() -> None:
    """Unsigned addresses are passed over, and so is a further peer; a newer record is not."""
    store = _LookupStore(2)
    for number in range(3):
        store.take(record(number))
    stranger = ID(b"\x00\x24" + bytes(36))
    store.add_addrs(stranger, [Multiaddr("/ip4/127.0.0.1/tcp/9")], 60)
    store.take(seal((0).to_bytes(32), ["/ip4/127.0.0.1/tcp/99"], 2))

    ports = sorted(address.port for found in store.records() for address in found.addresses)
    assert ports == [2, 99]
    assert store.addresses(stranger) == []
    assert stranger not in store.peer_ids()
    first = check(record(0)).peer
    assert [text.rpartition("/p2p/")[0] for text in store.addresses(ID(first))] == [
        "/ip4/127.0.0.1/tcp/99"
    ]
