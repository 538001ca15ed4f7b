"""Arguments of commands that speak to a node's gateway."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from luxrelay.cli.arguments import whole_number
from luxrelay.client.http import TIMEOUT_S
from luxrelay.errors import InputError
from luxrelay.files import read_bounded

DEFAULT_GATEWAY: Final = "127.0.0.1:9643"
"""Where docs and examples let a gateway listen."""
DEFAULT_ADMIN: Final = "127.0.0.1:9644"
"""Where docs and examples let the admin listener listen."""
TOKEN_VARIABLE: Final = "LUXRELAY_TOKEN"  # noqa: S105  the name of a variable
_TOKEN_BYTES_MAX: Final = 4096


def add_gateway(parser: argparse.ArgumentParser, *, default: str | None = DEFAULT_GATEWAY) -> None:
    """Add --gateway, --timeout-s, --token-file and --token-in-clear; None asks no node."""
    what = "admin listener of a node" if default == DEFAULT_ADMIN else "gateway of a node"
    otherwise = "default %(default)s" if default else "default: none is asked"
    parser.add_argument(
        "--gateway",
        default=default,
        metavar="ADDRESS",
        help=f"{what}: host:port or a URL ({otherwise})",
    )
    parser.add_argument(
        "--timeout-s",
        type=whole_number(1, 3_600),
        default=int(TIMEOUT_S),
        metavar="N",
        help="seconds that the node has for the connection, and for each answer, which has more "
        "time the more of it comes (default %(default)s)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file that holds the token (default: the variable {TOKEN_VARIABLE}; never an "
        "argument, which others can read)",
    )
    add_token_in_clear(parser)


def add_token_in_clear(parser: argparse.ArgumentParser) -> None:
    """Add --token-in-clear."""
    parser.add_argument(
        "--token-in-clear",
        action="store_true",
        help="send the token without TLS beyond this machine (a way that is protected otherwise)",
    )


def add_first_contact(parser: argparse.ArgumentParser) -> None:
    """Add --connect-s."""
    parser.add_argument(
        "--connect-s",
        type=whole_number(0, 86_400),
        default=60,
        metavar="N",
        help="seconds in which the node has to take the subscription, 0 for as long as it takes; "
        "an outage after that is waited out (default %(default)s)",
    )


def chosen_token(arguments: argparse.Namespace) -> str:
    """Return the token to send; empty without one.

    Raises:
        InputError: the file cannot be read, or others may open it.

    """
    if arguments.token_file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip()
    try:
        data = read_bounded(arguments.token_file, _TOKEN_BYTES_MAX, private=True)
        return data.decode("ascii").strip()
    except PermissionError as error:
        raise InputError(
            f"the token cannot be read: {error.strerror}",
            where=str(arguments.token_file),
            hint="a token file is its user's only: chmod 600 FILE",
        ) from error
    except OSError as error:
        raise InputError(
            f"the token cannot be read: {error.strerror}", where=str(arguments.token_file)
        ) from error
    except UnicodeDecodeError as error:
        raise InputError("the token cannot be read", where=str(arguments.token_file)) from error


def clock_text(clock: Mapping[str, Any]) -> str:
    """Return for people what the peers' clocks say of a node's, as ``/v1/peers`` has it."""
    if not clock["peers"]:
        return "no peer has told its clock"
    side = "ahead of" if clock["offsetMs"] >= 0 else "behind"
    few = "" if clock["known"] else "; too few to be believed"
    return (
        f"{abs(clock['offsetMs']) / 1000:,.1f} s {side} the median of {clock['peers']}, "
        f"spread {clock['spreadMs'] / 1000:,.1f} s{few}"
    )
