"""header encode, decode, verify: LP-6411 headers from and to JSON and hex."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from luxrelay.bus import MsgHeader, verify_header
from luxrelay.bus.constants import MAX_HEADER_BYTES
from luxrelay.cli.arguments import SubParsers, add_command, hex_bytes
from luxrelay.cli.output import print_json
from luxrelay.errors import HeaderError, InputError
from luxrelay.text import parse_json

_INPUT_MAX: Final = 16 * MAX_HEADER_BYTES
"""Most characters read of one header's text; the JSON of the largest header fits thrice."""


def register(commands: SubParsers) -> None:
    """Add the command."""
    header = commands.add_parser("header", help="encode, decode and verify message headers")
    actions = header.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary, what, run in (
        ("encode", "print the hex of a header given as JSON", "JSON", _encode),
        ("decode", "print the JSON of a header given as hex", "HEX", _decode),
        ("verify", "check structure and signature of a header given as hex", "HEX", _verify),
    ):
        example = f"luxrelay header {name} {'header.json' if what == 'JSON' else '0x0100…'}"
        parser = add_command(actions, name, summary, example, run)
        parser.add_argument(
            "input",
            nargs="?",
            default="-",
            metavar=what,
            help=f"the {what}, a file that holds it, or - for standard input",
        )


def _encode(arguments: argparse.Namespace) -> int:
    text = _read(arguments.input)
    try:
        obj = parse_json(text)
    except ValueError as error:
        raise InputError(f"not JSON: {error}", where=_name(arguments.input)) from error
    print("0x" + MsgHeader.from_json(obj).encode().hex())
    return 0


def _decode(arguments: argparse.Namespace) -> int:
    print_json(_header(arguments).to_json())
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    header = _header(arguments)
    if not verify_header(header):
        raise HeaderError(
            "the signature does not verify (LP-6411 §2.8)", where=_name(arguments.input)
        )
    print_json(
        {
            "valid": True,
            "headerHash": "0x" + header.header_hash.hex(),
            "digest": "0x" + header.digest.hex(),
            "messageId": "0x" + header.message_id.hex(),
            "contentId": "0x" + header.content_id.hex(),
        }
    )
    return 0


def _header(arguments: argparse.Namespace) -> MsgHeader:
    return MsgHeader.decode(hex_bytes(_read(arguments.input), None, _name(arguments.input)))


def _name(given: str) -> str:
    return "standard input" if given == "-" else given[:64]


def _read(given: str) -> str:
    """Return the text of an argument that is text, a file's name, or ``-``."""
    if given == "-":
        text = sys.stdin.read(_INPUT_MAX + 1)
    elif given.lstrip().startswith("{") or _is_hex(given):
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


def _is_hex(text: str) -> bool:
    stripped = text.strip()
    long = len(stripped) > 100 and all(c in "0123456789abcdefABCDEF" for c in stripped)
    return stripped.startswith("0x") or long
