"""keys new, keys show: message keys in PKCS #8 files."""

from __future__ import annotations

import argparse
from pathlib import Path

from luxrelay.bus import SigningKey
from luxrelay.cli.arguments import SubParsers, add_command
from luxrelay.cli.output import print_json
from luxrelay.node.keyfile import create_key_file, read_key_file


def register(commands: SubParsers) -> None:
    """Add the command."""
    keys = commands.add_parser("keys", help="make and show message keys")
    actions = keys.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary, run in (
        ("new", "write a new Ed25519 key to FILE; an existing file is never replaced", _new),
        ("show", "show the public half of the key in FILE", _show),
    ):
        parser = add_command(actions, name, summary, f"luxrelay keys {name} alice.pem", run)
        parser.add_argument("file", type=Path, metavar="FILE", help="the PKCS #8 PEM file")
        parser.add_argument("--json", action="store_true", help="print JSON")


def _new(arguments: argparse.Namespace) -> int:
    key = SigningKey.generate()
    create_key_file(arguments.file, key)
    return _print(key, arguments)


def _show(arguments: argparse.Namespace) -> int:
    return _print(read_key_file(arguments.file), arguments)


def _print(key: SigningKey, arguments: argparse.Namespace) -> int:
    shown = {
        "file": str(arguments.file),
        "scheme": key.scheme.name.lower(),
        "senderPubKey": "0x" + key.public_field.hex(),
    }
    if arguments.json:
        print_json(shown)
    else:
        print("\n".join(f"{name:<13} {value}" for name, value in shown.items()))
    return 0
