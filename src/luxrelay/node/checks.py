"""Checks of configuration values: each returns the expected form, or None if it fits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from luxrelay.net.names import host_objection, host_port_objection, peer_id_objection

Check = Callable[[Any], str | None]
"""Returns what was expected when the value does not fit, or None."""


def text(minimum: int = 1, maximum: int = 4096) -> Check:
    """Return a check for text of a length, without NUL."""

    def check(value: Any) -> str | None:
        fits = isinstance(value, str) and minimum <= len(value) <= maximum and "\0" not in value
        return None if fits else f"text of {minimum} to {maximum} characters, none of them NUL"

    return check


def match(pattern: str, words: str) -> Check:
    """Return a check for text that a pattern matches; ``words`` say what was expected."""
    compiled = re.compile(pattern)

    def check(value: Any) -> str | None:
        return None if isinstance(value, str) and compiled.fullmatch(value) else words

    return check


def whole(minimum: int, maximum: int) -> Check:
    """Return a check for a whole number, both bounds included."""

    def check(value: Any) -> str | None:
        fits = isinstance(value, int) and not isinstance(value, bool) and value in span
        return None if fits else f"a whole number from {minimum:,} to {maximum:,}"

    span = range(minimum, maximum + 1)
    return check


def boolean(value: Any) -> str | None:
    """Check for true or false."""
    return None if isinstance(value, bool) else "true or false"


def one_of(*choices: str) -> Check:
    """Return a check for one of some words."""

    def check(value: Any) -> str | None:
        return None if value in choices else "one of " + ", ".join(repr(c) for c in choices)

    return check


def list_of(inner: Check, maximum: int) -> Check:
    """Return a check for a list without repetition, each entry checked by ``inner``."""

    def check(value: Any) -> str | None:
        if not isinstance(value, list) or len(value) > maximum:
            return f"a list of at most {maximum} entries"
        for entry in value:
            expected = inner(entry)
            if expected is not None:
                return f"a list whose entries are {expected}"
        return None if len(set(value)) == len(value) else "a list that names each entry once"

    return check


def multiaddress(pattern: str, ports: range, words: str) -> Check:
    """Return a check for a multiaddress, as far as it can be told without loading libp2p."""
    compiled = re.compile(pattern)

    def check(value: Any) -> str | None:
        found = compiled.fullmatch(value) if isinstance(value, str) else None
        if found is None or int(found["port"]) not in ports:
            return words
        objection = host_objection(found["kind"], found["host"])
        peer = found.groupdict().get("peer")
        if not objection and peer is not None:
            objection = peer_id_objection(peer)
        return f"{words}; this one has {objection}" if objection else None

    return check


def host_port(ports: range) -> Check:
    """Return a check for ``host:port``, the port one of ``ports``."""

    def check(value: Any) -> str | None:
        found = _HOST_PORT_TEXT.fullmatch(value) if isinstance(value, str) else None
        if found is None or int(found["port"]) not in ports:
            return "an address such as 127.0.0.1:9641"
        objection = host_port_objection(found["host"])
        return f"an address such as 127.0.0.1:9641; this one has {objection}" if objection else None

    return check


_HOST_PORT_TEXT: Final = re.compile(
    r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})"
)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the file."""

    section: str
    name: str
    default: Any
    """None when the key must be given."""
    unit: str
    check: Check
    sentence: str
