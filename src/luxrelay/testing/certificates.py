"""Certificates for tests: an authority and its certificates, made in a moment."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class TestCertificate:
    """A certificate and its key, PEM."""

    __test__ = False
    certificate: bytes
    """The certificate."""
    key: bytes
    """Its private key, without a passphrase."""


class TestAuthority:
    """Signs certificates that are valid for a day around ``at_ms``.

    Args:
        name: Its common name.
        at_ms: Wall clock of the test, Unix milliseconds.

    """

    __test__ = False

    def __init__(self, name: str, *, at_ms: int) -> None:
        self._at = datetime.fromtimestamp(at_ms / 1000, UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.certificate: bytes = builder.sign(self._key, hashes.SHA256()).public_bytes(
            Encoding.PEM
        )
        """Its own certificate, PEM."""

    def sign(self, name: str) -> TestCertificate:
        """Return a certificate for ``name``, localhost and the loopback addresses, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        loopback = [ipaddress.ip_address(each) for each in ("127.0.0.1", "::1")]
        names = [x509.DNSName(name), x509.DNSName("localhost"), *map(x509.IPAddress, loopback)]
        builder = self._builder(subject, key).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        return TestCertificate(
            builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._at - timedelta(days=1))
            .not_valid_after(self._at + timedelta(days=1))
        )
