"""Every structural rule, one test a rule."""

import tracemalloc
from dataclasses import replace

import pytest

from luxrelay.bus import Code, MsgHeader, SigningKey, TFHESidecarRef, VerdictKind
from luxrelay.bus import validate_structure as check
from luxrelay.bus.constants import FLAG_TFHE_SIDECAR, MAX_BLOB_BYTES
from luxrelay.bus.schemes import SCHEMES
from luxrelay.bus.structure import FIXED_RULES, REASONS, SPAN_RULES


def changed(header: MsgHeader, offset: int, value: bytes) -> bytes:
    """Return the header's bytes with some of them replaced."""
    data = bytearray(header.encode())
    data[offset : offset + len(value)] = value
    return bytes(data)


def test_accept_vector(signed: MsgHeader) -> None:
    """Vector V1 breaks no rule (test plan 1 of LP-6411)."""
    assert check(signed.encode()).accepted


def test_reject_header_above_8_kib(signed: MsgHeader) -> None:
    """The total is checked first, on the input's length (11-43, H10)."""
    assert check(signed.encode() + bytes(8192)).code is Code.HEADER_TOO_LONG


def test_reject_header_below_floor() -> None:
    """Fewer than 112 bytes are no header (11-06, H1)."""
    assert check(b"").code is Code.HEADER_TOO_SHORT
    assert check(b"\x01" + bytes(110)).code is Code.HEADER_TOO_SHORT


@pytest.mark.parametrize("version", [0, 2, 255])
def test_reject_version(signed: MsgHeader, version: int) -> None:
    """Any version but 1 is refused (11-07)."""
    assert check(changed(signed, 0, bytes([version]))).code is Code.UNSUPPORTED_VERSION


@pytest.mark.parametrize("bit", [4, 5, 6, 7])
def test_reject_reserved_flag(signed: MsgHeader, bit: int) -> None:
    """Each reserved bit alone is refused (11-08)."""
    assert check(changed(signed, 1, bytes([1 << bit]))).code is Code.RESERVED_FLAGS


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
@pytest.mark.parametrize("flags", range(16))
def test_flags_fit_scheme(unsigned: MsgHeader, scheme: int, flags: int) -> None:
    """Of 16 flag values each scheme admits those with exactly its signature bits (11-09)."""
    spec = SCHEMES[scheme]
    sidecar = TFHESidecarRef(commitment=bytes(32), epoch=1) if flags & 1 else None
    header = replace(
        unsigned,
        flags=flags,
        tfhe_sidecar=sidecar,
        sender_pub_key=bytes([scheme]) + bytes(spec.key_field_bytes - 1),
        signature=bytes(spec.signature_bytes),
    )

    verdict = check(header.encode())

    if flags & 0x0C == spec.flags:
        assert verdict.accepted
    else:
        assert verdict.code in {Code.FLAGS_SCHEME, Code.FLAGS_COMBINATION}


def test_reject_hybrid_flag_alone(signed: MsgHeader) -> None:
    """Bit 3 without bit 2 is refused whatever the scheme (H7)."""
    assert check(changed(signed, 1, b"\x08")).code is Code.FLAGS_COMBINATION


def test_reject_zero_namespace(signed: MsgHeader) -> None:
    """The all-zero namespace never stands in a header (S6)."""
    assert check(changed(signed, 2, bytes(20))).code is Code.ZERO_NAMESPACE


def test_reject_zero_sequence(signed: MsgHeader) -> None:
    """Sequence 0 is reserved (11-13)."""
    assert check(changed(signed, 22, bytes(8))).code is Code.ZERO_SEQUENCE


def test_blob_length_boundary(unsigned: MsgHeader, key: SigningKey) -> None:
    """2 MiB is the last length that is accepted (11-21)."""
    filled = replace(unsigned, blob_commitment=b"\x01" * 32, blob_len=MAX_BLOB_BYTES)

    assert check(key.sign_header(filled).encode()).accepted
    over = key.sign_header(replace(filled, blob_len=MAX_BLOB_BYTES + 1))
    assert check(over.encode()).code is Code.BLOB_TOO_LARGE


def test_commitments_of_an_empty_blob(unsigned: MsgHeader, key: SigningKey) -> None:
    """Without a blob: zero or SHA3-256 of nothing, and no third commitment (11-22, H11)."""
    nothing = bytes.fromhex("a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a")

    assert check(key.sign_header(unsigned).encode()).accepted
    assert check(key.sign_header(replace(unsigned, blob_commitment=nothing)).encode()).accepted
    other = key.sign_header(replace(unsigned, blob_commitment=b"\x01" * 32))
    assert check(other.encode()).code is Code.COMMITMENT_OF_NOTHING


def test_reject_zero_commitment_of_a_blob(unsigned: MsgHeader, key: SigningKey) -> None:
    """A blob of some length never has the zero commitment (H11)."""
    header = key.sign_header(replace(unsigned, blob_len=1))
    assert check(header.encode()).code is Code.ZERO_COMMITMENT


@pytest.mark.parametrize(
    ("offset", "code"),
    [(106, Code.KEY_TOO_LONG), (141, Code.SIGNATURE_TOO_LONG), (207, Code.FEE_TOO_LONG)],
)
def test_reject_length_above_its_limit(signed: MsgHeader, offset: int, code: Code) -> None:
    """A length of 65,535 is refused by its own limit before anything is sliced (11-44, H10)."""
    assert check(changed(signed, offset, b"\xff\xff")).code is code


def test_no_length_allocates_before_its_check(signed: MsgHeader) -> None:
    """Lengths of 65,535 in 120 bytes cost no more memory than the bytes themselves (11-44)."""
    liar = changed(signed, 106, b"\xff\xff")[:120]
    check(liar)

    tracemalloc.start()
    for _ in range(100):
        check(liar)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 16 * 1024


def test_field_limits_are_inclusive(signed: MsgHeader) -> None:
    """At its limit a field is refused for its scheme's sake or not at all, above it for the limit.

    The limits of LP-6411 §5: key 4,096, signature 8,192, fee 1,024, total 8,192 (11-43, H8).
    """
    assert check(replace(signed, sender_pub_key=b"\x01" * 4096).encode()).code is Code.KEY_LENGTH
    assert check(changed(signed, 106, b"\x10\x01")).code is Code.KEY_TOO_LONG
    assert check(changed(signed, 141, b"\x20\x00")).code is Code.TRUNCATED
    assert check(changed(signed, 141, b"\x20\x01")).code is Code.SIGNATURE_TOO_LONG
    assert check(replace(signed, fee_proof=b"\x01" * 1024).encode()).accepted
    assert check(changed(signed, 207, b"\x04\x01")).code is Code.FEE_TOO_LONG


def test_reject_unknown_scheme(signed: MsgHeader) -> None:
    """SigType 0 and 6 are no schemes; nor is an empty key (11-25, H5)."""
    for scheme in (0, 6, 255):
        assert check(changed(signed, 108, bytes([scheme]))).code is Code.UNKNOWN_SCHEME
    assert check(replace(signed, sender_pub_key=b"").encode()).code is Code.UNKNOWN_SCHEME


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
@pytest.mark.parametrize("off_by", [-1, 1])
def test_reject_key_and_signature_length(unsigned: MsgHeader, scheme: int, off_by: int) -> None:
    """One byte more or less than the scheme's lengths is refused (11-25, 11-28)."""
    spec = SCHEMES[scheme]
    good = replace(
        unsigned,
        flags=spec.flags,
        sender_pub_key=bytes([scheme]) + bytes(spec.key_field_bytes - 1),
        signature=bytes(spec.signature_bytes),
    )
    odd_key = bytes([scheme]) + bytes(spec.key_field_bytes - 1 + off_by)
    odd_signature = bytes(spec.signature_bytes + off_by)

    assert check(good.encode()).accepted
    assert check(replace(good, sender_pub_key=odd_key).encode()).code is Code.KEY_LENGTH
    bad = check(replace(good, signature=odd_signature).encode())
    assert bad.code is Code.SIGNATURE_LENGTH


def test_reject_empty_fee(signed: MsgHeader) -> None:
    """No fee has one encoding, the byte 0x00 (11-33, H12)."""
    assert check(replace(signed, fee_proof=b"").encode()).code is Code.FEE_EMPTY
    assert check(replace(signed, fee_proof=b"\x00\x01").encode()).code is Code.FEE_NONE_WITH_DATA


def test_fee_room_beside_ml_dsa_87(unsigned: MsgHeader) -> None:
    """860 bytes of fee fit beside ML-DSA-87 and 861 do not (11-43, H8)."""
    spec = SCHEMES[4]
    header = replace(
        unsigned,
        flags=spec.flags,
        sender_pub_key=b"\x04" + bytes(spec.key_field_bytes - 1),
        signature=bytes(spec.signature_bytes),
        fee_proof=b"\x01" + bytes(859),
    )

    assert len(header.encode()) == 8192
    assert check(header.encode()).accepted
    longer = bytearray(header.encode())
    fee_length_at = len(longer) - 862
    longer[fee_length_at : fee_length_at + 2] = (861).to_bytes(2, "big")
    assert check(bytes(longer) + b"\x00").code is Code.HEADER_TOO_LONG


def test_sidecar_present_exactly_when_flagged(signed: MsgHeader) -> None:
    """A flag without its 40 bytes and 40 bytes without the flag are refused (11-04, H32)."""
    flagged = changed(signed, 1, bytes([FLAG_TFHE_SIDECAR]))

    assert check(flagged).code is Code.TRUNCATED
    assert check(flagged + bytes(39)).code is Code.TRUNCATED
    assert check(flagged + bytes(40)).accepted
    assert check(signed.encode() + bytes(40)).code is Code.TRAILING_BYTES


def test_reject_trailing_byte(signed: MsgHeader) -> None:
    """One byte after the end is refused (11-05)."""
    verdict = check(signed.encode() + b"\x00")
    assert (verdict.kind, verdict.code) == (VerdictKind.REJECT, Code.TRAILING_BYTES)


def test_every_rule_has_a_reason_and_a_section() -> None:
    """What a person reads comes from the same table as what the code decides."""
    for rule in (*FIXED_RULES, *SPAN_RULES):
        section, reason = REASONS[rule.code]
        assert section
        assert reason
