"""Exceptions that nobody expected are counted by kind and logged once a minute."""

import logging

import pytest

from luxrelay.failures import KINDS_MAX
from luxrelay.sync.rpc.mishaps import Mishaps


def test_each_kind_is_counted_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets a number that is in the log, and nothing of the exception's text."""
    now = [0.0]
    mishaps = Mishaps(clock=lambda: now[0])

    with caplog.at_level(logging.ERROR, logger="luxrelay.sync"):
        told = [mishaps.note("Head", ValueError("a secret")) for _ in range(3)]
        mishaps.note("Head", KeyError("another"))
        now[0] = 61.0
        mishaps.note("Head", ValueError("a secret"))

    assert mishaps.counts() == {"Head ValueError": 4, "Head KeyError": 1}
    fields = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert [(each["kind"], each["failures"]) for each in fields] == [
        ("Head ValueError", 1),
        ("Head KeyError", 1),
        ("Head ValueError", 3),
    ]
    assert fields[0]["number"] in told[0]
    assert len(set(told)) == 3
    assert not any("secret" in each for each in told)


def test_kinds_are_bounded() -> None:
    """What a further call raises is counted as other."""
    mishaps = Mishaps(clock=lambda: 0.0)

    for number in range(KINDS_MAX + 5):
        mishaps.note(f"Call{number}", ValueError())

    assert len(mishaps.counts()) == KINDS_MAX + 1
    assert mishaps.counts()["other"] == 5
