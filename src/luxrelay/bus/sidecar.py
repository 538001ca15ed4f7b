"""The TFHE sidecar: its container and the checks that a relay can make.

    TFHESidecarV1 := version u8 ‖ epoch u64 ‖ ciphertextType u8 ‖ ciphertextLen u32 ‖ ciphertext
                     ‖ headerBinding 32 ‖ proofLen u16 ‖ proof

The ciphertext stays opaque: a relay holds no TFHE keys and judges no epoch (H23). It travels as an
ordinary blob under the hash that the header carries, so it has a blob's limit of 2 MiB, and a
u256 ciphertext of the largest kind does not fit (S17).

Source: LP-6411 §2.10, LP-6470, LP-6471; decisions H3, H22, H23, S17.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import IntEnum
from struct import Struct
from typing import Final

from luxrelay.bus.constants import FLAG_TFHE_SIDECAR, HASH_BYTES, MAX_BLOB_BYTES, MAX_U64
from luxrelay.bus.header import MsgHeader, NamespaceId, TFHESidecarRef
from luxrelay.bus.verdict import ACCEPTED, Code, Verdict, reject
from luxrelay.errors import BusArgumentError, SidecarError
from luxrelay.wire import ByteReader

SIDECAR_VERSION: Final = 1
"""The one version there is."""
SIDECAR_OVERHEAD_BYTES: Final = 48
"""Container bytes beside ciphertext and proof."""
MAX_SIDECAR_BYTES: Final = MAX_BLOB_BYTES
"""Longest container, inclusive (S17)."""
MAX_CIPHERTEXT_BYTES: Final = MAX_SIDECAR_BYTES - SIDECAR_OVERHEAD_BYTES
"""Longest ciphertext, without a proof."""
MAX_PROOF_BYTES: Final = 0xFFFF
"""Longest proof: its length is a u16."""

_HEAD: Final = Struct(">BQBI")
_U16: Final = Struct(">H")
_BINDING: Final = Struct(">20sQ32sQ")


class CiphertextType(IntEnum):
    """What is encrypted (LP-6470)."""

    BOOL = 1
    U4 = 2
    U8 = 3
    U16 = 4
    U32 = 5
    U64 = 6
    U128 = 7
    U160 = 8
    U256 = 9
    BYTES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TFHESidecar:
    """A sidecar's container.

    Raises:
        BusArgumentError: a value is out of range or the whole is above 2 MiB.

    """

    epoch: int
    """Epoch of the TFHE keys, u64."""
    ciphertext_type: CiphertextType
    """What is encrypted."""
    ciphertext: bytes
    """Opaque, 1 byte or more."""
    binding: bytes
    """`header_binding` of the header it belongs to, 32 bytes."""
    proof: bytes = b""
    """Opaque; empty when there is none."""

    def __post_init__(self) -> None:
        """Refuse what has no encoding."""
        if not 0 <= self.epoch <= MAX_U64:
            raise BusArgumentError("the epoch is a u64", where="TFHESidecar.epoch")
        if not self.ciphertext:
            raise BusArgumentError("the ciphertext is empty", where="TFHESidecar.ciphertext")
        if len(self.binding) != HASH_BYTES:
            raise BusArgumentError("the binding has 32 bytes", where="TFHESidecar.binding")
        if len(self.proof) > MAX_PROOF_BYTES:
            raise BusArgumentError("the proof's length is a u16", where="TFHESidecar.proof")
        size = SIDECAR_OVERHEAD_BYTES + len(self.ciphertext) + len(self.proof)
        if size > MAX_SIDECAR_BYTES:
            raise BusArgumentError(
                f"the sidecar would have {size} bytes, above {MAX_SIDECAR_BYTES}",
                where="TFHESidecar",
            )

    def encode(self) -> bytes:
        """Return the one encoding."""
        head = _HEAD.pack(SIDECAR_VERSION, self.epoch, self.ciphertext_type, len(self.ciphertext))
        tail = _U16.pack(len(self.proof)) + self.proof
        return b"".join((head, self.ciphertext, self.binding, tail))

    @classmethod
    def decode(cls, data: bytes) -> TFHESidecar:
        """Return the container that ``data`` encodes.

        Raises:
            SidecarError: too long, cut, trailing bytes, another version or an unknown type.

        """
        if len(data) > MAX_SIDECAR_BYTES:
            raise SidecarError(
                f"a sidecar has at most {MAX_SIDECAR_BYTES} bytes", where="TFHE sidecar"
            )
        reader = ByteReader(bytes(data), SidecarError, "TFHE sidecar")
        version, epoch, kind, length = _HEAD.unpack(reader.take(_HEAD.size))
        if version != SIDECAR_VERSION:
            raise reader.fail("version is not 1")
        if not CiphertextType.BOOL <= kind <= CiphertextType.BYTES:
            raise reader.fail(f"ciphertext type {kind} is none of 1 to 10")
        if not length:
            raise reader.fail("the ciphertext is empty")
        ciphertext, binding = reader.take(length), reader.take(HASH_BYTES)
        proof = reader.take(reader.u16())
        reader.end()
        return cls(
            epoch=epoch,
            ciphertext_type=CiphertextType(kind),
            ciphertext=ciphertext,
            binding=binding,
            proof=proof,
        )

    def reference(self) -> TFHESidecarRef:
        """Return what the header carries: the hash of the container, and the epoch."""
        return TFHESidecarRef(commitment=hashlib.sha3_256(self.encode()).digest(), epoch=self.epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class TFHECiphertext:
    """What a sender encrypts beside a message; `attach_sidecar` makes the sidecar of it."""

    type: CiphertextType
    """What is encrypted."""
    data: bytes
    """Opaque, 1 byte or more."""
    epoch: int | None = None
    """Epoch of the TFHE keys; None for the hour of the header (H24)."""
    proof: bytes = b""
    """Opaque; empty when there is none."""


def attach_sidecar(header: MsgHeader, ciphertext: TFHECiphertext) -> tuple[MsgHeader, bytes]:
    """Return an unsigned header that refers to a sidecar, and the sidecar, bound to it.

    Raises:
        BusArgumentError: the sidecar would be too long, or a value is out of range.

    Source: LP-6411 §2.10, LP-6470.

    """
    epoch = header.epoch if ciphertext.epoch is None else ciphertext.epoch
    sidecar = TFHESidecar(
        epoch=epoch,
        ciphertext_type=ciphertext.type,
        ciphertext=ciphertext.data,
        binding=header_binding(header.namespace_id, header.seq, header.blob_commitment, epoch),
        proof=ciphertext.proof,
    )
    flags = header.flags | FLAG_TFHE_SIDECAR
    return replace(header, flags=flags, tfhe_sidecar=sidecar.reference()), sidecar.encode()


def header_binding(
    namespace_id: NamespaceId, seq: int, blob_commitment: bytes, epoch: int
) -> bytes:
    """Return SHA3-256(namespaceId ‖ seq ‖ blobCommitment ‖ epoch), big-endian (LP-6470)."""
    joined = _BINDING.pack(namespace_id, seq, blob_commitment, epoch)
    return hashlib.sha3_256(joined).digest()


def check_sidecar(header: MsgHeader, data: bytes) -> Verdict:
    """Say whether ``data`` is the sidecar that ``header`` refers to.

    Form and binding come before the hash, which reads up to 2 MiB.

    Returns:
        ACCEPT, or REJECT with ``SIDECAR_INVALID``.

    Source: LP-6411 §2.10, LP-6470; 11-35, 11-36.

    """
    reference = header.tfhe_sidecar
    if reference is None:
        return _invalid("the header refers to no sidecar")
    try:
        sidecar = TFHESidecar.decode(data)
    except SidecarError as error:
        return _invalid(f"{error.what}, {error.where}")
    if sidecar.epoch != reference.epoch:
        return _invalid("its epoch is not the header's")
    expected = header_binding(
        header.namespace_id, header.seq, header.blob_commitment, sidecar.epoch
    )
    if sidecar.binding != expected:
        return _invalid("it is bound to another header")
    if hashlib.sha3_256(data).digest() != reference.commitment:
        return _invalid("it is not what sidecarCommitment says")
    return ACCEPTED


def _invalid(what: str) -> Verdict:
    return reject(Code.SIDECAR_INVALID, f"TFHE sidecar: {what} (LP-6411 §2.10)")
