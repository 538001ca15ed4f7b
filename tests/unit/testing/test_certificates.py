"""Certificates for tests."""

from __future__ import annotations

from cryptography import x509

from luxrelay.testing.certificates import TestAuthority


def test_what_an_authority_signs_is_signed_by_it() -> None:
    """A certificate names its authority, and the authority's key has signed it."""
    authority = TestAuthority("ca", at_ms=1_800_000_000_000)
    ours = x509.load_pem_x509_certificate(authority.sign("relay").certificate)

    ours.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    assert ours.not_valid_before_utc < ours.not_valid_after_utc
