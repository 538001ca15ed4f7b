"""The gate for browsers: which pages may reach a listener of this program, and under which names.

A browser sends requests for whatever page it shows. Two headers give a page away that is none of
ours, and each request is asked for both before anything else, whatever it asks for and whoever
sends it: the gateway with its WebSockets, admin calls, the dashboard, the operator's pages, and the
archive's.

*Host*: a page of another site that binds its own name to this machine's address (DNS rebinding) is
of the same origin as the listener for the browser, so that only the name gives it away. Addresses,
``localhost`` and the names that the operator lists are ours; upper case and a last dot make no
other name. A token does not help: a browser may hold one. A request without ``Host`` comes from no
browser of today. What a proxy says the name was (``X-Forwarded-Host``, ``Forwarded``) is not looked
at, because whoever calls may write it.

*Origin*: a page of another site, of no site (``null``), or of another port or scheme, unless the
operator lists it. A page of ours has the scheme and the name with the port that ``Host`` has.

Client addresses behind a proxy: the last hop that no trusted proxy wrote for itself.

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

Source: LP-6490; RFC 6454, RFC 9110 §7.2; RFC 7239 §4 to §8.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from itertools import islice
from typing import Final, Literal

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


_HOST: Final = re.compile(
    r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::[0-9]{0,5})?", re.ASCII
)
"""RFC 9110 §7.2, without user names and escapes, which no browser sends."""
_PORTS: Final = {"http": ":80", "https": ":443"}
_SHOWN_MAX: Final = 80


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not pass."""

    where: Literal["Host", "Origin"]
    """The header that gave it away."""
    why: str
    """What is wrong with it, with the name as it was sent."""


class BrowserGate:
    """Knows the names and the origins of a listener.

    Args:
        hosts: Names besides addresses and localhost.
        origins: Sites whose pages may call, such as ``https://chat.example.org``.
        tls: Whether the listener speaks TLS; a page of ours is of ``https`` then. Without it a
            proxy in front may speak TLS.

    """

    def __init__(
        self, hosts: Iterable[str] = (), origins: Iterable[str] = (), *, tls: bool = False
    ) -> None:
        self._hosts = {_folded(host) for host in hosts} | {"localhost"}
        self._origins = frozenset(origins)
        self._schemes = frozenset({"https"} if tls else {"http", "https"})

    def refusal(self, host: str | None, origin: str | None) -> Refusal | None:
        """Return why a request may not pass; None when it may.

        Args:
            host: The header ``Host``; None when there is none.
            origin: The header ``Origin``, repeated ones joined; None when there is none.

        """
        if host is not None:
            name = host_name(host)
            if name not in self._hosts and not is_address(name):
                shown = (name or host)[:_SHOWN_MAX]
                return Refusal("Host", f"the name {shown!r} is not one of this node")
        if origin is None or origin in self._origins or self._ours(host, origin):
            return None
        return Refusal("Origin", f"a page of {origin[:_SHOWN_MAX]!r} is of another origin")

    def allows(self, origin: str) -> bool:
        """Return whether the operator lists an origin: its pages may read answers."""
        return origin in self._origins

    def _ours(self, host: str | None, origin: str) -> bool:
        scheme, _, own = origin.lower().partition("://")
        if scheme not in self._schemes or not host:
            return False
        port = _PORTS[scheme]
        return own.removesuffix(port) == host.lower().removesuffix(port)


def host_name(host: str) -> str:
    """Return the name of a ``Host`` header without its port, folded; empty when it is none."""
    found = _HOST.fullmatch(host)
    return "" if found is None else _folded(found[1] or found[2])


def is_loopback(host: str) -> bool:
    """Return True for an address, in brackets or not, or a name that only this machine reaches."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_address(name: str) -> bool:
    """Return True for an address of IPv4 or IPv6."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _folded(name: str) -> str:
    return name.lower().removesuffix(".")
