"""Tables and progress."""

import io

from luxrelay.cli.output import Progress, table


def test_table_aligns_numbers_right() -> None:
    """Numbers stand right with thousands marked, text left, flags as words."""
    shown = table(("name", "count", "ok"), [("a", 1234, True), ("long name", 5, False)])

    assert shown.splitlines() == [
        "name       count  ok",
        "─────────  ─────  ───",
        "a          1,234  yes",
        "long name      5  no",
    ]


def test_table_without_rows() -> None:
    """Headings alone are a table too."""
    assert table(("a", "b"), []).splitlines()[0] == "a  b"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Claim to be one."""
        return True


def test_progress_on_a_terminal_redraws_one_line() -> None:
    """Updates overwrite each other, at most ten a second; a step ends its line."""
    now = [0.0]
    stream = Terminal()
    progress = Progress(stream, clock=lambda: now[0])

    progress.update("one")
    progress.update("too soon")
    now[0] = 1.0
    progress.update("two")
    progress.step("done")
    progress.close()

    shown = stream.getvalue()
    assert "too soon" not in shown
    assert shown.count("\n") == 1
    assert shown.endswith("done\n")


def test_progress_elsewhere_is_plain_lines() -> None:
    """A file gets whole lines without control characters, and none when quiet."""
    stream, silent = io.StringIO(), io.StringIO()
    plain = Progress(stream, clock=lambda: 100.0)
    plain.step("start")
    plain.update("half")
    Progress(silent, quiet=True).step("start")

    assert stream.getvalue() == "start\nhalf\n"
    assert silent.getvalue() == ""


def test_table_does_not_steer_the_terminal() -> None:
    """A reason that a relay chose colours nothing and opens no second line."""
    assert table(("reason",), [("no\x1b[2J\nseq",)]).splitlines()[-1] == "no·[2J·seq"
