"""Whom a call comes from."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from luxrelay.bus import SignatureScheme, SigningKey
from luxrelay.bus.vouching import TAG_TLS, TLS_PROOF_MAX, vouch
from luxrelay.sync.rpc.callers import CHECKED_MAX, Caller, ProvenValidators, caller_of
from luxrelay.sync.rpc.tls import PROOF_METADATA
from luxrelay.testing.certificates import TestAuthority


@dataclass
class Context:
    """What gRPC tells of a call."""

    name: str
    auth: dict[str, list[bytes]] = field(default_factory=dict)
    metadata: tuple[tuple[str, bytes | str], ...] = ()

    def peer(self) -> str:
        """Return the peer as gRPC writes it."""
        return self.name

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return what has been proven."""
        return self.auth

    def invocation_metadata(self) -> tuple[tuple[str, bytes | str], ...]:
        """Return what came with the call."""
        return self.metadata


@pytest.mark.parametrize(
    ("peer", "caller"),
    [
        ("ipv4:203.0.113.9:5000", Caller("203.0.113.9", "", local=False)),
        ("ipv4:203.0.113.9:6000", Caller("203.0.113.9", "", local=False)),
        ("ipv6:%5B2001:db8::1%5D:5000", Caller("2001:db8::1", "", local=False)),
        ("ipv4:127.0.0.1:5000", Caller("127.0.0.1:5000", "", local=True)),
        ("ipv6:%5B::1%5D:5000", Caller("::1:5000", "", local=True)),
        ("unix:", Caller("unknown", "", local=False)),
        ("", Caller("unknown", "", local=False)),
    ],
)
def test_a_peer_is_an_address(peer: str, caller: Caller) -> None:
    """P34: connections of one address are one peer; on the loopback each is its own."""
    assert caller_of(Context(peer)) == caller  # type: ignore[arg-type]


def test_lasting_streams_of_a_site_share_their_places() -> None:
    """Who has one IPv6 network has one share of them; programs of this machine have their own."""
    peers = ("ipv6:%5B2001:db8::1%5D:5000", "ipv6:%5B2001:db8::2%5D:5000", "ipv4:203.0.113.9:5")
    shares = [caller_of(Context(peer)).share for peer in peers]  # type: ignore[arg-type]
    local = [caller_of(Context(f"ipv4:127.0.0.1:{port}")).share for port in (5, 6)]  # type: ignore[arg-type]

    assert shares == ["2001:db8::", "2001:db8::", "203.0.113.9"]
    assert local == ["127.0.0.1:5", "127.0.0.1:6"]


VALIDATOR = SigningKey.from_seed(SignatureScheme.ED25519, b"v" * 32)
MINE, OTHER = b"\x11" * 32, b"\x22" * 32
"""Fingerprints of TLS keys."""


def shown(key: bytes, proof: bytes) -> Caller:
    """Return a caller with a TLS key and a proof."""
    return Caller(f"key:{key.hex()}", key.hex() if key else "", local=False, proof=proof)


def test_a_proof_is_for_one_key() -> None:
    """21-41, P33: not for another TLS key, a key that is not listed, or nobody's certificate."""
    proof = vouch(VALIDATOR, TAG_TLS, MINE)
    validators = ProvenValidators({"33" * 32}, {VALIDATOR.public_field})

    for _ in range(2):  # the second time as remembered
        assert validators.has(shown(MINE, proof))
        assert not validators.has(shown(OTHER, proof))
    assert not validators.has(shown(b"", proof))
    assert not validators.has(shown(MINE, b""))
    assert not validators.has(shown(MINE, proof[:-1] + bytes([proof[-1] ^ 1])))
    assert not validators.has(shown(MINE, vouch(VALIDATOR, b"another use", MINE)))
    assert not ProvenValidators(set(), set()).has(shown(MINE, proof))
    assert validators.has(shown(b"\x33" * 32, b""))


def test_outcomes_are_remembered_to_a_bound() -> None:
    """Whoever shows many proofs takes no memory."""
    validators = ProvenValidators(set(), {VALIDATOR.public_field})
    proof = vouch(VALIDATOR, TAG_TLS, MINE)
    for n in range(CHECKED_MAX + 10):
        assert not validators.has(shown(n.to_bytes(32, "big"), proof))
    assert len(validators._checked) == CHECKED_MAX


def test_a_proof_is_read_from_the_call_of_a_proven_key_only() -> None:
    """As bytes of a bounded length; without a certificate nothing is looked at."""
    pair = TestAuthority("ca", at_ms=1_700_000_000_000).sign("client")
    proven = {"x509_pem_cert": [pair.certificate]}

    def proof(auth: dict[str, list[bytes]], *metadata: tuple[str, bytes | str]) -> bytes:
        context = Context("ipv4:203.0.113.9:5", auth, metadata)
        return caller_of(context).proof  # type: ignore[arg-type]

    assert proof(proven, ("user-agent", "x"), (PROOF_METADATA, b"proof")) == b"proof"
    assert proof(proven) == b""
    assert proof({}, (PROOF_METADATA, b"proof")) == b""
    assert proof(proven, (PROOF_METADATA, bytes(TLS_PROOF_MAX + 1))) == b""
