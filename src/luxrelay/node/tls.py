"""TLS of the node's own listeners: one rule for all of them.

TLS 1.2 and above, and of 1.2 only suites with forward secrecy and authenticated encryption: CBC
suites have leaked plaintext again and again (RFC 9325 §4.2). gRPC has the same rule built in:
its suites are ECDHE with GCM, its least version is 1.2.

Source: RFC 9325 §3.1, §4.2; docs/explanation/threat-model.md.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from luxrelay.errors import NodeError

SUITES: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Suites of TLS 1.2, in OpenSSL's notation; those of 1.3 are all of this kind."""


def server_context(certificate: str | Path, key: str | Path) -> ssl.SSLContext:
    """Return what a listener does its handshakes with.

    Args:
        certificate: PEM file of a certificate chain.
        key: PEM file of its private key.

    Raises:
        NodeError: ``node.config``: a file cannot be used.

    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(SUITES)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise NodeError(
            f"cannot use the certificate: {error.strerror or error}",
            where=str(certificate),
            hint="give PEM files of a certificate chain and its private key",
            code="node.config",
        ) from error
    return context
