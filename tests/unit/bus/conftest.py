"""One header and one key that the bus tests share."""

import pytest

from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey

RFC8032_SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")


@pytest.fixture
def key() -> SigningKey:
    """The key of RFC 8032's first test."""
    return SigningKey.from_seed(SignatureScheme.ED25519, RFC8032_SEED)


@pytest.fixture
def unsigned() -> MsgHeader:
    """The header of vector V1 before it is signed."""
    return MsgHeader(
        namespace_id=NamespaceId(bytes(19) + b"\x01"),
        seq=1,
        timestamp=1_704_067_200_000,
        blob_commitment=bytes(32),
        blob_len=0,
        policy_hash=bytes.fromhex("abcd" + "00" * 28 + "1234"),
    )


@pytest.fixture
def signed(unsigned: MsgHeader, key: SigningKey) -> MsgHeader:
    """Vector V1."""
    return key.sign_header(unsigned)
