"""Log lines."""

import io
import json
import logging

from luxrelay.node.logs import FieldFormatter, log, set_levels, start_logging


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


def written(stream: io.StringIO) -> list[tuple[str, str]]:
    """Return (module, event) of each line."""
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [(line["module"], line["event"]) for line in lines]


def test_a_module_may_have_a_level_of_its_own() -> None:
    """A room's level holds for its modules, and a module's for itself; the rest follow the node."""
    stream = io.StringIO()
    start_logging("relay-1", "warning", stream, levels={"net": "debug", "net.host": "error"})
    for module in ("luxrelay.net.driver", "luxrelay.net.host", "luxrelay.node.node"):
        said = compile("log(10, 'quiet'); log(30, 'loud')", module, "exec")
        exec(said, {"__name__": module, "log": log})  # noqa: S102  a line of that module

    assert written(stream) == [
        ("net.driver", "quiet"),
        ("net.driver", "loud"),
        ("node.node", "loud"),
    ]


def test_levels_change_while_it_runs() -> None:
    """What was named before and is not named any more follows the node again."""
    stream = io.StringIO()
    start_logging("relay-1", "info", stream, levels={"net": "debug"})
    set_levels("error", {})
    said = compile("log(20, 'quiet'); log(40, 'loud')", "driver", "exec")
    exec(said, {"__name__": "luxrelay.net.driver", "log": log})  # noqa: S102  a line of that module

    assert written(stream) == [("net.driver", "loud")]


def test_a_json_line_is_clean_whatever_a_peer_said() -> None:
    """No control character, mark or surrogate of a field, a name or a text is written."""
    bytes_out = io.BytesIO()
    stream = io.TextIOWrapper(bytes_out, encoding="utf-8")
    start_logging("relay-1", "info", stream)
    evil = "a\x1b[31m\x9b\x7f\u202e\u2066\u2028\u2029\ud800z"

    log(logging.INFO, "said", agent=evil, more=[evil, {evil: evil}], long="x" * 100_000)
    logging.getLogger("luxrelay.net").warning("text %s", evil)
    stream.flush()

    lines = bytes_out.getvalue().decode().splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    said = json.loads(lines[0])
    assert said["agent"] == "a·[31m·······z"
    assert said["more"] == ["a·[31m·······z", {"a·[31m·······z": "a·[31m·······z"}]
    assert len(said["long"]) < 10_000
