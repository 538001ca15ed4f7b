"""Blob commitments."""

import hashlib
import sys
from dataclasses import replace

import pytest
from Crypto.Hash import keccak

from luxrelay.bus import (
    Code,
    MsgHeader,
    VerdictKind,
    check_blob,
    kzg,
    kzg_available,
    kzg_commit,
    sha3_commitment,
)
from luxrelay.bus.constants import FLAG_KZG_COMMITMENT
from luxrelay.errors import KzgUnavailableError

needs_extra = pytest.mark.skipif(not kzg_available(), reason="luxrelay[kzg] is not installed")


@pytest.fixture
def committed(unsigned: MsgHeader) -> MsgHeader:
    """A header that commits to ``b"abc"``."""
    return replace(unsigned, blob_commitment=sha3_commitment(b"abc"), blob_len=3)


def test_known_answer() -> None:
    """SHA3-256 of FIPS 202, not the Keccak of before (11-20)."""
    expected = "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532"

    assert sha3_commitment(b"abc").hex() == expected
    assert keccak.new(digest_bits=256, data=b"abc").hexdigest() != expected


def test_nothing_commits_to_zero() -> None:
    """An empty blob has the zero commitment (H11)."""
    assert sha3_commitment(b"") == bytes(32)


def test_accept_matching_blob(committed: MsgHeader, unsigned: MsgHeader) -> None:
    """The payload itself, and nothing where the header says nothing, are accepted."""
    assert check_blob(committed, b"abc").accepted
    assert check_blob(unsigned, b"").accepted


@pytest.mark.parametrize("blob", [b"", b"ab", b"abcd", b"abC"])
def test_reject_other_blob(committed: MsgHeader, blob: bytes) -> None:
    """Another length or other bytes are rejected (11-21)."""
    verdict = check_blob(committed, blob)
    assert (verdict.kind, verdict.code) == (VerdictKind.REJECT, Code.BLOB_MISMATCH)


@pytest.mark.parametrize("library", ["ckzg", "eth_account"])
def test_ignore_kzg_without_the_extra(
    committed: MsgHeader, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """A KZG commitment is ignored with a word on what is missing (11-10, H2)."""
    monkeypatch.setitem(sys.modules, library, None)

    for blob in (b"abc", b""):
        header = replace(committed, flags=FLAG_KZG_COMMITMENT, blob_len=len(blob))
        verdict = check_blob(header, blob)
        assert (verdict.kind, verdict.code) == (VerdictKind.IGNORE, Code.UNSUPPORTED_COMMITMENT)
        assert "luxrelay[kzg]" in verdict.reason


@needs_extra
@pytest.mark.slow
def test_check_kzg_with_the_extra(committed: MsgHeader) -> None:
    """With the extra the payload is accepted, another one rejected, with proofs and without.

    Source: 11-10, H2.
    """
    made = kzg_commit(b"abc")
    header = replace(committed, flags=FLAG_KZG_COMMITMENT, blob_commitment=made.field)
    foreign = kzg_commit(b"abC")

    assert check_blob(header, b"abc").accepted
    assert check_blob(header, b"abc", made).accepted
    wrong = [check_blob(header, b"abC"), check_blob(header, b"abC", made)]
    wrong += [check_blob(header, b"abc", foreign), check_blob(committed, b"abC", made)]
    assert {(verdict.kind, verdict.code) for verdict in wrong} == {
        (VerdictKind.REJECT, Code.BLOB_MISMATCH)
    }


@needs_extra
def test_kzg_of_nothing_is_accepted(unsigned: MsgHeader) -> None:
    """A header without payload has nothing to commit to, whatever its flag (H11)."""
    assert check_blob(replace(unsigned, flags=FLAG_KZG_COMMITMENT), b"").accepted


@needs_extra
def test_broken_installation_is_not_the_peers_fault(
    committed: MsgHeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setup that does not load leads to IGNORE, never to REJECT (H2)."""

    def fail() -> object:
        raise KzgUnavailableError("this is not the setup of the ceremony")

    monkeypatch.setattr(kzg, "_load", fail)
    verdict = check_blob(replace(committed, flags=FLAG_KZG_COMMITMENT), b"abc")

    assert (verdict.kind, verdict.code) == (VerdictKind.IGNORE, Code.UNSUPPORTED_COMMITMENT)
    assert "ceremony" in verdict.reason


def test_sha3_is_hashlib(committed: MsgHeader) -> None:
    """The commitment of a megabyte agrees with hashlib."""
    blob = bytes(range(256)) * 4096
    assert sha3_commitment(blob) == hashlib.sha3_256(blob).digest()
    assert committed.blob_len == 3


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "41c0dba2a9d6240849100376a8235e2c82e1b9998a999e21db32dd97496d3376",
        ),
        (b"a" * 1_000_000, "5c8875ae474a3634ba4fd55ec85bffd661f32aca75c6d699d0cdcb6c115891c1"),
    ],
    ids=["56 bytes", "a million"],
)
def test_known_answers_of_the_standard(message: bytes, expected: str) -> None:
    """The example messages of NIST have their digests; a Keccak commitment is refused (11-20)."""
    assert sha3_commitment(message).hex() == expected
    assert keccak.new(digest_bits=256, data=message).hexdigest() != expected


def test_reject_keccak_commitment(committed: MsgHeader) -> None:
    """A header that commits with the old Keccak does not match its payload (11-20)."""
    old = keccak.new(digest_bits=256, data=b"abc").digest()

    assert check_blob(replace(committed, blob_commitment=old), b"abc").code is Code.BLOB_MISMATCH
