"""The JSON form of policies."""

import json

import pytest

from luxrelay.bus import Identity, IdentityType, NamespacePolicy, TokenGate, WritersMode
from luxrelay.bus.policy import EncryptionMode, PqMode, RetentionClass, TokenKind, encode_custom
from luxrelay.bus.policy_json import policy_from_json, policy_to_json
from luxrelay.errors import PolicyError

OWNER = Identity(IdentityType.WALLET, b"\x12" * 20)
POLICIES = [
    NamespacePolicy(owner=OWNER),
    NamespacePolicy(
        owner=Identity(IdentityType.ENS, b"alice.eth"),
        version=9,
        writers_mode=WritersMode.ALLOWLIST,
        writers=(
            Identity(IdentityType.WALLET, b"\x01" * 20),
            Identity(IdentityType.DID, b"\xff\xfe"),
            Identity(IdentityType.EMAIL, b"0xa@example.org"),
        ),
        encryption_mode=EncryptionMode.TFHE,
        tfhe_orch=True,
        retention_class=RetentionClass.PERMANENT,
        pq_mode=PqMode.HYBRID,
        bytes_per_second=2**64 - 1,
        custom=encode_custom({"a": [1, None, {"b": "c"}]}),
    ),
    NamespacePolicy(
        owner=Identity(IdentityType.RAW_KEY, b"\x01" * 33),
        writers_mode=WritersMode.TOKEN_GATED,
        token_gate=TokenGate(
            kind=TokenKind.NATIVE, chain_id=1, contract=bytes(20), min_balance=2**255
        ),
        custom=encode_custom({"raw": b"\x00\x01", "list": [b"x"]}),
    ),
    NamespacePolicy(
        owner=OWNER,
        writers_mode=WritersMode.TOKEN_GATED,
        token_gate=TokenGate(
            kind=TokenKind.MULTI, chain_id=1, contract=b"\x01" * 20, min_balance=1, token_id=0
        ),
    ),
    NamespacePolicy(owner=OWNER, writers_mode=WritersMode.OWNER_ONLY),
]


@pytest.mark.parametrize("policy", POLICIES)
def test_json_comes_back(policy: NamespacePolicy) -> None:
    """A policy survives JSON text, with integers beyond 2^53 and identities that are no text."""
    text = json.dumps(policy_to_json(policy))

    assert policy_from_json(json.loads(text)) == policy


def test_defaults_need_an_owner_only() -> None:
    """What is left out has the default of the policy, and an allowlist may stand in any order."""
    owner = {"type": "wallet", "value": "0x" + "12" * 20}
    assert policy_from_json({"owner": owner}) == NamespacePolicy(owner=OWNER)

    listed = [{"type": "wallet", "value": "0x" + digit * 40} for digit in "321"]
    form = {"owner": owner, "writers": {"mode": "allowlist", "list": listed}, "version": "3"}
    policy = policy_from_json(form)
    assert [w.value[0] for w in policy.writers] == [0x11, 0x22, 0x33]
    assert policy.version == 3


GOOD = policy_to_json(POLICIES[0])


@pytest.mark.parametrize(
    "change",
    [
        {"owner": None},
        {"owner": {"type": "wallet"}},
        {"owner": {"type": "wallet", "value": "0x12"}},
        {"owner": {"type": "wallet", "value": "12 " * 20}},
        {"owner": {"type": "nobody", "value": "0x12"}},
        {"owner": {"type": "ens", "value": "\ud800"}},
        {"owner": {"type": "ens", "value": 5}},
        {"unknown": 1},
        {"version": 0},
        {"version": "x"},
        {"version": True},
        {"version": 2.0},
        {"tfheOrch": 1},
        {"tfheOrch": True},
        {"pqMode": "pq"},
        {"pqMode": []},
        {"writers": {"mode": "open", "list": []}},
        {"writers": {"mode": "allowlist"}},
        {"writers": {"mode": "allowlist", "list": [GOOD["owner"], GOOD["owner"]]}},
        {"writers": {"mode": "token_gated"}},
        {"writers": {"mode": "token_gated", "tokenGate": {"kind": "native"}}},
        {"writers": []},
        {"rateLimit": {"bytesPerSecond": 2**64}},
        {"rateLimit": {"burst": 1}},
        {"customParams": {"x": 1.5}},
        {"customParams": []},
        {"customParams": {"prepaidIssuers": []}},
        {"customParams": {"prepaidIssuers": "0x01"}},
        {"customParams": {"prepaidIssuers": ["zz"]}},
        {"customParams": {"prepaidIssuers": ["0x03" + "11" * 32]}},
        {"customParams": {"prepaidIssuers": ["0x01" + "11" * 31]}},
        {"customParams": {}, "customData": "0x"},
        {"customData": "0xa0"},
        {"customData": 7},
    ],
)
def test_reject_form(change: dict[str, object]) -> None:
    """A form with a wrong, unknown or missing part is refused in one line."""
    form = {key: value for key, value in GOOD.items() if key != "customParams"}

    with pytest.raises(PolicyError) as refused:
        policy_from_json({**form, **change})

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("form", [None, [], "x", 5])
def test_reject_what_is_no_object(form: object) -> None:
    """Only a JSON object is a policy."""
    with pytest.raises(PolicyError):
        policy_from_json(form)
