"""Quotas of a command line: the options that name them, and who pays from them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from luxrelay.bus import SigningKey
from luxrelay.bus.prepaid import PrepaidPayer, SignedQuota
from luxrelay.cli.passphrase import open_key
from luxrelay.errors import BusArgumentError, FeeError, InputError, UsageError
from luxrelay.files import read_bounded
from luxrelay.wire import from_hex

FILE_BYTES_MAX: Final = 1024 * 1024
"""Largest file of quotas that is read, bytes."""


def add_quota(parser: argparse.ArgumentParser) -> None:
    """Add --quota, --payer and --payer-passphrase-file to a command that signs messages."""
    parser.add_argument(
        "--quota",
        type=Path,
        action="append",
        metavar="FILE",
        help="pay from these prepaid quotas, in hex, one a line; may be given several times",
    )
    parser.add_argument(
        "--payer",
        type=Path,
        metavar="FILE",
        help="key file of the quotas' owner (default: the sender's key)",
    )
    parser.add_argument(
        "--payer-passphrase-file",
        type=Path,
        metavar="FILE",
        help="first line is the passphrase of --payer (default: asked on a terminal)",
    )


def chosen_payer(arguments: argparse.Namespace, sender: SigningKey) -> PrepaidPayer | None:
    """Return who pays from --quota; None without it.

    Raises:
        UsageError: a payer without a quota, or a key that cannot pay.
        InputError: a file of quotas cannot be read.
        QuotaError: a quota is somebody else's, or forged.

    """
    if not arguments.quota:
        if arguments.payer is not None:
            raise UsageError("there is nothing to pay from", where="--payer", hint="give --quota")
        return None
    key = sender
    if arguments.payer is not None:
        key = open_key(arguments.payer, arguments.payer_passphrase_file)
    return payer_of(key, [quota for path in arguments.quota for quota in read_quotas(path)])


def read_quotas(path: Path) -> list[SignedQuota]:
    """Return the quotas of a file, one in hex a line; empty lines and #-lines are skipped.

    Raises:
        InputError: it cannot be read, holds none, or a line is none.

    """
    try:
        lines = read_bounded(path, FILE_BYTES_MAX).decode("ascii", "replace").splitlines()
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", where=str(path)) from error
    found = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        try:
            found.append(SignedQuota.decode(from_hex(line)))
        except (ValueError, FeeError) as error:
            raise InputError(f"no quota: {error}", where=f"{path}:{number}") from error
    if not found:
        raise InputError(
            "it holds no quota", where=str(path), hint="`luxrelay fees issue` makes one"
        )
    return found


def payer_of(key: SigningKey, quotas: list[SignedQuota]) -> PrepaidPayer:
    """Return who pays from quotas; the errors are those of `chosen_payer`."""
    try:
        return PrepaidPayer(key, quotas)
    except BusArgumentError as error:
        raise UsageError(error.what, where="--quota") from error
