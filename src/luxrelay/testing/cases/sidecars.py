"""Sidecar vectors: the container, its binding to a header, and broken ones.

Source: LP-6411 §2.10, LP-6470; 11-35, 11-36; decisions H3, S17.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from luxrelay.bus import MsgHeader, NamespaceId, sha3_commitment
from luxrelay.bus import constants as c
from luxrelay.bus.sidecar import CiphertextType, TFHESidecar, check_sidecar, header_binding
from luxrelay.errors import SidecarError
from luxrelay.testing.cases.case import Case, Json
from luxrelay.testing.messages import BEGIN_MS, NAMESPACE, signing_key
from luxrelay.wire import from_hex, to_hex

_EPOCH = 473_352


def _sidecar(kind: CiphertextType = CiphertextType.U8, proof: bytes = b"") -> TFHESidecar:
    return TFHESidecar(
        epoch=_EPOCH,
        ciphertext_type=kind,
        ciphertext=b"\xc1\x9e" * 20,
        binding=header_binding(NAMESPACE, 7, sha3_commitment(b"sidecar"), _EPOCH),
        proof=proof,
    )


def _header(sidecar: TFHESidecar) -> MsgHeader:
    unsigned = MsgHeader(
        namespace_id=NAMESPACE,
        seq=7,
        timestamp=BEGIN_MS,
        blob_commitment=sha3_commitment(b"sidecar"),
        blob_len=7,
        policy_hash=b"\x70" * 32,
        flags=c.FLAG_TFHE_SIDECAR,
        tfhe_sidecar=sidecar.reference(),
    )
    return signing_key().sign_header(unsigned)


def files() -> Iterator[tuple[str, list[Case]]]:
    """Yield the files."""
    yield "valid-types", list(_valid_cases())
    yield "reject-structure", list(_broken_cases())
    yield "reject-binding", list(_moved_cases())


def _case(name: str, data: bytes, header: MsgHeader, expect: Json) -> Case:
    return Case(name, {"sidecar": to_hex(data), "header": to_hex(header.encode())}, expect)


def _valid_cases() -> Iterator[Case]:
    good: Json = {"wellFormed": True, "belongs": True}
    for kind in CiphertextType:
        sidecar = _sidecar(kind)
        yield _case(kind.name.lower(), sidecar.encode(), _header(sidecar), good)
    sidecar = _sidecar(proof=b"\x9f" * 100)
    yield _case("with a proof", sidecar.encode(), _header(sidecar), good)


def _broken_cases() -> Iterator[Case]:
    sidecar = _sidecar(proof=b"\x9f" * 4)
    data, header = sidecar.encode(), _header(sidecar)
    bad: Json = {"wellFormed": False}
    for size in (0, 1, 9, 13, 14, 53, 54, 85, 87, len(data) - 1):
        yield _case(f"cut at {size}", data[:size], header, bad)
    for name, changed in (
        ("a byte after", data + b"\x00"),
        ("version 0", b"\x00" + data[1:]),
        ("version 2", b"\x02" + data[1:]),
        ("type 0", data[:9] + b"\x00" + data[10:]),
        ("type 11", data[:9] + b"\x0b" + data[10:]),
        ("ciphertextLen 0", data[:10] + bytes(4) + data[14:]),
        ("ciphertextLen above 2 MiB", data[:10] + b"\x00\x20\x00\x01" + data[14:]),
        ("ciphertextLen 2^32 - 1", data[:10] + b"\xff" * 4 + data[14:]),
        ("proofLen 65535", data[:86] + b"\xff\xff" + data[88:]),
    ):
        yield _case(name, changed, header, bad)


def _moved_cases() -> Iterator[Case]:
    sidecar = _sidecar()
    data, header = sidecar.encode(), _header(sidecar)
    bad: Json = {"wellFormed": True, "belongs": False}
    other_epoch = replace(
        sidecar,
        epoch=_EPOCH + 1,
        binding=header_binding(NAMESPACE, 7, header.blob_commitment, _EPOCH + 1),
    )
    for name, given, beside in (
        ("another ciphertext", replace(sidecar, ciphertext=b"\x00").encode(), header),
        ("another sequence", data, replace(header, seq=8)),
        ("another namespace", data, replace(header, namespace_id=NamespaceId(b"\x23" * 20))),
        ("another blob", data, replace(header, blob_commitment=b"\x01" * 32)),
        ("another epoch", other_epoch.encode(), header),
        ("binding of zeros", replace(sidecar, binding=bytes(32)).encode(), header),
        ("a header without sidecar", data, replace(header, flags=0, tfhe_sidecar=None)),
    ):
        yield _case(name, given, beside, bad)


def answer(given: Json) -> Json:
    """Return the fields of a sidecar and whether it belongs to the header."""
    data, header = from_hex(given["sidecar"]), MsgHeader.decode(from_hex(given["header"]))
    try:
        sidecar = TFHESidecar.decode(data)
    except SidecarError:
        return {"wellFormed": False}
    return {
        "wellFormed": True,
        "epoch": sidecar.epoch,
        "ciphertextType": int(sidecar.ciphertext_type),
        "ciphertext": to_hex(sidecar.ciphertext),
        "binding": to_hex(sidecar.binding),
        "proof": to_hex(sidecar.proof),
        "commitment": to_hex(hashlib.sha3_256(data).digest()),
        "headerBinding": to_hex(
            header_binding(header.namespace_id, header.seq, header.blob_commitment, sidecar.epoch)
        ),
        "belongs": check_sidecar(header, data).accepted,
    }
