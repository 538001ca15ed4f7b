"""The hybrid logical clock: stamps that never go back, even when the wall clock does.

Source: decisions J1; the retention document's packed stamps.
"""

from typing import Final

from luxrelay.bus.constants import HLC_COUNTER_BITS, LIVE_TOLERANCE_MS, MAX_U64
from luxrelay.errors import BusArgumentError

_COUNTER_MASK: Final = (1 << HLC_COUNTER_BITS) - 1
MAX_PHYSICAL_MS: Final = MAX_U64 >> HLC_COUNTER_BITS


def pack_stamp(ms: int, counter: int) -> int:
    """Return (ms << 16) | counter as one u64 that orders like the pair.

    Raises:
        BusArgumentError: ``ms`` does not fit 48 bits or ``counter`` 16.

    """
    if not 0 <= ms <= MAX_PHYSICAL_MS or not 0 <= counter <= _COUNTER_MASK:
        raise BusArgumentError("a stamp holds 48 bits of ms and 16 of counter", where="pack_stamp")
    return ms << HLC_COUNTER_BITS | counter


def unpack_stamp(stamp: int) -> tuple[int, int]:
    """Return the (milliseconds, counter) of a packed stamp."""
    return stamp >> HLC_COUNTER_BITS, stamp & _COUNTER_MASK


class HybridClock:
    """A clock that only goes forward; physical time is always an argument.

    ``now`` and ``observe`` return packed stamps. Who stamps ``header.timestamp`` with the
    physical part has timestamps that never go back (J1).
    """

    __slots__ = ("_ahead_max_ms", "_stamp")

    def __init__(self, stamp: int = 0, *, ahead_max_ms: int = LIVE_TOLERANCE_MS) -> None:
        """Start at a persisted stamp, or at zero.

        Args:
            stamp: The packed stamp to stay above.
            ahead_max_ms: How far ahead of our wall clock a remote stamp may be, milliseconds.
                A message beyond the live tolerance is ignored anyway (H14); taking its stamp
                would carry ours out of everybody's tolerance.

        """
        self._stamp = stamp
        self._ahead_max_ms = ahead_max_ms

    def now(self, wall_ms: int) -> int:
        """Return a stamp later than every one before, at ``wall_ms`` or after it."""
        self._stamp = max(pack_stamp(wall_ms, 0), self._stamp + 1)
        return self._stamp

    def for_message(self, wall_ms: int) -> int:
        """Return the time of a message to sign, milliseconds: `now`, as long as relays take it.

        A stamp further ahead than the tolerance is one that a wall clock gave before it was put
        right. No relay took what it stamped (H14), so the clock begins anew; else its owner would
        be refused until the wall clock has come as far again.
        """
        if self._stamp > pack_stamp(wall_ms + self._ahead_max_ms, _COUNTER_MASK):
            self._stamp = 0
        return unpack_stamp(self.now(wall_ms))[0]

    def observe(self, remote_stamp: int, wall_ms: int) -> int:
        """Return a stamp later than every one of ours, and than a remote one within bounds."""
        if remote_stamp > pack_stamp(wall_ms + self._ahead_max_ms, _COUNTER_MASK):
            return self.now(wall_ms)
        self._stamp = max(pack_stamp(wall_ms, 0), self._stamp + 1, remote_stamp + 1)
        return self._stamp

    def follow(self, stamp: int) -> None:
        """Stay above a stamp of our own from elsewhere, such as that of a lane's head."""
        self._stamp = max(self._stamp, stamp)
