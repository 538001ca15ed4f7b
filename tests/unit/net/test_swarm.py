"""The swarm's own will is gone, and its limits are the configuration's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from luxrelay.net import swarm as swarms
from luxrelay.net.config import NetConfig
from luxrelay.net.host import RelayHost


async def test_limits_are_ours() -> None:
    """Inbound slots, total and per-peer connections come from the configuration (G21)."""
    config = NetConfig(inbound_max=7, outbound_max=5, peer_connections_max=3)

    swarm = RelayHost(bytes(32), config)._swarm

    assert swarm._inbound_limiter.total_tokens == 7
    assert swarm.connection_config.max_connections == 12
    assert swarm.connection_config.max_connections_per_peer == 3
    assert swarm.retry_config.max_retries == 0


@pytest.mark.parametrize(
    ("looks", "asked", "found"),
    [
        ([(0, 50), (0, 50)], 1, False),
        ([(900, 50), (400, 550), (0, 950)], 2, False),
        ([(900, 50), (900, 50)], 1, False),
        ([(900, 50), (400, 550), (300, 650)], 3, True),
        ([None, None], 1, False),
    ],
    ids=["nothing on its way", "all taken, no answer", "nothing moves", "narrow", "unsaid"],
)
async def test_a_narrow_link_has_time_to_answer(
    monkeypatch: pytest.MonkeyPatch,
    looks: list[tuple[int, int] | None],
    asked: int,
    found: bool,
) -> None:
    """G40: a ping behind much else is waited for while that moves, and no longer."""
    times: list[float] = []
    told: Iterator[tuple[int, int] | None] = iter(looks)

    async def answers(_muxed: object, seconds: float) -> bool:
        times.append(seconds)
        return found and len(times) == asked

    monkeypatch.setattr(swarms, "answers", answers)
    muxed: swarms.IMuxedConn = object()  # type: ignore[assignment]

    assert await swarms.answers_behind(muxed, 1.5, lambda: next(told)) is found
    assert times == [1.5] * asked


async def test_a_link_that_moves_and_never_answers_is_silent_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G40: a machine that takes bytes for nobody has `_PROBES_MAX` times as long."""
    times: list[float] = []

    async def answers(_muxed: object, seconds: float) -> bool:
        times.append(seconds)
        return False

    monkeypatch.setattr(swarms, "answers", answers)
    muxed: swarms.IMuxedConn = object()  # type: ignore[assignment]

    assert not await swarms.answers_behind(muxed, 1.0, lambda: (900, 50 + len(times)))
    assert len(times) == swarms._PROBES_MAX


async def test_dials_nobody_by_itself() -> None:
    """The library's connector knows peers to dial and dials none of them."""
    swarm = RelayHost(bytes(32), NetConfig())._swarm

    await swarm.auto_connector.start()
    await swarm.auto_connector.maybe_connect()
    swarm.auto_connector.record_disconnect(swarm.self_id)

    assert not swarm.auto_connector._is_connecting
    assert not swarm.auto_connector._recent_disconnects
    assert (swarm.count(outbound=True), swarm.count(outbound=False)) == (0, 0)
