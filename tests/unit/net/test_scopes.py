"""Last words are spoken under cancellation, and not for ever."""

from __future__ import annotations

import pytest
import trio

from luxrelay.net.scopes import shielded


async def test_shield_holds_until_its_own_end() -> None:
    """Inside the shield outer cancellation waits; the shield's own bound does not."""
    began = trio.current_time()
    spoken = False

    with trio.CancelScope() as outer:
        outer.cancel()
        with shielded(2.0) as inner:
            await trio.sleep(1.0)
            spoken = True
            await trio.sleep_forever()

    assert spoken
    assert inner.cancelled_caught
    assert trio.current_time() - began == pytest.approx(2.0)


async def test_shield_without_bound() -> None:
    """Without a bound it lasts as long as its body."""
    with trio.CancelScope() as outer:
        outer.cancel()
        with shielded() as inner:
            await trio.sleep(50.0)

    assert not inner.cancelled_caught
