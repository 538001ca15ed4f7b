"""Limits of connections by address and subnet, and exclusions. Pure.

Only connections whose handshake came to its end count; those before have the `doorway`. A flood
from one house or one rented /24 then takes its share of the places and not all of them.

Source: LP-6420 §1.3, LP-6422 §6; decisions G21, G23.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_network
from typing import Final

from luxrelay.gossip import Location, locate
from luxrelay.net.config import NetConfig

_V4_SUBNET: Final = 24
_V6_SUBNET: Final = 56


class ConnectionLimits:
    """Counts open connections by address and subnet.

    An IPv6 customer has a /64 to himself, so that counts as one address (G23). Private addresses,
    loopback included, have numbers of their own.

    Args:
        config: `address_connections_max`, `subnet_connections_max`, the same with `private_`,
            `loopback_exempt`.

    """

    def __init__(self, config: NetConfig) -> None:
        self._config = config
        self._addresses: Counter[str] = Counter()
        self._subnets: Counter[str] = Counter()

    def refusal(self, host: str) -> str:
        """Why one more connection with the host is too many; empty when it is not."""
        place = self._place(host)
        if place is None:
            return ""
        address, subnet = place.host, _subnet(place)
        most, most_near = self._config.address_connections_max, self._config.subnet_connections_max
        if place.private:
            most = self._config.private_address_connections_max
            most_near = self._config.private_subnet_connections_max
        if self._addresses[address] >= most:
            return f"{address} has {self._addresses[address]} connections"
        if self._subnets[subnet] >= most_near:
            return f"{subnet} has {self._subnets[subnet]} connections"
        return ""

    def opened(self, host: str) -> None:
        """One more connection with the host counts."""
        place = self._place(host)
        if place is not None:
            self._addresses[place.host] += 1
            self._subnets[_subnet(place)] += 1

    def closed(self, host: str) -> None:
        """One connection with the host counts no longer."""
        place = self._place(host)
        if place is None:
            return
        for counter, key in ((self._addresses, place.host), (self._subnets, _subnet(place))):
            counter[key] -= 1
            if counter[key] <= 0:
                del counter[key]

    def __len__(self) -> int:
        """Addresses that are counted now; bounded by the connections there are."""
        return len(self._addresses)

    def _place(self, host: str) -> Location | None:
        """Where the host is; None when it is exempt or no address."""
        place = locate(host)
        if place is not None and place.loopback and self._config.loopback_exempt:
            return None
        return place


def _subnet(place: Location) -> str:
    length = _V6_SUBNET if ":" in place.address else _V4_SUBNET
    return str(ip_network((place.address, length), strict=False))
