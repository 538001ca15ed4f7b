"""Signed peer records: ours, others', and forged ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.envelope import seal_record
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PeerRecord
from multiaddr import Multiaddr

from luxrelay.errors import RecordError
from luxrelay.gossip import PeerId
from luxrelay.net.records import (
    ADDRESSES_MAX,
    HOSTS_MAX,
    RECORD_MAX,
    check,
    nearness,
    seal,
    told_by,
)

SEED, OTHER = b"\x01" * 32, b"\x02" * 32
ADDRESS = "/ip4/192.0.2.1/tcp/9640"


def peer_of(seed: bytes) -> PeerId:
    """The peer id of an identity seed."""
    return PeerId(ID.from_pubkey(create_new_key_pair(seed).public_key).to_bytes())


def test_record_comes_back() -> None:
    """A sealed record is about its signer, with its addresses and number (20-03)."""
    record = check(seal(SEED, [ADDRESS, "/dns4/relay.example/tcp/1"], 7), peer_of(SEED))

    assert record.peer == peer_of(SEED)
    assert record.seq == 7
    assert [a.text for a in record.addresses] == [ADDRESS, "/dns4/relay.example/tcp/1"]


def test_refuse_record_of_another() -> None:
    """A record that somebody else signed, about himself or about the peer, is refused (20-03)."""
    theirs = seal(OTHER, [ADDRESS], 1)
    keys = create_new_key_pair(OTHER)
    about_us = PeerRecord(ID(peer_of(SEED)), [Multiaddr(ADDRESS)], 1)
    forged = seal_record(about_us, keys.private_key).marshal_envelope()

    for data in (theirs, forged):
        with pytest.raises(RecordError):
            check(data, peer_of(SEED))


def test_refuse_each_changed_byte() -> None:
    """No byte of a record can be changed without its being refused or saying the same."""
    record = seal(SEED, [ADDRESS], 7)
    genuine = check(record)

    for at in range(len(record)):
        changed = record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :]
        try:
            assert check(changed) == genuine
        except RecordError:
            continue


def test_keep_addresses_that_can_be_dialled() -> None:
    """Addresses to listen on, of other transports, or without port are left out; three stay."""
    useless = ["/ip4/0.0.0.0/tcp/1", "/ip4/192.0.2.1/udp/9/quic-v1", "/ip4/192.0.2.1/tcp/0"]
    keys = create_new_key_pair(SEED)
    many = [f"/ip4/192.0.2.{host}/tcp/9640" for host in range(1, 20)]
    record = PeerRecord(
        ID.from_pubkey(keys.public_key), [Multiaddr(text) for text in useless + many], 1
    )

    checked = check(seal_record(record, keys.private_key).marshal_envelope())

    assert [a.text for a in checked.addresses] == many[:HOSTS_MAX]


def test_a_record_aims_at_few_places() -> None:
    """Of many ports of one host the first stays: nobody is scanned by those who hear of it."""
    ports = [f"/ip4/192.0.2.1/tcp/{port}" for port in range(1, ADDRESSES_MAX)]
    record = check(seal(SEED, [*ports, "/ip6/2001:db8::1/tcp/1"], 1))

    assert [a.text for a in record.addresses] == [ports[0], "/ip6/2001:db8::1/tcp/1"]


@pytest.mark.parametrize(
    ("host", "kept"),
    [
        ("8.8.8.8", {"9.9.9.9"}),
        ("10.0.0.7", {"9.9.9.9", "192.168.0.1"}),
        ("127.0.0.1", {"9.9.9.9", "192.168.0.1", "127.0.0.1"}),
        ("", {"9.9.9.9"}),
    ],
)
def test_strangers_name_no_private_address(host: str, kept: set[str]) -> None:
    """A peer out in the world cannot have us connect to our own machine or network (20-03)."""
    texts = [f"/ip4/{each}/tcp/22" for each in ("127.0.0.1", "192.168.0.1", "9.9.9.9")]

    told = told_by(check(seal(SEED, texts, 1)), host)

    assert {address.host for address in told.addresses} == kept


def test_how_near_an_address_is() -> None:
    """IPv6 as IPv4, an address inside the other as what it is; groups and names are nowhere."""
    assert [nearness(each) for each in ("::1", "fe80::1%eth0", "2606:4700::1")] == [2, 1, 0]
    assert [nearness(each) for each in ("::ffff:127.0.0.1", "::ffff:10.1.1.1")] == [2, 1]
    assert [nearness(each) for each in ("224.0.0.1", "ff02::1", "::", "a.example")] == [None] * 4


def test_a_name_in_a_strangers_record_is_not_looked_up() -> None:
    """What a name stands for is the stranger's to choose, so it is left out (20-03)."""
    record = check(seal(SEED, ["/dns4/relay.example/tcp/1", "/ip4/9.9.9.9/tcp/1"], 1))

    assert [a.host for a in told_by(record, "127.0.0.1").addresses] == ["9.9.9.9"]


@pytest.mark.parametrize("size", [0, RECORD_MAX + 1])
def test_refuse_record_of_no_size(size: int) -> None:
    """Nothing, or more than a record may have, is refused before it is looked at."""
    with pytest.raises(RecordError):
        check(bytes(size))


@given(st.binary(min_size=1, max_size=200))
def test_nothing_but_record_errors(data: bytes) -> None:
    """Whatever the bytes are, only the one documented error is raised."""
    with pytest.raises(RecordError):
        check(data)
