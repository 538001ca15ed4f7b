"""Names and peer ids as text, checked without libp2p, by the rules of the run.

Source: RFC 1035 §2.3.4, RFC 1123 §2.1; the libp2p peer id specification.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from typing import Final

NAME_MAX: Final = 253
"""Characters of a domain name, as it goes over the wire."""
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS: Final = {character: value for value, character in enumerate(_ALPHABET)}
_PEER_CHARS_MAX: Final = 128
_IDENTITY: Final = 0x00
_SHA2_256: Final = 0x12
_IDENTITY_MAX: Final = 42
"""Bytes of a key that stands in a peer id itself; larger ones are hashed."""
_HASH_BYTES: Final = 32


def host_objection(kind: str, host: str) -> str:
    """What is wrong with the host of a multiaddress; empty when nothing is.

    Args:
        kind: ``ip4``, ``ip6``, ``dns``, ``dns4`` or ``dns6``.
        host: An IP address, or a name of which no more is asked than that a resolver takes it.

    """
    try:
        match kind:
            case "ip4":
                IPv4Address(host)
            case "ip6":
                if "%" in host:
                    return "an address with a zone"
                IPv6Address(host)
            case _:
                return name_objection(host)
    except ValueError:
        return f"no {kind} address"
    return ""


def host_port_objection(host: str) -> str:
    """What is wrong with the host of ``host:port``, IPv6 in brackets; empty when nothing is.

    Names of containers may have underscores, which the machine's own resolver takes.
    """
    if host.startswith("["):
        return host_objection("ip6", host[1:-1])
    if host.replace(".", "").isdecimal():
        return host_objection("ip4", host)
    return name_objection(host.replace("_", "x"))


def name_objection(name: str) -> str:
    """Why no resolver takes the name; empty when one may. One dot may end it."""
    try:
        wire = name.removesuffix(".").encode("idna").decode("ascii")
    except (UnicodeError, IndexError):
        return "a name with an empty label, one above 63 characters, or one that IDNA does not take"
    if not 0 < len(wire) <= NAME_MAX:
        return f"a name of {len(wire)} characters"
    if any(_LABEL.fullmatch(label) is None for label in wire.split(".")):
        return "a name with other characters than letters, digits and inner hyphens"
    return ""


def peer_id_objection(text: str) -> str:
    """Why the text is no peer id in base58; empty when it is one.

    A peer id is a multihash: a key of up to 42 bytes itself, or the SHA-256 of a longer one.
    """
    if not 0 < len(text) <= _PEER_CHARS_MAX:
        return f"a peer id of {len(text)} characters"
    value = 0
    for character in text:
        if character not in _DIGITS:
            return "a peer id that is no base58"
        value = value * 58 + _DIGITS[character]
    zeros = len(text) - len(text.lstrip("1"))
    data = bytes(zeros) + value.to_bytes((value.bit_length() + 7) // 8)
    if len(data) < 2 or len(data) != 2 + data[1]:
        return "a peer id of another length than it says"
    if data[0] == _SHA2_256:
        return "" if data[1] == _HASH_BYTES else "a peer id whose hash has not 32 bytes"
    if data[0] == _IDENTITY:
        return "" if 0 < data[1] <= _IDENTITY_MAX else "a peer id with a key above 42 bytes"
    return "a peer id of another hash than SHA-256"
