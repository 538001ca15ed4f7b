"""Pauses that double."""

import random

from hypothesis import given
from hypothesis import strategies as st

from luxrelay.pause import doubled, jittered


def test_a_pause_doubles_up_to_its_bound() -> None:
    """The first failure has the first pause."""
    assert [doubled(0.5, failures, 3.0) for failures in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 3.0]


@given(st.floats(1e-3, 10), st.integers(1, 10**9), st.floats(10, 1e6))
def test_no_number_of_failures_is_too_many(first: float, failures: int, most: float) -> None:
    """It stays within its bounds, and jitter takes half of it at the most."""
    pause = doubled(first, failures, most)
    assert first <= pause <= most
    assert pause / 2 <= jittered(pause, random.Random(7)) <= pause
