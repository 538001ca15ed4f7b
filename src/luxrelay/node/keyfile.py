"""Key files: PKCS #8 PEM or a keystore, mode 0600, created whole or not at all.

Keys as PKCS #8 PEM text, not encrypted, and back.

Ed25519 and ML-DSA keys are written as their seed, secp256k1 keys as their scalar; a hybrid key is
two blocks, Ed25519 first, whose seeds are independent. Other programs read these blocks.

Source: docs/reference/keys.md; LP-6411 §2.7; RFC 8410, RFC 5958, RFC 9881.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from luxrelay.bus import SignatureScheme, SigningKey
from luxrelay.errors import BusArgumentError, KeyFileError
from luxrelay.files import write_whole
from luxrelay.node.keystore import COST_DEFAULT, is_keystore, open_keystore, seal_key
from luxrelay.wire import from_hex

_BEGIN: Final = b"-----BEGIN PRIVATE KEY-----"
_END: Final = b"-----END PRIVATE KEY-----"
_ENCRYPTED: Final = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"
_HALF: Final = 32
_HYBRID_PARTS: Final = (SignatureScheme.ED25519, SignatureScheme.ML_DSA_65)


def encode_pem(key: SigningKey) -> bytes:
    """Return the PEM text of ``key``: one block, or two of a hybrid key."""
    if key.scheme is SignatureScheme.HYBRID_ED25519_ML_DSA_65:
        halves = (key.seed[:_HALF], key.seed[_HALF:])
        return b"".join(map(_encode_block, _HYBRID_PARTS, halves))
    return _encode_block(key.scheme, key.seed)


def decode_pem(text: bytes, where: str) -> SigningKey:
    """Return the key of a PEM text.

    Args:
        text: What the file holds: one block, or the two of a hybrid key, and nothing else.
        where: The file, for the error.

    Raises:
        KeyFileError: it is encrypted, damaged, or holds a key of no scheme of ours.

    """
    if text.lstrip().startswith(_ENCRYPTED):
        raise KeyFileError(
            "PKCS #8's own encryption is not used here",
            where=where,
            hint="write the key with `luxrelay keys new --passphrase`, or decrypt it first",
        )
    blocks = text.split(_END)
    if len(blocks) not in {2, 3} or blocks.pop().strip():
        raise KeyFileError("no PKCS #8 PEM key", where=where)
    parts = [_decode_block(block.strip(), where) for block in blocks]
    schemes = tuple(scheme for scheme, _ in parts)
    if len(parts) == 2 and schemes != _HYBRID_PARTS:
        raise KeyFileError(
            "two keys that are not Ed25519 and ML-DSA-65, in this order",
            where=where,
            hint="a hybrid key is these two; keep other keys in files of their own",
        )
    scheme = SignatureScheme.HYBRID_ED25519_ML_DSA_65 if len(parts) == 2 else schemes[0]
    try:
        return SigningKey.from_seed(scheme, b"".join(seed for _, seed in parts))
    except BusArgumentError as error:
        raise KeyFileError(error.what, where=where) from error


def _encode_block(scheme: SignatureScheme, seed: bytes) -> bytes:
    key: PrivateKeyTypes
    if scheme is SignatureScheme.ED25519:
        key = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
    elif scheme is SignatureScheme.SECP256K1:
        key = ec.derive_private_key(int.from_bytes(seed, "big"), ec.SECP256K1())
    elif scheme is SignatureScheme.ML_DSA_65:
        key = mldsa.MLDSA65PrivateKey.from_seed_bytes(seed)
    else:
        key = mldsa.MLDSA87PrivateKey.from_seed_bytes(seed)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _decode_block(block: bytes, where: str) -> tuple[SignatureScheme, bytes]:
    if not block.startswith(_BEGIN):  # also refuses the older forms that are not PKCS #8
        raise KeyFileError("no PKCS #8 PEM key", where=where)
    try:
        key = load_pem_private_key(block + b"\n" + _END + b"\n", password=None)
        if isinstance(key, ed25519.Ed25519PrivateKey):
            return SignatureScheme.ED25519, key.private_bytes_raw()
        if isinstance(key, mldsa.MLDSA65PrivateKey):
            return SignatureScheme.ML_DSA_65, key.private_bytes_raw()
        if isinstance(key, mldsa.MLDSA87PrivateKey):
            return SignatureScheme.ML_DSA_87, key.private_bytes_raw()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError("no PKCS #8 PEM key in seed form", where=where) from error
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256K1):
        scalar = key.private_numbers().private_value
        return SignatureScheme.SECP256K1, scalar.to_bytes(_HALF, "big")
    raise KeyFileError("the key is of no scheme of LP-6411", where=where)


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
    text = encode_pem(key) if passphrase is None else seal_key(key, passphrase, cost=cost)
    _write_fresh(path, text)


def _write_fresh(path: Path, text: bytes) -> None:
    if not path.name:
        raise KeyFileError("not the name of a file", where=str(path))
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


SHARED_KEY_BYTES: Final = 32
"""Bytes of a key that the participants of channels share."""
_SHARED: Final = b"luxrelay-shared-key "


def create_shared_key(path: Path) -> bytes:
    """Write a new shared key to a new file that only its owner can read, and return the key.

    Raises:
        KeyFileError: the file exists or the folder cannot be written.

    """
    key = secrets.token_bytes(SHARED_KEY_BYTES)
    _write_fresh(path, _SHARED + key.hex().encode() + b"\n")
    return key


def read_shared_key(path: Path) -> bytes:
    """Return the shared key of a file.

    Raises:
        KeyFileError: the file is missing, no regular file, readable by others, or no shared key.

    """
    text = _read(path).strip()
    try:
        if text.startswith(_SHARED):
            return from_hex(text.removeprefix(_SHARED).decode(), SHARED_KEY_BYTES)
    except (UnicodeDecodeError, ValueError):
        pass
    raise KeyFileError(
        "no shared key",
        where=str(path),
        hint="`luxrelay keys new-shared` makes one; a message key, which signs, is another",
    )


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
