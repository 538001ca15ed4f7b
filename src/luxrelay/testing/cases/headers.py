"""Header vectors: every scheme with and without sidecar and with each fee kind; broken ones.

Signatures that come out the same every time, also of ML-DSA.

FIPS 204 signs hedged or deterministically. The library we sign with offers hedged only, so vectors
are signed by dilithium-py in deterministic mode; verifiers cannot tell the two apart. dilithium-py
is needed to write vectors, never to check them.

Source: LP-6411 §1–§5; decisions H1–H12, H26, H32, J11; 11-01 to 11-11, 11-27, 11-42 to 11-44; FIPS
204 §3.4; 11-50; decision H26.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final

from luxrelay.bus import (
    Code,
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    TFHESidecarRef,
    sha3_commitment,
    verify_header,
)
from luxrelay.bus import constants as c
from luxrelay.bus.schemes import SCHEMES, SIGNATURE_FLAGS
from luxrelay.errors import BusArgumentError, HeaderError
from luxrelay.testing.cases.case import Case, Json
from luxrelay.testing.cases.fees import fee_bodies, paid
from luxrelay.testing.messages import BEGIN_MS, NAMESPACE, breakages, signing_key
from luxrelay.wire import from_hex, to_hex

_ED25519_SIGNATURE = 64


def sign_header(header: MsgHeader, scheme: SignatureScheme) -> MsgHeader:
    """Return ``header`` with the flags, key and signature of the scheme's `signing_key`."""
    key = signing_key(scheme)
    flags = (header.flags & ~SIGNATURE_FLAGS) | SCHEMES[scheme].flags
    unsigned = replace(header, flags=flags, sender_pub_key=key.public_field)
    return replace(unsigned, signature=signature(scheme, unsigned.header_hash))


@cache
def signature(scheme: SignatureScheme, message: bytes) -> bytes:
    """Return the deterministic signature of the scheme's `signing_key` over 32 bytes."""
    key = signing_key(scheme)
    if scheme in {SignatureScheme.ED25519, SignatureScheme.SECP256K1}:
        return key.sign(message)
    if scheme is SignatureScheme.HYBRID_ED25519_ML_DSA_65:
        classical = SigningKey.from_seed(SignatureScheme.ED25519, key.seed[:32])
        return classical.sign(message) + _ml_dsa(SignatureScheme.ML_DSA_65, key.seed[32:], message)
    return _ml_dsa(scheme, key.seed, message)


def _ml_dsa(scheme: SignatureScheme, seed: bytes, message: bytes) -> bytes:
    # Only writing vectors needs it, and it has no types.
    from dilithium_py.ml_dsa import (  # type: ignore[import-untyped]  # noqa: PLC0415
        ML_DSA_65,
        ML_DSA_87,
    )

    algorithm = {SignatureScheme.ML_DSA_65: ML_DSA_65, SignatureScheme.ML_DSA_87: ML_DSA_87}[scheme]
    _, secret = algorithm.key_derive(seed)
    made: bytes = algorithm.sign(secret, message, deterministic=True)
    return made


RFC8032_SEED: Final = bytes.fromhex(
    "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
)
"""The secret key of RFC 8032's first test; public, of course."""


def vector_v1() -> MsgHeader:
    """Return vector V1, the header that LP-6411 describes and does not spell out (H35)."""
    unsigned = MsgHeader(
        namespace_id=NamespaceId(bytes(19) + b"\x01"),
        seq=1,
        timestamp=BEGIN_MS,
        blob_commitment=bytes(32),
        blob_len=0,
        policy_hash=bytes.fromhex("abcd" + "00" * 28 + "1234"),
    )
    key = SigningKey.from_seed(SignatureScheme.ED25519, RFC8032_SEED)
    return key.sign_header(unsigned)


def base_header(*, sidecar: bool = False) -> MsgHeader:
    """Return the unsigned header from which the valid ones are made."""
    blob = b"a blob of twenty-four by"
    reference = TFHESidecarRef(commitment=b"\x5c" * 32, epoch=473_352) if sidecar else None
    return MsgHeader(
        namespace_id=NAMESPACE,
        seq=7,
        timestamp=BEGIN_MS,
        blob_commitment=sha3_commitment(blob),
        blob_len=len(blob),
        policy_hash=b"\x70" * 32,
        flags=c.FLAG_TFHE_SIDECAR if sidecar else 0,
        tfhe_sidecar=reference,
    )


def files() -> Iterator[tuple[str, list[Case]]]:
    """Yield the files."""
    yield "valid-v1", [_valid("V1", vector_v1())]
    for scheme in SignatureScheme:
        name = scheme.name.lower().replace("_", "-")
        yield f"valid-{name}", list(_scheme_cases(scheme))
    yield "valid-limits", list(_limit_cases())
    yield (
        "reject-structure",
        [
            Case(b.name, {"header": to_hex(b.data)}, {"wellFormed": False, "code": int(b.code)})
            for b in breakages()
        ],
    )
    yield "reject-signature", list(_forged_cases())


def _valid(name: str, header: MsgHeader) -> Case:
    return Case(name, {"header": to_hex(header.encode())}, {"wellFormed": True, "signature": True})


def _scheme_cases(scheme: SignatureScheme) -> Iterator[Case]:
    for sidecar in (False, True):
        signed = sign_header(base_header(sidecar=sidecar), scheme)
        tail = ", sidecar" if sidecar else ""
        yield _valid(f"no fee{tail}", signed)
        for name, body in fee_bodies():
            yield _valid(f"fee {name}{tail}", replace(signed, fee_proof=paid(body, signed)))


def _limit_cases() -> Iterator[Case]:
    base = base_header()
    nothing = replace(base, blob_len=0, blob_commitment=bytes(32))
    epoch = TFHESidecarRef(commitment=b"\x5c" * 32, epoch=c.MAX_U64)
    largest = sign_header(base, SignatureScheme.ML_DSA_87)
    for name, header in (
        ("largest sequence", replace(base, seq=c.MAX_U64)),
        ("sequence above 2^53", replace(base, seq=2**53 + 1)),
        ("largest timestamp", replace(base, timestamp=c.MAX_U64)),
        ("timestamp 0", replace(base, timestamp=0)),
        ("largest blob", replace(base, blob_len=c.MAX_BLOB_BYTES)),
        ("no blob, zero commitment", nothing),
        ("no blob, SHA3-256 of nothing", replace(nothing, blob_commitment=c.EMPTY_SHA3_256)),
        ("a KZG commitment", replace(base, flags=c.FLAG_KZG_COMMITMENT)),
        ("largest epoch", replace(base, flags=c.FLAG_TFHE_SIDECAR, tfhe_sidecar=epoch)),
        ("largest fee proof", replace(base, fee_proof=b"\x01" + bytes(1023))),
        ("unknown fee kind", replace(base, fee_proof=b"\x05")),
    ):
        yield _valid(name, sign_header(header, SignatureScheme.ED25519))
    yield _valid("8,192 bytes", replace(largest, fee_proof=b"\x01" + bytes(859)))


def _forged_cases() -> Iterator[Case]:
    for scheme in SignatureScheme:
        good = sign_header(base_header(), scheme)
        flipped = bytearray(good.signature)
        flipped[-1] ^= 0x80 if scheme is SignatureScheme.ED25519 else 0x01
        halves = {"a bit of the signature": replace(good, signature=bytes(flipped))}
        if scheme is SignatureScheme.HYBRID_ED25519_ML_DSA_65:
            first = bytes([good.signature[0] ^ 1]) + good.signature[1:]
            halves["a bit of the Ed25519 half"] = replace(good, signature=first)
        halves["another sequence"] = replace(good, seq=good.seq + 1)
        halves["zeros"] = replace(good, signature=bytes(len(good.signature)))
        for name, header in halves.items():
            yield Case(
                f"{scheme.name}: {name}",
                {"header": to_hex(header.encode())},
                {"wellFormed": True, "signature": False, "code": int(Code.INVALID_SIGNATURE)},
            )
    curve = sign_header(base_header(), SignatureScheme.SECP256K1)
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    high = order - int.from_bytes(curve.signature[32:], "big")
    small = b"\x01" + b"\x01" + bytes(31)
    for name, header in (
        ("SECP256K1: high S", replace(curve, signature=_half(curve) + high.to_bytes(32, "big"))),
        ("SECP256K1: no point", replace(curve, sender_pub_key=b"\x02\x02" + b"\xff" * 32)),
        ("SECP256K1: prefix 4", replace(curve, sender_pub_key=b"\x02\x04" + b"\x11" * 32)),
        (
            "ED25519: small-order key",
            replace(
                sign_header(base_header(), SignatureScheme.ED25519),
                sender_pub_key=small,
                signature=b"\x01" + bytes(63),
            ),
        ),
    ):
        yield Case(
            name, {"header": to_hex(header.encode())}, {"wellFormed": True, "signature": False}
        )


def _half(header: MsgHeader) -> bytes:
    return header.signature[:32]


def answer(given: Json) -> Json:
    """Return structure, hashes, JSON form and signature of a header."""
    try:
        header = MsgHeader.decode(from_hex(given["header"]))
    except HeaderError as error:
        return {"wellFormed": False, "code": error.verdict_code}
    try:
        address = to_hex(header.sender_address)
    except BusArgumentError:
        address = None
    holds = verify_header(header)
    return {
        "wellFormed": True,
        "code": int(Code.OK if holds else Code.INVALID_SIGNATURE),
        "signature": holds,
        "headerHash": to_hex(header.header_hash),
        "digest": to_hex(header.digest),
        "messageId": to_hex(header.message_id),
        "contentId": to_hex(header.content_id),
        "senderAddress": address,
        "json": header.to_json(),
    }
