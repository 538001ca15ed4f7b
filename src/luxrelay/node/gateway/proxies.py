"""Whose address counts behind a proxy: the last hop that no trusted proxy wrote for itself.

Each proxy appends the address it was called from to ``X-Forwarded-For``. From the right, entries of
trusted proxies are passed over; the first other one is the client. What stands left of it the
client may have written itself. A header from an address that is no trusted proxy is not looked at.

Source: RFC 7239 §8.1; docs/explanation/threat-model.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

HOPS_MAX: Final = 32
"""Hops that are looked at."""


class Proxies:
    """The networks of trusted proxies."""

    def __init__(self, networks: Iterable[str]) -> None:
        """Take networks such as ``10.0.0.0/8``, or addresses."""
        self._networks: tuple[IPv4Network | IPv6Network, ...] = tuple(
            ip_network(each, strict=False) for each in networks
        )

    def trusts(self, address: str) -> bool:
        """Return whether an address is a trusted proxy's."""
        if not self._networks:
            return False
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        found = getattr(found, "ipv4_mapped", None) or found
        return any(found in network for network in self._networks)

    def client(self, peer: str, forwarded_for: str) -> str:
        """Return the address of the last hop that is not trusted.

        Args:
            peer: Who is connected.
            forwarded_for: The header, repeated ones joined with commas; empty without.

        """
        hop = peer
        for each in reversed(forwarded_for.split(",")[-HOPS_MAX:]):
            if not self.trusts(hop):
                break
            text = _bare(each.strip())
            if text is None:  # a proxy that hides its caller is the last that is known
                break
            hop = text
        return hop


def _bare(text: str) -> str | None:
    """Return an address without port and brackets; None when it is none."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return None
