"""Every case of the Wycheproof suites beside the checkout, through our verifying functions."""

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric import mldsa

from luxrelay.bus import SignatureScheme, VerifyKey
from luxrelay.bus.keys import SECP256K1_ORDER
from luxrelay.errors import KeyFormatError

Groups = Callable[[str], list[dict[str, Any]]]


class Case(NamedTuple):
    """One case of a suite in our terms."""

    field: bytes
    message: bytes
    signature: bytes
    context: bytes

    def holds(self) -> bool:
        """Return what a relay concludes: a key that does not parse verifies nothing."""
        try:
            return VerifyKey.from_field(self.field).verify(self.message, self.signature)
        except KeyFormatError:
            return False


def ed25519(group: dict[str, Any], case: dict[str, Any]) -> Case:
    """Return a case whose message is what is signed."""
    public = bytes.fromhex(group["publicKey"]["pk"])
    return read(SignatureScheme.ED25519, public, case)


def secp256k1(group: dict[str, Any], case: dict[str, Any]) -> Case:
    """Return a case of ECDSA with SHA-256: we sign digests, so the message is hashed first."""
    point = bytes.fromhex(group["publicKey"]["uncompressed"])
    found = read(SignatureScheme.SECP256K1, bytes([2 + point[-1] % 2]) + point[1:33], case)
    return found._replace(message=hashlib.sha256(found.message).digest())


def ml_dsa_65(group: dict[str, Any], case: dict[str, Any]) -> Case:
    """Return a case of ML-DSA-65."""
    return read(SignatureScheme.ML_DSA_65, bytes.fromhex(group["publicKey"]), case)


def ml_dsa_87(group: dict[str, Any], case: dict[str, Any]) -> Case:
    """Return a case of ML-DSA-87."""
    return read(SignatureScheme.ML_DSA_87, bytes.fromhex(group["publicKey"]), case)


def read(scheme: SignatureScheme, public: bytes, case: dict[str, Any]) -> Case:
    """Return a case as the suite has it."""
    message, signature = bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"])
    return Case(bytes([scheme]) + public, message, signature, bytes.fromhex(case.get("ctx", "")))


def has_high_s(case: Case) -> bool:
    """Return True when s is above n/2 and its low twin n - s is accepted."""
    s = int.from_bytes(case.signature[32:], "big")
    low = case.signature[:32] + (SECP256K1_ORDER - s).to_bytes(32, "big")
    return s > SECP256K1_ORDER // 2 and case._replace(signature=low).holds()


def has_context(case: Case) -> bool:
    """Return True when the signature holds under a context that is not empty."""
    kinds = {3: mldsa.MLDSA65PublicKey, 4: mldsa.MLDSA87PublicKey}
    key = kinds[case.field[0]].from_public_bytes(case.field[1:])
    key.verify(case.signature, case.message, case.context)
    return case.context != b""


STRICTER: dict[str, tuple[Callable[[Case], bool], str]] = {
    "high s": (
        has_high_s,
        "ECDSA holds for s and n - s alike: with s <= n/2 only, a signature has no twin (H25)",
    ),
    "context": (
        has_context,
        "our context is empty: a signature under another one is for another purpose (H26)",
    ),
}
"""Why we refuse what a suite calls valid: how to tell, and the reason."""

SUITES = [
    ("ed25519", ed25519, {"valid": 44, "invalid": 31}, {}),
    ("secp256k1_p1363", secp256k1, {"valid": 88, "invalid": 38}, {"high s": 38}),
    ("mldsa65_verify", ml_dsa_65, {"valid": 38, "invalid": 67}, {"context": 1}),
    ("mldsa87_verify", ml_dsa_87, {"valid": 37, "invalid": 83}, {"context": 1}),
]
"""Suite, reader, cases by result, and how many valid ones are refused for which reason."""


@pytest.mark.parametrize(
    ("name", "reader", "counts", "refused"), SUITES, ids=[row[0] for row in SUITES]
)
def test_agrees_with_suite(
    wycheproof: Groups,
    name: str,
    reader: Callable[[dict[str, Any], dict[str, Any]], Case],
    counts: dict[str, int],
    refused: dict[str, int],
) -> None:
    """Every case has the suite's result, save what a reason of ours refuses (11-29, 11-31)."""
    seen: Counter[str] = Counter()
    stricter: Counter[str] = Counter()
    for group in wycheproof(name):
        for raw in group["tests"]:
            case = reader(group, raw)
            seen[raw["result"]] += 1
            if raw["result"] == "valid" and not case.holds():
                reasons = [reason for reason in refused if STRICTER[reason][0](case)]
                stricter[reasons[0] if reasons else f"no reason for {raw['tcId']}"] += 1
            else:
                assert case.holds() == (raw["result"] == "valid"), raw["tcId"]

    assert seen == counts
    assert stricter == refused
