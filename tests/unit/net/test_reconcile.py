"""Frames of the reconcile stream over links that are slow, in virtual time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from luxrelay.net.reconcile import _frame
from luxrelay.net.streams import FrameDecoder, encode_frame


class Dripping:
    """A stream whose bytes come in pieces, one every so many seconds."""

    def __init__(self, data: bytes, piece: int, every_s: float) -> None:
        self._pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
        self._every_s = every_s

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the next piece when its time has come; then nothing, for ever."""
        del max_bytes
        await trio.sleep(self._every_s if self._pieces else 1e9)
        return self._pieces.pop(0)


async def came(every_s: float, silence_s: float) -> bytes | None:
    """Return the frame of 64 KiB that comes in 64 pieces."""
    stream = Dripping(encode_frame(bytes(65_536)), 1_024, every_s)
    return await _frame(stream, FrameDecoder(1_000_000), silence_s)  # type: ignore[arg-type]


def test_a_frame_may_take_longer_than_the_longest_silence() -> None:
    """P46: ten minutes for a frame, ten seconds for each piece of it."""
    assert trio.run(came, 9.5, 10.0, clock=MockClock(autojump_threshold=0)) == bytes(65_536)


def test_a_frame_is_over_by_silence() -> None:
    """P46: a peer that says nothing more is not waited for."""
    with pytest.raises(trio.TooSlowError):
        trio.run(came, 10.5, 10.0, clock=MockClock(autojump_threshold=0))
