"""keys new, keys show and others: message keys in key files; and keys that channels share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from luxrelay.bus import SignatureScheme, SigningKey, sender_address, sha3_commitment
from luxrelay.bus.vouching import TAG_TLS, TLS_PROOF_MAX, vouch
from luxrelay.cli.arguments import SubParsers, add_command
from luxrelay.cli.output import print_json
from luxrelay.cli.passphrase import (
    add_passphrase_file,
    ask_new_passphrase,
    open_key,
    read_passphrase,
)
from luxrelay.errors import InputError, UsageError
from luxrelay.files import read_bounded
from luxrelay.gossip import validator_proof
from luxrelay.node.keyfile import create_key_file, create_shared_key

SCHEMES: Final = {
    "ed25519": SignatureScheme.ED25519,
    "secp256k1": SignatureScheme.SECP256K1,
    "ml-dsa-65": SignatureScheme.ML_DSA_65,
    "ml-dsa-87": SignatureScheme.ML_DSA_87,
    "hybrid": SignatureScheme.HYBRID_ED25519_ML_DSA_65,
}
"""What people call the signature schemes."""
_NAMES: Final = {scheme: name for name, scheme in SCHEMES.items()}


def register(commands: SubParsers) -> None:
    """Add the command."""
    keys = commands.add_parser("keys", help="make and show message keys")
    actions = keys.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "write a new key to FILE; an existing file is never replaced"
    new = add_command(actions, "new", summary, "luxrelay keys new alice.pem --passphrase", _new)
    new.add_argument(
        "--scheme", choices=list(SCHEMES), default="ed25519", help="default %(default)s"
    )
    group = new.add_mutually_exclusive_group()
    group.add_argument(
        "--passphrase", action="store_true", help="encrypt the key; asks on the terminal"
    )
    group.add_argument(
        "--passphrase-file",
        type=Path,
        metavar="FILE",
        help="encrypt the key; first line of FILE is the passphrase",
    )
    summary = "show the public half of the key in FILE"
    show = add_command(actions, "show", summary, "luxrelay keys show alice.pem", _show)
    add_passphrase_file(show)
    export = add_command(
        actions,
        "export-public",
        "print the senderPubKey field of the key in FILE as hex",
        "luxrelay keys export-public alice.pem --out alice.pub",
        _export,
    )
    add_passphrase_file(export)
    export.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write it to a new file instead; an existing file is never replaced",
    )
    vouching = _add_vouch(actions)
    shared = add_command(
        actions,
        "new-shared",
        "write a new key for the participants of channels to FILE, who all need a copy of it",
        "luxrelay keys new-shared room.key",
        _new_shared,
    )
    shared.add_argument("--json", action="store_true", help="print JSON")
    for parser in (new, show, export, vouching, shared):
        parser.add_argument("file", type=Path, metavar="FILE", help="the key file")
    for parser in (new, show):
        parser.add_argument("--json", action="store_true", help="print JSON")


def _add_vouch(actions: SubParsers) -> argparse.ArgumentParser:
    vouching = add_command(
        actions,
        "vouch",
        "print the proof that the validator with the key in FILE runs a relay, for the relay's "
        "gossip.validator_proof or sync.validator_proof",
        "luxrelay keys vouch validator.pem --peer 12D3KooW…",
        _vouch,
    )
    add_passphrase_file(vouching)
    subject = vouching.add_mutually_exclusive_group(required=True)
    subject.add_argument(
        "--peer", metavar="ID", help="the relay's peer id, as its /status shows: for gossip"
    )
    subject.add_argument(
        "--tls-certificate",
        type=Path,
        metavar="PEM",
        help="the relay's certificate, whose key it proves to sync ports; the validator's own key "
        "is Ed25519 or secp256k1 then",
    )
    return vouching


def _new(arguments: argparse.Namespace) -> int:
    passphrase = None
    if arguments.passphrase_file is not None:
        passphrase = read_passphrase(arguments.passphrase_file)
    elif arguments.passphrase:
        passphrase = ask_new_passphrase()
    key = SigningKey.generate(SCHEMES[arguments.scheme])
    create_key_file(arguments.file, key, passphrase)
    return _print(key, arguments)


def _new_shared(arguments: argparse.Namespace) -> int:
    key = create_shared_key(arguments.file)
    # Participants can compare it without showing the key.
    shown = {"file": str(arguments.file), "fingerprint": sha3_commitment(key).hex()[:16]}
    if arguments.json:
        print_json(shown)
    else:
        print("\n".join(f"{name:<13} {value}" for name, value in shown.items()))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    return _print(open_key(arguments.file, arguments.passphrase_file), arguments)


def _vouch(arguments: argparse.Namespace) -> int:
    if arguments.tls_certificate is not None:
        print(_tls_proof(arguments).hex())
        return 0
    from luxrelay.net.addresses import peer_id_from_text  # noqa: PLC0415  loads libp2p

    peer = peer_id_from_text(arguments.peer)
    key = open_key(arguments.file, arguments.passphrase_file)
    print(validator_proof(key, peer).hex())
    return 0


def _tls_proof(arguments: argparse.Namespace) -> bytes:
    from luxrelay.sync.rpc.tls import PEM_BYTES_MAX, certificate_subject  # noqa: PLC0415  gRPC

    try:
        subject = certificate_subject(read_bounded(arguments.tls_certificate, PEM_BYTES_MAX))
    except OSError as error:
        where = str(arguments.tls_certificate)
        raise InputError(f"cannot read it: {error.strerror}", where=where) from error
    proof = vouch(open_key(arguments.file, arguments.passphrase_file), TAG_TLS, subject)
    if len(proof) > TLS_PROOF_MAX:
        raise UsageError(
            f"a proof of {len(proof):,} bytes does not travel with a call, {TLS_PROOF_MAX:,} do",
            where=str(arguments.file),
            hint="vouch with an Ed25519 or secp256k1 key",
        )
    return proof


def _export(arguments: argparse.Namespace) -> int:
    key = open_key(arguments.file, arguments.passphrase_file)
    line = f"0x{key.public_field.hex()}\n"
    if arguments.out is None:
        print(line, end="")
        return 0
    try:
        with arguments.out.open("x") as file:
            file.write(line)
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror}", where=str(arguments.out)) from error
    return 0


def _print(key: SigningKey, arguments: argparse.Namespace) -> int:
    shown = {
        "file": str(arguments.file),
        "scheme": _NAMES[key.scheme],
        "senderPubKey": "0x" + key.public_field.hex(),
        "address": "0x" + sender_address(key.public_field).hex(),
    }
    if arguments.json:
        print_json(shown)
    else:
        print("\n".join(f"{name:<13} {value}" for name, value in shown.items()))
    return 0
