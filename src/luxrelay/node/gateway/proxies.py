"""Client addresses behind a proxy: the last hop that no trusted proxy wrote for itself.

Each proxy appends the address it was called from to ``X-Forwarded-For`` or to ``Forwarded`` (RFC
7239). From the right, entries of trusted proxies are passed over; the first other one is the
client. What stands left of it the client may have written itself. Headers from an address that is
no trusted proxy are not looked at.

*An entry that is no address* (``unknown``, ``_hidden``, one that cannot be read): the proxy that
wrote it is the last that is known, and counts.
*Both headers*: a proxy keeps one of them and may pass the other on as the client wrote it. Where
they name the same client, it is that one; where they do not, the proxy that called us counts, so
that nobody wins by writing the other one.
*Name and scheme* that these headers tell (``host``, ``proto``, ``X-Forwarded-Host``) are not
believed at all; `luxrelay.gate` has the names.

Source: RFC 7239 §4 to §8.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from itertools import islice
from typing import Final

HOPS_MAX: Final = 32
"""Hops that are looked at."""
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  the grammar's word
_PAIR: Final = re.compile(
    rf'[ \t]*({_TOKEN})=(?:"((?:[^"\\]|\\.)*)"|([^\s",;]+))[ \t]*(?=[;,]|$)', re.ASCII
)
"""One ``name=value`` of an element; what no quotes hold may have colons and brackets."""
_NODE: Final = re.compile(
    r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::(?:[0-9]{1,5}|_[A-Za-z0-9._-]+))?", re.ASCII
)
"""An address with its port (RFC 7239 §6)."""


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
        text = _plain(address)
        if text is None:
            return False
        found = ip_address(text)
        return any(found in network for network in self._networks)

    def client(self, peer: str, forwarded_for: Sequence[str], forwarded: Sequence[str]) -> str:
        """Return the address of the last hop that is not trusted.

        Args:
            peer: Who is connected.
            forwarded_for: Every header ``X-Forwarded-For``, in their order.
            forwarded: Every header ``Forwarded``.

        """
        if not self.trusts(peer) or not (forwarded_for or forwarded):
            return peer
        found = {
            self._last(peer, hops(headers))
            for headers, hops in ((forwarded_for, _listed), (forwarded, _described))
            if headers
        }
        return found.pop() if len(found) == 1 else peer

    def _last(self, peer: str, hops: Iterator[str | None]) -> str:
        hop = peer
        for each in islice(hops, HOPS_MAX):
            if each is None:  # a proxy that hides its caller is the last that is known
                break
            hop = each
            if not self.trusts(hop):
                break
        return hop


def _listed(headers: Sequence[str]) -> Iterator[str | None]:
    """Yield the hops of ``X-Forwarded-For`` from the right; None for one that is no address."""
    for header in reversed(headers):
        for each in reversed(header.split(",")):
            yield _address(each.strip())


def _described(headers: Sequence[str]) -> Iterator[str | None]:
    """Yield the hops of ``Forwarded`` from the right; None for one that is no address."""
    for header in reversed(headers):
        nodes = _elements(header)
        yield from (
            (None,)
            if nodes is None
            else (None if each is None else _address(each) for each in reversed(nodes))
        )


def _elements(header: str) -> list[str | None] | None:
    """Return ``for`` of each element, None where there is none; None when it cannot be read."""
    nodes: list[str | None] = []
    start = 0
    while start < len(header):
        names: dict[str, str] = {}
        while True:
            pair = _PAIR.match(header, start)
            if pair is None:
                return None
            name, quoted, plain = pair.groups()
            if name.lower() in names:
                return None  # a parameter is given once
            names[name.lower()] = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            start = pair.end()
            if header[start : start + 1] != ";":
                break
            start += 1
        nodes.append(names.get("for"))
        start += 1  # the comma
    return nodes


def _address(text: str) -> str | None:
    """Return an address without port and brackets; None when it is none."""
    found = _NODE.fullmatch(text)
    return _plain(text if found is None else found[1] or found[2])


def _plain(text: str) -> str | None:
    """Return an address in its usual spelling, an IPv4 one inside IPv6 as IPv4; None for none."""
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return str(getattr(found, "ipv4_mapped", None) or found)
