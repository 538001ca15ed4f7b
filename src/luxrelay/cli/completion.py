"""completion: the shell's completion of this command, made from its parser."""

from __future__ import annotations

import argparse
from pathlib import Path

import shtab

from luxrelay.cli.arguments import SubParsers, add_command

SHELLS = ("bash", "zsh", "tcsh")


def register(commands: SubParsers) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "completion",
        "print the completion of this command for a shell",
        "luxrelay completion bash > ~/.local/share/bash-completion/completions/luxrelay",
        _run,
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def completion_of(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script that completes a parser's commands, options and files."""
    _complete_files(parser)
    return str(shtab.complete(parser, shell))


def _complete_files(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:  # noqa: SLF001  argparse has no other way to look inside
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for below in action.choices.values():
                _complete_files(below)
        elif action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # how shtab is told


def _run(arguments: argparse.Namespace) -> int:
    from luxrelay.cli.main import build_parser  # noqa: PLC0415  the parser holds this command too

    print(completion_of(build_parser(), arguments.shell))
    return 0
