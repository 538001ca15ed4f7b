"""The parser, the exit codes, and the one place that turns an error into a line.

Exit codes: 0 success, 1 a clear error on standard error, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Final

from luxrelay import __version__
from luxrelay.cli.output import printable
from luxrelay.errors import LuxRelayError
from luxrelay.files import PRIVATE_UMASK
from luxrelay.signals import early_signals

_COMMANDS: Final = {
    "demo": "demo",
    "node": "node",
    "keys": "keys",
    "header": "header",
    "policy": "policy",
    "namespace": "namespace",
    "fees": "fees",
    "finality": "finality",
    "publish": "publish",
    "subscribe": "subscribe",
    "query": "query",
    "head": "query",
    "peers": "peers",
    "sync": "sync",
    "channel": "channel",
    "store": "store",
    "archive": "archive",
    "sim": "sim",
    "vectors": "vectors",
    "doctor": "doctor",
    "completion": "completion",
}
"""Each command and the module that has it. One command loads one module: together they take a
second to import."""


_FOR_TEAMS: Final = frozenset({"archive", "demo", "sim", "vectors", "policy", "completion"})
"""Commands that write tables and reports for others; what the rest write is their user's only."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def build_parser(only: str = "") -> argparse.ArgumentParser:
    """Return the parser of the whole command, or one that knows a single command of it."""
    parser = argparse.ArgumentParser(
        prog="luxrelay",
        description="A message bus without a master: relays, their store, and their archive.",
        epilog="example: luxrelay demo --messages 500 --out demo-out",
    )
    parser.add_argument("--version", action="version", version=f"luxrelay {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in dict.fromkeys(_COMMANDS.values() if only not in _COMMANDS else [_COMMANDS[only]]):
        import_module(f"luxrelay.cli.{name}").register(commands)
    return parser


@contextmanager
def _private_files(command: str) -> Iterator[None]:
    """Make what a command writes readable by its user only; the caller's mask comes back."""
    if command in _FOR_TEAMS:
        yield
        return
    before = os.umask(PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _open_streams()
    words = sys.argv[1:] if argv is None else argv
    if list(words) == ["--version"]:
        print(f"luxrelay {__version__}")
        return 0
    try:
        with ExitStack() as stack:
            early = None
            if list(words[:2]) == ["node", "run"]:  # before its libraries, which take seconds
                early = stack.enter_context(early_signals())
            arguments = build_parser(words[0] if words else "").parse_args(words)
            arguments.early = early
            stack.enter_context(_private_files(arguments.command))
            code: int = arguments.run(arguments)
        sys.stdout.flush()
    except LuxRelayError as error:
        print(f"luxrelay: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("luxrelay: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _give_up_output()  # its reader has gone
        return 1
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise  # not of writing to standard output: every other is one of ours
        _give_up_output()
        print(f"luxrelay: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return code


def _open_streams() -> None:
    """Give a program that was started with a closed stream an empty one: Python has None there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor is the closed one; nothing else is to be opened under it.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _give_up_output() -> None:
    """Let what is buffered vanish: a second flush at exit must not complain again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
