"""Recordings of a router and their replay."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import RecordingError
from luxrelay.sim import Scenario, simulate
from luxrelay.sim.faults import Flood
from luxrelay.sim.record import LINE_BYTES_MAX, replay

Small = Callable[..., Scenario]


@pytest.fixture
def recording(small: Small) -> list[str]:
    """Return the recording of a node that is flooded."""
    lines: list[str] = []
    simulate(
        small(Flood(from_s=1.5, share=0.2, rate=3), duration_s=6.0), recorders={3: lines.append}
    )
    return lines


def test_a_replay_does_the_same(recording: list[str]) -> None:
    """Every answer of a fresh router equals the recorded one."""
    found = replay(recording)

    assert found.differs_at is None
    assert found.inputs > 100
    assert found.drains > 20
    assert found.inputs + found.drains + 1 == len(recording)


def test_recording_changes_nothing(small: Small) -> None:
    """A recorded run has the digest of a plain one."""
    lines: list[str] = []

    assert simulate(small(), recorders={0: lines.append}).digest == simulate(small()).digest


def test_the_first_difference_is_found(recording: list[str]) -> None:
    """A changed input shows at the next answer; a changed answer where it stands."""
    place = next(n for n, line in enumerate(recording) if n > 50 and "actions" in line)
    changed = [*recording]
    changed[place] = json.dumps({"actions": "0" * 16})
    assert replay(changed).differs_at == place + 1

    without = [line for line in recording if '"input":"subscribe"' not in line]
    assert replay(without).differs_at is not None


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "empty"),
        (["x"], "not JSON: .*; line 1"),
        (["[]"], "expected a JSON object"),
        (['{"format":2}'], "not a recording of format 1"),
        (['{"format":1}'], "cannot be made"),
        ([" " * (LINE_BYTES_MAX + 1)], "too long"),
    ],
)
def test_says_why_it_is_no_recording(lines: list[str], says: str) -> None:
    """The error names the line."""
    with pytest.raises(RecordingError, match=says):
        replay(lines)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"input":"drain","args":[],"named":{}}', "no input of a router; line 2"),
        ('{"input":"wake","args":1,"named":{}}', "no input"),
        ('{"input":"wake","args":[],"named":{}}', "cannot be fed"),
        ('{"input":"received","args":["x:0g","x:",1],"named":{}}', "cannot be fed"),
        ('{"input":"validated","args":[1,9,1.0],"named":{}}', "cannot be fed"),
        ('{"input":["a"],"args":[],"named":{}}', "no input"),
    ],
)
def test_says_which_input_cannot_be_fed(recording: list[str], line: str, says: str) -> None:
    """A recording that was tampered with is refused in words."""
    with pytest.raises(RecordingError, match=says):
        replay([recording[0], line])


@given(st.lists(st.text(max_size=60) | st.binary(max_size=60), max_size=4))
def test_nothing_but_its_error_is_raised(lines: list[str | bytes]) -> None:
    """Whatever the lines hold."""
    with pytest.raises(RecordingError):
        replay(lines)
