"""`PeerClocks`: how far our wall clock is from those of the peers. Pure.

Theory of operation
  Decides: what each peer's word on the time is worth, and what all of them together say.
  Does not know: sockets, clocks. It is given both clocks: the wall clock, which may be wrong, and a
    steady one that nobody sets, both in milliseconds.
  Evidence, one value a connected peer: the time that its hello told, taken at the middle between
    question and answer; half of that time is its error, and the value is drawn towards our own
    clock by so much. A peer whose hello tells no time (before G36) has the announcements that it
    signed itself: the latest stamp against the steady clock, since a delay only makes it look
    earlier. What others announced and it passes on is nobody's evidence.
  A value is kept as the difference between the peer's wall clock and our steady one, so that a jump
    of our own clock shows at once and not with the next hello.
  Who counts: the peers that we dialled, when `dialled_min` of them tell their time; else all. Who
    dials us chooses to, and could bring as many as there are places.
  Result: the median; of an even number the middle value nearer to our own clock, so that half of
    the peers cannot move it. Below `peers_min` values nothing is known. The spread is the median of
    the distances from the median. A minority cannot move either beyond what honest peers say.
  Bounds: one value for each connected peer, which the bounds on connections hold.

Source: LP-6411 §2.3; decisions G36, H14.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

ANNOUNCED_MS: Final = 60_000
"""How long the latest stamp of a peer's announcements stands against later ones, milliseconds."""
DIALLED_MIN: Final = 3
"""Peers that we dialled and that tell their time, from which on they alone count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """What the peers' clocks say of ours."""

    peers: int = 0
    """Peers whose clocks count."""
    known: bool = False
    """Whether they are enough to believe."""
    offset_ms: int = 0
    """How far our wall clock is ahead of their median, milliseconds; negative: behind."""
    spread_ms: int = 0
    """Median distance of their clocks from the median, milliseconds."""

    @property
    def text(self) -> str:
        """The same for people."""
        if not self.peers:
            return "no peer has told its clock"
        side = "ahead of" if self.offset_ms >= 0 else "behind"
        what = f"{abs(self.offset_ms) / 1000:,.1f} s {side} the median clock of {self.peers} "
        return what + ("peers" if self.peers > 1 else "peer")


@dataclass(slots=True)
class _Told:
    """The word of one peer."""

    dialled: bool
    base_ms: int | None = None
    """Its wall clock less our steady one."""
    error_ms: int = 0
    by_hello: bool = False
    at_ms: int = 0
    """When it was taken, by the steady clock."""

    def offset_ms(self, ahead_ms: int) -> int | None:
        """Return our clock less the peer's, as near to 0 as its error allows."""
        if self.base_ms is None:
            return None
        found = ahead_ms - self.base_ms
        nearer = max(0, abs(found) - self.error_ms)
        return nearer if found >= 0 else -nearer


class PeerClocks:
    """The clocks of the connected peers; any thread may call it.

    Args:
        peers_min: Peers below which their median says nothing.
        dialled_min: See the theory above.

    """

    def __init__(self, *, peers_min: int = 2, dialled_min: int = DIALLED_MIN) -> None:
        self._peers_min = peers_min
        self._dialled_min = dialled_min
        self._lock = threading.Lock()
        self._told: dict[bytes, _Told] = {}

    def connected(self, peer: bytes, *, dialled: bool) -> None:
        """The peer is connected; what it says of the time counts from now on."""
        with self._lock:
            self._told[peer] = _Told(dialled)

    def gone(self, peer: bytes) -> None:
        """The peer is not connected any more; nothing is kept of it."""
        with self._lock:
            self._told.pop(peer, None)

    def hello(self, peer: bytes, their_ms: int, asked_ms: int, answered_ms: int) -> None:
        """A hello told the peer's time.

        Args:
            peer: Whose.
            their_ms: Its wall clock, Unix milliseconds.
            asked_ms: When it was asked, by our steady clock.
            answered_ms: When the answer was here, by the same.

        """
        with self._lock:
            told = self._told.get(peer)
            if told is not None:
                told.base_ms = their_ms - (asked_ms + answered_ms) // 2
                told.error_ms = max(0, answered_ms - asked_ms + 1) // 2
                told.by_hello, told.at_ms = True, answered_ms

    def announced(self, peer: bytes, stamp_ms: int, steady_ms: int) -> None:
        """An announcement came that the peer signed itself at that time of its clock."""
        with self._lock:
            told = self._told.get(peer)
            if told is None or told.by_hello:
                return
            base = stamp_ms - steady_ms
            old = steady_ms - told.at_ms >= ANNOUNCED_MS
            if told.base_ms is None or base >= told.base_ms or old:
                told.base_ms, told.at_ms = base, steady_ms

    def tellers(self) -> list[bytes]:
        """Return the peers whose hello tells their time: they can be asked again."""
        with self._lock:
            return [peer for peer, told in self._told.items() if told.by_hello]

    def offsets(self, wall_ms: int, steady_ms: int) -> dict[bytes, int]:
        """Return how far our clock is ahead of each peer's that told it, milliseconds."""
        with self._lock:
            found = {p: told.offset_ms(wall_ms - steady_ms) for p, told in self._told.items()}
        return {peer: offset for peer, offset in found.items() if offset is not None}

    def view(self, wall_ms: int, steady_ms: int) -> ClockOffset:
        """Return what the peers' clocks say of ours now."""
        ahead_ms = wall_ms - steady_ms
        dialled: list[int] = []
        others: list[int] = []
        with self._lock:
            for told in self._told.values():
                offset = told.offset_ms(ahead_ms)
                if offset is not None:
                    (dialled if told.dialled else others).append(offset)
        counting = dialled if len(dialled) >= self._dialled_min else dialled + others
        if not counting:
            return ClockOffset()
        middle = median_near_zero(counting)
        return ClockOffset(
            peers=len(counting),
            known=len(counting) >= self._peers_min,
            offset_ms=middle,
            spread_ms=median_near_zero([abs(each - middle) for each in counting]),
        )


def median_near_zero(values: list[int]) -> int:
    """Return the median of one value or more; of an even number the middle one nearer to 0."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return min(low, high, key=abs)
