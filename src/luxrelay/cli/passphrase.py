"""Passphrases of key files: from a file, or asked for on a terminal; never an argument."""

from __future__ import annotations

import argparse
import getpass
import sys
import unicodedata
from pathlib import Path

from luxrelay.bus import SigningKey
from luxrelay.errors import InputError, UsageError
from luxrelay.node.keyfile import needs_passphrase, read_key_file
from luxrelay.node.keystore import PASSPHRASE_BYTES_MAX


def add_passphrase_file(parser: argparse.ArgumentParser) -> None:
    """Add --passphrase-file to a command that reads a key file."""
    parser.add_argument(
        "--passphrase-file",
        type=Path,
        metavar="FILE",
        help="first line is the passphrase of an encrypted key (default: asked on a terminal)",
    )


def open_key(path: Path, passphrase_file: Path | None) -> SigningKey:
    """Return the key of ``path``; its passphrase comes from the file or from the terminal.

    Raises:
        KeyFileError: see `luxrelay.node.keyfile.read_key_file`.
        InputError: the passphrase file cannot be read.

    """
    passphrase = None
    if passphrase_file is not None:
        passphrase = read_passphrase(passphrase_file)
    elif sys.stdin.isatty() and needs_passphrase(path):
        passphrase = _bytes(getpass.getpass(f"Passphrase of {path}: "))
    return read_key_file(path, passphrase)


def read_passphrase(path: Path) -> bytes:
    """Return the first line of a file as a passphrase.

    Raises:
        InputError: it cannot be read, is not UTF-8, or its first line is empty or too long.

    """
    try:
        with path.open("rb") as file:
            line = file.readline(PASSPHRASE_BYTES_MAX + 3)
        passphrase = _bytes(line.decode().rstrip("\r\n"))
    except OSError as error:
        raise InputError(
            f"cannot read the passphrase: {error.strerror}", where=str(path)
        ) from error
    except UnicodeDecodeError as error:
        raise InputError("the passphrase is not UTF-8", where=str(path)) from error
    if not 1 <= len(passphrase) <= PASSPHRASE_BYTES_MAX:
        raise InputError(
            f"the first line has none of 1 to {PASSPHRASE_BYTES_MAX} bytes", where=str(path)
        )
    return passphrase


def ask_new_passphrase() -> bytes:
    """Return a passphrase that was typed twice.

    Raises:
        UsageError: there is no terminal, or the two differ.

    """
    if not sys.stdin.isatty():
        raise UsageError(
            "no terminal to ask on", where="--passphrase", hint="--passphrase-file FILE"
        )
    first = getpass.getpass("New passphrase: ")
    if first != getpass.getpass("Once more: "):
        raise UsageError("the two passphrases differ", where="--passphrase")
    return _bytes(first)


def _bytes(text: str) -> bytes:
    """Return one form of a text that keyboards and editors compose differently."""
    return unicodedata.normalize("NFC", text).encode()
