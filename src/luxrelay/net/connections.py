"""How many connections one address and one subnet may have, and who is not let in at all. Pure.

An address is asked about before the handshake, a peer id once it is proven. A flood from one house
or one rented /24 then takes its share of the places and not all of them.

Source: LP-6420 §1.3, LP-6422 §6; decisions G21, G23.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from luxrelay.net.config import NetConfig

_V4_SUBNET: Final = 24
_V6_SUBNET: Final = 56
_V6_HOST: Final = 64


class ConnectionLimits:
    """Counts open connections, those in the handshake included, by address and subnet.

    An IPv6 customer has a /64 to himself, so that counts as one address (G23).

    Args:
        config: `address_connections_max`, `subnet_connections_max`, `loopback_exempt`.

    """

    def __init__(self, config: NetConfig) -> None:
        self._config = config
        self._addresses: Counter[str] = Counter()
        self._subnets: Counter[str] = Counter()

    def refusal(self, host: str) -> str:
        """Why one more connection with the host is too many; empty when it is not."""
        keys = self._keys(host)
        if keys is None:
            return ""
        address, subnet = keys
        if self._addresses[address] >= self._config.address_connections_max:
            return f"{address} has {self._addresses[address]} connections"
        if self._subnets[subnet] >= self._config.subnet_connections_max:
            return f"{subnet} has {self._subnets[subnet]} connections"
        return ""

    def opened(self, host: str) -> None:
        """One more connection with the host counts."""
        keys = self._keys(host)
        if keys is not None:
            self._addresses[keys[0]] += 1
            self._subnets[keys[1]] += 1

    def closed(self, host: str) -> None:
        """One connection with the host counts no longer."""
        keys = self._keys(host)
        if keys is None:
            return
        for counter, key in ((self._addresses, keys[0]), (self._subnets, keys[1])):
            counter[key] -= 1
            if counter[key] <= 0:
                del counter[key]

    def __len__(self) -> int:
        """Addresses that are counted now; bounded by the connections there are."""
        return len(self._addresses)

    def _keys(self, host: str) -> tuple[str, str] | None:
        """Address and subnet as they count; None when the host is exempt or no address."""
        try:
            found: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
        except ValueError:
            return None
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if found.is_loopback and self._config.loopback_exempt:
            return None
        if isinstance(found, IPv4Address):
            return str(found), str(ip_network((found, _V4_SUBNET), strict=False))
        return (
            str(ip_network((found, _V6_HOST), strict=False)),
            str(ip_network((found, _V6_SUBNET), strict=False)),
        )
