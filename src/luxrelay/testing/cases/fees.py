"""Fee vectors: each kind with its body, bound to a header; broken and moved ones.

Source: LP-6411 §2.9; 11-33, 11-34; decisions H3, H12, S6, S7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, sha3_commitment
from luxrelay.bus.fee import (
    FeeBody,
    FeeProof,
    OnChain,
    Prepaid,
    Stake,
    StateChannel,
    stake_leaf,
    stake_node,
    verify_digest,
)
from luxrelay.bus.policy import Identity, IdentityType
from luxrelay.errors import FeeError
from luxrelay.testing.cases.case import Case, Json
from luxrelay.testing.messages import BEGIN_MS, NAMESPACE, signing_key
from luxrelay.wire import from_hex, to_hex

NETWORK: Final = "vectors"
"""Network id under which every proof is signed."""

_PAYER: Final = signing_key(SignatureScheme.ED25519, 40)
_OTHER_PAYER: Final = signing_key(SignatureScheme.SECP256K1, 41)
_ISSUER: Final = signing_key(SignatureScheme.ED25519, 42)


def fee_bodies() -> Iterator[tuple[str, FeeBody]]:
    """Yield a body of each kind with its name."""
    quota = Prepaid(
        owner=Identity(IdentityType.RAW_KEY, _PAYER.public_field),
        namespace_id=NAMESPACE,
        messages=1000,
        bytes_total=1 << 20,
        expires_at=BEGIN_MS + 86_400_000,
        nonce=bytes(range(16)),
        issuer=_ISSUER.public_field,
    )
    yield "prepaid", quota.issued_by(_ISSUER, NETWORK)
    yield (
        "on-chain",
        OnChain(
            chain_id=96_369, contract=b"\xc0" * 20, tx_hash=b"\x7a" * 32, log_index=3, amount=10**18
        ),
    )
    yield (
        "state channel",
        StateChannel(channel_id=b"\xcc" * 32, cumulative=5 * 10**15).signed_by(_PAYER, NETWORK),
    )
    yield "stake", _stake()


def _stake() -> Stake:
    address = FeeProof(body=_NO_BODY, payer=_PAYER.public_field, signature=b"").payer_address
    assert address is not None
    until = BEGIN_MS + 86_400_000
    siblings = (hashlib.sha3_256(b"left").digest(), hashlib.sha3_256(b"right").digest())
    node = stake_node(siblings[0], stake_leaf(address, 5000, until))
    return Stake(
        amount=5000,
        valid_until=until,
        root=stake_node(node, siblings[1]),
        index=1,
        path=siblings,
    )


_NO_BODY: Final = OnChain(chain_id=0, contract=bytes(20), tx_hash=bytes(32), log_index=0, amount=0)


def paid(body: FeeBody, header: MsgHeader) -> bytes:
    """Return the feeProof field that pays for ``header``."""
    return FeeProof.signed(body, header, _PAYER, NETWORK).encode()


def _header(seq: int = 7) -> MsgHeader:
    blob = b"fee"
    unsigned = MsgHeader(
        namespace_id=NamespaceId(NAMESPACE),
        seq=seq,
        timestamp=BEGIN_MS,
        blob_commitment=sha3_commitment(blob),
        blob_len=len(blob),
        policy_hash=b"\x70" * 32,
    )
    return signing_key().sign_header(unsigned)


def files() -> Iterator[tuple[str, list[Case]]]:
    """Yield the files."""
    yield "valid-kinds", list(_valid_cases())
    yield "reject-structure", list(_broken_cases())
    yield "reject-binding", list(_moved_cases())


def _case(name: str, proof: bytes, header: MsgHeader, expect: Json) -> Case:
    given = {"feeProof": to_hex(proof), "header": to_hex(header.encode()), "network": NETWORK}
    return Case(name, given, expect)


def _valid_cases() -> Iterator[Case]:
    header = _header()
    good: Json = {"wellFormed": True, "bound": True}
    for name, body in fee_bodies():
        yield _case(name, paid(body, header), header, good)
        if not isinstance(body, StateChannel):
            proof = FeeProof.signed(body, header, _OTHER_PAYER, NETWORK)
            yield _case(f"{name}, secp256k1 payer", proof.encode(), header, good)
    quota = dict(fee_bodies())["prepaid"]
    assert isinstance(quota, Prepaid)
    for name, changed in (
        ("prepaid, seconds", replace(quota, version=1, expires_at=BEGIN_MS // 1000 + 86_400)),
        ("prepaid, any namespace", replace(quota, namespace_id=NamespaceId(bytes(20)))),
    ):
        yield _case(name, paid(changed.issued_by(_ISSUER, NETWORK), header), header, good)


def _broken_cases() -> Iterator[Case]:
    header = _header()
    bad: Json = {"wellFormed": False}
    for name, body in fee_bodies():
        proof = paid(body, header)
        for size in (1, 2, 3, 4, len(proof) // 2, len(proof) - 1):
            yield _case(f"{name}, cut at {size}", proof[:size], header, bad)
        yield _case(f"{name}, a byte after", proof + b"\x00", header, bad)
        yield _case(f"{name}, body version 9", proof[:1] + b"\x09" + proof[2:], header, bad)
        longer = (int.from_bytes(proof[2:4], "big") + 1).to_bytes(2, "big")
        yield _case(f"{name}, bodyLen + 1", proof[:2] + longer + proof[4:], header, bad)
    yield _case("kind 5", b"\x05" + paid(_NO_BODY, header)[1:], header, bad)
    yield _case("1,025 bytes", b"\x01" + bytes(1024), header, bad)


def _moved_cases() -> Iterator[Case]:
    header, other = _header(), _header(8)
    bad: Json = {"wellFormed": True, "bound": False}
    for name, body in fee_bodies():
        proof = paid(body, header)
        yield _case(f"{name}, on another header", proof, other, bad)
        yield _case(f"{name}, a bit of the signature", proof[:-2] + b"\x00\x00", header, bad)
        abroad = FeeProof.signed(body, header, _PAYER, "elsewhere").encode()
        yield _case(f"{name}, on another network", abroad, header, bad)


def answer(given: Json) -> Json:
    """Return kind, payer and signatures of a fee proof beside its header."""
    header = MsgHeader.decode(from_hex(given["header"]))
    network = given["network"]
    try:
        proof = FeeProof.decode(from_hex(given["feeProof"]))
    except FeeError:
        return {"wellFormed": False}
    address = proof.payer_address
    found: Json = {
        "wellFormed": True,
        "kind": int(proof.kind),
        "payerAddress": None if address is None else to_hex(address),
        "bindingDigest": to_hex(proof.binding_digest(header, network)),
        "bound": proof.bound_to(header, network),
    }
    body = proof.body
    if isinstance(body, Prepaid):
        quota = body.quota_hash(network)
        found["quotaHash"] = to_hex(quota)
        found["issued"] = verify_digest(body.issuer, quota, body.issuer_signature)
    elif isinstance(body, StateChannel):
        digest = body.voucher_digest(network)
        found["voucherDigest"] = to_hex(digest)
        found["voucher"] = verify_digest(proof.payer, digest, body.voucher_signature)
    elif isinstance(body, Stake) and address is not None:
        found["leadsToRoot"] = body.leads_to_root(address)
    return found
