"""What a network could have caused is nobody's fault."""

from __future__ import annotations

import pytest

from luxrelay.conduct import Cause

FAULTS_OF_THE_NETWORK = [
    "ANSWER_DAMAGED",
    "CLOSED",
    "ENDED",
    "FRAME_CUT",
    "HELLO_LATE",
    "NO_GOSSIP",
    "NO_PONG",
    "NOTHING_TAKEN",
    "PROMISE_STALLED",
    "QUEUE_FULL",
]
"""A stream that ended early, a frame that was cut, a deadline that passed, bytes without proof."""


@pytest.mark.parametrize("cause", Cause)
def test_only_what_no_network_does_is_misconduct(cause: Cause) -> None:
    """The table of causes is complete: a new one is put on one side by name (G38)."""
    assert cause.misconduct is (cause.name not in FAULTS_OF_THE_NETWORK)
    assert cause.value
