"""Policy vectors: V2, every mode, and bytes that are no canonical policy.

Source: LP-6410 §3; 11-23, 11-39, 11-40; decisions S1, S21, H33.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from luxrelay.bus import SignatureScheme
from luxrelay.bus.policy import (
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
from luxrelay.bus.policy_json import policy_to_json
from luxrelay.errors import PolicyError
from luxrelay.testing.cases.case import Case, Json
from luxrelay.testing.messages import signing_key
from luxrelay.wire import from_hex, to_hex

V2: Final = NamespacePolicy(owner=Identity(IdentityType.WALLET, bytes.fromhex("1234567890" * 4)))
"""The policy of vector V2."""

_ALICE: Final = Identity(IdentityType.WALLET, b"\xa1" * 20)
_BOB: Final = Identity(IdentityType.WALLET, b"\xb2" * 20)


def files() -> Iterator[tuple[str, list[Case]]]:
    """Yield the files."""
    yield (
        "valid-modes",
        [
            Case(name, {"policy": to_hex(policy.encode())}, {"wellFormed": True})
            for name, policy in _policies()
        ],
    )
    yield (
        "reject-structure",
        [Case(name, {"policy": to_hex(data)}, {"wellFormed": False}) for name, data in _broken()],
    )


def _policies() -> Iterator[tuple[str, NamespacePolicy]]:
    yield "V2", V2
    yield "owner only", replace(V2, writers_mode=WritersMode.OWNER_ONLY)
    yield "allowlist", _listed(_ALICE, _BOB)
    yield "allowlist of nobody", _listed()
    for scheme in (SignatureScheme.ED25519, SignatureScheme.SECP256K1, SignatureScheme.ML_DSA_65):
        key = Identity(IdentityType.RAW_KEY, signing_key(scheme).public_field)
        yield f"raw {scheme.name} key", replace(_listed(_ALICE, key), owner=key)
    for kind, value in (
        (IdentityType.ENS, b"alice.eth"),
        (IdentityType.DID, b"did:lux:alice"),
        (IdentityType.EMAIL, b"alice@example.org"),
        (IdentityType.PHONE, b"+4930123456"),
        (IdentityType.X509, b"\x30\x03\x02\x01\x01"),
    ):
        yield f"owner {kind.name}", replace(V2, owner=Identity(kind, value))
    for counted, contract, token in (
        (TokenKind.NATIVE, bytes(20), None),
        (TokenKind.FUNGIBLE, b"\xc0" * 20, None),
        (TokenKind.NON_FUNGIBLE, b"\xc0" * 20, None),
        (TokenKind.NON_FUNGIBLE, b"\xc0" * 20, 0),
        (TokenKind.MULTI, b"\xc0" * 20, 2**256 - 1),
    ):
        gate = TokenGate(
            kind=counted, chain_id=96_369, contract=contract, min_balance=10**18, token_id=token
        )
        gated = replace(V2, writers_mode=WritersMode.TOKEN_GATED, token_gate=gate)
        yield f"token gate {counted.name}, token {token}", gated
    for mode in EncryptionMode:
        yield f"encryption {mode.name}", replace(V2, encryption_mode=mode)
    yield "sidecars demanded", replace(V2, encryption_mode=EncryptionMode.TFHE, tfhe_orch=True)
    for retention in RetentionClass:
        yield f"retention {retention.name}", replace(V2, retention_class=retention)
    for pq in PqMode:
        yield f"post-quantum {pq.name}", replace(V2, pq_mode=pq)
    yield (
        "largest numbers",
        replace(
            V2,
            version=0xFFFF,
            messages_per_second=2**32 - 1,
            bytes_per_second=2**64 - 1,
            burst_messages=2**32 - 1,
        ),
    )
    custom = encode_custom({"sealedModeAllowed": True, "a": [1, -1, "x"], "n": 2**40})
    yield "custom parameters", replace(V2, custom=custom)


def _listed(*writers: Identity) -> NamespacePolicy:
    return replace(V2, writers_mode=WritersMode.ALLOWLIST, writers=tuple(writers))


def _broken() -> Iterator[tuple[str, bytes]]:
    data = V2.encode()
    for size in (0, 1, 2, 5, 24, 25, 29, 45, 51):
        yield f"cut at {size}", data[:size]
    yield "a byte after", data + b"\x00"
    for name, offset, value in (
        ("version 0", 0, b"\x00\x00"),
        ("identity type 0", 2, b"\x00"),
        ("identity type 7", 2, b"\x07"),
        ("wallet of 19 bytes", 3, b"\x00\x13"),
        ("writers mode 4", 25, b"\x04"),
        ("writersData where there is none", 26, b"\x00\x00\x00\x01"),
        ("encryption mode 4", 46, b"\x04"),
        ("tfheOrch 2", 47, b"\x02"),
        ("tfheOrch without TFHE", 47, b"\x01"),
        ("retention class 4", 48, b"\x04"),
        ("post-quantum mode 3", 49, b"\x03"),
        ("customLen 1", 50, b"\x00\x01"),
    ):
        yield name, data[:offset] + value + data[offset + len(value) :]
    for name, custom in (
        ("custom: an empty map", b"\xa0"),
        ("custom: no map", b"\x01"),
        ("custom: a long form", bytes.fromhex("a1616118" + "01")),
        ("custom: keys out of order", bytes.fromhex("a2616201616101")),
        ("custom: a key twice", bytes.fromhex("a2616101616102")),
        ("custom: indefinite length", bytes.fromhex("bf616101ff")),
        ("custom: cut", bytes.fromhex("a16161")),
        ("custom: a byte after", bytes.fromhex("a161610100")),
    ):
        yield name, data[:50] + len(custom).to_bytes(2, "big") + custom
    pair = _listed(_ALICE, _BOB).encode()
    alice, bob = _ALICE.encode(), _BOB.encode()
    yield "writers out of order", pair.replace(alice + bob, bob + alice)
    yield "a writer twice", pair.replace(alice + bob, alice + alice)


def answer(given: Json) -> Json:
    """Return the hash and the JSON form of a policy."""
    try:
        policy = NamespacePolicy.decode(from_hex(given["policy"]))
    except PolicyError:
        return {"wellFormed": False}
    return {
        "wellFormed": True,
        "policyHash": to_hex(policy.policy_hash),
        "json": policy_to_json(policy),
    }
