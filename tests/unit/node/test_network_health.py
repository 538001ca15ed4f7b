"""What the network says of a node: clock, silence, refusals; what is told, and how often."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import Code, VerdictKind
from luxrelay.net.peer_clocks import ClockOffset
from luxrelay.node.logs import start_logging
from luxrelay.node.network_health import (
    NETWORK,
    SAID_EVERY_S,
    SAID_MIN_S,
    WINDOW_S,
    MostRefused,
    NetworkHealth,
    NetworkSources,
    RefusedShare,
    SaidLines,
    clock_state,
    judged,
)

ACCEPT, IGNORE, REJECT = VerdictKind.ACCEPT, VerdictKind.IGNORE, VerdictKind.REJECT


class Network:
    """A network that says what a test wants it to."""

    def __init__(self) -> None:
        self.clock = ClockOffset(peers=3, known=True)
        self.quiet_s: float | None = 0.5
        self.greeted = (3, 0, 3)
        self.verdicts: Mapping[tuple[str, VerdictKind, Code], int] = {}
        self.told: list[ClockOffset] = []
        self.health = NetworkHealth(
            NetworkSources(
                clock=lambda: self.clock,
                quiet_s=lambda: self.quiet_s,
                greeted=lambda: self.greeted,
                verdicts=lambda: self.verdicts,
            ),
            clock_warn_ms=5_000,
            silence_max_s=15.0,
            arrivals_min=10,
            told=self.told.append,
        )

    def off(self, offset_ms: int, *, known: bool = True) -> None:
        """The clock is so far ahead."""
        self.clock = ClockOffset(peers=3, known=known, offset_ms=offset_ms)


@pytest.fixture
def network() -> Network:
    """A network that says nothing against the node."""
    return Network()


@pytest.fixture
def lines() -> Iterator[Any]:
    """What is logged, as a list of objects."""
    stream = io.StringIO()
    start_logging("node", "info", stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logging.getLogger("luxrelay").handlers.clear()


@pytest.mark.parametrize(
    ("offset_ms", "state", "ready"),
    [
        (0, "right", True),
        (5_000, "right", True),
        (-5_001, "off", True),
        (30_000, "off", True),
        (30_001, "wrong", False),
        (-300_000, "wrong", False),
    ],
)
def test_a_clock_is_right_off_or_wrong(
    network: Network, offset_ms: int, state: str, ready: bool
) -> None:
    """Above the tolerance for live messages the node is not ready (G36)."""
    network.off(offset_ms)
    well, shown = network.health.view()
    assert (well, shown["clock"]["state"]) == (ready, state)
    assert shown["clock"] == {
        "state": state, "offset_ms": offset_ms, "spread_ms": 0, "peers": 3,
    }  # fmt: skip
    assert bool(shown["warnings"]) == (state != "right")
    network.off(offset_ms, known=False)
    assert network.health.view()[0]
    assert clock_state(network.clock, 5_000) == "unknown"


@pytest.mark.parametrize(
    ("quiet_s", "ready"), [(None, True), (0.0, True), (15.0, True), (15.1, False)]
)
def test_silence_of_all_peers_is_not_ready(
    network: Network, quiet_s: float | None, ready: bool
) -> None:
    """A node without peers, now and in its file, may stand alone (G37)."""
    network.quiet_s = quiet_s
    well, shown = network.health.view()
    assert (well, shown["quiet_s"]) == (ready, quiet_s)
    assert bool(shown["warnings"]) != ready


def test_what_is_mostly_refused_is_told_and_keeps_nobody_from_being_ready(
    network: Network, lines: Any
) -> None:
    """More than half for one reason: in health, once in the log, with numbers (G37)."""
    network.health.look(1_000.0)
    network.verdicts = {
        ("gossip", IGNORE, Code.TIMESTAMP_INVALID): 12,
        ("sync", REJECT, Code.TIMESTAMP_INVALID): 3,
        ("sync", IGNORE, Code.DUPLICATE): 500,
        ("gossip", ACCEPT, Code.OK): 9,
        ("publish", IGNORE, Code.RATE_LIMITED): 900,
    }
    network.health.look(1_001.0)
    well, shown = network.health.view()
    assert well
    assert shown["refused"] == [{"reason": "timestamp_invalid", "refused": 15, "arrived": 24}]
    words = "15 of 24 messages from peers were refused as timestamp_invalid in the last minute"
    assert shown["warnings"] == [words]
    network.health.look(1_002.0)
    assert [line["what"] for line in lines() if line.get("about") == "refusals"] == [words]
    network.health.look(1_002.0 + WINDOW_S)
    network.health.look(1_003.0 + WINDOW_S)
    assert not network.health.view()[1]["refused"]
    assert [line["level"] for line in lines() if line.get("about") == "refusals"][1:] == ["info"]


def test_peers_of_another_network_are_told_beside_those_that_stay(network: Network) -> None:
    """One stranger beside three peers says nothing; four of seven do."""
    network.health.look(1_000.0)
    network.greeted = (3, 1, 3)
    network.health.look(1_001.0)
    assert not network.health.refused
    network.greeted = (3, 4, 0)
    network.health.look(1_002.0)
    (found,) = network.health.refused
    assert found == MostRefused(NETWORK, 4, 7)
    assert found.text.startswith("4 of 7 peers that came are of another network or version")


def test_the_offset_is_handed_on_at_each_look(network: Network) -> None:
    """Receipts speak of the clock as it was a second ago at most."""
    network.off(40_000)
    network.health.look(1.0)
    assert network.told == [network.clock]


def test_a_warning_is_said_once_and_again_after_a_while(network: Network, lines: Any) -> None:
    """A line when it begins, one in ten minutes while it lasts, one when it ends."""
    network.off(40_000)
    network.quiet_s = 20.0
    for second in range(int(SAID_EVERY_S) + 1):
        network.health.look(1_000.0 + second)
    said = [line for line in lines() if line["level"] == "warning"]
    assert [line["about"] for line in said] == ["clock", "silence"] * 2
    assert "40.0 s ahead of the median clock of 3 peers" in said[0]["what"]
    assert said[1]["what"] == "no byte of any peer came for 20 s, 15 are allowed"
    network.off(0)
    network.health.look(1_000.0 + SAID_EVERY_S + SAID_MIN_S)
    assert said[0]["event"] == "the clock differs from the peers'"
    assert lines()[-1]["event"] == "the clock agrees with the peers' again"


@given(st.lists(st.tuples(st.floats(0.1, 30), st.sampled_from(["", "a", "b"])), max_size=60))
def test_lines_are_limited_however_states_change(steps: list[tuple[float, str]]) -> None:
    """Two lines of a kind are `SAID_MIN_S` apart at least, and none says that all stays well."""
    lines, now, said = SaidLines(), 0.0, [(float("-inf"), "")]
    for pause, state in steps:
        now += pause
        if lines.due("clock", state, now):
            assert now - said[-1][0] >= SAID_MIN_S
            assert state or said[-1][1]
            said.append((now, state))


Events = list[tuple[float, str]]


@given(
    st.lists(st.tuples(st.floats(0.5, 20), st.sampled_from(["", "", "a", "b"])), max_size=150),
    st.integers(1, 8),
    st.integers(0, 3),
)
def test_the_share_is_that_of_the_last_minute(
    steps: Events, arrivals_min: int, standing: int
) -> None:
    """As counted one by one between the first sample kept and now; few samples are kept."""
    share, now = RefusedShare(arrivals_min=arrivals_min), 0.0
    at: list[tuple[float, str]] = []
    samples = [0.0]
    for pause, reason in steps:
        now += pause
        at.append((now, reason))
        samples.append(now)
        counts: dict[str, int] = {}
        for _, each in at:
            if each:
                counts[each] = counts.get(each, 0) + 1
        share.take(now, sum(not each for _, each in at), counts)
        begin = max([s for s in samples if s <= now - WINDOW_S], default=0.0)
        lately = [each for when, each in at if when > begin]
        found = share.view(standing)
        arrived = len(lately) + standing
        most = max(("a", "b"), key=lately.count)
        if arrived >= arrivals_min and 2 * lately.count(most) > arrived:
            assert found is not None
            assert (found.refused, found.arrived) == (lately.count(most), arrived)
            assert found.share > 0.5
        else:
            assert found is None
    assert len(share) <= 2 + WINDOW_S / 0.5


def test_what_is_known_already_is_neither_taken_nor_refused() -> None:
    """Copies are no sign of anything."""
    assert judged({("gossip", IGNORE, Code.DUPLICATE): 7}) == (0, {})
    assert judged({("sync", ACCEPT, Code.OK): 7, ("claims", REJECT, Code.OK): 2}) == (7, {})
