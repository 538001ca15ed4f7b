"""`ClockGuard`: may the wall clock be believed about the age of messages? Pure.

A wall clock that is set forward by a year makes every message expired at once. The monotonic clock
does not move when the wall clock is set, so the two drift apart exactly then. While they do,
nothing is deleted for its age, and the operator is told. A jump that was right (a wrong clock
corrected, a machine that slept) is believed once the clock has stood by it for ``settle_ms``.

Only clocks of one run can be compared: a clock that was wrong before the start goes unnoticed.

Source: decisions P43; 21-14.
"""

from __future__ import annotations


class ClockGuard:
    """Compares the wall clock with the monotonic one at each call."""

    __slots__ = ("_candidate", "_jump_ms", "_offset", "_settle_ms", "_since", "alarms", "moved_ms")

    def __init__(self, *, jump_ms: int, settle_ms: int) -> None:
        self._jump_ms = jump_ms
        self._settle_ms = settle_ms
        self._offset: float | None = None
        """Wall minus monotonic as it was believed."""
        self._candidate: float | None = None
        self._since = 0.0
        self.moved_ms = 0
        """How far the wall clock stands from where it was believed; 0 while it is trusted."""
        self.alarms = 0
        """Jumps seen."""

    def trusts(self, now_ms: int, now: float) -> bool:
        """Return True when ages may be computed from ``now_ms``.

        Args:
            now_ms: Wall clock, Unix milliseconds.
            now: Monotonic clock, seconds.

        """
        offset = now_ms - now * 1000
        if self._offset is None:
            self._offset = offset
        if abs(offset - self._offset) <= self._jump_ms:
            self._candidate = None
            self.moved_ms = 0
            return True
        if self._candidate is None or abs(offset - self._candidate) > self._jump_ms:
            self._candidate = offset
            self._since = now
            self.alarms += 1
        elif (now - self._since) * 1000 >= self._settle_ms:
            self._offset = offset
            self._candidate = None
            self.moved_ms = 0
            return True
        self.moved_ms = round(offset - self._offset)
        return False
