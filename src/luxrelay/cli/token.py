"""node token new, list, revoke: tokens of a node's gateway.

The commands change the token file in the node's data folder; a running node knows a new token at
once and forgets a revoked one within a second.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from luxrelay.cli.arguments import SubParsers, add_command, whole_number
from luxrelay.cli.output import print_json, table
from luxrelay.errors import UsageError
from luxrelay.files import write_whole
from luxrelay.node.config import load_config
from luxrelay.node.folder import DataFolder
from luxrelay.node.gateway.tokens import Token, TokenFile


def register(actions: SubParsers) -> None:
    """Add the commands below ``luxrelay node``."""
    parser = actions.add_parser("token", help="make, list and revoke tokens of the gateway")
    commands = parser.add_subparsers(dest="token_action", metavar="ACTION", required=True)
    new = add_command(
        commands,
        "new",
        "make a token and print it, this once",
        "luxrelay node token new --config relay.toml --scope read --scope publish phone",
        _new,
    )
    new.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write the token to a new file of mode 0600 instead of printing it",
    )
    new.add_argument("name", metavar="NAME", help="whose it is, for people")
    new.add_argument(
        "--scope",
        action="append",
        required=True,
        choices=("read", "publish", "admin"),
        help="what it allows; may be given again",
    )
    new.add_argument(
        "--days",
        type=whole_number(1, 3650),
        default=0,
        metavar="N",
        help="days until it expires (default: never)",
    )
    new.add_argument(
        "--requests-per-s",
        type=whole_number(1, 1_000_000),
        default=0,
        metavar="N",
        help="its own rate (default: the gateway's)",
    )
    new.add_argument(
        "--publish-bytes-per-s",
        type=whole_number(1024, 2**40),
        default=0,
        metavar="N",
        help="its own rate (default: the gateway's)",
    )
    shown = add_command(
        commands, "list", "list the tokens", "luxrelay node token list --config relay.toml", _list
    )
    revoke = add_command(
        commands,
        "revoke",
        "end a token",
        "luxrelay node token revoke --config relay.toml 5f3a90c1",
        _revoke,
    )
    revoke.add_argument("id", metavar="ID", help="the token's id, 8 hex digits")
    for command in (new, shown, revoke):
        command.add_argument(
            "--config", type=Path, required=True, metavar="FILE", help="the node's TOML file"
        )
        command.add_argument("--json", action="store_true", help="print JSON")


def _file(arguments: argparse.Namespace) -> TokenFile:
    config = load_config(arguments.config)
    if not config.gateway.listen:
        words = (
            "the file has no [gateway] listen: nobody asks for tokens unless the node was started "
            "with LUXRELAY_GATEWAY_LISTEN"
        )
        print(f"luxrelay: {words}", file=sys.stderr)
    # A data folder begins with the node's identity; without it, it would be a stranger's.
    DataFolder(config.data_dir).identity()
    gateway = config.gateway
    return TokenFile(config.data_dir, gateway.tokens_max, lock_wait_s=gateway.token_lock_ms / 1000)


def _new(arguments: argparse.Namespace) -> int:
    tokens = _file(arguments)
    if arguments.out is not None and arguments.out.exists():
        raise _exists(arguments.out)
    text, token = tokens.new(
        arguments.name,
        arguments.scope,
        time.time_ns() // 1_000_000,
        days=arguments.days,
        requests_per_s=arguments.requests_per_s,
        publish_bytes_per_s=arguments.publish_bytes_per_s,
    )
    if arguments.out is not None:
        _keep(tokens, text, token, arguments.out)
    if arguments.json:
        print_json(token.view() if arguments.out else {**token.view(), "token": text})
    else:
        print(arguments.out or text)
    return 0


def _keep(tokens: TokenFile, text: str, token: Token, out: Path) -> None:
    """Write the token to its file; one that nobody knows is not left valid."""
    try:
        write_whole(out, text.encode() + b"\n", fresh=True)
    except OSError as error:
        tokens.revoke(token.id)
        if isinstance(error, FileExistsError):
            raise _exists(out) from error
        raise UsageError(
            f"cannot write the token: {error.strerror}", where=str(out), hint="no token was made"
        ) from error


def _exists(out: Path) -> UsageError:
    return UsageError(
        "the file exists already", where=str(out), hint="give another with --out; none was made"
    )


def _list(arguments: argparse.Namespace) -> int:
    tokens = _file(arguments).list()
    if arguments.json:
        print_json([token.view() for token in tokens])
        return 0
    print(table(("id", "name", "scopes", "made", "expires"), [_row(token) for token in tokens]))
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    token = _file(arguments).revoke(arguments.id)
    if arguments.json:
        print_json(token.view())
    else:
        print(f"{token.id} ({token.name}) is valid no longer")
    return 0


def _row(token: Token) -> tuple[str, ...]:
    expires = _day(token.expires_ms) if token.expires_ms else "never"
    return (token.id, token.name, " ".join(token.scopes), _day(token.created_ms), expires)


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()
