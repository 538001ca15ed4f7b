"""The verdict of the demonstration on itself."""

from dataclasses import replace

import pytest

from luxrelay.cli.demo.outcome import (
    ArchiveOutcome,
    CorruptOutcome,
    DemoOutcome,
    KindOutcome,
    RelayOutcome,
)

TRUNCATED = KindOutcome(
    kind="truncated", code="malformed", sent=6, refused=4, unheard=2, otherwise={}
)
ARCHIVE = ArchiveOutcome(rows=10, rejected=0, duplicates=0, gaps=0, copies=10)
GOOD = DemoOutcome(
    messages=10,
    senders=2,
    namespaces=2,
    relays=(
        RelayOutcome(
            name="relay-1", stored=10, missed_while_offline=0, recovered=0, contiguous=True
        ),
    ),
    corrupt=CorruptOutcome(sent=6, stored=0, kinds=(TRUNCATED,), identities=1),
    latency_ms={"p50": 1, "p95": 2, "p99": 3},
    archive=ARCHIVE,
    seconds={"publish": 1.0, "catch_up": 0.5, "archive": 3.0, "total": 5.0},
)


def test_ok_when_everything_held() -> None:
    """Nothing wrong means ok, with the stable names of report.json."""
    report = GOOD.to_json()

    assert report["ok"]
    assert list(report)[:9] == [
        "messages", "senders", "namespaces", "relays", "corrupt", "latency_ms", "archive",
        "archive_hint", "seconds",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, relays=(replace(GOOD.relays[0], stored=9),)),
        replace(GOOD, relays=(replace(GOOD.relays[0], contiguous=False),)),
        replace(GOOD, corrupt=replace(GOOD.corrupt, stored=1)),
        replace(GOOD, corrupt=replace(GOOD.corrupt, sent=7)),
        replace(GOOD, corrupt=replace(GOOD.corrupt, kinds=(replace(TRUNCATED, unheard=1),))),
        replace(
            GOOD,
            corrupt=replace(GOOD.corrupt, kinds=(replace(TRUNCATED, refused=0, unheard=6),)),
        ),
        replace(
            GOOD,
            corrupt=replace(
                GOOD.corrupt, kinds=(replace(TRUNCATED, refused=3, otherwise={"accepted": 1}),)
            ),
        ),
        replace(GOOD, archive=replace(ARCHIVE, rows=9)),
        replace(GOOD, archive=replace(ARCHIVE, rows=11)),
        replace(GOOD, archive=replace(ARCHIVE, duplicates=1)),
        replace(GOOD, archive=replace(ARCHIVE, gaps=1)),
        replace(GOOD, archive=replace(ARCHIVE, rejected=1)),
    ],
)
def test_not_ok_when_anything_is_missing(bad: DemoOutcome) -> None:
    """Each fault is found and said in words."""
    assert len(bad.faults()) == 1
    assert not bad.to_json()["ok"]


def test_an_archive_that_was_not_made_is_no_fault() -> None:
    """The rest decides; the report says why there is none."""
    without = replace(GOOD, archive=None, archive_hint="not made: pip install it")

    assert without.faults() == []
    assert without.to_json()["archive"] is None
    assert without.to_json()["archive_hint"] == "not made: pip install it"
