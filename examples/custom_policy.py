"""A namespace with rules: only listed writers, signed by its owner.

python examples/custom_policy.py
"""

from __future__ import annotations

from luxrelay.bus import (
    Identity,
    IdentityType,
    NamespacePolicy,
    SignatureScheme,
    SigningKey,
    WritersMode,
    namespace_id,
    sender_address,
)


def main() -> None:
    """Make a policy, show its canonical bytes and hash, and read it back."""
    owner = SigningKey.from_seed(SignatureScheme.ED25519, b"\x01" * 32)
    friend = SigningKey.from_seed(SignatureScheme.ED25519, b"\x02" * 32)
    address = sender_address(owner.public_field)
    namespace = namespace_id(address, salt=b"\x07" * 32, block=1_000_000)
    writers = sorted(sender_address(key.public_field) for key in (owner, friend))

    policy = NamespacePolicy(
        owner=Identity(IdentityType.WALLET, address),
        writers_mode=WritersMode.ALLOWLIST,
        writers=tuple(Identity(IdentityType.WALLET, writer) for writer in writers),
        messages_per_second=10,
    )

    print("namespace  ", namespace.hex())
    print("policy     ", policy.encode().hex())
    print("policy hash", policy.policy_hash.hex())
    assert NamespacePolicy.decode(policy.encode()) == policy


if __name__ == "__main__":
    main()
