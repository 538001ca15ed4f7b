"""Bearer tokens: made once, shown once, kept as hashes, with scopes and rates of their own.

A token is ``lrt_`` + id (8 hex digits) + ``_`` + 32 random bytes in base64url. The file keeps
SHA3-256 over it: 256 random bits need no slow hash. Whoever may write the file may do everything,
so it has mode 0600. The node reads it again when it has changed, so a revoked token ends within
``RELOAD_S``.

Source: issue of the gateway; decisions J10.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from luxrelay.errors import GatewayError, TokenFileError
from luxrelay.node.gateway.calls import Caller, Scope

TOKENS_FILE: Final = "tokens.json"
RELOAD_S: Final = 1.0
"""Seconds between two looks at the file."""
_TOKEN: Final = re.compile(r"lrt_([0-9a-f]{8})_[A-Za-z0-9_-]{43}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9._@ -]{1,64}", re.ASCII)
_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
_DAY_MS: Final = 86_400_000
_RATE_MAX: Final = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What the file keeps of a token."""

    id: str
    """8 hex digits, part of the token itself."""
    name: str
    """Whose it is, for people."""
    scopes: tuple[str, ...]
    """Of ``read``, ``publish``, ``admin``."""
    hash: str
    """SHA3-256 of the token, hex."""
    created_ms: int
    """Unix milliseconds."""
    expires_ms: int = 0
    """Unix milliseconds; 0 for never."""
    requests_per_s: int = 0
    """Its own rate; 0 for the gateway's."""
    publish_bytes_per_s: int = 0
    """Its own rate; 0 for the gateway's."""

    def __post_init__(self) -> None:
        """Refuse what is no token.

        Raises:
            ValueError: a field does not fit.

        """
        if not re.fullmatch(r"[0-9a-f]{8}", self.id, re.ASCII):
            raise ValueError("an id has 8 hex digits")
        if not re.fullmatch(r"[0-9a-f]{64}", self.hash, re.ASCII):
            raise ValueError("a hash has 64 hex digits")
        if not _NAME.fullmatch(self.name):
            raise ValueError("a name has 1 to 64 of A-Z a-z 0-9 . _ @ space -")
        known = {scope.value for scope in Scope if scope is not Scope.NOTHING}
        if not self.scopes or not set(self.scopes) <= known:
            raise ValueError("scopes are read, publish and admin; one at least")
        for value in (self.expires_ms, self.requests_per_s, self.publish_bytes_per_s):
            if type(value) is not int or not 0 <= value < _RATE_MAX**2:
                raise ValueError("times and rates are whole numbers from 0")

    def view(self) -> dict[str, Any]:
        """Return what may be shown: everything but the hash."""
        return {
            "id": self.id,
            "name": self.name,
            "scopes": list(self.scopes),
            "createdMs": self.created_ms,
            "expiresMs": self.expires_ms,
            "requestsPerS": self.requests_per_s,
            "publishBytesPerS": self.publish_bytes_per_s,
        }


def _digest(text: str) -> str:
    return hashlib.sha3_256(b"luxrelay.token.v1" + text.encode()).hexdigest()


class TokenFile:
    """The tokens of one node; any thread, and the command beside a running node, may call it."""

    def __init__(self, data_dir: Path, tokens_max: int) -> None:
        """Use the file in ``data_dir``; it need not exist."""
        self._path = data_dir / TOKENS_FILE
        self._max = tokens_max
        self._known: dict[str, Token] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._looked = float("-inf")

    def list(self) -> list[Token]:
        """Return the tokens of the file, oldest first.

        Raises:
            TokenFileError: the file cannot be read or holds something else.

        """
        return list(self._read().values())

    def new(
        self,
        name: str,
        scopes: Sequence[str],
        now_ms: int,
        *,
        days: int = 0,
        requests_per_s: int = 0,
        publish_bytes_per_s: int = 0,
    ) -> tuple[str, Token]:
        """Return a new token's text, which is kept nowhere, and its entry.

        Raises:
            GatewayError: a value does not fit, or there are ``tokens_max`` tokens.
            TokenFileError: the file cannot be read or written.

        """
        with self._locked():
            tokens = self._read()
            if len(tokens) >= self._max:
                raise GatewayError(
                    f"there are {len(tokens)} tokens", where="tokens", hint="revoke one first"
                )
            identity = secrets.token_hex(4)
            while identity in tokens:
                identity = secrets.token_hex(4)
            random = urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")
            text = f"lrt_{identity}_{random}"
            try:
                token = Token(
                    id=identity,
                    name=name,
                    scopes=tuple(dict.fromkeys(scopes)),
                    hash=_digest(text),
                    created_ms=now_ms,
                    expires_ms=now_ms + days * _DAY_MS if days else 0,
                    requests_per_s=requests_per_s,
                    publish_bytes_per_s=publish_bytes_per_s,
                )
            except ValueError as error:
                raise GatewayError(str(error), where="token") from error
            self._write({**tokens, identity: token})
        return text, token

    def revoke(self, identity: str) -> Token:
        """Return the token with this id, which is valid no longer.

        Raises:
            GatewayError: there is none (``gateway.absent``).
            TokenFileError: the file cannot be read or written.

        """
        with self._locked():
            tokens = self._read()
            token = tokens.pop(identity, None)
            if token is None:
                raise GatewayError(
                    "there is no such token", where=identity[:20], code="gateway.absent"
                )
            self._write(tokens)
        return token

    def caller(self, text: str, now_ms: int, now: float) -> Caller:
        """Return who sent a token.

        A token that is not known may have been made a moment ago: for it the file is looked at
        again, for known ones once in ``RELOAD_S`` seconds.

        Raises:
            GatewayError: it is none of ours, or expired (``gateway.token``).
            TokenFileError: the file cannot be read.

        """
        found = _TOKEN.fullmatch(text)
        token = self._token(found[1], now) if found else None
        expected = token.hash if token else "0" * 64
        fits = hmac.compare_digest(_digest(text[:128]), expected)
        if token is None or not fits:
            raise GatewayError("this node does not know the token", code="gateway.token")
        if token.expires_ms and token.expires_ms <= now_ms:
            raise GatewayError(
                "the token has expired", where=f"token {token.id}", code="gateway.token"
            )
        return Caller(
            key=token.id.encode(),
            scopes=frozenset(map(Scope, token.scopes)),
            name=token.name,
            requests_per_s=token.requests_per_s,
            publish_bytes_per_s=token.publish_bytes_per_s,
        )

    def holds(self, key: bytes, now_ms: int, now: float) -> bool:
        """Return whether the token of a caller is neither revoked nor expired.

        While the file cannot be read, what was known last stands.
        """
        try:
            known = self._current(now)
        except TokenFileError:
            known = self._known
        token = known.get(key.decode("ascii", "replace"))
        return token is not None and not 0 < token.expires_ms <= now_ms

    def _token(self, identity: str, now: float) -> Token | None:
        return self._current(now).get(identity) or self._current(now, 0.0).get(identity)

    def _current(self, now: float, age_s: float = RELOAD_S) -> dict[str, Token]:
        if now - self._looked >= age_s:
            stamp = self._look()
            if stamp != self._stamp:
                self._known = self._read()
                self._stamp = stamp
            self._looked = now
        return self._known

    def _look(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return (0, 0, 0)
        except OSError as error:
            raise self._fault(error) from error
        return (found.st_ino, found.st_mtime_ns, found.st_size)

    def _read(self) -> dict[str, Token]:
        try:
            with self._path.open("rb") as file:
                data = file.read(_FILE_BYTES_MAX)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._fault(error) from error
        try:
            loaded = json.loads(data)
            tokens = [
                Token(**{**entry, "scopes": tuple(entry["scopes"])}) for entry in loaded["tokens"]
            ]
        except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
            raise TokenFileError("the token file is broken", where=str(self._path)) from error
        return {token.id: token for token in tokens}

    def _write(self, tokens: dict[str, Token]) -> None:
        scratch = self._path.with_name(f".{TOKENS_FILE}.new")
        text = json.dumps({"version": 1, "tokens": [asdict(t) for t in tokens.values()]}, indent=1)
        try:
            scratch.unlink(missing_ok=True)
            descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self._path)
        except OSError as error:
            raise self._fault(error) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other writers out, in this process and others."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = self._path.with_name(f".{TOKENS_FILE}.lock").open("w")
        except OSError as error:
            raise self._fault(error) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _fault(self, error: OSError) -> TokenFileError:
        return TokenFileError(f"cannot use the token file: {error.strerror}", where=str(self._path))
