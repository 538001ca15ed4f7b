"""A lane's timestamps never go back, whatever the clock of the caller does (J1)."""

from __future__ import annotations

import pytest

from luxrelay.bus import MsgHeader, SigningKey, topic_namespace
from luxrelay.client import LaneSigner

PARENT = topic_namespace("/chat/1/room")
NOW = 1_704_067_200_000


def times(signer: LaneSigner, *walls: int) -> list[int]:
    """Return the timestamps of messages that are signed at these times."""
    return [MsgHeader.decode(signer.sign(b"x", wall).header).timestamp for wall in walls]


@pytest.mark.trial
def test_a_clock_that_is_set_back_does_not_show() -> None:
    """The timestamp stays where it was until the clock has come as far again."""
    signer = LaneSigner(SigningKey.generate(), PARENT)

    assert times(signer, NOW, NOW - 20_000, NOW - 1, NOW + 5, NOW) == [
        NOW, NOW, NOW, NOW + 5, NOW + 5,
    ]  # fmt: skip


def test_it_goes_on_behind_the_head() -> None:
    """In sequence and in time, as it begins and later."""
    key = SigningKey.generate()
    signer = LaneSigner(key, PARENT, next_seq=8, after_ms=NOW)
    assert times(signer, NOW - 3) == [NOW]

    signer.follow(20, NOW + 7)
    message = MsgHeader.decode(signer.sign(b"x", NOW).header)

    assert (message.seq, message.timestamp) == (21, NOW + 7)


def test_a_clock_that_was_far_ahead_is_not_held_to_it() -> None:
    """What it stamped then no relay took; within the tolerance it goes on where it was."""
    signer = LaneSigner(SigningKey.generate(), PARENT)

    assert times(signer, NOW + 3_600_000, NOW, NOW - 1) == [NOW + 3_600_000, NOW, NOW]
    assert times(signer, NOW + 30_000, NOW) == [NOW + 30_000, NOW + 30_000]


def test_a_clock_that_stands_still_runs_a_millisecond_ahead_after_65536_messages() -> None:
    """The counter has 16 bits; what is beyond them is time, and far below the tolerance."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    for _ in range(65_535):
        signer._clock.now(NOW)

    assert times(signer, NOW, NOW) == [NOW, NOW + 1]
