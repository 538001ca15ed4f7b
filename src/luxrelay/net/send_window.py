"""`SendWindow`: how many bytes may be on their way over one TCP connection, without I/O.

Theory of operation
  Decides: how many bytes that a peer's machine has not acknowledged may be in the socket's hands:
    twice what the path holds (its rate times its shortest round trip), as measured by what is
    acknowledged. More would stand in a queue before the narrowest link, where it is dropped and
    sent again, and where what is urgent waits behind it.
  Why beside the system's own congestion control: some of these (BBR) keep what they measured
    before a pause for as long as a connection sends little, and send at that rate when a blob
    follows. A link that became slow meanwhile gets a whole blob at once, and drops most of it.
  A round ends when something was acknowledged that was sent after its begin. The window then
    follows the rate of that round, at most to twice its size; after a pause it begins anew, and
    doubles each round until something stands in a queue, however late the acknowledgements of a
    burst are heard of.
  The shortest round trip is the shortest round since the last pause, or what the system says: it
    remembers for minutes, so what it says is left aside where the path must have changed since.
    Every `FRESH_S` a round is made with the smallest window, so that a longer path is found out.
  Not on paths shorter than `NEAR_S`: they hold next to nothing, and looking costs more than it
    brings.
  Bounds: `FLOOR` and `CEILING`.
  What else to change when you change this: `transport.py`, which looks and waits.

Source: LP-6421 §5.2; decision P51.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

FLOOR: Final = 16 * 1024
"""Bytes that always may be on their way: about what TCP begins with (RFC 6928)."""
CEILING: Final = 16 * 1024 * 1024
"""Bytes on their way over the longest and fastest path."""
NEAR_S: Final = 0.004
"""Shortest round trip of a path that is watched, seconds."""
NEAR_BYTES: Final = 1024 * 1024
"""Bytes that go over a shorter one before it is looked at again."""
LOOK_MIN_S: Final = 0.002
LOOK_MAX_S: Final = 0.05
"""Seconds between two looks while a window is full: an eighth of a round trip within these."""
PAUSE_S: Final = 1.0
"""After so many seconds without anything to send the window begins anew."""
FRESH_S: Final = 10.0
"""For so many seconds a shortest round trip is believed."""
QUEUED: Final = 1.4
"""When the usual round trip is so many times the shortest, what is sent stands in a queue."""
WAITED: Final = 2
"""A round that took so many times the usual one waited: for something to send, for credit, or for
somebody to look."""
CHANGED: Final = 16
"""A shortest round trip of the system's is left aside when the usual one is so many times that."""


@dataclass(frozen=True, slots=True)
class SocketLook:
    """What the system says of a connection."""

    in_flight: int
    """Bytes that were handed to it and not acknowledged, unsent ones included."""
    rtt_s: float
    """Round trip, smoothed, seconds."""
    shortest_s: float
    """Shortest round trip of the last minutes, seconds."""
    closed: bool = False
    """Whether the connection is over: nothing will be acknowledged any more."""


class SendWindow:
    """The window of one connection; see the theory above."""

    __slots__ = (
        "_acknowledged",
        "_began",
        "_doubling",
        "_draining",
        "_due",
        "_fresh_until",
        "_looked",
        "_shortest_s",
        "crowded",
        "size",
    )

    def __init__(self) -> None:
        self.size = FLOOR
        """Bytes that may be on their way now."""
        self.crowded = False
        """Whether what was sent last stood in a queue: the path carries no more."""
        self._looked = self._fresh_until = -inf
        self._draining = False
        self._doubling = True
        self._shortest_s = inf
        self._begin(0, 0, 0.0)

    def room(self, sent: int, look: SocketLook, now: float) -> int:
        """Return how many bytes may be handed to the system; 0 for none now.

        Args:
            sent: Bytes that were handed to it since the connection began.
            look: What it says.
            now: Monotonic seconds.

        """
        if look.closed or look.rtt_s < NEAR_S:
            self.crowded = False
            return NEAR_BYTES
        acknowledged = sent - look.in_flight
        if now - self._looked > PAUSE_S:
            self._anew(now)
            self._begin(sent, acknowledged, now)
        elif acknowledged >= self._due:
            self._end(acknowledged, look, now)
            self._begin(sent, acknowledged, now)
        self._looked = now
        return max(0, self.size - look.in_flight)

    @staticmethod
    def pause_s(look: SocketLook) -> float:
        """Return how long to wait before the next look, seconds."""
        return min(max(look.rtt_s / 8, LOOK_MIN_S), LOOK_MAX_S)

    def _anew(self, now: float) -> None:
        self.size, self._shortest_s, self._fresh_until = FLOOR, inf, now + FRESH_S
        self.crowded = False
        self._doubling = True

    def _begin(self, sent: int, acknowledged: int, now: float) -> None:
        """Begin a round, which ends when a byte was acknowledged that is sent from now on."""
        self._due, self._acknowledged, self._began = sent + 1, acknowledged, now

    def _end(self, acknowledged: int, look: SocketLook, now: float) -> None:
        """Follow what a round measured; one that had little to send or waited measured nothing."""
        count, took_s = acknowledged - self._acknowledged, now - self._began
        if 2 * count < self.size or took_s <= 0:
            return
        if took_s >= WAITED * look.rtt_s:
            if count >= self.size and not self.crowded:  # whoever looks was late, not the path
                self.size = min(2 * self.size, CEILING)
            return
        if now >= self._fresh_until:
            self._anew(now)
            self._draining = True
            return
        if self._draining:  # it began with the window before on its way
            self._draining = False
            return
        known_s = look.shortest_s if look.rtt_s < CHANGED * look.shortest_s else inf
        self._shortest_s = min(self._shortest_s, took_s)
        shortest_s = min(self._shortest_s, known_s)
        self.crowded = look.rtt_s > QUEUED * shortest_s
        self._doubling = self._doubling and not self.crowded
        holds = 2 * self.size if self._doubling else int(2 * count / took_s * shortest_s)
        self.size = max(FLOOR, min(holds, 2 * self.size, CEILING))
