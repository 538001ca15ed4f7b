"""`Transfer` and `LinkWindow`: when what a peer sends is late, and how much to ask it for at once.

Theory of operation
===================

*Decides*: one rule for pages, blobs, segments and comparisons. A transfer is over when no byte came
for ``silence_s``, however long the whole takes: a slow link is no fault. What came is kept, and
whoever goes on asks from `Transfer.position`. Another peer is asked beside it only before the first
byte: afterwards both would send the same over one link. What is asked of a peer at one time is what
its link carries in ``ahead_s``: more would only wait in queues, and be late there.

*Does not know*: bytes, peers, clocks. It is told how much was asked for and how much came.

*Machines and their states*: a **transfer** has begun or not, and is late or not. A **window** opens
from ``window_first``; with each sample (what came in `SAMPLE_S`, or a whole window) it follows the
measured rate, at most by `GROWTH` a step, within ``window_min`` and ``window_max``. The clock of
the measurement stands still while nothing is under way.

*Bounds*: `TransferConfig`.

*What else to change when you change this*: ``catchup.py``, ``fetch.py``.

Source: LP-6421 §2.3, §5.2; decision P46.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from luxrelay.bus import constants as c
from luxrelay.errors import SyncArgumentError

SAMPLE_S: Final = 0.5
"""A rate is measured over this long, seconds, or over a window that came sooner."""
GROWTH: Final = 4
"""A window grows to so many times of itself at most by one sample."""
PAGES_A_WINDOW: Final = 4
"""Pages that fill a window: while one is stored, others are on their way."""
FRAMES_A_WINDOW: Final = 64
"""Frames that fill a window, so that each is a sixteenth of the seconds of a window."""
FRAME_MIN: Final = 8 * 1024
"""Bytes of a frame that are always asked for."""
BLOBS_A_SILENCE: Final = 3
"""Blobs that come with their messages take a third of the time of silence, by what was measured."""
LATE_BLOBS_A_WINDOW: Final = 16
"""Largest blobs that fill a first window, of a link that was late before it was measured."""
SMOOTHING: Final = 0.5
"""Weight of the newest sample of a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """How long a peer may be silent, and how much is asked of it at once; all are positive."""

    silence_s: float = 15.0
    """A transfer that brings no byte for so long is over, seconds."""
    ahead_s: float = 4.0
    """So many seconds of what a link carries may be under way on it."""
    window_first: int = 1024 * 1024
    """Bytes that may be under way from a peer of which nothing is known."""
    window_min: int = 64 * 1024
    """Bytes that may always be under way."""
    window_max: int = 32 * 1024 * 1024
    """Bytes that may be under way on the fastest link."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("silence_s", "ahead_s", "window_min"):
            if not getattr(self, name) > 0:
                raise SyncArgumentError(f"{name} must be positive", where="TransferConfig")
        if not self.window_min <= self.window_first <= self.window_max:
            raise SyncArgumentError(
                "window_first must lie between window_min and window_max", where="TransferConfig"
            )


class Transfer:
    """One thing on its way from one peer.

    Args:
        silence_s: As in `TransferConfig`.
        now: Monotonic seconds.
        position: Bytes, or rows, that came before.

    """

    __slots__ = ("_silence_s", "begun", "due", "position")

    def __init__(self, silence_s: float, now: float, *, position: int = 0) -> None:
        self._silence_s = silence_s
        self.position = position
        """How far it has come; where somebody else goes on."""
        self.begun = False
        """Whether anything came of it."""
        self.due = now + silence_s
        """When it is over unless something comes, monotonic seconds."""

    def came(self, count: int, now: float) -> None:
        """Take note that ``count`` more arrived."""
        if count > 0:
            self.begun = True
            self.position += count
            self.due = now + self._silence_s

    def late(self, now: float) -> bool:
        """Return True when it has been silent for too long."""
        return now >= self.due


class LinkWindow:
    """Bytes that may be under way from one peer; see the theory above."""

    __slots__ = ("_busy_s", "_config", "_mark", "_sampled", "rate", "size", "under_way")

    def __init__(self, config: TransferConfig | None = None) -> None:
        self._config = config or TransferConfig()
        self.size = self._config.window_first
        """Bytes that may be under way now."""
        self.under_way = 0
        """Bytes that were asked for and have not come."""
        self.rate: float | None = None
        """Bytes a second that the link carries; None before the first sample."""
        self._mark: float | None = None
        self._busy_s = 0.0
        self._sampled = 0

    @property
    def room(self) -> int:
        """Bytes that may be asked for beside what is under way; the first always may."""
        return max(0, self.size - self.under_way) if self.under_way else self.size

    @property
    def page_bytes(self) -> int:
        """Bytes of one asking: a quarter of the window, so that others are on their way."""
        return max(1, self.size // PAGES_A_WINDOW)

    @property
    def frame_bytes(self) -> int:
        """Bytes of a frame, each of which shows progress."""
        return max(FRAME_MIN, self.size // FRAMES_A_WINDOW)

    @property
    def blob_bytes(self) -> int:
        """Largest blob that comes with its message, bytes; 0 for any.

        One message is one frame, and a frame shows no progress before its end. Of a link that is
        not known yet every blob is asked for: left out, it would have nothing to be measured by.
        """
        config = self._config
        if self.rate is None:
            late = self.size < config.window_first
            return config.window_first // LATE_BLOBS_A_WINDOW if late else 0
        fits = int(self.rate * config.silence_s / BLOBS_A_SILENCE)
        return 0 if fits >= c.MAX_BLOB_BYTES else max(FRAME_MIN, fits)

    def asked(self, size: int, now: float) -> None:
        """Take note that up to ``size`` bytes were asked for."""
        self._pass(now)
        self.under_way += size

    def came(self, size: int, now: float, expected: int | None = None) -> None:
        """Take note that ``size`` bytes arrived.

        Args:
            size: All of them; the rate is measured by these.
            now: Monotonic seconds.
            expected: How many of them were asked for; all when not given.

        """
        self._pass(now)
        self.under_way = max(0, self.under_way - (size if expected is None else expected))
        self._sampled += size
        if self._busy_s >= SAMPLE_S or (self._busy_s > 0 and self._sampled >= self.size):
            self._sample(self._sampled / self._busy_s)

    def ended(self, size: int, now: float, *, late: bool = False) -> None:
        """Take note that ``size`` bytes will not come: there were fewer, or they are given up.

        Args:
            size: Bytes asked for that did not come.
            now: Monotonic seconds.
            late: Whether the link brought nothing in time; then less is asked for next.

        """
        self._pass(now)
        self.under_way = max(0, self.under_way - size)
        if late:
            self.size = max(self._config.window_min, self.size // 2)

    def _pass(self, now: float) -> None:
        """Count the time since the last event, if anything was under way."""
        if self._mark is not None and self.under_way:
            self._busy_s += now - self._mark
        self._mark = now

    def _sample(self, rate: float) -> None:
        known = self.rate
        self.rate = rate if known is None else known + SMOOTHING * (rate - known)
        config = self._config
        wanted = min(int(self.rate * config.ahead_s), self.size * GROWTH)
        self.size = max(config.window_min, min(wanted, config.window_max))
        self._busy_s, self._sampled = 0.0, 0
