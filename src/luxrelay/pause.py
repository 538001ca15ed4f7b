"""Pauses that double: after a failure, before the next attempt.

One formula for every room, so that none overflows after a thousand failures and each has its bound.

Source: architecture, rule 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

_STEPS_MAX: Final = 60
"""Doublings that are computed; more of them are beyond every bound, and a float has an end."""


def doubled(first: float, failures: int, most: float) -> float:
    """Return the pause after so many failures in a row.

    Args:
        first: After the first failure, in any unit.
        failures: Failures in a row, at least one.
        most: The longest pause, in the same unit.

    """
    return min(first * 2.0 ** min(failures - 1, _STEPS_MAX), most)


def jittered(pause: float, rng: random.Random) -> float:
    """Return between half of a pause and all of it, so that many do not come back at once."""
    return pause * (0.5 + rng.random() / 2)
