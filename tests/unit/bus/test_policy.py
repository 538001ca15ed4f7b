"""PolicyV1: one policy, one encoding."""

from dataclasses import replace

import pytest

from luxrelay.bus import Identity, IdentityType, NamespacePolicy, WritersMode
from luxrelay.bus.policy import EncryptionMode, default_policy
from luxrelay.errors import BusArgumentError, PolicyError

OWNER = Identity(IdentityType.WALLET, bytes.fromhex("1234567890123456789012345678901234567890"))
WRITERS = (
    Identity(IdentityType.WALLET, bytes(20)),
    Identity(IdentityType.WALLET, b"\x01" * 20),
    Identity(IdentityType.RAW_KEY, b"\x01" * 33),
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
        NamespacePolicy(owner=OWNER, custom=b"\xa0"),
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
    ],
)
def test_reject_argument(change: dict[str, object]) -> None:
    """A value without a canonical encoding is the caller's error."""
    with pytest.raises(BusArgumentError):
        replace(NamespacePolicy(owner=OWNER), **change)


@pytest.mark.parametrize("value", [b"", bytes(2049)])
def test_reject_identity_length(value: bytes) -> None:
    """An identity has 1 to 2,048 bytes, a wallet exactly 20."""
    with pytest.raises(BusArgumentError):
        Identity(IdentityType.DID, value)
    with pytest.raises(BusArgumentError):
        Identity(IdentityType.WALLET, value + bytes(19))
