"""A process that hangs ends after its grace, and one that does not is left alone."""

import io
import json
import threading

from luxrelay.node.logs import start_logging
from luxrelay.node.node import FORCED, Grace


def test_what_hangs_is_named_and_ended() -> None:
    """The time is over: a line with the names, then the end with its own code."""
    ended: list[int] = []
    over = threading.Event()
    written = io.StringIO()
    start_logging("relay", "info", written)

    def end(code: int) -> None:
        ended.append(code)
        over.set()

    grace = Grace(0.01, lambda: ["catch-up"], end=end)
    grace.begin()
    grace.begin()

    assert over.wait(30)
    assert ended == [FORCED]
    line = json.loads(written.getvalue().splitlines()[-1])
    assert (line["level"], line["hanging"]) == ("error", ["catch-up"])
    assert "MainThread" in line["threads"]


def test_who_ends_in_time_is_spared() -> None:
    """Nothing is ended once it is spared."""
    ended: list[int] = []
    grace = Grace(3_600, list, end=ended.append)
    grace.begin()
    grace.spare()

    grace_threads = [each for each in threading.enumerate() if each.name == "grace"]
    for each in grace_threads:
        each.join(30)
        assert not each.is_alive()
    assert ended == []
