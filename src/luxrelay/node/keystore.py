"""Keys behind a passphrase: the keystore, a JSON text of ours.

    {"format": "luxrelay-keystore", "version": 1,
     "scheme": "ed25519", "senderPubKey": "0x01…",
     "kdf": {"name": "scrypt", "cost": 18, "r": 8, "p": 1, "salt": "…"},
     "cipher": {"name": "xchacha20-poly1305", "nonce": "…", "sealed": "…"}}

The seed is sealed with XChaCha20-Poly1305 under the key that scrypt derives from the passphrase:
2^cost blocks of 1 KiB, so 256 MiB and about a second by default. PKCS #8's own encryption is not
used, because it is 2,048 rounds of PBKDF2. Everything but the sealed seed itself is the
associated data, in one canonical form: no value can be exchanged without the seal breaking. The
cost is bounded before any memory is taken, so that a prepared file cannot exhaust the machine.

Source: docs/reference/keys.md; RFC 7914.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Final, NoReturn

from nacl import bindings
from nacl.exceptions import CryptoError

from luxrelay.bus import SignatureScheme, SigningKey
from luxrelay.bus.keys import ALGORITHMS
from luxrelay.errors import BusArgumentError, KeyFileError
from luxrelay.text import parse_json

COST_DEFAULT: Final = 18
"""Binary logarithm of scrypt's N: 256 MiB, about a second."""
COST_MIN: Final = 14
"""Smallest cost that is read or written: 16 MiB."""
COST_MAX: Final = 19
"""Largest cost that is read or written: 512 MiB."""
PASSPHRASE_BYTES_MAX: Final = 1024
"""Longest passphrase."""

_FORMAT: Final = "luxrelay-keystore"
_R: Final = 8
_P: Final = 1
_SALT_BYTES: Final = 32
_NONCE_BYTES: Final = bindings.crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
_KEY_BYTES: Final = bindings.crypto_aead_xchacha20poly1305_ietf_KEYBYTES
_OVERHEAD_BYTES: Final = bindings.crypto_aead_xchacha20poly1305_ietf_ABYTES
_SCHEMES: Final = {scheme.name.lower(): scheme for scheme in SignatureScheme}
_SCRATCH_BYTES: Final = 1 << 20
"""What scrypt takes beside its table."""


def is_keystore(text: bytes) -> bool:
    """Return True when ``text`` is meant as a keystore, not as PEM."""
    return text.lstrip().startswith(b"{")


def seal_key(key: SigningKey, passphrase: bytes, *, cost: int = COST_DEFAULT) -> bytes:
    """Return the keystore of ``key``.

    Raises:
        KeyFileError: the passphrase is empty or too long, or the cost out of bounds.

    """
    _check_passphrase(passphrase, "")
    if not COST_MIN <= cost <= COST_MAX:
        raise KeyFileError(f"the cost is not from {COST_MIN} to {COST_MAX}", where="keystore")
    salt, nonce = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_NONCE_BYTES)
    content: dict[str, object] = {
        "format": _FORMAT,
        "version": 1,
        "scheme": key.scheme.name.lower(),
        "senderPubKey": "0x" + key.public_field.hex(),
        "kdf": {"name": "scrypt", "cost": cost, "r": _R, "p": _P, "salt": salt.hex()},
        "cipher": {"name": "xchacha20-poly1305", "nonce": nonce.hex()},
    }
    sealed = bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(
        key.seed, _associated(content), nonce, _derive(passphrase, salt, cost, "")
    )
    cipher = {"name": "xchacha20-poly1305", "nonce": nonce.hex(), "sealed": sealed.hex()}
    return json.dumps({**content, "cipher": cipher}, indent=1).encode() + b"\n"


def open_keystore(text: bytes, passphrase: bytes, where: str) -> SigningKey:
    """Return the key of a keystore.

    Args:
        text: What the file holds.
        passphrase: The passphrase as bytes.
        where: The file, for the error.

    Raises:
        KeyFileError: it is no keystore, asks for absurd work, or the seal does not hold: the
            passphrase is wrong or a byte was changed, and nobody can tell which.

    """
    _check_passphrase(passphrase, where)
    reader = _Fields(text, where)
    secret = _derive(passphrase, reader.salt, reader.cost, where)
    try:
        seed = bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(
            reader.sealed, reader.associated, reader.nonce, secret
        )
    except CryptoError as error:
        raise KeyFileError(
            "the passphrase is wrong or the file was changed",
            where=where,
            hint="try again; without the passphrase the key is lost",
        ) from error
    try:
        key = SigningKey.from_seed(reader.scheme, seed)
    except BusArgumentError as error:
        raise KeyFileError(error.what, where=where) from error
    if key.public_field != reader.public_field:
        raise KeyFileError("senderPubKey is not the key that the seed gives", where=where)
    return key


class _Fields:
    """Takes a keystore apart; every field has one form."""

    def __init__(self, text: bytes, where: str) -> None:
        self._where = where
        try:
            loaded: object = parse_json(text)
        except ValueError:
            self._refuse("the text is not JSON")
        content = self._object(
            loaded, "keystore", {"format", "version", "scheme", "senderPubKey", "kdf", "cipher"}
        )
        if content["format"] != _FORMAT or content["version"] != 1:
            self._refuse("neither format nor version is one this program knows")
        kdf = self._object(content["kdf"], "kdf", {"name", "cost", "r", "p", "salt"})
        cipher = self._object(content["cipher"], "cipher", {"name", "nonce", "sealed"})
        if (kdf["name"], cipher["name"]) != ("scrypt", "xchacha20-poly1305"):
            self._refuse("kdf or cipher is unknown")
        cost = kdf["cost"]
        if not isinstance(cost, int) or (kdf["r"], kdf["p"]) != (_R, _P):
            self._refuse(f"scrypt takes a whole number as cost, r = {_R} and p = {_P}")
        if not COST_MIN <= cost <= COST_MAX:
            self._refuse(f"the cost is not from {COST_MIN} to {COST_MAX}; nothing was computed")
        self.cost = cost
        self.salt = self._hex(kdf["salt"], "salt", _SALT_BYTES)
        self.nonce = self._hex(cipher["nonce"], "nonce", _NONCE_BYTES)
        self.scheme = self._scheme(content["scheme"])
        sealed_bytes = ALGORITHMS[self.scheme].seed_bytes + _OVERHEAD_BYTES
        self.sealed = self._hex(cipher["sealed"], "sealed", sealed_bytes)
        public = content["senderPubKey"]
        if not isinstance(public, str) or not public.startswith("0x"):
            self._refuse("senderPubKey is no hex after 0x")
        self.public_field = self._hex(public[2:], "senderPubKey")
        without_seal = {name: value for name, value in cipher.items() if name != "sealed"}
        self.associated = _associated({**content, "cipher": without_seal})

    def _object(self, value: object, name: str, keys: set[str]) -> Mapping[str, object]:
        if not isinstance(value, dict) or set(value) != keys:
            self._refuse(f"{name} does not have exactly the keys {', '.join(sorted(keys))}")
        return value

    def _hex(self, value: object, name: str, length: int | None = None) -> bytes:
        try:
            decoded = bytes.fromhex(value) if isinstance(value, str) else None
        except ValueError:
            decoded = None
        # the digits as `hex` writes them: fromhex alone also takes capitals and spaces
        if decoded is None or decoded.hex() != value or length not in {None, len(decoded)}:
            self._refuse(f"{name} is not hex" + (f" of {length} bytes" if length else ""))
        return decoded

    def _scheme(self, value: object) -> SignatureScheme:
        scheme = _SCHEMES.get(value) if isinstance(value, str) else None
        if scheme is None:
            self._refuse("scheme is none of LP-6411")
        return scheme

    def _refuse(self, what: str) -> NoReturn:
        raise KeyFileError(what, where=self._where, hint="use a whole keystore of `keys new`")


def _check_passphrase(passphrase: bytes, where: str) -> None:
    if not 1 <= len(passphrase) <= PASSPHRASE_BYTES_MAX:
        raise KeyFileError(
            f"a passphrase has 1 to {PASSPHRASE_BYTES_MAX} bytes", where=where or "passphrase"
        )


def _derive(passphrase: bytes, salt: bytes, cost: int, where: str) -> bytes:
    blocks = 1 << cost
    try:
        return hashlib.scrypt(
            passphrase,
            salt=salt,
            n=blocks,
            r=_R,
            p=_P,
            maxmem=blocks * _R * 128 + _SCRATCH_BYTES,
            dklen=_KEY_BYTES,
        )
    except (MemoryError, ValueError) as error:
        raise KeyFileError(
            f"scrypt cannot have its {blocks >> 10} MiB", where=where or "keystore"
        ) from error


def _associated(content: Mapping[str, object]) -> bytes:
    """Return all fields but the sealed seed, in one form whatever the spacing of the file."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
