"""The Lamport clock of a participant, tied to the wall clock, and the salt of its message ids.

Both only rise, also over restarts and when the wall clock goes back.

Source: SDS (Lamport clock); decisions C5, C6.
"""

from __future__ import annotations

from typing import Final

from luxrelay.channel.state import Journal, Row, Table
from luxrelay.channel.wire import LAMPORT_MAX

_KEY: Final = b"clock"


class LamportClock:
    """Milliseconds, or more when more happened.

    Args:
        ahead_max_ms: How far ahead of the wall clock others may move it.
        journal: Where changes are written down.
        now_ms: Unix milliseconds; the clock begins here.

    """

    def __init__(self, ahead_max_ms: int, journal: Journal, now_ms: int) -> None:
        self._ahead_max_ms = ahead_max_ms
        self._journal = journal
        self._salt = 0
        self.value = now_ms
        """The clock."""

    def tick(self, now_ms: int) -> int:
        """Return the clock of a new message of ours."""
        self.value = min(max(now_ms, self.value + 1), LAMPORT_MAX)
        self._save()
        return self.value

    def adopt(self, clock: int, now_ms: int) -> int:
        """Move to a clock that was received, within reason; return what of it is believed."""
        clock = min(clock, now_ms + self._ahead_max_ms)
        if self.value < clock:
            self.value = clock
            self._save()
        return clock

    def salt(self, now_ms: int) -> int:
        """Return a salt that no message of ours had: Unix nanoseconds, or a little more."""
        self._salt = max(now_ms * 1_000_000, self._salt + 1)
        return self._salt

    def restore(self, row: Row) -> None:
        """Go on from what was kept; other rows are not looked at."""
        if row.table is Table.META and row.key == _KEY and row.value is not None:
            self.value = max(self.value, int.from_bytes(row.value[:8], "big"))
            self._salt = int.from_bytes(row.value[8:], "big")

    def _save(self) -> None:
        value = self.value.to_bytes(8, "big") + self._salt.to_bytes(16, "big")
        self._journal.put(Table.META, _KEY, value)
