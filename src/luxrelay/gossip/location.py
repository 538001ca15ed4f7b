"""Location of a peer: address, address group, autonomous system, region.

Source: LP-6420 §6.1; decisions G21, G23.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, Protocol

from luxrelay.errors import GossipArgumentError

ENTRIES_MAX: Final = 1_000_000
"""Networks a `PlaceTable` may hold."""
_V4_GROUP: Final = 16
_V6_GROUP: Final = 32
_V6_HOST: Final = 64
_PRIVATE: Final = tuple(
    ip_network(text)
    for text in (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "127.0.0.0/8",
        "fc00::/7",
        "fe80::/10",
        "::1/128",
    )
)
"""Networks that are no one's in particular (RFC 1918, 3927, 4193, 4291, 6598)."""
_LOCATED_MAX: Final = 4096
"""Addresses whose meaning is remembered; it depends on the text alone."""


@dataclass(frozen=True, slots=True)
class Location:
    """What an address says by itself."""

    address: str
    """The address in its usual spelling; an IPv4 address inside an IPv6 one as IPv4."""
    host: str
    """Who counts as one host: an IPv4 address, or the /64 of an IPv6 address, which one customer
    has to himself."""
    group: str
    """Its /16, for IPv6 its /32 (G23)."""
    loopback: bool
    """True for an address of this machine."""
    private: bool
    """True for an address that anybody may use behind a router of his own, loopback included: who
    has one costs nothing, and many peers of one such network are one operator's rule, not an
    attacker's mark."""


@lru_cache(maxsize=_LOCATED_MAX)
def locate(address: str) -> Location | None:
    """Return what an IP address says, None for text that is none.

    An IPv4 address inside an IPv6 one is that IPv4 address, so that nobody counts twice.

    Source: G23; 20-30.

    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    text, loopback = str(found), found.is_loopback
    private = any(found in network for network in _PRIVATE)
    if isinstance(found, IPv4Address):
        return Location(text, text, _prefix(found, _V4_GROUP), loopback, private)
    host, group = _prefix(found, _V6_HOST), _prefix(found, _V6_GROUP)
    return Location(text, host, group, loopback, private)


@dataclass(frozen=True, slots=True)
class PeerLocation:
    """What a resolver knows of an address."""

    asn: int = 0
    """Number of the autonomous system; 0 when unknown."""
    region: str = ""
    """Name of the region; empty when unknown."""


UNKNOWN: Final = PeerLocation()


class PlaceResolver(Protocol):
    """Knows networks and regions; a lookup must neither block nor fail."""

    def place(self, address: str) -> PeerLocation:
        """Return what is known of an IP address."""


class PlaceTable:
    """A resolver made of networks: the longest one that holds an address says where it is.

    Args:
        networks: Networks in the notation ``192.0.2.0/24``, each with its place.

    Raises:
        GossipArgumentError: a network cannot be read, or there are more than ``ENTRIES_MAX``.

    """

    def __init__(self, networks: Iterable[tuple[str, PeerLocation]]) -> None:
        self._places: dict[tuple[int, int, int], PeerLocation] = {}
        lengths: dict[int, set[int]] = {4: set(), 6: set()}
        for text, place in networks:
            if len(self._places) >= ENTRIES_MAX:
                raise GossipArgumentError(f"more than {ENTRIES_MAX} networks", where="PlaceTable")
            try:
                network = ip_network(text)
            except ValueError as error:
                raise GossipArgumentError(
                    f"{text[:80]!r} is no network: {error}", where="PlaceTable"
                ) from None
            key = (network.version, network.prefixlen, int(network.network_address))
            self._places[key] = place
            lengths[network.version].add(network.prefixlen)
        self._lengths = {v: sorted(found, reverse=True) for v, found in lengths.items()}

    def place(self, address: str) -> PeerLocation:
        """Return the place of the longest network around an address; cost: its lengths."""
        try:
            found = ip_address(address)
        except ValueError:
            return UNKNOWN
        value = int(found)
        for length in self._lengths[found.version]:
            shift = found.max_prefixlen - length
            place = self._places.get((found.version, length, value >> shift << shift))
            if place is not None:
                return place
        return UNKNOWN


def _prefix(address: IPv4Address | IPv6Address, length: int) -> str:
    return str(ip_network((address, length), strict=False))
