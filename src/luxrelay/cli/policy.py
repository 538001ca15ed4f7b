"""policy encode, decode, sign: namespace policies from and to JSON, hex and signed documents."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from luxrelay.bus import NamespacePolicy
from luxrelay.bus.constants import MAX_U64
from luxrelay.bus.policy_json import policy_from_json, policy_to_json
from luxrelay.bus.signed_policy import SignedPolicy
from luxrelay.cli.arguments import (
    SubParsers,
    add_command,
    add_namespace,
    chosen_namespace,
    hex_bytes,
    whole_number,
)
from luxrelay.cli.output import print_json
from luxrelay.cli.passphrase import add_passphrase_file, open_key
from luxrelay.errors import BusArgumentError, InputError, UsageError
from luxrelay.text import parse_json

_INPUT_MAX: Final = 512 * 1024
"""Most characters read of one policy's text; the JSON of the largest policy fits."""


def register(commands: SubParsers) -> None:
    """Add the command."""
    policy = commands.add_parser("policy", help="encode, decode and sign namespace policies")
    actions = policy.add_subparsers(dest="action", metavar="ACTION", required=True)
    encode = add_command(
        actions,
        "encode",
        "print the hex of a policy given as JSON",
        "luxrelay policy encode policy.json",
        _encode,
    )
    decode = add_command(
        actions,
        "decode",
        "print the JSON of a policy given as hex",
        "luxrelay policy decode 0x0001…",
        _decode,
    )
    for parser, what in ((encode, "JSON"), (decode, "HEX")):
        _add_input(parser, what)
        parser.add_argument(
            "--hash", action="store_true", help="print the policyHash that headers carry instead"
        )
    sign = add_command(
        actions,
        "sign",
        "print the signed document of a policy given as JSON; append it to a policy_file",
        "luxrelay policy sign policy.json --key owner.pem --network devnet --topic /chat/1/room",
        _sign,
    )
    _add_input(sign, "JSON")
    add_namespace(sign)
    sign.add_argument(
        "--key", type=Path, required=True, metavar="FILE", help="key file of the present owner"
    )
    add_passphrase_file(sign)
    sign.add_argument("--network", required=True, metavar="NAME", help="network it is meant for")
    for name, what in (
        ("--activation-seq", "first sequence it holds for"),
        ("--activation-ms", "first header timestamp it holds for, Unix milliseconds"),
    ):
        sign.add_argument(
            name,
            type=whole_number(0, MAX_U64),
            default=0,
            metavar="N",
            help=f"{what} (default %(default)s)",
        )


def _add_input(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "input",
        nargs="?",
        default="-",
        metavar=what,
        help=f"the {what}, a file that holds it, or - for standard input",
    )


def _encode(arguments: argparse.Namespace) -> int:
    policy = _from_json(arguments)
    print("0x" + (policy.policy_hash if arguments.hash else policy.encode()).hex())
    return 0


def _decode(arguments: argparse.Namespace) -> int:
    text = _read(arguments.input)
    policy = NamespacePolicy.decode(hex_bytes(text, None, _name(arguments.input)))
    if arguments.hash:
        print("0x" + policy.policy_hash.hex())
    else:
        print_json(policy_to_json(policy))
    return 0


def _sign(arguments: argparse.Namespace) -> int:
    try:
        document = SignedPolicy(
            network=arguments.network,
            namespace_id=chosen_namespace(arguments),
            policy=_from_json(arguments),
            activation_seq=arguments.activation_seq,
            activation_ms=arguments.activation_ms,
        )
    except BusArgumentError as error:
        raise UsageError(error.what, where="policy sign") from error
    if document.policy.version > 1 and not (document.activation_seq or document.activation_ms):
        raise UsageError(
            "a later version from the beginning on would void every message under the first",
            where="policy sign",
            hint="say from when it holds with --activation-ms",
        )
    key = open_key(arguments.key, arguments.passphrase_file)
    print("0x" + document.signed_by(key).encode().hex())
    return 0


def _from_json(arguments: argparse.Namespace) -> NamespacePolicy:
    try:
        form = parse_json(_read(arguments.input))
    except ValueError as error:
        raise InputError(f"not JSON: {error}", where=_name(arguments.input)) from error
    return policy_from_json(form)


def _name(given: str) -> str:
    return "standard input" if given == "-" else given[:64]


def _read(given: str) -> str:
    """Return the text of an argument that is text, a file's name, or ``-``."""
    stripped = given.lstrip()
    if given == "-":
        text = sys.stdin.read(_INPUT_MAX + 1)
    elif stripped.startswith(("{", "0x")):
        text = given
    else:
        try:
            with Path(given).open(encoding="utf-8") as file:
                text = file.read(_INPUT_MAX + 1)
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or "it is no text"
            raise InputError(
                f"cannot read it: {words}",
                where=given[:64],
                hint="give the text itself, the name of a file that holds it, or -",
            ) from error
    if len(text) > _INPUT_MAX:
        raise InputError(f"more than {_INPUT_MAX:,} characters", where=_name(given))
    return text
