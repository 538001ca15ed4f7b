"""Which of a node's listeners would want the same port, and which one could not open its own.

Two listeners of one node that share a port keep it from starting, and the system's word for that,
"address already in use", would send its operator to look for another process.

Source: LP-6490; P37.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from luxrelay.errors import LuxRelayError

_MULTIADDRESS: Final = re.compile(r"/ip[46]/([^/]+)/tcp/(\d+)(?:/.*)?")
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  read, never bound
Listener = tuple[str, str, str]
"""Section, key, and an address: ``host:port`` or a multiaddress of TCP."""


@contextmanager
def named(section: str, key: str) -> Iterator[None]:
    """Say which key of the file asks for a port that cannot be opened, beside its address."""
    try:
        yield
    except LuxRelayError as error:
        if not error.code.endswith(".port"):
            raise
        where = f"{error.where}, [{section}] {key}"
        raise type(error)(error.what, where=where, hint=error.hint, code=error.code) from error


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
