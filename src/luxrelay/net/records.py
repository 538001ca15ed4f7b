"""Signed peer records: where a peer says it can be reached, in its own hand.

Bytes are libp2p's envelope of a peer record, so that go-, js- and rust-libp2p read ours and we
theirs.

Source: LP-6420 §1.2; decisions G21; requirement 20-03.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
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
"""Addresses of a record that we keep."""


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
    return CheckedRecord(about, seq, tuple(_dialable(texts))[:ADDRESSES_MAX])


def _dialable(texts: Sequence[str]) -> list[TcpAddress]:
    addresses = []
    for text in texts:
        try:
            address = parse_address(text.partition("/p2p/")[0])
        except AddressError:
            continue
        if address.port and not is_everywhere(address.host):
            addresses.append(address)
    return addresses


def is_everywhere(host: str) -> bool:
    """Whether the host is an address to listen on and not one to dial."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False  # a name
