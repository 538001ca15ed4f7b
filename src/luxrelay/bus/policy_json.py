"""The JSON form of a policy, for editing and for `luxrelay policy`.

    {"version": 1,
     "owner": {"type": "wallet", "value": "0x…"},
     "writers": {"mode": "open"},
     "rateLimit": {"messagesPerSecond": 100, "bytesPerSecond": 1048576, "burstMessages": 300},
     "encryptionMode": "plaintext", "tfheOrch": false, "retentionClass": "standard",
     "pqMode": "classical", "customParams": {}}

``writers`` is one of ``{"mode": "open"}``, ``{"mode": "owner_only"}``, ``{"mode": "allowlist",
"list": [identity…]}`` (any order) and ``{"mode": "token_gated", "tokenGate": {"kind", "chainId",
"contract", "minBalance", "tokenId"}}``. Names are those of the enums in lower case. Identities
that are text (ENS, DID, email, phone) may be written as such, all others as 0x hex. Integers may be
decimal strings. ``customParams`` holds what JSON can say; where byte strings occur, ``customData``
holds the CBOR in hex instead. Everything but ``owner`` has the default of `NamespacePolicy`;
unknown keys are refused.

Source: LP-6410 §3; decision H34.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, TypeVar

from luxrelay.bus.cbor import CborValue
from luxrelay.bus.constants import MAX_U32, MAX_U64
from luxrelay.bus.policy import (
    MAX_U256,
    PREPAID_ISSUERS,
    EncryptionMode,
    Identity,
    IdentityType,
    NamespacePolicy,
    PqMode,
    RetentionClass,
    TokenGate,
    TokenKind,
    WritersMode,
    encode_custom,
)
from luxrelay.bus.schemes import SCHEMES, SignatureScheme
from luxrelay.errors import BusArgumentError, PolicyError
from luxrelay.wire import from_hex

_Choice = TypeVar("_Choice", bound=IntEnum)
_ISSUER_TYPES: Final = frozenset(
    {bytes([SignatureScheme.ED25519]), bytes([SignatureScheme.SECP256K1])}
)

_DECIMAL: Final = re.compile(r"[0-9]{1,78}")
_TEXTUAL: Final = frozenset(
    {IdentityType.ENS, IdentityType.DID, IdentityType.EMAIL, IdentityType.PHONE}
)
_KEYS: Final = frozenset(
    {
        "version",
        "owner",
        "writers",
        "rateLimit",
        "encryptionMode",
        "tfheOrch",
        "retentionClass",
        "pqMode",
        "customParams",
        "customData",
    }
)
_WRITERS_KEYS: Final = {
    WritersMode.OPEN: frozenset({"mode"}),
    WritersMode.OWNER_ONLY: frozenset({"mode"}),
    WritersMode.ALLOWLIST: frozenset({"mode", "list"}),
    WritersMode.TOKEN_GATED: frozenset({"mode", "tokenGate"}),
}


def policy_to_json(policy: NamespacePolicy) -> dict[str, object]:
    """Return the JSON form; `policy_from_json` gives the same policy back."""
    form: dict[str, object] = {
        "version": policy.version,
        "owner": _identity_to_json(policy.owner),
        "writers": _writers_to_json(policy),
        "rateLimit": {
            "messagesPerSecond": policy.messages_per_second,
            "bytesPerSecond": policy.bytes_per_second,
            "burstMessages": policy.burst_messages,
        },
        "encryptionMode": policy.encryption_mode.name.lower(),
        "tfheOrch": policy.tfhe_orch,
        "retentionClass": policy.retention_class.name.lower(),
        "pqMode": policy.pq_mode.name.lower(),
    }
    params = policy.custom_params
    if _has_bytes(params):
        form["customData"] = _hex(policy.custom)
    else:
        form["customParams"] = params
    return form


def policy_from_json(form: object) -> NamespacePolicy:
    """Return the policy of a JSON object.

    Raises:
        PolicyError: a key is unknown, missing, or has a value that does not fit. Nothing else is
            raised, whatever the object.

    """
    obj = _object(form, "policy", _KEYS)
    defaults = _DEFAULTS
    rates = _object(
        obj.get("rateLimit", {}),
        "rateLimit",
        frozenset({"messagesPerSecond", "bytesPerSecond", "burstMessages"}),
    )
    try:
        return NamespacePolicy(
            version=_integer(obj, "version", 0xFFFF, defaults.version),
            owner=_identity(obj.get("owner"), "owner"),
            **_writers(obj.get("writers", {"mode": "open"})),
            messages_per_second=_integer(
                rates, "messagesPerSecond", MAX_U32, defaults.messages_per_second
            ),
            bytes_per_second=_integer(rates, "bytesPerSecond", MAX_U64, defaults.bytes_per_second),
            burst_messages=_integer(rates, "burstMessages", MAX_U32, defaults.burst_messages),
            encryption_mode=_choice(EncryptionMode, obj, "encryptionMode", "plaintext"),
            tfhe_orch=_boolean(obj, "tfheOrch"),
            retention_class=_choice(RetentionClass, obj, "retentionClass", "standard"),
            pq_mode=_choice(PqMode, obj, "pqMode", "classical"),
            custom=_custom(obj),
        )
    except BusArgumentError as error:
        raise PolicyError(error.what, where=error.where) from error


_DEFAULTS: Final = NamespacePolicy(owner=Identity(IdentityType.WALLET, bytes(20)))


def _writers_to_json(policy: NamespacePolicy) -> dict[str, object]:
    writers: dict[str, object] = {"mode": policy.writers_mode.name.lower()}
    if policy.writers_mode is WritersMode.ALLOWLIST:
        writers["list"] = [_identity_to_json(identity) for identity in policy.writers]
    gate = policy.token_gate
    if gate is not None:
        writers["tokenGate"] = {
            "kind": gate.kind.name.lower(),
            "chainId": gate.chain_id,
            "contract": _hex(gate.contract),
            "minBalance": str(gate.min_balance),
            "tokenId": None if gate.token_id is None else str(gate.token_id),
        }
    return writers


def _writers(form: object) -> dict[str, Any]:
    obj = _object(form, "writers", frozenset({"mode", "list", "tokenGate"}))
    mode = _choice(WritersMode, obj, "mode", None)
    _object(form, f"writers of mode {mode.name.lower()}", _WRITERS_KEYS[mode])
    if mode is WritersMode.ALLOWLIST:
        listed = obj.get("list")
        if not isinstance(listed, list):
            raise PolicyError("expected a list of identities", where="writers.list")
        identities = {_identity(entry, "writers.list") for entry in listed}
        if len(identities) != len(listed):
            raise PolicyError("an identity stands twice", where="writers.list")
        return {"writers_mode": mode, "writers": tuple(sorted(identities, key=Identity.encode))}
    if mode is WritersMode.TOKEN_GATED:
        return {"writers_mode": mode, "token_gate": _gate(obj.get("tokenGate"))}
    return {"writers_mode": mode}


def _gate(form: object) -> TokenGate:
    keys = frozenset({"kind", "chainId", "contract", "minBalance", "tokenId"})
    obj = _object(form, "tokenGate", keys)
    token_id = obj.get("tokenId")
    return TokenGate(
        kind=_choice(TokenKind, obj, "kind", None),
        chain_id=_integer(obj, "chainId", MAX_U64, None),
        contract=_bytes(obj.get("contract", _hex(bytes(20))), "contract"),
        min_balance=_integer(obj, "minBalance", MAX_U256, None),
        token_id=None if token_id is None else _integer(obj, "tokenId", MAX_U256, None),
    )


def _identity_to_json(identity: Identity) -> dict[str, object]:
    value = _hex(identity.value)
    if identity.type in _TEXTUAL:
        try:
            text = identity.value.decode()
        except UnicodeDecodeError:
            text = value
        value = value if text.startswith("0x") else text
    return {"type": identity.type.name.lower(), "value": value}


def _identity(form: object, where: str) -> Identity:
    obj = _object(form, where, frozenset({"type", "value"}))
    kind = _choice(IdentityType, obj, "type", None)
    value = obj.get("value")
    if kind in _TEXTUAL and isinstance(value, str) and not value.startswith("0x"):
        try:
            return Identity(kind, value.encode())
        except UnicodeEncodeError as error:
            raise PolicyError("text with lone surrogates", where=where) from error
    return Identity(kind, _bytes(value, where))


def _custom(obj: Mapping[str, object]) -> bytes:
    if "customData" in obj:
        if "customParams" in obj:
            raise PolicyError("customParams and customData are one thing", where="customData")
        return _bytes(obj["customData"], "customData")
    params = obj.get("customParams", {})
    if not isinstance(params, Mapping):
        raise PolicyError("expected an object", where="customParams")
    if PREPAID_ISSUERS in params:
        _check_issuers(params[PREPAID_ISSUERS])
    return encode_custom(params)


def _check_issuers(named: object) -> None:
    where = f"customParams.{PREPAID_ISSUERS}"
    if not isinstance(named, list) or not named:
        raise PolicyError("expected a list of key fields, one at least", where=where)
    for index, text in enumerate(named):
        field = _bytes(text, f"{where}[{index}]")
        if field[:1] not in _ISSUER_TYPES or len(field) != SCHEMES[field[0]].key_field_bytes:
            raise PolicyError(
                "expected the key field of an Ed25519 or secp256k1 key", where=f"{where}[{index}]"
            )


def _has_bytes(value: CborValue) -> bool:
    if isinstance(value, Mapping):
        return any(_has_bytes(inner) for inner in value.values())
    if isinstance(value, list):
        return any(_has_bytes(inner) for inner in value)
    return isinstance(value, bytes)


def _hex(value: bytes) -> str:
    return "0x" + value.hex()


def _object(form: object, where: str, keys: frozenset[str]) -> Mapping[str, object]:
    if not isinstance(form, Mapping):
        raise PolicyError("expected a JSON object", where=where)
    unknown = sorted(str(key) for key in form if key not in keys)
    if unknown:
        raise PolicyError(
            f"unknown key {unknown[0]!r}", where=where, hint="known are: " + ", ".join(sorted(keys))
        )
    return form


def _integer(obj: Mapping[str, object], key: str, maximum: int, default: int | None) -> int:
    value = obj.get(key, default)
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise PolicyError(f"expected an integer from 0 to {maximum}", where=key)
    return value


def _boolean(obj: Mapping[str, object], key: str) -> bool:
    value = obj.get(key, False)
    if not isinstance(value, bool):
        raise PolicyError("expected true or false", where=key)
    return value


def _bytes(value: object, where: str) -> bytes:
    try:
        return from_hex(value if isinstance(value, str) else "?")
    except ValueError as error:
        raise PolicyError(str(error), where=where) from None


def _choice(
    kind: type[_Choice], obj: Mapping[str, object], key: str, default: str | None
) -> _Choice:
    value = obj.get(key, default)
    for choice in kind:
        if value == choice.name.lower():
            return choice
    names = ", ".join(choice.name.lower() for choice in kind)
    raise PolicyError("no such value", where=key, hint=f"one of {names}")
