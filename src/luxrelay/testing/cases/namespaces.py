"""Namespace vectors: every derivation, V2 among them.

Source: LP-6410 §2; 11-12; decisions J6, S2, S3, S5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from luxrelay.bus import NamespaceId, SignatureScheme, namespace
from luxrelay.bus.namespace import Intent, Naming
from luxrelay.errors import BusArgumentError
from luxrelay.testing.cases.case import Case, Json
from luxrelay.testing.messages import signing_key
from luxrelay.wire import from_hex, to_hex

V2: Final[Json] = {
    "derive": "standard",
    "owner": "0x" + "1234567890" * 4,
    "salt": "0xabcd" + "00" * 30,
    "block": 1_000_000,
}
"""What vector V2 gives."""

_A, _B = "0x" + "a1" * 20, "0x" + "b2" * 20
_PARENT: Final = "0x9a37ec99238e5e156f7cdaca9ab0ed137bdc5fae"
_GROUP: Final = "0x" + "67" * 32


def _bytes(given: Json, key: str) -> bytes:
    return from_hex(given[key])


def _parent(given: Json) -> NamespaceId | None:
    return NamespaceId(_bytes(given, "parent")) if "parent" in given else None


_DERIVE: Final[dict[str, Callable[[Json], NamespaceId]]] = {
    "standard": lambda g: namespace.namespace_id(_bytes(g, "owner"), _bytes(g, "salt"), g["block"]),
    "derived": lambda g: namespace.derived_namespace(
        NamespaceId(_bytes(g, "parent")), _bytes(g, "path")
    ),
    "lane": lambda g: namespace.lane(NamespaceId(_bytes(g, "parent")), _bytes(g, "senderPubKey")),
    "topic": lambda g: namespace.topic_namespace(g["topic"]),
    "direct": lambda g: namespace.direct_namespace(
        _bytes(g, "first"), _bytes(g, "second"), naming=Naming[g["naming"].upper()]
    ),
    "group": lambda g: namespace.group_namespace(
        _bytes(g, "group"), naming=Naming[g["naming"].upper()]
    ),
    "dkg": lambda g: namespace.dkg_namespace(_parent(g), naming=Naming[g["naming"].upper()]),
    "keyDirectory": lambda _: namespace.key_directory_namespace(),
    "intent": lambda g: namespace.intent_namespace(Intent[g["intent"].upper()]),
}


def files() -> Iterator[tuple[str, list[Case]]]:
    """Yield the files."""
    yield (
        "valid-derivations",
        [Case(name, given, {"wellFormed": True}) for name, given in _valid()],
    )
    yield "reject-inputs", [Case(name, given, {"wellFormed": False}) for name, given in _refused()]


def _valid() -> Iterator[tuple[str, Json]]:
    yield "V2", V2
    yield "standard, zeros", V2 | {"owner": "0x" + "00" * 20, "salt": "0x" + "00" * 32, "block": 0}
    yield "standard, largest block", V2 | {"block": 2**64 - 1}
    yield "derived", {"derive": "derived", "parent": _PARENT, "path": to_hex(b"room/1")}
    for scheme in SignatureScheme:
        key = to_hex(signing_key(scheme).public_field)
        yield f"lane of {scheme.name}", {"derive": "lane", "parent": _PARENT, "senderPubKey": key}
    for topic in ("/chat/1/room", "/chat/1/räume", "/"):
        yield f"topic {topic}", {"derive": "topic", "topic": topic}
    for naming in ("spec", "chat"):
        direct: dict[str, Any] = {"derive": "direct", "naming": naming, "first": _A, "second": _B}
        yield f"direct, {naming}", direct
        yield f"direct, {naming}, other order", direct | {"first": _B, "second": _A}
        yield f"group, {naming}", {"derive": "group", "naming": naming, "group": _GROUP}
        yield f"dkg, {naming}", {"derive": "dkg", "naming": naming, "parent": _PARENT}
    yield "dkg, chat, no parent", {"derive": "dkg", "naming": "chat"}
    yield "key directory", {"derive": "keyDirectory"}
    for intent in Intent:
        yield f"intent {intent.name}", {"derive": "intent", "intent": intent.name.lower()}


def _refused() -> Iterator[tuple[str, Json]]:
    yield "owner of 19 bytes", V2 | {"owner": "0x" + "12" * 19}
    yield "salt of 31 bytes", V2 | {"salt": "0x" + "ab" * 31}
    yield "block of 2^64", V2 | {"block": 2**64}
    yield "block below 0", V2 | {"block": -1}
    yield "parent of 19 bytes", {"derive": "derived", "parent": _PARENT[:-2], "path": "0x01"}
    yield "empty path", {"derive": "derived", "parent": _PARENT, "path": "0x"}
    yield (
        "path of 4,097 bytes",
        {
            "derive": "derived",
            "parent": _PARENT,
            "path": "0x" + "01" * 4097,
        },
    )
    yield "empty topic", {"derive": "topic", "topic": ""}
    yield (
        "parties of two lengths",
        {"derive": "direct", "naming": "chat", "first": _A, "second": _GROUP},
    )
    yield "group of 31 bytes", {"derive": "group", "naming": "chat", "group": _GROUP[:-2]}
    yield "dkg, spec, no parent", {"derive": "dkg", "naming": "spec"}


def answer(given: Json) -> Json:
    """Return the id, and whether a creator would have to roll another salt (S2)."""
    try:
        found = _DERIVE[given["derive"]](given)
    except BusArgumentError:
        return {"wellFormed": False}
    return {
        "wellFormed": True,
        "namespaceId": to_hex(found),
        "reserved": namespace.is_reserved(found),
    }
