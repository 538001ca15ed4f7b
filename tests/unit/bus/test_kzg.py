"""KZG commitments: how a payload is cut, what travels, what holds."""

import hashlib
import random
import sys
from pathlib import Path

import pytest

from luxrelay.bus import KzgCommitment, kzg_available, kzg_commit, verify_kzg
from luxrelay.bus import constants as c
from luxrelay.bus import kzg as kzg_module
from luxrelay.bus.kzg import (
    POLYNOMIAL_BYTES,
    POLYNOMIAL_PAYLOAD_BYTES,
    POLYNOMIALS_MAX,
    blob_to_polynomials,
    kzg_field,
    load_kzg_setup,
    polynomial_count,
    polynomials_to_blob,
)
from luxrelay.errors import BusArgumentError, CommitmentError, KzgUnavailableError

POINT = b"\xc0" + bytes(47)
"""The point at infinity, which zeros commit to."""
needs_extra = pytest.mark.skipif(not kzg_available(), reason="luxrelay[kzg] is not installed")


def payload(size: int) -> bytes:
    """Return random bytes, the same in each run."""
    return random.Random(size).randbytes(size)


def test_largest_blob_takes_17_polynomials() -> None:
    """2 MiB at 126,976 bytes a polynomial are 17 (H2)."""
    assert POLYNOMIAL_PAYLOAD_BYTES == 126_976
    assert POLYNOMIALS_MAX == polynomial_count(c.MAX_BLOB_BYTES) == 17


@pytest.mark.parametrize(
    ("size", "count"), [(1, 1), (31, 1), (32, 1), (126_976, 1), (126_977, 2), (2_097_152, 17)]
)
def test_payload_is_cut_and_put_together(size: int, count: int) -> None:
    """A payload has its polynomials and comes back from them (H2)."""
    blob = payload(size)

    cut = blob_to_polynomials(blob)

    assert len(cut) == count * POLYNOMIAL_BYTES
    assert polynomials_to_blob(cut, size) == blob


def test_elements_have_a_zero_byte_in_front() -> None:
    """31 payload bytes stand behind one zero byte; the last element is filled with zeros (H2)."""
    cut = blob_to_polynomials(bytes(range(1, 36)))

    assert cut[:32] == b"\0" + bytes(range(1, 32))
    assert cut[32:64] == b"\0" + bytes(range(32, 36)) + bytes(27)
    assert not any(cut[64:])


@pytest.mark.parametrize("place", [0, 32, POLYNOMIAL_BYTES - 32])
def test_reject_top_byte(place: int) -> None:
    """An element that begins with a byte above zero is refused (H2)."""
    cut = bytearray(blob_to_polynomials(payload(100)))
    cut[place] = 1

    with pytest.raises(CommitmentError, match="above zero"):
        polynomials_to_blob(bytes(cut), 100)


def test_reject_padding() -> None:
    """A byte behind the payload is refused: one payload has one form (H2)."""
    cut = blob_to_polynomials(payload(101))

    with pytest.raises(CommitmentError, match="padding"):
        polynomials_to_blob(cut, 100)


@pytest.mark.parametrize(
    ("cut", "size"),
    [
        (b"", 1),
        (bytes(POLYNOMIAL_BYTES - 1), 1),
        (bytes(2 * POLYNOMIAL_BYTES), 1),
        (bytes(POLYNOMIAL_BYTES), 126_977),
        (bytes(POLYNOMIAL_BYTES), 0),
        (bytes(18 * POLYNOMIAL_BYTES), c.MAX_BLOB_BYTES + 1),
    ],
)
def test_reject_polynomial_count(cut: bytes, size: int) -> None:
    """The number of polynomials follows from the length (H2)."""
    with pytest.raises(CommitmentError):
        polynomials_to_blob(cut, size)


@pytest.mark.parametrize("blob", [b"", bytes(c.MAX_BLOB_BYTES + 1)], ids=["empty", "long"])
def test_reject_blob_without_commitment(blob: bytes) -> None:
    """Nothing, and more than a blob may have, has no KZG commitment."""
    with pytest.raises(BusArgumentError, match="1 to 2097152"):
        blob_to_polynomials(blob)


@pytest.mark.parametrize("count", [1, 2, 17])
def test_container_round_trip(count: int) -> None:
    """The container is count, commitments, proofs, and comes back (H2)."""
    points = tuple(bytes([number]) * 48 for number in range(2 * count))
    value = KzgCommitment(commitments=points[:count], proofs=points[count:])

    data = value.encode()

    assert data == bytes([count]) + b"".join(points)
    assert KzgCommitment.decode(data) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\x01",
        b"\x01" + bytes(95),
        b"\x01" + bytes(97),
        b"\x02" + bytes(96),
        b"\x12" + bytes(96 * 18),
    ],
)
def test_reject_container(data: bytes) -> None:
    """Another count or length is a CommitmentError."""
    with pytest.raises(CommitmentError):
        KzgCommitment.decode(data)


@pytest.mark.parametrize(
    ("commitments", "proofs"),
    [((), ()), ((POINT,), ()), ((POINT,) * 18, (POINT,) * 18), ((b"",), (POINT,))],
)
def test_reject_commitment_value(commitments: tuple[bytes, ...], proofs: tuple[bytes, ...]) -> None:
    """A value that the container cannot hold is the caller's error."""
    with pytest.raises(BusArgumentError):
        KzgCommitment(commitments=commitments, proofs=proofs)


def test_field_is_the_versioned_hash() -> None:
    """One polynomial: EIP-4844's versioned hash, here of zeros; more: over all of them (H2)."""
    one = KzgCommitment(commitments=(POINT,), proofs=(POINT,))
    two = KzgCommitment(commitments=(POINT, POINT), proofs=(POINT, POINT))

    assert one.field.hex() == "010657f37554c781402a22917dee2f75def7ab966d7b770905398eba3c444014"
    assert two.field == b"\x01" + hashlib.sha256(POINT * 2).digest()[1:]


@needs_extra
@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 5_000, 130_000])
def test_commitment_verifies(size: int) -> None:
    """What was committed verifies by its proofs and by committing again (H2)."""
    blob = payload(size)

    made = kzg_commit(blob)

    assert len(made.commitments) == len(made.proofs) == polynomial_count(size)
    assert made.field == kzg_field(blob)
    assert verify_kzg(made.field, blob, KzgCommitment.decode(made.encode()))


@needs_extra
@pytest.mark.slow
def test_zeros_commit_to_infinity() -> None:
    """The zero polynomial has the known commitment; lengths differ in the header alone."""
    made = kzg_commit(bytes(10))

    assert made.commitments == made.proofs == (POINT,)
    assert kzg_field(bytes(11)) == made.field


@needs_extra
@pytest.mark.slow
def test_reject_what_does_not_match() -> None:
    """Another blob, field, commitment, proof or count does not verify and raises nothing."""
    blob = payload(130_000)
    made = kzg_commit(blob)
    first, second = made.commitments
    changed = bytes([blob[0] ^ 1]) + blob[1:]
    no_point = b"\xff" * 48

    def value(commitments: tuple[bytes, ...], proofs: tuple[bytes, ...]) -> KzgCommitment:
        return KzgCommitment(commitments=commitments, proofs=proofs)

    wrong = [
        value((second, first), made.proofs),
        value(made.commitments, made.proofs[::-1]),
        value(made.commitments, (made.proofs[0], POINT)),
        value(made.commitments, (made.proofs[0], no_point)),
        value((first, no_point), made.proofs),
        value((first,), made.proofs[:1]),
    ]
    for received in wrong:
        assert not verify_kzg(received.field, blob, received)
    assert not verify_kzg(made.field, changed, made)
    assert not verify_kzg(made.field, blob[:126_976], made)
    assert not verify_kzg(bytes(32), blob, made)
    assert not verify_kzg(made.field, b"", made)


@needs_extra
@pytest.mark.slow
def test_setup_loads_once() -> None:
    """The setup of the ceremony is loaded by the first who needs it and kept."""
    load_kzg_setup()
    before = kzg_module._load.cache_info().misses
    load_kzg_setup()

    assert kzg_module._load.cache_info().misses == before


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra a call says what to install."""
    monkeypatch.setitem(sys.modules, "ckzg", None)
    monkeypatch.setattr(kzg_module, "_load", kzg_module._load.__wrapped__)

    assert not kzg_available()
    with pytest.raises(KzgUnavailableError, match=r"luxrelay\[kzg\]"):
        kzg_commit(b"x")


@needs_extra
def test_refuse_another_setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A setup that is not the ceremony's is refused before it is used."""
    path = tmp_path / "setup.txt"
    path.write_text("4096\n65\n")
    monkeypatch.setattr(kzg_module, "_setup_path", lambda: path)

    with pytest.raises(KzgUnavailableError, match="not the setup of the ceremony"):
        kzg_module._load.__wrapped__()
    path.unlink()
    with pytest.raises(KzgUnavailableError, match="does not load"):
        kzg_module._load.__wrapped__()
