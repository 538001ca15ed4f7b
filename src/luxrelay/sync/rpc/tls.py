"""TLS credentials of the sync port: certificates and trusted authorities of each side.

Files are read and checked here, so that a wrong one is a clear word at the start and not a failed
handshake later. Mutual TLS: with ``client_ca`` a server answers nobody without a certificate of
that authority, and the key in it is the client's proven name (P33).

Source: decisions P33, P37.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from luxrelay.bus.vouching import TAG_TLS, TLS_PROOF_MAX, vouches, who_vouches
from luxrelay.errors import SyncArgumentError
from luxrelay.files import read_bounded

PROOF_METADATA: Final = "luxrelay-validator-proof-bin"
"""Metadata in which a caller shows that a validator vouches for its TLS key."""
PEM_BYTES_MAX: Final = 1024 * 1024
"""Largest file of certificates or keys that is read, bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """What a server shows, and whom it lets in."""

    certificate: bytes
    """Its certificate and the chain above it, PEM."""
    key: bytes = field(repr=False)
    """The private key of the first certificate, PEM, without a passphrase."""
    client_ca: bytes = b""
    """Authorities whose clients are let in, PEM; empty lets everybody in."""

    def __post_init__(self) -> None:
        """Refuse what no handshake can use."""
        _check_pair(self.certificate, self.key, "the server")
        if self.client_ca:
            _certificates(self.client_ca, "the authority of clients")

    @classmethod
    def from_files(cls, certificate: Path, key: Path, client_ca: Path | None = None) -> Self:
        """Return what the files hold.

        Raises:
            SyncArgumentError: a file cannot be read or is not what it should be; names it.

        """
        return cls(
            certificate=_read(certificate),
            key=_read(key),
            client_ca=b"" if client_ca is None else _read(client_ca),
        )

    def credentials(self) -> grpc.ServerCredentials:
        """Return what gRPC serves with."""
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)],
            root_certificates=self.client_ca or None,
            require_client_auth=bool(self.client_ca),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """Whom a client believes, and what it shows."""

    ca: bytes = b""
    """Authorities of the relays it believes, PEM; empty for those of the system."""
    certificate: bytes = b""
    """Its own certificate and chain, PEM; empty shows none."""
    key: bytes = field(default=b"", repr=False)
    """The private key of that certificate, PEM, without a passphrase."""
    server_name: str = ""
    """Name that the relay's certificate must carry; empty for the host of the address."""
    validator_proof: bytes = b""
    """What a validator's key signed for the certificate's key (`luxrelay keys vouch`); shown with
    every call, so that a relay which knows that key serves it as a validator (P33)."""

    def __post_init__(self) -> None:
        """Refuse what no handshake can use, and a proof for another key."""
        if self.ca:
            _certificates(self.ca, "the authority of relays")
        if bool(self.certificate) != bool(self.key):
            raise SyncArgumentError(
                "a certificate and its key belong together", where="ClientTls.key"
            )
        if self.certificate:
            _check_pair(self.certificate, self.key, "the client")
        if self.validator_proof:
            self._check_proof()

    def _check_proof(self) -> None:
        proof, hint = self.validator_proof, "`luxrelay keys vouch --tls-certificate` prints one"
        if not self.certificate:
            raise SyncArgumentError(
                "a validator's proof is for a certificate, and none is shown",
                where="ClientTls.validator_proof",
                hint="give the certificate and its key",
            )
        if len(proof) > TLS_PROOF_MAX:
            raise SyncArgumentError(
                f"a validator's proof of {len(proof):,} bytes, {TLS_PROOF_MAX:,} are the most",
                where="ClientTls.validator_proof",
                hint="vouch with an Ed25519 or secp256k1 key",
            )
        subject = certificate_subject(self.certificate)
        if not vouches(proof, TAG_TLS, subject, {who_vouches(proof)}):
            raise SyncArgumentError(
                "the validator's proof is not for this certificate's key",
                where="ClientTls.validator_proof",
                hint=hint,
            )

    @classmethod
    def from_files(
        cls,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        *,
        server_name: str = "",
        validator_proof: bytes = b"",
    ) -> Self:
        """Return what the files hold.

        Raises:
            SyncArgumentError: a file cannot be read or is not what it should be; names it.

        """
        return cls(
            ca=b"" if ca is None else _read(ca),
            certificate=b"" if certificate is None else _read(certificate),
            key=b"" if key is None else _read(key),
            server_name=server_name,
            validator_proof=validator_proof,
        )

    def credentials(self) -> grpc.ChannelCredentials:
        """Return what gRPC dials with."""
        return grpc.ssl_channel_credentials(
            root_certificates=self.ca or None,
            private_key=self.key or None,
            certificate_chain=self.certificate or None,
        )


def key_fingerprint(certificate: x509.Certificate) -> str:
    """Return SHA-256 of the certificate's public key (SubjectPublicKeyInfo, DER), hex."""
    key = certificate.public_key()
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).hexdigest()


def certificate_subject(pem: bytes) -> bytes:
    """Return what a validator vouches for: the fingerprint of a PEM certificate's key, 32 bytes.

    Raises:
        SyncArgumentError: it is no PEM certificate.

    """
    return bytes.fromhex(key_fingerprint(_certificates(pem, "the client")[0]))


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, PEM_BYTES_MAX)
    except OSError as error:
        raise SyncArgumentError(
            f"cannot read the file: {error.strerror}", where=str(path), hint="give a PEM file"
        ) from error


def _certificates(pem: bytes, whose: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise SyncArgumentError(
            f"the certificate of {whose} is not PEM", where="TLS", hint="give a PEM certificate"
        ) from error


def _check_pair(certificate: bytes, key: bytes, whose: str) -> None:
    first = _certificates(certificate, whose)[0]
    try:
        private = load_pem_private_key(key, password=None)
    except (TypeError, ValueError) as error:
        raise SyncArgumentError(
            f"the key of {whose} cannot be used",
            where="TLS",
            hint="give a PEM private key without a passphrase",
        ) from error
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*form) != first.public_key().public_bytes(*form):
        raise SyncArgumentError(
            f"the key of {whose} is not the key of its certificate",
            where="TLS",
            hint="give the two files that were made together",
        )
