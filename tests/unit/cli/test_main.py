"""The command as a whole."""

import pytest

from luxrelay.cli.main import build_parser, main

SUBCOMMANDS = [
    ["demo"],
    ["node", "run"],
    ["node", "check"],
    ["keys", "new"],
    ["keys", "show"],
    ["header", "encode"],
    ["header", "decode"],
    ["header", "verify"],
    ["policy", "encode"],
    ["policy", "decode"],
    ["policy", "sign"],
    ["publish"],
    ["query"],
    ["head"],
    ["store", "stats"],
    ["store", "verify"],
    ["store", "gc"],
    ["store", "export"],
    ["vectors", "write"],
    ["vectors", "check"],
    ["doctor"],
]


@pytest.mark.parametrize("words", SUBCOMMANDS, ids=" ".join)
def test_help_has_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Every subcommand explains itself with an example."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])

    assert ended.value.code == 0
    assert "example: " in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["nosuch"], ["head"], ["demo", "--relays", "0"]])
def test_wrong_usage_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage ends with 2 and a line on standard error."""
    with pytest.raises(SystemExit) as ended:
        main(words)

    assert ended.value.code == 2
    assert capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version names the program and its version."""
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--version"])
    assert capsys.readouterr().out.startswith("luxrelay 0.")


def test_unreachable_relay_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A relay that is not there is exit code 1 and names the address."""
    code = main(["head", "--relay", "127.0.0.1:1", "--topic", "/a"])

    captured = capsys.readouterr()
    assert code == 1
    assert "127.0.0.1:1" in captured.err
    assert captured.err.count("\n") == 1


def test_topic_that_is_not_utf8_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes of the command line that are no text are answered, not raised."""
    code = main(["head", "--topic", "x\udce9"])

    captured = capsys.readouterr()
    assert code == 1
    assert "--topic" in captured.err
    assert captured.err.count("\n") == 1


def test_error_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What stands in an error, a relay's words for example, stays text on one line."""
    assert main(["head", "--relay", "a\x1b[2J\nb", "--topic", "/a"]) == 1

    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "\x1b" not in error
