"""Bound signatures cover what the literal ones leave open."""

import hashlib
from dataclasses import replace

import pytest

from luxrelay.bus import MsgHeader, SignatureScheme, SigningKey, TFHESidecarRef, verify_header
from luxrelay.bus.bound import bound_hash, sign_header_bound, verify_header_bound
from luxrelay.bus.constants import FLAG_TFHE_SIDECAR
from luxrelay.errors import BusArgumentError

SIDECAR = TFHESidecarRef(commitment=b"\x07" * 32, epoch=5)


@pytest.fixture
def bound(unsigned: MsgHeader, key: SigningKey) -> MsgHeader:
    """A header with a fee proof and a sidecar reference, signed for the network ``closed``."""
    full = replace(
        unsigned, flags=FLAG_TFHE_SIDECAR, tfhe_sidecar=SIDECAR, fee_proof=b"\x01voucher"
    )
    return sign_header_bound(key, full, "closed")


@pytest.mark.parametrize("scheme", list(SignatureScheme))
def test_every_scheme_signs_bound(unsigned: MsgHeader, scheme: SignatureScheme) -> None:
    """A bound signature holds on its network and survives the wire (H3)."""
    header = sign_header_bound(SigningKey.generate(scheme), unsigned, "closed")

    assert verify_header_bound(MsgHeader.decode(header.encode()), "closed")


def test_what_is_signed_is_what_the_page_says(bound: MsgHeader) -> None:
    """The bytes of docs/reference/wire-formats.md, put together by hand (H3)."""
    raw = bound.encode()
    key = bound.sender_pub_key
    signed = hashlib.sha3_256(
        b"lux.header.bound.v1"
        + bytes([6])
        + b"closed"
        + raw[:106]
        + len(key).to_bytes(2, "big")
        + key
        + hashlib.sha3_256(b"\x01voucher").digest()
        + b"\x07" * 32
        + (5).to_bytes(8, "big")
    ).digest()

    assert bound_hash(bound, "closed") == signed


def test_not_on_another_network(bound: MsgHeader) -> None:
    """The same bytes are worth nothing on another network (H4)."""
    assert not verify_header_bound(bound, "devnet")


def test_modes_do_not_mix(bound: MsgHeader, signed: MsgHeader) -> None:
    """Neither mode takes the other's signature, so nothing can be downgraded (H3)."""
    assert not verify_header(bound)
    assert not verify_header_bound(signed, "closed")


@pytest.mark.parametrize(
    "change",
    [
        {"fee_proof": b"\x01voucheR"},
        {"fee_proof": b"\x00"},
        {"tfhe_sidecar": replace(SIDECAR, epoch=6)},
        {"tfhe_sidecar": replace(SIDECAR, commitment=bytes(32))},
        {"tfhe_sidecar": None, "flags": 0},
        {"seq": 2},
    ],
)
def test_nothing_can_be_swapped(bound: MsgHeader, change: dict[str, object]) -> None:
    """Fee proof and sidecar are covered, which the literal signature does not do (11-32)."""
    assert verify_header_bound(bound, "closed")
    assert not verify_header_bound(replace(bound, **change), "closed")


def test_key_is_covered(bound: MsgHeader) -> None:
    """The key field is under the hash, and one that is no key is False, not an exception."""
    other = replace(bound, sender_pub_key=SigningKey.generate().public_field)

    assert bound_hash(other, "closed") != bound_hash(bound, "closed")
    assert not verify_header_bound(other, "closed")
    assert not verify_header_bound(replace(bound, sender_pub_key=b"\x09"), "closed")


@pytest.mark.parametrize("network", ["", "A", "a b", "x" * 33])
def test_reject_network_name(bound: MsgHeader, network: str) -> None:
    """A name that could be read in two ways is the caller's error."""
    with pytest.raises(BusArgumentError):
        bound_hash(bound, network)
