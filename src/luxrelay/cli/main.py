"""The parser, the exit codes, and the one place that turns an error into a line.

Exit codes: 0 success, 1 a clear error on standard error, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from luxrelay import __version__
from luxrelay.cli import (
    archive,
    channel,
    completion,
    demo,
    doctor,
    header,
    keys,
    node,
    policy,
    publish,
    query,
    sim,
    store,
    subscribe,
    vectors,
)
from luxrelay.cli.output import printable
from luxrelay.errors import LuxRelayError

_COMMANDS = (
    demo,
    node,
    keys,
    header,
    policy,
    publish,
    subscribe,
    query,
    channel,
    store,
    archive,
    sim,
    vectors,
    doctor,
    completion,
)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    parser = argparse.ArgumentParser(
        prog="luxrelay",
        description="A message bus without a master: relays, their store, and their archive.",
        epilog="example: luxrelay demo --messages 500 --out demo-out",
    )
    parser.add_argument("--version", action="version", version=f"luxrelay {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.register(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except LuxRelayError as error:
        print(f"luxrelay: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("luxrelay: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; a second flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
