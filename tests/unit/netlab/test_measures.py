"""The lab's measures, from records made by hand."""

from __future__ import annotations

import pytest

from netlab.measures import (
    HEADER_BYTES,
    MeasureContext,
    RelaySample,
    RunRecord,
    SentMessage,
    WireSample,
    measure,
    quantile,
)
from netlab.scenario import Expected, MeasurePlan


def record(messages: int = 10, *, relays: int = 2) -> RunRecord:
    """Return a run in which relay 0 published one message a second and nobody was told anything."""
    made = RunRecord(relays=relays, began_s=0.0, load_ended_s=float(messages))
    for seq in range(1, messages + 1):
        made.sent[b"lane", seq] = SentMessage(at_s=float(seq), relay=0, size_bytes=1000)
        made.acknowledged[b"lane", seq] = seq + 0.1
    return made


def context(*, moved: tuple[int, ...] = (), **plan: object) -> MeasureContext:
    """Return a context with these values of its plan."""
    return MeasureContext(plan=MeasurePlan(**plan), moved=moved)  # type: ignore[arg-type]


def test_shares_are_of_pairs_of_message_and_relay() -> None:
    """Two of ten were never told at relay 1, one of them is in its store."""
    made = record()
    for seq in range(1, 11):
        made.told[0][b"lane", seq] = seq + 0.05
        made.held[0].add((b"lane", seq))
        if seq <= 8:
            made.told[1][b"lane", seq] = seq + 0.2
        if seq <= 9:
            made.held[1].add((b"lane", seq))

    found = measure(made, context(relays=(1,)))

    assert found["delivered_share"] == 0.8
    assert found["stored_share"] == 0.9
    assert found["p50_ms"] == pytest.approx(200)
    assert found["p99_ms"] is None
    assert measure(made, context())["delivered_share"] == 0.9


def test_what_is_told_after_the_load_is_not_live() -> None:
    """But it is delivered."""
    made = record()
    made.told[1] = {(b"lane", seq): 9.5 if seq <= 5 else 30.0 for seq in range(1, 11)}

    found = measure(made, context(relays=(1,)))

    assert found["live_share"] == 0.5
    assert found["delivered_share"] == 1.0


def test_live_of_fit_is_beside_what_the_link_carries() -> None:
    """At 4 kbit/s half of 1,000 bytes a second fit; a fifth of all came."""
    made = record()
    made.marks["narrow"] = 0.0
    made.told[1] = {(b"lane", seq): 9.0 for seq in (1, 2)}

    found = measure(made, context(relays=(1,), since="narrow", ideal_bits_s=4000.0))

    assert found["live_of_fit"] == pytest.approx(0.4)


def test_recovery_counts_from_its_mark_and_bytes_from_the_wire() -> None:
    """The backlog is what was sent between the two marks."""
    made = record()
    made.marks |= {"cut": 2.5, "healed": 6.5}
    made.whole_s = {0: 7.0, 1: 9.5}
    octets = [(6.0, 5_000), (6.4, 6_000), (9.0, 11_000), (9.6, 12_000), (20.0, 90_000)]
    made.wire = [WireSample(at_s=at, octets={(0, 1): n, (1, 0): 7}) for at, n in octets]
    plan = {"relays": (1,), "since": "healed", "backlog_from": "cut", "ideal_bits_s": 38_720.0}

    found = measure(made, context(**plan))  # type: ignore[arg-type]

    assert found["recovery_s"] == pytest.approx(3.0)
    assert found["useful_bytes"] == 4 * (1000 + HEADER_BYTES)
    assert found["wire_bytes"] == 6_000
    assert found["bytes_ratio"] == pytest.approx(6_000 / 4_840)
    assert found["ideal_s"] == pytest.approx(1.0)
    assert found["recovery_ratio"] == pytest.approx(3.0)


def test_a_relay_that_is_never_whole_has_no_recovery() -> None:
    """And an expectation of a measure that could not be had does not hold."""
    made = record()
    made.wire = [WireSample(at_s=0.0, octets={}), WireSample(at_s=50.0, octets={(0, 1): 99})]
    made.whole_s = {0: 1.0}

    found = measure(made, context(relays=(1,)))

    assert found["recovery_s"] is None
    assert found["wire_bytes"] == 99
    assert not Expected(measure="recovery_s", at_most=1e9).holds(found["recovery_s"])


def test_contact_and_rejoining_are_seen_on_the_wire() -> None:
    """Contact: packets both ways with one; rejoined: with everybody."""
    made = record(relays=3)
    made.marks["moved"] = 10.0
    rows = [
        (9.9, {(0, 1): 3, (1, 0): 3, (1, 2): 3, (2, 1): 3}),
        (10.1, {(0, 1): 5, (1, 0): 5, (1, 2): 5, (2, 1): 5}),
        (11.0, {(0, 1): 5, (1, 0): 9, (1, 2): 5, (2, 1): 5}),
        (12.0, {(0, 1): 6, (1, 0): 9, (1, 2): 5, (2, 1): 5}),
        (14.5, {(0, 1): 7, (1, 0): 9, (1, 2): 6, (2, 1): 6}),
    ]
    made.wire = [WireSample(at_s=at, octets=octets) for at, octets in rows]

    found = measure(made, context(moved=(1,), since="moved"))

    assert found["contact_s"] == pytest.approx(2.0)
    assert found["rejoined_s"] == pytest.approx(4.5)
    assert found["rejoined_after_contact_s"] == pytest.approx(2.5)


def test_health_is_timed_from_the_mark() -> None:
    """A relay that was not ready before does not count; the slowest relay does."""
    made = record()
    made.marks |= {"cut": 10.0, "healed": 90.0}
    made.samples[1] = [
        RelaySample(at_s=5.0, ready=False, catch_ups=1),
        RelaySample(at_s=12.0, ready=True, catch_ups=1, bans=2),
        RelaySample(at_s=25.0, ready=False, catch_ups=2),
    ]

    found = measure(made, context(relays=(1,), since="healed", fault_from="cut"))

    assert found["not_ready_s"] == pytest.approx(15.0)
    assert found["bans_max"] == 2
    assert found["still_s_max"] == pytest.approx(7.0)


def test_a_wrong_clock_is_told_by_health() -> None:
    """From the first message on; receipts are those of that relay."""
    made = record()
    made.samples[1] = [RelaySample(at_s=31.0, clock=True)]
    made.receipts = [(1, "stored; clock 300 s ahead"), (1, ""), (0, "")]
    wrong = MeasureContext(plan=MeasurePlan(), wrong_clocks=(1,))

    assert measure(made, wrong)["clock_told_s"] == pytest.approx(30.0)
    assert measure(made, wrong)["clock_receipt_share"] == 0.5
    made.samples[1].clear()
    assert measure(made, wrong)["clock_told_s"] is None


def test_recovery_is_beside_that_over_loopback() -> None:
    """The relay beside its source counts from its own start."""
    made = record()
    made.marks |= {"started": 10.0, "beside": 50.0}
    made.whole_s = {1: 25.0, 0: 30.0}
    plan = MeasurePlan(relays=(1,), since="started")

    found = measure(made, MeasureContext(plan=plan, beside=(0,)))
    assert found["recovery_beside"] is None  # whole before it began: nothing to compare with
    made.whole_s[0] = 60.0
    found = measure(made, MeasureContext(plan=plan, beside=(0,)))
    assert found["recovery_beside"] == pytest.approx(1.5)


def test_a_quantile_is_one_of_the_values() -> None:
    """The smallest that a share does not exceed."""
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0], 0.99) == 1.0
