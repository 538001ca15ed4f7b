"""Blob commitments."""

import hashlib
from dataclasses import replace

import pytest
from Crypto.Hash import keccak

from luxrelay.bus import Code, MsgHeader, VerdictKind, check_blob, sha3_commitment
from luxrelay.bus.constants import FLAG_KZG_COMMITMENT


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


@pytest.mark.parametrize("blob", [b"", b"ab", b"abcd", b"abd"])
def test_reject_other_blob(committed: MsgHeader, blob: bytes) -> None:
    """Another length or other bytes are rejected (11-21)."""
    verdict = check_blob(committed, blob)
    assert (verdict.kind, verdict.code) == (VerdictKind.REJECT, Code.BLOB_MISMATCH)


def test_ignore_kzg_without_the_extra(committed: MsgHeader) -> None:
    """A KZG commitment is ignored with a word on what is missing (11-10, H2)."""
    verdict = check_blob(replace(committed, flags=FLAG_KZG_COMMITMENT), b"abc")
    assert verdict.kind is VerdictKind.IGNORE
    assert "luxrelay[kzg]" in verdict.reason


def test_sha3_is_hashlib(committed: MsgHeader) -> None:
    """The commitment of a megabyte agrees with hashlib."""
    blob = bytes(range(256)) * 4096
    assert sha3_commitment(blob) == hashlib.sha3_256(blob).digest()
    assert committed.blob_len == 3
