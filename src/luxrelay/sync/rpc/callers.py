"""`Caller`: the identity of a call, as far as it is proven.

A client certificate proves a key, and the key is the peer; otherwise the address is. Ports are left
out, so that many connections of one address share one share; on the loopback, where every program
of the machine has one address, a connection is a peer.

Source: decisions P33, P34; 21-41.
"""

from __future__ import annotations

import hashlib
import ipaddress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from luxrelay.sync.cost import Payer
from luxrelay.sync.rpc.entrance import place_of

_UNKNOWN: Final = "unknown"
PASS_KEY: ContextVar[str] = ContextVar("luxrelay_pass_key", default="")
"""What the call that runs is counted under where tokens are shown; empty elsewhere."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls."""

    name: str
    """One name a peer: ``key:…``, an address, or address and port on the loopback."""
    key: str
    """SHA-256 of its proven public key, hex; empty without a client certificate."""
    local: bool
    """It is a program of this machine."""
    host: str = field(default="", compare=False)
    """Its address without the port; empty when gRPC does not say."""
    share: str = field(default="", compare=False)
    """What its lasting streams are counted under: its token, its key, or where it comes from
    (IPv6: /64; address and port on the loopback)."""
    payer: Payer = field(default=Payer("?"), compare=False)
    """What its work is charged to."""


def caller_of(context: grpc.ServicerContext) -> Caller:
    """Return who calls."""
    host, port = _place_of(context)
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    key = _proven_key(context)
    name = f"{host}:{port}" if local else host or _UNKNOWN
    name = f"key:{key}" if key else name
    share = PASS_KEY.get() or (name if key or local else network_of(host))
    payer = _payer_of(context, host, key)
    return Caller(name=name, key=key, local=local, host=host, share=share, payer=payer)


def _payer_of(context: grpc.ServicerContext, host: str, key: str) -> Payer:
    """Return what pays: a token, a certificate, or the address, behind a peer identity as well."""
    token = PASS_KEY.get()
    if token.startswith("token:"):
        return Payer(token, known=True)
    if key:
        return Payer(f"key:{key}", known=True)
    return Payer.at(getattr(context, "remote_host", "") or host)


def host_of(context: grpc.ServicerContext) -> str:
    """Return the address that a call comes from, without the port."""
    return _place_of(context)[0]


def network_of(host: str) -> str:
    """Return what an address is counted under: itself, or the /64 of an IPv6 one."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host or _UNKNOWN
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address) >> 64 << 64))


def _place_of(context: grpc.ServicerContext) -> tuple[str, str]:
    peer = unquote(context.peer())
    if peer.startswith("unix:"):
        return place_of(peer.rpartition("/")[2])
    address, _, port = peer.partition(":")[2].rpartition(":")
    return address.strip("[]").partition("%")[0], port


def _proven_key(context: grpc.ServicerContext) -> str:
    """Return the fingerprint of the certificate that gRPC has verified, if there is one."""
    certificates = context.auth_context().get("x509_pem_cert")
    if not certificates:
        return ""
    return key_fingerprint(x509.load_pem_x509_certificate(bytes(certificates[0])))


def key_fingerprint(certificate: x509.Certificate) -> str:
    """Return SHA-256 of the certificate's public key (SubjectPublicKeyInfo, DER), hex."""
    key = certificate.public_key()
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).hexdigest()
