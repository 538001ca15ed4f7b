"""Checks of configuration values: each returns what was expected, or None when the value fits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

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
        if found is None or int(found["port"]) not in ports or not _host_fits(found):
            return words
        return None

    return check


def _host_fits(found: re.Match[str]) -> bool:
    try:
        match found["kind"]:
            case "ip4":
                IPv4Address(found["host"])
            case "ip6":
                IPv6Address(found["host"])
    except ValueError:
        return False
    return True


def host_port(ports: range) -> Check:
    """Return a check for ``host:port``, the port one of ``ports``."""

    def check(value: Any) -> str | None:
        found = _HOST_PORT_TEXT.fullmatch(value) if isinstance(value, str) else None
        fits = found is not None and int(found["port"]) in ports
        return None if fits else "an address such as 127.0.0.1:9641"

    return check


_HOST_PORT_TEXT: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


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
