"""Key files: PKCS #8 PEM in seed form, mode 0600, created whole or not at all.

Source: crypto-notes on keys; LP-6411 §2.7.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from luxrelay.bus import SignatureScheme, SigningKey
from luxrelay.errors import KeyFileError

FILE_BYTES_MAX: Final = 16 * 1024
"""Largest key file that is read."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def create_key_file(path: Path, key: SigningKey) -> None:
    """Write ``key`` to a new file that only its owner can read.

    The bytes are complete and on disk before the name appears; an existing file is never touched.

    Raises:
        KeyFileError: the file exists or the folder cannot be written.

    """
    pem = Ed25519PrivateKey.from_private_bytes(key.seed).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    scratch = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(scratch, path)  # unlike rename, link refuses to replace a key
        finally:
            scratch.unlink()
    except FileExistsError as error:
        raise KeyFileError(
            "a file is there already", where=str(path), hint="choose another name or remove it"
        ) from error
    except OSError as error:
        raise KeyFileError(f"cannot write the key: {error.strerror}", where=str(path)) from error


def read_key_file(path: Path) -> SigningKey:
    """Return the key of a PKCS #8 PEM file.

    Raises:
        KeyFileError: the file is missing, readable by others, or holds no Ed25519 key.

    """
    try:
        status = path.stat()
        if status.st_mode & _OTHERS:
            raise KeyFileError(
                f"others may read the key (mode {stat.S_IMODE(status.st_mode):04o})",
                where=str(path),
                hint=f"chmod 600 {path}",
            )
        if status.st_size > FILE_BYTES_MAX:
            raise KeyFileError("too large for a key file", where=str(path))
        pem = path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"cannot read the key: {error.strerror}", where=str(path)) from error
    try:
        loaded = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError("no unencrypted PKCS #8 PEM key", where=str(path)) from error
    if not isinstance(loaded, Ed25519PrivateKey):
        raise KeyFileError("the key is not Ed25519", where=str(path))
    return SigningKey.from_seed(SignatureScheme.ED25519, loaded.private_bytes_raw())


def read_or_create(path: Path) -> SigningKey:
    """Return the key of ``path``, made on first use."""
    if path.exists():
        return read_key_file(path)
    key = SigningKey.generate()
    create_key_file(path, key)
    return key
