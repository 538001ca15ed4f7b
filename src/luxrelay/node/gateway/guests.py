"""Places of WebSockets: a small budget and a deadline for strangers.

A guest is a socket without token. Until it has subscribed it holds one of a quarter of the places
for its /16 (IPv6: /32); a further one takes the place of the oldest. A token holder
who finds all places taken gets that of a guest, the oldest without subscription first. The driver
ends whoever has lost its place.

Source: docs/explanation/threat-model.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from luxrelay.errors import GatewayError

_V4_BYTES: Final = 4


def group_of(key: bytes) -> bytes:
    """Return the group of an address: a /16 of IPv4 (4 bytes), a /32 of IPv6 (8 bytes)."""
    return key[:2] if len(key) == _V4_BYTES else key[:4]


class Guest:
    """A socket without token, and what ends it."""

    def __init__(self, group: bytes, end: Callable[[], object]) -> None:
        """Keep the address group, and what is called once when the place is lost."""
        self.group = group
        self.end = end
        self.subscribed = False
        self.crowded = False
        """Whether it lost its place to a newcomer."""


class Guests:
    """The guests among ``places_max`` sockets, the oldest first."""

    def __init__(self, places_max: int) -> None:
        """Start without guests."""
        self._max = places_max
        self._quarter = max(1, places_max // 4)
        self._guests: dict[Guest, None] = {}
        self.crowded = 0
        """Guests that lost their place to a newcomer."""

    def make_room(self, open_now: int, group: bytes | None) -> None:
        """Return when one socket more has room; a guest may lose its place for it.

        Args:
            open_now: Sockets open, those that are being ended apart.
            group: The newcomer's address group; None for a token holder.

        Raises:
            GatewayError: there is none (``gateway.busy``).

        """
        fresh = [each for each in self._guests if not each.subscribed]
        if group is not None:
            same = [each for each in fresh if each.group == group]
            if len(same) >= self._quarter:
                self._evict(same[0])
                return
        if open_now < self._max:
            return
        # A stranger makes no subscriber go, and strangers of one group none of another.
        losers = fresh + [each for each in self._guests if each.subscribed]
        if group is not None or not losers:
            raise GatewayError("too many WebSockets are open", code="gateway.busy")
        self._evict(losers[0])

    def enter(self, guest: Guest) -> None:
        """Take a place."""
        self._guests[guest] = None

    def leave(self, guest: Guest) -> None:
        """Give it up."""
        self._guests.pop(guest, None)

    def _evict(self, guest: Guest) -> None:
        self.leave(guest)
        self.crowded += 1
        guest.crowded = True
        guest.end()
