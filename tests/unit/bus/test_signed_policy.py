"""Signed policy documents and what may replace what."""

from dataclasses import replace

import pytest

from luxrelay.bus import (
    Identity,
    IdentityType,
    NamespaceId,
    NamespacePolicy,
    SignatureScheme,
    SignedPolicy,
    SigningKey,
)
from luxrelay.bus.authorization import key_address
from luxrelay.bus.policy import EncryptionMode
from luxrelay.bus.signed_policy import MAX_DOCUMENT_BYTES, check_first, check_update
from luxrelay.errors import BusArgumentError, PolicyError

NAMESPACE = NamespaceId(b"\x22" * 20)
OTHER = SigningKey.from_seed(SignatureScheme.ED25519, b"\x07" * 32)


def wallet(key: SigningKey) -> Identity:
    """Return the wallet of a key."""
    address = key_address(key.public_field)
    assert address is not None
    return Identity(IdentityType.WALLET, address)


@pytest.fixture
def document(key: SigningKey) -> SignedPolicy:
    """The first policy of a namespace, signed by its owner."""
    policy = NamespacePolicy(owner=wallet(key))
    return SignedPolicy(network="devnet", namespace_id=NAMESPACE, policy=policy).signed_by(key)


def test_layout(document: SignedPolicy, key: SigningKey) -> None:
    """The bytes are tag, network, namespace, policy, activation, key and signature."""
    later = replace(document, activation_seq=5, activation_ms=6).signed_by(key)

    assert later.encode() == b"".join(
        (
            b"lux.policy.v1",
            b"\x06devnet",
            NAMESPACE,
            (52).to_bytes(4, "big"),
            later.policy.encode(),
            (5).to_bytes(8, "big"),
            (6).to_bytes(8, "big"),
            (33).to_bytes(2, "big"),
            key.public_field,
            (64).to_bytes(2, "big"),
            later.signature,
        )
    )
    assert SignedPolicy.decode(later.encode()) == later


@pytest.mark.parametrize("scheme", list(SignatureScheme))
def test_every_scheme_signs(scheme: SignatureScheme) -> None:
    """An owner of any scheme can sign, by wallet and by raw key."""
    owner = (
        SigningKey.from_seed(scheme, b"\x05" * 32) if scheme != 5 else SigningKey.generate(scheme)
    )
    for identity in (wallet(owner), Identity(IdentityType.RAW_KEY, owner.public_field)):
        policy = NamespacePolicy(owner=identity)
        signed = SignedPolicy(network="n", namespace_id=NAMESPACE, policy=policy).signed_by(owner)
        check_first(SignedPolicy.decode(signed.encode()))


def test_reject_broken_documents(document: SignedPolicy) -> None:
    """Cut anywhere, longer, of another tag or with odd lengths, it is no document."""
    data = document.encode()

    for size in range(len(data)):
        with pytest.raises(PolicyError):
            SignedPolicy.decode(data[:size])
    for broken in (
        data + b"\x00",
        b"L" + data[1:],
        data.replace(b"\x06devnet", b"\x06DEVNET"),
        data.replace(NAMESPACE, bytes(20)),
        bytes(MAX_DOCUMENT_BYTES + 1),
        replace(document, signature=document.signature + b"\x00").encode(),
        replace(document, signer=b"").encode(),
        replace(document, signer=b"\x09" * 33).encode(),
    ):
        with pytest.raises(PolicyError):
            SignedPolicy.decode(broken)


@pytest.mark.parametrize(
    "change",
    [
        {"network": ""},
        {"network": "x" * 33},
        {"network": "Dev"},
        {"namespace_id": bytes(20)},
        {"namespace_id": bytes(19)},
        {"activation_seq": -1},
        {"activation_ms": 2**64},
    ],
)
def test_reject_argument(document: SignedPolicy, change: dict[str, object]) -> None:
    """A value without an encoding is the caller's error."""
    with pytest.raises(BusArgumentError):
        replace(document, **change)  # type: ignore[arg-type]


def test_first_is_signed_by_its_owner(document: SignedPolicy) -> None:
    """Another signer, another network or a flipped bit is refused (H20)."""
    check_first(document)

    for forged in (
        document.signed_by(OTHER),
        replace(document, signer=b"\x09" * 33),
        replace(document, network="mainnet"),
        replace(document, signature=bytes(64)),
    ):
        with pytest.raises(PolicyError):
            check_first(forged)


def test_owner_nobody_can_resolve(document: SignedPolicy, key: SigningKey) -> None:
    """An owner by name needs whoever resolves names; without, the document is refused."""
    named = replace(document, policy=NamespacePolicy(owner=Identity(IdentityType.ENS, b"a.eth")))
    signed = named.signed_by(key)

    class Names:
        def matches(self, identity: Identity, key_field: bytes) -> bool | None:
            return identity.value == b"a.eth" and key_field == key.public_field

    with pytest.raises(PolicyError, match="resolve"):
        check_first(signed)
    check_first(signed, Names())


def test_update_raises_the_version(document: SignedPolicy, key: SigningKey) -> None:
    """The owner changes rules under a higher version, and only so (H21)."""
    before = document.policy
    after = replace(document, policy=replace(before, version=2, messages_per_second=5))

    check_update(after.signed_by(key), before, (0, 0))
    same = replace(after, policy=replace(after.policy, version=1)).signed_by(key)
    with pytest.raises(PolicyError, match="rise"):
        check_update(same, before, (0, 0))


def test_encryption_mode_never_changes(document: SignedPolicy, key: SigningKey) -> None:
    """An update that turns encryption on or off is refused (H21)."""
    policy = replace(document.policy, version=2, encryption_mode=EncryptionMode.E2EE_MLS)
    with pytest.raises(PolicyError, match="encryptionMode"):
        check_update(replace(document, policy=policy).signed_by(key), document.policy, (0, 0))


def test_update_begins_after_what_it_replaces(document: SignedPolicy, key: SigningKey) -> None:
    """Neither sequence nor time of an activation goes back (H19)."""
    policy = replace(document.policy, version=2)
    update = replace(document, policy=policy, activation_seq=5, activation_ms=5).signed_by(key)

    check_update(update, document.policy, (5, 5))
    for previous in ((6, 5), (5, 6), (4, 6), (6, 4)):
        with pytest.raises(PolicyError, match="begins"):
            check_update(update, document.policy, previous)


def test_ownership_passes_by_the_old_owners_hand(document: SignedPolicy, key: SigningKey) -> None:
    """A transfer is signed by who hands over; afterwards only the new owner may change (H21)."""
    handed = replace(document, policy=replace(document.policy, version=2, owner=wallet(OTHER)))
    later = replace(document, policy=replace(handed.policy, version=3))

    check_update(handed.signed_by(key), document.policy, (0, 0))
    with pytest.raises(PolicyError, match="owner"):
        check_update(handed.signed_by(OTHER), document.policy, (0, 0))
    check_update(later.signed_by(OTHER), handed.policy, (0, 0))
    with pytest.raises(PolicyError, match="owner"):
        check_update(later.signed_by(key), handed.policy, (0, 0))


def test_signer_that_is_no_key(document: SignedPolicy) -> None:
    """A document whose signer is no key field does not verify, without an exception."""
    assert not replace(document, signer=b"\x09").verify()
