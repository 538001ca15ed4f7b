"""Log lines."""

import io
import json
import logging

from luxrelay.node.logs import FieldFormatter, log, start_logging


def test_json_line_with_fields() -> None:
    """Away from a terminal a line is one JSON object with its fields."""
    stream = io.StringIO()
    start_logging("relay-1", "info", stream)

    log(logging.INFO, "ready", port=5, note="a\nb")
    log(logging.DEBUG, "too quiet")

    (line,) = stream.getvalue().splitlines()
    loaded = json.loads(line)
    assert loaded["event"] == "ready"
    assert (loaded["node"], loaded["level"]) == ("relay-1", "info")
    assert (loaded["port"], loaded["note"]) == (5, "a\nb")


def test_secrets_are_never_written() -> None:
    """A field whose name says secret is left out."""
    stream = io.StringIO()
    start_logging("relay-1", "info", stream)

    log(logging.WARNING, "loaded", seed="deadbeef", api_token="xyz", file="a")  # noqa: S106

    assert "deadbeef" not in stream.getvalue()
    assert "xyz" not in stream.getvalue()
    assert json.loads(stream.getvalue())["file"] == "a"


def test_line_for_people() -> None:
    """On a terminal a line is time, level, node, text and fields."""
    record = logging.LogRecord("luxrelay", logging.ERROR, "", 0, "no room", None, None)
    record.fields = {"bytes": 5}

    line = FieldFormatter("relay-1", as_json=False).format(record)

    assert line.endswith("E relay-1: no room  bytes=5")


def test_line_for_people_does_not_steer_the_terminal() -> None:
    """What a peer said stays on its line and colours nothing."""
    record = logging.LogRecord("luxrelay", logging.ERROR, "", 0, "said", None, None)
    record.fields = {"error": "a\x1b[31m\nb"}

    assert FieldFormatter("relay-1", as_json=False).format(record).endswith("error=a·[31m·b")
