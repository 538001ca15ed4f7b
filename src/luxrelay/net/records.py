"""Signed peer records: where a peer says it can be reached, in its own hand.

Bytes are libp2p's envelope of a peer record, so that go-, js- and rust-libp2p read ours and we
theirs.

Source: LP-6420 §1.2; decisions G21; requirement 20-03.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address
from typing import Final

from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.envelope import consume_envelope, seal_record
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PEER_RECORD_ENVELOPE_DOMAIN, PeerRecord
from multiaddr import Multiaddr

from luxrelay.errors import AddressError, RecordError
from luxrelay.gossip import PeerId
from luxrelay.net.addresses import TcpAddress, parse_address

RECORD_MAX: Final = 4096
"""Bytes of a record that we look at."""
ADDRESSES_MAX: Final = 8
"""Addresses that a record of ours has at most."""
HOSTS_MAX: Final = 3
"""Hosts of a record that we keep, the first address of each: a name and an address of each kind.
Who signs a record may aim it at strangers, so it names few."""


@dataclass(frozen=True, slots=True)
class CheckedRecord:
    """A record whose signature, key and peer id fit together."""

    peer: PeerId
    """Who signed it."""
    seq: int
    """A later record of the same peer has a higher number."""
    addresses: tuple[TcpAddress, ...]
    """Those of its addresses that we could dial, in its order; the peer id is not in them."""


def seal(seed: bytes, addresses: Sequence[str], seq: int) -> bytes:
    """The record of the peer with this identity seed.

    Args:
        seed: 32 bytes of Ed25519 seed.
        addresses: Multiaddresses without peer id.
        seq: Higher than in each record before it.

    """
    keys = create_new_key_pair(seed)
    parsed = [Multiaddr(text) for text in addresses[:ADDRESSES_MAX]]
    record = PeerRecord(ID.from_pubkey(keys.public_key), parsed, seq)
    return bytes(seal_record(record, keys.private_key).marshal_envelope())


def check(data: bytes, peer: PeerId | None = None) -> CheckedRecord:
    """What the bytes say, when they are a record signed by the peer that it is about.

    Args:
        data: An envelope.
        peer: Whom it has to be about, where that is known.

    Raises:
        RecordError: It is none; nothing else is raised.

    """
    if not 0 < len(data) <= RECORD_MAX:
        raise RecordError(f"A peer record of {len(data)} bytes is not between 1 and {RECORD_MAX}")
    try:
        envelope, record = consume_envelope(data, PEER_RECORD_ENVELOPE_DOMAIN)
        signer = PeerId(ID.from_pubkey(envelope.public_key).to_bytes())
        about = PeerId(record.peer_id.to_bytes())
        texts = [str(address) for address in record.addrs[: 4 * ADDRESSES_MAX]]
        seq = int(record.seq)
    except Exception as error:  # the library raises a dozen unrelated types
        raise RecordError("The bytes are no signed peer record") from error
    if signer != about or peer not in (None, about):
        raise RecordError("The peer record is about somebody else than its signer or its bringer")
    return CheckedRecord(about, seq, tuple(_dialable(texts)))


def _dialable(texts: Sequence[str]) -> list[TcpAddress]:
    found: dict[str, TcpAddress] = {}
    for text in texts:
        try:
            address = parse_address(text.partition("/p2p/")[0])
        except AddressError:
            continue
        if address.port and not is_everywhere(address.host):
            found.setdefault(address.host, address)
    return list(found.values())[:HOSTS_MAX]


def told_by(record: CheckedRecord, host: str) -> CheckedRecord:
    """The record with those of its addresses that a peer at an IP address may name.

    Who is out in the world has no business on this machine or in its private networks, where what
    we connect to may take a stranger's bytes for ours. Names are left out, because what they stand
    for is the stranger's to choose.

    Args:
        record: Checked.
        host: The IP address of the peer that told us; one that is none counts as far away.

    """
    near = nearness(host) or 0
    kept = (a for a in record.addresses if (away := nearness(a.host)) is not None and away <= near)
    return replace(record, addresses=tuple(kept))


def nearness(host: str) -> int | None:
    """How close an IP address is: 2 this machine, 1 a private network, 0 the world; None nowhere.

    None also for a name.
    """
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_multicast or found.is_unspecified:
        return None
    return 2 if found.is_loopback else 0 if found.is_global else 1


def is_everywhere(host: str) -> bool:
    """Whether the host is an address to listen on and not one to dial."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False  # a name
