"""The TFHE sidecar's container."""

import hashlib
from dataclasses import replace

import pytest

from luxrelay.bus import (
    Code,
    MsgHeader,
    NamespaceId,
    SigningKey,
    TFHESidecar,
    TFHESidecarRef,
    VerdictKind,
    check_sidecar,
)
from luxrelay.bus.constants import FLAG_TFHE_SIDECAR
from luxrelay.bus.sidecar import (
    MAX_PROOF_BYTES,
    MAX_SIDECAR_BYTES,
    SIDECAR_OVERHEAD_BYTES,
    CiphertextType,
    header_binding,
)
from luxrelay.errors import BusArgumentError, SidecarError

EPOCH = 473_352


def build(header: MsgHeader, **changes: object) -> TFHESidecar:
    """Return a sidecar bound to ``header``."""
    binding = header_binding(header.namespace_id, header.seq, header.blob_commitment, EPOCH)
    fields: dict[str, object] = {
        "epoch": EPOCH,
        "ciphertext_type": CiphertextType.U64,
        "ciphertext": b"opaque",
        "binding": binding,
        "proof": b"proof",
        **changes,
    }
    return TFHESidecar(**fields)  # type: ignore[arg-type]


def refer(header: MsgHeader, sidecar: TFHESidecar, key: SigningKey) -> MsgHeader:
    """Return the header with a reference to ``sidecar``, signed."""
    carried = replace(header, flags=FLAG_TFHE_SIDECAR, tfhe_sidecar=sidecar.reference())
    return key.sign_header(carried)


def test_layout(unsigned: MsgHeader) -> None:
    """The container is version, epoch, type, length, ciphertext, binding, length, proof."""
    sidecar = build(unsigned)

    assert sidecar.encode() == b"".join(
        (
            b"\x01",
            EPOCH.to_bytes(8, "big"),
            b"\x06",
            (6).to_bytes(4, "big"),
            b"opaque",
            sidecar.binding,
            (5).to_bytes(2, "big"),
            b"proof",
        )
    )
    assert len(sidecar.encode()) == SIDECAR_OVERHEAD_BYTES + 6 + 5
    assert TFHESidecar.decode(sidecar.encode()) == sidecar


def test_binding_is_sha3_of_what_it_binds() -> None:
    """The binding is SHA3-256(namespace ‖ seq ‖ commitment ‖ epoch), big-endian (11-36)."""
    namespace, commitment = NamespaceId(b"\x22" * 20), b"\x33" * 32
    joined = namespace + (7).to_bytes(8, "big") + commitment + (9).to_bytes(8, "big")

    assert header_binding(namespace, 7, commitment, 9) == hashlib.sha3_256(joined).digest()


def test_accepts_what_the_header_refers_to(unsigned: MsgHeader, key: SigningKey) -> None:
    """The sidecar whose hash the header carries is the one (11-35)."""
    sidecar = build(unsigned)
    header = refer(unsigned, sidecar, key)

    assert header.tfhe_sidecar is not None
    assert header.tfhe_sidecar.commitment == hashlib.sha3_256(sidecar.encode()).digest()
    assert check_sidecar(header, sidecar.encode()).accepted


@pytest.mark.parametrize(
    "change",
    [
        {"namespace_id": NamespaceId(b"\x09" * 20)},
        {"seq": 2},
        {"blob_commitment": b"\x01" * 32, "blob_len": 1},
    ],
)
def test_reject_sidecar_of_another_header(
    unsigned: MsgHeader, key: SigningKey, change: dict[str, object]
) -> None:
    """Namespace, sequence and commitment are bound, each of them (11-36)."""
    sidecar = build(unsigned)
    other = refer(replace(unsigned, **change), sidecar, key)  # type: ignore[arg-type]

    verdict = check_sidecar(other, sidecar.encode())
    assert (verdict.kind, verdict.code) == (VerdictKind.REJECT, Code.SIDECAR_INVALID)
    assert "another header" in verdict.reason


def test_reject_other_epoch_bytes_and_reference(unsigned: MsgHeader, key: SigningKey) -> None:
    """The epoch, the hash and the reference itself are checked (11-35, 11-36)."""
    sidecar = build(unsigned)
    header = refer(unsigned, sidecar, key)
    reference = header.tfhe_sidecar
    assert reference is not None
    later = replace(
        header, tfhe_sidecar=TFHESidecarRef(commitment=reference.commitment, epoch=EPOCH + 1)
    )

    assert "epoch" in check_sidecar(later, sidecar.encode()).reason
    changed = build(unsigned, ciphertext=b"Opaque").encode()
    assert "sidecarCommitment" in check_sidecar(header, changed).reason
    assert "no sidecar" in check_sidecar(key.sign_header(unsigned), sidecar.encode()).reason
    assert check_sidecar(header, b"").code is Code.SIDECAR_INVALID


def test_reject_every_cut(unsigned: MsgHeader) -> None:
    """Cut anywhere, longer, of another version or type, it is no container."""
    data = build(unsigned).encode()

    for size in range(len(data)):
        with pytest.raises(SidecarError):
            TFHESidecar.decode(data[:size])
    for broken in (
        data + b"\x00",
        b"\x02" + data[1:],
        data[:9] + b"\x00" + data[10:],
        data[:9] + b"\x0b" + data[10:],
        data[:10] + bytes(4) + data[14:],
        data[:10] + b"\xff" * 4 + data[14:],
    ):
        with pytest.raises(SidecarError):
            TFHESidecar.decode(broken)


def test_two_mebibytes_and_no_more(unsigned: MsgHeader) -> None:
    """The largest container has 2 MiB, with the largest proof or without (S17)."""
    room = MAX_SIDECAR_BYTES - SIDECAR_OVERHEAD_BYTES
    largest = build(unsigned, ciphertext=bytes(room), proof=b"")

    assert len(TFHESidecar.decode(largest.encode()).encode()) == MAX_SIDECAR_BYTES
    assert build(unsigned, ciphertext=b"x", proof=bytes(MAX_PROOF_BYTES)).encode()
    with pytest.raises(BusArgumentError):
        build(unsigned, ciphertext=bytes(room + 1), proof=b"")
    with pytest.raises(SidecarError):
        TFHESidecar.decode(bytes(MAX_SIDECAR_BYTES + 1))


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1},
        {"epoch": 2**64},
        {"ciphertext": b""},
        {"binding": b""},
        {"proof": bytes(MAX_PROOF_BYTES + 1)},
    ],
)
def test_reject_argument(unsigned: MsgHeader, change: dict[str, object]) -> None:
    """A value without an encoding is the caller's error."""
    with pytest.raises(BusArgumentError):
        build(unsigned, **change)
