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

Source: LP-6490; RFC 6454, RFC 9110 §7.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, Literal

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


def is_address(name: str) -> bool:
    """Return True for an address of IPv4 or IPv6."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _folded(name: str) -> str:
    return name.lower().removesuffix(".")
