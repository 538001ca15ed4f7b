"""PolicyV1: one policy, one encoding."""

from dataclasses import replace

import pytest

from luxrelay.bus import Identity, IdentityType, NamespacePolicy, TokenGate, WritersMode
from luxrelay.bus.policy import (
    MAX_POLICY_BYTES,
    MAX_WRITERS,
    EncryptionMode,
    TokenKind,
    default_policy,
    default_policy_hash,
    encode_custom,
)
from luxrelay.errors import BusArgumentError, PolicyError

OWNER = Identity(IdentityType.WALLET, bytes.fromhex("1234567890123456789012345678901234567890"))
WRITERS = (
    Identity(IdentityType.WALLET, bytes(20)),
    Identity(IdentityType.WALLET, b"\x01" * 20),
    Identity(IdentityType.RAW_KEY, b"\x01" * 33),
)
GATE = TokenGate(
    kind=TokenKind.MULTI, chain_id=96_369, contract=b"\x0c" * 20, min_balance=5, token_id=7
)


def test_policy_vector_v2() -> None:
    """The recommended policy has 52 bytes and the hash of vector V2 (11-23)."""
    policy = NamespacePolicy(owner=OWNER)

    assert policy.encode().hex() == (
        "0001" "01" "0014" "1234567890123456789012345678901234567890" "00" "00000000"
        "00000064" "0000000000100000" "0000012c" "00" "00" "01" "00" "0000"
    )  # fmt: skip
    assert policy.policy_hash.hex() == (
        "25eaf8a0d82c723f329d7af08b62e058eb03723269a00157622f1b1376155059"
    )


@pytest.mark.parametrize(
    "policy",
    [
        NamespacePolicy(owner=OWNER),
        NamespacePolicy(owner=OWNER, writers_mode=WritersMode.OWNER_ONLY, version=7),
        NamespacePolicy(owner=OWNER, writers_mode=WritersMode.ALLOWLIST, writers=WRITERS),
        NamespacePolicy(owner=OWNER, encryption_mode=EncryptionMode.TFHE, tfhe_orch=True),
        NamespacePolicy(owner=OWNER, custom=encode_custom({"sealedModeAllowed": True})),
        NamespacePolicy(owner=OWNER, writers_mode=WritersMode.TOKEN_GATED, token_gate=GATE),
        NamespacePolicy(owner=Identity(IdentityType.RAW_KEY, b"\x04" + bytes(2592))),
        default_policy(bytes(20)),
    ],
)
def test_decode_inverts_encode(policy: NamespacePolicy) -> None:
    """A policy comes back from its bytes."""
    assert NamespacePolicy.decode(policy.encode()) == policy


def test_reject_truncation_and_trailing_bytes() -> None:
    """Cut anywhere or longer by one byte, the bytes are no policy."""
    data = NamespacePolicy(
        owner=OWNER, writers_mode=WritersMode.ALLOWLIST, writers=WRITERS
    ).encode()

    for size in range(len(data)):
        with pytest.raises(PolicyError):
            NamespacePolicy.decode(data[:size])
    with pytest.raises(PolicyError):
        NamespacePolicy.decode(data + b"\x00")
    with pytest.raises(PolicyError):
        NamespacePolicy.decode(bytes(70_000))


@pytest.mark.parametrize("offset", [2, 25, 46, 47, 48, 49])
def test_reject_unknown_enum_value(offset: int) -> None:
    """A value that no enum knows is refused at identity, writers, encryption, TFHE, class, PQ."""
    data = bytearray(NamespacePolicy(owner=OWNER).encode())
    data[offset] = 0x7F

    with pytest.raises(PolicyError):
        NamespacePolicy.decode(bytes(data))


def test_reject_unsorted_writers() -> None:
    """An allowlist has one order, so that one policy has one hash."""
    with pytest.raises(BusArgumentError):
        NamespacePolicy(
            owner=OWNER, writers_mode=WritersMode.ALLOWLIST, writers=tuple(reversed(WRITERS))
        )


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"version": 65_536},
        {"messages_per_second": -1},
        {"bytes_per_second": 2**64},
        {"burst_messages": 2**32},
        {"writers": WRITERS},
        {"tfhe_orch": True},
        {"custom": bytes(4097)},
        {"custom": b"\xa0"},
        {"custom": b"\x01"},
        {"custom": b"\xa1\x61a\x18\x17"},
        {"writers_mode": WritersMode.TOKEN_GATED},
        {"token_gate": GATE},
    ],
)
def test_reject_argument(change: dict[str, object]) -> None:
    """A value without a canonical encoding is the caller's error."""
    with pytest.raises(BusArgumentError):
        replace(NamespacePolicy(owner=OWNER), **change)


@pytest.mark.parametrize("value", [b"", bytes(4097)])
def test_reject_identity_length(value: bytes) -> None:
    """An identity has 1 to 4,096 bytes, a wallet exactly 20."""
    with pytest.raises(BusArgumentError):
        Identity(IdentityType.DID, value)
    with pytest.raises(BusArgumentError):
        Identity(IdentityType.WALLET, value + bytes(19))


@pytest.mark.parametrize("value", [b"\x01" * 32, b"\x01" * 34, b"\x06" * 33, b"\x02" * 33])
def test_reject_raw_key_length(value: bytes) -> None:
    """A raw key is a senderPubKey field: a known scheme and its exact length."""
    with pytest.raises(BusArgumentError):
        Identity(IdentityType.RAW_KEY, value)


def test_one_bit_is_another_policy() -> None:
    """Every changed bit gives no policy or a policy with another hash (11-23)."""
    policy = NamespacePolicy(owner=OWNER)
    data = policy.encode()

    for position in range(8 * len(data)):
        changed = bytearray(data)
        changed[position // 8] ^= 1 << position % 8
        try:
            other = NamespacePolicy.decode(bytes(changed))
        except PolicyError:
            continue
        assert other.policy_hash != policy.policy_hash


def test_token_gate_has_94_bytes() -> None:
    """The gate stands on the wire as kind, chain, contract, balance, flag and token id."""
    assert GATE.encode().hex() == (
        "03" + "0000000000017871" + "0c" * 20 + "00" * 31 + "05" + "01" + "00" * 31 + "07"
    )
    assert len(GATE.encode()) == 94


@pytest.mark.parametrize(
    "change",
    [
        {"chain_id": 2**64},
        {"contract": bytes(19)},
        {"contract": bytes(20)},
        {"min_balance": 0},
        {"min_balance": 2**256},
        {"token_id": None},
        {"token_id": 2**256},
        {"kind": TokenKind.FUNGIBLE},
        {"kind": TokenKind.NATIVE},
    ],
)
def test_reject_token_gate(change: dict[str, object]) -> None:
    """A gate that means nothing, or contradicts its kind, is the caller's error."""
    with pytest.raises(BusArgumentError):
        replace(GATE, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(("offset", "value"), [(26 + 4 + 61, 2), (26 + 4 + 61, 0), (26 + 4, 9)])
def test_reject_token_gate_bytes(offset: int, value: int) -> None:
    """A flag that is neither 0 nor 1, a token id without its flag, and an unknown kind."""
    policy = NamespacePolicy(owner=OWNER, writers_mode=WritersMode.TOKEN_GATED, token_gate=GATE)
    data = bytearray(policy.encode())
    data[offset] = value

    with pytest.raises(PolicyError):
        NamespacePolicy.decode(bytes(data))


def test_reject_length_of_writers_data() -> None:
    """The field writersData has the length it says."""
    data = bytearray(NamespacePolicy(owner=OWNER).encode())
    data[29] = 1

    with pytest.raises(PolicyError):
        NamespacePolicy.decode(bytes(data))


def test_bounds_of_writers() -> None:
    """An allowlist is bounded by count and by the bytes of the policy."""
    many = tuple(
        Identity(IdentityType.WALLET, i.to_bytes(20, "big")) for i in range(MAX_WRITERS + 1)
    )
    fits = many[: (MAX_POLICY_BYTES - 54) // 23]

    listed = WritersMode.ALLOWLIST
    assert NamespacePolicy(owner=OWNER, writers_mode=listed, writers=fits).encode()
    for writers in (many, many[: len(fits) + 1]):
        with pytest.raises(BusArgumentError):
            NamespacePolicy(owner=OWNER, writers_mode=listed, writers=writers)


def test_custom_params_come_back() -> None:
    """Parameters are a CBOR map; no parameters are no bytes (S21)."""
    params = {"sealedModeAllowed": True, "members": [b"\x01", "x"]}

    assert NamespacePolicy(owner=OWNER, custom=encode_custom(params)).custom_params == params
    assert encode_custom({}) == b""
    assert NamespacePolicy(owner=OWNER).custom_params == {}
    with pytest.raises(BusArgumentError):
        encode_custom({"x": bytes(4096)})


def test_the_open_policys_hash_needs_no_policy() -> None:
    """It is the hash of the policy that every node derives; no other length has one (H20)."""
    for parent in (bytes(20), bytes(range(1, 21)), b"\xff" * 20):
        assert default_policy_hash(parent) == default_policy(parent).policy_hash
    with pytest.raises(BusArgumentError):
        default_policy_hash(b"short")
