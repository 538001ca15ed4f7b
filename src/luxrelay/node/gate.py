"""The gate for browsers: under which names a page may reach a listener of this node.

A browser sends requests for whatever page it shows. A page of another site that binds its own name
to this machine's address (DNS rebinding) is of the same origin as the node for the browser, so that
only the name in ``Host`` gives it away. Every listener that speaks HTTP asks here, whatever it
answers: the gateway and its WebSockets, admin calls, the dashboard, and the operator's pages. A
caller with a valid token needs no name: no page of another site has one.

*Names*: addresses, ``localhost``, and those that the operator lists; upper case and a last dot are
the same name. A request without ``Host`` comes from no browser of today.

Source: LP-6490; user-10.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

_HOST: Final = re.compile(
    r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::[0-9]{0,5})?", re.ASCII
)
"""RFC 9110 §7.2, without user names and escapes, which no browser sends."""


class Gate:
    """Knows the names of a listener.

    Args:
        hosts: Names besides addresses and localhost.

    """

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._hosts = {_folded(host) for host in hosts} | {"localhost"}

    def refusal(self, host: str | None) -> str:
        """Return the name under which nobody may come, empty when the request may pass.

        Args:
            host: The header ``Host``; None when there is none.

        """
        if host is None:
            return ""
        name = host_name(host)
        return "" if name in self._hosts or is_address(name) else name or "(none)"


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
