"""The verdict of the demonstration on itself."""

from dataclasses import replace

import pytest

from luxrelay.cli.demo.outcome import ArchiveOutcome, CorruptOutcome, Outcome, RelayOutcome

GOOD = Outcome(
    messages=10,
    senders=2,
    namespaces=2,
    relays=(
        RelayOutcome(
            name="relay-1", stored=10, missed_while_offline=0, recovered=0, contiguous=True
        ),
    ),
    corrupt=CorruptOutcome(sent=6, stored=0, rejected=6, kinds={"truncated": 6}),
    latency_ms={"p50": 1, "p95": 2, "p99": 3},
    archive=ArchiveOutcome(rows=10, rejected=0, duplicates=0, gaps=0, copies=10),
    seconds={"publish": 1.0, "catch_up": 0.5, "archive": 3.0, "total": 5.0},
)


def test_ok_when_everything_held() -> None:
    """Nothing wrong means ok, with the stable names of report.json."""
    report = GOOD.to_json()

    assert report["ok"]
    assert list(report)[:8] == [
        "messages", "senders", "namespaces", "relays", "corrupt", "latency_ms", "archive",
        "seconds",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, relays=(replace(GOOD.relays[0], stored=9),)),
        replace(GOOD, relays=(replace(GOOD.relays[0], contiguous=False),)),
        replace(GOOD, corrupt=replace(GOOD.corrupt, stored=1)),
        replace(GOOD, corrupt=replace(GOOD.corrupt, rejected=5)),
        replace(GOOD, archive=replace(GOOD.archive, rows=9)),
        replace(GOOD, archive=replace(GOOD.archive, rows=11)),
        replace(GOOD, archive=replace(GOOD.archive, duplicates=1)),
        replace(GOOD, archive=replace(GOOD.archive, gaps=1)),
        replace(GOOD, archive=replace(GOOD.archive, rejected=1)),
    ],
)
def test_not_ok_when_anything_is_missing(bad: Outcome) -> None:
    """Each fault is found and said in words."""
    assert len(bad.faults()) == 1
    assert not bad.to_json()["ok"]
