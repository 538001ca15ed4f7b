"""Valid messages in a line, and every way to break a header.

Source: LP-6411 §1.2, §3.1, §5; decisions H1–H12, H32, S6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple

from luxrelay.bus import (
    Code,
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    TFHESidecarRef,
    sha3_commitment,
)
from luxrelay.bus import constants as c
from luxrelay.bus.namespace import topic_namespace
from luxrelay.bus.policy import default_policy
from luxrelay.bus.schemes import SCHEMES

BEGIN_MS: Final = 1_704_067_200_000
"""2024-01-01T00:00:00Z: when lines begin unless told otherwise."""
NAMESPACE: Final = topic_namespace("/testing/1/line")
"""Where lines run unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMessage:
    """A signed header and the blob it commits to."""

    header: MsgHeader
    """The header."""
    blob: bytes
    """The blob; may be empty."""


def signing_key(scheme: SignatureScheme = SignatureScheme.ED25519, number: int = 1) -> SigningKey:
    """Return the key of a scheme and a number: the same one always."""
    seed = bytes([scheme, number % 256]) * 32
    size = 64 if scheme is SignatureScheme.HYBRID_ED25519_ML_DSA_65 else 32
    return SigningKey.from_seed(scheme, seed[:size])


def message_line(
    count: int,
    *,
    key: SigningKey | None = None,
    namespace_id: NamespaceId = NAMESPACE,
    first_seq: int = 1,
    first_ms: int = BEGIN_MS,
    step_ms: int = 1000,
    blob: Callable[[int], bytes] = lambda seq: b"message %d" % seq,
) -> Iterator[SampleMessage]:
    """Yield valid messages of one sender, sequence after sequence.

    Args:
        count: How many.
        key: Who signs; `signing_key` when not given.
        namespace_id: Where; the policy is the namespace's default one.
        first_seq: Sequence number of the first.
        first_ms: Timestamp of the first, Unix milliseconds.
        step_ms: Milliseconds from one to the next.
        blob: Sequence number to blob.

    """
    signer = key or signing_key()
    policy_hash = default_policy(namespace_id).policy_hash
    for place in range(count):
        body = blob(first_seq + place)
        header = MsgHeader(
            namespace_id=namespace_id,
            seq=first_seq + place,
            timestamp=first_ms + place * step_ms,
            blob_commitment=sha3_commitment(body),
            blob_len=len(body),
            policy_hash=policy_hash,
        )
        yield SampleMessage(header=signer.sign_header(header), blob=body)


def shaped_header(scheme: int, *, sidecar: bool = False, fee_proof: bytes = b"\x00") -> MsgHeader:
    """Return a header with the lengths and flags of a scheme; its key and signature are filler."""
    spec = SCHEMES[scheme]
    reference = TFHESidecarRef(commitment=b"\x5c" * 32, epoch=473_352) if sidecar else None
    (message,) = message_line(1)
    return replace(
        message.header,
        flags=spec.flags | (c.FLAG_TFHE_SIDECAR if sidecar else 0),
        tfhe_sidecar=reference,
        sender_pub_key=bytes([scheme]) + b"\x6b" * (spec.key_field_bytes - 1),
        signature=b"\x51" * spec.signature_bytes,
        fee_proof=fee_proof,
    )


class Breakage(NamedTuple):
    """One way to break a header, and what the decoder must say of it."""

    name: str
    code: Code
    data: bytes


def _plain() -> MsgHeader:
    (message,) = message_line(1)
    return message.header


def _put(offset: int, value: bytes, header: MsgHeader | None = None) -> bytes:
    data = bytearray((header or _plain()).encode())
    data[offset : offset + len(value)] = value
    return bytes(data)


def _with(**changes: object) -> bytes:
    return replace(_plain(), **changes).encode()  # type: ignore[arg-type]  # fields of MsgHeader


def _cut(size: int) -> bytes:
    return _plain().encode()[:size]


def _fixed_breakages() -> Iterator[Breakage]:
    for size in (0, 1, 111):
        yield Breakage(f"{size} bytes", Code.HEADER_TOO_SHORT, _cut(size))
    yield Breakage("8,193 bytes", Code.HEADER_TOO_LONG, _plain().encode() + bytes(8193 - 210))
    yield Breakage("ML-DSA-87 with 861 bytes of fee", Code.HEADER_TOO_LONG, _over_the_total())
    for version in (0, 2, 255):
        yield Breakage(
            f"version {version}",
            Code.UNSUPPORTED_VERSION,
            _put(0, bytes([version])),
        )
    for flags in (0x10, 0x20, 0x40, 0x80, 0xF0, 0x11):
        yield Breakage(f"flags 0x{flags:02x}", Code.RESERVED_FLAGS, _put(1, bytes([flags])))
    for flags in (0x08, 0x09, 0x0A, 0x0B):
        yield Breakage(
            f"flags 0x{flags:02x}: hybrid without post-quantum",
            Code.FLAGS_COMBINATION,
            _put(1, bytes([flags])),
        )
    yield Breakage("namespace of zeros", Code.ZERO_NAMESPACE, _put(2, bytes(20)))
    yield Breakage("sequence 0", Code.ZERO_SEQUENCE, _put(22, bytes(8)))
    for length in (c.MAX_BLOB_BYTES + 1, c.MAX_U32):
        yield Breakage(f"blobLen {length}", Code.BLOB_TOO_LARGE, _with(blob_len=length))
    nothing = bytearray(c.EMPTY_SHA3_256)
    nothing[31] ^= 1
    keccak = bytes.fromhex("c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470")
    for name, value in (
        ("Keccak-256 of nothing", keccak),
        ("a bit off SHA3-256 of nothing", bytes(nothing)),
        ("ones", b"\xff" * 32),
    ):
        yield Breakage(
            f"no blob, commitment is {name}",
            Code.COMMITMENT_OF_NOTHING,
            _with(blob_len=0, blob_commitment=value),
        )
    for length in (1, c.MAX_BLOB_BYTES):
        yield Breakage(
            f"blobLen {length}, zero commitment",
            Code.ZERO_COMMITMENT,
            _with(blob_len=length, blob_commitment=bytes(32)),
        )


def _over_the_total() -> bytes:
    data = bytearray(shaped_header(4, fee_proof=b"\x01" + bytes(859)).encode())
    place = len(data) - 862
    data[place : place + 2] = (861).to_bytes(2, "big")
    return bytes(data) + b"\x00"


def _length_breakages() -> Iterator[Breakage]:
    for field, offset, code, limit in (
        ("keyLen", 106, Code.KEY_TOO_LONG, c.MAX_KEY_FIELD_BYTES),
        ("signatureLen", 141, Code.SIGNATURE_TOO_LONG, c.MAX_SIGNATURE_BYTES),
        ("feeLen", 207, Code.FEE_TOO_LONG, c.MAX_FEE_PROOF_BYTES),
    ):
        for length in (limit + 1, 0xFFFF):
            yield Breakage(
                f"{field} {length}",
                code,
                _put(offset, length.to_bytes(2, "big")),
            )
        yield Breakage(
            f"{field} at its limit and no such bytes",
            Code.TRUNCATED,
            _put(offset, limit.to_bytes(2, "big")),
        )
    for size in (112, 140, 141, 142, 143, 206, 207, 208, 209):
        yield Breakage(f"cut at {size}", Code.TRUNCATED, _cut(size))


def _scheme_breakages() -> Iterator[Breakage]:
    for scheme in (0, 6, 255):
        yield Breakage(
            f"sigType {scheme}",
            Code.UNKNOWN_SCHEME,
            _put(108, bytes([scheme])),
        )
    yield Breakage("empty key", Code.UNKNOWN_SCHEME, _with(sender_pub_key=b""))
    for number, spec in SCHEMES.items():
        name = spec.scheme.name
        for off in (-1, 1):
            key = bytes([number]) + b"\x6b" * (spec.key_field_bytes - 1 + off)
            yield Breakage(
                f"{name}, key of {len(key)} bytes",
                Code.KEY_LENGTH,
                replace(shaped_header(number), sender_pub_key=key).encode(),
            )
            size = spec.signature_bytes + off
            yield Breakage(
                f"{name}, signature of {size} bytes",
                Code.SIGNATURE_LENGTH,
                replace(shaped_header(number), signature=b"\x51" * size).encode(),
            )
        for flags in sorted({0x00, 0x04, 0x0C} - {spec.flags}):
            yield Breakage(
                f"{name}, flags 0x{flags:02x}",
                Code.FLAGS_SCHEME,
                replace(shaped_header(number), flags=flags).encode(),
            )
    yield Breakage("empty signature", Code.SIGNATURE_LENGTH, _with(signature=b""))


def _tail_breakages() -> Iterator[Breakage]:
    sidecar = shaped_header(1, sidecar=True)
    flag = bytes([c.FLAG_TFHE_SIDECAR])
    for name, code, broken in (
        ("empty feeProof", Code.FEE_EMPTY, _with(fee_proof=b"")),
        ("fee kind 0 with data", Code.FEE_NONE_WITH_DATA, _with(fee_proof=b"\x00\x00")),
        ("fee kind 0, 1,024 bytes", Code.FEE_NONE_WITH_DATA, _with(fee_proof=bytes(1024))),
        ("sidecar flag alone", Code.TRUNCATED, _put(1, flag)),
        ("sidecar a byte short", Code.TRUNCATED, sidecar.encode()[:-1]),
        ("sidecar without its flag", Code.TRAILING_BYTES, _plain().encode() + bytes(40)),
        ("a byte after the end", Code.TRAILING_BYTES, _plain().encode() + b"\x00"),
        ("a byte after the sidecar", Code.TRAILING_BYTES, sidecar.encode() + b"\x00"),
        ("two sidecars", Code.TRAILING_BYTES, sidecar.encode() + sidecar.encode()[-40:]),
    ):
        yield Breakage(name, code, broken)


def _double_breakages() -> Iterator[Breakage]:
    """Two rules at once: the first one of the table answers."""
    for name, code, broken in (
        ("short and of version 2", Code.HEADER_TOO_SHORT, b"\x02" + bytes(110)),
        ("version 2 with a reserved flag", Code.UNSUPPORTED_VERSION, _put(0, b"\x02\x80")),
        ("no namespace and no sequence", Code.ZERO_NAMESPACE, _put(2, bytes(28))),
        ("sequence 0, long key", Code.ZERO_SEQUENCE, _put(22, bytes(8), _odd_key())),
        ("keyLen 65535, trailing", Code.KEY_TOO_LONG, _put(106, b"\xff\xff") + b"\x00"),
        ("empty fee, trailing byte", Code.FEE_EMPTY, _with(fee_proof=b"") + b"\x00"),
        (
            "long key, empty fee",
            Code.KEY_LENGTH,
            replace(_odd_key(), fee_proof=b"").encode(),
        ),
    ):
        yield Breakage(f"both: {name}", code, broken)


def _odd_key() -> MsgHeader:
    return replace(_plain(), sender_pub_key=b"\x01" * 34)


@cache
def breakages() -> tuple[Breakage, ...]:
    """Return every structural rule broken in every way we know, each with its code."""
    return (
        *_fixed_breakages(),
        *_length_breakages(),
        *_scheme_breakages(),
        *_tail_breakages(),
        *_double_breakages(),
    )
