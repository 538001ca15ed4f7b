"""KZG commitments of a blob: the optional extra `luxrelay[kzg]`.

Theory of operation
-------------------
A payload is cut into field elements of 31 bytes, each behind one zero byte, the last one filled
up with zeros. 4,096 elements make a polynomial, so a polynomial holds 126,976 payload bytes and
a blob of 2 MiB takes 17. Each polynomial has a commitment of 48 bytes; the header's 32-byte field
is 0x01 ‖ SHA-256(C1 ‖ … ‖ Cn)[1:], which for one polynomial is EIP-4844's versioned hash.
A receiver who holds only the field must commit again; one who also gets the commitments and a
48-byte proof for each verifies them in one batch, 33 times faster. That is what travels with the
blob, in the container of `KzgCommitment`.

The libraries load at the first call, not with the bus, and so does the setup of the public
ceremony: 1.9 s in which the interpreter does nothing else. A process that must not pause calls
`load_kzg_setup` when it starts. ckzg holds the interpreter lock throughout: whoever has many
blobs to check runs this in a process of its own. The setup is the one file that the bus reads, a
constant of 800 KB whose SHA-256 stands below. A commitment hides nothing (S18): equal blobs have
equal commitments.

Source: LP-6411 §2.4; decisions H2, S18.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from luxrelay.bus import constants as c
from luxrelay.errors import BusArgumentError, CommitmentError, KzgUnavailableError

ELEMENT_PAYLOAD_BYTES: Final = 31
"""Payload bytes of a field element; the first byte is zero, so every element is in the field."""
POLYNOMIAL_ELEMENTS: Final = 4096
"""Field elements of a polynomial (EIP-4844)."""
POLYNOMIAL_BYTES: Final = 32 * POLYNOMIAL_ELEMENTS
POLYNOMIAL_PAYLOAD_BYTES: Final = ELEMENT_PAYLOAD_BYTES * POLYNOMIAL_ELEMENTS
"""Payload bytes of a polynomial: 126,976."""
POLYNOMIALS_MAX: Final = -(-c.MAX_BLOB_BYTES // POLYNOMIAL_PAYLOAD_BYTES)
"""Polynomials of the largest blob: 17."""
POINT_BYTES: Final = 48
"""A commitment, and a proof: one compressed point of BLS12-381."""
SETUP_SHA256: Final = "d39b9f2d047cc9dca2de58f264b6a09448ccd34db967881a6713eacacf0f26b7"
"""SHA-256 of the ceremony's setup file."""
_SETUP_FILE: Final = ("typed_transactions", "blob_transactions", "kzg_trusted_setup.txt")
_FIELD_VERSION: Final = b"\x01"


@dataclass(frozen=True, slots=True, kw_only=True)
class KzgCommitment:
    """What a sender computes over a blob and what travels with it.

    Raises:
        BusArgumentError: no polynomial, more than 17, or not one proof for each commitment.

    """

    commitments: tuple[bytes, ...]
    """One point a polynomial, 48 bytes each."""
    proofs: tuple[bytes, ...]
    """One proof a polynomial, 48 bytes each."""

    def __post_init__(self) -> None:
        """Refuse what the container cannot hold."""
        if not 1 <= len(self.commitments) <= POLYNOMIALS_MAX:
            raise BusArgumentError(
                f"a blob has 1 to {POLYNOMIALS_MAX} commitments", where="KzgCommitment.commitments"
            )
        if len(self.proofs) != len(self.commitments):
            raise BusArgumentError("one proof a commitment", where="KzgCommitment.proofs")
        if any(len(point) != POINT_BYTES for point in (*self.commitments, *self.proofs)):
            raise BusArgumentError(f"a point has {POINT_BYTES} bytes", where="KzgCommitment")

    @property
    def field(self) -> bytes:
        """The 32 bytes of blobCommitment (H2)."""
        return _field(self.commitments)

    def encode(self) -> bytes:
        """Return the container: count (1 byte) ‖ commitments ‖ proofs, 1 + 96 n bytes."""
        return b"".join((bytes([len(self.commitments)]), *self.commitments, *self.proofs))

    @classmethod
    def decode(cls, data: bytes) -> KzgCommitment:
        """Return the commitments and proofs of a container.

        Raises:
            CommitmentError: the count is none of 1 to 17 or the length does not follow from it.
                Nothing else is raised; whether the points are points, `verify_kzg` says.

        """
        count = data[0] if data else 0
        if not 1 <= count <= POLYNOMIALS_MAX:
            raise CommitmentError(
                f"the count is not from 1 to {POLYNOMIALS_MAX}", where="KZG container"
            )
        if len(data) != 1 + 2 * POINT_BYTES * count:
            raise CommitmentError(
                f"{count} polynomials take {1 + 2 * POINT_BYTES * count} bytes, found {len(data)}",
                where="KZG container",
            )
        points = tuple(bytes(data[i : i + POINT_BYTES]) for i in range(1, len(data), POINT_BYTES))
        return cls(commitments=points[:count], proofs=points[count:])


def kzg_available() -> bool:
    """Return True when the extra is installed; nothing is loaded."""
    return find_spec("ckzg") is not None and find_spec("eth_account") is not None


def polynomial_count(blob_len: int) -> int:
    """Return how many polynomials a blob of ``blob_len`` bytes takes."""
    return -(-blob_len // POLYNOMIAL_PAYLOAD_BYTES)


def blob_to_polynomials(blob: bytes) -> bytes:
    """Return the polynomials of a payload, one after the other, 131,072 bytes each.

    Raises:
        BusArgumentError: the blob is empty or above 2 MiB.

    """
    if not 1 <= len(blob) <= c.MAX_BLOB_BYTES:
        raise BusArgumentError(
            f"a blob with a KZG commitment has 1 to {c.MAX_BLOB_BYTES} bytes", where="blob"
        )
    count = polynomial_count(len(blob))
    padded = blob.ljust(count * POLYNOMIAL_PAYLOAD_BYTES, b"\0")
    data = bytearray(count * POLYNOMIAL_BYTES)
    for position in range(ELEMENT_PAYLOAD_BYTES):  # one column of all elements at a time
        data[position + 1 :: 32] = padded[position::ELEMENT_PAYLOAD_BYTES]
    return bytes(data)


def polynomials_to_blob(data: bytes, blob_len: int) -> bytes:
    """Return the payload of ``blob_len`` bytes that polynomials of another party hold.

    One payload has one form: the number of polynomials follows from the length, the first byte of
    each element is zero, and so is everything after the payload.

    Raises:
        CommitmentError: one of these does not hold.

    Source: H2.

    """
    if not 1 <= blob_len <= c.MAX_BLOB_BYTES:
        raise CommitmentError(f"a blob has 1 to {c.MAX_BLOB_BYTES} bytes", where="polynomials")
    count = polynomial_count(blob_len)
    if len(data) != count * POLYNOMIAL_BYTES:
        raise CommitmentError(
            f"{blob_len} bytes take {count} polynomials of {POLYNOMIAL_BYTES} bytes",
            where="polynomials",
        )
    if any(data[::32]):
        raise CommitmentError("an element begins with a byte above zero", where="polynomials")
    padded = bytearray(count * POLYNOMIAL_PAYLOAD_BYTES)
    for position in range(ELEMENT_PAYLOAD_BYTES):
        padded[position::ELEMENT_PAYLOAD_BYTES] = data[position + 1 :: 32]
    if any(padded[blob_len:]):
        raise CommitmentError("the padding is not zero", where="polynomials")
    return bytes(padded[:blob_len])


def kzg_commit(blob: bytes) -> KzgCommitment:
    """Return the commitments and proofs of ``blob``; about 60 ms a polynomial.

    Raises:
        BusArgumentError: the blob is empty or above 2 MiB.
        KzgUnavailableError: the extra is not installed or its setup is not the ceremony's.

    """
    polynomials = _cut(blob_to_polynomials(blob))
    ckzg, setup = _load()
    commitments = tuple(ckzg.blob_to_kzg_commitment(each, setup) for each in polynomials)
    proofs = tuple(
        ckzg.compute_blob_kzg_proof(each, point, setup)
        for each, point in zip(polynomials, commitments, strict=True)
    )
    return KzgCommitment(commitments=commitments, proofs=proofs)


def kzg_field(blob: bytes) -> bytes:
    """Return the blobCommitment of ``blob`` without proofs; about 50 ms a polynomial.

    Raises:
        BusArgumentError: the blob is empty or above 2 MiB.
        KzgUnavailableError: the extra is not installed or its setup is not the ceremony's.

    """
    polynomials = _cut(blob_to_polynomials(blob))
    ckzg, setup = _load()
    return _field(tuple(ckzg.blob_to_kzg_commitment(each, setup) for each in polynomials))


def verify_kzg(field: bytes, blob: bytes, received: KzgCommitment) -> bool:
    """Return True when ``blob`` is what ``field`` commits to, by the proofs that came with it.

    The field must follow from the commitments, their number from the length of the blob, and all
    proofs must hold together; about 1.5 ms a polynomial.

    Raises:
        KzgUnavailableError: the extra is not installed or its setup is not the ceremony's.

    Source: LP-6411 §2.4, H2.

    """
    if received.field != field or polynomial_count(len(blob)) != len(received.commitments):
        return False
    ckzg, setup = _load()
    try:
        holds = ckzg.verify_blob_kzg_proof_batch(
            blob_to_polynomials(blob),
            b"".join(received.commitments),
            b"".join(received.proofs),
            setup,
        )
    except (RuntimeError, ValueError):  # a point that is none
        return False
    return holds is True


def load_kzg_setup() -> None:
    """Have the ceremony's setup in memory; 1.9 s the first time, nothing after it.

    Raises:
        KzgUnavailableError: the extra is not installed or its setup is not the ceremony's.

    """
    _load()


class _Loaded(NamedTuple):
    ckzg: Any
    setup: object


@lru_cache(maxsize=1)
def _load() -> _Loaded:
    """Return the library and the setup; two threads at once load it twice and keep one."""
    path = _setup_path()
    try:
        ckzg = import_module("ckzg")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != SETUP_SHA256:
            raise KzgUnavailableError("this is not the setup of the ceremony", where=str(path))
        # 0: no tables for cell proofs, which nobody asks for here
        return _Loaded(ckzg, ckzg.load_trusted_setup(str(path), 0))
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise KzgUnavailableError(f"the setup does not load: {error}", where=str(path)) from error


def _setup_path() -> Path:
    """Return where eth-account keeps the setup, without running any of its code."""
    spec = find_spec("eth_account") if find_spec("ckzg") is not None else None
    if spec is None or not spec.submodule_search_locations:
        raise KzgUnavailableError("KZG commitments need luxrelay[kzg]")
    return Path(spec.submodule_search_locations[0]).joinpath(*_SETUP_FILE)


def _cut(polynomials: bytes) -> list[bytes]:
    return [
        polynomials[i : i + POLYNOMIAL_BYTES] for i in range(0, len(polynomials), POLYNOMIAL_BYTES)
    ]


def _field(commitments: tuple[bytes, ...]) -> bytes:
    return _FIELD_VERSION + hashlib.sha256(b"".join(commitments)).digest()[1:]
