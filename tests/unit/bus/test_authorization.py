"""Who may write, with which scheme, and whether the sidecar is due."""

from dataclasses import replace

import pytest

from luxrelay.bus import (
    Access,
    Identity,
    IdentityType,
    MsgHeader,
    NamespacePolicy,
    SignatureScheme,
    SigningKey,
    TFHESidecarRef,
    TokenGate,
    WritersMode,
    authorize_write,
)
from luxrelay.bus.authorization import allowed_scheme, key_address, sidecar_fits
from luxrelay.bus.constants import FLAG_TFHE_SIDECAR
from luxrelay.bus.policy import EncryptionMode, PqMode, TokenKind
from luxrelay.bus.schemes import SCHEMES

STRANGER = Identity(IdentityType.WALLET, b"\x77" * 20)
GATE = TokenGate(kind=TokenKind.FUNGIBLE, chain_id=1, contract=b"\x0c" * 20, min_balance=5)


class Balances:
    """Says the same of every address."""

    def __init__(self, answer: bool | None) -> None:
        self.answer = answer
        self.asked: list[bytes] = []

    def holds(self, address: bytes, gate: TokenGate) -> bool | None:
        """Return the one answer."""
        assert gate == GATE
        self.asked.append(address)
        return self.answer


class Names:
    """Knows one key by one name."""

    def __init__(self, answer: bool | None) -> None:
        self.answer = answer

    def matches(self, identity: Identity, key_field: bytes) -> bool | None:
        """Return the one answer."""
        assert identity.type is IdentityType.ENS
        assert key_field
        return self.answer


@pytest.fixture
def own(signed: MsgHeader) -> Identity:
    """The sender's wallet."""
    return Identity(IdentityType.WALLET, signed.sender_address)


def test_open_lets_everybody_write(signed: MsgHeader) -> None:
    """Open asks nothing (11-39)."""
    assert authorize_write(signed, NamespacePolicy(owner=STRANGER))


@pytest.mark.parametrize("raw", [False, True])
def test_owner_only(signed: MsgHeader, own: Identity, raw: bool) -> None:
    """OwnerOnly lets the owner write, by address or by exact key, and nobody else (11-39)."""
    owner = Identity(IdentityType.RAW_KEY, signed.sender_pub_key) if raw else own
    policy = NamespacePolicy(owner=owner, writers_mode=WritersMode.OWNER_ONLY)
    stranger = SigningKey.generate().sign_header(signed)

    assert authorize_write(signed, policy) is Access.ALLOWED
    assert authorize_write(stranger, policy) is Access.DENIED


@pytest.mark.parametrize("raw", [False, True])
def test_allowlist(signed: MsgHeader, own: Identity, raw: bool) -> None:
    """Allowlist lets the listed write and nobody else, however long the list (11-39)."""
    member = Identity(IdentityType.RAW_KEY, signed.sender_pub_key) if raw else own
    others = [Identity(IdentityType.WALLET, bytes([i]) * 20) for i in range(50)]
    listed = tuple(sorted([*others, member], key=Identity.encode))
    policy = NamespacePolicy(owner=own, writers_mode=WritersMode.ALLOWLIST, writers=listed)

    assert authorize_write(signed, policy) is Access.ALLOWED
    without = replace(policy, writers=tuple(i for i in listed if i != member))
    assert authorize_write(signed, without) is Access.DENIED
    assert authorize_write(signed, replace(policy, writers=())) is Access.DENIED


@pytest.mark.parametrize(
    ("answer", "access"),
    [(True, Access.ALLOWED), (False, Access.DENIED), (None, Access.UNKNOWN)],
)
def test_token_gate(signed: MsgHeader, answer: bool | None, access: Access) -> None:
    """TokenGated asks the balance of the sender's address; no answer is no permission (11-39)."""
    balances = Balances(answer)
    policy = NamespacePolicy(owner=STRANGER, writers_mode=WritersMode.TOKEN_GATED, token_gate=GATE)

    assert authorize_write(signed, policy, balances) is access
    assert balances.asked == [signed.sender_address]
    assert not authorize_write(signed, policy)
    assert authorize_write(signed, policy) is Access.UNKNOWN


@pytest.mark.parametrize(
    ("answer", "access"),
    [(True, Access.ALLOWED), (False, Access.DENIED), (None, Access.UNKNOWN)],
)
def test_names_are_resolved_elsewhere(
    signed: MsgHeader, answer: bool | None, access: Access
) -> None:
    """A writer by name is one only when somebody resolves the name (11-39, S22)."""
    name = Identity(IdentityType.ENS, b"alice.eth")
    policy = NamespacePolicy(owner=name, writers_mode=WritersMode.ALLOWLIST, writers=(name,))

    assert authorize_write(signed, policy, None, Names(answer)) is access
    assert authorize_write(signed, policy) is Access.UNKNOWN
    owner_only = replace(policy, writers_mode=WritersMode.OWNER_ONLY, writers=())
    assert authorize_write(signed, owner_only, None, Names(answer)) is access


def test_default_is_to_deny(signed: MsgHeader, unsigned: MsgHeader) -> None:
    """Only ALLOWED is true, and a key without an address is in no list (11-39)."""
    assert [bool(access) for access in Access] == [True, False, False]
    assert key_address(b"") is None
    assert key_address(b"\x02" + bytes(33)) is None
    gated = NamespacePolicy(owner=STRANGER, writers_mode=WritersMode.TOKEN_GATED, token_gate=GATE)
    listed = NamespacePolicy(owner=STRANGER, writers_mode=WritersMode.ALLOWLIST)
    for policy in (gated, listed):
        assert authorize_write(unsigned, policy, Balances(True)) is Access.DENIED
    assert authorize_write(signed, listed) is Access.DENIED


MATRIX = {
    PqMode.CLASSICAL: {SignatureScheme.ED25519, SignatureScheme.SECP256K1},
    PqMode.HYBRID: {SignatureScheme.HYBRID_ED25519_ML_DSA_65},
    PqMode.PQ_ONLY: {SignatureScheme.ML_DSA_65, SignatureScheme.ML_DSA_87},
}


@pytest.mark.parametrize("mode", list(PqMode))
@pytest.mark.parametrize("scheme", list(SignatureScheme))
def test_scheme_fits_mode(mode: PqMode, scheme: SignatureScheme) -> None:
    """Each post-quantum mode allows its schemes and no others (11-40, H28)."""
    policy = NamespacePolicy(owner=STRANGER, pq_mode=mode)
    key = bytes([scheme]) + bytes(SCHEMES[scheme].key_field_bytes - 1)

    assert allowed_scheme(policy, key) is (scheme in MATRIX[mode])
    assert not allowed_scheme(policy, b"")


@pytest.mark.parametrize(
    ("encryption", "orchestrated", "carried", "fits"),
    [
        (EncryptionMode.TFHE, True, True, True),
        (EncryptionMode.TFHE, True, False, False),
        (EncryptionMode.TFHE, False, True, True),
        (EncryptionMode.TFHE, False, False, True),
        (EncryptionMode.PLAINTEXT, False, True, False),
        (EncryptionMode.PLAINTEXT, False, False, True),
        (EncryptionMode.E2EE_MLS, False, True, False),
        (EncryptionMode.E2EE_DM, False, True, False),
    ],
)
def test_sidecar_where_it_belongs(
    unsigned: MsgHeader,
    encryption: EncryptionMode,
    orchestrated: bool,
    carried: bool,
    fits: bool,
) -> None:
    """The flag tfheOrch demands the sidecar, TFHE allows it, all else forbids it (11-37, H22)."""
    policy = NamespacePolicy(owner=STRANGER, encryption_mode=encryption, tfhe_orch=orchestrated)
    header = unsigned
    if carried:
        reference = TFHESidecarRef(commitment=b"\x01" * 32, epoch=1)
        header = replace(unsigned, flags=FLAG_TFHE_SIDECAR, tfhe_sidecar=reference)

    assert sidecar_fits(policy, header) is fits
