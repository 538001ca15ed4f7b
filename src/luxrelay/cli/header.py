"""header encode, decode, sign, verify: LP-6411 headers from and to JSON and hex."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, Final

from luxrelay.bus import MsgHeader, attach_sidecar, sha3_commitment, verify_header
from luxrelay.bus import constants as c
from luxrelay.bus.bound import sign_header_bound
from luxrelay.bus.schemes import SCHEMES, SIGNATURE_FLAGS
from luxrelay.cli.arguments import (
    SubParsers,
    add_command,
    add_sidecar,
    chosen_ciphertext,
    hex_bytes,
)
from luxrelay.cli.output import print_json
from luxrelay.cli.passphrase import add_passphrase_file, open_key
from luxrelay.cli.quotas import add_quota, chosen_payer
from luxrelay.errors import HeaderError, InputError
from luxrelay.files import read_bounded, write_whole
from luxrelay.text import parse_json

_INPUT_MAX: Final = 16 * c.MAX_HEADER_BYTES
"""Most characters read of one header's text; the JSON of the largest header fits thrice."""

_DEFAULTS: Final = {
    "version": c.VERSION,
    "flags": 0,
    "blobCommitment": "0x" + c.ZERO_HASH.hex(),
    "blobLen": 0,
    "feeProof": "0x" + c.FEE_NONE.hex(),
}
"""Members of a header that `header sign` fills in, beside timestamp, key and signature."""


def register(commands: SubParsers) -> None:
    """Add the command."""
    header = commands.add_parser("header", help="encode, decode, sign and verify message headers")
    actions = header.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary, what, run in (
        ("encode", "print the hex of a header given as JSON", "JSON", _encode),
        ("decode", "print the JSON of a header given as hex", "HEX", _decode),
        (
            "sign",
            "print the hex of a header given as JSON, signed; what has a default may be left out",
            "JSON",
            _sign,
        ),
        ("verify", "check structure and signature of a header given as hex", "HEX", _verify),
    ):
        key = " --key alice.pem" if run is _sign else ""
        example = f"luxrelay header {name} {'header.json' if what == 'JSON' else '0x0100…'}{key}"
        parser = add_command(actions, name, summary, example, run)
        if run is _sign:
            _add_signing(parser)
        parser.add_argument(
            "input",
            nargs="?",
            default="-",
            metavar=what,
            help=f"the {what}, a file that holds it, or - for standard input",
        )


def _add_signing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key", required=True, metavar="FILE", help="the sender's key file")
    add_passphrase_file(parser)
    parser.add_argument(
        "--bound", metavar="NETWORK", help='sign as a network with signing = "bound" does, by name'
    )
    parser.add_argument(
        "--blob", type=Path, metavar="FILE", help="commit to the bytes of FILE and their length"
    )
    add_sidecar(parser)
    parser.add_argument(
        "--sidecar-out",
        type=Path,
        metavar="FILE",
        help="write the sidecar to FILE, to be published beside the header",
    )
    add_quota(parser)


def _encode(arguments: argparse.Namespace) -> int:
    print("0x" + MsgHeader.from_json(_object(arguments)).encode().hex())
    return 0


def _sign(arguments: argparse.Namespace) -> int:
    ciphertext = chosen_ciphertext(arguments)
    if (ciphertext is None) != (arguments.sidecar_out is None):
        raise InputError("--sidecar and --sidecar-out go together", where="header sign")
    key = open_key(arguments.key, arguments.passphrase_file)
    obj = {**_DEFAULTS, "timestamp": time.time_ns() // 1_000_000, **_object(arguments)}
    obj["senderPubKey"] = "0x" + key.public_field.hex()
    # What a structure needs before there is a signature: one of the right length.
    spec = SCHEMES[key.scheme]
    obj["signature"] = "0x" + bytes(spec.signature_bytes).hex()
    obj["flags"] = (obj.get("flags") or 0) & ~SIGNATURE_FLAGS | spec.flags
    if arguments.blob is not None:
        blob = read_bounded(arguments.blob, c.MAX_BLOB_BYTES)
        obj |= {"blobCommitment": "0x" + sha3_commitment(blob).hex(), "blobLen": len(blob)}
    header = MsgHeader.from_json(obj)
    if ciphertext is not None:
        header, sidecar = attach_sidecar(header, ciphertext)
        write_whole(arguments.sidecar_out, sidecar)
    payer = chosen_payer(arguments, key)
    if payer is not None:
        header = payer.pay(header, key.public_field)
    if arguments.bound:
        signed = sign_header_bound(key, header, arguments.bound)
    else:
        signed = key.sign_header(header)
    print("0x" + signed.encode().hex())
    return 0


def _object(arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        found = parse_json(_read(arguments.input))
    except ValueError as error:
        raise InputError(f"not JSON: {error}", where=header_name(arguments.input)) from error
    if not isinstance(found, dict):
        raise InputError("not a JSON object", where=header_name(arguments.input))
    return found


def _decode(arguments: argparse.Namespace) -> int:
    print_json(header_of(arguments).to_json())
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    header = header_of(arguments)
    if not verify_header(header):
        raise HeaderError(
            "the signature does not verify (LP-6411 §2.8)", where=header_name(arguments.input)
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


def header_of(arguments: argparse.Namespace) -> MsgHeader:
    """Return the header that a command's argument is, names or reads."""
    return MsgHeader.decode(hex_bytes(_read(arguments.input), None, header_name(arguments.input)))


def header_name(given: str) -> str:
    """Return what an error calls the input."""
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
        raise InputError(f"more than {_INPUT_MAX:,} characters", where=header_name(given))
    return text


def _is_hex(text: str) -> bool:
    stripped = text.strip()
    long = len(stripped) > 100 and all(c in "0123456789abcdefABCDEF" for c in stripped)
    return stripped.startswith("0x") or long
