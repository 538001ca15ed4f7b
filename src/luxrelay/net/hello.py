"""Hello: version, network, roles and limits, told right after connecting.

Each side opens a stream of its own and says who it is, and is answered in kind; so each learns
about the other in one round trip, whoever dialled, and a peer that has never heard of hello is
known as such at once. The message is one frame of JSON.

It tells the time as well, and may be asked again for that (G36): a peer that knows no such key
passes over it, one that tells none is not asked.

Source: LP-6420 §1.1; decisions G32, G36; requirement 20-55.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from luxrelay.bus.vouching import PROOF_MAX
from luxrelay.errors import HelloError
from luxrelay.gossip import NodeRole
from luxrelay.net.records import RECORD_MAX
from luxrelay.text import parse_json

HELLO: Final = "/lux/relay/hello/1.0.0"
VERSION: Final = 1
HELLO_MAX: Final = 32 * 1024
"""Bytes of one message."""
_ROLES_MAX: Final = 8
_TEXT_MAX: Final = 64
_LIMIT_MAX: Final = 2**53 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a peer says of itself; none of it is proven but the record."""

    network: str
    """The network whose topics it speaks, 1 to 64 characters."""
    version: int = VERSION
    """Version of the relay protocol."""
    roles: tuple[str, ...] = ("relay",)
    """At most eight; one that is no `NodeRole` says nothing to us."""
    agent: str = ""
    """Program and version, for people."""
    frame_max: int = 1024 * 1024
    """Longest frame it takes, bytes."""
    inline_blob_max: int = 0
    """Longest blob it takes inside an announcement, bytes."""
    passes_on: bool = False
    """Whether it makes the announcement on ``headers/global`` from a namespace's, so that it needs
    no second copy of a header (G34); an earlier version says nothing of it."""
    time_ms: int = 0
    """Its wall clock when it said so, Unix milliseconds; 0 when it does not tell (G36)."""
    proof: bytes = b""
    """What proves that a validator vouches for it (G24)."""
    record: bytes = b""
    """Its signed peer record, when it can be dialled."""

    def encode(self) -> bytes:
        """The message without its length."""
        text = json.dumps(
            {
                "version": self.version,
                "network": self.network,
                "roles": list(self.roles),
                "agent": self.agent,
                "limits": {"frame_max": self.frame_max, "inline_blob_max": self.inline_blob_max},
                "passes_on": self.passes_on,
                "time_ms": self.time_ms,
                "proof": base64.b64encode(self.proof).decode(),
                "record": base64.b64encode(self.record).decode(),
            }
        )
        return text.encode()

    @classmethod
    def decode(cls, data: bytes) -> Hello:
        """The message in the bytes; keys that are not known are passed over.

        Raises:
            HelloError: The bytes are no hello; nothing else is raised.

        """
        if len(data) > HELLO_MAX:
            raise HelloError(f"A hello of {len(data)} bytes is above {HELLO_MAX}")
        try:
            document = parse_json(data)
        except ValueError as error:
            raise HelloError("A hello is no JSON") from error
        if not isinstance(document, dict):
            raise HelloError("A hello is no JSON object")
        limits = document.get("limits", {})
        if not isinstance(limits, dict):
            raise HelloError("limits in a hello is no object", where="limits")
        return cls(
            version=_number(document, "version"),
            network=_text(document, "network", 1),
            roles=_roles(document.get("roles", [])),
            agent=_text(document, "agent", 0),
            frame_max=_number(limits, "frame_max"),
            inline_blob_max=_number(limits, "inline_blob_max"),
            passes_on=document.get("passes_on") is True,
            time_ms=_number(document, "time_ms"),
            proof=_bytes(document, "proof", PROOF_MAX),
            record=_bytes(document, "record", RECORD_MAX),
        )

    @property
    def role(self) -> NodeRole | None:
        """The first of its roles that we know."""
        known = {str(role): role for role in NodeRole}
        return next((known[role] for role in self.roles if role in known), None)

    def objection(self, theirs: Hello) -> str:
        """Why we do not stay connected with the other side; empty when we do."""
        if theirs.version != self.version:
            return f"it speaks version {theirs.version}, not {self.version}"
        if theirs.network != self.network:
            return f"it is of network {theirs.network!r}, not {self.network!r}"
        return ""


def _number(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LIMIT_MAX:
        raise HelloError(f"{name} in a hello is no number from 0 to 2^53 - 1", where=name)
    return value


def _text(document: Mapping[str, Any], name: str, minimum: int) -> str:
    value = document.get(name, "")
    if not isinstance(value, str) or not minimum <= len(value) <= _TEXT_MAX:
        raise HelloError(f"{name} in a hello is no text of {minimum} to {_TEXT_MAX}", where=name)
    return value


def _roles(value: object) -> tuple[str, ...]:
    if (
        not isinstance(value, list)
        or len(value) > _ROLES_MAX
        or not all(isinstance(role, str) and len(role) <= _TEXT_MAX for role in value)
    ):
        raise HelloError(f"roles in a hello is no list of up to {_ROLES_MAX} texts", where="roles")
    return tuple(value)


def _bytes(document: Mapping[str, Any], name: str, maximum: int) -> bytes:
    value = document.get(name, "")
    if not isinstance(value, str) or len(value) > 2 * maximum:
        raise HelloError(f"{name} in a hello is no text of the allowed length", where=name)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise HelloError(f"{name} in a hello is no base64", where=name) from error
