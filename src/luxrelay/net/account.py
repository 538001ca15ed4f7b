"""`Account`: cost and merit of one inbound connection. Pure.

Theory of operation
  Decides: how much of what a connection cost is charged to its address.
  Does not know: clocks, tasks, buckets. It is told what was spent and what was accepted.
  Rule: every message of the connection that was accepted as new gives back `ACCEPTED_US`. Every
    frame gives back `COPY_US`, at most `FRAMES_PER_MESSAGE` for each message that the node has
    accepted from whomever, or published, since the connection began: an honest peer sends its copy
    of each, and a word about it. Whoever sends what nobody accepts pays for all of it.
  Bounds: what is given back is what was charged; `EARNED_MAX_US` more is kept for what comes next.

Source: decisions P33, P34; LP-6420 §10; `luxrelay.sync.cost`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from luxrelay.sync.cost import Payer, Price

ACCEPTED_US: Final = 1_000.0
"""What a message that was accepted as new gives back, microseconds of CPU time."""
REFUSED_US: Final = 2.0 * Price.SIGNATURE
"""What a message costs beside its frame that was verified and not accepted, microseconds."""
STEP_FACTOR: Final = 2.5
"""What a task's CPU time is charged at: the loop, the kernel and threads cost half as much again,
and more than that where each byte comes alone (measured)."""
STEP_US: Final = 500.0
"""What may be open on a connection before it is settled, microseconds."""
OPENED_US: Final = 500.0
"""What a connection costs before it has an account, and after it, microseconds."""
COPY_US: Final = 250.0
"""What a frame gives back that an honest peer may have sent, microseconds."""
FRAMES_PER_MESSAGE: Final = 2
"""Such frames for each message that the node has accepted: a copy, and a word about it."""
FRAMES_MAX: Final = 4_096
"""Such frames that are kept for later."""
EARNED_MAX_US: Final = 250_000.0
"""What a connection may have earned beyond its cost, microseconds."""


@dataclass(slots=True, eq=False)
class Account:
    """One inbound connection; see the theory above."""

    payer: Payer
    """Whom it is charged to."""
    peer: bytes = b""
    """Who is at its other end, once that is proven."""
    seen: int = 0
    """Messages that the node had accepted when this was looked at last."""
    spent_us: float = OPENED_US
    """CPU time since it was settled last, microseconds."""
    earned_us: float = 0.0
    """What is given back for it, microseconds."""
    charged_us: float = 0.0
    """What was charged and not given back, microseconds."""
    fresh: bool = True
    """Nothing was read from the connection yet."""
    held: bool = False
    """It is not read from, because its payer is in debt."""
    _frames_left: int = 0

    @property
    def open_us(self) -> float:
        """What was not settled yet, microseconds; either sign."""
        return self.spent_us - self.earned_us

    @property
    def settled(self) -> bool:
        """Whether little is open, or nothing can be given back."""
        return self.open_us < STEP_US and (self.open_us > -STEP_US or self.charged_us <= 0)

    def spend(self, seconds: float) -> None:
        """A task of the connection has run for so much CPU time."""
        self.spent_us += seconds * 1e6 * STEP_FACTOR

    def judged(self, accepted: int, others: int) -> None:
        """So many of its messages were accepted as new, and so many were verified and were not."""
        self.earned_us += accepted * ACCEPTED_US
        self.spent_us += others * REFUSED_US

    def read(self, frames: int, accepted: int) -> None:
        """So many frames came, when the node had accepted so many messages since its start."""
        fresh = FRAMES_PER_MESSAGE * (accepted - self.seen)
        self.seen = accepted
        self._frames_left = min(FRAMES_MAX, self._frames_left + fresh)
        paid = min(frames, self._frames_left)
        self._frames_left -= paid
        self.earned_us += paid * COPY_US

    def due(self) -> float:
        """Settle; return what the payer is charged, or negative what it gets back, microseconds."""
        net = self.open_us
        self.spent_us = 0.0
        back = min(-net, self.charged_us) if net < 0 else -net
        self.charged_us -= back
        self.earned_us = min(EARNED_MAX_US, max(0.0, -net - back))
        return -back
