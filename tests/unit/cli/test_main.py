"""The command as a whole."""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from luxrelay.cli.completion import SHELLS
from luxrelay.cli.main import build_parser, main

TEXT_ONLY = {
    "archive report": "writes a page",
    "archive serve": "answers HTTP",
    "completion": "a script",
    "header decode": "JSON already",
    "header encode": "one line of hex",
    "header sign": "one line of hex",
    "header verify": "JSON already",
    "keys export-public": "one line of hex",
    "keys vouch": "one line of hex",
    "namespace derive": "JSON already",
    "node init": "writes a file",
    "node run": "logs",
    "fees attach": "one line of hex",
    "fees show": "JSON already",
    "policy decode": "JSON already",
    "policy encode": "one line of hex",
    "policy sign": "one line of hex",
    "sim replay": "a yes or no",
    "store export": "JSON lines already",
    "vectors write": "names of files",
}
"""Commands without --json, and what they print instead."""


def leaves(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every command with its parser."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield " ".join(words), parser
    for group in groups:
        for name, inner in group.choices.items():
            yield from leaves(inner, (*words, name))


COMMANDS = dict(leaves(build_parser()))
SUBCOMMANDS = [name.split() for name in COMMANDS]
MANUAL = (Path(__file__).parents[3] / "docs" / "reference" / "luxrelay.1").read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_program_may_read_it(name: str) -> None:
    """A command prints JSON on demand, or something that is no table."""
    options = {option for action in COMMANDS[name]._actions for option in action.option_strings}
    assert ("--json" in options) != (name in TEXT_ONLY)


@pytest.mark.parametrize("name", COMMANDS)
def test_manual_and_shells_know_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The manual page and each shell's completion name the command and all its options."""
    page = MANUAL.replace("\\-", "-")
    options = [option for action in COMMANDS[name]._actions for option in action.option_strings]
    told = [option for option in options if option.startswith("--") and option != "--help"]
    assert f"luxrelay {name}" in page
    assert all(option in page for option in told)
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert all(word in script for word in name.split())
        assert all(option.removeprefix("--") in script for option in told)


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
    """--version names the program and its version, whoever answers it."""
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--version"])
    assert main(["--version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("luxrelay 0.")
    assert second == first


def test_one_command_loads_one_module() -> None:
    """Each name in the table is a command of the module that stands beside it."""
    for name in commands_of(build_parser()):
        assert name in commands_of(build_parser(name))
        assert len(commands_of(build_parser(name))) <= 2
    assert commands_of(build_parser("nosuch")) == commands_of(build_parser())


def test_a_quick_command_does_without_the_heavy_libraries() -> None:
    """What `keys`, `head` and `store` need to begin with is not gRPC, libp2p or Spark."""
    code = (
        "import sys; from luxrelay.cli.main import build_parser; build_parser(sys.argv[1]);"
        "print({'grpc', 'libp2p', 'pyspark'} & set(sys.modules))"
    )
    for command in ("keys", "header", "store", "archive"):
        done = subprocess.run(
            [sys.executable, "-c", code, command], capture_output=True, text=True, check=True
        )
        assert done.stdout == "set()\n", command


def commands_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the names of a parser's commands."""
    (commands,) = (action for action in parser._actions if action.dest == "command")
    return list(commands.choices or ())


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


def test_a_wrong_place_to_begin_names_the_word_that_is_taken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Beside numbers, `subscribe --after` takes one word."""
    with pytest.raises(SystemExit) as ended:
        main(["subscribe", "--topic", "/chat/1/room", "--after", "abc"])

    assert ended.value.code == 2
    assert 'and not "latest"' in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("words", [["sim", "list"], ["doctor", "--json"]])
def test_a_full_disk_under_the_output_is_one_line(words: list[str]) -> None:
    """What cannot be written is said in a sentence and an exit code, with no trace of ours."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "luxrelay", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )

    assert done.returncode == 1
    assert done.stderr == "luxrelay: the output cannot be written: No space left on device\n"


def test_an_interrupt_while_modules_load_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in the first second is answered as in any later one."""

    def interrupted(only: str = "") -> argparse.ArgumentParser:
        raise KeyboardInterrupt(only)

    monkeypatch.setattr("luxrelay.cli.main.build_parser", interrupted)

    assert main(["query"]) == 130
    assert capsys.readouterr().err == "luxrelay: interrupted\n"


@pytest.mark.trial
@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_streams_are_empty_ones(closed: str) -> None:
    """A program that a supervisor starts without them ends as with them."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -m luxrelay completion bash {closed}', sys.executable],
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_command_leaves_the_mask_of_its_caller(tmp_path: Path) -> None:
    """What it writes is private, what the program writes after it is as before."""
    before = os.umask(0o022)
    try:
        assert main(["keys", "new", str(tmp_path / "alice.pem")]) == 0
        (tmp_path / "after").touch()
    finally:
        os.umask(before)

    assert (tmp_path / "alice.pem").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "after").stat().st_mode & 0o777 == 0o644
