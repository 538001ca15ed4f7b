"""Documents beside the messages."""

from pathlib import Path

import pytest

from luxrelay.bus import Identity, IdentityType, NamespacePolicy, SigningKey, namespace_id
from luxrelay.bus.header import sender_address
from luxrelay.bus.registry import MappingShelf, PolicyRegistry
from luxrelay.bus.signed_policy import SignedPolicy
from luxrelay.errors import StoreArgumentError, StoreError
from luxrelay.store import RelayStore, RelayStoreConfig
from luxrelay.store import relay_store as documents

NOW = 1_704_067_200_000


def opened(path: Path) -> RelayStore:
    """Open the store of a test."""
    return RelayStore.open(path / "store", RelayStoreConfig.small(), now_ms=NOW)


def test_is_a_mapping_that_survives_a_restart(tmp_path: Path) -> None:
    """What was assigned is there after the store was opened again, in order of keys."""
    with opened(tmp_path) as store:
        store.documents[b"b"] = b"2"
        store.documents[b"a"] = b"1"
        store.documents[b"gone"] = b"x"
        del store.documents[b"gone"]
        assert store.verify() == []

    with opened(tmp_path) as store:
        assert dict(store.documents) == {b"a": b"1", b"b": b"2"}
        assert len(store.documents) == 2
        assert store.documents.get(b"gone", b"") == b""
        with pytest.raises(KeyError):
            del store.documents[b"gone"]


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, values and their number are bounded, and a replacement is not one more."""
    monkeypatch.setattr(documents, "DOCUMENTS_MAX", 1)
    monkeypatch.setattr(documents, "VALUE_BYTES_MAX", 8)
    with opened(tmp_path) as store:
        for key, value in ((b"", b""), (bytes(129), b""), (b"k", bytes(9))):
            with pytest.raises(StoreArgumentError):
                store.documents[key] = value
        store.documents[b"k"] = b"1"
        store.documents[b"k"] = b"2"
        with pytest.raises(StoreError) as caught:
            store.documents[b"other"] = b""
        assert caught.value.code == "store.full"


def test_carries_a_policy_registry(tmp_path: Path) -> None:
    """A registry on the store knows its policies and their history again after a restart (H19)."""
    key = SigningKey.generate()
    address = sender_address(key.public_field)
    salt = next(
        bytes([i]) * 32
        for i in range(256)
        if namespace_id(address, bytes([i]) * 32, 1)[0] not in {0, 1, 255}
    )
    namespace = namespace_id(address, salt, 1)
    owner = Identity(IdentityType.WALLET, address)

    def document(version: int, active_ms: int) -> SignedPolicy:
        policy = NamespacePolicy(owner=owner, version=version)
        return SignedPolicy(
            network="devnet", namespace_id=namespace, policy=policy, activation_ms=active_ms
        ).signed_by(key)

    with opened(tmp_path) as store:
        registry = PolicyRegistry(shelf=MappingShelf(store.documents))
        registry.create(document(1, 0), salt, 1)
        registry.update(document(2, NOW))

    with opened(tmp_path) as store:
        registry = PolicyRegistry(shelf=MappingShelf(store.documents))
        found = [record.policy.version for record in registry.history(namespace)]
        assert found == [1, 2]
        assert registry.in_force(namespace, None, NOW - 1)[0].policy.version == 1
        assert registry.in_force(namespace, None, NOW + 60_000)[0].policy.version == 2
