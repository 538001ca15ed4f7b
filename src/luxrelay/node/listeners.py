"""Which of a node's listeners would want the same port.

Two listeners of one node that share a port keep it from starting, and the system's word for that,
"address already in use", would send its operator to look for another process.

Source: LP-6490; P37.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

_MULTIADDRESS: Final = re.compile(r"/ip[46]/([^/]+)/tcp/(\d+)(?:/.*)?")
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  read, never bound
Listener = tuple[str, str, str]
"""Section, key, and an address: ``host:port`` or a multiaddress of TCP."""


def sharing_a_port(listeners: Iterable[Listener]) -> Iterator[tuple[Listener, Listener]]:
    """Yield each listener that wants the place of an earlier one, with that one.

    Port 0 takes a free one and is no conflict; two hosts are apart unless one is every address.
    """
    taken: list[tuple[str, int, Listener]] = []
    for listener in listeners:
        place = _place_of(listener[2])
        if place is None:
            continue
        host, port = place
        for other_host, other_port, other in taken:
            if port == other_port and (host == other_host or {host, other_host} & _EVERYWHERE):
                yield listener, other
                break
        taken.append((host, port, listener))


def _place_of(address: str) -> tuple[str, int] | None:
    """Return host and port; None for what takes none, or has another form."""
    match = _MULTIADDRESS.fullmatch(address)
    host, port = (match[1], match[2]) if match else address.rpartition(":")[::2]
    if not port.isdecimal() or not int(port):
        return None
    host = host.strip("[]").lower()
    return "127.0.0.1" if host == "localhost" else host, int(port)
