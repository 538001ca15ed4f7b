"""Key files: PKCS #8 PEM or a keystore, mode 0600, created whole or not at all.

Source: docs/reference/keys.md; LP-6411 §2.7.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from luxrelay.bus import SignatureScheme, SigningKey
from luxrelay.errors import KeyFileError
from luxrelay.files import write_whole
from luxrelay.node.keypem import decode_pem, encode_pem
from luxrelay.node.keystore import COST_DEFAULT, is_keystore, open_keystore, seal_key

FILE_BYTES_MAX: Final = 16 * 1024
"""Largest key file that is read."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def create_key_file(
    path: Path, key: SigningKey, passphrase: bytes | None = None, *, cost: int = COST_DEFAULT
) -> None:
    """Write ``key`` to a new file that only its owner can read.

    The bytes are complete and on disk before the name appears; an existing file is never touched.

    Args:
        path: The new file.
        key: A key of any scheme.
        passphrase: Makes it a keystore; without one it is PKCS #8 PEM.
        cost: Binary logarithm of the keystore's scrypt work.

    Raises:
        KeyFileError: the file exists, the folder cannot be written, or the passphrase or the cost
            is out of bounds.

    """
    if not path.name:
        raise KeyFileError("not the name of a file", where=str(path))
    text = encode_pem(key) if passphrase is None else seal_key(key, passphrase, cost=cost)
    try:
        write_whole(path, text, fresh=True)
    except FileExistsError as error:
        raise KeyFileError(
            "a file is there already", where=str(path), hint="choose another name or remove it"
        ) from error
    except OSError as error:
        raise KeyFileError(f"cannot write the key: {error.strerror}", where=str(path)) from error


def read_key_file(path: Path, passphrase: bytes | None = None) -> SigningKey:
    """Return the key of a PEM file or a keystore.

    Raises:
        KeyFileError: the file is missing, no regular file, readable by others, no key of a scheme
            of ours; or a keystore without its passphrase; or a passphrase without a keystore.

    """
    text, where = _read(path), str(path)
    if is_keystore(text):
        if passphrase is None:
            raise KeyFileError(
                "the key needs its passphrase", where=where, hint="give --passphrase-file FILE"
            )
        return open_keystore(text, passphrase, where)
    if passphrase is not None:
        raise KeyFileError(
            "a passphrase for a key that is not encrypted", where=where, hint="leave it out"
        )
    return decode_pem(text, where)


def needs_passphrase(path: Path) -> bool:
    """Return True when ``path`` holds a keystore.

    Raises:
        KeyFileError: the file is missing, no regular file, too large or readable by others.

    """
    return is_keystore(_read(path))


def read_or_create(path: Path) -> SigningKey:
    """Return the Ed25519 key of ``path``, made on first use: a node's identity (G7).

    Raises:
        KeyFileError: see `read_key_file`; or the key is not Ed25519.

    """
    if path.exists():
        key = read_key_file(path)
        if key.scheme is not SignatureScheme.ED25519:
            raise KeyFileError("a node's identity key is not Ed25519", where=str(path))
        return key
    key = SigningKey.generate()
    create_key_file(path, key)
    return key


def _read(path: Path) -> bytes:
    """Return the bytes of a file that nobody else may read; what is checked is what is read."""
    try:
        # without O_NONBLOCK, opening a pipe nobody writes to would wait for ever
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_private(descriptor, path)
            text = os.read(descriptor, FILE_BYTES_MAX + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise KeyFileError(f"cannot read the key: {error.strerror}", where=str(path)) from error
    if len(text) > FILE_BYTES_MAX:
        raise KeyFileError("too large for a key file", where=str(path))
    return text


def _check_private(descriptor: int, path: Path) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError("no regular file", where=str(path))
    if status.st_mode & _OTHERS:
        raise KeyFileError(
            f"others may read the key (mode {stat.S_IMODE(status.st_mode):04o})",
            where=str(path),
            hint=f"chmod 600 {path}",
        )
