"""Which policy was in force when, and how it got there."""

from dataclasses import replace

import pytest

from luxrelay.bus import (
    Identity,
    IdentityType,
    NamespaceId,
    NamespacePolicy,
    PolicyRegistry,
    RegistryConfig,
    SignatureScheme,
    SignedPolicy,
    SigningKey,
    namespace_id,
)
from luxrelay.bus.authorization import key_address
from luxrelay.bus.policy import default_policy
from luxrelay.bus.registry import DefaultPolicies, MappingShelf, PolicyRecord
from luxrelay.errors import BusArgumentError, PolicyError

NAMESPACE = NamespaceId(b"\x22" * 20)
OTHER = SigningKey.from_seed(SignatureScheme.ED25519, b"\x07" * 32)


def made(key: SigningKey, version: int = 1, **changes: object) -> SignedPolicy:
    """Return a document of the owner ``key``."""
    address = key_address(key.public_field)
    assert address is not None
    policy = NamespacePolicy(owner=Identity(IdentityType.WALLET, address), version=version)
    fields: dict[str, object] = {"network": "devnet", "namespace_id": NAMESPACE, "policy": policy}
    return SignedPolicy(**{**fields, **changes}).signed_by(key)  # type: ignore[arg-type]


def versions(records: tuple[PolicyRecord, ...]) -> list[int]:
    """Return the versions of records."""
    return [record.policy.version for record in records]


def test_unknown_namespace_has_no_policy() -> None:
    """A registry that knows nothing answers with nothing (11-11)."""
    assert PolicyRegistry().in_force(NAMESPACE, 1, 0) == ()


def test_policy_changes_in_mid_stream(key: SigningKey) -> None:
    """Before, during the grace and after it, headers bind to what was in force (11-24, H19)."""
    registry = PolicyRegistry()
    registry.register(made(key))
    registry.update(made(key, 2, activation_seq=10, activation_ms=1_000_000))

    assert versions(registry.in_force(NAMESPACE, 9, 1_000_000)) == [1]
    assert versions(registry.in_force(NAMESPACE, 10, 999_999)) == [1]
    assert versions(registry.in_force(NAMESPACE, 10, 1_000_000)) == [2, 1]
    assert versions(registry.in_force(NAMESPACE, 10, 1_059_999)) == [2, 1]
    assert versions(registry.in_force(NAMESPACE, 10, 1_060_000)) == [2]
    assert versions(registry.in_force(NAMESPACE, None, 1_060_000)) == [2]
    assert registry.in_force(NAMESPACE, 1, 0)[0].policy_hash == made(key).policy.policy_hash


def test_grace_can_be_turned_off(key: SigningKey) -> None:
    """With a grace of 0 the previous policy is out at once (H19)."""
    registry = PolicyRegistry(RegistryConfig(grace_ms=0))
    registry.register(made(key))
    registry.update(made(key, 2, activation_ms=1000))

    assert versions(registry.in_force(NAMESPACE, 1, 1000)) == [2]


def test_nothing_before_the_first_activation(key: SigningKey) -> None:
    """A namespace does not exist before its first policy begins."""
    registry = PolicyRegistry()
    registry.register(made(key, activation_ms=500))

    assert registry.in_force(NAMESPACE, 1, 499) == ()
    assert versions(registry.in_force(NAMESPACE, 1, 500)) == [1]


def test_create_proves_the_owner(key: SigningKey) -> None:
    """A standard id is taken when owner, salt and block give it, and from nobody else."""
    address = key_address(key.public_field)
    assert address is not None
    salt = next(
        s for s in map(_salt, range(1, 9)) if namespace_id(address, s, 7)[0] not in (0, 1, 255)
    )
    mine = made(key, namespace_id=namespace_id(address, salt, 7))
    registry = PolicyRegistry()

    for salted, block in ((bytes(32), 7), (salt, 8), (bytes(5), 7), (salt, -1)):
        with pytest.raises(PolicyError):
            registry.create(mine, salted, block)
    by_key = replace(mine.policy, owner=Identity(IdentityType.RAW_KEY, key.public_field))
    with pytest.raises(PolicyError, match="wallet"):
        registry.create(replace(mine, policy=by_key).signed_by(key), salt, 7)
    assert registry.create(mine, salt, 7).policy == mine.policy


def _salt(number: int) -> bytes:
    return bytes([number]) * 32


@pytest.mark.parametrize("first", [0x00, 0x01, 0xFF])
def test_reserved_ids_are_refused(key: SigningKey, first: int) -> None:
    """The registry refuses reserved ids unless they are derived or listed by hand (S2, S4)."""
    document = made(key, namespace_id=NamespaceId(bytes([first]) + b"\x01" * 19))
    registry = PolicyRegistry()

    with pytest.raises(PolicyError, match="reserved"):
        registry.register(document)
    assert registry.register(document, reserved=True)


def test_changes_follow_the_rules(key: SigningKey) -> None:
    """No second first, no update of the unknown, no stranger, no other network (H21)."""
    registry = PolicyRegistry()
    with pytest.raises(PolicyError, match="unknown"):
        registry.update(made(key, 2))
    with pytest.raises(PolicyError, match="network"):
        registry.register(made(key, network="mainnet"))
    registry.register(made(key))
    for wrong in (made(key), made(key, 1), made(OTHER, 2), made(key, 2, network="mainnet")):
        with pytest.raises(PolicyError):
            registry.update(wrong)
    with pytest.raises(PolicyError, match="known"):
        registry.register(made(key))
    with pytest.raises(PolicyError, match="known"):
        registry.pin(NAMESPACE, default_policy(NAMESPACE))
    assert versions(registry.history(NAMESPACE)) == [1]


def test_history_is_bounded(key: SigningKey) -> None:
    """Of many versions the newest ``history_max`` stay (H19)."""
    registry = PolicyRegistry(RegistryConfig(history_max=3))
    registry.register(made(key))
    for version in range(2, 7):
        registry.update(made(key, version, activation_ms=version))

    assert versions(registry.history(NAMESPACE)) == [4, 5, 6]
    assert versions(registry.in_force(NAMESPACE, None, 5)) == [5, 4]


def test_memory_refuses_one_namespace_too_many(key: SigningKey) -> None:
    """What memory alone knows is not pushed out: with ``namespaces_max`` held, one more is not."""
    registry = PolicyRegistry(RegistryConfig(namespaces_max=1))
    registry.register(made(key))

    with pytest.raises(PolicyError, match="holds 1"):
        registry.pin(NamespaceId(b"\x33" * 20), default_policy(NAMESPACE))
    registry.update(made(key, 2))
    assert versions(registry.history(NAMESPACE)) == [1, 2]


@pytest.mark.parametrize("change", [{"grace_ms": -1}, {"namespaces_max": 0}, {"history_max": 0}])
def test_reject_config(change: dict[str, int]) -> None:
    """Bounds that hold nothing are refused."""
    with pytest.raises(BusArgumentError):
        RegistryConfig(**change)  # type: ignore[arg-type]


def test_derived_namespaces_are_resolved() -> None:
    """A resolver supplies what nobody could sign: the default policy of chosen ids (H20)."""
    registry = PolicyRegistry(resolvers=[DefaultPolicies([NAMESPACE])])

    (record,) = registry.in_force(NAMESPACE, None, 0)
    assert record.policy == default_policy(NAMESPACE)
    assert registry.in_force(NamespaceId(b"\x33" * 20), None, 0) == ()


def test_shelf_outlives_the_registry(key: SigningKey) -> None:
    """Documents on a shelf are checked again and give the same history (H19)."""
    rows: dict[bytes, bytes] = {}
    first = PolicyRegistry(shelf=MappingShelf(rows))
    first.register(made(key))
    first.update(made(key, 2, activation_ms=70_000))

    again = PolicyRegistry(shelf=MappingShelf(rows))
    assert again.history(NAMESPACE) == first.history(NAMESPACE)
    again.update(made(key, 3, activation_ms=80_000))
    assert versions(PolicyRegistry(shelf=MappingShelf(rows)).history(NAMESPACE)) == [1, 2, 3]


def test_shelf_that_was_tampered_with(key: SigningKey) -> None:
    """A forged, foreign or cut document on a shelf is refused, never served."""
    good = made(key)
    for documents in (
        [replace(good, signature=bytes(64)).encode()],
        [good.encode(), made(OTHER, 2).encode()],
        [made(key, namespace_id=NamespaceId(b"\x33" * 20)).encode()],
        [made(key, network="mainnet").encode()],
        [good.encode()[:-1]],
    ):
        shelf = MappingShelf({})
        shelf.put(NAMESPACE, documents)
        with pytest.raises(PolicyError):
            PolicyRegistry(shelf=shelf).history(NAMESPACE)
    with pytest.raises(PolicyError):
        MappingShelf({b"policy/" + NAMESPACE: b"\x00\x00\x00\x09x"}).get(NAMESPACE)


def test_memory_over_a_shelf_is_bounded(key: SigningKey) -> None:
    """With a shelf behind it, memory holds at most ``namespaces_max`` and forgets nothing."""
    ids = [NamespaceId(bytes([i]) * 20) for i in range(0x20, 0x25)]
    registry = PolicyRegistry(RegistryConfig(namespaces_max=2), shelf=MappingShelf({}))
    for namespace in ids:
        registry.register(made(key, namespace_id=namespace))

    assert len(registry._cached) <= 2
    assert all(versions(registry.history(namespace)) == [1] for namespace in ids)


def test_pinned_policy_holds_from_the_beginning() -> None:
    """A policy without a signer is taken on the caller's word (H20)."""
    registry = PolicyRegistry()
    registry.pin(NAMESPACE, default_policy(NAMESPACE))

    (record,) = registry.in_force(NAMESPACE, 1, 0)
    assert (record.policy, record.document) == (default_policy(NAMESPACE), b"")
