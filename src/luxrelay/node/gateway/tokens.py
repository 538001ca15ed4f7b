"""Bearer tokens: made once, shown once, kept as hashes, with scopes and rates of their own.

A token is ``lrt_`` + id (8 hex digits) + ``_`` + 32 random bytes in base64url. The file keeps
SHA3-256 over it: 256 random bits need no slow hash. Whoever may write the file may do everything,
so it has mode 0600. The node reads it again when it has changed, so a revoked token ends within
``RELOAD_S``.

Source: docs/reference/http.md; decisions J10.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from luxrelay.errors import GatewayError, TokenFileError
from luxrelay.files import LOCK_WAIT_S, locked, make_folder, read_bounded, write_whole
from luxrelay.node.folder import TOKENS_FILE
from luxrelay.node.gateway.calls import HttpCaller, Scope
from luxrelay.text import clean, parse_json

RELOAD_S: Final = 1.0
"""Seconds between two looks at the file."""
_TOKEN: Final = re.compile(r"lrt_([0-9a-f]{8})_[A-Za-z0-9_-]{43}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9._@ -]{1,64}", re.ASCII)
_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
_VERSION: Final = 1
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


def _tokens_of(data: bytes) -> dict[str, Token]:
    """Return the tokens of a file's bytes; raises one of a handful of errors without."""
    loaded = parse_json(data)
    if not isinstance(loaded, dict) or set(loaded) != {"version", "tokens"}:
        raise ValueError("expected an object with version and tokens")
    if type(loaded["version"]) is not int or loaded["version"] != _VERSION:
        raise ValueError("it has a version that this program does not know")
    entries = loaded["tokens"]
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise ValueError("tokens is no list of objects")
    tokens = [Token(**{**entry, "scopes": tuple(entry["scopes"])}) for entry in entries]
    known = {token.id: token for token in tokens}
    if len(known) != len(tokens):
        raise ValueError("an id stands twice")
    return known


class TokenFile:
    """The tokens of one node; any thread, and the command beside a running node, may call it."""

    def __init__(
        self, data_dir: Path, tokens_max: int, *, lock_wait_s: float = LOCK_WAIT_S
    ) -> None:
        """Use the file in ``data_dir``; it need not exist.

        Args:
            data_dir: The node's data folder.
            tokens_max: Most tokens of the file.
            lock_wait_s: Seconds that another writer is waited for.

        """
        self._lock_wait_s = lock_wait_s
        self.fault = ""
        """Why the file cannot be read since it changed last; empty while it can."""
        self._path = data_dir / TOKENS_FILE
        self._max = tokens_max
        self._known: dict[str, Token] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._looked = float("-inf")
        self._checked = False

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
                    "there is no such token",
                    where=identity[:20],
                    hint="`luxrelay node token list` and GET /admin/v1/tokens show the ids",
                    code="gateway.absent",
                )
            self._write(tokens)
        return token

    def caller(self, text: str, now_ms: int, now: float) -> HttpCaller:
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
        return HttpCaller(
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
        if self.fault:  # a guesser does not have the same broken file read for each guess
            age_s = RELOAD_S
        if now - self._looked >= age_s:
            self._looked = now
            try:
                stamp = self._look()
                if stamp != self._stamp:
                    self._known = self._read()
                    self._stamp = stamp
            except TokenFileError as error:
                self.fault = str(error)
                if not self._checked:
                    raise
            else:
                self.fault, self._checked = "", True
        elif self.fault and not self._checked:  # nothing is known, not even who is a stranger
            raise TokenFileError(self.fault, where=str(self._path))
        return self._known

    def look(self, now: float) -> str:
        """Look at the file again; return why it cannot be believed, or nothing."""
        with suppress(TokenFileError):
            self._current(now, 0.0)
        return self.fault

    def check(self) -> None:
        """Read the file, as a node does when it starts.

        What was revoked must not be believed again, so that a broken file is no empty one; while
        the node runs, a file that becomes broken leaves the tokens as they were (`fault`).

        Raises:
            TokenFileError: the file cannot be read or holds something else.

        """
        stamp = self._look()
        self._known = self._read()
        self._stamp, self._checked, self.fault = stamp, True, ""

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
            data = read_bounded(self._path, _FILE_BYTES_MAX)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._fault(error) from error
        try:
            return _tokens_of(data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            why = f"it holds no {error}" if isinstance(error, KeyError) else str(error)
            raise TokenFileError(
                f"the token file is broken: {clean(why, 200)}",
                where=str(self._path),
                hint="put back a copy of it, or remove it and make all tokens anew",
            ) from error

    def _write(self, tokens: dict[str, Token]) -> None:
        content = {"version": _VERSION, "tokens": [asdict(t) for t in tokens.values()]}
        try:
            write_whole(self._path, json.dumps(content, indent=1).encode() + b"\n")
        except OSError as error:
            raise self._fault(error) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other writers out, in this process and others.

        Raises:
            TokenFileError: another process has the lock for ``lock_wait_s``; says which.

        """
        with ExitStack() as stack:
            try:
                make_folder(self._path.parent)
                lock = self._path.with_name(f".{TOKENS_FILE}.lock")
                stack.enter_context(locked(lock, wait_s=self._lock_wait_s))
            except OSError as error:
                raise self._fault(error) from error
            yield

    def _fault(self, error: OSError) -> TokenFileError:
        return TokenFileError(f"cannot use the token file: {error.strerror}", where=str(self._path))
